//! A request between its first and its last entry: every step passes the gate here, every payload is chained here.

use crate::incidents::IncidentMove;
use crate::keys::random;
use crate::log::Shared;
use crate::queue::{Queued, Reply};
use crate::sequence::{Draft, Placed};
use crate::{AppendError, IncidentId};
use audit_provenance::{
    Body, ChunkChain, ChunkRuns, Commitment, Containment, Coverage, EngineFault, EngineFaultClass, Field, Gate,
    Incident, IncidentClass, IncidentStage, Leg, Openings, Released, ReleasedSteps, Salt, SealReason, Sealing,
    TenantRef, Trace, Violation,
};
use policies_domain::{Digest, Label, PageId, Permit, RequestId, Step, TenantId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::sync::oneshot;

/// How a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended. After a violation it is written as `Isolation`, whatever stands here.
    pub reason: SealReason,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens sampled, as billed.
    pub completion_tokens: u64,
    /// Time in the queue, in microseconds.
    pub queued_us: u64,
    /// Time in prefill, in microseconds.
    pub prefill_us: u64,
    /// Time in decode, in microseconds.
    pub decode_us: u64,
    /// The replay digest, where the engine made one.
    pub replay: Option<Digest>,
}

/// A sealed response's place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sealed {
    /// Index of the sealed entry.
    pub index: u64,
    /// Its leaf hash.
    pub leaf_hash: Digest,
    /// Head of the chunk chain.
    pub chain_head: Digest,
    /// Payloads in the chain.
    pub chunks: u64,
    pub(crate) response: SealedResponse,
}

/// What the log needs to know of a sealed response to write down what came of computing it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealedResponse {
    pub(crate) request: RequestId,
    pub(crate) tenant: TenantRef,
    pub(crate) opened_index: u64,
    pub(crate) opened_leaf: Digest,
    pub(crate) bytes_released: u64,
}

/// A response that an isolation fault ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// The incident.
    pub incident: IncidentId,
    /// The response's place in the log.
    pub sealed: Sealed,
}

/// A request that is recorded and not sealed. Dropping it seals it: as aborted, or with an incident after a violation.
pub struct OpenEntry {
    shared: Arc<Shared>,
    request: RequestId,
    tenant: TenantRef,
    label: Label,
    gate: Gate,
    chain: ChunkChain,
    runs: ChunkRuns,
    response: Commitment,
    replay: Option<Salt>,
    bytes_sent: u64,
    engine_fault: Option<EngineFaultClass>,
    /// Place of the opened entry; gone once the last entries are made.
    opened: Option<(u64, Digest)>,
}

impl std::fmt::Debug for OpenEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenEntry")
            .field("request", &self.request)
            .field("opened", &self.opened)
            .finish_non_exhaustive()
    }
}

impl OpenEntry {
    /// Counts among the open requests from here until it is dropped.
    pub(crate) fn new(
        shared: Arc<Shared>,
        permit: &Permit,
        tenant: TenantRef,
        openings: &Openings,
        commitment: &[u8; 32],
    ) -> Self {
        shared.open_requests.fetch_add(1, Ordering::Relaxed);
        Self {
            shared,
            request: permit.request(),
            tenant,
            label: permit.label(),
            gate: Gate::new(permit),
            chain: ChunkChain::new(&openings.chunks, commitment),
            runs: ChunkRuns::default(),
            response: Commitment::new(Field::Response, &openings.response),
            replay: openings.replay,
            bytes_sent: 0,
            engine_fault: None,
            opened: None,
        }
    }

    /// From here on it is owed a sealed entry.
    pub(crate) fn opened_at(&mut self, placed: &Placed) {
        self.opened = Some((placed.index, Digest(placed.leaf.0)));
    }

    /// The request.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// Releases the step's text if everything that it read may reach the principal.
    ///
    /// # Errors
    /// The violation; nothing more may be sent, and [`OpenEntry::refuse`] writes the incident.
    pub fn check(&mut self, step: Step) -> Result<Released, Violation> {
        self.gate.check(step)
    }

    /// Notes a violation that the engine reported.
    pub fn fault(&mut self, violation: Violation) {
        self.gate.close(violation);
    }

    /// Notes that the engine failed, without an isolation fault. The request gets a fault entry and ends as an error.
    pub fn engine_fault(&mut self, class: EngineFaultClass) {
        self.engine_fault = Some(class);
    }

    /// Adds a payload that goes out: an SSE event's data or a whole body, framing excluded.
    pub fn sent(&mut self, payload: &[u8], released: &Released) {
        self.sent_of(payload, released.steps());
    }

    /// The same for a payload that does not hold the text of its steps as they made it: the beginning of one, several, or
    /// none of it.
    pub fn sent_of(&mut self, payload: &[u8], steps: ReleasedSteps) {
        self.chain.push(payload, steps.first(), steps.last());
        self.runs.push(steps.first(), steps.last());
        self.response.update(payload);
        self.bytes_sent = self.bytes_sent.saturating_add(payload.len() as u64);
    }

    /// After a violation: writes the incident and seals. Durable when it returns.
    ///
    /// # Errors
    /// [`AppendError::NoViolation`] when there was none (the request is then sealed as aborted), and those of the log.
    ///
    /// # Cancel safety
    /// Once polled, both entries are written even if the future is dropped; before, dropping it does the same.
    pub async fn refuse(self) -> Result<Refused, AppendError> {
        let outcome = self.partial(SealReason::Isolation);
        self.refuse_as(outcome).await
    }

    /// The same for a response that had come to its end, with what is known of it.
    ///
    /// # Errors
    /// As [`OpenEntry::refuse`].
    ///
    /// # Cancel safety
    /// As [`OpenEntry::refuse`].
    pub async fn refuse_as(mut self, outcome: Outcome) -> Result<Refused, AppendError> {
        let Some(last) = self.last_entries(&outcome)? else {
            return Err(AppendError::Closed);
        };
        let Some(incident) = last.incident else {
            self.shared.queue.push_owed(last.into_queued(Reply::Nobody))?;
            return Err(AppendError::NoViolation);
        };
        let (reply, placed) = oneshot::channel();
        let response = last.response;
        self.shared.queue.push_owed(last.into_queued(Reply::Sealed(reply)))?;
        let placed = placed.await.map_err(|_| AppendError::Closed)??;
        Ok(Refused { incident, sealed: self.sealed(&placed, response) })
    }

    /// Seals. Durable when it returns.
    ///
    /// # Errors
    /// Those of the log.
    ///
    /// # Cancel safety
    /// Once polled, the entry is written even if the future is dropped; before, dropping it seals it as aborted.
    pub async fn seal(mut self, outcome: Outcome) -> Result<Sealed, AppendError> {
        let Some(last) = self.last_entries(&outcome)? else { return Err(AppendError::Closed) };
        let (reply, placed) = oneshot::channel();
        let response = last.response;
        self.shared.queue.push_owed(last.into_queued(Reply::Sealed(reply)))?;
        let placed = placed.await.map_err(|_| AppendError::Closed)??;
        Ok(self.sealed(&placed, response))
    }

    fn sealed(&self, placed: &Placed, response: SealedResponse) -> Sealed {
        Sealed {
            index: placed.index,
            leaf_hash: Digest(placed.leaf.0),
            chain_head: Digest(self.chain.head()),
            chunks: self.chain.chunks(),
            response,
        }
    }

    /// What is known of a response that did not come to its end.
    fn partial(&self, reason: SealReason) -> Outcome {
        let completion_tokens = self.gate.tokens();
        Outcome { reason, prompt_tokens: 0, completion_tokens, queued_us: 0, prefill_us: 0, decode_us: 0, replay: None }
    }

    /// Makes the incident and the fault, if there are any, and the sealed entry; only the first call does.
    fn last_entries(&mut self, outcome: &Outcome) -> Result<Option<LastEntries>, AppendError> {
        let Some((opened_index, opened_leaf)) = self.opened.take() else { return Ok(None) };
        let no_random = |_| crate::queue::failed("no random bytes");
        let violation = self.gate.closed_by().cloned();
        let incident = match &violation {
            Some(violation) => {
                let incident = self.incident(violation, *random().map_err(no_random)?, opened_index, opened_leaf);
                let id = IncidentId(incident.incident);
                // The request ends here and nothing more of it leaves: that waits for nobody.
                let contained = contained(id);
                let draft = |uuid, body| Draft { uuid, tenant: Some(self.tenant), body, trace: None };
                let detected = draft(*random().map_err(no_random)?, Body::Incident(incident));
                Some((id, [detected, draft(*random().map_err(no_random)?, contained.body())]))
            }
            None => None,
        };
        let trace = Trace::new(&self.gate.records(), self.label, std::mem::take(&mut self.runs).into_runs()).encode();
        let fault = self.engine_fault.map(|class| EngineFault {
            class,
            steps: self.gate.steps().into(),
            bytes_released: self.bytes_sent,
            request: self.request,
            opened_index,
            opened_leaf,
        });
        let fault = match fault {
            Some(fault) => Some(Draft {
                uuid: *random().map_err(no_random)?,
                tenant: Some(self.tenant),
                body: Body::Fault(fault),
                trace: None,
            }),
            None => None,
        };
        let reason = match (&violation, &fault, outcome.reason) {
            (Some(_), ..) => SealReason::Isolation,
            // A failed answer is not passed off as a finished one, nor as its client's doing.
            (None, Some(_), _) => SealReason::Error,
            // Nobody may claim an incident that is not in the log.
            (None, None, SealReason::Isolation) => SealReason::Aborted,
            (None, None, reason) => reason,
        };
        let sealing = Sealing {
            request: self.request,
            opened_index,
            opened_leaf,
            reason,
            response: Some(self.response.clone().finish()),
            chain: Some(self.chain.head()),
            chunks: self.chain.chunks(),
            steps: self.gate.steps().into(),
            prompt_tokens: outcome.prompt_tokens,
            completion_tokens: outcome.completion_tokens,
            pages: self.gate.pages(),
            trace: Some(Trace::root(&trace)),
            queued_us: outcome.queued_us,
            prefill_us: outcome.prefill_us,
            decode_us: outcome.decode_us,
            coverage: Coverage {
                label_gate: true,
                kernel_tags: self.shared.kernel_tag_check,
                handover: self.shared.handover,
            },
            replay: outcome
                .replay
                .zip(self.replay)
                .map(|(digest, salt)| Commitment::of(Field::Replay, &salt, &digest.0)),
        };
        let sealed = Draft {
            uuid: *random().map_err(no_random)?,
            tenant: Some(self.tenant),
            body: Body::Sealed(sealing),
            trace: Some(trace),
        };
        let (id, incident) = incident.unzip();
        let response = SealedResponse {
            request: self.request,
            tenant: self.tenant,
            opened_index,
            opened_leaf,
            bytes_released: self.bytes_sent,
        };
        let drafts = incident.into_iter().flatten().chain(fault).chain([sealed]).collect();
        Ok(Some(LastEntries { incident: id, response, drafts }))
    }

    fn incident(&self, violation: &Violation, id: [u8; 16], opened_index: u64, opened_leaf: Digest) -> Incident {
        let (class, step, page, generation, held) = match violation {
            Violation::ForeignPage { step, page, generation, held, .. } => {
                let nobody = *held == Label::NOBODY;
                let class = if nobody { IncidentClass::UnlabelledPage } else { IncidentClass::ForeignPage };
                (class, Some(*step), Some(*page), Some(generation.0), Some(*held))
            }
            Violation::StaleGeneration { step, page, held, .. } => {
                (IncidentClass::Generation, Some(*step), Some(*page), Some(held.0), None)
            }
            Violation::PageFault { page, .. } => (IncidentClass::Tag, None, Some(*page), None, None),
            Violation::ReadSet => (IncidentClass::ReadSet, None, None, None, None),
            Violation::Handoff => (IncidentClass::Handoff, None, None, None, None),
            Violation::RowBinding => (IncidentClass::RowBinding, None, None, None, None),
            Violation::Replay => (IncidentClass::Replay, None, None, None, None),
            Violation::Seal { leg, error } => {
                let (class, step) = match leg {
                    Leg::EngineOutput => (IncidentClass::EngineOutput, Some(error.index())),
                    Leg::GatewayTask => (IncidentClass::GatewayTask, Some(error.index())),
                    // Counts payloads there, not steps.
                    Leg::ClientSocket => (IncidentClass::ClientSocket, None),
                };
                let held = error.foreign().map(|held| held.label).filter(|label| *label != self.label);
                (class, step, None, None, held)
            }
            Violation::StepGap { held: step, .. } | Violation::TraceGap { step, .. } => {
                (IncidentClass::StepGap, Some(*step), None, None, None)
            }
            Violation::RequestMismatch { step, .. } => (IncidentClass::RequestMismatch, Some(*step), None, None, None),
        };
        Incident {
            incident: id,
            class,
            bytes_released: self.bytes_sent,
            step,
            page: page.map(|PageId(page)| page),
            generation,
            request: self.request,
            opened_index,
            opened_leaf,
            // A tenant's pages exist only after one of its requests was opened, so its reference is known.
            victim: held.and_then(tenant_of).and_then(|tenant| self.shared.tenant_ref(tenant)),
        }
    }
}

/// What the program itself does about an incident: it ends the request.
fn contained(incident: IncidentId) -> IncidentMove {
    let (to, action) = (IncidentStage::Contained, Containment::RequestEnded);
    IncidentMove { incident, to, actor: None, second: None, evidence: None, action, notice: None }
}

/// A label's tenant, if it is one tenant's.
fn tenant_of(label: Label) -> Option<TenantId> {
    label.bits().checked_sub(1).and_then(TenantId::new)
}

/// The entries that end a request, the sealed one last.
struct LastEntries {
    incident: Option<IncidentId>,
    response: SealedResponse,
    drafts: Vec<Draft>,
}

impl LastEntries {
    /// The reply belongs to the sealed entry, which comes last.
    fn into_queued(self, reply: Reply) -> Vec<Queued> {
        let mut queued: Vec<_> = self.drafts.into_iter().map(|draft| Queued { draft, reply: Reply::Nobody }).collect();
        if let Some(last) = queued.last_mut() {
            last.reply = reply;
        }
        queued
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        let outcome = self.partial(SealReason::Aborted);
        if let Ok(Some(last)) = self.last_entries(&outcome) {
            // When the log has ended, the next start seals the request as crashed.
            let _ended = self.shared.queue.push_owed(last.into_queued(Reply::Nobody));
        }
        self.shared.open_requests.fetch_sub(1, Ordering::Relaxed);
    }
}
