//! Pages for a request that wants to begin: who gives what, or that it has to wait.

use super::{Key, Reclaim, Scheduler};
use policies_domain::Label;

/// What one tenant would give.
#[derive(Clone, Copy, Debug)]
struct Giver {
    tenant: Label,
    /// What it has above its guarantee and would keep.
    over: usize,
    cached: usize,
    requests: usize,
}

impl Scheduler {
    /// Who gives the `missing` pages of a request of `tenant` that needs `needed` in all. `None`: it waits, and nobody gives
    /// anything for nothing. `pages_of`: what a request with a slot would bring.
    ///
    /// Its own cache comes first, but for `kept` pages of it that the request itself begins with. Then whoever has most above
    /// its guarantee gives, its cache before its newest request, but no request as long as that leaves it less above its
    /// guarantee than the new one would have: else the two would take from each other by turns.
    #[must_use]
    pub fn claim(
        &self,
        tenant: Label,
        needed: usize,
        missing: usize,
        kept: usize,
        pages_of: impl Fn(Key) -> usize,
    ) -> Option<Vec<Reclaim>> {
        let mut plan = Vec::new();
        let mut missing = missing;
        let own = self.pages.cached(tenant).saturating_sub(kept).min(missing);
        if own > 0 {
            plan.push(Reclaim::Cache(tenant, own));
            missing -= own;
        }
        // What comes out of its own cache is no growth.
        let own_over = self.pages.over_with(&self.config.tenancy, tenant, needed.saturating_sub(own));
        let mut givers: Vec<Giver> = Vec::new();
        while missing > 0 {
            let giver = self.most_over(tenant, &mut givers)?;
            let cached = giver.cached.min(missing).min(giver.over);
            if cached > 0 {
                plan.push(Reclaim::Cache(giver.tenant, cached));
                (giver.cached, giver.over, missing) = (giver.cached - cached, giver.over - cached, missing - cached);
                continue;
            }
            let newest = self.queues.get(&giver.tenant)?.running.iter().rev().nth(giver.requests)?;
            let pages = pages_of(newest.1);
            if giver.over < pages + own_over {
                return None;
            }
            plan.push(Reclaim::Request(newest.1));
            giver.requests += 1;
            giver.over -= pages;
            missing = missing.saturating_sub(pages);
        }
        Some(plan)
    }

    /// The tenant, but for this one, that would have most above its guarantee after all that was planned.
    fn most_over<'a>(&self, but: Label, givers: &'a mut Vec<Giver>) -> Option<&'a mut Giver> {
        let known = |tenant: Label| givers.iter().any(|giver| giver.tenant == tenant);
        let new = self.pages.all_over().find(|(_, tenant)| *tenant != but && !known(*tenant));
        if let Some((over, tenant)) = new {
            givers.push(Giver { tenant, over, cached: self.pages.cached(tenant), requests: 0 });
        }
        givers.iter_mut().filter(|giver| giver.over > 0).max_by_key(|giver| giver.over)
    }
}
