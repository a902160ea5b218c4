//! The installation's secret, and the keyed hash under which a key may be stored.

use crate::ApiKey;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

const SECRET_BYTES: usize = 32;
const CHECKSUM_BYTES: usize = 32;
/// The file: the secret, then its checksum.
const FILE_BYTES: usize = SECRET_BYTES + CHECKSUM_BYTES;
/// Sets the checksum apart from everything else that is hashed with the secret.
const CHECKSUM_CONTEXT: &str = "bulkhead 2026 checksum of the key secret's file";

/// 256 bits that only this installation has. A copied configuration is worthless without them.
pub struct KeySecret(Zeroizing<[u8; SECRET_BYTES]>);

/// BLAKE3 of a key, keyed with the installation's secret. Fit to be stored.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

/// The secret file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenSecretError {
    /// Reading or writing failed.
    #[error("secret file `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Somebody other than the owner may read or write it.
    #[error("secret file `{}` has mode {mode:o}, only 600 or 400 is accepted", path.display())]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Cut, or not made by us.
    #[error("secret file `{}` does not hold exactly {bytes} bytes", path.display(), bytes = FILE_BYTES)]
    Length {
        /// The file.
        path: PathBuf,
    },
    /// Some bit of it changed: with it, every key would be unknown.
    #[error("secret file `{}` is damaged, its checksum does not fit: restore it from a backup", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
    },
    /// The operating system gave no random bytes.
    #[error("no random bytes for a new secret: {0}")]
    Entropy(getrandom::Error),
}

impl KeySecret {
    /// Reads the secret, or makes one (mode 600, on disk before this returns) when there is no such file.
    ///
    /// # Errors
    /// [`OpenSecretError`] when the file is readable by others, damaged, or cannot be read or made.
    pub fn open_or_create(path: &Path) -> Result<Self, OpenSecretError> {
        match fs::symlink_metadata(path) {
            Ok(_) => Self::open(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => match Self::create(path) {
                // Another process was faster: its secret counts.
                Err(OpenSecretError::Io { source, .. }) if source.kind() == io::ErrorKind::AlreadyExists => {
                    Self::open(path)
                }
                other => other,
            },
            Err(source) => Err(OpenSecretError::Io { path: path.to_owned(), source }),
        }
    }

    fn open(path: &Path) -> Result<Self, OpenSecretError> {
        let failed = |source| OpenSecretError::Io { path: path.to_owned(), source };
        // Asked before opening: opening a named pipe for reading would wait for its writer.
        if !fs::metadata(path).map_err(failed)?.is_file() {
            return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")));
        }
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(OpenSecretError::Mode { path: path.to_owned(), mode });
        }
        // One byte more than wanted, so that a longer file is noticed and a huge one is not read.
        let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_BYTES + 1));
        file.take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
        let length = || OpenSecretError::Length { path: path.to_owned() };
        let (secret, checksum) = bytes.split_first_chunk::<SECRET_BYTES>().ok_or_else(length)?;
        let checksum = <[u8; CHECKSUM_BYTES]>::try_from(checksum).map_err(|_| length())?;
        let secret = Self(Zeroizing::new(*secret));
        if checksum != secret.checksum() {
            return Err(OpenSecretError::Checksum { path: path.to_owned() });
        }
        Ok(secret)
    }

    fn create(path: &Path) -> Result<Self, OpenSecretError> {
        let failed = |source| OpenSecretError::Io { path: path.to_owned(), source };
        let secret = Self::random()?;
        // Written beside and linked into place: a crash leaves no half secret under the final name.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let draft = path.with_extension(format!("draft-{}", std::process::id()));
        let _ = fs::remove_file(&draft);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        let written = file.write_all(secret.0.as_slice()).and_then(|()| file.write_all(&secret.checksum()));
        let written = written.and_then(|()| file.sync_all());
        let linked = written.and_then(|()| fs::hard_link(&draft, path));
        let _ = fs::remove_file(&draft);
        linked.and_then(|()| File::open(folder)?.sync_all()).map_err(failed)?;
        Ok(secret)
    }

    fn random() -> Result<Self, OpenSecretError> {
        let mut secret = Zeroizing::new([0u8; SECRET_BYTES]);
        getrandom::fill(secret.as_mut_slice()).map_err(OpenSecretError::Entropy)?;
        Ok(Self(secret))
    }

    /// Catches decay and slips, not forgery: whoever can write the file can write the checksum too.
    fn checksum(&self) -> [u8; CHECKSUM_BYTES] {
        blake3::derive_key(CHECKSUM_CONTEXT, self.0.as_slice())
    }

    /// The form in which a key may be stored.
    #[must_use]
    pub fn hash(&self, key: &ApiKey) -> KeyHash {
        KeyHash(*blake3::keyed_hash(&self.0, key.reveal().as_bytes()).as_bytes())
    }

    /// A secret that is kept nowhere.
    #[cfg(test)]
    pub(crate) fn of(byte: u8) -> Self {
        Self(Zeroizing::new([byte; SECRET_BYTES]))
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret(32 bytes)")
    }
}

impl KeyHash {
    /// Reads 64 hexadecimal digits; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 64 {
            return None;
        }
        let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
        let mut hash = [0u8; 32];
        for (byte, pair) in hash.iter_mut().zip(digits?.chunks_exact(2)) {
            // INVARIANT: both are below 16.
            *byte = pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8);
        }
        Some(Self(hash))
    }

    /// Equality in a time that does not depend on where the two differ.
    pub(crate) fn same_as(&self, other: &Self) -> subtle::Choice {
        self.0.ct_eq(&other.0)
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(32 bytes)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_made_once_and_read_by_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key-secret");
        let first = KeySecret::open_or_create(&path).unwrap();
        let second = KeySecret::open_or_create(&path).unwrap();
        assert_eq!(first.0, second.0);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no draft stays behind");
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key-secret");
        KeySecret::open_or_create(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = KeySecret::open_or_create(&path).unwrap_err();
            assert!(matches!(error, OpenSecretError::Mode { mode: seen, .. } if seen == mode), "{error}");
        }
    }

    #[test]
    fn a_pipe_is_no_secret_and_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key-secret");
        assert!(std::process::Command::new("mkfifo").arg("-m600").arg(&path).status().unwrap().success());
        let error = KeySecret::open_or_create(&path).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }

    #[test]
    fn a_damaged_secret_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key-secret");
        for length in [0, 31, 32, 63, 65, 4096] {
            let _ = fs::remove_file(&path);
            fs::write(&path, vec![7; length]).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let error = KeySecret::open_or_create(&path).unwrap_err();
            assert!(matches!(error, OpenSecretError::Length { .. }), "{length}: {error}");
            assert_eq!(fs::metadata(&path).unwrap().len(), length as u64);
        }
    }

    #[test]
    fn every_changed_bit_of_the_secret_s_file_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key-secret");
        KeySecret::open_or_create(&path).unwrap();
        let good = fs::read(&path).unwrap();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let error = KeySecret::open_or_create(&path).unwrap_err();
            assert!(matches!(error, OpenSecretError::Checksum { .. }), "bit {bit}: {error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert_eq!(fs::read(&path).unwrap(), bytes, "left alone");
        }
        fs::write(&path, good).unwrap();
        KeySecret::open_or_create(&path).unwrap();
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_in_the_error() {
        let error = KeySecret::open_or_create(Path::new("/nonexistent-folder/key-secret")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent-folder/key-secret"), "{error}");
    }

    #[test]
    fn the_hash_depends_on_the_key_and_on_the_secret() {
        let (a, b) = (ApiKey::mint().unwrap(), ApiKey::mint().unwrap());
        let secret = KeySecret::of(1);
        assert!(bool::from(secret.hash(&a).same_as(&secret.hash(&a))));
        assert!(!bool::from(secret.hash(&a).same_as(&secret.hash(&b))));
        assert!(!bool::from(secret.hash(&a).same_as(&KeySecret::of(2).hash(&a))));
    }

    #[test]
    fn hashes_are_read_from_64_hexadecimal_digits_only() {
        let hash = KeySecret::of(1).hash(&ApiKey::mint().unwrap());
        let text = hash.to_string();
        assert!(bool::from(KeyHash::parse(&text).unwrap().same_as(&hash)));
        for bad in ["", &text[1..], &format!("{text}0"), &text.replace(|c: char| c.is_ascii_digit(), "g")] {
            assert!(KeyHash::parse(bad).is_none(), "{bad}");
        }
        assert!(KeyHash::parse(&"é".repeat(32)).is_none());
    }
}
