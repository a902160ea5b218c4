//! Erasing and holding, as operators ask for it. Placing a hold takes one person; erasing a key, which nobody can undo, and
//! releasing a hold, which lets somebody, take two. The log refuses what is held.

use crate::exchange::{Answer, Exchange};
use crate::gateway::Services;
use crate::json::{Fields, ParseRequestError, read_object};
use crate::operators::{DECISION_BYTES_MAX, Matter, Operator};
use crate::respond::RequestError;
use audit_log::{AppendError, EpochKey, EraseKey, ErasureBasis, Held, HoldId, HoldReason, KeepingError, PlaceHold};
use policies_domain::TenantName;
use serde_json::{Value, json};
use std::collections::BTreeMap;

const JSON: &str = "application/json";
const BASES: &str = "`request`, `contract_end`, `retention`, `order`, `key_lost`, `other`";
const REASONS: &str = "`litigation`, `inquiry`, `incident`, `other`";

/// Which of a tenant's keys are to be erased.
#[derive(Clone, Debug, PartialEq, Eq)]
struct WantedErasure {
    tenant: TenantName,
    which: Which,
    basis: ErasureBasis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    /// All that it has.
    All,
    Epoch(u64),
    /// Those whose last request was before this moment, in microseconds since 1970.
    Before(u64),
}

/// Destroys keys when a second person says the same. What is erased stays so: asking again changes nothing.
pub(crate) async fn erase(http: &mut Exchange, who: &Operator, on: &Services) -> Result<Answer, RequestError> {
    let wanted = WantedErasure::parse(&http.body(DECISION_BYTES_MAX).await?)?;
    let keys = on.audit.epoch_keys(&wanted.tenant);
    let (epochs, erased) = wanted.epochs(&keys);
    if epochs.is_empty() {
        if erased.is_empty() {
            return Err(AppendError::NothingKept.into());
        }
        return Ok(Answer::new(200, JSON, json!({"erased": [], "already": erased}).to_string()));
    }
    // Nobody is asked to confirm what is refused in any case.
    for epoch in &epochs {
        on.audit.may_erase(&wanted.tenant, *epoch)?;
    }
    let says = format!("{epochs:?} {}", wanted.basis.as_str());
    let Some(first) = on.operators.confirm(who, Matter::Erasure(wanted.tenant.clone()), says, http.accepted())? else {
        let body = json!({"proposed": true, "epochs": epochs, "already": erased, "needs": "a second person"});
        return Ok(Answer::new(202, JSON, body.to_string()));
    };
    let (actor, second) = (first.reference(&on.audit), who.reference(&on.audit));
    let mut done = Vec::with_capacity(epochs.len());
    for epoch in epochs {
        let key = EraseKey { tenant: wanted.tenant.clone(), epoch, basis: wanted.basis, actor, second };
        let recorded = on.audit.erase_key(key).await?;
        tracing::warn!(epoch, index = recorded.index, "a tenant's key was erased");
        done.push(json!({"epoch": epoch, "entry": recorded.index, "leaf": recorded.leaf_hash.to_string()}));
    }
    Ok(Answer::new(201, JSON, json!({"erased": done, "already": erased}).to_string()))
}

/// A tenant's keys, by epoch.
pub(crate) fn keys(tenant: &str, on: &Services) -> Result<Answer, RequestError> {
    let tenant = TenantName::parse(tenant).map_err(|_| AppendError::NothingKept)?;
    let keys = on.audit.epoch_keys(&tenant);
    if keys.is_empty() {
        return Err(AppendError::NothingKept.into());
    }
    let data: Vec<Value> = keys.iter().map(|(epoch, key)| describe_key(*epoch, key)).collect();
    Ok(Answer::new(200, JSON, json!({"object": "list", "tenant": tenant.as_str(), "data": data}).to_string()))
}

pub(crate) async fn place_hold(http: &mut Exchange, who: &Operator, on: &Services) -> Result<Answer, RequestError> {
    let body = http.body(DECISION_BYTES_MAX).await?;
    let wanted = parse_hold(&body, who.reference(&on.audit))?;
    let (hold, recorded) = on.audit.place_hold(wanted).await?;
    tracing::warn!(%hold, index = recorded.index, "a hold was placed");
    let body = json!({"hold": hold.to_string(), "entry": recorded.index, "leaf": recorded.leaf_hash.to_string()});
    Ok(Answer::new(201, JSON, body.to_string()))
}

pub(crate) fn holds(on: &Services) -> Answer {
    let persons = on.operators.names(&on.audit);
    let tenants: BTreeMap<_, _> = on
        .keys
        .principals()
        .into_iter()
        .map(|principal| (on.audit.tenant_ref(principal.name()), principal.name().to_string()))
        .collect();
    let describe = |held: &Held| {
        let Held { tenant, hold, index, wall_us } = held;
        let tenant = tenant.map(|tenant| tenants.get(&tenant).cloned().unwrap_or_else(|| hex::encode(tenant)));
        let actor = persons.get(&hold.actor).map_or_else(|| hex::encode(hold.actor), ToString::to_string);
        json!({
            "hold": hex::encode(hold.hold), "tenant": tenant, "from_us": hold.first_us, "to_us": hold.last_us,
            "reason": hold.reason.as_str(), "actor": actor, "entry": index, "at_us": wall_us,
        })
    };
    let data: Vec<Value> = on.audit.holds().iter().map(describe).collect();
    Answer::new(200, JSON, json!({"object": "list", "data": data}).to_string())
}

/// Ends a hold when a second person says the same.
pub(crate) async fn release(
    http: &mut Exchange,
    who: &Operator,
    id: &str,
    on: &Services,
) -> Result<Answer, RequestError> {
    let no_hold = || AppendError::Keeping(KeepingError::NoHold);
    let hold = parse_hold_id(id).ok_or_else(no_hold)?;
    let mut fields = read_object(&http.body(DECISION_BYTES_MAX).await?)?;
    if fields.require("state")?.as_str() != Some("released") {
        return Err(ParseRequestError::NotOneOf { param: "state".into(), allowed: "`released`" }.into());
    }
    fields.finish()?;
    if !on.audit.holds().iter().any(|held| held.hold.hold == hold.0) {
        return Err(no_hold().into());
    }
    let Some(first) = on.operators.confirm(who, Matter::Release(hold.0), String::new(), http.accepted())? else {
        let body = json!({"proposed": true, "hold": hold.to_string(), "needs": "a second person"});
        return Ok(Answer::new(202, JSON, body.to_string()));
    };
    let (actor, second) = (first.reference(&on.audit), who.reference(&on.audit));
    let recorded = on.audit.release_hold(hold, actor, second).await?;
    tracing::warn!(%hold, index = recorded.index, "a hold was released");
    let body = json!({"hold": hold.to_string(), "entry": recorded.index, "leaf": recorded.leaf_hash.to_string()});
    Ok(Answer::new(201, JSON, body.to_string()))
}

impl WantedErasure {
    fn parse(body: &[u8]) -> Result<Self, ParseRequestError> {
        let mut fields = read_object(body)?;
        let tenant = tenant(&mut fields)?.ok_or_else(|| ParseRequestError::Missing { param: "tenant".into() })?;
        let which = match (moment(&mut fields, "epoch")?, moment(&mut fields, "before_us")?) {
            (None, None) => Which::All,
            (Some(epoch), None) => Which::Epoch(epoch),
            (None, Some(before)) => Which::Before(before),
            _ => return Err(ParseRequestError::Contradiction { param: "epoch".into(), other: "before_us" }),
        };
        let basis = fields.require("basis")?.as_str().and_then(ErasureBasis::parse);
        let basis = basis.ok_or(ParseRequestError::NotOneOf { param: "basis".into(), allowed: BASES })?;
        fields.finish()?;
        Ok(Self { tenant, which, basis })
    }

    /// Those that are to be erased, and those that are it already.
    fn epochs(&self, keys: &BTreeMap<u64, EpochKey>) -> (Vec<u64>, Vec<Value>) {
        let (mut wanted, mut erased) = (Vec::new(), Vec::new());
        for (epoch, key) in keys {
            let is_meant = match self.which {
                Which::All => true,
                Which::Epoch(of) => of == *epoch,
                Which::Before(moment) => key.used_us.is_some_and(|(_, last)| last < moment),
            };
            match &key.erasure {
                _ if !is_meant => {}
                Some(at) => erased.push(json!({"epoch": epoch, "entry": at.index})),
                None => wanted.push(*epoch),
            }
        }
        // A key that was made and never used is in no entry.
        if let Which::Epoch(epoch) = self.which
            && !keys.contains_key(&epoch)
        {
            wanted.push(epoch);
        }
        (wanted, erased)
    }
}

fn tenant(fields: &mut Fields) -> Result<Option<TenantName>, ParseRequestError> {
    let wrong = |_| ParseRequestError::Type { param: "tenant".into(), wanted: "a tenant's name" };
    fields.string("tenant")?.map(|name| TenantName::parse(&name).map_err(wrong)).transpose()
}

fn moment(fields: &mut Fields, name: &str) -> Result<Option<u64>, ParseRequestError> {
    Ok(fields.integer(name, 0..=i64::MAX)?.and_then(|moment| u64::try_from(moment).ok()))
}

fn parse_hold(body: &[u8], actor: audit_log::ActorRef) -> Result<PlaceHold, ParseRequestError> {
    let mut fields = read_object(body)?;
    let tenant = tenant(&mut fields)?;
    let first_us = moment(&mut fields, "from_us")?.unwrap_or_default();
    let last_us = moment(&mut fields, "to_us")?;
    let reason = fields.require("reason")?.as_str().and_then(HoldReason::parse);
    let reason = reason.ok_or(ParseRequestError::NotOneOf { param: "reason".into(), allowed: REASONS })?;
    fields.finish()?;
    if last_us.is_some_and(|last| last < first_us) {
        return Err(ParseRequestError::Contradiction { param: "to_us".into(), other: "from_us" });
    }
    Ok(PlaceHold { tenant, first_us, last_us, reason, actor })
}

fn parse_hold_id(text: &str) -> Option<HoldId> {
    let mut id = [0; 16];
    hex::decode_to_slice(text, &mut id).ok()?;
    Some(HoldId(id))
}

fn describe_key(epoch: u64, key: &EpochKey) -> Value {
    let erased = key.erasure.map(
        |at| json!({"entry": at.index, "at_us": at.wall_us, "basis": at.basis.as_str(), "destroyed": at.done > 0}),
    );
    let (first_us, last_us) = key.used_us.unzip();
    json!({"epoch": epoch, "first_us": first_us, "last_us": last_us, "erased": erased})
}

#[cfg(test)]
mod tests {
    use super::*;
    use audit_log::ErasureAt;
    use policies_domain::Digest;

    fn key(used_us: (u64, u64), erased: bool) -> EpochKey {
        let (leaf, basis) = (Digest([1; 32]), ErasureBasis::Request);
        let at = ErasureAt { index: 9, leaf, wall_us: 1, basis, done: 1 };
        EpochKey { used_us: Some(used_us), erasure: erased.then_some(at) }
    }

    #[test]
    fn which_keys_are_meant_is_said_by_epoch_by_time_or_not_at_all() {
        let keys = BTreeMap::from([(1, key((10, 20), false)), (2, key((21, 30), true)), (3, key((31, 40), false))]);
        let epochs = |body: &str| WantedErasure::parse(body.as_bytes()).map(|wanted| wanted.epochs(&keys));
        let of = |epochs: &[u64], already: &[u64]| {
            let already = already.iter().map(|epoch| json!({"epoch": epoch, "entry": 9})).collect::<Vec<_>>();
            Ok((epochs.to_vec(), already))
        };
        let basis = r#""tenant":"acme","basis":"request""#;
        assert_eq!(epochs(&format!("{{{basis}}}")), of(&[1, 3], &[2]));
        assert_eq!(epochs(&format!(r#"{{{basis},"epoch":3}}"#)), of(&[3], &[]));
        assert_eq!(epochs(&format!(r#"{{{basis},"epoch":2}}"#)), of(&[], &[2]));
        assert_eq!(epochs(&format!(r#"{{{basis},"epoch":7}}"#)), of(&[7], &[]), "perhaps never used");
        assert_eq!(epochs(&format!(r#"{{{basis},"before_us":40}}"#)), of(&[1], &[2]), "one of the third came then");
        assert_eq!(epochs(&format!(r#"{{{basis},"before_us":41}}"#)), of(&[1, 3], &[2]));
        for body in [
            "{}",
            r#"{"tenant":"acme"}"#,
            r#"{"tenant":"ACME","basis":"request"}"#,
            r#"{"tenant":"acme","basis":"because"}"#,
            r#"{"tenant":"acme","basis":"request","epoch":-1}"#,
            r#"{"tenant":"acme","basis":"request","epoch":1,"before_us":1}"#,
            r#"{"tenant":"acme","basis":"request","all":true}"#,
        ] {
            assert!(epochs(body).is_err(), "{body}");
        }
    }

    #[test]
    fn a_hold_says_what_it_means() {
        let parse = |body: &str| parse_hold(body.as_bytes(), [7; 16]);
        let everything = parse(r#"{"reason":"litigation"}"#).unwrap();
        assert_eq!((everything.tenant, everything.first_us, everything.last_us), (None, 0, None));
        let of_acme = parse(r#"{"tenant":"acme","reason":"inquiry","from_us":5,"to_us":5}"#).unwrap();
        assert_eq!((of_acme.first_us, of_acme.last_us, of_acme.actor), (5, Some(5), [7; 16]));
        for body in [
            "{}",
            r#"{"reason":"because"}"#,
            r#"{"reason":"other","tenant":"two words"}"#,
            r#"{"reason":"other","from_us":5,"to_us":4}"#,
            r#"{"reason":"other","actor":"ada"}"#,
        ] {
            assert!(parse(body).is_err(), "{body}");
        }
        assert!(parse_hold_id(&"ab".repeat(16)).is_some());
        assert!(["", "ab", &"zz".repeat(16)].iter().all(|id| parse_hold_id(id).is_none()));
    }
}
