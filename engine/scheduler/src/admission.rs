//! Whether a request may wait here at all, and when to come back if not.

use crate::terms::Tenancy;
use policies_domain::Label;

/// The shortest time that a client is told to wait, in milliseconds: below it, it would be told so again.
const RETRY_AFTER_MS_MIN: u64 = 1_000;
/// The longest: what is predicted for later is no prediction.
const RETRY_AFTER_MS_MAX: u64 = 60_000;

/// Bounds of an engine's queue.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Requests that wait and run together.
    places: usize,
    tenancy: Tenancy,
}

/// Requests that are in the engine already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Those that have a slot.
    pub running: usize,
    /// Those that wait for one.
    pub waiting: usize,
    /// What all of them still cost, in nanoseconds.
    pub work_ns: u64,
}

impl Load {
    fn requests(self) -> usize {
        self.running + self.waiting
    }

    /// When one of these requests has ended, in milliseconds: after what one of them costs, on average, and later for
    /// whoever was `refused` after others, so that they do not meet again.
    #[must_use]
    pub fn retry_after_ms(self, refused: u32) -> u64 {
        let requests = self.requests().max(1) as u64;
        let each_ms = self.work_ns / 1_000_000 / requests;
        // When all of them have ended, there is a place for anybody.
        each_ms.saturating_mul((u64::from(refused) + 1).min(requests)).clamp(RETRY_AFTER_MS_MIN, RETRY_AFTER_MS_MAX)
    }

    /// Together with other requests.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            work_ns: self.work_ns.saturating_add(other.work_ns),
        }
    }
}

/// Of so many places, how many one tenant may have: a quarter is always left to the others.
#[must_use]
pub fn places_of_one(places: usize) -> usize {
    (places - places / 4).max(1)
}

/// Why a request may not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// Nobody's request would be taken.
    Engine {
        /// When to come back.
        retry_after_ms: u64,
    },
    /// The tenant has as many as it may.
    Tenant {
        /// When to come back.
        retry_after_ms: u64,
    },
}

impl Bounds {
    /// `places`: how many requests may run and wait in all.
    #[must_use]
    pub fn new(places: usize, tenancy: Tenancy) -> Self {
        Self { places, tenancy }
    }

    /// May one more request of `tenant` wait, which has these already, beside `all` of everybody? `refused` clients were told to
    /// come back since somebody was let in: each is sent away for longer than the one before, so that they do not meet again.
    ///
    /// # Errors
    /// [`Full`].
    pub fn check(&self, tenant: Label, own: Load, all: Load, refused: u32) -> Result<(), Full> {
        if all.requests() >= self.places {
            return Err(Full::Engine { retry_after_ms: all.retry_after_ms(refused) });
        }
        let waiting_max = self.tenancy.of(tenant).queue_max.unwrap_or(usize::MAX);
        if own.requests() >= places_of_one(self.places) || own.waiting >= waiting_max {
            return Err(Full::Tenant { retry_after_ms: own.retry_after_ms(refused) });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantTerms;
    use policies_domain::TenantId;

    fn label(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    fn load(running: usize, waiting: usize, seconds: u64) -> Load {
        Load { running, waiting, work_ns: seconds * 1_000_000_000 }
    }

    #[test]
    fn a_quarter_of_the_places_is_never_one_tenant_s() {
        let bounds = Bounds::new(8, Tenancy::default());
        assert_eq!(bounds.check(label(1), load(1, 4, 1), load(1, 4, 1), 0), Ok(()));
        let refused = bounds.check(label(1), load(2, 4, 12), load(2, 4, 12), 0);
        assert_eq!(refused, Err(Full::Tenant { retry_after_ms: 2_000 }));
        assert_eq!(bounds.check(label(2), load(0, 1, 1), load(2, 5, 1), 0), Ok(()));
        let refused = bounds.check(label(2), load(0, 2, 1), load(2, 6, 24), 0);
        assert_eq!(refused, Err(Full::Engine { retry_after_ms: 3_000 }));
    }

    #[test]
    fn a_tenant_has_its_own_queue() {
        let terms = TenantTerms { queue_max: Some(2), ..TenantTerms::default() };
        let bounds = Bounds::new(100, Tenancy::new([(label(1), terms)]).unwrap());
        assert_eq!(bounds.check(label(1), load(5, 1, 1), load(5, 1, 1), 0), Ok(()));
        assert!(matches!(bounds.check(label(1), load(5, 2, 1), load(5, 2, 1), 0), Err(Full::Tenant { .. })));
        assert_eq!(bounds.check(label(2), load(5, 2, 1), load(5, 2, 1), 0), Ok(()));
    }

    #[test]
    fn whoever_is_refused_later_comes_back_later_and_within_a_minute() {
        let after = |refused| load(4, 6, 20).retry_after_ms(refused);
        assert_eq!([after(0), after(1), after(4)], [2_000, 4_000, 10_000]);
        assert_eq!(after(u32::MAX), 20_000, "all of them have ended then");
        assert_eq!(load(4, 6, 2_000).retry_after_ms(9), RETRY_AFTER_MS_MAX);
        assert_eq!(Load::default().retry_after_ms(0), RETRY_AFTER_MS_MIN);
    }
}
