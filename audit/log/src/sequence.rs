//! The one place where entries get their numbers. Read [`Sequencer::commit`] from top to bottom: at each step a comment
//! says what a crash there leaves behind. Recovery (`recover.rs`) ends in the same function.

use crate::clock::Clock;
use crate::fault::LogFault;
use crate::incidents::Incidents;
use crate::keys::{Keys, random};
use crate::log::lock;
use crate::segment::{Place, SegmentWriter, TracePlace, encode_frame, next_frame};
use crate::slot::Slot;
use crate::storage::{Storage, StoredFile};
use audit_provenance::{
    Body, CosignerLag, Entry, EntryVersion, Erasure, Head, Incident, IncidentLife, IncidentState, SelfTest, TenantLink,
    TenantRef,
};
use audit_tlog::{Checkpoint, Edge, Hash, leaf_hash};
use policies_domain::Digest;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zeroize::Zeroizing;

/// Entries of one group commit. At this size a commit costs what its entries cost, no longer what its two syncs cost.
pub(crate) const BATCH_MAX: usize = 4_096;

/// An entry before it has a place.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) uuid: [u8; 16],
    pub(crate) tenant: Option<TenantRef>,
    pub(crate) body: Body,
    /// The bytes whose digest a sealed body holds.
    pub(crate) trace: Option<Vec<u8>>,
}

impl Draft {
    /// A draft with a fresh id that belongs to no tenant.
    pub(crate) fn untenanted(body: Body) -> Result<Self, LogFault> {
        Self::new(None, body)
    }

    /// A draft with a fresh id.
    pub(crate) fn new(tenant: Option<TenantRef>, body: Body) -> Result<Self, LogFault> {
        Ok(Self { uuid: *random()?, tenant, body, trace: None })
    }

    /// Whether it makes a batch of its own, so that what it is compared with is all that stands before it.
    pub(crate) fn stands_alone(&self) -> bool {
        matches!(self.body, Body::Erasure(_) | Body::Hold(_) | Body::Release(_) | Body::Prune(_))
    }
}

/// An entry in its place.
#[derive(Debug, Clone)]
pub(crate) struct Placed {
    pub(crate) index: u64,
    pub(crate) leaf: Hash,
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) at: Place,
    pub(crate) trace: Option<TracePlace>,
}

/// A committed batch, on its way to be published.
pub(crate) struct Commit {
    pub(crate) entries: Vec<Placed>,
    /// What they say, in the same order.
    pub(crate) said: Vec<Entry>,
    pub(crate) size: u64,
    pub(crate) root: Hash,
    pub(crate) note: String,
    pub(crate) signed_us: u64,
    pub(crate) traces: Arc<dyn StoredFile>,
}

/// A tenant's chain: the next number and the previous leaf.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TenantHead {
    pub(crate) next: u64,
    pub(crate) leaf: Digest,
}

/// Gives entries their places. There is one for a log.
pub(crate) struct Sequencer {
    pub(crate) storage: Arc<dyn Storage>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) boot: [u8; 16],
    pub(crate) started_us: u64,
    pub(crate) segment: SegmentWriter,
    pub(crate) slot: Slot,
    pub(crate) edge: Edge,
    pub(crate) tenants: HashMap<TenantRef, TenantHead>,
    /// Where each incident stands in what is committed.
    pub(crate) incidents: Arc<Mutex<Incidents>>,
    /// And where this batch moves it.
    pub(crate) moved: HashMap<[u8; 16], IncidentLife>,
}

impl Sequencer {
    /// Commits a batch of drafts, in order. They are durable, and numbered, when it returns.
    ///
    /// # Errors
    /// [`LogFault`]. After one the caller commits nothing any more: memory and disk may differ, and only a restart,
    /// which believes the disk, can tell.
    pub(crate) fn commit(&mut self, drafts: Vec<Draft>) -> Result<Commit, LogFault> {
        if self.segment.is_full() {
            // A crash here leaves an empty segment, which the next start continues.
            self.segment = SegmentWriter::open(&*self.storage, self.edge.size())?;
        }
        self.moved.clear();
        let (mut entries, mut said) = (Vec::with_capacity(drafts.len()), Vec::with_capacity(drafts.len()));
        let mut frames = Vec::new();
        // The system is asked once for all of them.
        let mut blinds = Zeroizing::new(vec![[0; 32]; drafts.len()]);
        getrandom::fill(blinds.as_flattened_mut()).map_err(|_| LogFault::Random)?;
        for ((index, draft), blind) in (self.edge.size()..).zip(drafts).zip(blinds.iter()) {
            let (placed, entry) = self.place(index, self.segment.place_after(frames.len()), draft, *blind)?;
            encode_frame(&mut frames, placed.leaf, &placed.bytes)?;
            entries.push(placed);
            said.push(entry);
        }

        // 1. The entries go to the segment. A crash here leaves frames beyond the committed size, whole or torn, which
        // the next start discards: nobody was promised anything.
        let read = self.segment.append(&frames)?;

        // 2. The tree grows by hashes computed anew from what was read back, so that a bit that flipped in memory or on
        // the way to the disk is found before it is signed.
        let mut rest = read.as_slice();
        for placed in &entries {
            match next_frame(&mut rest) {
                Some((_, leaf)) if leaf == placed.leaf => self.edge.push(leaf),
                _ => return Err(LogFault::ReadBack { index: placed.index }),
            };
        }

        // 3. Time must advance between two checkpoints. There is no waiting for a clock that is wrong.
        let (now_us, last_us) = (self.clock.wall_us(), self.slot.current().map_or(0, |current| current.signed_us));
        if now_us <= last_us {
            return Err(LogFault::Clock { now_us, last_us });
        }

        // 4. Signed, and written over the older copy of the slot. This is the commit point: a crash before it leaves
        // the previous state, a crash after it this one, and a torn write spares the other copy.
        let (size, root) = (self.edge.size(), self.edge.root());
        let checkpoint = Checkpoint { origin: self.keys.signer().name().to_owned(), size, root };
        let note = self.keys.sign(&checkpoint).map_err(LogFault::Sign)?;
        self.slot.commit(size, root, now_us, note.clone())?;

        // 5. and 6. belong to the caller: promises first, then tiles and checkpoint. A crash before they are done
        // leaves committed entries unpublished, which the next start publishes.
        Ok(Commit { entries, said, size, root, note, signed_us: now_us, traces: self.segment.traces() })
    }

    /// Encodes an entry with its tenant's next number.
    fn place(&mut self, index: u64, at: Place, draft: Draft, blind: [u8; 32]) -> Result<(Placed, Entry), LogFault> {
        let tenant = draft.tenant.map(|tenant| {
            let head = self.tenants.get(&tenant).copied().unwrap_or(TenantHead { next: 0, leaf: Digest([0; 32]) });
            TenantLink { tenant, number: head.next, previous: head.leaf }
        });
        let head = Head {
            version: EntryVersion::CURRENT,
            uuid: draft.uuid,
            blind,
            boot: self.boot,
            wall_us: self.clock.wall_us(),
            mono_us: self.clock.mono_us().saturating_sub(self.started_us),
            tenant,
        };
        let entry = Entry { head, body: self.continued(draft.tenant, draft.body)? };
        let bytes: Arc<[u8]> = entry.encode().into();
        let leaf = leaf_hash(&bytes);
        self.note_incident(&entry.body, Digest(leaf.0))?;
        if let Some(link) = tenant {
            self.tenants.insert(link.tenant, TenantHead { next: link.number + 1, leaf: Digest(leaf.0) });
        }
        let trace = match draft.trace {
            // Not synced here: it is evidence that may be dropped, and its digest is in the entry.
            Some(trace) => self.segment.append_trace(index, &trace),
            None => None,
        };
        Ok((Placed { index, leaf, bytes, at, trace }, entry))
    }

    /// A move of an incident gets its place among the incident's entries, an erasure the name of the key that is there now.
    fn continued(&self, tenant: Option<TenantRef>, body: Body) -> Result<Body, LogFault> {
        match (body, tenant) {
            (Body::IncidentState(state), _) => {
                let life = self.life(&state.incident).ok_or(LogFault::Incident)?;
                Ok(Body::IncidentState(IncidentState { sequence: life.sequence + 1, previous: life.leaf, ..state }))
            }
            (Body::Erasure(erasure), Some(tenant)) => {
                let key = self.keys.key_name(tenant, erasure.epoch)?;
                Ok(Body::Erasure(Erasure { key, ..erasure }))
            }
            (body, _) => Ok(body),
        }
    }

    fn note_incident(&mut self, body: &Body, leaf: Digest) -> Result<(), LogFault> {
        match body {
            Body::Incident(Incident { incident, .. }) | Body::Lag(CosignerLag { incident, .. }) => {
                self.moved.insert(*incident, IncidentLife::detected(leaf));
            }
            Body::SelfTest(SelfTest { incident: Some(incident), .. }) if self.life(incident).is_none() => {
                self.moved.insert(*incident, IncidentLife::detected(leaf));
            }
            Body::IncidentState(state) => {
                // INVARIANT: what may not be moved so was refused before the batch was made.
                let life = self.life(&state.incident).ok_or(LogFault::Incident)?;
                let life = life.after(state, leaf).map_err(|_| LogFault::Incident)?;
                self.moved.insert(state.incident, life);
            }
            _ => {}
        }
        Ok(())
    }

    fn life(&self, incident: &[u8; 16]) -> Option<IncidentLife> {
        self.moved.get(incident).copied().or_else(|| lock(&self.incidents).life(incident))
    }
}
