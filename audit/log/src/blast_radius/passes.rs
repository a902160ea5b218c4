//! The readings of a log that make an answer: who is suspect, which pages they read, who read those. The last one compares
//! everything with the checkpoint.

use super::files::{Folder, for_segments};
use super::lives::{Life, Lives, Readers, life};
use super::{
    BlastRadius, BlastRadiusError, BlastRadiusQuery, HOPS_MAX, ROWS_MAX, SHOWN_MAX, Suspect, Touched, Unknown,
    is_suspect, lasted_until,
};
use crate::segment::{next_frame, next_summed};
use audit_provenance::{Body, Entry, PageClass, PageRun, SealReason, Sealing, TenantRef, Trace};
use audit_tlog::{Checkpoint, Edge, Hash};
use policies_domain::{Digest, RequestId};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Entries by index.
#[derive(Debug)]
struct Marks(Vec<u64>);

impl Marks {
    fn new(size: u64) -> Self {
        Self(vec![0; usize::try_from(size / 64 + 1).unwrap_or_default()])
    }

    fn word(&mut self, index: u64) -> Option<&mut u64> {
        self.0.get_mut(usize::try_from(index / 64).ok()?)
    }

    fn set(&mut self, index: u64) {
        if let Some(word) = self.word(index) {
            *word |= 1 << (index % 64);
        }
    }

    fn clear(&mut self, index: u64) {
        if let Some(word) = self.word(index) {
            *word &= !(1 << (index % 64));
        }
    }

    fn has(&self, index: u64) -> bool {
        let word = usize::try_from(index / 64).ok().and_then(|word| self.0.get(word));
        word.is_some_and(|word| word & (1 << (index % 64)) != 0)
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        let bits = |(place, word): (u64, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| place * 64 + bit)
        };
        (0..).zip(&self.0).filter(|(_, word)| **word != 0).flat_map(bits)
    }
}

/// What is known while the log is read.
pub(crate) struct Scan<'a> {
    folder: &'a Folder,
    query: &'a BlastRadiusQuery,
    checkpoint: &'a Checkpoint,
    /// Opened entries of suspect requests.
    suspects: Marks,
    lives: Lives,
    hops: u32,
    followed_to_the_end: bool,
    unknown: Unknown,
    rows: Vec<Touched>,
    rows_count: u64,
    direct_count: u64,
    tenants: BTreeSet<TenantRef>,
    readers: Readers,
    traces_read: u64,
}

type Progress<'p> = dyn FnMut(&'static str, u64, u64) + 'p;

impl<'a> Scan<'a> {
    pub(crate) fn new(folder: &'a Folder, query: &'a BlastRadiusQuery, checkpoint: &'a Checkpoint) -> Self {
        Self {
            folder,
            query,
            checkpoint,
            suspects: Marks::new(checkpoint.size),
            lives: Lives::of(&query.suspect),
            hops: 0,
            followed_to_the_end: false,
            unknown: Unknown::default(),
            rows: Vec::new(),
            rows_count: 0,
            direct_count: 0,
            tenants: BTreeSet::new(),
            readers: Readers::default(),
            traces_read: 0,
        }
    }

    fn pages_alone(&self) -> bool {
        matches!(self.query.suspect, Suspect::Page { .. })
    }

    /// Finds the suspect requests, and then the lives of the pages that they read.
    pub(crate) fn suspects(&mut self, progress: &mut Progress<'_>) -> Result<(), BlastRadiusError> {
        if self.pages_alone() {
            return Ok(());
        }
        let (folder, query, of) = (self.folder, self.query, self.folder.segments() as u64);
        let marks = &mut self.suspects;
        let opened = |segment| {
            let mut found = Vec::new();
            let bytes = folder.entries(segment)?;
            glance(folder, segment, &bytes, |index, entry| {
                if let Body::Opened(opened) = &entry.body
                    && is_suspect(&query.suspect, entry, opened)
                {
                    found.push(index);
                }
            })?;
            Ok(found)
        };
        for_segments(folder, query.threads, opened, |segment, found: Vec<u64>| {
            found.into_iter().for_each(|index| marks.set(index));
            progress("looking for suspect requests", segment as u64 + 1, of);
            Ok(())
        })?;
        let (marks, lives, unknown) = (&self.suspects, &mut self.lives, &mut self.unknown);
        let mut public: HashSet<Life> = HashSet::new();
        let pages = |segment| pages_of_suspects(folder, query, segment, marks);
        for_segments(folder, query.threads, pages, |segment, found: SuspectPages| {
            lives.extend(found.lives)?;
            public.extend(found.public);
            unknown.suspects_without_pages += found.without;
            progress("looking for their pages", segment as u64 + 1, of);
            Ok(())
        })?;
        unknown.public_pages = public.len() as u64;
        Ok(())
    }

    /// Follows suspicion from pages to their readers to their pages until nothing is new.
    pub(crate) fn follow(&mut self, progress: &mut Progress<'_>) -> Result<(), BlastRadiusError> {
        self.hops = 1;
        if !self.query.transitive {
            return Ok(());
        }
        let (folder, query, of) = (self.folder, self.query, self.folder.segments() as u64);
        while self.hops < HOPS_MAX {
            let (lives, mut new) = (&self.lives, Vec::new());
            let read = |segment| {
                let mut found: HashSet<Life> = HashSet::new();
                folder.traces(segment, |_, bytes| {
                    let Ok(trace) = Trace::decode(bytes) else { return };
                    if trace.pages.iter().any(|run| lives.contains(life(run))) {
                        let followed = trace.pages.iter().filter(|run| is_followed(query, run)).map(life);
                        found.extend(followed.filter(|life| !lives.contains(*life)));
                    }
                })?;
                Ok(found)
            };
            for_segments(folder, query.threads, read, |segment, found: HashSet<Life>| {
                new.extend(found);
                progress("following pages", segment as u64 + 1, of);
                if new.len() > super::LIVES_MAX { Err(BlastRadiusError::TooManyLives) } else { Ok(()) }
            })?;
            if !self.lives.extend(new)? {
                self.followed_to_the_end = true;
                break;
            }
            self.hops += 1;
        }
        Ok(())
    }

    /// Reads every entry and trace, makes the rows, and compares the entries with the checkpoint.
    pub(crate) fn rows(&mut self, progress: &mut Progress<'_>) -> Result<(), BlastRadiusError> {
        let (folder, query, of) = (self.folder, self.query, self.folder.segments() as u64);
        let (marks, lives) = (&self.suspects, &self.lives);
        let (mut edge, mut open) = (Edge::new(), Marks::new(self.checkpoint.size));
        let mut found = Found::default();
        let read = |segment| read_segment(folder, query, segment, marks, lives);
        let (rows, rows_count, direct_count) = (&mut self.rows, &mut self.rows_count, &mut self.direct_count);
        let (tenants, readers, traces_read) = (&mut self.tenants, &mut self.readers, &mut self.traces_read);
        for_segments(folder, query.threads, read, |segment, read: SegmentRows| {
            for leaf in read.leaves {
                drop(edge.push(leaf));
            }
            read.opened.into_iter().for_each(|index| open.set(index));
            read.sealed.into_iter().for_each(|index| open.clear(index));
            for (index, why) in read.unknown {
                found.push(index, why);
            }
            *traces_read += read.traces;
            for (touched, lives) in read.rows {
                *rows_count += 1;
                *direct_count += u64::from(touched.direct);
                tenants.insert(touched.tenant);
                lives.iter().for_each(|life| readers.note(*life, touched.index, touched.tenant));
                if rows.len() < ROWS_MAX {
                    rows.push(touched);
                }
            }
            progress("reading entries and traces", segment as u64 + 1, of);
            Ok(())
        })?;
        // INVARIANT: an answer is made of exactly the entries that the log signed, all of them.
        if edge.size() != self.checkpoint.size || edge.root() != self.checkpoint.root {
            return Err(BlastRadiusError::Root { size: self.checkpoint.size });
        }
        self.unknown.crashed = found.crashed;
        self.unknown.trace_gone = found.gone;
        self.unknown.trace_changed = found.changed;
        open.all().for_each(|index| self.unknown.in_flight.push(index));
        Ok(())
    }

    pub(crate) fn into_answer(self) -> BlastRadius {
        BlastRadius {
            checkpoint: self.checkpoint.clone(),
            rows_left_out: self.rows_count - self.rows.len() as u64,
            rows: self.rows,
            suspects_count: self.suspects.all().count() as u64,
            direct_count: self.direct_count,
            tenants: self.tenants.into_iter().collect(),
            lives: self.readers.into_shared(&self.query.suspect),
            hops: self.hops,
            followed_to_the_end: self.followed_to_the_end,
            unknown: self.unknown,
            read: (self.checkpoint.size, self.traces_read),
        }
    }
}

/// Whether the pages of a suspect response are suspect: not those that were everybody's before the first request.
fn is_followed(query: &BlastRadiusQuery, run: &PageRun) -> bool {
    query.through_public || run.class != PageClass::Public
}

/// Tells `found` of each entry, without computing its hash.
fn glance(
    folder: &Folder,
    segment: usize,
    bytes: &[u8],
    mut found: impl FnMut(u64, &Entry),
) -> Result<(), BlastRadiusError> {
    let mut rest = bytes;
    for index in folder.range(segment) {
        let (entry, _) = next_summed(&mut rest).ok_or(BlastRadiusError::Missing { index })?;
        let entry = Entry::decode(entry).map_err(|source| BlastRadiusError::Entry { index, source })?;
        found(index, &entry);
    }
    Ok(())
}

/// What suspect responses of a segment read.
#[derive(Default)]
struct SuspectPages {
    lives: HashSet<Life>,
    public: HashSet<Life>,
    without: u64,
}

fn pages_of_suspects(
    folder: &Folder,
    query: &BlastRadiusQuery,
    segment: usize,
    marks: &Marks,
) -> Result<SuspectPages, BlastRadiusError> {
    let (mut pages, mut wanted) = (SuspectPages::default(), HashMap::new());
    let bytes = folder.entries(segment)?;
    glance(folder, segment, &bytes, |index, entry| {
        if let Body::Sealed(sealed) = &entry.body
            && marks.has(sealed.opened_index)
            && lasted_until(&query.suspect, entry.head.wall_us)
        {
            wanted.insert(index, sealed.trace);
        }
    })?;
    if wanted.is_empty() {
        return Ok(pages);
    }
    folder.traces(segment, |index, bytes| {
        if wanted.get(&index).copied().flatten() != Some(Trace::root(bytes)) {
            return;
        }
        let Ok(trace) = Trace::decode(bytes) else { return };
        wanted.remove(&index);
        for run in &trace.pages {
            if is_followed(query, run) {
                pages.lives.insert(life(run))
            } else {
                pages.public.insert(life(run))
            };
        }
    })?;
    pages.without = wanted.len() as u64;
    Ok(pages)
}

/// Why what a response read is not known.
#[derive(Clone, Copy)]
enum Why {
    Crashed,
    Gone,
    Changed,
}

#[derive(Default)]
struct Found {
    crashed: super::Listed,
    gone: super::Listed,
    changed: super::Listed,
}

impl Found {
    fn push(&mut self, index: u64, why: Why) {
        match why {
            Why::Crashed => self.crashed.push(index),
            Why::Gone => self.gone.push(index),
            Why::Changed => self.changed.push(index),
        }
    }
}

/// What one segment gives.
#[derive(Default)]
struct SegmentRows {
    leaves: Vec<Hash>,
    opened: Vec<u64>,
    /// Opened entries of the sealed ones.
    sealed: Vec<u64>,
    unknown: Vec<(u64, Why)>,
    rows: Vec<(Touched, Vec<Life>)>,
    traces: u64,
}

/// A trace as the last reading needs it.
struct TraceSeen {
    root: Digest,
    /// `None` when it cannot be read.
    suspect: Option<Vec<PageRun>>,
}

fn read_segment(
    folder: &Folder,
    query: &BlastRadiusQuery,
    segment: usize,
    marks: &Marks,
    lives: &Lives,
) -> Result<SegmentRows, BlastRadiusError> {
    let mut traces: HashMap<u64, TraceSeen> = HashMap::new();
    folder.traces(segment, |index, bytes| {
        let suspect = |trace: Trace| trace.pages.into_iter().filter(|run| lives.contains(life(run))).collect();
        let suspect = Trace::decode(bytes).map(suspect).ok();
        traces.insert(index, TraceSeen { root: Trace::root(bytes), suspect });
    })?;
    let bytes = folder.entries(segment)?;
    let mut rest = bytes.as_slice();
    let mut read = SegmentRows { traces: traces.len() as u64, ..SegmentRows::default() };
    let mut released: HashMap<RequestId, u64> = HashMap::new();
    for index in folder.range(segment) {
        let (bytes, leaf) = next_frame(&mut rest).ok_or(BlastRadiusError::Missing { index })?;
        read.leaves.push(leaf);
        let entry = Entry::decode(bytes).map_err(|source| BlastRadiusError::Entry { index, source })?;
        match &entry.body {
            Body::Opened(_) => read.opened.push(index),
            Body::Incident(incident) => drop(released.insert(incident.request, incident.bytes_released)),
            Body::Fault(fault) => drop(released.insert(fault.request, fault.bytes_released)),
            Body::Sealed(sealed) => {
                read.sealed.push(sealed.opened_index);
                let direct = marks.has(sealed.opened_index) && lasted_until(&query.suspect, entry.head.wall_us);
                let (suspect, why) = judge(sealed, traces.remove(&index));
                if let Some(why) = why {
                    read.unknown.push((index, why));
                }
                // INVARIANT: a sealed entry has a tenant; one without is of a log that nobody wrote.
                if let Some(link) = entry.head.tenant
                    && (direct || !suspect.is_empty())
                {
                    let bytes_released = released.remove(&sealed.request);
                    let place = (index, Digest(leaf.0), entry.head.wall_us);
                    read.rows.push(row(place, link.tenant, sealed, direct, suspect, bytes_released));
                }
            }
            _ => {}
        }
    }
    Ok(read)
}

/// The suspect pages of a response, or why its pages are not known. A trace counts if the entry commits to it.
fn judge(sealed: &Sealing, trace: Option<TraceSeen>) -> (Vec<PageRun>, Option<Why>) {
    match (sealed.trace, trace) {
        (Some(wanted), Some(TraceSeen { root, suspect: Some(suspect) })) if root == wanted => (suspect, None),
        (Some(_), Some(_)) => (Vec::new(), Some(Why::Changed)),
        (Some(_), None) => (Vec::new(), Some(Why::Gone)),
        (None, _) if sealed.reason == SealReason::Crash => (Vec::new(), Some(Why::Crashed)),
        (None, _) => (Vec::new(), Some(Why::Gone)),
    }
}

fn row(
    (index, leaf, sealed_us): (u64, Digest, u64),
    tenant: TenantRef,
    sealed: &Sealing,
    direct: bool,
    mut pages: Vec<PageRun>,
    bytes_released: Option<u64>,
) -> (Touched, Vec<Life>) {
    let lives: BTreeSet<Life> = pages.iter().map(life).collect();
    pages.truncate(SHOWN_MAX);
    let touched = Touched {
        index,
        leaf,
        request: sealed.request,
        opened_index: sealed.opened_index,
        tenant,
        sealed_us,
        reason: sealed.reason,
        direct,
        payloads: sealed.chunks,
        completion_tokens: sealed.completion_tokens,
        bytes_released,
        pages,
        pages_count: lives.len() as u64,
    };
    (touched, lives.into_iter().collect())
}
