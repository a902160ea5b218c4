//! Opening a log: what is on disk is read, checked from the first entry to the last, and continued.
//!
//! Believed, in this order: the newest whole copy of the slot (it is signed), the segments up to its size (they must
//! have its root hash), the published checkpoint (it must be a prefix). Frames beyond the committed size were never
//! acknowledged and are discarded. Before anything new is signed the witnesses are asked whether they have seen more.
//! Whatever else does not fit is an error, not a repair.

use crate::AuditConfig;
use crate::clock::Clock;
use crate::fault::{LogFault, OpenLogError, storage};
use crate::incidents::Incidents;
use crate::index::{Known, OpenRequest, OpenRequests};
use crate::keeping::{destroy_again, note_batch};
use crate::keys::{Keys, random};
use crate::log::lock;
use crate::publish::{CHECKPOINT, Published, Publisher};
use crate::receipt::Tiles;
use crate::retention::drop_traces;
use crate::rotation::NamedKeys;
use crate::segment::{
    Place, SEGMENT_BYTES, SEGMENT_BYTES_MAX, SEGMENTS, SegmentWriter, TracePlace, next_frame, segment_path,
};
use crate::sequence::{BATCH_MAX, Commit, Draft, Placed, Sequencer, TenantHead};
use crate::slot::Slot;
use crate::storage::Storage;
use crate::trace_file::recover_traces;
use crate::witness::check_at_start;
use audit_provenance::{Body, Coverage, Entry, EntryVersion, Keeping, PageCounts, SealReason, Sealing, TenantRef};
use audit_tlog::{CHECKPOINT_BYTES_MAX, Checkpoint, Edge, TILE_WIDTH, TiledTree, encode_bundle};
use policies_domain::{Digest, RequestId};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex};

/// A log that was opened, before its threads run.
pub(crate) struct Opened {
    pub(crate) sequencer: Sequencer,
    pub(crate) publisher: Publisher,
    pub(crate) known: Known,
    pub(crate) incidents: Arc<Mutex<Incidents>>,
    pub(crate) keeping: Keeping,
    pub(crate) keys: Arc<Keys>,
    pub(crate) named: NamedKeys,
    pub(crate) published: Published,
    pub(crate) signed_us: u64,
}

/// What a log is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// To go on as it was left.
    Serve,
    /// To name the key that was prepared.
    Rotate,
    /// To say that the former key is dropped.
    Finish,
}

/// Opens, recovers, and brings what is published up to what is committed.
pub(crate) fn open(
    store: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    config: &AuditConfig,
) -> Result<Opened, OpenLogError> {
    open_as(store, clock, config, Start::Serve)
}

/// The same, and says in an entry what the log was opened for.
pub(crate) fn open_as(
    store: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    config: &AuditConfig,
    start: Start,
) -> Result<Opened, OpenLogError> {
    let segments = segments(&*store)?;
    let mut keys = Keys::open(Arc::clone(&store), &config.origin, &config.signer, !segments.is_empty())?;
    let slot = Slot::open(&*store, &keys.verifier_key())?;
    let mut scan = Scan::new(&*store, &keys, slot.current().map_or(0, |current| current.size))?;
    for first in &segments {
        scan.segment(&*store, *first)?;
    }
    let (committed, root) = slot.current().map_or((0, Edge::new().root()), |current| (current.size, current.root));
    if scan.edge.size() < committed {
        return Err(scan.missing(scan.edge.size()));
    }
    if scan.edge.root() != root {
        return Err(OpenLogError::Root { size: committed });
    }
    let Some((published_edge, bundle)) = scan.at_checkpoint.take() else {
        // INVARIANT: the scan notes the edge at the checkpoint's size, which is at most the committed size.
        return Err(OpenLogError::Root { size: committed });
    };
    // What the entries say of keys is committed by now; what files there are is not asked first.
    let mut named = std::mem::take(&mut scan.named);
    if let Some(chain) = named.chain() {
        keys.settle(chain)?;
    }
    let rotation = match start {
        Start::Serve => None,
        Start::Rotate => Some(keys.begin_rotation(committed, root)?),
        Start::Finish => Some(keys.finish_rotation(committed, root)?),
    };
    keys.vouch()?;
    let keys = Arc::new(keys);

    // What is erased is not looked at: a crash may have left it half destroyed.
    let mut keeping = std::mem::take(&mut scan.keeping);
    keys.forget(&keeping.erasures().map(|(tenant, epoch, _)| (tenant, epoch)).collect::<Vec<_>>());
    keys.check_tenant_keys()?;
    let mut known = std::mem::take(&mut scan.known);
    known.pruned = keeping.pruned_before();
    scan.discard(&*store)?;
    // Of older segments the index has the traces, or finds them when it is asked.
    for first in segments.iter().filter(|first| **first >= scan.traced_from) {
        let ours = |entry| scan.sealed.contains(&entry);
        recover_traces(&*store, *first, ours, |entry, offset| {
            known.tail.note_trace(entry, TracePlace { segment: *first, offset });
        })?;
    }
    let mut publisher = Publisher::new(Arc::clone(&store), published_edge, bundle);
    publish_rest(&*store, &segments, &mut publisher, committed)?;
    if let Some(current) = slot.current()
        && current.size > scan.published
    {
        publisher.publish_checkpoint(current.size, current.root, &current.note)?;
    }

    if !config.witnesses.witnesses.is_empty() {
        let committed = committed_state(&slot, &keys)?;
        let files = Tiles(&*store);
        let tree = |older| TiledTree::new(committed.size, committed.root, &files).prove_consistency(older);
        let prove = |older| tree(older).map_err(|error| error.to_string());
        check_at_start(&config.witnesses, &committed, keys.signer().name(), &prove)?;
    }
    let mut drafts = first_drafts(&scan, &keys, committed)?;
    if let Some(rotation) = rotation {
        // INVARIANT: it stands behind the committed entries, which it names: no rotation begins before there are some.
        drafts.insert(0, Draft::untenanted(Body::KeyRotation(rotation))?);
    }
    drafts.append(&mut destroy_again(&keys, &keeping)?);
    drop_traces(&*store, &known)?;
    let incidents = Arc::new(Mutex::new(scan.incidents));
    let mut sequencer = Sequencer {
        segment: SegmentWriter::open(&*store, scan.last_segment)?,
        started_us: clock.mono_us(),
        storage: store,
        clock,
        keys: Arc::clone(&keys),
        boot: *random()?,
        slot,
        edge: scan.edge,
        tenants: scan.tenants,
        incidents: Arc::clone(&incidents),
        moved: HashMap::new(),
    };
    // In batches, and by the function that every entry goes through: a crash in here is a crash like any other.
    let mut last: Option<Commit> = None;
    let mut drafts = drafts.into_iter().peekable();
    while drafts.peek().is_some() {
        let commit = sequencer.commit(drafts.by_ref().take(BATCH_MAX).collect())?;
        known.note_batch(&commit);
        lock(&incidents).note_batch(&commit).map_err(|_| LogFault::Incident)?;
        note_batch(&mut keeping, &commit)?;
        for (placed, entry) in commit.entries.iter().zip(&commit.said) {
            named.note(placed.index, || root, entry).map_err(|_| LogFault::Keys)?;
        }
        last = publisher.publish(std::slice::from_ref(&commit))?.map(|_| commit);
    }
    let last = last.ok_or(LogFault::Stopped)?;
    let published = Published { size: last.size, root: last.root, note: last.note };
    named.publish(&*sequencer.storage, &published)?;
    Ok(Opened { sequencer, publisher, known, incidents, keeping, keys, named, published, signed_us: last.signed_us })
}

/// What the witnesses are asked about. A log that has committed nothing says that of itself: a witness that has seen more
/// knows that the folder is not what it was.
fn committed_state(slot: &Slot, keys: &Keys) -> Result<Published, LogFault> {
    if let Some(current) = slot.current() {
        return Ok(Published { size: current.size, root: current.root, note: current.note.clone() });
    }
    let empty = Checkpoint { origin: keys.signer().name().to_owned(), size: 0, root: Edge::new().root() };
    let note = keys.sign(&empty).map_err(LogFault::Sign)?;
    Ok(Published { size: 0, root: empty.root, note })
}

/// The first entries of this run: never none, so that the slot is written, and known to be writable, at every start.
fn first_drafts(scan: &Scan, keys: &Keys, committed: u64) -> Result<Vec<Draft>, LogFault> {
    let mut drafts = Vec::new();
    if committed == 0 {
        drafts.push(Draft::untenanted(Body::Genesis {
            origin: keys.signer().name().to_owned(),
            schema: Some(EntryVersion::CURRENT.schema_digest()),
            previous_checkpoint: None,
            verifier_key: keys.verifier_key().to_string(),
        })?);
    }
    if scan.bytes_discarded > 0 {
        let (entries_discarded, bytes_discarded) = (scan.entries_discarded, scan.bytes_discarded);
        drafts.push(Draft::untenanted(Body::Recovered { entries_discarded, bytes_discarded })?);
    }
    for (request, open) in scan.open.clone() {
        drafts.push(crashed(request, &open)?);
    }
    if drafts.is_empty() {
        drafts.push(Draft::untenanted(Body::Heartbeat)?);
    }
    Ok(drafts)
}

/// The sealed entry of a request whose end this log did not see. It admits what is not known.
fn crashed(request: RequestId, open: &OpenRequest) -> Result<Draft, LogFault> {
    let sealing = Sealing {
        request,
        opened_index: open.index,
        opened_leaf: open.leaf,
        reason: SealReason::Crash,
        response: None,
        chain: None,
        chunks: 0,
        steps: 0,
        prompt_tokens: 0,
        completion_tokens: 0,
        pages: PageCounts::default(),
        trace: None,
        queued_us: 0,
        prefill_us: 0,
        decode_us: 0,
        coverage: Coverage::default(),
        replay: None,
    };
    Ok(Draft { uuid: *random()?, tenant: Some(open.tenant), body: Body::Sealed(sealing), trace: None })
}

/// First indices of the segments, in order.
fn segments(store: &dyn Storage) -> Result<Vec<u64>, LogFault> {
    let names = store.list(SEGMENTS).map_err(storage("list", SEGMENTS))?;
    let mut segments: Vec<u64> = names.iter().filter_map(|name| name.parse().ok()).collect();
    segments.sort_unstable();
    Ok(segments)
}

/// What the segments hold, gathered from the first entry to the last committed one.
struct Scan {
    committed: u64,
    published: u64,
    checkpoint: Option<Checkpoint>,
    edge: Edge,
    /// The edge and the incomplete bundle at the published size.
    at_checkpoint: Option<(Edge, Vec<u8>)>,
    bundle: Vec<u8>,
    tenants: HashMap<TenantRef, TenantHead>,
    known: Known,
    incidents: Incidents,
    keeping: Keeping,
    named: NamedKeys,
    /// Sealed entries of the segments whose traces are looked at.
    sealed: BTreeSet<u64>,
    /// The first of these segments: the one that the newest block of entries begins in.
    traced_from: u64,
    requests: OpenRequests,
    open: Vec<(RequestId, OpenRequest)>,
    /// First entry of the segment that the last committed entry lies in.
    last_segment: u64,
    /// Whether that segment has its full length, so that what comes after it lies in the next one.
    segment_full: bool,
    /// Segments that are longer than their committed entries, and the length of those.
    uncommitted: Vec<(u64, u64)>,
    entries_discarded: u64,
    bytes_discarded: u64,
}

impl Scan {
    fn new(store: &dyn Storage, keys: &Keys, committed: u64) -> Result<Self, OpenLogError> {
        let checkpoint = match store.read(CHECKPOINT, CHECKPOINT_BYTES_MAX) {
            Ok(note) => {
                let opened = Checkpoint::open(&note, &keys.verifier_key());
                Some(opened.map_err(|source| OpenLogError::Checkpoint { path: CHECKPOINT, source })?)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(storage("read", CHECKPOINT)(error).into()),
        };
        let published = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.size);
        if published > committed {
            return Err(OpenLogError::RolledBack { published, committed });
        }
        let mut scan = Self {
            committed,
            published,
            checkpoint,
            edge: Edge::new(),
            at_checkpoint: None,
            bundle: Vec::new(),
            tenants: HashMap::new(),
            known: Known::default(),
            incidents: Incidents::default(),
            keeping: Keeping::default(),
            named: NamedKeys::default(),
            sealed: BTreeSet::new(),
            traced_from: 0,
            requests: OpenRequests::default(),
            open: Vec::new(),
            last_segment: 0,
            segment_full: false,
            uncommitted: Vec::new(),
            entries_discarded: 0,
            bytes_discarded: 0,
        };
        scan.compare_checkpoint()?;
        Ok(scan)
    }

    /// Reads one segment, up to where the committed entries end.
    fn segment(&mut self, store: &dyn Storage, first: u64) -> Result<(), OpenLogError> {
        let path = segment_path(first);
        let bytes = store.read(&path, SEGMENT_BYTES_MAX).map_err(storage("read", &path))?;
        let mut rest = bytes.as_slice();
        if first < self.committed {
            if first != self.edge.size() {
                return Err(self.missing(self.edge.size()));
            }
            self.last_segment = first;
            self.traced_from = self.known.outline.segment_of(self.known.tail.first()).unwrap_or(first).min(first);
            self.sealed = self.sealed.split_off(&self.traced_from);
            self.segment_full = bytes.len() as u64 >= SEGMENT_BYTES;
            while self.edge.size() < self.committed && !rest.is_empty() {
                let index = self.edge.size();
                let at = Place { segment: first, offset: (bytes.len() - rest.len()) as u64 };
                let (entry_bytes, leaf) =
                    next_frame(&mut rest).ok_or_else(|| OpenLogError::Entry { index, path: path.clone() })?;
                let entry = Entry::decode(entry_bytes).map_err(|source| OpenLogError::Decode {
                    index,
                    path: path.clone(),
                    source,
                })?;
                let placed = Placed { index, leaf, bytes: entry_bytes.into(), at, trace: None };
                self.entry(placed, &entry)?;
            }
        }
        if !rest.is_empty() {
            self.uncommitted.push((first, (bytes.len() - rest.len()) as u64));
            self.bytes_discarded += rest.len() as u64;
            while next_frame(&mut rest).is_some() {
                self.entries_discarded += 1;
            }
        }
        Ok(())
    }

    /// Entry `index` is missing at the end of what was read.
    fn missing(&self, index: u64) -> OpenLogError {
        let segment = if self.segment_full { index } else { self.last_segment };
        OpenLogError::Entry { index, path: segment_path(segment) }
    }

    /// Cuts off what was never committed.
    fn discard(&self, store: &dyn Storage) -> Result<(), LogFault> {
        for (first, length) in &self.uncommitted {
            let path = segment_path(*first);
            let file = store.open(&path).map_err(storage("open", &path))?;
            file.truncate(*length).map_err(storage("cut", &path))?;
            file.sync().map_err(storage("sync", &path))?;
        }
        Ok(())
    }

    fn entry(&mut self, placed: Placed, entry: &Entry) -> Result<(), OpenLogError> {
        let (index, leaf) = (placed.index, placed.leaf);
        let noted = self.named.note(index, || self.edge.root(), entry);
        noted.map_err(|source| OpenLogError::Rotation { index, path: segment_path(self.last_segment), source })?;
        self.edge.push(leaf);
        let too_long = |_| LogFault::EntryTooLong { length: placed.bytes.len() };
        encode_bundle(&mut self.bundle, &placed.bytes).map_err(too_long)?;
        if self.edge.size().is_multiple_of(TILE_WIDTH as u64) {
            self.bundle.clear();
        }
        if let Some(link) = entry.head.tenant {
            let head = TenantHead { next: link.number + 1, leaf: Digest(leaf.0) };
            let previous = self.tenants.insert(link.tenant, head);
            let wanted = previous.unwrap_or(TenantHead { next: 0, leaf: Digest([0; 32]) });
            if (link.number, link.previous) != (wanted.next, wanted.leaf) {
                return Err(OpenLogError::Entry { index, path: segment_path(self.last_segment) });
            }
        }
        if let Body::Sealed(_) = &entry.body {
            self.sealed.insert(index);
        }
        let wrong = |_| OpenLogError::Entry { index, path: segment_path(self.last_segment) };
        self.incidents.note(index, Digest(leaf.0), entry).map_err(wrong)?;
        let noted = self.keeping.note(index, Digest(leaf.0), entry);
        noted.map_err(|source| OpenLogError::Keeping { index, path: segment_path(self.last_segment), source })?;
        self.known.note_recovered(placed, entry);
        self.requests.note(index, leaf, entry);
        if self.edge.size() == self.committed {
            self.open = std::mem::take(&mut self.requests).into_sorted();
        }
        self.compare_checkpoint()
    }

    /// At the published size the tree must have the published root.
    fn compare_checkpoint(&mut self) -> Result<(), OpenLogError> {
        if self.edge.size() != self.published {
            return Ok(());
        }
        match &self.checkpoint {
            Some(checkpoint) if checkpoint.root != self.edge.root() => {
                Err(OpenLogError::Forked { size: checkpoint.size })
            }
            _ => {
                self.at_checkpoint = Some((self.edge.clone(), self.bundle.clone()));
                Ok(())
            }
        }
    }
}

/// Gives the publisher the committed entries that it has not seen. Their root was compared by now.
fn publish_rest(
    store: &dyn Storage,
    segments: &[u64],
    publisher: &mut Publisher,
    committed: u64,
) -> Result<(), OpenLogError> {
    for (place, first) in segments.iter().enumerate() {
        let end = segments.get(place + 1).copied().unwrap_or(committed).min(committed);
        if end <= publisher.size() {
            continue;
        }
        let path = segment_path(*first);
        let bytes = store.read(&path, SEGMENT_BYTES_MAX).map_err(storage("read", &path))?;
        let mut rest = bytes.as_slice();
        for index in *first..end {
            let (entry, _) = next_frame(&mut rest).ok_or_else(|| OpenLogError::Entry { index, path: path.clone() })?;
            if index >= publisher.size() {
                publisher.push(entry)?;
            }
        }
    }
    Ok(())
}
