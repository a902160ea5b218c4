//! Incidents, and what becomes of them. Where one stands is the fold over its entries, which every start makes anew and every
//! commit goes on with; it is stored nowhere else. The sequencer asks here before it writes a move, so that the log never
//! holds one that a verifier refuses.

use crate::AppendError;
use crate::index::LookupError;
use crate::keys::random;
use crate::log::{AuditLog, IncidentId, Recorded, lock};
use crate::queue::{Queued, Reply, failed};
use crate::sequence::{Commit, Draft};
use audit_provenance::{
    ActorRef, Body, Containment, CosignerLag, CosignerRole, Entry, Incident, IncidentLife, IncidentMoveError,
    IncidentStage, IncidentState, SelfTest, TenantRef,
};
use policies_domain::{Digest, Principal, TenantName};
use std::collections::{BTreeMap, HashMap};
use tokio::sync::oneshot;

/// Incidents in one report, the newest.
pub const REPORTED_MAX: usize = 10_000;

/// A cosigner, as the lags of it are told apart.
pub(crate) type Cosigner = (CosignerRole, String);

/// One incident, as its entries say.
#[derive(Debug, Clone)]
struct Known {
    tenant: Option<TenantRef>,
    victim: Option<TenantRef>,
    life: IncidentLife,
    /// Index and leaf hash of its entries, in order.
    entries: Vec<(u64, Digest)>,
}

impl Known {
    fn detected(index: u64, leaf: Digest) -> Self {
        let life = IncidentLife::detected(leaf);
        Self { tenant: None, victim: None, life, entries: vec![(index, leaf)] }
    }
}

/// The fold over all entries of all incidents.
#[derive(Debug, Default)]
pub(crate) struct Incidents {
    known: HashMap<[u8; 16], Known>,
    /// In the order of their first entries.
    order: Vec<[u8; 16]>,
    /// Cosigners of whom the last word is that they have fallen behind, by the incident that says so.
    lagging: BTreeMap<[u8; 16], Cosigner>,
    /// The incident of self-tests that failed, while none has passed since.
    failing_self_test: Option<[u8; 16]>,
    /// The last entry of one.
    newest_self_test: Option<u64>,
}

impl Incidents {
    /// Notes a committed entry.
    pub(crate) fn note(&mut self, index: u64, leaf: Digest, entry: &Entry) -> Result<(), IncidentMoveError> {
        if matches!(entry.body, Body::SelfTest(_)) {
            self.newest_self_test = Some(index);
        }
        match (&entry.body, entry.head.tenant) {
            (Body::Incident(incident), Some(link)) => {
                let (tenant, victim) = (Some(link.tenant), incident.victim);
                self.detected(incident.incident, Known { tenant, victim, ..Known::detected(index, leaf) });
            }
            (Body::Lag(lag), None) => {
                self.detected(lag.incident, Known::detected(index, leaf));
                self.lagging.insert(lag.incident, (lag.role, lag.cosigner.clone()));
            }
            // One that goes on is the same incident.
            (Body::SelfTest(SelfTest { incident: Some(incident), .. }), None) if !self.known.contains_key(incident) => {
                self.detected(*incident, Known::detected(index, leaf));
                self.failing_self_test = Some(*incident);
            }
            (Body::IncidentState(state), _) => {
                if let Some(known) = self.known.get_mut(&state.incident) {
                    known.life = known.life.after(state, leaf)?;
                    known.entries.push((index, leaf));
                    // What goes on after persons have closed it is another incident.
                    if state.state == IncidentStage::Contained || state.state.is_closed() {
                        self.lagging.remove(&state.incident);
                        self.failing_self_test.take_if(|incident| *incident == state.incident);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The same for a whole batch.
    pub(crate) fn note_batch(&mut self, commit: &Commit) -> Result<(), IncidentMoveError> {
        let mut batch = commit.entries.iter().zip(&commit.said);
        batch.try_for_each(|(placed, entry)| self.note(placed.index, Digest(placed.leaf.0), entry))
    }

    fn detected(&mut self, incident: [u8; 16], known: Known) {
        self.known.insert(incident, known);
        self.order.push(incident);
    }

    /// Cosigners of whom the last word is that they have fallen behind, and the incident that says so.
    pub(crate) fn lagging(&self) -> Vec<(Cosigner, IncidentId)> {
        self.lagging.iter().map(|(id, cosigner)| (cosigner.clone(), IncidentId(*id))).collect()
    }

    /// The incident of self-tests that failed, while none has passed since.
    pub(crate) fn failing_self_test(&self) -> Option<IncidentId> {
        self.failing_self_test.map(IncidentId)
    }

    /// Index of the newest self-test.
    pub(crate) fn newest_self_test(&self) -> Option<u64> {
        self.newest_self_test
    }

    /// Whether an auditor is among them.
    pub(crate) fn an_auditor_lags(&self) -> bool {
        self.lagging.values().any(|(role, _)| *role == CosignerRole::Auditor)
    }

    pub(crate) fn life(&self, incident: &[u8; 16]) -> Option<IncidentLife> {
        self.known.get(incident).map(|known| known.life)
    }
}

/// Takes the moves out of a batch that may not be made, and tells whoever wanted them. What comes earlier in the batch counts.
pub(crate) fn refuse_forbidden(incidents: &Incidents, queued: Vec<Queued>) -> Vec<Queued> {
    let mut stages: HashMap<[u8; 16], IncidentStage> = HashMap::new();
    let mut kept = Vec::with_capacity(queued.len());
    for Queued { draft, reply } in queued {
        match &draft.body {
            Body::Incident(Incident { incident, .. }) | Body::Lag(CosignerLag { incident, .. }) => {
                stages.insert(*incident, IncidentStage::Detected);
            }
            Body::SelfTest(SelfTest { incident: Some(incident), .. }) if incidents.life(incident).is_none() => {
                stages.entry(*incident).or_insert(IncidentStage::Detected);
            }
            Body::IncidentState(state) => {
                let held = stages.get(&state.incident).copied();
                let stage = held.or_else(|| incidents.life(&state.incident).map(|life| life.stage));
                match stage.ok_or(AppendError::NoIncident).and_then(|stage| moved(stage, state)) {
                    Ok(stage) => drop(stages.insert(state.incident, stage)),
                    Err(error) => {
                        reply.refuse(error);
                        continue;
                    }
                }
            }
            _ => {}
        }
        kept.push(Queued { draft, reply });
    }
    kept
}

/// Whether an incident that stands there may move so; places in the log aside, which the sequencer gives.
fn moved(stage: IncidentStage, state: &IncidentState) -> Result<IncidentStage, AppendError> {
    let life = IncidentLife { stage, ..IncidentLife::detected(Digest([0; 32])) };
    let next = IncidentState { sequence: 1, previous: life.leaf, ..state.clone() };
    Ok(life.after(&next, life.leaf)?.stage)
}

/// A move that somebody wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncidentMove {
    /// Which incident.
    pub incident: IncidentId,
    /// Where to.
    pub to: IncidentStage,
    /// Who; the program itself when it is `None`.
    pub actor: Option<ActorRef>,
    /// The second person, for what takes two.
    pub second: Option<ActorRef>,
    /// SHA-256 of what was looked at.
    pub evidence: Option<Digest>,
    /// What was done.
    pub action: Containment,
    /// SHA-256 of the notice that was delivered.
    pub notice: Option<Digest>,
}

impl IncidentMove {
    /// Its place among the incident's entries is the sequencer's to give.
    pub(crate) fn body(self) -> Body {
        Body::IncidentState(IncidentState {
            incident: self.incident.0,
            sequence: 0,
            previous: Digest([0; 32]),
            state: self.to,
            actor: self.actor,
            second: self.second,
            evidence: self.evidence,
            action: self.action,
            notice: self.notice,
        })
    }
}

/// An entry by which an incident moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MovedAt {
    /// Its index.
    pub index: u64,
    /// Its leaf hash.
    pub leaf: Digest,
    /// When, in microseconds since 1970.
    pub wall_us: u64,
    /// What it says.
    pub state: IncidentState,
}

/// An incident with all its entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IncidentReport {
    /// Its id.
    pub id: IncidentId,
    /// Index of its first entry.
    pub index: u64,
    /// Leaf hash of its first entry.
    pub leaf: Digest,
    /// When it was detected, in microseconds since 1970.
    pub detected_us: u64,
    /// What was detected.
    pub detected: Detected,
    /// What became of it, in order.
    pub moves: Vec<MovedAt>,
}

/// What an incident's first entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Detected {
    /// An isolation fault in a response.
    Fault {
        /// Whose request it was: who may have received what is another's.
        tenant: TenantRef,
        /// What was found.
        incident: Incident,
    },
    /// An auditor or a witness that has fallen behind: nobody's request.
    Lag(CosignerLag),
    /// A detector that does not work: nobody's request.
    SelfTest(SelfTest),
}

impl IncidentReport {
    /// Where it stands.
    #[must_use]
    pub fn stage(&self) -> IncidentStage {
        self.moves.last().map_or(IncidentStage::Detected, |moved| moved.state.state)
    }
}

/// An entry about an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IncidentEntry {
    /// Its index.
    pub index: u64,
    /// Its leaf hash.
    pub leaf: Digest,
    /// Which incident.
    pub incident: IncidentId,
}

/// On which side of an incident a tenant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IncidentSide {
    /// Its request was stopped: it may have received something.
    Recipient,
    /// It was its page.
    Victim,
}

impl AuditLog {
    /// Moves an incident. Durable when it returns. Who may do so is the caller's to decide.
    ///
    /// # Errors
    /// [`AppendError::NoIncident`], [`AppendError::IncidentMove`] for a move that may not be made, and those of the log.
    ///
    /// # Cancel safety
    /// Once polled, the entry is written even if the future is dropped.
    pub async fn move_incident(&self, wanted: IncidentMove) -> Result<Recorded, AppendError> {
        let shared = &self.shared;
        let tenant = lock(&shared.incidents).known.get(&wanted.incident.0).map(|known| known.tenant);
        let tenant = tenant.ok_or(AppendError::NoIncident)?;
        let uuid = *random().map_err(|_| failed("no random bytes"))?;
        let draft = Draft { uuid, tenant, body: wanted.body(), trace: None };
        let (reply, placed) = oneshot::channel();
        shared.queue.push_new(Queued { draft, reply: Reply::Sealed(reply) })?;
        let placed = placed.await.map_err(|_| AppendError::Closed)??;
        Ok(Recorded { index: placed.index, leaf_hash: Digest(placed.leaf.0) })
    }

    /// A person as entries name it: a keyed hash of its name, which no tenant's is.
    #[must_use]
    pub fn actor(&self, name: &TenantName) -> ActorRef {
        self.shared.keys.actor_ref(name)
    }

    /// Where an incident stands; `None` when there is none with that id.
    #[must_use]
    pub fn incident_stage(&self, incident: IncidentId) -> Option<IncidentStage> {
        lock(&self.shared.incidents).life(&incident.0).map(|life| life.stage)
    }

    /// Durable entries about incidents from this index on, in order, `entries_max` at most. Reads no file.
    #[must_use]
    pub fn incident_entries_from(&self, first: u64, entries_max: usize) -> Vec<IncidentEntry> {
        let incidents = lock(&self.shared.incidents);
        let mut found: Vec<IncidentEntry> = incidents
            .known
            .iter()
            .flat_map(|(id, known)| known.entries.iter().map(|entry| (IncidentId(*id), *entry)))
            .filter(|(_, (index, _))| *index >= first)
            .map(|(incident, (index, leaf))| IncidentEntry { index, leaf, incident })
            .collect();
        drop(incidents);
        found.sort_unstable_by_key(|entry| entry.index);
        found.truncate(entries_max);
        found
    }

    /// The newest incidents, [`REPORTED_MAX`] at most, the oldest of them first; how many there are in all. Reads files.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn incident_reports(&self) -> Result<(Vec<IncidentReport>, usize), LookupError> {
        self.reports(|_| true)
    }

    /// One incident. Reads files.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn incident_report(&self, incident: IncidentId) -> Result<Option<IncidentReport>, LookupError> {
        let known = lock(&self.shared.incidents).known.get(&incident.0).cloned();
        known.map_or(Ok(None), |known| self.report(incident, &known))
    }

    /// The newest incidents in which this principal's tenant is on some side, and on which. Reads files.
    ///
    /// # Errors
    /// [`LookupError`].
    pub fn incidents_of(&self, principal: &Principal) -> Result<Vec<(IncidentSide, IncidentReport)>, LookupError> {
        let tenant = self.shared.keys.tenant_ref(principal.name());
        let (reports, _) = self.reports(|known| known.tenant == Some(tenant) || known.victim == Some(tenant))?;
        let side = |report: IncidentReport| {
            let received = matches!(report.detected, Detected::Fault { tenant: of, .. } if of == tenant);
            (if received { IncidentSide::Recipient } else { IncidentSide::Victim }, report)
        };
        Ok(reports.into_iter().map(side).collect())
    }

    fn reports(&self, wanted: impl Fn(&Known) -> bool) -> Result<(Vec<IncidentReport>, usize), LookupError> {
        let (known, total) = {
            let incidents = lock(&self.shared.incidents);
            let of = |id: &[u8; 16]| Some((*id, incidents.known.get(id).filter(|known| wanted(known))?.clone()));
            let known: BTreeMap<u64, ([u8; 16], Known)> =
                incidents.order.iter().filter_map(of).map(|(id, known)| (first(&known), (id, known))).collect();
            let total = known.len();
            (known.into_values().skip(total.saturating_sub(REPORTED_MAX)).collect::<Vec<_>>(), total)
        };
        let mut reports = Vec::with_capacity(known.len());
        for (id, known) in known {
            reports.extend(self.report(IncidentId(id), &known)?);
        }
        Ok((reports, total))
    }

    /// What the entries of an incident say, read from the segments and compared with what was committed.
    fn report(&self, id: IncidentId, known: &Known) -> Result<Option<IncidentReport>, LookupError> {
        let mut report: Option<IncidentReport> = None;
        for (index, leaf) in known.entries.iter().copied() {
            let Some(entry) = self.shared.index.entry(index)? else { continue };
            let wall_us = entry.head.wall_us;
            let detected = match (entry.body, known.tenant, &mut report) {
                (Body::Incident(incident), Some(tenant), None) => Detected::Fault { tenant, incident },
                (Body::Lag(lag), _, None) => Detected::Lag(lag),
                (Body::SelfTest(test), _, None) => Detected::SelfTest(test),
                (Body::IncidentState(state), _, Some(report)) => {
                    report.moves.push(MovedAt { index, leaf, wall_us, state });
                    continue;
                }
                _ => continue,
            };
            report = Some(IncidentReport { id, index, leaf, detected_us: wall_us, detected, moves: Vec::new() });
        }
        Ok(report)
    }
}

fn first(known: &Known) -> u64 {
    known.entries.first().map_or(0, |(index, _)| *index)
}
