//! The story of one generating request, top to bottom.
//!
//! Whatever way it ends, the request leaves a trace: dropping an unsealed `entry` (the client left, a `?` was taken)
//! seals it as aborted, and dropping `steps` frees its pages within one layer of a running prefill.

use crate::exchange::Exchange;
use crate::gateway::Services;
use crate::generate::{Api, Generate, seed_of};
use crate::metrics::Stopwatch;
use crate::replays::Finding;
use crate::reply::{Format, Reply};
use crate::respond::RequestError;
use audit_log::{
    EngineFaultClass, OpenEntry, Outcome, Refused, ReplayOutcome, ReplayTime, RequestFacts, SealReason, Violation,
};
use engine_runtime::{PromptInput, ReplayJob, Sequence, StepError, Steps, SubmitError};
use policies_domain::{Binding, Digest, FinishReason, Layer, Permit, Principal, RequestId};
use std::sync::Arc;

/// Answers one request for a completion, or says why not.
pub(crate) async fn serve(http: &mut Exchange, api: Api, on: &Arc<Services>) -> Result<(), RequestError> {
    let principal = on.keys.authenticate(http.credential().as_ref())?; //     who is asking
    let answered = answer(http, api, on, &principal).await;
    answered.inspect_err(|error| on.metrics.refused(principal.name(), error))
}

async fn answer(http: &mut Exchange, api: Api, on: &Arc<Services>, principal: &Principal) -> Result<(), RequestError> {
    let body = http.body(on.limits.body_bytes_max).await?; //                 nobody unknown gets this far
    on.self_tests.ask()?; //                                                  do the detectors work?
    let outstanding = on.second_opinions.ask(principal.tenant(), || on.audit.auditor_lags())?; // does an auditor read along?
    http.second_opinion_is(outstanding);
    let (request, seal_key) = on.mint_request()?;
    let shape = on.stream_shape(principal.tenant());
    let mut generate = Generate::parse(api, &body, seed_of(request), shape)?; // what is asked, every bound checked
    let model = on.find_model(&generate.model)?;
    let permit = on.authz.permit(principal, request, model, &generate.facts())?; // denied unless a rule allows it

    // From here on the client is watched: when it leaves, what is awaited is dropped.
    let format = Format::of(&generate, api, &permit, on);
    let sequence = http.while_connected(tokenize(on, &permit, generate.prompt)).await??; // carries the permit's label
    let binding = Binding::of(&permit, http.connection());
    let tokenized_for = sequence.request();
    let due = on.replays.due(principal.tenant(), request); //                 is it computed again afterwards?
    generate.sampling.digests = due.digest;
    let asked = due.replay.map(|when| (when, sequence.asked(), generate.sampling.clone()));
    let holds = due.replay == Some(ReplayTime::BeforeRelease);
    let mut held = Vec::new();
    let sealer = seal_key.sealer(Layer::Text, binding);
    let submitted = on.engine.submit(&permit, sequence, generate.sampling, sealer); // prefill begins
    let facts =
        RequestFacts { body: &body, model: on.model_digest, fingerprint: on.model_fingerprint, stream: format.stream };
    let mut entry = http.while_connected(on.audit.open_request(&permit, facts)).await??; // durable before any text is read
    http.on_record(request, seal_key.verifier(Layer::Payload, binding));
    let mut steps = match submitted {
        Ok(steps) => steps, //                                                prefill, then decode
        Err(error) => return Err(give_up(entry, None, error.into(), tokenized_for, &permit).await),
    };

    let mut stopwatch = Stopwatch::start(&on.metrics, permit.principal().name(), http.accepted());
    let mut reply = Reply::new(http, format, &seal_key, binding);
    let reason = loop {
        let step = match reply.next(&mut entry, &mut steps).await {
            Ok(step) => step, //                                              the first text is TTFT, each later gap ITL
            Err(error) => return Err(give_up(entry, Some(steps), error, tokenized_for, &permit).await),
        };
        let tokens = step.tokens;
        let checked = entry.check(step); //                                   every page read flows to this principal
        let Ok(released) = checked else {
            return Err(isolate(entry, Some(steps), &permit).await);
        };
        let finish = released.finish();
        if holds {
            held.push((released, tokens)); //                                 nothing leaves before its replay
        } else if let Err(error) = reply.send(&mut entry, released).await {
            return Err(give_up(entry, Some(steps), error, tokenized_for, &permit).await);
        } else {
            stopwatch.step(tokens, steps.usage());
        } //                                                                  takes nothing but `Released`, as it was sealed
        if let Some(finish) = finish {
            break seal_reason(finish);
        }
    };
    let job = asked.zip(steps.record().cloned());
    let job = job.map(|((when, asked, sampling), answer)| (when, ReplayJob { asked, sampling, answer }));
    let (mut found, mut later) = (None, None);
    match job {
        Some((ReplayTime::BeforeRelease, job)) => {
            let finding = match reply.hold(on.replays.before(principal, job)).await {
                Ok(finding) => finding,
                Err(error) => return Err(give_up(entry, Some(steps), error, tokenized_for, &permit).await),
            };
            if finding.outcome != ReplayOutcome::Same {
                return Err(withhold(entry, &steps, reason, finding, on, &permit).await);
            }
            found = Some(finding);
        }
        // Without a record nothing could be compared: what is due before the release is not released.
        None if holds => {
            return Err(withhold(entry, &steps, reason, Finding::NOT_DONE, on, &permit).await);
        }
        Some((ReplayTime::AfterRelease, job)) => later = Some(job),
        None => {}
    }
    for (released, tokens) in held {
        if let Err(error) = reply.send(&mut entry, released).await {
            return Err(give_up(entry, Some(steps), error, tokenized_for, &permit).await);
        }
        stopwatch.step(tokens, steps.usage());
    }
    if let Err(error) = reply.close(&mut entry, steps.usage()).await {
        return Err(give_up(entry, Some(steps), error, tokenized_for, &permit).await);
    }
    let sealed = entry.seal(outcome(reason, &steps)).await?; //               durable before it is acknowledged
    if let Some(job) = later {
        on.replays.after(principal, sealed, job);
    }
    if let Some(finding) = found {
        on.replays.held_back(principal, &sealed, finding).await;
    }
    reply.finish(&sealed).await?; //                                          the place in the log, and the end
    Ok(())
}

/// Tokenizing is CPU work: it runs beside the async threads, on a bounded number of its own.
async fn tokenize(on: &Arc<Services>, permit: &Permit, prompt: PromptInput) -> Result<Sequence, RequestError> {
    let param = match prompt {
        PromptInput::Chat(_) => "messages",
        PromptInput::Text(_) | PromptInput::Tokens(_) => "prompt",
    };
    let turn = on.tokenizers.take(permit.principal().tenant()).await?;
    let (engine, permit) = (on.engine.clone(), permit.clone());
    let work = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        engine.tokenize(&permit, &prompt)
    });
    let tokenized = work.await.map_err(|_| RequestError::Internal)?;
    tokenized.map_err(|error| RequestError::Tokenize { error, param })
}

/// Ends a request that got no answer, or not all of it: with an incident when that is an isolation fault, with a reason
/// when it was the engine's doing, as aborted otherwise.
async fn give_up(
    mut entry: OpenEntry,
    steps: Option<Steps>,
    error: RequestError,
    tokenized_for: RequestId,
    permit: &Permit,
) -> RequestError {
    match violation(&error, tokenized_for, permit) {
        Some(violation) => {
            entry.fault(violation);
            isolate(entry, steps, permit).await
        }
        None if matches!(error, RequestError::Step(_) | RequestError::Submit(_)) => {
            abandon(entry, steps.as_ref(), error).await
        }
        None => error,
    }
}

/// What an error says about isolation.
fn violation(error: &RequestError, tokenized_for: RequestId, permit: &Permit) -> Option<Violation> {
    match *error {
        RequestError::Step(StepError::PageFault { page, layer }) => Some(Violation::PageFault { page, layer }),
        RequestError::Step(StepError::ReadSet) => Some(Violation::ReadSet),
        RequestError::Step(StepError::RowBinding) => Some(Violation::RowBinding),
        RequestError::Step(StepError::Handoff { .. }) => Some(Violation::Handoff),
        RequestError::Seal { leg, error } => Some(Violation::Seal { leg, error }),
        RequestError::Submit(SubmitError::PermitMismatch) => {
            Some(Violation::RequestMismatch { step: 0, held: tokenized_for, wanted: permit.request() })
        }
        _ => None,
    }
}

/// After a violation nothing more is sent; the incident is durable before the client hears of it.
async fn isolate(entry: OpenEntry, steps: Option<Steps>, permit: &Permit) -> RequestError {
    drop(steps);
    let (request, tenant) = (permit.request(), permit.principal().tenant());
    match entry.refuse().await {
        Ok(Refused { incident, .. }) => {
            tracing::error!(%request, %tenant, %incident, "isolation fault: response stopped");
            RequestError::Isolation { incident: Some(incident) }
        }
        // A fault that could not be recorded is still a fault, and not less of one.
        Err(error) => {
            tracing::error!(%request, %tenant, %error, "isolation fault: response stopped, incident not recorded");
            RequestError::Isolation { incident: None }
        }
    }
}

/// Ends an answer that was held back and is not released: because computed again it has other bits, which is an isolation
/// fault, or because it could not be computed again in time.
async fn withhold(
    mut entry: OpenEntry,
    steps: &Steps,
    reason: SealReason,
    finding: Finding,
    on: &Services,
    permit: &Permit,
) -> RequestError {
    let (request, tenant) = (permit.request(), permit.principal().tenant());
    let sealed = if finding.outcome == ReplayOutcome::Different {
        entry.fault(Violation::Replay);
        match entry.refuse_as(outcome(reason, steps)).await {
            Ok(Refused { incident, sealed }) => {
                tracing::error!(%request, %tenant, %incident, "isolation fault: an answer differs when it is computed again");
                Ok((sealed, RequestError::Isolation { incident: Some(incident) }))
            }
            Err(error) => {
                tracing::error!(%request, %tenant, %error, "isolation fault: response stopped, incident not recorded");
                Err(RequestError::Isolation { incident: None })
            }
        }
    } else {
        let sealed = entry.seal(outcome(SealReason::Error, steps)).await;
        sealed.map(|sealed| (sealed, RequestError::NotReplayed)).map_err(RequestError::from)
    };
    match sealed {
        Ok((sealed, error)) => {
            on.replays.held_back(permit.principal(), &sealed, finding).await;
            error
        }
        Err(error) => error,
    }
}

/// Seals a request that the engine failed or did not take. The client is told the first cause.
async fn abandon(mut entry: OpenEntry, steps: Option<&Steps>, error: RequestError) -> RequestError {
    if let RequestError::Step(StepError::NotANumber) = error {
        entry.engine_fault(EngineFaultClass::NotANumber);
    } else if let RequestError::Step(StepError::Internal) = error {
        entry.engine_fault(EngineFaultClass::Internal);
    }
    let outcome = steps.map_or_else(|| nothing_done(SealReason::Error), |steps| outcome(SealReason::Error, steps));
    match entry.seal(outcome).await {
        Ok(_) => error,
        Err(append) => append.into(),
    }
}

fn seal_reason(finish: FinishReason) -> SealReason {
    match finish {
        FinishReason::Stop => SealReason::Stop,
        FinishReason::Length => SealReason::Length,
    }
}

fn outcome(reason: SealReason, steps: &Steps) -> Outcome {
    let (usage, timings) = (steps.usage(), steps.timings());
    Outcome {
        reason,
        prompt_tokens: usage.prompt_tokens as u64,
        completion_tokens: usage.completion_tokens as u64,
        queued_us: timings.queued_us,
        prefill_us: timings.prefill_us,
        decode_us: timings.decode_us,
        replay: steps.record().map(|record| Digest(record.digest())),
    }
}

fn nothing_done(reason: SealReason) -> Outcome {
    Outcome { reason, prompt_tokens: 0, completion_tokens: 0, queued_us: 0, prefill_us: 0, decode_us: 0, replay: None }
}

#[cfg(test)]
mod catalogue;
#[cfg(test)]
mod constant_shape;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::respond::{Fault, refusal};
    use audit_log::{AuditConfig, AuditLog};
    use engine_runtime::Check;
    use gateway_auth::{ApiKey, KeyRing, KeySecret, TenantKey};
    use policies_authz::{Authz, Facts};
    use policies_domain::{Credential, ModelName, PageId, TenantName};

    pub(super) fn permit(folder: &std::path::Path) -> Permit {
        let (secret, key) = (KeySecret::open_or_create(&folder.join("key-secret")).unwrap(), ApiKey::mint().unwrap());
        let acme = TenantKey { tenant: TenantName::parse("acme").unwrap(), hash: secret.hash(&key) };
        let ring = KeyRing::new(secret, &[acme]).unwrap();
        let principal = ring.authenticate(Some(&Credential::new(key.reveal().to_owned()))).unwrap();
        let (model, facts) = (ModelName::parse("smol").unwrap(), Facts { completion_tokens_max: None });
        let authz = Authz::read(Authz::DEFAULT_RULES).unwrap();
        authz.permit(&principal, RequestId::from_bytes([1; 16]), &model, &facts).unwrap()
    }

    #[tokio::test]
    async fn every_isolation_fault_of_the_engine_is_an_incident_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let permit = permit(folder.path());
        let audit = AuditLog::open(AuditConfig::new(folder.path().join("log"), "localhost/test")).unwrap();
        let other = RequestId::from_bytes([2; 16]);
        let faults: [RequestError; 5] = [
            SubmitError::PermitMismatch.into(),
            StepError::PageFault { page: PageId(3), layer: 0 }.into(),
            StepError::ReadSet.into(),
            StepError::RowBinding.into(),
            StepError::Handoff { check: Check::V7 }.into(),
        ];
        for error in faults {
            assert_eq!(refusal(&error).fault, Fault::Isolation);
            let digest = Digest([0; 32]);
            let facts = RequestFacts { body: b"{}", model: digest, fingerprint: digest, stream: false };
            let entry = audit.open_request(&permit, facts).await.unwrap();
            let error = give_up(entry, None, error, other, &permit).await;
            assert!(matches!(error, RequestError::Isolation { incident: Some(_) }), "{error}");
        }
        audit.shutdown();
    }

    #[tokio::test]
    async fn other_failures_of_the_engine_are_no_incidents() {
        let folder = tempfile::tempdir().unwrap();
        let permit = permit(folder.path());
        for error in [SubmitError::Full { retry_after_ms: 1 }.into(), StepError::NotANumber.into()] {
            assert_eq!(violation(&error, permit.request(), &permit), None, "{error}");
            assert_ne!(refusal(&error).fault, Fault::Isolation);
        }
    }
}
