//! The persons who look after incidents, and after what is kept: who they are, what takes two of them, and what is said to whom.
//! The gateway writes what they decide to the log; the log refuses what may not be.

use crate::json::{ParseRequestError, read_object};
use crate::respond::RequestError;
use audit_log::{
    ActorRef, AuditLog, Containment, Detected, IncidentId, IncidentMove, IncidentReport, IncidentSide, IncidentStage,
    MovedAt, SelfTest,
};
use gateway_auth::{AuthError, KeyRing};
use policies_domain::{Credential, Digest, TenantName};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The largest decision: a state and two digests.
pub(crate) const DECISION_BYTES_MAX: usize = 4 << 10;
/// Matters that wait for a second person.
const PROPOSALS_MAX: usize = 1_024;
/// How long a proposal waits. A start forgets it: nothing was decided, so nothing is in the log.
const PROPOSAL_LASTS: Duration = Duration::from_secs(24 * 3_600);

const STATES: &str = "`triaged`, `notified`, `resolved`, `false_positive`, `reopened`";

/// A person who is configured as an operator. Only [`Operators::authenticate`] makes one: no tenant's key does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operator(TenantName);

/// All of them, and what waits for a second one.
pub(crate) struct Operators {
    ring: KeyRing,
    proposals: Mutex<BTreeMap<Matter, Proposal>>,
}

/// What takes two persons.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Matter {
    /// Closing an incident.
    Incident([u8; 16]),
    /// Erasing keys of a tenant.
    Erasure(TenantName),
    /// Releasing a hold.
    Release([u8; 16]),
}

struct Proposal {
    by: Operator,
    says: String,
    until: Instant,
}

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    to: IncidentStage,
    evidence: Option<Digest>,
    notice: Option<Digest>,
}

/// What comes of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Somebody else has to want the same.
    Proposed,
    /// The log is to be told.
    Made { actor: Operator, second: Option<Operator> },
}

impl Operator {
    /// As entries name this person.
    pub(crate) fn reference(&self, log: &AuditLog) -> ActorRef {
        log.actor(&self.0)
    }
}

impl Operators {
    pub(crate) fn new(ring: KeyRing) -> Self {
        Self { ring, proposals: Mutex::default() }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.principals().is_empty()
    }

    pub(crate) fn authenticate(&self, credential: Option<&Credential>) -> Result<Operator, AuthError> {
        self.ring.authenticate(credential).map(|principal| Operator(principal.name().clone()))
    }

    /// Who is behind the references of entries.
    pub(crate) fn names(&self, log: &AuditLog) -> BTreeMap<ActorRef, TenantName> {
        let name = |principal: policies_domain::Principal| (log.actor(principal.name()), principal.name().clone());
        self.ring.principals().into_iter().map(name).collect()
    }

    /// Closing takes two persons who say the same of the same evidence; everything else takes one.
    pub(crate) fn decide(
        &self,
        operator: &Operator,
        incident: IncidentId,
        wanted: &Wanted,
        now: Instant,
    ) -> Result<Decision, RequestError> {
        if !wanted.to.is_closed() {
            return Ok(Decision::Made { actor: operator.clone(), second: None });
        }
        let evidence = wanted.evidence.ok_or_else(|| ParseRequestError::Missing { param: "evidence".into() })?;
        let says = format!("{} {evidence}", wanted.to.as_str());
        Ok(match self.confirm(operator, Matter::Incident(incident.0), says, now)? {
            Some(actor) => Decision::Made { actor, second: Some(operator.clone()) },
            None => Decision::Proposed,
        })
    }

    /// Who said the same of the same matter before, another person; `None` when this is the first to say so. Whoever says
    /// something else replaces what waits, and then it is that which waits for a second person.
    pub(crate) fn confirm(
        &self,
        operator: &Operator,
        matter: Matter,
        says: String,
        now: Instant,
    ) -> Result<Option<Operator>, RequestError> {
        let mut proposals = self.proposals.lock().unwrap_or_else(PoisonError::into_inner);
        proposals.retain(|_, proposal| now < proposal.until);
        if let Some(waiting) = proposals.get(&matter)
            && waiting.says == says
        {
            // INVARIANT: nobody is the second person of what he proposed.
            if waiting.by == *operator {
                return Err(RequestError::SecondPerson);
            }
            return Ok(proposals.remove(&matter).map(|proposal| proposal.by));
        }
        if proposals.len() >= PROPOSALS_MAX && !proposals.contains_key(&matter) {
            return Err(RequestError::TooManyProposals);
        }
        proposals.insert(matter, Proposal { by: operator.clone(), says, until: now + PROPOSAL_LASTS });
        Ok(None)
    }

    /// An incident with all that its entries say, and with persons' names.
    pub(crate) fn describe(&self, report: &IncidentReport, log: &AuditLog) -> Value {
        let names = self.names(log);
        describe(report, |actor| names.get(actor).map_or_else(|| hex::encode(actor), ToString::to_string))
    }
}

/// An incident with all that its entries say. `person`: how one is called.
pub(crate) fn describe(report: &IncidentReport, person: impl Fn(&ActorRef) -> String) -> Value {
    let person = |actor: &Option<ActorRef>| actor.as_ref().map(&person);
    let moved = |moved: &MovedAt| {
        let state = &moved.state;
        json!({
            "state": state.state.as_str(), "at_us": moved.wall_us, "entry": moved.index,
            "leaf": moved.leaf.to_string(), "actor": person(&state.actor), "second": person(&state.second),
            "evidence": state.evidence.map(|digest| digest.to_string()), "action": state.action.as_str(),
            "notice": state.notice.map(|digest| digest.to_string()),
        })
    };
    let detected = match &report.detected {
        Detected::Fault { tenant, incident } => json!({
            "class": incident.class.as_str(), "severity": incident.severity_name(),
            "request": incident.request.to_string(), "opened_entry": incident.opened_index,
            "recipient": hex::encode(tenant), "victim": incident.victim.map(hex::encode),
            "bytes_released": incident.bytes_released, "step": incident.step, "page": incident.page,
            "generation": incident.generation,
        }),
        Detected::Lag(lag) => json!({
            "class": lag.class_name(), "severity": lag.severity_name(), "cosigner": lag.cosigner,
            "entries_cosigned": lag.cosigned, "entries_published": lag.published, "behind_us": lag.behind_us,
            "limit_us": lag.limit_us, "bytes_released": 0,
        }),
        Detected::SelfTest(test) => json!({
            "class": SelfTest::CLASS_NAME, "severity": SelfTest::SEVERITY_NAME, "detectors_failed": test.failed(),
            "bytes_released": 0,
        }),
    };
    let of_all = json!({
        "id": report.id.to_string(), "state": report.stage().as_str(), "detected_us": report.detected_us,
        "entry": report.index, "leaf": report.leaf.to_string(),
        "moves": report.moves.iter().map(moved).collect::<Vec<_>>(),
    });
    joined(of_all, detected)
}

fn joined(mut fields: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    fields
}

impl Wanted {
    pub(crate) fn parse(body: &[u8]) -> Result<Self, ParseRequestError> {
        let mut fields = read_object(body)?;
        let state = fields.require("state")?;
        let to = match state.as_str() {
            Some("triaged") => IncidentStage::Triaged,
            Some("notified") => IncidentStage::Notified,
            Some("resolved") => IncidentStage::Resolved,
            Some("false_positive") => IncidentStage::FalsePositive,
            Some("reopened") => IncidentStage::Reopened,
            _ => return Err(ParseRequestError::NotOneOf { param: "state".into(), allowed: STATES }),
        };
        let mut digest = |name: &str| {
            let Some(text) = fields.string(name)? else { return Ok(None) };
            let mut bytes = [0; 32];
            let wrong = |_| ParseRequestError::Type { param: name.to_owned(), wanted: "64 hexadecimal digits" };
            hex::decode_to_slice(text, &mut bytes).map_err(wrong)?;
            Ok(Some(Digest(bytes)))
        };
        let wanted = Self { to, evidence: digest("evidence")?, notice: digest("notice")? };
        fields.finish()?;
        Ok(wanted)
    }

    /// As the log is asked for it.
    pub(crate) fn into_move(
        self,
        incident: IncidentId,
        actor: &Operator,
        second: Option<&Operator>,
        log: &AuditLog,
    ) -> IncidentMove {
        let (actor, second) = (Some(log.actor(&actor.0)), second.map(|second| log.actor(&second.0)));
        let Self { to, evidence, notice } = self;
        IncidentMove { incident, to, actor, second, evidence, action: Containment::None, notice }
    }
}

/// What a tenant may know of an incident: the recipient what of its own was concerned, the victim what of its own leaked, and
/// neither of them anything of the other. `None` for an incident that is no tenant's.
pub(crate) fn tenant_view(side: IncidentSide, report: &IncidentReport) -> Option<Value> {
    let Detected::Fault { incident, .. } = &report.detected else { return None };
    let updated_us = report.moves.last().map_or(report.detected_us, |moved| moved.wall_us);
    let view = json!({
        "id": report.id.to_string(), "state": report.stage().as_str(), "class": incident.class.as_str(),
        "severity": incident.severity_name(), "detected_us": report.detected_us, "updated_us": updated_us,
        "bytes_released": incident.bytes_released,
    });
    let own = match side {
        IncidentSide::Recipient => json!({
            "side": "recipient", "request": incident.request.to_string(), "opened_entry": incident.opened_index,
            "entry": report.index, "leaf": report.leaf.to_string(), "step": incident.step,
        }),
        IncidentSide::Victim => {
            json!({"side": "victim", "page": incident.page, "generation": incident.generation})
        }
    };
    Some(joined(view, own))
}

/// An incident's id as it is written: 32 hexadecimal digits.
pub(crate) fn parse_id(text: &str) -> Option<IncidentId> {
    let mut id = [0; 16];
    hex::decode_to_slice(text, &mut id).ok()?;
    Some(IncidentId(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_log::{Incident, IncidentClass, IncidentState};
    use gateway_auth::KeySecret;
    use policies_domain::RequestId;

    fn operators() -> Operators {
        let folder = tempfile::tempdir().unwrap();
        let secret = KeySecret::open_or_create(&folder.path().join("secret")).unwrap();
        Operators::new(KeyRing::new(secret, &[]).unwrap())
    }

    fn person(name: &str) -> Operator {
        Operator(TenantName::parse(name).unwrap())
    }

    fn wanted(to: IncidentStage, evidence: Option<u8>) -> Wanted {
        Wanted { to, evidence: evidence.map(|byte| Digest([byte; 32])), notice: None }
    }

    const INCIDENT: IncidentId = IncidentId([7; 16]);

    #[test]
    fn closing_takes_two_persons_who_say_the_same() {
        let (operators, now) = (operators(), Instant::now());
        let (ada, ben) = (person("ada"), person("ben"));
        let decide = |who: &Operator, to, evidence, now| operators.decide(who, INCIDENT, &wanted(to, evidence), now);
        let (resolved, false_positive) = (IncidentStage::Resolved, IncidentStage::FalsePositive);
        assert!(matches!(decide(&ada, resolved, None, now), Err(RequestError::Parse(_))), "no evidence");
        assert_eq!(decide(&ada, resolved, Some(1), now).unwrap(), Decision::Proposed);
        assert!(matches!(decide(&ada, resolved, Some(1), now), Err(RequestError::SecondPerson)), "one person twice");
        // Other evidence, and another end: proposals of their own.
        assert_eq!(decide(&ben, resolved, Some(2), now).unwrap(), Decision::Proposed);
        assert_eq!(decide(&ada, false_positive, Some(2), now).unwrap(), Decision::Proposed);
        assert_eq!(decide(&ben, resolved, Some(2), now).unwrap(), Decision::Proposed);
        let made = decide(&ada, resolved, Some(2), now).unwrap();
        assert_eq!(made, Decision::Made { actor: ben.clone(), second: Some(ada.clone()) });
        // It was used up, and one that waits for too long is gone.
        assert_eq!(decide(&ada, resolved, Some(2), now).unwrap(), Decision::Proposed);
        assert_eq!(decide(&ben, resolved, Some(2), now + PROPOSAL_LASTS).unwrap(), Decision::Proposed);
        let other = operators.decide(&ada, IncidentId([8; 16]), &wanted(resolved, Some(2)), now).unwrap();
        assert_eq!(other, Decision::Proposed, "of another incident");
    }

    #[test]
    fn everything_else_takes_one() {
        for to in [IncidentStage::Triaged, IncidentStage::Notified, IncidentStage::Reopened] {
            let made = operators().decide(&person("ada"), INCIDENT, &wanted(to, None), Instant::now()).unwrap();
            assert_eq!(made, Decision::Made { actor: person("ada"), second: None });
        }
    }

    #[test]
    fn proposals_are_bounded() {
        let (operators, now) = (operators(), Instant::now());
        let propose = |number: usize, now| {
            let incident = IncidentId((number as u128).to_be_bytes());
            operators.decide(&person("ada"), incident, &wanted(IncidentStage::Resolved, Some(1)), now)
        };
        for number in 0..PROPOSALS_MAX {
            assert!(propose(number, now).is_ok());
        }
        assert!(matches!(propose(PROPOSALS_MAX, now), Err(RequestError::TooManyProposals)));
        assert!(propose(PROPOSALS_MAX, now + PROPOSAL_LASTS).is_ok());
    }

    #[test]
    fn a_decision_says_what_it_means() {
        let hex = "ab".repeat(32);
        let body = format!(r#"{{"state":"resolved","evidence":"{hex}"}}"#);
        assert_eq!(Wanted::parse(body.as_bytes()).unwrap(), wanted(IncidentStage::Resolved, Some(0xab)));
        for body in [
            "{}",
            r#"{"state":"contained"}"#,
            r#"{"state":"detected"}"#,
            r#"{"state":1}"#,
            r#"{"state":"resolved","evidence":"ab"}"#,
            r#"{"state":"resolved","evidence":7}"#,
            r#"{"state":"triaged","actor":"ada"}"#,
        ] {
            assert!(Wanted::parse(body.as_bytes()).is_err(), "{body}");
        }
    }

    #[test]
    fn neither_side_is_told_anything_of_the_other() {
        let incident = Incident {
            incident: [7; 16],
            class: IncidentClass::ForeignPage,
            bytes_released: 40,
            step: Some(41),
            page: Some(42_424),
            generation: Some(43_434),
            request: RequestId::from_bytes([0x44; 16]),
            opened_index: 454_545,
            opened_leaf: Digest([0x46; 32]),
            victim: Some([0x47; 16]),
        };
        let state = IncidentState {
            incident: [7; 16],
            sequence: 1,
            previous: Digest([0x48; 32]),
            state: IncidentStage::Triaged,
            actor: Some([0x49; 16]),
            second: None,
            evidence: Some(Digest([0x4a; 32])),
            action: Containment::None,
            notice: None,
        };
        let moves = vec![MovedAt { index: 464_646, leaf: Digest([0x4b; 32]), wall_us: 2, state }];
        let (id, leaf) = (INCIDENT, Digest([0x4c; 32]));
        let (request, recipient, victim) = (incident.request.to_string(), "4d".repeat(16), "47".repeat(16));
        let detected = Detected::Fault { tenant: [0x4d; 16], incident };
        let report = IncidentReport { id, index: 474_747, leaf, detected_us: 1, detected, moves };
        let persons = ["49".repeat(16), "4a".repeat(32), "48".repeat(32)];
        let seen = tenant_view(IncidentSide::Victim, &report).unwrap().to_string();
        for hidden in [&request, &recipient, "454545", "474747", &"4c".repeat(32), "464646", "\"step\""] {
            assert!(!seen.contains(hidden), "{hidden}: {seen}");
        }
        assert!(seen.contains("42424") && seen.contains("\"triaged\""), "{seen}");
        let seen_by_recipient = tenant_view(IncidentSide::Recipient, &report).unwrap().to_string();
        for hidden in [&victim, "42424", "43434"] {
            assert!(!seen_by_recipient.contains(hidden), "{hidden}: {seen_by_recipient}");
        }
        assert!(seen_by_recipient.contains(&request), "{seen_by_recipient}");
        for hidden in persons {
            assert!(!seen.contains(&hidden) && !seen_by_recipient.contains(&hidden), "{hidden}");
        }
    }
}
