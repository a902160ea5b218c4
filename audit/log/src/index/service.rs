//! The thread that a store belongs to. Another one starts it, waits for its end and starts it anew: a store that panics
//! takes its own thread along and nothing else. Questions wait for a bounded time, and whoever gets no answer reads the
//! segments.

use super::BLOCK;
use super::disk::{DiskStore, put_aside};
use super::lookup::TraceAt;
use super::memory::MemoryStore;
use super::pages::TagKey;
use super::record::{mark_key, mark_value, records_of};
use super::source::{SegmentTraces, Source};
use super::store::{RECORDS_MAX, Record, Store, StoreFault};
use crate::log::lock;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Questions that wait; one more reads the segments.
const QUESTIONS_MAX: usize = 64;
/// How long an answer is waited for. A store that hangs costs this once: it is not asked again before it has answered.
const ANSWER_WAIT: Duration = Duration::from_secs(2);
/// Records that are written between two looks at the questions.
const RECORDS_AT_A_TIME: usize = 512;
/// How often one process makes an index anew. What fails more often than that stays away until somebody starts it again.
const REBUILDS_MAX: u32 = 4;
/// The nice value of the thread that a store belongs to: entries become durable first, and are found in the segments meanwhile.
const NICE: i32 = 10;
/// Between two looks at whether a store that had to stay behind may go on.
const BEHIND_PAUSE: Duration = Duration::from_secs(10);
/// How long the end of a thread is waited for when the log is shut down.
const END_WAIT: Duration = Duration::from_secs(10);

/// What the log's index is kept in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexStore {
    /// In memory: made anew at every start, and as large as the log's requests and what they read.
    Memory,
    /// On disk, in this folder, which is nobody else's: sled. Whatever is wrong with it costs time and nothing else.
    Sled(PathBuf),
}

/// How the index does. Whatever it says, answers are right; they take longer while it is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexHealth {
    /// Entries that the store has.
    pub indexed: u64,
    /// Entries that it could have: they come in whole blocks.
    pub indexable: u64,
    /// How often it was made anew since the start.
    pub rebuilds: u32,
    /// Why it was made anew last, or why it stays behind.
    pub trouble: Option<Arc<str>>,
    /// Whether it is tried no more before the next start.
    pub given_up: bool,
}

impl IndexHealth {
    /// Whether the store has all that it could have.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.indexed >= self.indexable
    }
}

/// What a store is asked.
#[derive(Debug, Clone)]
pub(crate) enum Question {
    Value(Vec<u8>),
    Range(Vec<u8>, Vec<u8>),
}

/// What it said, and which entries it had then.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) records: Vec<Record>,
    pub(crate) indexed: u64,
    /// Which of the stores that this process had.
    pub(crate) life: u32,
}

struct Asked {
    question: Question,
    reply: SyncSender<Answer>,
}

#[derive(Default)]
struct State {
    questions: VecDeque<Asked>,
    indexed: u64,
    life: u32,
    /// Whether a store takes questions.
    open: bool,
    /// Whether somebody waited in vain, and it has not come back since.
    late: bool,
    /// Why this life's store is not to be used any more.
    distrusted: Option<Arc<str>>,
    trouble: Option<Arc<str>>,
    given_up: bool,
    closed: bool,
}

/// What callers and threads share.
struct Desk {
    state: Mutex<State>,
    changed: Condvar,
}

/// A way to open a store.
pub(crate) type OpenStore = Arc<dyn Fn() -> Result<Box<dyn Store>, StoreFault> + Send + Sync>;

/// How a store is opened, and got out of the way.
#[derive(Clone)]
pub(crate) struct StoreKeeper {
    pub(crate) open: OpenStore,
    pub(crate) put_aside: Arc<dyn Fn() -> std::io::Result<()> + Send + Sync>,
}

impl StoreKeeper {
    pub(crate) fn new(kind: &IndexStore) -> Self {
        match kind.clone() {
            IndexStore::Memory => Self {
                open: Arc::new(|| Ok(Box::new(MemoryStore::default()) as Box<dyn Store>)),
                put_aside: Arc::new(|| Ok(())),
            },
            IndexStore::Sled(folder) => {
                let aside = folder.clone();
                Self {
                    open: Arc::new(move || Ok(Box::new(DiskStore::open(&folder)?) as Box<dyn Store>)),
                    put_aside: Arc::new(move || put_aside(&aside)),
                }
            }
        }
    }
}

/// The store's side of the index.
pub(crate) struct Service {
    desk: Arc<Desk>,
    source: Arc<Source>,
    thread: Mutex<Option<(JoinHandle<()>, Receiver<()>)>>,
}

impl Service {
    /// Starts the threads. The store is opened, and brought up to what is committed, behind whoever calls this.
    pub(crate) fn start(
        source: Arc<Source>,
        keeper: StoreKeeper,
        origin: String,
        tag_key: TagKey,
    ) -> std::io::Result<Self> {
        let desk = Arc::new(Desk { state: Mutex::default(), changed: Condvar::new() });
        let writer = Writer { desk: Arc::clone(&desk), source: Arc::clone(&source), origin, tag_key };
        // Its sender goes with the thread: whoever waits for the end waits here, for as long as it wants to.
        let (ended, end) = sync_channel::<()>(0);
        let thread = std::thread::Builder::new().name("audit-index".into()).spawn(move || {
            let _ended = ended;
            supervise(&Arc::new(writer), &keeper);
        })?;
        Ok(Self { desk, source, thread: Mutex::new(Some((thread, end))) })
    }

    /// Asks the store. `None` when it has no answer now.
    pub(crate) fn ask(&self, question: Question) -> Option<Answer> {
        let (reply, answer) = sync_channel(1);
        {
            let mut state = lock(&self.desk.state);
            if !state.open || state.late || state.distrusted.is_some() || state.questions.len() >= QUESTIONS_MAX {
                return None;
            }
            state.questions.push_back(Asked { question, reply });
            self.desk.changed.notify_all();
        }
        match answer.recv_timeout(ANSWER_WAIT) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                lock(&self.desk.state).late = true;
                None
            }
        }
    }

    /// Says that the store of that life was wrong. It is not asked any more, and made anew.
    pub(crate) fn distrust(&self, life: u32, reason: &str) {
        let mut state = lock(&self.desk.state);
        if state.life == life && state.distrusted.is_none() {
            tracing::error!(reason, "the index is wrong: it is made anew from the segments, which are read meanwhile");
            state.distrusted = Some(Arc::from(reason));
            state.questions.clear();
            self.desk.changed.notify_all();
        }
    }

    /// Says that there are new entries.
    pub(crate) fn grown(&self) {
        // Under the lock: between a look at what there is and the wait for more, nothing is missed.
        drop(lock(&self.desk.state));
        self.desk.changed.notify_all();
    }

    pub(crate) fn health(&self) -> IndexHealth {
        let indexable = lock(&self.source.known).outline.complete_blocks() * BLOCK;
        let state = lock(&self.desk.state);
        let indexed = if state.open && state.distrusted.is_none() { state.indexed } else { 0 };
        let (rebuilds, trouble) = (state.life.saturating_sub(1), state.trouble.clone());
        IndexHealth { indexed, indexable, rebuilds, trouble, given_up: state.given_up }
    }

    /// Ends the threads. A store that hangs is left behind.
    pub(crate) fn end(&self) {
        {
            let mut state = lock(&self.desk.state);
            state.closed = true;
            state.questions.clear();
        }
        self.desk.changed.notify_all();
        let Some((thread, end)) = lock(&self.thread).take() else { return };
        match end.recv_timeout(END_WAIT) {
            Err(RecvTimeoutError::Timeout) => tracing::warn!("the index does not end: it is left behind"),
            // The supervisor catches what a store does; it has nothing of its own to panic over.
            _ => drop(thread.join()),
        }
    }
}

/// A log that does not come to open leaves no thread behind, and no lock on a folder.
impl Drop for Service {
    fn drop(&mut self) {
        self.end();
    }
}

/// Why a store's thread ended.
enum Ended {
    Closed,
    Wrong(String),
}

/// Opens stores until the log is closed or too many of them were wrong.
fn supervise(writer: &Arc<Writer>, keeper: &StoreKeeper) {
    for life in 1..=REBUILDS_MAX + 1 {
        let (of_thread, open) = (Arc::clone(writer), Arc::clone(&keeper.open));
        let thread = std::thread::Builder::new().name("audit-index-store".into());
        let run = move || {
            if let Err(error) = rustix::process::setpriority_process(None, NICE) {
                tracing::warn!(%error, "the index goes on with the priority of everything else");
            }
            of_thread.run(&open, life)
        };
        let ended = thread.spawn(run).map(JoinHandle::join);
        let reason = match ended {
            Ok(Ok(Ended::Closed)) => return,
            Ok(Ok(Ended::Wrong(reason))) => reason,
            Ok(Err(_)) => "it panicked".to_owned(),
            Err(error) => format!("its thread could not be started: {error}"),
        };
        tracing::error!(reason, "the index is put aside and made anew from the segments");
        writer.close_life(&reason);
        if let Err(error) = (keeper.put_aside)() {
            // The next one opens what is there; if that is wrong too, this ends soon.
            tracing::error!(%error, "the index could not be put aside");
        }
        if lock(&writer.desk.state).closed {
            return;
        }
    }
    lock(&writer.desk.state).given_up = true;
    tracing::error!("the index is given up until the next start: segments are read instead");
}

/// What a store's thread has.
struct Writer {
    desk: Arc<Desk>,
    source: Arc<Source>,
    origin: String,
    tag_key: TagKey,
}

/// A store whose destructor does not run when its thread unwinds: after a panic inside of it, it could panic again, and
/// that would end the process. What it holds is left behind.
struct Held(Option<Box<dyn Store>>);

impl Drop for Held {
    fn drop(&mut self) {
        match self.0.take() {
            Some(store) if std::thread::panicking() => std::mem::forget(store),
            store => drop(store),
        }
    }
}

impl Writer {
    fn run(&self, open: &OpenStore, life: u32) -> Ended {
        match self.live(open, life) {
            Ok(()) => Ended::Closed,
            Err(fault) => Ended::Wrong(fault.to_string()),
        }
    }

    /// Opens a store, compares it with the log, and then answers and writes until the log is closed.
    fn live(&self, open: &OpenStore, life: u32) -> Result<(), StoreFault> {
        let mut held = Held(Some(open()?));
        let Some(store) = held.0.as_mut() else { return Ok(()) };
        let mut indexed = self.begun(&**store)?;
        {
            let mut state = lock(&self.desk.state);
            (state.life, state.open, state.indexed) = (life, true, indexed);
            state.distrusted = None;
        }
        self.forget(indexed);
        let mut traces = SegmentTraces::default();
        let mut go_on = true;
        loop {
            if !self.serve(&**store, life)? {
                return Ok(());
            }
            if go_on && lock(&self.source.known).outline.complete_blocks() * BLOCK > indexed {
                match self.index(&mut **store, indexed / BLOCK, &mut traces, life) {
                    Ok(true) => indexed += BLOCK,
                    Ok(false) => return Ok(()),
                    Err(StoreFault::Behind(reason)) => {
                        go_on = false;
                        self.trouble(&reason);
                    }
                    Err(fault @ StoreFault::Failed(_)) => return Err(fault),
                }
                lock(&self.desk.state).indexed = indexed;
                self.forget(indexed);
                continue;
            }
            traces = SegmentTraces::default();
            go_on = self.wait(indexed, go_on);
        }
    }

    /// How far a store came. What it says of itself must be what the log was at each of these sizes.
    fn begun(&self, store: &dyn Store) -> Result<u64, StoreFault> {
        let marks = store.range(&mark_key(0), &[1], RECORDS_MAX)?;
        let known = lock(&self.source.known);
        for (block, (key, value)) in (0..).zip(&marks) {
            let right = known.outline.block(block).is_some_and(|of_log| {
                *key == mark_key(block) && *value == mark_value(&self.origin, block, of_log.root)
            });
            if !right {
                return Err(StoreFault::Failed(format!("it does not belong to this log at block {block}")));
            }
        }
        Ok(marks.len() as u64 * BLOCK)
    }

    /// Answers everybody who waits. `false` when the log is closed.
    fn serve(&self, store: &dyn Store, life: u32) -> Result<bool, StoreFault> {
        lock(&self.desk.state).late = false;
        loop {
            let (asked, indexed) = {
                let mut state = lock(&self.desk.state);
                if state.closed {
                    return Ok(false);
                }
                if let Some(reason) = &state.distrusted {
                    return Err(StoreFault::Failed(reason.to_string()));
                }
                match state.questions.pop_front() {
                    Some(asked) => (asked, state.indexed),
                    None => return Ok(true),
                }
            };
            let records = match asked.question {
                Question::Value(key) => store.value(&key)?.map(|value| (key, value)).into_iter().collect(),
                Question::Range(from, to) => store.range(&from, &to, RECORDS_MAX)?,
            };
            // Nobody waits any more: it took too long.
            drop(asked.reply.try_send(Answer { records, indexed, life }));
        }
    }

    /// Writes one block, and says in its last record that it is whole. `false` when the log is closed.
    fn index(
        &self,
        store: &mut dyn Store,
        block: u64,
        traces: &mut SegmentTraces,
        life: u32,
    ) -> Result<bool, StoreFault> {
        // A segment that is damaged is the log's trouble; no index can be made of it.
        let mut entries = self.source.block(block).map_err(|error| StoreFault::Behind(error.to_string()))?;
        let readers = self.source.readers(&mut entries, traces);
        let mut records = Vec::new();
        for read in &entries {
            let trace = if let TraceAt::Place(place) = read.trace { Some(place) } else { None };
            records_of(read.index, &read.entry, trace, &mut records);
        }
        records.append(&mut readers.records(&self.tag_key, block));
        // In the order of their keys, so that what lies together is written together.
        records.sort_unstable();
        for records in records.chunks(RECORDS_AT_A_TIME) {
            store.insert(records)?;
            if !self.serve(store, life)? {
                return Ok(false);
            }
        }
        let root = lock(&self.source.known).outline.block(block).map(|block| block.root);
        let root = root.ok_or_else(|| StoreFault::Behind(format!("block {block} is not there")))?;
        store.insert(&[(mark_key(block), mark_value(&self.origin, block, root))])?;
        store.flush()?;
        Ok(true)
    }

    /// The store has these entries: they need not be kept in memory.
    fn forget(&self, indexed: u64) {
        lock(&self.source.known).tail.drop_before(indexed);
    }

    /// Waits until there is something to do. Gives back whether writing may go on.
    fn wait(&self, indexed: u64, go_on: bool) -> bool {
        let state = lock(&self.desk.state);
        let nothing = |state: &mut State| {
            state.questions.is_empty()
                && !state.closed
                && state.distrusted.is_none()
                && (!go_on || lock(&self.source.known).outline.complete_blocks() * BLOCK <= indexed)
        };
        if go_on {
            drop(self.desk.changed.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner));
            return true;
        }
        let waited = self.desk.changed.wait_timeout_while(state, BEHIND_PAUSE, nothing);
        waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    fn trouble(&self, reason: &str) {
        tracing::warn!(reason, "the index stays behind: segments are read instead");
        lock(&self.desk.state).trouble = Some(Arc::from(reason));
    }

    fn close_life(&self, reason: &str) {
        let mut state = lock(&self.desk.state);
        // Whoever waits for an answer is told that there is none.
        state.questions.clear();
        (state.open, state.indexed) = (false, 0);
        state.trouble = Some(Arc::from(reason));
    }
}
