//! What came of computing a response again, written down behind its sealed entry, in its tenant's chain.

use crate::keys::random;
use crate::log::AuditLog;
use crate::open_entry::Sealed;
use crate::queue::{Queued, Reply, failed};
use crate::sequence::Draft;
use crate::{AppendError, IncidentId};
use audit_provenance::{Body, Incident, IncidentClass, Replay, ReplayOutcome, ReplayTime};
use tokio::sync::oneshot;

/// What came of computing a response again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replayed {
    /// What came out.
    pub outcome: ReplayOutcome,
    /// Tokens of the answer that were computed again.
    pub tokens: u64,
    /// Place of the first token that differs, where one does.
    pub first_difference: Option<u64>,
    /// Whether the answer had left.
    pub when: ReplayTime,
    /// Processor time that it took, in microseconds.
    pub cpu_us: u64,
}

impl AuditLog {
    /// Records a replay. One that came out different after the release gets its incident here, before it; before the release
    /// [`crate::OpenEntry::refuse_as`] has written that. Durable when it returns. The entry is owed like a sealed one: it is
    /// taken whatever waits. Callers bound how many replays are under way.
    ///
    /// # Errors
    /// [`AppendError`].
    ///
    /// # Cancel safety
    /// Once polled, the entries are written even if the future is dropped.
    pub async fn record_replay(&self, sealed: &Sealed, replayed: Replayed) -> Result<Option<IncidentId>, AppendError> {
        let no_random = |_| failed("no random bytes");
        let response = &sealed.response;
        let late = replayed.outcome == ReplayOutcome::Different && replayed.when == ReplayTime::AfterRelease;
        let incident = if late { Some(IncidentId(*random().map_err(no_random)?)) } else { None };
        let incident_body = incident.map(|IncidentId(id)| {
            Body::Incident(Incident {
                incident: id,
                class: IncidentClass::Replay,
                bytes_released: response.bytes_released,
                step: None,
                page: None,
                generation: None,
                request: response.request,
                opened_index: response.opened_index,
                opened_leaf: response.opened_leaf,
                victim: None,
            })
        });
        let replay_body = Body::Replay(Replay {
            request: response.request,
            sealed_index: sealed.index,
            sealed_leaf: sealed.leaf_hash,
            outcome: replayed.outcome,
            tokens: replayed.tokens,
            first_difference: replayed.first_difference,
            when: replayed.when,
            cpu_us: replayed.cpu_us,
        });
        let mut queued = Vec::with_capacity(2);
        for body in incident_body.into_iter().chain([replay_body]) {
            let uuid = *random().map_err(no_random)?;
            let draft = Draft { uuid, tenant: Some(response.tenant), body, trace: None };
            queued.push(Queued { draft, reply: Reply::Nobody });
        }
        let (reply, placed) = oneshot::channel();
        if let Some(last) = queued.last_mut() {
            last.reply = Reply::Sealed(reply);
        }
        self.shared.queue.push_owed(queued)?;
        placed.await.map_err(|_| AppendError::Closed)??;
        Ok(incident)
    }
}
