//! A disk in memory that fails where it is told to, and forgets what was not synced.
#![allow(dead_code, reason = "each test file uses its part")]

use audit_log::{Clock, Storage, StoredFile};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

const SECTOR: usize = 512;

/// What becomes of the call that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It failed and did nothing.
    NotPersisted,
    /// It failed, and yet it was done.
    Persisted,
    /// It failed half-way; calls that cannot be done half-way do nothing.
    Half,
}

#[derive(Clone, Default)]
struct Inode {
    /// What reads see.
    cached: Vec<u8>,
    /// What is on the device.
    durable: Vec<u8>,
    /// What was written since the last sync. After one that failed nothing of it is any more, as on Linux: the pages count as
    /// clean, reads see them, and no later sync writes them.
    dirty: Vec<Range<usize>>,
}

impl Inode {
    fn new(cached: Vec<u8>, durable: Vec<u8>) -> Self {
        let whole = 0..cached.len();
        Self { cached, durable, dirty: vec![whole] }
    }

    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.cached.resize(self.cached.len().max(offset + bytes.len()), 0);
        self.cached[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.dirty.push(offset..offset + bytes.len());
    }

    fn sync(&mut self) {
        self.durable.resize(self.cached.len(), 0);
        for range in self.dirty.drain(..) {
            let range = range.start.min(self.cached.len())..range.end.min(self.cached.len());
            self.durable[range.clone()].copy_from_slice(&self.cached[range]);
        }
    }

    fn may_be_lost(&self, sector: usize) -> bool {
        self.dirty.iter().any(|range| range.start < (sector + 1) * SECTOR && sector * SECTOR < range.end)
    }
}

#[derive(Default)]
struct Disk {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    calls: usize,
    fail_at: Option<(usize, Kind)>,
    fail_on: Option<(String, Kind)>,
    /// From this call on everything that needs space fails.
    full_from: Option<usize>,
    /// From this call on nothing is done any more.
    stopped_from: Option<usize>,
    failed: Option<String>,
    /// The next read inside a file gives the bytes that lie right before those asked for.
    misdirected: bool,
}

/// Clones are the same disk.
#[derive(Clone, Default)]
pub(crate) struct MemoryDisk(Arc<Mutex<Disk>>);

impl MemoryDisk {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// Lets the call with this number, counted from here, fail once.
    pub(crate) fn fail_at(&self, call: usize, kind: Kind) {
        let mut disk = self.disk();
        (disk.calls, disk.fail_at, disk.failed) = (0, Some((call, kind)), None);
    }

    /// Lets the next call of this name fail once.
    pub(crate) fn fail_on(&self, call: &str, kind: Kind) {
        let mut disk = self.disk();
        (disk.fail_on, disk.failed) = (Some((call.to_owned(), kind)), None);
    }

    /// Takes all space from the call with this number on.
    pub(crate) fn fill_at(&self, call: usize) {
        let mut disk = self.disk();
        (disk.calls, disk.full_from, disk.failed) = (0, Some(call), None);
    }

    /// Stops from the call with this number on: the power is gone, whatever the process still tries.
    pub(crate) fn stop_at(&self, call: usize) {
        let mut disk = self.disk();
        (disk.calls, disk.stopped_from, disk.failed) = (0, Some(call), None);
    }

    /// Whether it has stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        let disk = self.disk();
        disk.stopped_from.is_some_and(|from| disk.calls > from)
    }

    /// Lets the next read inside a file give what lies right before its place.
    pub(crate) fn misdirect_next_read(&self) {
        self.disk().misdirected = true;
    }

    /// Ends all faults; says which call had failed.
    pub(crate) fn heal(&self) -> Option<String> {
        let mut disk = self.disk();
        (disk.fail_at, disk.fail_on, disk.full_from, disk.stopped_from) = (None, None, None, None);
        disk.failed.take()
    }

    /// Loses power: of everything that was not synced, some is there afterwards, by sectors of 512 bytes, and some is not.
    pub(crate) fn crash(&self, seed: u64) {
        let mut random = seed | 1;
        let mut flip = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random & 1 == 0
        };
        let mut disk = self.disk();
        let paths: Vec<String> = disk.names.keys().chain(disk.durable_names.keys()).cloned().collect();
        let mut names = BTreeMap::new();
        for path in paths {
            let found = if flip() { disk.names.get(&path) } else { disk.durable_names.get(&path) };
            if let Some(inode) = found {
                names.insert(path, *inode);
            }
        }
        for inode in &mut disk.inodes {
            let length = if flip() { inode.cached.len() } else { inode.durable.len() };
            let mut content = vec![0; length];
            for (sector, bytes) in content.chunks_mut(SECTOR).enumerate() {
                let source = if inode.may_be_lost(sector) && flip() { &inode.cached } else { &inode.durable };
                let from = source.get(sector * SECTOR..).unwrap_or_default();
                bytes.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            }
            *inode = Inode { cached: content.clone(), durable: content, dirty: Vec::new() };
        }
        (disk.names, disk.durable_names) = (names.clone(), names);
    }

    /// Changes a file behind the log's back.
    pub(crate) fn edit(&self, path: &str, edit: impl FnOnce(&mut Vec<u8>)) {
        let mut disk = self.disk();
        let inode = disk.names[path];
        edit(&mut disk.inodes[inode].cached);
        disk.inodes[inode].durable = disk.inodes[inode].cached.clone();
    }

    pub(crate) fn content(&self, path: &str) -> Option<Vec<u8>> {
        let disk = self.disk();
        disk.names.get(path).map(|inode| disk.inodes[*inode].cached.clone())
    }

    pub(crate) fn paths(&self) -> Vec<String> {
        self.disk().names.keys().cloned().collect()
    }

    /// A second disk with the same content.
    pub(crate) fn copy(&self) -> Self {
        let disk = self.disk();
        let copy = Disk {
            inodes: disk.inodes.clone(),
            names: disk.names.clone(),
            durable_names: disk.durable_names.clone(),
            ..Disk::default()
        };
        Self(Arc::new(Mutex::new(copy)))
    }

    /// Counts a call and runs it, or what is left of it when it is the one that fails.
    fn call<T>(
        &self,
        what: impl Fn() -> String,
        needs_space: bool,
        run: impl FnOnce(&mut Disk, bool) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut disk = self.disk();
        let call = disk.calls;
        disk.calls += 1;
        if disk.stopped_from.is_some_and(|from| call >= from) {
            disk.failed.get_or_insert_with(&what);
            return Err(io::Error::other("the power is gone"));
        }
        if needs_space && disk.full_from.is_some_and(|from| call >= from) {
            disk.failed.get_or_insert_with(&what);
            return Err(io::ErrorKind::StorageFull.into());
        }
        let by_name = disk.fail_on.take_if(|(name, _)| *name == what()).map(|(_, kind)| kind);
        match disk.fail_at.filter(|(at, _)| *at == call).map(|(_, kind)| kind).or(by_name) {
            Some(kind) => {
                disk.failed = Some(what());
                if kind != Kind::NotPersisted {
                    let _done = run(&mut disk, kind == Kind::Half);
                }
                Err(io::Error::other("injected"))
            }
            None => run(&mut disk, false),
        }
    }
}

fn folder_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}

impl Storage for MemoryDisk {
    fn open(&self, path: &str) -> io::Result<Box<dyn StoredFile>> {
        self.call(
            || format!("open {path}"),
            true,
            |disk, half| {
                let inode = match disk.names.get(path) {
                    Some(inode) => *inode,
                    None if half => return Err(io::ErrorKind::Other.into()),
                    None => {
                        disk.inodes.push(Inode::default());
                        let inode = disk.inodes.len() - 1;
                        disk.names.insert(path.to_owned(), inode);
                        inode
                    }
                };
                Ok(Box::new(MemoryFile { disk: self.clone(), inode, path: path.to_owned() }) as Box<dyn StoredFile>)
            },
        )
    }

    fn read(&self, path: &str, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.call(
            || format!("read {path}"),
            false,
            |disk, _| {
                let inode = disk.names.get(path).ok_or(io::ErrorKind::NotFound)?;
                let bytes = disk.inodes[*inode].cached.clone();
                if bytes.len() > bytes_max { Err(io::ErrorKind::InvalidData.into()) } else { Ok(bytes) }
            },
        )
    }

    fn write(&self, path: &str, bytes: &[u8]) -> io::Result<()> {
        self.call(
            || format!("write {path}"),
            true,
            |disk, half| {
                let bytes = if half { &bytes[..bytes.len() / 2] } else { bytes };
                let durable = if half { Vec::new() } else { bytes.to_vec() };
                disk.inodes.push(Inode::new(bytes.to_vec(), durable));
                let inode = disk.inodes.len() - 1;
                disk.names.insert(path.to_owned(), inode);
                Ok(())
            },
        )
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.call(
            || format!("rename {from}"),
            false,
            |disk, half| {
                if !half {
                    let inode = disk.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
                    disk.names.insert(to.to_owned(), inode);
                }
                Ok(())
            },
        )
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.call(
            || format!("sync folder {folder}"),
            false,
            |disk, half| {
                if !half {
                    disk.durable_names.retain(|path, _| folder_of(path) != folder);
                    let names: Vec<_> = disk.names.iter().filter(|(path, _)| folder_of(path) == folder).collect();
                    let names: Vec<_> = names.into_iter().map(|(path, inode)| (path.clone(), *inode)).collect();
                    disk.durable_names.extend(names);
                }
                Ok(())
            },
        )
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.call(
            || format!("list {folder}"),
            false,
            |disk, _| {
                let names = disk.names.keys().filter(|path| folder_of(path) == folder);
                Ok(names.map(|path| path[folder.len() + 1..].to_owned()).collect())
            },
        )
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.call(
            || format!("remove {path}"),
            false,
            |disk, half| {
                if !half {
                    let inside = format!("{path}/");
                    disk.names.retain(|name, _| name != path && !name.starts_with(&inside));
                }
                Ok(())
            },
        )
    }
}

struct MemoryFile {
    disk: MemoryDisk,
    inode: usize,
    path: String,
}

impl StoredFile for MemoryFile {
    fn length(&self) -> io::Result<u64> {
        self.disk.call(
            || format!("measure {}", self.path),
            false,
            |disk, _| Ok(disk.inodes[self.inode].cached.len() as u64),
        )
    }

    fn read_at(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.disk.call(
            || format!("read at {offset} {}", self.path),
            false,
            |disk, _| {
                let asked = usize::try_from(offset).unwrap();
                let offset = if std::mem::take(&mut disk.misdirected) { asked - length } else { asked };
                let bytes = disk.inodes[self.inode].cached.get(offset..offset + length);
                bytes.map(<[u8]>::to_vec).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            },
        )
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.call(
            || format!("write at {offset} {}", self.path),
            true,
            |disk, half| {
                let bytes = if half { &bytes[..bytes.len() / 2] } else { bytes };
                let (offset, file) = (usize::try_from(offset).unwrap(), &mut disk.inodes[self.inode]);
                assert!(offset <= file.cached.len(), "a hole in {}", self.path);
                file.write(offset, bytes);
                Ok(())
            },
        )
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.disk.call(
            || format!("truncate {}", self.path),
            false,
            |disk, half| {
                if !half {
                    disk.inodes[self.inode].cached.truncate(usize::try_from(length).unwrap());
                }
                Ok(())
            },
        )
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call(
            || format!("sync {}", self.path),
            false,
            |disk, half| {
                let inode = &mut disk.inodes[self.inode];
                if half {
                    inode.dirty.clear()
                } else {
                    inode.sync()
                }
                Ok(())
            },
        )
    }
}

/// A clock that moves by two seconds whenever it is asked, so that nothing waits for real time.
pub(crate) struct TestClock {
    wall_us: AtomicU64,
    mono_us: AtomicU64,
}

impl TestClock {
    pub(crate) fn at(wall_us: u64) -> Self {
        Self { wall_us: AtomicU64::new(wall_us), mono_us: AtomicU64::new(0) }
    }

    pub(crate) fn set_wall(&self, wall_us: u64) {
        self.wall_us.store(wall_us, Ordering::SeqCst);
    }

    pub(crate) fn set_mono(&self, mono_us: u64) {
        self.mono_us.store(mono_us, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn wall_us(&self) -> u64 {
        self.wall_us.fetch_add(2_000_000, Ordering::SeqCst)
    }

    fn mono_us(&self) -> u64 {
        self.mono_us.fetch_add(2_000_000, Ordering::SeqCst)
    }
}
