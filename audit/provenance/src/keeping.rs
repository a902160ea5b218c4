//! What is held, what was erased and what was dropped: the fold over the entries that say so, which is stored nowhere else. The
//! log asks it before it writes, a verifier applies it to what was written.

mod entries;

pub use entries::{Erased, Erasure, ErasureBasis, Hold, HoldReason, Prune, Release};

use crate::entry::{Body, Entry, TenantRef};
use policies_domain::Digest;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Entries between two moments of which the newest time is kept: a prune is compared with those.
const TIMES_EVERY: u64 = 256;

/// Where all of it stands.
#[derive(Debug, Clone, Default)]
pub struct Keeping {
    keys: HashMap<(TenantRef, u64), EpochKey>,
    holds: BTreeMap<[u8; 16], Held>,
    /// Of holds that were released, so that none comes back.
    released: HashSet<[u8; 16]>,
    /// Traces of the entries before this one were dropped.
    pruned: u64,
    prunes: u64,
    /// The newest time of all entries before each multiple of [`TIMES_EVERY`].
    times: Vec<u64>,
    newest_us: u64,
}

/// A tenant's commitment key of one epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EpochKey {
    /// Times of the first and the last entry that was opened under it.
    pub used_us: Option<(u64, u64)>,
    /// When it was erased.
    pub erasure: Option<ErasureAt>,
}

/// An erasure's place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErasureAt {
    /// Index of its entry.
    pub index: u64,
    /// Leaf hash of its entry.
    pub leaf: Digest,
    /// Time of its entry, in microseconds since 1970.
    pub wall_us: u64,
    /// Why.
    pub basis: ErasureBasis,
    /// Entries that say that it was done.
    pub done: u64,
}

/// A hold that was not released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Whose; everybody's when it is `None`.
    pub tenant: Option<TenantRef>,
    /// What its entry says.
    pub hold: Hold,
    /// Index of its entry.
    pub index: u64,
    /// Time of its entry, in microseconds since 1970.
    pub wall_us: u64,
}

/// Why an entry does not continue the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeepingError {
    /// Something is destroyed that is held.
    #[error("hold {:032x} forbids it", u128::from_be_bytes(*hold))]
    Held {
        /// The hold's id.
        hold: [u8; 16],
    },
    /// The key of that tenant and epoch was erased before.
    #[error("the key of epoch {epoch} is erased, as entry {erasure} says")]
    ErasedKey {
        /// The epoch.
        epoch: u64,
        /// Index of the erasure's entry.
        erasure: u64,
    },
    /// Done is what was not ordered, or not so.
    #[error("no such erasure of epoch {epoch} stands before it")]
    NoErasure {
        /// The epoch.
        epoch: u64,
    },
    /// A hold has the id of another one.
    #[error("there is a hold of that id already")]
    HoldTwice,
    /// There is no such hold of that tenant.
    #[error("there is no such hold")]
    NoHold,
    /// Destroying, and letting destroy, takes two.
    #[error("it takes a second person")]
    SecondPerson,
    /// A hold ends before it begins.
    #[error("the hold ends before it begins")]
    HoldTime,
    /// An erasure is a tenant's.
    #[error("it has no tenant")]
    NoTenant,
    /// Nothing is dropped, or what is too young, or not what it says.
    #[error("traces are dropped that are not old enough, are not there or were dropped before")]
    Prune,
}

impl Held {
    fn covers(&self, tenant: TenantRef, key: &EpochKey) -> bool {
        // What was never used is as held as what was.
        let (first, last) = key.used_us.unwrap_or((0, u64::MAX));
        self.tenant.is_none_or(|held| held == tenant)
            && first <= self.hold.last_us.unwrap_or(u64::MAX)
            && last >= self.hold.first_us
    }
}

impl Keeping {
    /// Takes in the next entry.
    ///
    /// # Errors
    /// [`KeepingError`]; nothing was taken in of it.
    pub fn note(&mut self, index: u64, leaf: Digest, entry: &Entry) -> Result<(), KeepingError> {
        self.check(index, entry)?;
        let (wall_us, tenant) = (entry.head.wall_us, entry.head.tenant.map(|link| link.tenant));
        if index.is_multiple_of(TIMES_EVERY) {
            self.times.push(self.newest_us);
        }
        self.newest_us = self.newest_us.max(wall_us);
        match (&entry.body, tenant) {
            (Body::Opened(opened), Some(tenant)) => {
                let used = &mut self.keys.entry((tenant, opened.epoch)).or_default().used_us;
                let (first, last) = used.unwrap_or((wall_us, wall_us));
                *used = Some((first.min(wall_us), last.max(wall_us)));
            }
            (Body::Erasure(erasure), Some(tenant)) => {
                let at = ErasureAt { index, leaf, wall_us, basis: erasure.basis, done: 0 };
                self.keys.entry((tenant, erasure.epoch)).or_default().erasure = Some(at);
            }
            (Body::Erased(erased), Some(tenant)) => {
                if let Some(key) = self.keys.get_mut(&(tenant, erased.epoch))
                    && let Some(at) = &mut key.erasure
                {
                    at.done += 1;
                }
            }
            (Body::Hold(hold), tenant) => {
                self.holds.insert(hold.hold, Held { tenant, hold: hold.clone(), index, wall_us });
            }
            (Body::Release(release), _) => {
                self.holds.remove(&release.hold);
                self.released.insert(release.hold);
            }
            (Body::Prune(prune), _) => {
                self.pruned = prune.before;
                self.prunes += 1;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether an entry may come next. Its place in its tenant's chain is not looked at.
    ///
    /// # Errors
    /// [`KeepingError`].
    pub fn check(&self, index: u64, entry: &Entry) -> Result<(), KeepingError> {
        let tenant = entry.head.tenant.map(|link| link.tenant);
        self.check_body(index, entry.head.wall_us, tenant, &entry.body)
    }

    /// The same for an entry that has no place yet, of this tenant and at this time.
    ///
    /// # Errors
    /// [`KeepingError`].
    pub fn check_body(
        &self,
        index: u64,
        wall_us: u64,
        tenant: Option<TenantRef>,
        body: &Body,
    ) -> Result<(), KeepingError> {
        match body {
            Body::Opened(opened) => match tenant.and_then(|tenant| self.erasure(tenant, opened.epoch)) {
                Some(at) => Err(KeepingError::ErasedKey { epoch: opened.epoch, erasure: at.index }),
                None => Ok(()),
            },
            Body::Erasure(Erasure { actor, second, .. }) | Body::Release(Release { actor, second, .. })
                if actor == second =>
            {
                Err(KeepingError::SecondPerson)
            }
            Body::Erasure(erasure) => self.may_erase(tenant.ok_or(KeepingError::NoTenant)?, erasure.epoch),
            Body::Erased(erased) => {
                let at = tenant.and_then(|tenant| self.erasure(tenant, erased.epoch));
                let names = |at: &ErasureAt| (at.index, at.leaf) == (erased.erasure_index, erased.erasure_leaf);
                at.filter(names).map(drop).ok_or(KeepingError::NoErasure { epoch: erased.epoch })
            }
            Body::Hold(hold) if hold.last_us.is_some_and(|last| last < hold.first_us) => Err(KeepingError::HoldTime),
            Body::Hold(hold) => {
                let known = self.holds.contains_key(&hold.hold) || self.released.contains(&hold.hold);
                if known { Err(KeepingError::HoldTwice) } else { Ok(()) }
            }
            Body::Release(release) => {
                let held = self.holds.get(&release.hold).filter(|held| held.tenant == tenant);
                held.map(drop).ok_or(KeepingError::NoHold)
            }
            Body::Prune(prune) => self.check_prune(index, wall_us, prune),
            _ => Ok(()),
        }
    }

    /// Whether a tenant's key of an epoch may be erased now.
    ///
    /// # Errors
    /// [`KeepingError::ErasedKey`] when it was, [`KeepingError::Held`].
    pub fn may_erase(&self, tenant: TenantRef, epoch: u64) -> Result<(), KeepingError> {
        let key = self.keys.get(&(tenant, epoch)).copied().unwrap_or_default();
        if let Some(at) = key.erasure {
            return Err(KeepingError::ErasedKey { epoch, erasure: at.index });
        }
        match self.holds.values().find(|held| held.covers(tenant, &key)) {
            Some(held) => Err(KeepingError::Held { hold: held.hold.hold }),
            None => Ok(()),
        }
    }

    /// Held is what is dropped of anybody from the time of a hold on: files of traces are everybody's.
    fn check_prune(&self, index: u64, wall_us: u64, prune: &Prune) -> Result<(), KeepingError> {
        let whole = usize::try_from(prune.before / TIMES_EVERY).ok().and_then(|place| self.times.get(place));
        let is_as_old_as_it_says = prune.before <= index && whole.is_none_or(|newest| *newest <= prune.newest_us);
        if prune.before <= self.pruned || !is_as_old_as_it_says || !prune.is_due(wall_us) {
            return Err(KeepingError::Prune);
        }
        match self.holds.values().find(|held| held.hold.first_us <= prune.newest_us) {
            Some(held) => Err(KeepingError::Held { hold: held.hold.hold }),
            None => Ok(()),
        }
    }

    /// The erasure of a tenant's key of an epoch.
    #[must_use]
    pub fn erasure(&self, tenant: TenantRef, epoch: u64) -> Option<ErasureAt> {
        self.keys.get(&(tenant, epoch))?.erasure
    }

    /// The epoch whose key a tenant's next request is committed to with: this one, or the next one that is not erased.
    #[must_use]
    pub fn epoch_from(&self, tenant: TenantRef, epoch: u64) -> u64 {
        (epoch..).find(|epoch| self.erasure(tenant, *epoch).is_none()).unwrap_or(epoch)
    }

    /// A tenant's keys that were used or erased, by epoch.
    #[must_use]
    pub fn keys_of(&self, tenant: TenantRef) -> BTreeMap<u64, EpochKey> {
        self.keys.iter().filter(|((of, _), _)| *of == tenant).map(|((_, epoch), key)| (*epoch, *key)).collect()
    }

    /// All erasures, in no order.
    pub fn erasures(&self) -> impl Iterator<Item = (TenantRef, u64, ErasureAt)> + '_ {
        self.keys.iter().filter_map(|((tenant, epoch), key)| Some((*tenant, *epoch, key.erasure?)))
    }

    /// What is held, by the ids of the holds.
    #[must_use]
    pub fn holds(&self) -> &BTreeMap<[u8; 16], Held> {
        &self.holds
    }

    /// The first moment that a hold of anybody covers.
    #[must_use]
    pub fn held_from_us(&self) -> Option<u64> {
        self.holds.values().map(|held| held.hold.first_us).min()
    }

    /// The first entry whose trace was not dropped.
    #[must_use]
    pub fn pruned_before(&self) -> u64 {
        self.pruned
    }

    /// How often traces were dropped.
    #[must_use]
    pub fn prunes(&self) -> u64 {
        self.prunes
    }
}
