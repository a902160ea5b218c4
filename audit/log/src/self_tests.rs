//! What came of the gateway's trying its own detectors, written down. A failure is an incident of no tenant from its first entry
//! until a test has passed, however many fail meanwhile and however often the gateway is started. What is done about it is not
//! decided here.

use crate::AppendError;
use crate::incidents::IncidentMove;
use crate::keys::random;
use crate::log::{AuditLog, IncidentId, Recorded, lock};
use crate::queue::{Queued, Reply, failed};
use crate::receipt::{TRIES_MAX, Tiles};
use crate::sequence::Draft;
use audit_provenance::{Body, Containment, DetectorTrial, IncidentStage, SelfTest};
use audit_tlog::{TiledTree, TreeReadError, check_inclusion, leaf_hash};
use policies_domain::{Digest, Trial};
use std::io;
use std::sync::{Arc, PoisonError};
use tokio::sync::oneshot;

impl AuditLog {
    /// Records what came of trying the detectors: durable when it returns, with the incident when one of them failed. Blocks. The
    /// entry is owed: it is taken whatever waits. Callers record one at a time.
    ///
    /// # Errors
    /// [`AppendError`]; [`AppendError::SelfTest`] for one that no entry can tell of.
    pub fn record_self_test(
        &self,
        detectors: Vec<DetectorTrial>,
    ) -> Result<(Recorded, Option<IncidentId>), AppendError> {
        let shared = &self.shared;
        let failing = lock(&shared.incidents).failing_self_test();
        let mut test = SelfTest { incident: None, detectors };
        if !test.passed() {
            let new_id = || random().map(|id| *id).map_err(|_| failed("no random bytes"));
            test.incident = Some(failing.map_or_else(new_id, |IncidentId(id)| Ok(id))?);
        }
        if !test.is_consistent() {
            return Err(AppendError::SelfTest);
        }
        let incident = test.incident.map(IncidentId);
        let over = failing.filter(|_| incident.is_none()).map(contained);
        let (reply, placed) = oneshot::channel();
        let draft = |body| Draft::untenanted(body).map_err(|fault| failed(&fault.to_string()));
        let mut queued = vec![Queued { draft: draft(Body::SelfTest(test))?, reply: Reply::Sealed(reply) }];
        if let Some(over) = over {
            // Persons may have closed it in between: then there is nothing to say any more.
            queued.push(Queued { draft: draft(over)?, reply: Reply::Nobody });
        }
        shared.queue.push_owed(queued)?;
        let placed = placed.blocking_recv().map_err(|_| AppendError::Closed)??;
        Ok((Recorded { index: placed.index, leaf_hash: Digest(placed.leaf.0) }, incident))
    }
}

/// What the program says by itself when all detectors work again.
fn contained(incident: IncidentId) -> Body {
    IncidentMove {
        incident,
        to: IncidentStage::Contained,
        actor: None,
        second: None,
        evidence: None,
        action: Containment::EngineDrained,
        notice: None,
    }
    .body()
}

impl AuditLog {
    /// Proves that the newest self-test that is published (the log's first entry where none is) is in the published tree, as for a
    /// receipt, and looks whether the proof holds for it and for nothing else. Reads files.
    #[must_use]
    pub fn try_inclusion(&self) -> Trial {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.prove_self_test() {
                // A newer publication has replaced its partial tiles.
                Err(TreeReadError::Storage { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => {}
                Err(error) => {
                    tracing::error!(%error, "the inclusion of an entry cannot be proved");
                    return Trial::default();
                }
                Ok(trial) => return trial,
            }
        }
    }

    fn prove_self_test(&self) -> Result<Trial, TreeReadError> {
        let shared = &self.shared;
        let published = Arc::clone(&shared.published.read().unwrap_or_else(PoisonError::into_inner));
        let newest = lock(&shared.incidents).newest_self_test().filter(|index| *index < published.size);
        let index = newest.unwrap_or(0);
        let Ok(Some(entry)) = shared.index.entry(index) else { return Ok(Trial::default()) };
        let leaf = leaf_hash(&entry.encode());
        let proof = TiledTree::new(published.size, published.root, &Tiles(&*shared.storage)).prove_inclusion(index)?;
        let holds = |leaf| check_inclusion(&proof, published.size, published.root, index, leaf).is_ok();
        let mut flipped = leaf;
        if let Some(byte) = flipped.0.first_mut() {
            *byte ^= 1;
        }
        Ok(Trial { control_passed: holds(leaf), fault_found: !holds(flipped) })
    }
}
