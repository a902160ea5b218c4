//! Audits of the isolation, written down for the tenants that the operator named as probes: what a result must say, who may
//! record one, and how often. What it says is the probe's word; the log holds its digest and its verdict.

use crate::json::{Fields, ParseRequestError, read_object};
use crate::respond::RequestError;
use audit_log::{AuditVerdict, IsolationAudit};
use policies_domain::{Digest, Principal, TenantId, TenantName};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The largest result. One of every arm at three lengths has 4 KiB.
pub(crate) const RESULT_BYTES_MAX: usize = 64 << 10;
/// Controls, and arms, in one result.
const ARMS_MAX: usize = 64;
/// A tenant records one result in this time: each is an entry for ever, and an audit takes longer.
const INTERVAL: Duration = Duration::from_secs(10);

/// The words of a result.
const SUBJECTS: &str = "`sidechannel`";
const VERDICTS: &str = "`isolated`, `channel_found`, `void`, `inconclusive`";

/// Who may record audits, and who did lately.
pub(crate) struct Audits {
    probes: BTreeSet<TenantName>,
    /// When each began to record its last; as many as there are probes.
    last: Mutex<BTreeMap<TenantId, Instant>>,
}

impl Audits {
    pub(crate) fn new(probes: BTreeSet<TenantName>) -> Self {
        Self { probes, last: Mutex::default() }
    }

    /// Lets a probe record one result now, whatever becomes of it.
    pub(crate) fn admit(&self, principal: &Principal, now: Instant) -> Result<(), RequestError> {
        if !self.probes.contains(principal.name()) {
            return Err(RequestError::NoProbe);
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = last.get(&principal.tenant()).map(|last| *last + INTERVAL);
        match ready.map(|ready| ready.saturating_duration_since(now)) {
            Some(wait) if !wait.is_zero() => {
                let retry_after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                Err(RequestError::AuditTooSoon { retry_after_ms })
            }
            _ => {
                last.insert(principal.tenant(), now);
                Ok(())
            }
        }
    }
}

/// Reads what an entry holds of a result. What else it says is in the digest.
pub(crate) fn parse(result: &[u8]) -> Result<IsolationAudit, ParseRequestError> {
    let mut fields = read_object(result)?;
    if fields.require("audit")?.as_str() != Some("sidechannel") {
        return Err(ParseRequestError::NotOneOf { param: "audit".into(), allowed: SUBJECTS });
    }
    let verdict = fields.require("verdict")?;
    let verdict = verdict.as_str().and_then(AuditVerdict::parse);
    let verdict = verdict.ok_or_else(|| ParseRequestError::NotOneOf { param: "verdict".into(), allowed: VERDICTS })?;
    let controls = probabilities(&mut fields, "controls", "p")?;
    let arms = probabilities(&mut fields, "arms", "p_holm")?;
    // The weakest control has the largest probability, the arm that says most the least.
    let power = controls.into_iter().reduce(f64::max).map_or(0, IsolationAudit::strength);
    let strongest = arms.iter().copied().reduce(f64::min).map_or(0, IsolationAudit::strength);
    let result = Digest(Sha256::digest(result).into());
    Ok(IsolationAudit { verdict, result, arms: arms.len() as u64, power, strongest })
}

/// One probability of each element of a list.
fn probabilities(fields: &mut Fields, list: &str, name: &str) -> Result<Vec<f64>, ParseRequestError> {
    let Value::Array(values) = fields.require(list)? else {
        return Err(ParseRequestError::Type { param: list.to_owned(), wanted: "an array" });
    };
    if values.len() > ARMS_MAX {
        return Err(ParseRequestError::TooMany { param: list.to_owned(), entries_max: ARMS_MAX });
    }
    let read = |(index, value): (usize, Value)| {
        let mut arm = Fields::of(value, format!("{list}[{index}]"))?;
        let missing = ParseRequestError::Missing { param: arm.path(name) };
        arm.number(name, 0.0..=1.0)?.ok_or(missing)
    };
    values.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::refusal;
    use serde_json::json;

    fn principal(number: u32, name: &str) -> Principal {
        Principal::authenticated(TenantId::new(number).unwrap(), TenantName::parse(name).unwrap())
    }

    fn audits(probes: &[&str]) -> Audits {
        Audits::new(probes.iter().map(|name| TenantName::parse(name).unwrap()).collect())
    }

    #[test]
    fn nobody_is_a_probe_who_was_not_named() {
        let now = Instant::now();
        let refused = audits(&[]).admit(&principal(1, "acme"), now).unwrap_err();
        assert_eq!((refusal(&refused).status, refusal(&refused).code), (403, "no_probe"));
        let audits = audits(&["acme"]);
        assert!(matches!(audits.admit(&principal(2, "globex"), now), Err(RequestError::NoProbe)));
        assert!(audits.admit(&principal(1, "acme"), now).is_ok());
    }

    #[test]
    fn a_probe_records_one_result_in_an_interval_and_takes_nothing_from_another() {
        let (audits, now) = (audits(&["acme", "globex"]), Instant::now());
        let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
        audits.admit(&acme, now).unwrap();
        let refused = audits.admit(&acme, now + Duration::from_secs(4)).unwrap_err();
        assert!(matches!(refused, RequestError::AuditTooSoon { retry_after_ms: 6_000 }), "{refused}");
        assert_eq!((refusal(&refused).status, refusal(&refused).code), (429, "audit_too_soon"));
        audits.admit(&globex, now + Duration::from_secs(4)).unwrap();
        audits.admit(&acme, now + INTERVAL).unwrap();
        assert!(audits.admit(&acme, now + INTERVAL).is_err());
    }

    #[test]
    fn an_entry_holds_the_verdict_the_weakest_control_and_the_strongest_arm() {
        let result = json!({
            "audit": "sidechannel", "verdict": "channel_found", "seed": 7, "plan": {"anything": [1, 2]},
            "controls": [{"p": 1e-20, "p_holm": 1e-20}, {"p": 1e-9, "p_holm": 1e-9}],
            "arms": [{"p": 0.5, "p_holm": 1.0}, {"p": 0.001, "p_holm": 0.01}, {"p": 0.9, "p_holm": 1.0}],
        });
        let bytes = result.to_string();
        let audit = parse(bytes.as_bytes()).unwrap();
        assert_eq!(audit.result, Digest(Sha256::digest(&bytes).into()));
        assert_eq!(
            (audit.verdict, audit.arms, audit.power, audit.strongest),
            (AuditVerdict::ChannelFound, 3, 9_000, 2_000)
        );
        let void = br#"{"audit":"sidechannel","verdict":"void","controls":[{"p":1}],"arms":[]}"#;
        let void = parse(void).unwrap();
        assert_eq!((void.verdict, void.arms, void.power, void.strongest), (AuditVerdict::Void, 0, 0, 0));
    }

    #[test]
    fn what_is_no_result_is_refused_by_name() {
        let long = format!(
            r#"{{"audit":"sidechannel","verdict":"void","controls":[],"arms":[{}]}}"#,
            vec![r#"{"p_holm":1}"#; ARMS_MAX + 1].join(",")
        );
        for (result, error) in [
            ("", "the request body is empty"),
            ("[]", "the request body must be a JSON object"),
            ("{}", "`audit` is missing"),
            (r#"{"audit":"quality"}"#, "`audit` must be one of `sidechannel`"),
            (r#"{"audit":"sidechannel"}"#, "`verdict` is missing"),
            (
                r#"{"audit":"sidechannel","verdict":"fine"}"#,
                "`verdict` must be one of `isolated`, `channel_found`, `void`, `inconclusive`",
            ),
            (r#"{"audit":"sidechannel","verdict":"void"}"#, "`controls` is missing"),
            (r#"{"audit":"sidechannel","verdict":"void","controls":1}"#, "`controls` must be an array"),
            (r#"{"audit":"sidechannel","verdict":"void","controls":[1]}"#, "`controls[0]` must be an object"),
            (r#"{"audit":"sidechannel","verdict":"void","controls":[{}]}"#, "`controls[0].p` is missing"),
            (
                r#"{"audit":"sidechannel","verdict":"void","controls":[],"arms":[{"p_holm":1.5}]}"#,
                "`arms[0].p_holm` must be at most 1",
            ),
            (r#"{"audit":"sidechannel","audit":"sidechannel"}"#, "`audit` is given twice"),
            (long.as_str(), "`arms` must have at most 64 entries"),
        ] {
            assert_eq!(parse(result.as_bytes()).unwrap_err().to_string(), error, "{result}");
        }
    }
}
