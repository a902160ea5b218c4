//! Where the log's bytes lie: the few file operations that it is built on, so that tests can make each of them fail.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder of files. Paths are relative, with `/`.
pub trait Storage: Send + Sync + 'static {
    /// Opens a file for reading and writing; makes it, empty, where there is none.
    ///
    /// # Errors
    /// Of the system.
    fn open(&self, path: &str) -> io::Result<Box<dyn StoredFile>>;

    /// Reads a whole file.
    ///
    /// # Errors
    /// `NotFound`; `InvalidData` when it is longer than `bytes_max`; others of the system.
    fn read(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Writes a whole file, readable by its owner alone, and syncs its content.
    ///
    /// # Errors
    /// Of the system; the file may be there in part.
    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()>;

    /// Gives a file another name, replacing what has it.
    ///
    /// # Errors
    /// Of the system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Syncs a folder: the names of the files in it.
    ///
    /// # Errors
    /// Of the system.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Names of the files in a folder, in no order; none where there is no such folder.
    ///
    /// # Errors
    /// Of the system.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// Removes a file or a folder with all that is in it; nothing happens where there is none.
    ///
    /// # Errors
    /// Of the system.
    fn remove(&self, path: &str) -> io::Result<()>;
}

/// An open file.
pub trait StoredFile: Send + Sync {
    /// Length in bytes.
    ///
    /// # Errors
    /// Of the system.
    fn length(&self) -> io::Result<u64>;

    /// Reads `length` bytes at `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` when there are fewer.
    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Writes at `offset`, which lies at most at the end.
    ///
    /// # Errors
    /// Of the system; a part may be written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file.
    ///
    /// # Errors
    /// Of the system.
    fn truncate(&self, length: u64) -> io::Result<()>;

    /// Returns when the content is on the device.
    ///
    /// # Errors
    /// Of the system. What was written before may then be lost, even if it can be read.
    fn sync(&self) -> io::Result<()>;
}

/// For the owner alone, and what the group has besides where it may read.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const GROUP_FILE: u32 = 0o040;
const GROUP_FOLDER: u32 = 0o050;

/// A folder on a file system, locked against a second writer as long as this lives.
#[derive(Debug)]
pub struct FolderStorage {
    root: PathBuf,
    /// What is published is for the folder's group, too.
    group_may_read: bool,
    _lock: File,
}

impl FolderStorage {
    /// Makes the folder if needed and locks it. Everything in it is for its owner alone.
    ///
    /// # Errors
    /// `WouldBlock` when another writer has it open; others of the system.
    pub fn open(root: &Path) -> io::Result<Self> {
        make_folder(root, FOLDER_MODE)?;
        refuse_special(&root.join("lock"))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(root.join("lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::from(io::ErrorKind::WouldBlock),
            TryLockError::Error(error) => error,
        })?;
        Ok(Self { root: root.to_owned(), group_may_read: false, _lock: lock })
    }

    /// From here on what is published may be read by the folder's group: checkpoints, tiles, traces, the verifier key and what
    /// leads to it, which an auditor needs. Keys, segments and the slot are for their owner alone as before.
    ///
    /// # Errors
    /// Of the system.
    pub fn let_group_read(mut self) -> io::Result<Self> {
        std::fs::set_permissions(&self.root, Permissions::from_mode(FOLDER_MODE | GROUP_FOLDER))?;
        self.group_may_read = true;
        Ok(self)
    }

    /// Whether a file is one of those.
    fn is_shared(&self, path: &str) -> bool {
        let name = path.strip_suffix(".new").unwrap_or(path);
        let published = matches!(name, "checkpoint" | "checkpoint.witnessed" | "log.vkey");
        let folders = ["tile/", "traces/", "rotations/"];
        self.group_may_read && (published || folders.iter().any(|folder| path.starts_with(folder)))
    }

    fn file_mode(&self, path: &str) -> u32 {
        if self.is_shared(path) { FILE_MODE | GROUP_FILE } else { FILE_MODE }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn made_parent(&self, path: &str) -> io::Result<PathBuf> {
        let mode = if self.is_shared(path) { FOLDER_MODE | GROUP_FOLDER } else { FOLDER_MODE };
        let path = self.path(path);
        if let Some(parent) = path.parent() {
            make_folder(parent, mode)?;
        }
        Ok(path)
    }
}

/// Makes a folder and those above it; each new name is synced into the folder that holds it.
fn make_folder(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        make_folder(parent, mode)?;
    }
    match std::fs::DirBuilder::new().mode(mode).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => open_to_read(parent.unwrap_or(Path::new(".")))?.sync_all(),
    }
}

/// Opening a pipe waits for its other end, and a device may do anything: whatever is there has to be a file. A missing
/// file is left to who opens it.
fn refuse_special(path: &Path) -> io::Result<()> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The process, or the system, has as many files open as it may.
const TOO_MANY_OPEN: [i32; 2] = [24, 23];
/// How long opening a file is tried while that is so. A log that gives up stops until somebody starts it again; clients
/// that take every descriptor are cut by their timeouts.
const OPEN_TRIES: u32 = 500;
const OPEN_PAUSE: Duration = Duration::from_millis(20);

/// Opens a file, and waits while there are no descriptors for it. Nothing has happened yet when that is so.
fn open_patiently<T>(mut open: impl FnMut() -> io::Result<T>, pause: impl Fn()) -> io::Result<T> {
    for _ in 1..OPEN_TRIES {
        match open() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.raw_os_error().is_some_and(|code| TOO_MANY_OPEN.contains(&code)) => pause(),
            result => return result,
        }
    }
    open()
}

fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    open_patiently(|| options.open(path), || std::thread::sleep(OPEN_PAUSE))
}

fn open_to_read(path: &Path) -> io::Result<File> {
    open(OpenOptions::new().read(true), path)
}

impl Storage for FolderStorage {
    fn open(&self, path: &str) -> io::Result<Box<dyn StoredFile>> {
        let mode = self.file_mode(path);
        let path = self.made_parent(path)?;
        refuse_special(&path)?;
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(mode);
        let file = open(&options, &path)?;
        Ok(Box::new(SystemFile(file)))
    }

    fn read(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        let (path, mut bytes) = (self.path(path), Vec::new());
        refuse_special(&path)?;
        open_to_read(&path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > bytes_max { Err(io::ErrorKind::InvalidData.into()) } else { Ok(bytes) }
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        let mode = self.file_mode(path);
        let path = self.made_parent(path)?;
        refuse_special(&path)?;
        let mut file = open(OpenOptions::new().create(true).truncate(true).write(true).mode(mode), &path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path(from), self.path(to))
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        let path = self.path(folder);
        if !path.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        open_to_read(&path)?.sync_all()
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let path = self.path(folder);
        let entries = match open_patiently(|| std::fs::read_dir(&path), || std::thread::sleep(OPEN_PAUSE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = self.path(path);
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

struct SystemFile(File);

impl StoredFile for SystemFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_locked_out_until_the_first_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let first = FolderStorage::open(folder.path()).unwrap();
        let second = FolderStorage::open(folder.path()).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::WouldBlock);
        drop(first);
        assert!(FolderStorage::open(folder.path()).is_ok());
    }

    #[test]
    fn a_pipe_in_the_place_of_a_file_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FolderStorage::open(&folder.path().join("log")).unwrap();
        let pipe = |path: &Path| {
            let made = std::process::Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success(), "`mkfifo` failed");
        };
        pipe(&folder.path().join("log/checkpoint"));
        let refusal = |result: io::Result<()>| result.unwrap_err().to_string();
        assert_eq!(refusal(storage.read("checkpoint", 10).map(drop)), "not a regular file");
        assert_eq!(refusal(storage.open("checkpoint").map(drop)), "not a regular file");
        assert_eq!(refusal(storage.write("checkpoint", b"text")), "not a regular file");
        assert_eq!(storage.sync_folder("checkpoint").unwrap_err().kind(), io::ErrorKind::NotADirectory);
        assert!(storage.list("checkpoint").is_err());
        assert_eq!(refusal(storage.read("", 10).map(drop)), "not a regular file");
        std::fs::create_dir(folder.path().join("other")).unwrap();
        pipe(&folder.path().join("other/lock"));
        assert_eq!(refusal(FolderStorage::open(&folder.path().join("other")).map(drop)), "not a regular file");
    }

    #[test]
    fn a_group_that_may_read_reads_what_is_published_and_no_key() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("log");
        let storage = FolderStorage::open(&root).unwrap().let_group_read().unwrap();
        for path in [
            "checkpoint.new",
            "log.vkey.new",
            "tile/0/000.p/1",
            "tile/entries/000",
            "keys/log.skey",
            "slot",
            "keys/tile/x",
        ] {
            storage.write(path, b"1").unwrap();
        }
        Storage::open(&storage, "traces/0").unwrap().write_at(0, b"1").unwrap();
        Storage::open(&storage, "segments/0").unwrap().write_at(0, b"1").unwrap();
        let group = |path: &str| root.join(path).metadata().unwrap().permissions().mode() & 0o077;
        for path in ["checkpoint.new", "log.vkey.new", "tile/0/000.p/1", "tile/entries/000", "traces/0"] {
            assert_eq!(group(path), 0o040, "{path}");
        }
        for path in ["", "tile", "tile/0", "tile/0/000.p", "tile/entries", "traces"] {
            assert_eq!(group(path), 0o050, "{path}");
        }
        for path in ["keys", "keys/log.skey", "keys/tile/x", "slot", "segments", "segments/0", "lock"] {
            assert_eq!(group(path), 0, "{path}");
        }
    }

    #[test]
    fn files_are_for_their_owner_alone_and_reads_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FolderStorage::open(&folder.path().join("new/log")).unwrap();
        storage.write("keys/secret", b"12345").unwrap();
        let path = folder.path().join("new/log/keys/secret");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(storage.read("keys/secret", 5).unwrap(), b"12345");
        assert_eq!(storage.read("keys/secret", 4).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(storage.read("keys/other", 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(storage.list("nowhere").unwrap(), Vec::<String>::new());
        storage.remove("nowhere").unwrap();
        let file = storage.open("keys/secret").unwrap();
        assert_eq!(file.read_at(3, 3).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_moment_without_descriptors_is_waited_for_and_nothing_else_is() {
        let (mut errors, paused) = (vec![24, 23, 4, 24], std::cell::Cell::new(0));
        let pause = || paused.set(paused.get() + 1);
        let opened =
            open_patiently(|| errors.pop().map_or(Ok(7), |code| Err(io::Error::from_raw_os_error(code))), pause);
        assert_eq!((opened.unwrap(), paused.get()), (7, 3), "an interruption is no reason to wait");
        let tries = std::cell::Cell::new(0);
        let always = |code| {
            tries.set(0);
            let open = || {
                tries.set(tries.get() + 1);
                Err::<(), _>(io::Error::from_raw_os_error(code))
            };
            (open_patiently(open, || ()).unwrap_err().raw_os_error(), tries.get())
        };
        // A full disk, a device that fails.
        for code in [28, 5] {
            assert_eq!(always(code), (Some(code), 1));
        }
        assert_eq!(always(24), (Some(24), OPEN_TRIES), "not for ever");
    }
}
