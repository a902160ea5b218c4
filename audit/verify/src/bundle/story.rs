//! What the entries of one time say together, as far as they reach: what began before it is not known, and nothing is held
//! against it.

use super::BundleRefusal;
use audit_evidence::{Placed, Span, Statement, WithheldIncident};
use audit_provenance::{Body, IncidentClass, IncidentLife, Replay, ReplayOutcome, SealReason, Sealing};
use policies_domain::{Digest, RequestId};
use std::collections::HashMap;

#[derive(Default)]
struct Story {
    requests: HashMap<RequestId, Request>,
    incidents: HashMap<[u8; 16], IncidentLife>,
}

/// A request of which something is known.
#[derive(Default)]
struct Request {
    opened: Option<(u64, Digest)>,
    sealed: Option<(u64, Digest, bool)>,
    stopped: bool,
    failed: bool,
    differs: bool,
    replayed: bool,
}

pub(super) fn check(span: &Span, statement: &Statement) -> Result<(), BundleRefusal> {
    let mut story = Story::default();
    for (incident, (index, leaf)) in statement.withheld.iter().zip(&span.withheld) {
        let (id, request) =
            withheld(incident).ok_or(BundleRefusal::Stated { field: "an incident that is withheld" })?;
        story.requests.entry(request).or_default().stopped = true;
        // What becomes of it names the leaf that is withheld: so it is shown which incident that is.
        if story.incidents.insert(id, IncidentLife::detected(*leaf)).is_some() {
            return Err(BundleRefusal::Pairing { index: *index });
        }
    }
    span.entries.iter().try_for_each(|placed| story.take(placed))
}

fn withheld(incident: &WithheldIncident) -> Option<([u8; 16], RequestId)> {
    let mut id = [0; 16];
    hex::decode_to_slice(&incident.id, &mut id).ok()?;
    Some((id, RequestId::parse(&incident.request)?))
}

impl Story {
    fn take(&mut self, placed: &Placed) -> Result<(), BundleRefusal> {
        let (index, leaf) = (placed.index, placed.leaf);
        match &placed.entry.body {
            Body::Opened(_) => {
                let request = self.requests.entry(RequestId::from_bytes(placed.entry.head.uuid)).or_default();
                if request.opened.is_some() || request.sealed.is_some() {
                    return Err(BundleRefusal::Pairing { index });
                }
                request.opened = Some((index, leaf));
            }
            Body::Sealed(sealed) => self.sealed(index, leaf, sealed)?,
            Body::Incident(incident) => {
                let replay = incident.class == IncidentClass::Replay;
                let request = self.of(index, incident.request, (incident.opened_index, incident.opened_leaf))?;
                if request.sealed.is_some() && !replay {
                    return Err(BundleRefusal::Pairing { index });
                }
                request.stopped = true;
                request.differs |= replay;
                if self.incidents.insert(incident.incident, IncidentLife::detected(leaf)).is_some() {
                    return Err(BundleRefusal::Pairing { index });
                }
            }
            Body::IncidentState(state) => {
                let life = match self.incidents.get(&state.incident) {
                    Some(life) => {
                        life.after(state, leaf).map_err(|source| BundleRefusal::IncidentMove { index, source })?
                    }
                    // It was detected before the time: from here on it is followed.
                    None => IncidentLife { stage: state.state, sequence: state.sequence, leaf },
                };
                self.incidents.insert(state.incident, life);
            }
            Body::Fault(fault) => {
                let request = self.of(index, fault.request, (fault.opened_index, fault.opened_leaf))?;
                if request.sealed.is_some() {
                    return Err(BundleRefusal::Pairing { index });
                }
                request.failed = true;
            }
            Body::Replay(replay) => self.replay(index, replay)?,
            _ => {}
        }
        Ok(())
    }

    /// The request that an entry names. One that was opened in the time is the very entry.
    fn of(&mut self, index: u64, id: RequestId, opened: (u64, Digest)) -> Result<&mut Request, BundleRefusal> {
        let request = self.requests.entry(id).or_default();
        if opened.0 >= index || request.opened.is_some_and(|held| held != opened) {
            return Err(BundleRefusal::Pairing { index });
        }
        Ok(request)
    }

    fn sealed(&mut self, index: u64, leaf: Digest, sealed: &Sealing) -> Result<(), BundleRefusal> {
        let request = self.of(index, sealed.request, (sealed.opened_index, sealed.opened_leaf))?;
        if request.sealed.is_some() {
            return Err(BundleRefusal::Pairing { index });
        }
        request.sealed = Some((index, leaf, sealed.replay.is_some()));
        let stopped = sealed.reason == SealReason::Isolation;
        let crashed = sealed.reason == SealReason::Crash;
        let foreign = sealed.pages.foreign;
        if foreign > 0 && !stopped {
            return Err(BundleRefusal::Pages { index, foreign });
        }
        // Of one that was opened in the time all incidents are here; a crash may come between an incident and the end.
        let all_known = request.opened.is_some();
        if !crashed && (request.stopped && !stopped || all_known && stopped && !request.stopped) {
            return Err(BundleRefusal::Ends { index, what: "incidents" });
        }
        if request.failed && !matches!(sealed.reason, SealReason::Error | SealReason::Isolation | SealReason::Crash) {
            return Err(BundleRefusal::Ends { index, what: "faults" });
        }
        Ok(())
    }

    fn replay(&mut self, index: u64, replay: &Replay) -> Result<(), BundleRefusal> {
        let request = self.requests.entry(replay.request).or_default();
        let wrong = BundleRefusal::Ends { index, what: "replay" };
        if request.replayed || replay.sealed_index >= index {
            return Err(wrong);
        }
        request.replayed = true;
        let Some((at, leaf, has_digest)) = request.sealed else { return Ok(()) };
        let done = replay.outcome != ReplayOutcome::NotDone;
        let differs = replay.outcome == ReplayOutcome::Different;
        let is_of = (at, leaf) == (replay.sealed_index, replay.sealed_leaf);
        // Of one that was opened in the time the incident, if there is one, is here.
        let agrees = differs == request.differs || request.opened.is_none();
        if is_of && agrees && (has_digest || !done) { Ok(()) } else { Err(wrong) }
    }
}
