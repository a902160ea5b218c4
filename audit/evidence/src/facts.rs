//! The figures of a report, as a fold over the tenant's entries and nothing else. Whoever holds the bundle makes them anew:
//! nothing is believed because it stands in the report.

use crate::WithheldIncident;
use audit_provenance::{
    Body, EngineFaultClass, Entry, Handover, IncidentStage, IsolationAudit, Opened, Replay, ReplayOutcome, ReplayTime,
    SealReason, Sealing,
};
use policies_domain::{Digest, RequestId};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Parts of the time in plots.
const PARTS: u64 = 30;
/// Changes of a digest, and incidents or audits, that are listed; more are counted.
pub(crate) const LISTED_MAX: usize = 200;

/// An entry in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// Its index.
    pub index: u64,
    /// Its leaf hash.
    pub leaf: Digest,
    /// What it says.
    pub entry: Entry,
}

/// The tenant's entries in the time that was asked for, and whether the log shows that there are no others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// Those that are given, in order.
    pub entries: Vec<Placed>,
    /// Index and leaf hash of those that are not.
    pub withheld: Vec<(u64, Digest)>,
    /// The tenant's entry before is shown to be older, or there is none.
    pub begin_is_closed: bool,
    /// The tenant's entry after is shown to be newer.
    pub end_is_closed: bool,
}

/// All figures.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Facts {
    /// How the list is known to be complete.
    pub completeness: Completeness,
    /// Entries by kind.
    pub kinds: BTreeMap<&'static str, u64>,
    /// What became of requests.
    pub responses: Responses,
    /// Pages that responses read.
    pub pages: Pages,
    /// Which checks were on.
    pub coverage: Coverage,
    /// Times of responses that came to their end.
    pub latency: Latency,
    /// Responses that were computed again.
    pub replays: Replays,
    /// Incidents of this tenant's requests.
    pub incidents: Vec<IncidentFacts>,
    /// More of them.
    pub incidents_left_out: u64,
    /// Not closed under the checkpoint.
    pub incidents_open: u64,
    /// Failures of the engine that are no incidents, by class.
    pub faults: BTreeMap<&'static str, u64>,
    /// What this tenant said as a probe.
    pub audits: Vec<AuditFacts>,
    /// Digests in force, and when.
    pub in_force: InForce,
    /// The time in parts.
    pub parts: Vec<Part>,
}

/// How complete the list is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Completeness {
    /// Entries in the time.
    pub entries: u64,
    /// Of those, withheld: they name another tenant.
    pub withheld: u64,
    /// The tenant's number of the first...
    pub first_number: u64,
    /// ...and of the last one; there are all between.
    pub last_number: u64,
    /// When the first was written.
    pub first_us: u64,
    /// When the last was.
    pub last_us: u64,
    /// No older entry of the tenant belongs to the time.
    pub begin_is_closed: bool,
    /// No newer one does. Otherwise that is the operator's word, until a later entry shows it.
    pub end_is_closed: bool,
}

/// What became of requests.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Responses {
    /// Requests that were opened in the time.
    pub opened: u64,
    /// Responses that ended in it.
    pub sealed: u64,
    /// Of those, opened before it.
    pub opened_before: u64,
    /// Opened and not ended in it.
    pub not_sealed: u64,
    /// By how they ended.
    pub ends: BTreeMap<&'static str, u64>,
    /// Tokens of prompts.
    pub prompt_tokens: u64,
    /// Tokens that were sampled.
    pub completion_tokens: u64,
    /// Payloads that were sent.
    pub payloads: u64,
}

/// Pages that responses read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// The tenant's own.
    pub own: u64,
    /// Everybody's.
    pub public: u64,
    /// Of others. Each is an incident.
    pub foreign: u64,
    /// Responses that read one and were not stopped. It is 0, or the log is refused.
    pub released_after_foreign: u64,
}

/// Which checks responses went through.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Coverage {
    /// Every step's pages were compared with the label before its text was sent.
    pub label_gate: u64,
    /// The kernels compared page tags while reading.
    pub kernel_tags: u64,
    /// The trace of pages is committed to.
    pub trace: u64,
    /// A replay digest is committed to.
    pub replay_digest: u64,
    /// How pages were handed over.
    pub handover: BTreeMap<&'static str, u64>,
}

/// Times, in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// In the queue.
    pub queued: Quantiles,
    /// In prefill.
    pub prefill: Quantiles,
    /// In decode.
    pub decode: Quantiles,
}

/// Of a list of times, exactly.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Quantiles {
    /// How many.
    pub count: u64,
    /// Half are at most this.
    pub p50_us: u64,
    /// Nine of ten are.
    pub p90_us: u64,
    /// Ninety-nine of a hundred are.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Responses that were computed again, alone.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Replays {
    /// The same bits.
    pub same: u64,
    /// Others.
    pub different: u64,
    /// Due and not done.
    pub not_done: u64,
    /// Of all, before any of the answer left.
    pub before_release: u64,
    /// Tokens that were computed again.
    pub tokens: u64,
    /// Processor time that it took.
    pub cpu_us: u64,
}

/// An incident of this tenant's request: what its own chain says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IncidentFacts {
    /// Its id.
    pub id: String,
    /// Index of the entry, when it was detected in the time.
    pub entry: Option<u64>,
    /// When it was detected.
    pub detected_us: Option<u64>,
    /// What was detected.
    pub class: Option<String>,
    /// How bad it is.
    pub severity: Option<String>,
    /// Whether its entry is withheld, so that class, severity, time, request and bytes are the operator's word.
    pub withheld: bool,
    /// The request.
    pub request: Option<String>,
    /// Payload bytes that had left.
    pub bytes_released: Option<u64>,
    /// Where it stands at the end of the time.
    pub state: &'static str,
    /// What became of it.
    pub moves: Vec<MoveFacts>,
}

/// A move of an incident. Persons are not named.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MoveFacts {
    /// Index of the entry.
    pub entry: u64,
    /// When.
    pub at_us: u64,
    /// Where to.
    pub state: &'static str,
    /// Persons who said so; none is the program.
    pub persons: u64,
    /// Whether the digest of evidence is there.
    pub evidence: bool,
    /// What was done.
    pub action: &'static str,
}

/// What a probe said that it measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AuditFacts {
    /// Index of the entry.
    pub entry: u64,
    /// When.
    pub at_us: u64,
    /// What came out.
    pub verdict: &'static str,
    /// Comparisons.
    pub arms: u64,
    /// Strength of the weakest positive control.
    pub power: u64,
    /// Strength of the strongest arm.
    pub strongest: u64,
    /// SHA-256 of the result.
    pub result: String,
}

/// Digests in force, in the order in which they were first seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InForce {
    /// Model files.
    pub models: Vec<Used>,
    /// All that decides an answer's bits.
    pub fingerprints: Vec<Used>,
    /// Programs.
    pub builds: Vec<Used>,
    /// Rule sets.
    pub rules: Vec<Used>,
    /// Epochs of the tenant's commitment key.
    pub epochs: Vec<u64>,
    /// Runs of the program.
    pub runs: u64,
}

/// A digest, and the requests under it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Used {
    /// In hexadecimal digits.
    pub digest: String,
    /// Requests.
    pub requests: u64,
    /// When the first was opened.
    pub first_us: u64,
    /// When the last was.
    pub last_us: u64,
}

/// A part of the time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Part {
    /// It begins here.
    pub from_us: u64,
    /// Responses that came to their end.
    pub answered: u64,
    /// Clients that left, engines that failed, crashes.
    pub broken_off: u64,
    /// Stopped by an isolation fault.
    pub stopped: u64,
    /// Computed again with the same bits.
    pub replayed: u64,
}

/// Makes the figures. What the operator says of withheld entries is taken as its word.
#[must_use]
pub fn facts(span: &Span, withheld: &[WithheldIncident]) -> Facts {
    let mut fold = Fold::new(span);
    withheld.iter().for_each(|incident| fold.withheld(incident));
    for placed in &span.entries {
        fold.take(placed);
    }
    fold.finish(span)
}

#[derive(Default)]
struct Fold {
    facts: Facts,
    opened: HashSet<RequestId>,
    sealed: HashSet<RequestId>,
    times: [Vec<u64>; 3],
    incidents: BTreeMap<u64, IncidentFacts>,
    places: HashMap<[u8; 16], u64>,
    epochs: BTreeSet<u64>,
    runs: BTreeSet<[u8; 16]>,
    begin_us: u64,
    part_us: u64,
}

impl Fold {
    fn new(span: &Span) -> Self {
        let time = |placed: Option<&Placed>| placed.map_or(0, |placed| placed.entry.head.wall_us);
        let begin_us = time(span.entries.first());
        let part_us = (time(span.entries.last()).saturating_sub(begin_us) / PARTS).saturating_add(1);
        let part = |part: u64| Part { from_us: begin_us.saturating_add(part * part_us), ..Part::default() };
        let facts = Facts { parts: (0..PARTS).map(part).collect(), ..Facts::default() };
        Self { facts, begin_us, part_us, ..Self::default() }
    }

    fn withheld(&mut self, incident: &WithheldIncident) {
        let mut id = [0; 16];
        if hex::decode_to_slice(&incident.id, &mut id).is_ok() {
            self.places.insert(id, incident.entry);
        }
        let facts = IncidentFacts {
            id: incident.id.clone(),
            entry: Some(incident.entry),
            detected_us: Some(incident.detected_us),
            class: Some(incident.class.clone()),
            severity: Some(incident.severity.clone()),
            withheld: true,
            request: Some(incident.request.clone()),
            bytes_released: Some(incident.bytes_released),
            state: IncidentStage::Detected.as_str(),
            moves: Vec::new(),
        };
        self.incidents.insert(incident.entry, facts);
    }

    fn part(&mut self, wall_us: u64) -> Option<&mut Part> {
        let part = wall_us.saturating_sub(self.begin_us) / self.part_us.max(1);
        self.facts.parts.get_mut(usize::try_from(part.min(PARTS - 1)).ok()?)
    }

    fn take(&mut self, placed: &Placed) {
        let (index, head) = (placed.index, &placed.entry.head);
        *self.facts.kinds.entry(placed.entry.body.name()).or_default() += 1;
        self.runs.insert(head.boot);
        match &placed.entry.body {
            Body::Opened(opened) => self.opened(head.uuid, head.wall_us, opened),
            Body::Sealed(sealed) => self.sealed(head.wall_us, sealed),
            Body::Incident(incident) => {
                let facts = IncidentFacts {
                    id: hex::encode(incident.incident),
                    entry: Some(index),
                    detected_us: Some(head.wall_us),
                    class: Some(incident.class.as_str().to_owned()),
                    severity: Some(incident.severity_name().to_owned()),
                    withheld: false,
                    request: Some(incident.request.to_string()),
                    bytes_released: Some(incident.bytes_released),
                    state: IncidentStage::Detected.as_str(),
                    moves: Vec::new(),
                };
                self.places.insert(incident.incident, index);
                self.incidents.insert(index, facts);
            }
            Body::IncidentState(state) => {
                // One that was detected before the time is known by what became of it alone.
                let place = *self.places.entry(state.incident).or_insert(index);
                let incident = self.incidents.entry(place).or_insert_with(|| IncidentFacts {
                    id: hex::encode(state.incident),
                    entry: None,
                    detected_us: None,
                    class: None,
                    severity: None,
                    withheld: false,
                    request: None,
                    bytes_released: None,
                    state: state.state.as_str(),
                    moves: Vec::new(),
                });
                incident.state = state.state.as_str();
                incident.moves.push(MoveFacts {
                    entry: index,
                    at_us: head.wall_us,
                    state: state.state.as_str(),
                    persons: u64::from(state.actor.is_some()) + u64::from(state.second.is_some()),
                    evidence: state.evidence.is_some(),
                    action: state.action.as_str(),
                });
            }
            Body::Fault(fault) => {
                let class = match fault.class {
                    EngineFaultClass::NotANumber => "not_a_number",
                    EngineFaultClass::Internal => "internal",
                };
                *self.facts.faults.entry(class).or_default() += 1;
            }
            Body::Audit(audit) => self.audit(index, head.wall_us, audit),
            Body::Replay(replay) => self.replay(head.wall_us, replay),
            _ => {}
        }
    }

    fn opened(&mut self, uuid: [u8; 16], wall_us: u64, opened: &Opened) {
        self.facts.responses.opened += 1;
        self.opened.insert(RequestId::from_bytes(uuid));
        self.epochs.insert(opened.epoch);
        let force = &mut self.facts.in_force;
        for (list, digest) in [
            (&mut force.models, Some(opened.model)),
            (&mut force.fingerprints, opened.fingerprint),
            (&mut force.builds, Some(opened.build)),
            (&mut force.rules, Some(opened.rules)),
        ] {
            let Some(digest) = digest.map(|digest| digest.to_string()) else { continue };
            let room = list.len() < LISTED_MAX;
            match list.iter_mut().find(|used| used.digest == digest) {
                Some(used) => (used.requests, used.last_us) = (used.requests + 1, wall_us),
                None if room => list.push(Used { digest, requests: 1, first_us: wall_us, last_us: wall_us }),
                None => {}
            }
        }
    }

    fn sealed(&mut self, wall_us: u64, sealed: &Sealing) {
        let (answered, stopped) =
            (matches!(sealed.reason, SealReason::Stop | SealReason::Length), sealed.reason == SealReason::Isolation);
        let responses = &mut self.facts.responses;
        responses.sealed += 1;
        responses.opened_before += u64::from(!self.opened.contains(&sealed.request));
        *responses.ends.entry(sealed.reason.as_str()).or_default() += 1;
        responses.prompt_tokens = responses.prompt_tokens.saturating_add(sealed.prompt_tokens);
        responses.completion_tokens = responses.completion_tokens.saturating_add(sealed.completion_tokens);
        responses.payloads = responses.payloads.saturating_add(sealed.chunks);
        self.sealed.insert(sealed.request);
        let pages = &mut self.facts.pages;
        pages.own = pages.own.saturating_add(sealed.pages.own);
        pages.public = pages.public.saturating_add(sealed.pages.public);
        pages.foreign = pages.foreign.saturating_add(sealed.pages.foreign);
        pages.released_after_foreign += u64::from(sealed.pages.foreign > 0 && !stopped);
        let coverage = &mut self.facts.coverage;
        coverage.label_gate += u64::from(sealed.coverage.label_gate);
        coverage.kernel_tags += u64::from(sealed.coverage.kernel_tags);
        coverage.trace += u64::from(sealed.trace.is_some());
        coverage.replay_digest += u64::from(sealed.replay.is_some());
        let handover: Handover = sealed.coverage.handover;
        *coverage.handover.entry(handover.as_str()).or_default() += 1;
        if answered {
            let times = [sealed.queued_us, sealed.prefill_us, sealed.decode_us];
            self.times.iter_mut().zip(times).for_each(|(list, time)| list.push(time));
        }
        if let Some(part) = self.part(wall_us) {
            part.answered += u64::from(answered);
            part.stopped += u64::from(stopped);
            part.broken_off += u64::from(!answered && !stopped);
        }
    }

    fn replay(&mut self, wall_us: u64, replay: &Replay) {
        let replays = &mut self.facts.replays;
        match replay.outcome {
            ReplayOutcome::Same => replays.same += 1,
            ReplayOutcome::Different => replays.different += 1,
            ReplayOutcome::NotDone => replays.not_done += 1,
        }
        replays.before_release += u64::from(replay.when == ReplayTime::BeforeRelease);
        replays.tokens = replays.tokens.saturating_add(replay.tokens);
        replays.cpu_us = replays.cpu_us.saturating_add(replay.cpu_us);
        let same = replay.outcome == ReplayOutcome::Same;
        if let Some(part) = self.part(wall_us) {
            part.replayed += u64::from(same);
        }
    }

    fn audit(&mut self, index: u64, wall_us: u64, audit: &IsolationAudit) {
        if self.facts.audits.len() < LISTED_MAX {
            self.facts.audits.push(AuditFacts {
                entry: index,
                at_us: wall_us,
                verdict: audit.verdict.as_str(),
                arms: audit.arms,
                power: audit.power,
                strongest: audit.strongest,
                result: audit.result.to_string(),
            });
        }
    }

    fn finish(mut self, span: &Span) -> Facts {
        let number = |placed: &Placed| placed.entry.head.tenant.map_or(0, |link| link.number);
        if let (Some(first), Some(last)) = (span.entries.first(), span.entries.last()) {
            self.facts.completeness = Completeness {
                entries: (span.entries.len() + span.withheld.len()) as u64,
                withheld: span.withheld.len() as u64,
                first_number: number(first),
                last_number: number(last),
                first_us: first.entry.head.wall_us,
                last_us: last.entry.head.wall_us,
                begin_is_closed: span.begin_is_closed,
                end_is_closed: span.end_is_closed,
            };
        }
        self.facts.responses.not_sealed = self.opened.difference(&self.sealed).count() as u64;
        let [queued, prefill, decode] = self.times.map(quantiles);
        self.facts.latency = Latency { queued, prefill, decode };
        let closed = [IncidentStage::Resolved.as_str(), IncidentStage::FalsePositive.as_str()];
        self.facts.incidents_open =
            self.incidents.values().filter(|incident| !closed.contains(&incident.state)).count() as u64;
        self.facts.incidents_left_out = self.incidents.len().saturating_sub(LISTED_MAX) as u64;
        self.facts.incidents = self.incidents.into_values().take(LISTED_MAX).collect();
        self.facts.in_force.epochs = self.epochs.into_iter().collect();
        self.facts.in_force.runs = self.runs.len() as u64;
        self.facts
    }
}

/// The smallest time that so many of all are at most.
fn quantiles(mut times: Vec<u64>) -> Quantiles {
    times.sort_unstable();
    let count = times.len();
    let at = |hundredths: usize| {
        let rank = (count * hundredths).div_ceil(100).max(1);
        times.get(rank - 1).copied().unwrap_or_default()
    };
    Quantiles { count: count as u64, p50_us: at(50), p90_us: at(90), p99_us: at(99), max_us: at(100) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_times_of_the_list() {
        assert_eq!(quantiles(Vec::new()), Quantiles::default());
        let one = quantiles(vec![7]);
        assert_eq!((one.count, one.p50_us, one.p99_us, one.max_us), (1, 7, 7, 7));
        let hundred = quantiles((1..=100).rev().collect());
        assert_eq!((hundred.p50_us, hundred.p90_us, hundred.p99_us, hundred.max_us), (50, 90, 99, 100));
    }
}
