//! Writes an engine's feed without ever making the engine wait for a disk.

use crate::record::{Record, encode_pass};
use policies_domain::{CustodyAct, CustodyEvent, CustodyRecord, Generation, Label, PageId, PageTrace, RequestId};
use std::collections::BTreeMap;
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The folder of an engine's feed, in that of all feeds.
const ENGINE_FOLDER: &str = "engine";
/// For the owner alone, and what the group has besides where it may read.
const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
const GROUP_FILE: u32 = 0o040;
const GROUP_FOLDER: u32 = 0o050;
/// How often what came is written, while something comes, ...
const PERIOD: Duration = Duration::from_millis(20);
/// ... and how often it is looked whether something came.
const IDLE_PERIOD: Duration = Duration::from_millis(200);
/// How long it is waited after a failure: a full disk is not tried fifty times a second.
const FAILED_PERIOD: Duration = Duration::from_secs(1);
/// A file has this part of what is kept, ...
const FILES: u64 = 8;
/// ... and so many bytes at least.
const FILE_BYTES_MIN: u64 = 64 << 10;
/// What waits to be written, at most: a disk that stands still for seconds.
const WAITING_BYTES_MAX: usize = 64 << 20;

/// Why there is no feed.
#[derive(Debug, thiserror::Error)]
#[error("the engine's feed for the auditor cannot be written in `{}`: {source}", folder.display())]
pub struct OpenFeedError {
    /// Where it was to be.
    pub folder: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// How a feed is kept.
#[derive(Debug, Clone, Copy)]
pub struct FeedSettings {
    /// Names this run of the program; drawn at random.
    pub run: [u8; 16],
    /// The oldest files go when all have more bytes than this.
    pub bytes_max: u64,
    /// Whether the group of the folder may read, which an auditor is in.
    pub group_may_read: bool,
}

/// Takes what an engine does with its pages, and writes it. Ends with what was written when it is dropped.
#[derive(Debug)]
pub struct EngineFeed {
    shared: Arc<Shared>,
    writing: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// The feed ends.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// What a file that begins after `bytes` has to say first.
    lives: Lives,
    /// Records that found no room since the last one that did.
    lost: u64,
    ended: bool,
}

/// The pages that are in a life: whose, in which.
type Lives = BTreeMap<PageId, (Generation, Label)>;

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    /// Room for one more record, or it is counted as lost.
    fn room(&mut self) -> Option<&mut Vec<u8>> {
        if self.bytes.len() >= WAITING_BYTES_MAX {
            self.lost += 1;
            return None;
        }
        if self.lost > 0 {
            Record::Lost { records: std::mem::take(&mut self.lost) }.encode(&mut self.bytes);
        }
        Some(&mut self.bytes)
    }

    fn say(&mut self, record: &Record) {
        if let Some(bytes) = self.room() {
            record.encode(bytes);
        }
    }

    fn note(&mut self, first_page: u32, event: &CustodyEvent) {
        let (page, generation) = (PageId(first_page.wrapping_add(event.life.page.0)), event.life.generation);
        match event.act {
            // A committed page begins a new life without having been free.
            CustodyAct::Allocated { .. } | CustodyAct::Reserved { .. } | CustodyAct::Committed { .. } => {
                if let Some((before, _)) = self.lives.insert(page, (generation, event.label))
                    && before != generation
                {
                    self.say(&Record::End { page, generation: before });
                }
                self.say(&Record::Begin { page, generation, label: event.label });
            }
            CustodyAct::Freed | CustodyAct::Quarantined { .. } => {
                // A free page's generation is the one after its life's.
                if let Some((before, _)) = self.lives.remove(&page) {
                    self.say(&Record::End { page, generation: before });
                }
            }
            CustodyAct::Attached
            | CustodyAct::Appended { .. }
            | CustodyAct::Sealed
            | CustodyAct::Shared
            | CustodyAct::Offered
            | CustodyAct::Withdrawn
            | CustodyAct::TicketOpened { .. }
            | CustodyAct::TicketSettled { .. }
            | CustodyAct::GivenBack
            | CustodyAct::Suspected { .. }
            | CustodyAct::Released => {}
        }
    }
}

impl EngineFeed {
    /// Begins a new file in this folder of feeds.
    ///
    /// # Errors
    /// [`OpenFeedError`], also when another process writes there.
    pub fn open(feeds: &Path, settings: FeedSettings) -> Result<Self, OpenFeedError> {
        let folder = engine_folder(feeds);
        let fault = |source| OpenFeedError { folder: folder.clone(), source };
        let FeedSettings { run, bytes_max, group_may_read } = settings;
        let (folder_mode, file_mode) = if group_may_read {
            (FOLDER_MODE | GROUP_FOLDER, FILE_MODE | GROUP_FILE)
        } else {
            (FOLDER_MODE, FILE_MODE)
        };
        std::fs::create_dir_all(&folder).map_err(fault)?;
        for folder in [feeds, &folder] {
            // What a link leads to is not this program's to close.
            if std::fs::symlink_metadata(folder).map_err(fault)?.is_symlink() {
                return Err(fault(io::Error::other("it is a link, or in one")));
            }
            std::fs::set_permissions(folder, Permissions::from_mode(folder_mode)).map_err(fault)?;
        }
        let lock = File::options().create(true).truncate(false).write(true).mode(FILE_MODE).open(folder.join("lock"));
        let lock = lock.map_err(fault)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => fault(io::Error::other("another process writes it")),
            TryLockError::Error(error) => fault(error),
        })?;
        let number = numbers(&folder).map_err(fault)?.last().copied().unwrap_or(0);
        let file_bytes = (bytes_max / FILES).max(FILE_BYTES_MIN);
        let mut files =
            Files { folder: folder.clone(), run, number, bytes_max, file_bytes, file_mode, open: None, _lock: lock };
        files.begin(false, &Lives::new()).map_err(fault)?;
        let shared = Arc::new(Shared { waiting: Mutex::default(), ended: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let writing = std::thread::Builder::new().name("engine-feed".to_owned());
        let writing = writing.spawn(move || write(&of_thread, files)).map_err(fault)?;
        Ok(Self { shared, writing: Some(writing) })
    }

    /// What happened to pages of a ledger whose first one has this number.
    pub fn custody(&self, first_page: u32, records: &[CustodyRecord]) {
        if records.is_empty() {
            return;
        }
        let mut waiting = self.shared.lock();
        for record in records {
            match record {
                CustodyRecord::Event(event) => waiting.note(first_page, event),
                CustodyRecord::Lost { events, .. } => waiting.say(&Record::Lost { records: *events }),
            }
        }
    }

    /// A pass computed tokens of a request, and read this.
    pub fn pass(&self, request: RequestId, trace: &PageTrace) {
        let kept = u32::try_from(trace.kept).unwrap_or(u32::MAX);
        let pages = trace.pages.iter().map(|read| (read.page, read.generation));
        if let Some(bytes) = self.shared.lock().room() {
            encode_pass(request, kept, pages, bytes);
        }
    }
}

impl Drop for EngineFeed {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.ended.notify_all();
        if let Some(writing) = self.writing.take() {
            // It ends after what it has; a panic in it was reported where it happened.
            let _ended = writing.join();
        }
    }
}

/// Where an engine's feed is, in a folder of feeds.
pub(crate) fn engine_folder(feeds: &Path) -> PathBuf {
    feeds.join(ENGINE_FOLDER)
}

/// The numbers of the files in a feed's folder, in order.
pub(crate) fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // A pipe would be waited for.
        if !entry.file_type()?.is_file() {
            continue;
        }
        let name = entry.file_name();
        // As they are written, and nothing else that happens to be a number.
        let name = name.to_str().filter(|name| name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_digit()));
        numbers.extend(name.and_then(|name| name.parse::<u64>().ok()));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Where the file with this number is.
pub(crate) fn path_of(folder: &Path, number: u64) -> PathBuf {
    folder.join(format!("{number:012}"))
}

/// A block of records: its length, its sum, its bytes.
fn write_block(file: &mut File, bytes: &[u8]) -> io::Result<u64> {
    let length = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut block = Vec::with_capacity(bytes.len() + 8);
    block.extend(length.to_be_bytes());
    block.extend(crc32c::crc32c(bytes).to_be_bytes());
    block.extend(bytes);
    file.write_all(&block)?;
    Ok(block.len() as u64)
}

struct Files {
    folder: PathBuf,
    run: [u8; 16],
    number: u64,
    bytes_max: u64,
    file_bytes: u64,
    file_mode: u32,
    open: Option<(File, u64)>,
    _lock: File,
}

impl Files {
    /// The next file, which says first what pages there are.
    fn begin(&mut self, continues: bool, lives: &Lives) -> io::Result<()> {
        self.number += 1;
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(self.file_mode)
            .open(path_of(&self.folder, self.number))?;
        let mut bytes = Vec::new();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        Record::Start { run: self.run, continues, wall_us }.encode(&mut bytes);
        for (page, (generation, label)) in lives {
            Record::Begin { page: *page, generation: *generation, label: *label }.encode(&mut bytes);
        }
        match write_block(&mut file, &bytes) {
            Ok(length) => self.open = Some((file, length)),
            Err(error) => {
                // A full disk is not to be filled with empty files as well.
                let _gone = std::fs::remove_file(path_of(&self.folder, self.number));
                return Err(error);
            }
        }
        self.prune()
    }

    /// The oldest ones go, as many as have to.
    fn prune(&self) -> io::Result<()> {
        let mut bytes = 0;
        for number in numbers(&self.folder)?.into_iter().rev() {
            let path = path_of(&self.folder, number);
            bytes += std::fs::metadata(&path)?.len();
            if bytes > self.bytes_max && number != self.number {
                std::fs::remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// `continues`: nothing was lost since the file before.
    fn write(&mut self, bytes: &[u8], lives: &Lives, continues: bool) -> io::Result<()> {
        match &mut self.open {
            Some((file, length)) => *length += write_block(file, bytes)?,
            // What is in `bytes` is in `lives` already, or is told to be missing.
            None => return self.begin(continues, lives),
        }
        if self.open.as_ref().is_some_and(|(_, length)| *length >= self.file_bytes) {
            self.begin(true, lives)?;
        }
        Ok(())
    }
}

/// Until the feed ends. What cannot be written is missing, which whoever reads it sees; the engine goes on.
fn write(shared: &Shared, mut files: Files) {
    let (mut bytes, mut told, mut period) = (Vec::new(), false, PERIOD);
    loop {
        let mut waiting = shared.lock();
        if !waiting.ended {
            waiting = shared.ended.wait_timeout(waiting, period).unwrap_or_else(PoisonError::into_inner).0;
        }
        std::mem::swap(&mut bytes, &mut waiting.bytes);
        let ended = waiting.ended;
        // Pages are copied where a file may end: rarely.
        let full = files.open.as_ref().is_none_or(|(_, length)| length + bytes.len() as u64 + 8 >= files.file_bytes);
        let lives = if full { waiting.lives.clone() } else { Lives::new() };
        drop(waiting);
        period = if bytes.is_empty() { IDLE_PERIOD } else { PERIOD };
        if !bytes.is_empty() {
            match files.write(&bytes, &lives, false) {
                Ok(()) => told = false,
                Err(error) => {
                    // The next file begins with what is so then.
                    (files.open, period) = (None, FAILED_PERIOD);
                    if !told {
                        tracing::error!(%error, "the engine's feed for the auditor is not written: it will say what is missing");
                        told = true;
                    }
                }
            }
            bytes.clear();
        }
        if ended {
            return;
        }
    }
}
