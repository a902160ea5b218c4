//! What a log's entries say, taken in order: every tenant's chain, every pair of a request, incidents, keys, what is kept.

use super::{LogRefusal, LogReport};
use crate::rotation::KeysNamed;
use crate::self_tests::{SelfTestIncidents, SelfTests};
use audit_provenance::{
    Body, Entry, EntryVersion, IncidentClass, IncidentLife, Keeping, Replay, ReplayOutcome, SealReason, TenantRef,
};
use audit_tlog::{Checkpoint, Edge, Hash, VerifierKey};
use policies_domain::{Digest, RequestId};
use std::collections::{BTreeMap, HashMap};

/// An opened and a sealed one.
const ENTRIES_OF_A_REQUEST: u64 = 2;
/// Room for them takes no memory before it is used.
const REQUESTS_EXPECTED_MAX: usize = 1 << 22;

/// What the entries say, taken in order.
pub(super) struct Story {
    pub(super) key: VerifierKey,
    pub(super) keys: KeysNamed,
    version: EntryVersion,
    tenants: HashMap<TenantRef, (u64, Digest)>,
    /// Requests without an end. Few, so that they are near.
    open: HashMap<RequestId, Request>,
    /// All others, which is nearly all there are: as little as can be is kept of each.
    ended: HashMap<RequestId, Ended>,
    /// Of every entry, by index: what a later one says of it is compared.
    leaves: Vec<Digest>,
    kinds: Counts,
    reasons: Counts,
    incidents: HashMap<[u8; 16], (Option<TenantRef>, IncidentLife)>,
    self_test_incidents: SelfTestIncidents,
    keeping: Keeping,
    report: LogReport,
}

struct Request {
    tenant: TenantRef,
    opened: (u64, Digest),
    incidents: u64,
    faults: u64,
    /// A replay of it came out different.
    differs: bool,
}

/// A request whose response is sealed.
struct Ended {
    tenant: TenantRef,
    /// Index of the opened entry, and of the sealed one.
    opened: u64,
    sealed: u64,
    has_replay_digest: bool,
    differs: bool,
    replayed: bool,
}

impl Request {
    fn opened(tenant: TenantRef, opened: (u64, Digest)) -> Self {
        Self { tenant, opened, incidents: 0, faults: 0, differs: false }
    }

    fn is(&self, tenant: TenantRef, opened: (u64, Digest)) -> bool {
        self.tenant == tenant && self.opened == opened
    }
}

/// Counts of names that are constants: there are few, and each is one place in memory.
#[derive(Default)]
struct Counts(Vec<(&'static str, u64)>);

impl Counts {
    fn add(&mut self, name: &'static str) {
        match self.0.iter_mut().find(|(known, _)| std::ptr::eq(*known, name)) {
            Some((_, count)) => *count += 1,
            None => self.0.push((name, 1)),
        }
    }

    fn by_name(&self) -> BTreeMap<&'static str, u64> {
        let mut counts = BTreeMap::new();
        self.0.iter().for_each(|(name, count)| *counts.entry(*name).or_default() += count);
        counts
    }
}

impl Story {
    pub(super) fn new(key: &VerifierKey) -> Self {
        let report = LogReport {
            checkpoint: Checkpoint { origin: String::new(), size: 0, root: Edge::new().root() },
            witnessed: None,
            signed_by: Vec::new(),
            kinds: BTreeMap::new(),
            reasons: BTreeMap::new(),
            audits: BTreeMap::new(),
            replays: BTreeMap::new(),
            self_tests: SelfTests::default(),
            incidents: BTreeMap::new(),
            erasures: (0, 0),
            holds: 0,
            pruned_before: 0,
            tenants: 0,
            unsealed: 0,
            pages: [0; 3],
            wall_us: (0, 0),
        };
        let (keys, tenants, open, ended, leaves, kinds, reasons, incidents, keeping) = Default::default();
        let (key, version, self_test_incidents) = (key.clone(), EntryVersion::V1, SelfTestIncidents::default());
        Self {
            key,
            keys,
            version,
            tenants,
            open,
            ended,
            leaves,
            kinds,
            reasons,
            incidents,
            self_test_incidents,
            keeping,
            report,
        }
    }

    /// Makes room for the requests of so many entries. A checkpoint may say anything: for some of them, then.
    pub(super) fn expect(&mut self, entries: u64) {
        let requests = usize::try_from(entries / ENTRIES_OF_A_REQUEST).unwrap_or(REQUESTS_EXPECTED_MAX);
        self.ended.reserve(requests.min(REQUESTS_EXPECTED_MAX));
    }

    pub(super) fn entry(
        &mut self,
        index: u64,
        leaf: Hash,
        before: Option<Hash>,
        entry: &Entry,
    ) -> Result<(), LogRefusal> {
        if entry.head.version < self.version {
            return Err(LogRefusal::Version { index });
        }
        self.version = entry.head.version;
        self.kinds.add(entry.body.name());
        if index == 0 {
            self.report.wall_us.0 = entry.head.wall_us;
        }
        self.report.wall_us.1 = entry.head.wall_us;
        let leaf = Digest(leaf.0);
        self.leaves.push(leaf);
        if let Some(link) = entry.head.tenant {
            let (wanted, previous) =
                self.tenants.insert(link.tenant, (link.number.saturating_add(1), leaf)).unwrap_or((0, Digest([0; 32])));
            if link.number != wanted {
                return Err(LogRefusal::TenantNumber { index, tenant: link.tenant, number: link.number, wanted });
            }
            if link.previous != previous {
                return Err(LogRefusal::TenantLink { index, tenant: link.tenant });
            }
        }
        self.keeping.note(index, leaf, entry).map_err(|source| LogRefusal::Keeping { index, source })?;
        self.keys.note(index, before, entry).map_err(|source| match entry.body {
            Body::Genesis { .. } => LogRefusal::Genesis { index },
            _ => LogRefusal::Rotation { index, source },
        })?;
        let tenant = entry.head.tenant.map(|link| link.tenant).ok_or(LogRefusal::NoTenant { index });
        match &entry.body {
            Body::Genesis { origin, schema, .. } => {
                // Whether its key leads to the given one shows at the end.
                let ours = origin == self.key.name()
                    && self.keys.chain().is_some_and(|keys| keys.current().name() == origin.as_str());
                if index != 0 || !ours || !schema.is_some_and(|schema| entry.head.version.knows_schema(schema)) {
                    return Err(LogRefusal::Genesis { index });
                }
            }
            _ if index == 0 => return Err(LogRefusal::Genesis { index }),
            Body::Opened(_) => {
                let request = RequestId::from_bytes(entry.head.uuid);
                let new = Request::opened(tenant?, (index, leaf));
                if self.ended.contains_key(&request) || self.open.insert(request, new).is_some() {
                    return Err(LogRefusal::OpenedTwice { index, request });
                }
            }
            Body::Incident(incident) => {
                let (tenant, opened) = (tenant?, (incident.opened_index, incident.opened_leaf));
                let replay = incident.class == IncidentClass::Replay;
                match self.ended.get_mut(&incident.request) {
                    // What is computed again is found to differ when it is sealed, or before any of it left.
                    Some(ended) if replay && ended.tenant == tenant && is_at(&self.leaves, ended.opened, opened) => {
                        ended.differs = true;
                    }
                    _ => {
                        let request = self.open_request(index, tenant, incident.request, opened)?;
                        request.differs |= replay;
                        request.incidents += 1;
                    }
                }
                self.detected(index, incident.incident, Some(tenant), leaf)?;
            }
            Body::Lag(lag) => {
                if tenant.is_ok() {
                    return Err(LogRefusal::Lag { index });
                }
                self.detected(index, lag.incident, None, leaf)?;
            }
            Body::SelfTest(test) => {
                if tenant.is_ok() {
                    return Err(LogRefusal::SelfTest { index });
                }
                self.report.self_tests.take(entry.head.wall_us, test);
                if let Some(incident) = self.self_test_incidents.begins(test) {
                    self.detected(index, incident, None, leaf)?;
                }
            }
            Body::Fault(fault) => {
                let opened = (fault.opened_index, fault.opened_leaf);
                self.open_request(index, tenant?, fault.request, opened)?.faults += 1;
            }
            Body::Sealed(sealed) => {
                let opened = (sealed.opened_index, sealed.opened_leaf);
                let tenant = tenant?;
                let request = self.open.remove(&sealed.request);
                let request = request.filter(|request| request.is(tenant, opened));
                let request = request.ok_or(LogRefusal::Pairing { index })?;
                let (has_replay_digest, differs) = (sealed.replay.is_some(), request.differs);
                let opened = request.opened.0;
                let ended = Ended { tenant, opened, sealed: index, has_replay_digest, differs, replayed: false };
                self.ended.insert(sealed.request, ended);
                let stopped = sealed.reason == SealReason::Isolation;
                // A crash may come between an incident and the end of its request.
                if stopped != (request.incidents > 0) && sealed.reason != SealReason::Crash {
                    return Err(LogRefusal::Incident { index });
                }
                let failed = matches!(sealed.reason, SealReason::Error | SealReason::Isolation | SealReason::Crash);
                if request.faults > 0 && !failed {
                    return Err(LogRefusal::Fault { index });
                }
                let foreign = sealed.pages.foreign;
                if foreign > 0 && !stopped {
                    return Err(LogRefusal::Pages { index, foreign });
                }
                self.reasons.add(sealed.reason.as_str());
                let counts = [sealed.pages.own, sealed.pages.public, foreign];
                self.report.pages.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
            }
            Body::Audit(audit) => {
                tenant?;
                *self.report.audits.entry(audit.verdict.as_str()).or_default() += 1;
            }
            Body::Replay(replay) => self.replay(index, tenant?, replay)?,
            Body::IncidentState(state) => {
                let known = self.incidents.get_mut(&state.incident).filter(|(of, _)| *of == tenant.ok());
                let (_, life) = known.ok_or(LogRefusal::NoIncident { index })?;
                *life = life.after(state, leaf).map_err(|source| LogRefusal::IncidentMove { index, source })?;
            }
            // Looked at above.
            Body::Erasure(_) | Body::Erased(_) | Body::Hold(_) | Body::Release(_) | Body::Prune(_) => {}
            Body::KeyRotation(_) | Body::Recovered { .. } | Body::Heartbeat => {}
        }
        Ok(())
    }

    fn detected(
        &mut self,
        index: u64,
        incident: [u8; 16],
        tenant: Option<TenantRef>,
        leaf: Digest,
    ) -> Result<(), LogRefusal> {
        match self.incidents.insert(incident, (tenant, IncidentLife::detected(leaf))) {
            Some(_) => Err(LogRefusal::NoIncident { index }),
            None => Ok(()),
        }
    }

    /// One of each response at most, behind its end; and what came out different has its incident.
    fn replay(&mut self, index: u64, tenant: TenantRef, replay: &Replay) -> Result<(), LogRefusal> {
        let wrong = LogRefusal::Replay { index };
        let Some(ended) = self.ended.get_mut(&replay.request).filter(|ended| ended.tenant == tenant) else {
            return Err(wrong);
        };
        let is_of = is_at(&self.leaves, ended.sealed, (replay.sealed_index, replay.sealed_leaf));
        let done = replay.outcome != ReplayOutcome::NotDone;
        let differs = replay.outcome == ReplayOutcome::Different;
        if !is_of || ended.replayed || done && !ended.has_replay_digest || differs != ended.differs {
            return Err(wrong);
        }
        ended.replayed = true;
        *self.report.replays.entry(replay.outcome.as_str()).or_default() += 1;
        Ok(())
    }

    fn open_request(
        &mut self,
        index: u64,
        tenant: TenantRef,
        request: RequestId,
        opened: (u64, Digest),
    ) -> Result<&mut Request, LogRefusal> {
        self.open.get_mut(&request).filter(|request| request.is(tenant, opened)).ok_or(LogRefusal::Pairing { index })
    }

    pub(super) fn report(mut self, checkpoint: Checkpoint) -> LogReport {
        self.report.checkpoint = checkpoint;
        self.report.tenants = self.tenants.len() as u64;
        self.report.unsealed = self.open.len() as u64;
        (self.report.kinds, self.report.reasons) = (self.kinds.by_name(), self.reasons.by_name());
        for (_, _, erasure) in self.keeping.erasures() {
            self.report.erasures.0 += 1;
            self.report.erasures.1 += u64::from(erasure.done == 0);
        }
        self.report.holds = self.keeping.holds().len() as u64;
        self.report.pruned_before = self.keeping.pruned_before();
        for (_, life) in self.incidents.values() {
            *self.report.incidents.entry(life.stage.as_str()).or_default() += 1;
        }
        self.report
    }
}

/// Whether the entry with this index, and this leaf hash, is the one that is meant.
fn is_at(leaves: &[Digest], index: u64, meant: (u64, Digest)) -> bool {
    let leaf = usize::try_from(index).ok().and_then(|index| leaves.get(index));
    meant.0 == index && leaf == Some(&meant.1)
}
