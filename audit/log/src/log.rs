//! The handle that the gateway holds, and the two threads behind it: one commits, one publishes.

use crate::clock::{Clock, SystemClock};
use crate::config::{AuditConfig, OPEN_REQUESTS_MAX};
use crate::cosign::{self, Board, Cosigned};
use crate::fault::{LogFault, OpenLogError};
use crate::incidents::{Incidents, refuse_forbidden};
use crate::index::{IndexHealth, Lookup, LookupError, PageReaders};
use crate::keeping::{erased, note_batch, refuse_kept};
use crate::keys::{Keys, epoch, random};
use crate::lag;
use crate::mailbox::{Due, Mailbox};
use crate::open_entry::OpenEntry;
use crate::publish::{Published, Publisher};
use crate::queue::{Queue, Queued, Reply, Taken, failed};
use crate::retention::{Retention, pruned};
use crate::sequence::{Commit, Draft, Sequencer};
use crate::storage::{FolderStorage, Storage};
use crate::witness::WitnessHealth;
use audit_provenance::{
    Body, Commitment, Field, Handover, IncidentMoveError, IsolationAudit, Keeping, KeepingError, Opened, Openings,
    TenantRef, determining_digest,
};
use policies_domain::{Digest, Generation, PageId, Permit, Principal, RequestId, TenantId};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::oneshot;

/// When a request that met the erasure of its key is worth another try.
pub(crate) const RETRY_ERASED_MS: u64 = 100;

/// What a request is, as the log commits to it.
#[derive(Clone, Copy)]
pub struct RequestFacts<'a> {
    /// The request body as received.
    pub body: &'a [u8],
    /// Digest of the model file.
    pub model: Digest,
    /// Digest of all that decides the answer's bits.
    pub fingerprint: Digest,
    /// Whether the response is a stream.
    pub stream: bool,
}

impl std::fmt::Debug for RequestFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RequestFacts({} bytes)", self.body.len())
    }
}

/// A recorded audit's place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Index of its entry.
    pub index: u64,
    /// Leaf hash of its entry.
    pub leaf_hash: Digest,
}

/// An incident's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IncidentId(pub [u8; 16]);

impl std::fmt::Display for IncidentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// Why an entry was not written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// Too many entries wait, or too many requests are open.
    #[error("the audit log is busy, retry in {retry_after_ms} ms")]
    Busy {
        /// When it is worth another try.
        retry_after_ms: u64,
    },
    /// The log stopped for good after a fault; it needs a restart, and somebody to look at `reason`.
    #[error("the audit log has stopped: {reason}")]
    Failed {
        /// What happened first.
        reason: Arc<str>,
    },
    /// The tenant's commitment key is lost, damaged or could not be made. Other tenants are served.
    #[error("no commitment key: {reason}")]
    Key {
        /// What is wrong, with the file.
        reason: Arc<str>,
    },
    /// The log was shut down.
    #[error("the audit log is shut down")]
    Closed,
    /// There was no violation to refuse for.
    #[error("there was no violation")]
    NoViolation,
    /// No entry can tell of it: no detector was tried, or too many, or one of them twice, or without a name.
    #[error("no entry can tell of such a self-test")]
    SelfTest,
    /// The log has no such incident.
    #[error("the log has no such incident")]
    NoIncident,
    /// The incident may not move so.
    #[error(transparent)]
    IncidentMove(#[from] IncidentMoveError),
    /// What is held is not destroyed, and what is erased is not used.
    #[error(transparent)]
    Keeping(#[from] KeepingError),
    /// The log has nothing of that tenant, or no key of it that could be erased.
    #[error("the log has nothing of that tenant")]
    NothingKept,
}

/// How the log does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogHealth {
    /// Entries committed.
    pub size: u64,
    /// Entries under the published checkpoint.
    pub published: u64,
    /// Wall time of the last commit, in microseconds since 1970.
    pub committed_us: u64,
    /// Drafts that wait.
    pub queued: usize,
    /// Why the log stopped, when it did.
    pub failed: Option<Arc<str>>,
    /// Entries under the largest checkpoint that a quorum of witnesses has cosigned in this run.
    pub witnessed: u64,
    /// How the witnesses do, in the order of the configuration.
    pub witnesses: Vec<WitnessHealth>,
    /// See [`AuditLog::auditor_lags`].
    pub auditor_lags: bool,
    /// How its index does. Nothing depends on it but time.
    pub index: IndexHealth,
}

/// What handles, entries and threads share.
pub(crate) struct Shared {
    pub(crate) queue: Queue,
    pub(crate) keys: Arc<Keys>,
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) index: Lookup,
    /// Where each incident stands.
    pub(crate) incidents: Arc<Mutex<Incidents>>,
    /// What is held and what was erased.
    pub(crate) keeping: Mutex<Keeping>,
    pub(crate) published: RwLock<Arc<Published>>,
    /// The newest checkpoint that a quorum of witnesses has cosigned.
    pub(crate) witnessed: RwLock<Option<Arc<Published>>>,
    pub(crate) board: Arc<Board>,
    pub(crate) open_requests: AtomicUsize,
    pub(crate) kernel_tag_check: bool,
    pub(crate) handover: Handover,
    pub(crate) clock: Arc<dyn Clock>,
    build: Digest,
    /// References of the tenants that this process has seen, by their numbers in it.
    tenants: Mutex<HashMap<TenantId, TenantRef>>,
    committed: Mutex<Committed>,
    failure: Mutex<Option<Arc<str>>>,
    mailbox: Mailbox,
}

struct Committed {
    size: u64,
    signed_us: u64,
}

impl Shared {
    pub(crate) fn tenant_ref(&self, tenant: TenantId) -> Option<TenantRef> {
        lock(&self.tenants).get(&tenant).copied()
    }

    /// Gives cosignatures to the publisher, which alone writes checkpoints.
    pub(crate) fn put_cosigned(&self, cosigned: Cosigned) {
        self.mailbox.put_cosigned(cosigned);
    }

    /// Stops the log for good. The first reason stays.
    fn fail(&self, fault: &LogFault) {
        tracing::error!(%fault, "the audit log has stopped");
        let reason: Arc<str> = Arc::from(fault.to_string());
        let reason = Arc::clone(lock(&self.failure).get_or_insert(reason));
        self.queue.close(failed(&reason));
        self.mailbox.close();
        self.board.close();
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What the locks protect is valid at every moment, so a panic elsewhere does not spoil it.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A log that is open for writing. Clones are handles of the same log; the last one to go shuts it down.
#[derive(Clone)]
pub struct AuditLog {
    pub(crate) shared: Arc<Shared>,
    threads: Arc<Threads>,
}

impl std::fmt::Debug for AuditLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AuditLog({})", self.shared.keys.verifier_key())
    }
}

struct Threads {
    shared: Arc<Shared>,
    running: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    /// Ends both threads, the sequencer first, and waits for them. Witnesses are not waited for.
    fn end(&self) {
        self.shared.board.close();
        self.shared.queue.close(AppendError::Closed);
        for thread in lock(&self.running).drain(..) {
            // A thread that panicked has stopped the log on its way out.
            let _ended = thread.join();
            self.shared.mailbox.close();
        }
        self.shared.index.end();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the log's folder if needed, and locks it.
pub(crate) fn folder_of(config: &AuditConfig) -> Result<FolderStorage, OpenLogError> {
    let dir = config.dir.display().to_string();
    let storage = FolderStorage::open(&config.dir);
    let storage = if config.group_may_read { storage.and_then(FolderStorage::let_group_read) } else { storage };
    storage.map_err(|source| match source.kind() {
        io::ErrorKind::WouldBlock => OpenLogError::Locked { dir },
        _ => OpenLogError::Folder { dir, source },
    })
}

impl AuditLog {
    /// Opens a log; makes one, keys included, where there is none; recovers what a crash left.
    ///
    /// # Errors
    /// [`OpenLogError`].
    pub fn open(config: AuditConfig) -> Result<Self, OpenLogError> {
        let storage = folder_of(&config)?;
        Self::open_on(&config, Arc::new(storage), Arc::new(SystemClock::default()))
    }

    /// Opens a log on another storage and clock; `config.dir` is not looked at.
    ///
    /// # Errors
    /// [`OpenLogError`].
    pub fn open_on(
        config: &AuditConfig,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenLogError> {
        let build = match config.build {
            Some(build) => build,
            None => executable_digest().map_err(crate::fault::storage("read", "the running executable"))?,
        };
        let opened = crate::recover::open(Arc::clone(&storage), Arc::clone(&clock), config)?;
        let (origin, tags) = (config.origin.clone(), opened.keys.index_tags());
        let index = Lookup::start(Arc::clone(&storage), opened.known, &config.index, origin, tags)
            .map_err(|source| OpenLogError::Thread { source })?;
        let shared = Arc::new(Shared {
            queue: Queue::new(config.queue_max),
            keys: opened.keys,
            storage,
            index,
            incidents: opened.incidents,
            keeping: Mutex::new(opened.keeping),
            committed: Mutex::new(Committed { size: opened.published.size, signed_us: opened.signed_us }),
            published: RwLock::new(Arc::new(opened.published)),
            witnessed: RwLock::default(),
            board: Arc::new(Board::new(&config.witnesses)),
            open_requests: AtomicUsize::new(0),
            kernel_tag_check: config.kernel_tag_check,
            handover: config.handover,
            clock: Arc::clone(&clock),
            build,
            tenants: Mutex::default(),
            failure: Mutex::default(),
            mailbox: Mailbox::default(),
        });
        let published = Arc::clone(&shared.published.read().unwrap_or_else(PoisonError::into_inner));
        shared.board.publish(published, clock.mono_us());
        let threads = Arc::new(Threads { shared: Arc::clone(&shared), running: Mutex::default() });
        let (sequencer, publisher, heartbeat) = (opened.sequencer, opened.publisher, config.heartbeat);
        let retention = Retention::new(config.retention_days);
        let of_sequencer = Arc::clone(&shared);
        let sequence = std::thread::Builder::new()
            .name("audit-sequencer".into())
            .spawn(move || run_sequencer(&of_sequencer, sequencer, heartbeat, retention))
            .map_err(|source| OpenLogError::Thread { source })?;
        lock(&threads.running).push(sequence);
        let of_publisher = Arc::clone(&shared);
        let publish = std::thread::Builder::new()
            .name("audit-publisher".into())
            .spawn(move || run_publisher(&of_publisher, publisher))
            .map_err(|source| OpenLogError::Thread { source })?;
        lock(&threads.running).push(publish);
        cosign::start(&shared, &config.witnesses, &clock).map_err(|source| OpenLogError::Thread { source })?;
        let watch = lag::start(&shared, &config.witnesses).map_err(|source| OpenLogError::Thread { source })?;
        lock(&threads.running).extend(watch);
        Ok(Self { shared, threads })
    }

    /// Records a request. Durable when it returns: nothing may be sent before.
    ///
    /// # Errors
    /// [`AppendError`].
    ///
    /// # Cancel safety
    /// A dropped future leaves no open request behind: what was written is sealed as aborted.
    pub async fn open_request(&self, permit: &Permit, facts: RequestFacts<'_>) -> Result<OpenEntry, AppendError> {
        let shared = &self.shared;
        if shared.open_requests.load(Ordering::Relaxed) >= OPEN_REQUESTS_MAX {
            return Err(AppendError::Busy { retry_after_ms: 1_000 });
        }
        let principal = permit.principal();
        let tenant = shared.keys.tenant_ref(principal.name());
        lock(&shared.tenants).insert(principal.tenant(), tenant);
        let epoch = lock(&shared.keeping).epoch_from(tenant, epoch(shared.clock.wall_us()));
        let openings = self.new_openings(permit, tenant, epoch).await?;
        let request = Commitment::of(Field::Request, &openings.request, facts.body);
        let opened = Opened {
            epoch,
            request,
            tenant_name: Commitment::of(Field::Tenant, &openings.tenant, principal.name().as_str().as_bytes()),
            rules: permit.decision().rules,
            determining: determining_digest(permit.decision().determining.iter().map(|name| &**name)),
            model: facts.model,
            fingerprint: Some(facts.fingerprint),
            build: shared.build,
            stream: facts.stream,
        };
        let draft =
            Draft { uuid: permit.request().bytes(), tenant: Some(tenant), body: Body::Opened(opened), trace: None };
        let entry = Box::new(OpenEntry::new(Arc::clone(shared), permit, tenant, &openings, &request));
        let (reply, answer) = oneshot::channel();
        shared.queue.push_new(Queued { draft, reply: Reply::Opened(entry, reply) })?;
        let entry = answer.await.map_err(|_| AppendError::Closed)??;
        Ok(*entry)
    }

    /// Records what a principal says of the isolation between tenants, in the chain of its tenant. Durable when it returns.
    /// Who may say so is the caller's to decide.
    ///
    /// # Errors
    /// [`AppendError`].
    ///
    /// # Cancel safety
    /// Once polled, the entry is written even if the future is dropped.
    pub async fn record_audit(&self, principal: &Principal, audit: IsolationAudit) -> Result<Recorded, AppendError> {
        let shared = &self.shared;
        let tenant = shared.keys.tenant_ref(principal.name());
        let uuid = *random().map_err(|_| failed("no random bytes"))?;
        let draft = Draft { uuid, tenant: Some(tenant), body: Body::Audit(audit), trace: None };
        let (reply, placed) = oneshot::channel();
        shared.queue.push_new(Queued { draft, reply: Reply::Sealed(reply) })?;
        let placed = placed.await.map_err(|_| AppendError::Closed)??;
        Ok(Recorded { index: placed.index, leaf_hash: Digest(placed.leaf.0) })
    }

    /// A tenant's first request of an epoch makes a key file, which blocks: that goes to another thread.
    async fn new_openings(&self, permit: &Permit, tenant: TenantRef, epoch: u64) -> Result<Openings, AppendError> {
        let (name, request) = (permit.principal().name().clone(), permit.request().bytes());
        let keys = Arc::clone(&self.shared.keys);
        let used = self.shared.index.has_epoch(tenant, epoch);
        let made = if keys.knows(&name, epoch) {
            keys.new_openings(&name, epoch, &request, used)
        } else {
            let make = tokio::task::spawn_blocking(move || keys.new_openings(&name, epoch, &request, used));
            make.await.map_err(|_| AppendError::Closed)?
        };
        let made = made.map_err(|error| {
            tracing::error!(%error, "no commitment key for a tenant");
            AppendError::Key { reason: Arc::from(error.to_string()) }
        })?;
        // Erased since the epoch was chosen: the next try gets another one.
        made.ok_or(AppendError::Busy { retry_after_ms: RETRY_ERASED_MS })
    }

    /// The verifier key line, as `log.vkey` in the log's folder holds it.
    #[must_use]
    pub fn verifier_key(&self) -> String {
        self.shared.keys.verifier_key().to_string()
    }

    /// The proof of the entry that names the key after the log's first one, and of the next ones: their numbers begin with 1.
    /// `None` when there is none of that number. Reads a file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn rotation(&self, number: u32) -> io::Result<Option<String>> {
        crate::rotation::proof(&*self.shared.storage, number)
    }

    /// The receipt of a request of this principal's tenant. Reads files: call it where blocking is allowed.
    ///
    /// # Errors
    /// [`crate::ReceiptError`].
    pub fn receipt(&self, principal: &Principal, request: RequestId) -> Result<String, crate::ReceiptError> {
        crate::receipt::text(&self.shared, principal, request)
    }

    /// The same as a COSE receipt (RFC 9942): shorter, without cosignatures and without the opened entry's own proof. Reads
    /// files: call it where blocking is allowed.
    ///
    /// # Errors
    /// [`crate::ReceiptError`]; `OnlyText` when the log's key is with another program.
    pub fn cose_receipt(&self, principal: &Principal, request: RequestId) -> Result<Vec<u8>, crate::ReceiptError> {
        crate::receipt::cose(&self.shared, principal, request)
    }

    /// What shows that the published log continues the tree of so many entries: the newest checkpoint and the proof, as C2SP
    /// tlog-witness writes them for witnesses. Reads files: call it where blocking is allowed.
    ///
    /// # Errors
    /// [`crate::ConsistencyError`].
    pub fn consistency(&self, from: u64) -> Result<String, crate::ConsistencyError> {
        crate::consistency::consistency(&self.shared, from)
    }

    /// Indices of a tenant's entries with the numbers from `first` on, `entries_max` at most, in order. Reads files, as all of
    /// these do.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn tenant_entries(&self, principal: &Principal, first: u64, entries_max: u64) -> Result<Vec<u64>, LookupError> {
        let tenant = self.shared.keys.tenant_ref(principal.name());
        self.shared.index.tenant_entries(tenant, first, entries_max)
    }

    /// Indices of all incidents, in order.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn incidents(&self) -> Result<Vec<u64>, LookupError> {
        self.shared.index.incidents()
    }

    /// Indices of the entries whose wall time lies in this range, in microseconds since 1970, both ends included.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn entries_between(&self, first_us: u64, last_us: u64) -> Result<Vec<u64>, LookupError> {
        self.shared.index.entries_between(first_us, last_us)
    }

    /// Which requests read a page in one of its lives.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn page_readers(&self, page: PageId, generation: Generation) -> Result<PageReaders, LookupError> {
        self.shared.index.page_readers(page, generation)
    }

    /// How the log does.
    #[must_use]
    pub fn health(&self) -> LogHealth {
        let published = self.shared.published.read().unwrap_or_else(PoisonError::into_inner).size;
        let (witnessed, witnesses) = self.shared.board.health(self.shared.clock.mono_us());
        let auditor_lags = self.auditor_lags();
        let committed = lock(&self.shared.committed);
        LogHealth {
            size: committed.size,
            published,
            committed_us: committed.signed_us,
            queued: self.shared.queue.len(),
            failed: lock(&self.shared.failure).clone(),
            witnessed,
            witnesses,
            auditor_lags,
            index: self.shared.index.health(),
        }
    }

    /// Whether an auditor has not cosigned what was published, for longer than is allowed; also when the log says so from an
    /// earlier run and it has not caught up since. Never so where nothing is set for that. Reads no file.
    #[must_use]
    pub fn auditor_lags(&self) -> bool {
        let lags = self.shared.board.auditor_lags(self.shared.clock.mono_us());
        // A start gives nobody more time.
        lags.is_some_and(|lags| lags || lock(&self.shared.incidents).an_auditor_lags())
    }

    /// Commits and publishes what waits, then ends. Blocks until it is done.
    pub fn shutdown(&self) {
        self.threads.end();
    }
}

/// SHA-256 of the running program's file.
fn executable_digest() -> io::Result<Digest> {
    // The link still leads to the program when its file was replaced by a newer build.
    let mut file = std::fs::File::open("/proc/self/exe").or_else(|_| std::fs::File::open(std::env::current_exe()?))?;
    let mut hash = Sha256::new();
    io::copy(&mut file, &mut hash)?;
    Ok(Digest(hash.finalize().into()))
}

/// Marks the log as stopped when its thread ends otherwise than by shutdown.
struct StopOnUnwind<'a>(&'a Shared);

impl Drop for StopOnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(&LogFault::Stopped);
        }
        self.0.queue.refuse_waiting();
    }
}

/// One batch after the other: whatever has arrived while the last one was written is the next one.
fn run_sequencer(shared: &Shared, mut sequencer: Sequencer, heartbeat: Option<Duration>, mut retention: Retention) {
    let _stop = StopOnUnwind(shared);
    loop {
        let pruned = retention.due(shared).and_then(|draft| match draft {
            Some(draft) => commit(shared, &mut sequencer, vec![draft], Vec::new()).map_err(|(fault, _)| fault),
            None => Ok(()),
        });
        if let Err(fault) = pruned {
            return shared.fail(&fault);
        }
        let (drafts, replies): (Vec<Draft>, Vec<Reply>) = match shared.queue.take(heartbeat) {
            Taken::Drafts(queued) => {
                let queued = refuse_forbidden(&lock(&shared.incidents), queued);
                let queued = refuse_kept(&lock(&shared.keeping), &*shared.clock, queued);
                if queued.is_empty() {
                    continue;
                }
                queued.into_iter().map(|queued| (queued.draft, queued.reply)).unzip()
            }
            Taken::Idle => match Draft::untenanted(Body::Heartbeat) {
                Ok(draft) => (vec![draft], vec![Reply::Nobody]),
                Err(fault) => return shared.fail(&fault),
            },
            Taken::Closed => return,
        };
        let answered = replies.len();
        if let Err((fault, replies)) = commit(shared, &mut sequencer, drafts, replies) {
            shared.fail(&fault);
            let error = failed(&fault.to_string());
            replies.into_iter().for_each(|reply| reply.refuse(error.clone()));
            return;
        }
        shared.queue.gather(answered);
    }
}

/// Commits a batch, does what it is a word for, and answers. Gives back whom nobody has answered.
fn commit(
    shared: &Shared,
    sequencer: &mut Sequencer,
    drafts: Vec<Draft>,
    replies: Vec<Reply>,
) -> Result<(), (LogFault, Vec<Reply>)> {
    let committed = match sequencer.commit(drafts).and_then(|commit| note(shared, commit)) {
        Ok(committed) => committed,
        Err(fault) => return Err((fault, replies)),
    };
    // A crash here leaves an erasure, or old traces, that the next start finishes. Whoever asked for it is told when it is done.
    let done = pruned(shared, &committed).and_then(|()| erased(shared, &committed)).and_then(|done| match done {
        Some(draft) => sequencer.commit(vec![draft]).and_then(|commit| note(shared, commit)).map(Some),
        None => Ok(None),
    });
    let done = match done {
        Ok(done) => done,
        Err(fault) => return Err((fault, replies)),
    };
    replies.into_iter().zip(committed.entries.iter().cloned()).for_each(|(reply, placed)| reply.place(placed));
    for mut commit in [Some(committed), done].into_iter().flatten() {
        // What waits to be published is the bytes.
        commit.said = Vec::new();
        shared.mailbox.put(commit);
    }
    Ok(())
}

/// Takes a commit in where it is asked for.
fn note(shared: &Shared, commit: Commit) -> Result<Commit, LogFault> {
    shared.index.note_batch(&commit);
    // INVARIANT: the sequencer wrote these after the folds that they continue.
    lock(&shared.incidents).note_batch(&commit).map_err(|_| LogFault::Incident)?;
    note_batch(&mut lock(&shared.keeping), &commit)?;
    *lock(&shared.committed) = Committed { size: commit.size, signed_us: commit.signed_us };
    Ok(commit)
}

/// Publishes what was committed: sealed entries soon, others within a second, and never twice at once.
fn run_publisher(shared: &Shared, mut publisher: Publisher) {
    let _stop = StopOnUnwind(shared);
    let mut last_us = 0;
    while let Some(due) = shared.mailbox.take(&*shared.clock, last_us) {
        let commits = match due {
            Due::Commits(commits) => commits,
            Due::Cosigned(cosigned) => {
                if let Err(fault) = publisher.publish_cosigned(&cosigned) {
                    return shared.fail(&fault);
                }
                note_cosigned(shared, cosigned);
                continue;
            }
        };
        match publisher.publish(&commits) {
            Ok(Some(published)) => {
                let published = Arc::new(published);
                *shared.published.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&published);
                shared.board.publish(published, shared.clock.mono_us());
            }
            Ok(None) => {}
            Err(fault) => return shared.fail(&fault),
        }
        last_us = shared.clock.mono_us();
    }
}

/// Receipts are made under what was cosigned from here on.
fn note_cosigned(shared: &Shared, cosigned: Cosigned) {
    let cosigned_note = Arc::new(cosigned.published);
    let mut published = shared.published.write().unwrap_or_else(PoisonError::into_inner);
    if published.size == cosigned_note.size {
        *published = Arc::clone(&cosigned_note);
    }
    drop(published);
    if cosigned.quorum {
        *shared.witnessed.write().unwrap_or_else(PoisonError::into_inner) = Some(cosigned_note);
    }
}
