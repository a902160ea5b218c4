//! What a log has of one tenant in one time, with its proofs, for whoever makes evidence of it. The folder is only read, while a
//! gateway may write to it; no index is asked; every entry up to the checkpoint is hashed and compared with its root.
//!
//! Entries of other tenants do not leave, nor does an entry of the tenant's own that names another one, as an incident does
//! whose victim it was: of that its leaf hash is given, and what each side may know.

use crate::blast_radius::files::{Folder, for_segments};
use crate::blast_radius::{BlastRadiusError, read_small};
use crate::keys::tenant_salt;
use crate::segment::{next_frame, next_summed};
use audit_provenance::{Body, Entry, Incident, IncidentStage, IsolationAudit, Salt, TenantRef};
use audit_tlog::{Checkpoint, Edge, Hash, TILE_WIDTH, TileFiles, TilePath, TiledTree, TreeReadError, VerifierKey};
use policies_domain::TenantName;
use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::Path;

/// Incidents or audits of others that are told of.
pub const STATED_MAX: usize = 10_000;

/// Whose entries, and of which time.
#[derive(Debug, Clone)]
pub struct EvidenceQuery {
    /// The tenant.
    pub tenant: TenantRef,
    /// Its name, which opens a commitment.
    pub name: TenantName,
    /// In microseconds since 1970, both ends included.
    pub time_us: RangeInclusive<u64>,
    /// Entries that one piece of evidence may have.
    pub entries_max: usize,
    /// Threads that read.
    pub threads: usize,
}

/// An entry with its proof.
#[derive(Debug, Clone)]
pub struct Proven {
    /// Its index.
    pub index: u64,
    /// Its leaf hash.
    pub leaf: Hash,
    /// Its bytes; `None` when they name another tenant.
    pub entry: Option<Vec<u8>>,
    /// The inclusion proof under the checkpoint.
    pub proof: Vec<Hash>,
}

/// What the log has.
#[derive(Debug, Clone)]
pub struct Gathered {
    /// The checkpoint that everything was compared with.
    pub checkpoint: Checkpoint,
    /// The same as it was signed and cosigned.
    pub note: Vec<u8>,
    /// The tenant's entries of the time, with the one before and the one after where there are such.
    pub entries: Vec<Proven>,
    /// Index of an opened entry of them, and the salt of the tenant's name in it.
    pub name: Option<(u64, Salt)>,
    /// Incidents of the tenant's requests whose entries are not given: their index, and when they were detected.
    pub withheld: Vec<(u64, u64, Incident)>,
    /// Incidents of the time in chains of others, with a page of this tenant; where each stands, and when it last moved.
    pub as_victim: Vec<(u64, Incident, IncidentStage, u64)>,
    /// Audits of the time in chains of others.
    pub audits: Vec<(u64, IsolationAudit)>,
    /// The gateway's self-tests of the time, which are nobody's.
    pub self_tests: SelfTestsFound,
}

/// How often the gateway tried its own detectors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SelfTestsFound {
    /// How many times.
    pub tests: u64,
    /// Of those, with a detector that did not work.
    pub failed: u64,
    /// The longest time from one to the next, in microseconds; 0 for fewer than two.
    pub longest_gap_us: u64,
    last_us: u64,
}

impl SelfTestsFound {
    fn take(&mut self, wall_us: u64, passed: bool) {
        if self.tests > 0 {
            self.longest_gap_us = self.longest_gap_us.max(wall_us.saturating_sub(self.last_us));
        }
        (self.tests, self.last_us) = (self.tests + 1, wall_us);
        self.failed += u64::from(!passed);
    }
}

/// Why there is no evidence.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The log could not be read, or is not what was signed.
    #[error(transparent)]
    Log(#[from] BlastRadiusError),
    /// Nothing in it is of this tenant.
    #[error("the log has no entry of that tenant")]
    UnknownTenant,
    /// Nothing of it in this time.
    #[error("the tenant has {entries} entries in the log and none in that time")]
    EmptyTime {
        /// All that it has.
        entries: u64,
    },
    /// More than one piece of evidence may have.
    #[error("the tenant has {entries} entries in that time, at most {entries_max} fit: make the time shorter")]
    TooMany {
        /// Those of the time.
        entries: u64,
        /// The limit.
        entries_max: usize,
    },
    /// More than is told of.
    #[error("more than {STATED_MAX} incidents or audits of others concern that time: make it shorter")]
    TooManyStated,
    /// The proofs could not be made of what was read.
    #[error(transparent)]
    Tree(#[from] TreeReadError),
}

type Progress<'p> = dyn FnMut(&'static str, u64, u64) + 'p;

/// Reads a log's folder. `progress` is told what is done, how far, and of how much.
///
/// # Errors
/// [`EvidenceError`]; nothing is ever made of a part of the log.
pub fn gather_evidence(
    dir: &Path,
    query: &EvidenceQuery,
    mut progress: impl FnMut(&'static str, u64, u64),
) -> Result<Gathered, EvidenceError> {
    let key = read_small(dir, "log.vkey")?;
    let key =
        VerifierKey::parse(String::from_utf8_lossy(&key).trim_end_matches('\n')).map_err(BlastRadiusError::from)?;
    let open = |path: &str| {
        let note = read_small(dir, path)?;
        let checkpoint = Checkpoint::open(&note, &key)?;
        Ok::<_, BlastRadiusError>((checkpoint, note))
    };
    let (mut checkpoint, mut note) = open("checkpoint")?;
    let wanted = look(&Folder::open(dir, checkpoint.size)?, query, &mut progress)?;
    // One that a quorum of witnesses has cosigned says more, if all that is wanted is under it.
    if let Ok(witnessed) = open("checkpoint.witnessed")
        && witnessed.0.size <= checkpoint.size
        && wanted.last().is_some_and(|last| *last < witnessed.0.size)
    {
        (checkpoint, note) = witnessed;
    }
    let folder = Folder::open(dir, checkpoint.size)?;
    let mut read = Reading::new(&wanted);
    read.all(&folder, query, &checkpoint, &mut progress)?;
    let entries = read.prove(&checkpoint, &mut progress)?;
    let opened = entries.iter().filter_map(|proven| match Entry::decode(proven.entry.as_ref()?) {
        // Those around the time are no part of what is said of it.
        Ok(Entry { head, body: Body::Opened(opened) }) if query.time_us.contains(&head.wall_us) => {
            Some((proven.index, head.uuid, opened.epoch))
        }
        _ => None,
    });
    let name = opened
        .into_iter()
        .find_map(|(index, request, epoch)| Some((index, tenant_salt(dir, &query.name, epoch, &request)?)));
    let Reading { withheld, as_victim, audits, self_tests, .. } = read;
    Ok(Gathered { checkpoint, note, entries, name, withheld, as_victim, audits, self_tests })
}

/// Whether an entry of a tenant names another one.
fn names_another(entry: &Entry, tenant: TenantRef) -> bool {
    matches!(&entry.body, Body::Incident(incident) if incident.victim.is_some_and(|victim| victim != tenant))
}

/// The first look: which entries are the tenant's, and when. What it finds is read again.
fn look(folder: &Folder, query: &EvidenceQuery, progress: &mut Progress<'_>) -> Result<Vec<u64>, EvidenceError> {
    let (mut ours, of) = (Vec::new(), folder.segments() as u64);
    let find = |segment| {
        let (bytes, mut found) = (folder.entries(segment)?, Vec::new());
        let mut rest = bytes.as_slice();
        for index in folder.range(segment) {
            let (entry, _) = next_summed(&mut rest).ok_or(BlastRadiusError::Missing { index })?;
            let entry = Entry::decode(entry).map_err(|source| BlastRadiusError::Entry { index, source })?;
            if entry.head.tenant.is_some_and(|link| link.tenant == query.tenant) {
                found.push((index, entry.head.wall_us, !names_another(&entry, query.tenant)));
            }
        }
        Ok(found)
    };
    for_segments(folder, query.threads, find, |segment, found: Vec<(u64, u64, bool)>| {
        ours.extend(found);
        progress("looking for the tenant's entries", segment as u64 + 1, of);
        Ok(())
    })?;
    if ours.is_empty() {
        return Err(EvidenceError::UnknownTenant);
    }
    // Of what is not given nobody sees the time: both ends are entries that are.
    let first = ours.iter().position(|(_, wall_us, given)| *given && wall_us >= query.time_us.start());
    let last = ours.iter().rposition(|(_, wall_us, given)| *given && wall_us <= query.time_us.end());
    let (Some(first), Some(last)) = (first, last) else {
        return Err(EvidenceError::EmptyTime { entries: ours.len() as u64 });
    };
    if first > last {
        return Err(EvidenceError::EmptyTime { entries: ours.len() as u64 });
    }
    // The one before and the one after show that there are no others between.
    let given = |(_, _, given): &(u64, u64, bool)| *given;
    let begin = ours.get(..first).unwrap_or_default().iter().rposition(given).unwrap_or(first);
    let after = ours.get(last + 1..).unwrap_or_default().iter().position(given);
    let end = after.map_or(last + 1, |after| last + after + 2);
    if end - begin > query.entries_max {
        let entries = (last - first) as u64 + 1;
        return Err(EvidenceError::TooMany { entries, entries_max: query.entries_max });
    }
    Ok(ours.get(begin..end).unwrap_or_default().iter().map(|(index, ..)| *index).collect())
}

/// What one segment gives.
#[derive(Default)]
struct SegmentFound {
    leaves: Vec<Hash>,
    ours: Vec<(u64, Hash, Option<Vec<u8>>)>,
    withheld: Vec<(u64, u64, Incident)>,
    victim: Vec<(u64, Incident)>,
    moves: Vec<([u8; 16], IncidentStage, u64)>,
    audits: Vec<(u64, IsolationAudit)>,
    /// When, and whether all detectors worked.
    self_tests: Vec<(u64, bool)>,
}

/// The second reading: every entry is hashed, and what is wanted is kept.
struct Reading<'a> {
    wanted: &'a [u64],
    edge: Edge,
    tiles: Tiles,
    ours: Vec<(u64, Hash, Option<Vec<u8>>)>,
    withheld: Vec<(u64, u64, Incident)>,
    as_victim: Vec<(u64, Incident, IncidentStage, u64)>,
    places: HashMap<[u8; 16], usize>,
    audits: Vec<(u64, IsolationAudit)>,
    self_tests: SelfTestsFound,
}

impl<'a> Reading<'a> {
    fn new(wanted: &'a [u64]) -> Self {
        let (edge, tiles, places) = (Edge::new(), Tiles::default(), HashMap::new());
        let (ours, withheld, as_victim, audits, self_tests) = Default::default();
        Self { wanted, edge, tiles, ours, withheld, as_victim, places, audits, self_tests }
    }

    fn all(
        &mut self,
        folder: &Folder,
        query: &EvidenceQuery,
        checkpoint: &Checkpoint,
        progress: &mut Progress<'_>,
    ) -> Result<(), EvidenceError> {
        let (wanted, of) = (self.wanted, folder.segments() as u64);
        for_segments(
            folder,
            query.threads,
            |segment| read_segment(folder, query, segment, wanted),
            |segment, found| {
                self.take(found);
                progress("reading every entry", segment as u64 + 1, of);
                Ok(())
            },
        )?;
        // INVARIANT: evidence is made of exactly the entries that the log signed, all of them.
        if self.edge.size() != checkpoint.size || self.edge.root() != checkpoint.root {
            return Err(BlastRadiusError::Root { size: checkpoint.size }.into());
        }
        for (level, number, hashes) in self.edge.partial_tiles() {
            self.tiles.keep(TilePath { level: Some(level), number, width: hashes.len() }, hashes);
        }
        if self.as_victim.len() > STATED_MAX || self.audits.len() > STATED_MAX {
            return Err(EvidenceError::TooManyStated);
        }
        Ok(())
    }

    fn take(&mut self, found: SegmentFound) {
        for leaf in found.leaves {
            for tile in self.edge.push(leaf) {
                let begin = tile.number * TILE_WIDTH as u64;
                // Of the lowest level those are kept that wanted entries lie in; of the others there are few.
                let next = self.wanted.partition_point(|index| *index < begin);
                let holds = self.wanted.get(next).is_some_and(|index| *index < begin + TILE_WIDTH as u64);
                if tile.level > 0 || holds {
                    self.tiles.keep(
                        TilePath { level: Some(tile.level), number: tile.number, width: TILE_WIDTH },
                        &tile.hashes,
                    );
                }
            }
        }
        self.ours.extend(found.ours);
        self.withheld.extend(found.withheld);
        for (wall_us, incident) in found.victim {
            self.places.insert(incident.incident, self.as_victim.len());
            self.as_victim.push((wall_us, incident, IncidentStage::Detected, wall_us));
        }
        for (id, stage, wall_us) in found.moves {
            let place = self.places.get(&id).and_then(|place| self.as_victim.get_mut(*place));
            if let Some((_, _, at, updated_us)) = place {
                (*at, *updated_us) = (stage, wall_us);
            }
        }
        self.audits.extend(found.audits);
        found.self_tests.into_iter().for_each(|(wall_us, passed)| self.self_tests.take(wall_us, passed));
    }

    fn prove(&mut self, checkpoint: &Checkpoint, progress: &mut Progress<'_>) -> Result<Vec<Proven>, EvidenceError> {
        let (tree, of) = (TiledTree::new(checkpoint.size, checkpoint.root, &self.tiles), self.ours.len() as u64);
        let mut entries = Vec::with_capacity(self.ours.len());
        for (index, leaf, entry) in std::mem::take(&mut self.ours) {
            entries.push(Proven { index, leaf, entry, proof: tree.prove_inclusion(index)? });
            progress("proving the tenant's entries", entries.len() as u64, of);
        }
        Ok(entries)
    }
}

fn read_segment(
    folder: &Folder,
    query: &EvidenceQuery,
    segment: usize,
    wanted: &[u64],
) -> Result<SegmentFound, BlastRadiusError> {
    let (bytes, mut found) = (folder.entries(segment)?, SegmentFound::default());
    let mut rest = bytes.as_slice();
    for index in folder.range(segment) {
        let (bytes, leaf) = next_frame(&mut rest).ok_or(BlastRadiusError::Missing { index })?;
        found.leaves.push(leaf);
        let entry = Entry::decode(bytes).map_err(|source| BlastRadiusError::Entry { index, source })?;
        let (wall_us, in_time) = (entry.head.wall_us, query.time_us.contains(&entry.head.wall_us));
        if entry.head.tenant.is_some_and(|link| link.tenant == query.tenant) {
            if wanted.binary_search(&index).is_ok() {
                // INVARIANT: no byte of an entry leaves that names another tenant.
                let given = (!names_another(&entry, query.tenant)).then(|| bytes.to_vec());
                found.ours.push((index, leaf, given.clone()));
                if let (None, Body::Incident(incident)) = (given, entry.body) {
                    found.withheld.push((index, wall_us, incident));
                }
            }
            continue;
        }
        match entry.body {
            Body::Incident(incident) if in_time && incident.victim == Some(query.tenant) => {
                found.victim.push((wall_us, incident));
            }
            Body::IncidentState(state) => found.moves.push((state.incident, state.state, wall_us)),
            Body::Audit(audit) if in_time => found.audits.push((wall_us, audit)),
            Body::SelfTest(test) if in_time => found.self_tests.push((wall_us, test.passed())),
            _ => {}
        }
    }
    Ok(found)
}

/// Tiles of the tree that the proofs are made of. Each hash is compared with the root before it is used.
#[derive(Default)]
struct Tiles(HashMap<TilePath, Vec<u8>>);

impl Tiles {
    fn keep(&mut self, path: TilePath, hashes: &[Hash]) {
        self.0.insert(path, hashes.iter().flat_map(|hash| hash.0).collect());
    }
}

impl TileFiles for Tiles {
    fn read_tile(&self, path: &TilePath, _bytes_max: usize) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

#[cfg(test)]
mod tests;
