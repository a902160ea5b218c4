//! Which path answers what, and the routes that need no engine.

use crate::audits::{self, RESULT_BYTES_MAX};
use crate::config::MetricsReaders;
use crate::exchange::{Answer, Exchange, Site};
use crate::gateway::Services;
use crate::generate::Api;
use crate::keeping;
use crate::operators::{DECISION_BYTES_MAX, Decision, Operator, Wanted, parse_id, tenant_view};
use crate::own_entries;
use crate::reply::Reply;
use crate::respond::{Fault, RequestError, refusal};
use crate::serve::serve;
use audit_log::{AppendError, IncidentId};
use gateway_auth::AuthError;
use policies_domain::{Principal, RequestId};
use serde_json::json;
use std::sync::Arc;

const JSON: &str = "application/json";
const OPERATOR_INCIDENT: &str = "/v1/operator/incidents/";
const ERASURES_OF: &str = "/v1/operator/erasures/";
const HOLD: &str = "/v1/operator/holds/";
const ROTATION: &str = "/v1/isolation/rotations/";
const TEXT: &str = "text/plain; charset=utf-8";
/// Receipts in the form of RFC 9942.
const COSE: &str = "application/cose";
const HTML: &str = "text/html; charset=utf-8";
/// Version of the Prometheus text format.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, PartialEq, Eq)]
enum Route {
    Generate(Api),
    Models,
    Model(String),
    Health,
    Ready,
    Metrics,
    Receipt(String),
    VerifierKey,
    Rotation(String),
    Consistency,
    /// A tenant's own entries.
    OwnEntries,
    /// Whether the detectors work.
    SelfTest,
    /// The page that checks a receipt.
    VerifierPage,
    Audits,
    /// What a tenant may know of incidents.
    Incidents,
    /// All incidents, for operators.
    OperatorIncidents,
    OperatorIncident(String),
    /// Erasing keys, for operators.
    Erasures,
    /// A tenant's keys.
    ErasuresOf(String),
    Holds,
    Hold(String),
}

impl Route {
    fn find(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Generate(Api::Chat)),
            "/v1/completions" => Some(Self::Generate(Api::Text)),
            "/v1/models" => Some(Self::Models),
            "/v1/isolation/key" => Some(Self::VerifierKey),
            "/v1/isolation/proof/consistency" => Some(Self::Consistency),
            own_entries::PATH => Some(Self::OwnEntries),
            "/v1/isolation/self-test" => Some(Self::SelfTest),
            "/verify" => Some(Self::VerifierPage),
            "/v1/isolation/audits" => Some(Self::Audits),
            "/v1/isolation/incidents" => Some(Self::Incidents),
            "/v1/operator/incidents" => Some(Self::OperatorIncidents),
            "/v1/operator/erasures" => Some(Self::Erasures),
            "/v1/operator/holds" => Some(Self::Holds),
            "/healthz" => Some(Self::Health),
            "/readyz" => Some(Self::Ready),
            "/metrics" => Some(Self::Metrics),
            _ => {
                let model = path.strip_prefix("/v1/models/").map(|name| Self::Model(name.to_owned()));
                let receipt = || path.strip_prefix("/v1/isolation/receipts/").map(|id| Self::Receipt(id.to_owned()));
                let rotation = || path.strip_prefix(ROTATION).map(|number| Self::Rotation(number.to_owned()));
                let incident = || path.strip_prefix(OPERATOR_INCIDENT).map(|id| Self::OperatorIncident(id.to_owned()));
                let erasures = || path.strip_prefix(ERASURES_OF).map(|tenant| Self::ErasuresOf(tenant.to_owned()));
                let hold = || path.strip_prefix(HOLD).map(|id| Self::Hold(id.to_owned()));
                model.or_else(receipt).or_else(rotation).or_else(incident).or_else(erasures).or_else(hold)
            }
        }
    }

    fn allow(&self) -> &'static str {
        match self {
            Self::Generate(_) | Self::Audits | Self::Erasures | Self::Hold(_) => "POST",
            Self::Models
            | Self::Model(_)
            | Self::Health
            | Self::Ready
            | Self::Metrics
            | Self::Receipt(_)
            | Self::VerifierKey
            | Self::Rotation(_)
            | Self::Consistency
            | Self::OwnEntries
            | Self::SelfTest
            | Self::VerifierPage
            | Self::Incidents
            | Self::OperatorIncidents
            | Self::ErasuresOf(_) => "GET, HEAD",
            Self::OperatorIncident(_) | Self::Holds => "GET, HEAD, POST",
        }
    }

    /// The name in the metrics.
    fn name(&self) -> &'static str {
        match self {
            Self::Generate(Api::Chat) => "chat_completions",
            Self::Generate(Api::Text) => "completions",
            Self::Models => "models",
            Self::Model(_) => "model",
            Self::Health => "healthz",
            Self::Ready => "readyz",
            Self::Metrics => "metrics",
            Self::Receipt(_) => "receipt",
            Self::VerifierKey => "verifier_key",
            Self::Rotation(_) => "rotation",
            Self::Consistency => "consistency",
            Self::OwnEntries => "own_entries",
            Self::SelfTest => "self_test",
            Self::VerifierPage => "verifier_page",
            Self::Audits => "audits",
            Self::Incidents => "incidents",
            Self::OperatorIncidents => "operator_incidents",
            Self::OperatorIncident(_) => "operator_incident",
            Self::Erasures => "operator_erasures",
            Self::ErasuresOf(_) => "operator_erasures_of",
            Self::Holds => "operator_holds",
            Self::Hold(_) => "operator_hold",
        }
    }
}

impl Site for Services {
    async fn answer(self: &Arc<Self>, http: &mut Exchange) {
        let route = Route::find(http.path());
        let name = route.as_ref().map_or("unknown", Route::name);
        let answered = match route {
            None => Err(RequestError::UnknownPath),
            Some(route) => follow(http, route, self).await,
        };
        let status = match answered {
            Ok(()) => http.status().unwrap_or(200),
            Err(error) => refuse(http, &error, self).await,
        };
        let took = http.accepted().elapsed();
        self.metrics.request(name, status, took);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        match http.record() {
            Some(request) => tracing::info!(route = name, status, %request, took_ms, "answered"),
            // Probes and refusals come as often as their senders like.
            None => tracing::debug!(route = name, status, took_ms, "answered"),
        }
    }
}

async fn follow(http: &mut Exchange, route: Route, on: &Arc<Services>) -> Result<(), RequestError> {
    let allow = route.allow();
    if !allow.split(", ").any(|method| method == http.method()) {
        return Err(RequestError::Method { allow });
    }
    let answer = match route {
        Route::Generate(api) => return serve(http, api, on).await,
        Route::Models => models(&authenticate(http, on)?, on),
        Route::Model(name) => model(&authenticate(http, on)?, &name, on)?,
        Route::Health => Answer::new(200, JSON, r#"{"status":"ok"}"#),
        Route::Ready => ready(on),
        Route::Metrics => metrics(http, on)?,
        Route::Receipt(id) => receipt(http, &id, on).await?,
        Route::VerifierKey => Answer::new(200, TEXT, on.audit.verifier_key()),
        Route::Rotation(number) => {
            authenticate(http, on)?;
            rotation(&number, on).await?
        }
        Route::Consistency => consistency(http, on).await?,
        Route::OwnEntries => own_entries::answer(authenticate(http, on)?, http.query(), on).await?,
        Route::SelfTest => {
            authenticate(http, on)?;
            Answer::new(200, JSON, on.self_tests.describe().to_string())
        }
        Route::VerifierPage => verifier_page(),
        Route::Audits => record_audit(http, on).await?,
        Route::Incidents => incidents_of(authenticate(http, on)?, on).await?,
        Route::OperatorIncidents => {
            operator(http, on)?;
            incidents(on).await?
        }
        Route::OperatorIncident(id) => {
            let (who, id) = (operator(http, on)?, parse_id(&id).ok_or(AppendError::NoIncident)?);
            if http.method() == "POST" { move_incident(http, &who, id, on).await? } else { incident(id, on).await? }
        }
        Route::Erasures => {
            let who = operator(http, on)?;
            keeping::erase(http, &who, on).await?
        }
        Route::ErasuresOf(tenant) => {
            operator(http, on)?;
            keeping::keys(&tenant, on)?
        }
        Route::Holds => {
            let who = operator(http, on)?;
            if http.method() == "POST" { keeping::place_hold(http, &who, on).await? } else { keeping::holds(on) }
        }
        Route::Hold(id) => {
            let who = operator(http, on)?;
            keeping::release(http, &who, &id, on).await?
        }
    };
    Ok(http.answer(answer).await?)
}

/// Sends an error if nothing has been sent, ends a stream with it otherwise. Gives the status for the metrics.
async fn refuse(http: &mut Exchange, error: &RequestError, on: &Services) -> u16 {
    let refusal = refusal(error);
    let status = refusal.status;
    // Counted wherever it was found, recorded in the log or not.
    if refusal.fault == Fault::Isolation {
        on.metrics.incident();
    }
    if let RequestError::Gone(_) = error {
        return status;
    }
    if refusal.fault == Fault::Internal {
        tracing::error!(code = refusal.code, %error, "request failed");
    }
    // A client that leaves now misses the reason; nothing else depends on it.
    let _ = if http.is_unanswered() {
        http.answer(refusal.into_answer()).await
    } else {
        Reply::break_off(http, &refusal).await
    };
    status
}

fn authenticate(http: &Exchange, on: &Services) -> Result<Principal, AuthError> {
    on.keys.authenticate(http.credential().as_ref())
}

fn model_object(on: &Services) -> serde_json::Value {
    let (id, fingerprint) = (on.model.as_str(), on.model_fingerprint.to_string());
    json!({
        "id": id, "object": "model", "created": on.started, "owned_by": "bulkhead", "fingerprint": fingerprint,
        "max_model_len": on.engine.context_max(),
    })
}

fn models(principal: &Principal, on: &Services) -> Answer {
    let listed = on.authz.lists(principal, &on.model).then(|| model_object(on));
    let list = json!({"object": "list", "data": listed.as_slice()});
    Answer::new(200, JSON, list.to_string())
}

fn model(principal: &Principal, name: &str, on: &Services) -> Result<Answer, RequestError> {
    let model = on.find_model(name)?;
    if !on.authz.lists(principal, model) {
        return Err(RequestError::UnknownModel);
    }
    Ok(Answer::new(200, JSON, model_object(on).to_string()))
}

fn ready(on: &Services) -> Answer {
    let draining = on.is_draining();
    let (stats, health) = (on.engine.stats(), on.audit.health());
    let log = health.failed.is_none();
    // For people and their alarms: one witness that lies must not take the gateway out of service.
    let witnesses = health.witnesses.iter().all(|witness| witness.alarm.is_none());
    let (engine, workers, detectors) = (stats.alive, !stats.worker_away, !on.self_tests.is_failing());
    let status = if engine && workers && log && detectors && !draining { 200 } else { 503 };
    let body = json!({
        "draining": draining, "engine": engine, "workers": workers, "audit_log": log, "witnesses": witnesses,
        "detectors": detectors,
    });
    Answer::new(status, JSON, body.to_string())
}

fn metrics(http: &Exchange, on: &Services) -> Result<Answer, RequestError> {
    let may_read = match on.metrics_readers {
        MetricsReaders::Everyone => true,
        MetricsReaders::Loopback => http.is_from_loopback(),
        MetricsReaders::Nobody => false,
    };
    if may_read { Ok(Answer::new(200, PROMETHEUS, on.metrics.text())) } else { Err(RequestError::UnknownPath) }
}

/// Another tenant's request and one that never was are answered alike.
async fn receipt(http: &Exchange, id: &str, on: &Arc<Services>) -> Result<Answer, RequestError> {
    let principal = authenticate(http, on)?;
    let request = RequestId::parse(id).ok_or(audit_log::ReceiptError::NotFound)?;
    let audit = on.audit.clone();
    let cose = http.header("accept").is_some_and(prefers_cose);
    let read = tokio::task::spawn_blocking(move || match cose {
        true => audit.cose_receipt(&principal, request).map(|receipt| Answer::new(200, COSE, receipt)),
        false => audit.receipt(&principal, request).map(|receipt| Answer::new(200, TEXT, receipt)),
    });
    let answer = read.await.map_err(|_| RequestError::Internal)??;
    Ok(Answer { headers: vec![("vary", "Accept".to_owned())], ..answer })
}

/// Whether a client takes a COSE receipt, and text no more gladly (RFC 9110 section 12.5.1). Who names neither gets text.
fn prefers_cose(accept: &str) -> bool {
    let quality = |media_type: &str| {
        accept.split(',').find_map(|range| {
            let mut parts = range.split(';').map(str::trim);
            let named = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(media_type));
            let weight = |part: &str| part.strip_prefix("q=").or(part.strip_prefix("Q="))?.parse::<f32>().ok();
            named.then(|| parts.find_map(weight).unwrap_or(1.0))
        })
    };
    let cose = quality(COSE).unwrap_or(0.0);
    cose > 0.0 && cose >= quality("text/plain").unwrap_or(0.0)
}

/// The proof of the entry that names the key after the log's first one, or of a later one, by its number from 1.
async fn rotation(number: &str, on: &Arc<Services>) -> Result<Answer, RequestError> {
    let number = number.parse().ok().filter(|parsed: &u32| parsed.to_string() == number);
    let number = number.ok_or(RequestError::UnknownPath)?;
    let audit = on.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.rotation(number)).await;
    let proof = read.map_err(|_| RequestError::Internal)?.map_err(|error| {
        tracing::error!(number, %error, "the proof of a rotation of the log's key cannot be read");
        RequestError::Internal
    })?;
    Ok(Answer::new(200, TEXT, proof.ok_or(RequestError::UnknownPath)?))
}

/// That the log has only grown since it had `from` entries, for whoever holds a checkpoint of that size.
async fn consistency(http: &Exchange, on: &Arc<Services>) -> Result<Answer, RequestError> {
    authenticate(http, on)?;
    let from = http.query().and_then(|query| query.strip_prefix("from="));
    // Its one decimal form, as in a checkpoint.
    let size = |digits: &str| digits.parse().ok().filter(|size: &u64| size.to_string() == digits);
    let from = from.and_then(size).ok_or(RequestError::ConsistencyFrom)?;
    let audit = on.audit.clone();
    let proved = tokio::task::spawn_blocking(move || audit.consistency(from)).await;
    let proof = proved.map_err(|_| RequestError::Internal)??;
    // A cache that leaves the query out of its keys would answer with the proof of another size.
    let headers = vec![("cache-control", "no-store".to_owned())];
    Ok(Answer { headers, ..Answer::new(200, TEXT, proof) })
}

/// The page that checks a receipt where it is shown. It is for everybody, holds nothing of anybody, and may not load or send
/// anything.
fn verifier_page() -> Answer {
    let page = audit_verify::page();
    let headers = vec![
        ("content-security-policy", page.content_security_policy.clone()),
        // Asked for again each time: nobody checks with the page of an older version.
        ("cache-control", "no-cache".to_owned()),
        ("x-content-type-options", "nosniff".to_owned()),
        ("referrer-policy", "no-referrer".to_owned()),
        ("cross-origin-opener-policy", "same-origin".to_owned()),
        ("cross-origin-resource-policy", "same-origin".to_owned()),
    ];
    Answer { headers, ..Answer::new(200, HTML, page.html.as_str()) }
}

/// Writes what a probe says of the isolation to the log.
async fn record_audit(http: &mut Exchange, on: &Services) -> Result<Answer, RequestError> {
    let principal = authenticate(http, on)?;
    on.audits.admit(&principal, http.accepted())?;
    let audit = audits::parse(&http.body(RESULT_BYTES_MAX).await?)?;
    let verdict = audit.verdict.as_str();
    let recorded = on.audit.record_audit(&principal, audit).await?;
    let (index, leaf) = (recorded.index, recorded.leaf_hash.to_string());
    tracing::info!(tenant = %principal.tenant(), verdict, index, "an audit of the isolation was recorded");
    Ok(Answer::new(201, JSON, json!({"index": index, "leaf": leaf}).to_string()))
}

/// Who looks after incidents says so from this machine or over TLS; for everybody else there is nothing here.
fn operator(http: &Exchange, on: &Services) -> Result<Operator, RequestError> {
    if on.operators.is_empty() || !(http.is_from_loopback() || on.tls) {
        return Err(RequestError::UnknownPath);
    }
    Ok(on.operators.authenticate(http.credential().as_ref())?)
}

/// What the principal's tenant may know: nothing of the other side, and nothing of incidents that do not concern it.
async fn incidents_of(principal: Principal, on: &Arc<Services>) -> Result<Answer, RequestError> {
    let audit = on.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.incidents_of(&principal));
    let incidents = read.await.map_err(|_| RequestError::Internal)??;
    let data: Vec<_> = incidents.iter().filter_map(|(side, report)| tenant_view(*side, report)).collect();
    Ok(Answer::new(200, JSON, json!({"object": "list", "data": data}).to_string()))
}

async fn incidents(on: &Arc<Services>) -> Result<Answer, RequestError> {
    let audit = on.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.incident_reports());
    let (reports, total) = read.await.map_err(|_| RequestError::Internal)??;
    let data: Vec<_> = reports.iter().map(|report| on.operators.describe(report, &on.audit)).collect();
    Ok(Answer::new(200, JSON, json!({"object": "list", "total": total, "data": data}).to_string()))
}

async fn incident(id: IncidentId, on: &Arc<Services>) -> Result<Answer, RequestError> {
    let audit = on.audit.clone();
    let read = tokio::task::spawn_blocking(move || audit.incident_report(id));
    let report = read.await.map_err(|_| RequestError::Internal)??.ok_or(AppendError::NoIncident)?;
    Ok(Answer::new(200, JSON, on.operators.describe(&report, &on.audit).to_string()))
}

/// One person proposes, or says what takes one; the second confirms, and the log has both.
async fn move_incident(
    http: &mut Exchange,
    who: &Operator,
    id: IncidentId,
    on: &Arc<Services>,
) -> Result<Answer, RequestError> {
    let wanted = Wanted::parse(&http.body(DECISION_BYTES_MAX).await?)?;
    let stage = on.audit.incident_stage(id).ok_or(AppendError::NoIncident)?;
    match on.operators.decide(who, id, &wanted, http.accepted())? {
        Decision::Proposed => {
            let body = json!({"proposed": true, "state": stage.as_str(), "needs": "a second person"});
            Ok(Answer::new(202, JSON, body.to_string()))
        }
        Decision::Made { actor, second } => {
            let change = wanted.into_move(id, &actor, second.as_ref(), &on.audit);
            let state = change.to.as_str();
            let recorded = on.audit.move_incident(change).await?;
            tracing::warn!(incident = %id, state, index = recorded.index, "an incident moved");
            let (index, leaf) = (recorded.index, recorded.leaf_hash.to_string());
            Ok(Answer::new(201, JSON, json!({"state": state, "entry": index, "leaf": leaf}).to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_cose_and_no_text_more_gladly_gets_it() {
        for accept in [
            "application/cose",
            "text/plain;q=0.5, Application/COSE",
            "application/cose;v=1; q=0.3, */*",
            "text/plain, application/cose",
        ] {
            assert!(prefers_cose(accept), "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain",
            "application/cose;q=0",
            "application/cose;q=0.2, text/plain",
            "application/cose-key",
            "application/*",
        ] {
            assert!(!prefers_cose(accept), "{accept}");
        }
    }

    #[test]
    fn paths_are_matched_as_a_whole() {
        assert_eq!(Route::find("/v1/completions"), Some(Route::Generate(Api::Text)));
        assert_eq!(Route::find("/v1/models/org/model"), Some(Route::Model("org/model".into())));
        assert_eq!(Route::find("/v1/isolation/receipts/1"), Some(Route::Receipt("1".into())));
        assert_eq!(Route::find("/v1/operator/incidents/1"), Some(Route::OperatorIncident("1".into())));
        for path in ["", "/", "/v1", "/v1/", "/v1/completions/", "/V1/models", "//v1/models", "/v1/isolation", "*"] {
            assert_eq!(Route::find(path), None, "{path}");
        }
    }
}
