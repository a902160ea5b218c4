//! How far a receiver is: the number of the next entry that it may have, in a file of its own.

use super::StartWebhookError;
use crate::bounded_file;
use sha2::{Digest as _, Sha256};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use url::Url;

/// In the data folder.
const FOLDER: &str = "webhooks";
/// A number and the end of its line.
const FILE_BYTES_MAX: u64 = 32;

pub(super) struct Cursor {
    path: PathBuf,
    next: u64,
}

impl Cursor {
    /// Of this address: one that is new begins behind the log's `entries`.
    pub(super) fn open(data_dir: &Path, url: &Url, entries: u64) -> Result<Self, StartWebhookError> {
        // An address may hold a secret: its file's name does not.
        let name = hex::encode(&Sha256::digest(url.as_str())[..16]);
        let path = data_dir.join(FOLDER).join(name);
        let failed = |source| StartWebhookError::Cursor { path: path.clone(), source };
        std::fs::create_dir_all(data_dir.join(FOLDER)).map_err(failed)?;
        let next = match bounded_file::read_text(&path, FILE_BYTES_MAX) {
            Ok(text) => {
                let next = text.strip_suffix('\n').unwrap_or(&text).parse().ok();
                let content = || StartWebhookError::CursorContent { path: path.clone(), entries };
                next.filter(|next| *next <= entries).ok_or_else(content)?
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut new = Self { path: path.clone(), next: entries };
                new.advance(entries).map_err(failed)?;
                return Ok(new);
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge) => {
                return Err(StartWebhookError::CursorContent { path, entries });
            }
            Err(error) => return Err(failed(error)),
        };
        Ok(Self { path, next })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Remembered when it returns, also after the machine has lost its power.
    pub(super) fn advance(&mut self, next: u64) -> io::Result<()> {
        let folder = self.path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        writeln!(file, "{next}")?;
        file.as_file().sync_all()?;
        file.persist(&self.path).map_err(|error| error.error)?;
        std::fs::File::open(folder)?.sync_all()?;
        self.next = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url() -> Url {
        Url::parse("https://siem.example.com/hook?token=t").unwrap()
    }

    #[test]
    fn a_new_receiver_begins_with_now_and_an_old_one_where_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let open = |entries| Cursor::open(folder.path(), &url(), entries);
        let mut cursor = open(7).unwrap();
        assert_eq!(cursor.next(), 7);
        assert!(!cursor.path().to_string_lossy().contains("token"), "an address is a secret");
        assert_eq!(open(9).unwrap().next(), 7, "it was remembered at once");
        cursor.advance(8).unwrap();
        assert_eq!(open(9).unwrap().next(), 8);
    }

    #[test]
    fn what_says_nothing_of_this_log_is_not_guessed() {
        let folder = tempfile::tempdir().unwrap();
        let cursor = Cursor::open(folder.path(), &url(), 7).unwrap();
        for content in ["8\n", "x\n", "", "-1\n", "7\n7\n", &"7".repeat(40)] {
            std::fs::write(cursor.path(), content).unwrap();
            let error = Cursor::open(folder.path(), &url(), 7).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("which of the log's 7 entries"), "{content:?}: {error}");
        }
    }
}
