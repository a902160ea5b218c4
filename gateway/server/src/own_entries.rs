//! What a tenant is shown of its own entries in the log: which of them it asks for, one answer at a time, and the JSON of an
//! answer, which `bulkhead-verify mine` reads.

use crate::exchange::Answer;
use crate::gateway::Services;
use crate::respond::RequestError;
use audit_log::{OwnEntries, OwnEntriesQuery, OwnEntry};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use policies_domain::{Principal, TenantId};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

/// Where a tenant's own entries are.
pub(crate) const PATH: &str = "/v1/isolation/mine";
/// When it is worth another try while another answer of the same tenant is made.
const RETRY_AFTER_MS: u64 = 1_000;

/// Whose answers are being made: one for each tenant, since each reads up to a few megabytes of tiles.
#[derive(Debug, Default)]
pub(crate) struct OwnEntriesTurns(Mutex<BTreeSet<TenantId>>);

/// A tenant's turn; it ends with this.
struct Turn {
    services: Arc<Services>,
    tenant: TenantId,
}

impl OwnEntriesTurns {
    fn begin(&self, tenant: TenantId) -> Result<(), RequestError> {
        let begun = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(tenant);
        if begun { Ok(()) } else { Err(RequestError::OwnEntriesBusy { retry_after_ms: RETRY_AFTER_MS }) }
    }

    fn end(&self, tenant: TenantId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&tenant);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.services.own_entries.end(self.tenant);
    }
}

/// Some of the principal's own entries. Nothing else than its credential says whose.
pub(crate) async fn answer(
    principal: Principal,
    query: Option<&str>,
    on: &Arc<Services>,
) -> Result<Answer, RequestError> {
    let query = parse(query.unwrap_or_default()).ok_or(RequestError::OwnEntriesQuery)?;
    on.own_entries.begin(principal.tenant())?;
    let turn = Turn { services: Arc::clone(on), tenant: principal.tenant() };
    let read = tokio::task::spawn_blocking(move || {
        // The turn ends with the work, also when nobody waits for it any more.
        let turn = turn;
        turn.services.audit.own_entries(&principal, query)
    });
    let own = read.await.map_err(|_| RequestError::Internal)??;
    let next = own.next.map(|next| next_path(next, &own.checkpoint));
    // A cache that leaves the query or the credential out of its keys would answer with other entries.
    let mut headers = vec![("cache-control", "no-store".to_owned())];
    headers.extend(next.as_ref().map(|next| ("link", format!("<{next}>; rel=\"next\""))));
    let body = page(&own, next).to_string();
    Ok(Answer { headers, ..Answer::new(200, "application/json", body) })
}

/// `from`, `to` and `held`, each once at most and in its one decimal form.
fn parse(query: &str) -> Option<OwnEntriesQuery> {
    let (mut from, mut to, mut held) = (None, None, None);
    for part in query.split('&').filter(|_| !query.is_empty()) {
        let (name, digits) = part.split_once('=')?;
        let number = digits.parse().ok().filter(|number: &u64| number.to_string() == digits)?;
        let place = match name {
            "from" => &mut from,
            "to" => &mut to,
            "held" => &mut held,
            _ => return None,
        };
        if place.replace(number).is_some() {
            return None;
        }
    }
    let from = from.unwrap_or(0);
    (to.is_none_or(|to| from < to)).then_some(OwnEntriesQuery { from, to, held })
}

/// The rest, and that its checkpoint continues this one.
fn next_path((from, to): (u64, u64), checkpoint: &str) -> String {
    let held = checkpoint.lines().nth(1).map_or_else(String::new, |size| format!("&held={size}"));
    format!("{PATH}?from={from}&to={to}{held}")
}

fn page(own: &OwnEntries, next: Option<String>) -> Value {
    let hashes = |hashes: &[audit_log::Hash]| hashes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let entry = |entry: &OwnEntry| {
        let mut shown = json!({"index": entry.index});
        match &entry.bytes {
            Some(bytes) => shown["entry"] = BASE64_STANDARD.encode(bytes).into(),
            None => shown["leaf"] = entry.leaf.to_string().into(),
        }
        if let Some(salt) = &entry.tenant_salt {
            shown["tenant_salt"] = BASE64_STANDARD.encode(salt).into();
        }
        shown["proof"] = hashes(&entry.proof).into();
        shown
    };
    let held = own.held.as_ref().map(|(size, proof)| json!({"size": size, "proof": hashes(proof)}));
    json!({
        "object": "isolation.own_entries",
        "version": 1,
        "tenant": own.tenant_name.as_str(),
        "tenant_ref": hex::encode(own.tenant),
        "from": own.from,
        "checkpoint": own.checkpoint,
        "held": held,
        "entries": own.entries.iter().map(entry).collect::<Vec<_>>(),
        "next": next,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_form_and_stand_once() {
        let query = |from, to, held| Some(OwnEntriesQuery { from, to, held });
        assert_eq!(parse(""), query(0, None, None));
        assert_eq!(parse("from=3"), query(3, None, None));
        assert_eq!(parse("to=9&from=3&held=0"), query(3, Some(9), Some(0)));
        for nonsense in [
            "from=",
            "from=-1",
            "from=+1",
            "from=01",
            "from= 1",
            "from=1.0",
            "from=18446744073709551616",
            "from",
            "&",
            "from=1&",
            "from=1&from=1",
            "to=0",
            "from=3&to=3",
            "from=4&to=3",
            "tenant=globex",
            "from=1&x=2",
            "From=1",
            "from=%31",
        ] {
            assert_eq!(parse(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn a_tenant_has_one_turn_and_takes_nobody_else_s() {
        let turns = OwnEntriesTurns::default();
        let [one, two] = [1, 2].map(|number| TenantId::new(number).unwrap());
        turns.begin(one).unwrap();
        assert!(matches!(turns.begin(one), Err(RequestError::OwnEntriesBusy { .. })));
        turns.begin(two).unwrap();
        turns.end(one);
        turns.begin(one).unwrap();
    }

    #[test]
    fn the_rest_is_asked_for_with_the_checkpoint_that_is_held() {
        let checkpoint = "log.example\n17\nroot\n\n— log.example sig\n";
        assert_eq!(next_path((128, 300), checkpoint), "/v1/isolation/mine?from=128&to=300&held=17");
    }
}
