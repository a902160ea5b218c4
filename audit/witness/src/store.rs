//! What a witness must not forget: its key, and the latest checkpoint of each log. One small file each; a new state is
//! written whole beside the old one, synced, renamed over it, and the folder is synced.

use audit_tlog::{CHECKPOINT_BYTES_MAX, Cosigner, CosignerKey, KeyError};
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const KEY: &str = "witness.skey";
const LOGS: &str = "logs";
const EVIDENCE: &str = "evidence";
const KEY_BYTES_MAX: usize = 1_024;
/// Two checkpoints that contradict each other.
const EVIDENCE_BYTES_MAX: usize = 2 * CHECKPOINT_BYTES_MAX + 1;

/// Why a witness's folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("`{}` is in use by another witness", dir.display())]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
    /// There is no key, so nobody made this folder.
    #[error("`{}` holds no key: `bulkhead-witness key` makes one", dir.display())]
    NoKey {
        /// The folder.
        dir: PathBuf,
    },
    /// There is a key, and what it has signed was lost. A witness that forgot may not go on under the same key: it would
    /// sign a second history.
    #[error(
        "`{}` is missing: what this key has signed is forgotten; restore the folder, or make another witness with \
         another key", path.display()
    )]
    Forgotten {
        /// The folder of what was seen.
        path: PathBuf,
    },
    /// The key belongs to a witness of another name.
    #[error("the folder holds the key of `{held}`")]
    OtherName {
        /// That name.
        held: String,
    },
    /// The key, or the name for one, is no key.
    #[error("the witness's key: {0}")]
    Key(#[from] KeyError),
    /// The system has no random bytes.
    #[error("no random bytes")]
    Random,
    /// A file could not be read or written.
    #[error("`{}`: {source}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::File { path: path.to_owned(), source }
}

/// Makes a witness's folder and key; leaves both as they are when they are there. The verifier key is for whoever is to
/// believe the witness.
///
/// # Errors
/// [`StoreError`].
pub fn make_key(dir: &Path, name: &str) -> Result<CosignerKey, StoreError> {
    make_folder(dir).map_err(at(dir))?;
    let _lock = lock(dir)?;
    if let Some(cosigner) = read_key(dir)? {
        let key = cosigner.verifier_key();
        return if key.name() == name { Ok(key) } else { Err(StoreError::OtherName { held: key.name().to_owned() }) };
    }
    let mut seed = Zeroizing::new([0; 32]);
    getrandom::fill(seed.as_mut_slice()).map_err(|_| StoreError::Random)?;
    let cosigner = Cosigner::from_seed(name, &seed)?;
    // The key comes last: where there is one, there is a folder of what it has signed.
    for folder in [LOGS, EVIDENCE] {
        let path = dir.join(folder);
        make_folder(&path).map_err(at(&path))?;
    }
    let line = Zeroizing::new(format!("{}\n", cosigner.secret_line().as_str()));
    write_whole(dir, KEY, line.as_bytes()).map_err(at(&dir.join(KEY)))?;
    Ok(cosigner.verifier_key())
}

/// A witness's folder, locked as long as this lives.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
    _lock: File,
}

impl Store {
    /// Opens what [`make_key`] made.
    pub(crate) fn open(dir: &Path) -> Result<(Self, Cosigner), StoreError> {
        if !dir.is_dir() {
            return Err(StoreError::NoKey { dir: dir.to_owned() });
        }
        let lock = lock(dir)?;
        let cosigner = read_key(dir)?.ok_or_else(|| StoreError::NoKey { dir: dir.to_owned() })?;
        let logs = dir.join(LOGS);
        if !logs.is_dir() {
            return Err(StoreError::Forgotten { path: logs });
        }
        Ok((Self { dir: dir.to_owned(), _lock: lock }, cosigner))
    }

    /// The latest checkpoint of a log, with the cosignature; `None` when there was none.
    pub(crate) fn latest(&self, origin_hash: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let path = self.dir.join(LOGS).join(origin_hash);
        read(&path, CHECKPOINT_BYTES_MAX).map_err(at(&path))
    }

    /// Keeps a log's latest checkpoint. Durable when it returns; after an error either the old or the new one is kept.
    pub(crate) fn keep(&self, origin_hash: &str, note: &str) -> io::Result<()> {
        write_whole(&self.dir.join(LOGS), origin_hash, note.as_bytes())
    }

    /// Keeps two checkpoints that the log signed and that cannot both be true. The first such pair stays.
    pub(crate) fn keep_evidence(&self, origin_hash: &str, seen: &str, other: &str) -> io::Result<PathBuf> {
        let folder = self.dir.join(EVIDENCE);
        let path = folder.join(origin_hash);
        if read(&path, EVIDENCE_BYTES_MAX)?.is_none() {
            make_folder(&folder)?;
            write_whole(&folder, origin_hash, format!("{seen}\n{other}").as_bytes())?;
        }
        Ok(path)
    }
}

fn lock(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join("lock");
    refuse_special(&path).map_err(at(&path))?;
    let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = opened.map_err(at(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { dir: dir.to_owned() }),
        Err(TryLockError::Error(source)) => Err(StoreError::File { path, source }),
    }
}

fn read_key(dir: &Path) -> Result<Option<Cosigner>, StoreError> {
    let path = dir.join(KEY);
    let Some(bytes) = read(&path, KEY_BYTES_MAX).map_err(at(&path))? else { return Ok(None) };
    let bytes = Zeroizing::new(bytes);
    let line = std::str::from_utf8(&bytes).map_err(|_| StoreError::Key(KeyError::Form))?;
    Ok(Some(Cosigner::parse(line.trim_end_matches('\n'))?))
}

/// A regular file of at most `bytes_max` bytes; `None` when there is none.
fn read(path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    refuse_special(path)?;
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > bytes_max { Err(io::ErrorKind::FileTooLarge.into()) } else { Ok(Some(bytes)) }
}

fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let (path, staged) = (folder.join(name), folder.join(format!("{name}.new")));
    refuse_special(&staged)?;
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&staged)?;
    file.write_all(bytes)?;
    // A crash up to here leaves the old state, one from here on the old or the new one, and never a part.
    file.sync_all()?;
    std::fs::rename(&staged, &path)?;
    File::open(folder)?.sync_all()
}

/// Makes a folder and those above it; each new name is synced into the folder that holds it.
fn make_folder(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_folder(parent)?;
    }
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => File::open(parent.unwrap_or(Path::new(".")))?.sync_all(),
    }
}

/// Opening a pipe would wait for its other end.
fn refuse_special(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_key_is_made_once_and_is_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("new/witness");
        assert!(matches!(Store::open(&dir), Err(StoreError::NoKey { .. })));
        let key = make_key(&dir, "witness.example").unwrap();
        assert_eq!(make_key(&dir, "witness.example").unwrap(), key);
        assert!(matches!(make_key(&dir, "other"), Err(StoreError::OtherName { held }) if held == "witness.example"));
        assert!(matches!(make_key(&folder.path().join("other"), "two words"), Err(StoreError::Key(KeyError::Name))));
        let mode = |path: &str| dir.join(path).metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(KEY), mode(""), mode(LOGS)), (0o600, 0o700, 0o700));
        let (_store, cosigner) = Store::open(&dir).unwrap();
        assert_eq!(cosigner.verifier_key(), key);
        assert!(matches!(Store::open(&dir), Err(StoreError::Locked { .. })), "two witnesses in one folder");
        assert!(matches!(make_key(&dir, "witness.example"), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn a_witness_that_forgot_does_not_go_on_under_its_key() {
        let folder = tempfile::tempdir().unwrap();
        make_key(folder.path(), "witness.example").unwrap();
        std::fs::remove_dir(folder.path().join(LOGS)).unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StoreError::Forgotten { .. })));
        // Asking for the key again does not make the folder anew.
        make_key(folder.path(), "witness.example").unwrap();
        assert!(matches!(Store::open(folder.path()), Err(StoreError::Forgotten { .. })));
    }

    #[test]
    fn files_are_bounded_and_never_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        make_key(folder.path(), "witness.example").unwrap();
        let (store, _) = Store::open(folder.path()).unwrap();
        assert_eq!(store.latest("a").unwrap(), None);
        store.keep("a", "first").unwrap();
        store.keep("a", "second").unwrap();
        assert_eq!(store.latest("a").unwrap().unwrap(), b"second");
        std::fs::write(folder.path().join(LOGS).join("a"), vec![b'x'; CHECKPOINT_BYTES_MAX + 1]).unwrap();
        assert!(store.latest("a").is_err());
        std::fs::create_dir(folder.path().join(LOGS).join("b.new")).unwrap();
        assert!(store.keep("b", "text").is_err());
        assert!(store.latest("b").unwrap().is_none());
        let first = store.keep_evidence("a", "one", "two").unwrap();
        store.keep_evidence("a", "three", "four").unwrap();
        assert_eq!(std::fs::read(first).unwrap(), b"one\ntwo", "the first contradiction stays");
    }
}
