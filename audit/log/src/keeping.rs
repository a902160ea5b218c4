//! Holding and erasing. What is held is not destroyed: the sequencer asks the fold over the log before it writes. An erasure is
//! durable before the key is touched, and what is erased is destroyed wherever it is found, now or at any start: a crash on the
//! way is finished, and a key that comes back from a backup is of no use.

use crate::AppendError;
use crate::clock::Clock;
use crate::fault::LogFault;
use crate::keys::{Keys, random};
use crate::log::{AuditLog, RETRY_ERASED_MS, Recorded, Shared, lock};
use crate::queue::{Queued, Reply, failed};
use crate::sequence::{Commit, Draft};
use audit_provenance::{
    ActorRef, Body, EpochKey, Erased, Erasure, ErasureAt, ErasureBasis, Held, Hold, HoldReason, Keeping, KeepingError,
    Release, TenantRef,
};
use policies_domain::{Digest, TenantName};
use std::collections::BTreeMap;
use tokio::sync::oneshot;

/// Takes a committed batch in.
pub(crate) fn note_batch(keeping: &mut Keeping, commit: &Commit) -> Result<(), LogFault> {
    let mut batch = commit.entries.iter().zip(&commit.said);
    let noted = batch.try_for_each(|(placed, entry)| keeping.note(placed.index, Digest(placed.leaf.0), entry));
    noted.map_err(|_| LogFault::Keeping)
}

/// Takes out of a batch what may not be written, and tells whoever wanted it. What changes the fold comes in a batch of its own.
pub(crate) fn refuse_kept(keeping: &Keeping, clock: &dyn Clock, queued: Vec<Queued>) -> Vec<Queued> {
    let mut kept = Vec::with_capacity(queued.len());
    for Queued { draft, reply } in queued {
        // The time matters to a prune alone.
        let wall_us = if let Body::Prune(_) = draft.body { clock.wall_us() } else { 0 };
        match (keeping.check_body(u64::MAX, wall_us, draft.tenant, &draft.body), &draft.body) {
            (Ok(()), _) => kept.push(Queued { draft, reply }),
            // Its key was erased while it was on its way; the next try gets another one.
            (Err(KeepingError::ErasedKey { .. }), Body::Opened(_)) => {
                reply.refuse(AppendError::Busy { retry_after_ms: RETRY_ERASED_MS });
            }
            (Err(error), _) => reply.refuse(AppendError::Keeping(error)),
        }
    }
    kept
}

/// Destroys the key that a committed batch erases. The entry that says so is still to be written.
pub(crate) fn erased(shared: &Shared, commit: &Commit) -> Result<Option<Draft>, LogFault> {
    // An erasure stands alone in its batch.
    let (Some(placed), Some(entry)) = (commit.entries.first(), commit.said.first()) else { return Ok(None) };
    let (Body::Erasure(erasure), Some(link)) = (&entry.body, entry.head.tenant) else { return Ok(None) };
    let key = (link.tenant, erasure.epoch);
    shared.keys.forget(&[key]);
    let files = shared.keys.destroy_forgotten()?.get(&key).copied().unwrap_or_default();
    done(key, placed.index, Digest(placed.leaf.0), files).map(Some)
}

/// At a start: destroys what is erased and was found again. What was ordered and never said to be done is said now.
pub(crate) fn destroy_again(keys: &Keys, keeping: &Keeping) -> Result<Vec<Draft>, LogFault> {
    let destroyed = keys.destroy_forgotten()?;
    let mut erasures: Vec<(TenantRef, u64, ErasureAt)> = keeping.erasures().collect();
    erasures.sort_unstable_by_key(|(_, _, at)| at.index);
    let mut drafts = Vec::new();
    for (tenant, epoch, at) in erasures {
        let files = destroyed.get(&(tenant, epoch)).copied().unwrap_or_default();
        if files > 0 && at.done > 0 {
            tracing::warn!(epoch, files, erasure = at.index, "an erased key had come back and was destroyed again");
        }
        if files > 0 || at.done == 0 {
            drafts.push(done((tenant, epoch), at.index, at.leaf, files)?);
        }
    }
    Ok(drafts)
}

fn done((tenant, epoch): (TenantRef, u64), index: u64, leaf: Digest, files: u64) -> Result<Draft, LogFault> {
    let erased = Erased { epoch, erasure_index: index, erasure_leaf: leaf, files };
    Draft::new(Some(tenant), Body::Erased(erased))
}

/// An erasure that persons want.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EraseKey {
    /// Whose key.
    pub tenant: TenantName,
    /// Of which epoch.
    pub epoch: u64,
    /// Why.
    pub basis: ErasureBasis,
    /// Who asked for it.
    pub actor: ActorRef,
    /// The second person, another one.
    pub second: ActorRef,
}

/// A hold that somebody wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceHold {
    /// Whose; everybody's when it is `None`.
    pub tenant: Option<TenantName>,
    /// First moment, in microseconds since 1970.
    pub first_us: u64,
    /// Last moment; what comes is held, too, when it is `None`.
    pub last_us: Option<u64>,
    /// Why.
    pub reason: HoldReason,
    /// Who asked for it.
    pub actor: ActorRef,
}

/// A hold's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HoldId(pub [u8; 16]);

impl std::fmt::Display for HoldId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl AuditLog {
    /// Erases a tenant's commitment key of one epoch: what was committed to with it cannot be opened any more, by nobody but who
    /// holds receipts. When it returns the key is gone from memory and from the device, and the log says so. Requests that are
    /// open end as they would; the tenant's next ones are committed to with the key of another epoch.
    ///
    /// # Errors
    /// [`AppendError::Keeping`] when it is held or was erased before, [`AppendError::NothingKept`] when there is no such key and
    /// never was, and those of the log.
    ///
    /// # Cancel safety
    /// Once polled to the end of its first part, which reads files, the key is erased even if the future is dropped.
    pub async fn erase_key(&self, wanted: EraseKey) -> Result<Recorded, AppendError> {
        let EraseKey { tenant, epoch, basis, actor, second } = wanted;
        let tenant = self.shared.keys.tenant_ref(&tenant);
        let known = lock(&self.shared.keeping).keys_of(tenant).contains_key(&epoch);
        if !known && !self.has_key(tenant, epoch).await? {
            return Err(AppendError::NothingKept);
        }
        self.record(Some(tenant), Body::Erasure(Erasure { epoch, key: None, basis, actor, second })).await
    }

    async fn has_key(&self, tenant: TenantRef, epoch: u64) -> Result<bool, AppendError> {
        let keys = std::sync::Arc::clone(&self.shared.keys);
        let read = tokio::task::spawn_blocking(move || keys.has_key(tenant, epoch));
        read.await.map_err(|_| AppendError::Closed)?.map_err(|fault| failed(&fault.to_string()))
    }

    /// Places a hold. Durable when it returns.
    ///
    /// # Errors
    /// [`AppendError::NothingKept`] for a tenant that has no entries, and those of the log.
    ///
    /// # Cancel safety
    /// Once polled, the entry is written even if the future is dropped.
    pub async fn place_hold(&self, wanted: PlaceHold) -> Result<(HoldId, Recorded), AppendError> {
        let tenant = wanted.tenant.map(|name| self.shared.keys.tenant_ref(&name));
        if tenant.is_some_and(|tenant| self.shared.index.entries_of(tenant) == 0) {
            return Err(AppendError::NothingKept);
        }
        let hold: [u8; 16] = *random().map_err(|_| failed("no random bytes"))?;
        let PlaceHold { first_us, last_us, reason, actor, .. } = wanted;
        let body = Body::Hold(Hold { hold, first_us, last_us, reason, actor });
        Ok((HoldId(hold), self.record(tenant, body).await?))
    }

    /// Ends a hold. Durable when it returns.
    ///
    /// # Errors
    /// [`AppendError::Keeping`] when there is no such hold, and those of the log.
    ///
    /// # Cancel safety
    /// Once polled, the entry is written even if the future is dropped.
    pub async fn release_hold(&self, hold: HoldId, actor: ActorRef, second: ActorRef) -> Result<Recorded, AppendError> {
        let held = lock(&self.shared.keeping).holds().get(&hold.0).map(|held| held.tenant);
        let tenant = held.ok_or(KeepingError::NoHold)?;
        self.record(tenant, Body::Release(Release { hold: hold.0, actor, second })).await
    }

    /// What is held, the oldest first.
    #[must_use]
    pub fn holds(&self) -> Vec<Held> {
        let mut holds: Vec<Held> = lock(&self.shared.keeping).holds().values().cloned().collect();
        holds.sort_unstable_by_key(|held| held.index);
        holds
    }

    /// A tenant's commitment keys that were used or erased, by epoch.
    #[must_use]
    pub fn epoch_keys(&self, tenant: &TenantName) -> BTreeMap<u64, EpochKey> {
        lock(&self.shared.keeping).keys_of(self.shared.keys.tenant_ref(tenant))
    }

    /// Whether a tenant's key of an epoch may be erased now.
    ///
    /// # Errors
    /// [`AppendError::Keeping`].
    pub fn may_erase(&self, tenant: &TenantName, epoch: u64) -> Result<(), AppendError> {
        Ok(lock(&self.shared.keeping).may_erase(self.shared.keys.tenant_ref(tenant), epoch)?)
    }

    /// A tenant as entries name it.
    #[must_use]
    pub fn tenant_ref(&self, tenant: &TenantName) -> TenantRef {
        self.shared.keys.tenant_ref(tenant)
    }

    async fn record(&self, tenant: Option<TenantRef>, body: Body) -> Result<Recorded, AppendError> {
        let draft = Draft::new(tenant, body).map_err(|_| failed("no random bytes"))?;
        let (reply, placed) = oneshot::channel();
        self.shared.queue.push_new(Queued { draft, reply: Reply::Sealed(reply) })?;
        let placed = placed.await.map_err(|_| AppendError::Closed)??;
        Ok(Recorded { index: placed.index, leaf_hash: Digest(placed.leaf.0) })
    }
}
