//! When steps of exclusive tenants begin: at fixed times, whatever others do.

use policies_domain::Label;
use std::collections::HashMap;
use std::time::Duration;

/// The exclusive tenants' next steps.
#[derive(Debug, Default)]
pub(crate) struct Periods {
    next: HashMap<Label, Duration>,
    /// Tenants whose step was made just now.
    made: Vec<Label>,
}

impl Periods {
    /// Whether the tenant's next step may begin.
    pub(crate) fn is_due(&self, tenant: Label, now: Duration) -> bool {
        self.next.get(&tenant).is_none_or(|next| now >= *next)
    }

    /// A step was made for this tenant.
    pub(crate) fn note(&mut self, tenant: Label) {
        self.made.push(tenant);
    }

    /// The step is over, that began at `now`: whoever had a part in it has the next one in the next period. Periods are the
    /// same for everybody and do not move.
    pub(crate) fn begin(&mut self, now: Duration, period: Duration) {
        let next = period * (now.as_nanos() / period.as_nanos().max(1) + 1).try_into().unwrap_or(u32::MAX);
        for tenant in self.made.drain(..) {
            self.next.insert(tenant, next);
        }
    }

    /// How long it is to the next step of one of these tenants, when one of them waits for its time.
    pub(crate) fn next(&self, tenants: impl Iterator<Item = Label>, now: Duration) -> Option<Duration> {
        tenants.filter_map(|tenant| self.next.get(&tenant)?.checked_sub(now)).min()
    }
}
