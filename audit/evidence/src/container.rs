//! The file that a bundle is: a tar archive in one form, so that every byte of it means something and everybody can open it.
//! What is read may come from anybody: only plain files with the names of a bundle, few of them, bounded, and written again
//! they must give the same bytes.

use std::io::{self, Read as _, Write};
use tar::{Archive, Builder, EntryType, Header};

/// Longest bundle that is written or read.
pub const BUNDLE_BYTES_MAX: usize = 512 << 20;
/// More files than any bundle has.
const FILES_MAX: usize = 16;

/// The manifest, which stands first.
pub const MANIFEST: &str = "manifest";
/// What the operator says beside the entries.
pub const STATEMENT: &str = "statement.json";
/// The log's checkpoint, with its cosignatures.
pub const CHECKPOINT: &str = "checkpoint";
/// The log's word for the key of the manifest.
pub const CERTIFICATE: &str = "report.certificate";
/// The tenant's entries with their proofs.
pub const ENTRIES: &str = "entries";
/// The figures, for machines.
pub const REPORT_JSON: &str = "report.json";
/// The same to read.
pub const REPORT_HTML: &str = "report.html";
/// The same on paper.
pub const REPORT_PDF: &str = "report.pdf";
/// The same as OSCAL assessment results.
pub const OSCAL: &str = "oscal.json";
/// A verifier that is not ours to trust: it needs nothing but Python and openssl.
pub const VERIFIER: &str = "verify/bundle.py";

/// All files of a bundle, in order.
pub const NAMES: [&str; 10] =
    [MANIFEST, STATEMENT, CHECKPOINT, CERTIFICATE, ENTRIES, REPORT_JSON, REPORT_HTML, REPORT_PDF, OSCAL, VERIFIER];

/// Bytes are no bundle.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// Longer than [`BUNDLE_BYTES_MAX`].
    #[error("the bundle has {length} bytes, at most {BUNDLE_BYTES_MAX} are read")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// Not an archive, or one that ends early.
    #[error("not a tar archive: {0}")]
    Archive(#[from] io::Error),
    /// A link, a folder, or anything else that is no file of a bundle, or one in another place.
    #[error("`{name}` is no file of a bundle, or not in its place")]
    Name {
        /// As it stands in the archive, as far as it can be shown.
        name: String,
    },
    /// It is not written as a bundle is: there are bytes in it that mean nothing.
    #[error("the archive is not in its one form")]
    Form,
}

/// The files of a bundle, in order.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Files(Vec<(&'static str, Vec<u8>)>);

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, bytes)| (name, bytes.len()))).finish()
    }
}

impl Files {
    /// Puts a file where its name belongs; one that is there is replaced.
    pub fn put(&mut self, name: &'static str, bytes: Vec<u8>) {
        self.0.retain(|(held, _)| *held != name);
        self.0.push((name, bytes));
        self.0.sort_by_key(|(name, _)| NAMES.iter().position(|known| known == name));
    }

    /// A file's bytes.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().find(|(held, _)| *held == name).map(|(_, bytes)| bytes.as_slice())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &[u8])> {
        self.0.iter().map(|(name, bytes)| (*name, bytes.as_slice()))
    }

    /// The archive.
    ///
    /// # Errors
    /// [`ContainerError::TooLong`].
    pub fn to_archive(&self) -> Result<Vec<u8>, ContainerError> {
        let archive = self.write(Vec::new())?;
        let length = archive.len();
        if length > BUNDLE_BYTES_MAX { Err(ContainerError::TooLong { length }) } else { Ok(archive) }
    }

    fn write<W: Write>(&self, to: W) -> io::Result<W> {
        let mut builder = Builder::new(to);
        for (name, bytes) in &self.0 {
            let mut header = Header::new_ustar();
            header.set_path(name)?;
            header.set_entry_type(EntryType::Regular);
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(0);
            header.set_uid(0);
            header.set_gid(0);
            header.set_cksum();
            builder.append(&header, bytes.as_slice())?;
        }
        builder.into_inner()
    }

    /// Reads an archive.
    ///
    /// # Errors
    /// [`ContainerError`].
    pub fn from_archive(archive: &[u8]) -> Result<Self, ContainerError> {
        if archive.len() > BUNDLE_BYTES_MAX {
            return Err(ContainerError::TooLong { length: archive.len() });
        }
        let (mut files, mut next) = (Self::default(), 0);
        // Raw: extensions of the format that carry names and sizes are files that no bundle has.
        for entry in Archive::new(archive).entries()?.raw(true).take(FILES_MAX) {
            let mut entry = entry?;
            let path = entry.path_bytes().into_owned();
            let place = NAMES.iter().skip(next).position(|name| name.as_bytes() == path);
            let regular = entry.header().entry_type() == EntryType::Regular;
            let Some(place) = place.filter(|_| regular) else {
                let shown = String::from_utf8_lossy(&path).chars().filter(|c| !c.is_control()).take(100).collect();
                return Err(ContainerError::Name { name: shown });
            };
            let name = NAMES.get(next + place).copied().unwrap_or(MANIFEST);
            next += place + 1;
            let mut bytes = Vec::new();
            // Nothing longer than the archive itself is ever allocated.
            entry.by_ref().take(archive.len() as u64).read_to_end(&mut bytes)?;
            if bytes.len() as u64 != entry.size() {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
            }
            files.0.push((name, bytes));
        }
        // INVARIANT: no byte of the archive is without a meaning: neither in a header nor between or after the files.
        let rest = files.write(Same { rest: archive })?;
        if rest.rest.is_empty() { Ok(files) } else { Err(ContainerError::Form) }
    }
}

/// Takes what is written if it is what is there.
struct Same<'a> {
    rest: &'a [u8],
}

impl Write for Same<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.rest.strip_prefix(bytes) {
            Some(rest) => {
                self.rest = rest;
                Ok(bytes.len())
            }
            None => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not in its one form")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        let mut files = Files::default();
        files.put(ENTRIES, vec![7; 700]);
        files.put(MANIFEST, b"manifest".to_vec());
        files.put(VERIFIER, b"#!".to_vec());
        files
    }

    #[test]
    fn an_archive_is_read_back_and_has_one_form() {
        let archive = files().to_archive().unwrap();
        assert_eq!(Files::from_archive(&archive).unwrap(), files());
        assert_eq!(files().iter().map(|(name, _)| name).collect::<Vec<_>>(), [MANIFEST, ENTRIES, VERIFIER]);
        let mut longer = archive.clone();
        longer.extend_from_slice(&[0; 512]);
        assert!(Files::from_archive(&longer).is_err());
        for length in (0..archive.len()).step_by(64) {
            assert!(Files::from_archive(&archive[..length]).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn a_bit_that_means_nothing_is_refused_all_the_same() {
        let archive = files().to_archive().unwrap();
        let content = |at: usize, name: &str| {
            let bytes = files().get(name).unwrap().len();
            let begin = match name {
                MANIFEST => 512,
                ENTRIES => 1_536,
                _ => 3_072,
            };
            (begin..begin + bytes).contains(&at)
        };
        for at in 0..archive.len() {
            if [MANIFEST, ENTRIES, VERIFIER].iter().any(|name| content(at, name)) {
                continue;
            }
            let mut changed = archive.clone();
            changed[at] ^= 1;
            assert!(Files::from_archive(&changed).is_err(), "byte {at}");
        }
    }

    fn hostile(path: &[u8], kind: EntryType, size: u64) -> Vec<u8> {
        let mut header = Header::new_ustar();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path);
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o644);
        header.set_cksum();
        let mut archive = header.as_bytes().to_vec();
        archive.extend_from_slice(&[0; 2_048]);
        archive
    }

    #[test]
    fn links_paths_and_strange_files_are_refused() {
        for (path, kind) in [
            (&b"manifest"[..], EntryType::Symlink),
            (b"manifest", EntryType::Link),
            (b"manifest", EntryType::Directory),
            (b"manifest", EntryType::Fifo),
            (b"manifest", EntryType::GNULongName),
            (b"manifest", EntryType::XHeader),
            (b"../manifest", EntryType::Regular),
            (b"/manifest", EntryType::Regular),
            (b"./manifest", EntryType::Regular),
            (b"verify/../manifest", EntryType::Regular),
            (b"manifest\n", EntryType::Regular),
            (b"other", EntryType::Regular),
        ] {
            let refused = Files::from_archive(&hostile(path, kind, 0));
            assert!(matches!(refused, Err(ContainerError::Name { .. })), "{refused:?}");
        }
        // One that claims to be huge costs nothing.
        assert!(Files::from_archive(&hostile(b"manifest", EntryType::Regular, u64::MAX >> 3)).is_err());
        assert!(Files::from_archive(&[0; 100]).is_err() && Files::from_archive(b"no archive").is_err());
    }

    #[test]
    fn each_name_comes_once_and_in_its_place() {
        let one = |name: &'static str| {
            let mut files = Files::default();
            files.put(name, Vec::new());
            files.to_archive().unwrap()[..512].to_vec()
        };
        let archive = |names: [&'static str; 2]| [one(names[0]), one(names[1]), vec![0; 1_024]].concat();
        assert!(Files::from_archive(&archive([MANIFEST, ENTRIES])).is_ok());
        for names in [[MANIFEST, MANIFEST], [ENTRIES, MANIFEST]] {
            assert!(matches!(Files::from_archive(&archive(names)), Err(ContainerError::Name { .. })));
        }
    }
}
