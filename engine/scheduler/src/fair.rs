//! Start-time fair queueing between tenants on what their work really cost.
//!
//! Each tenant has a clock that runs by the cost of its work, slower the larger its weight; the next turn is that of the
//! tenant whose clock is behind. A tenant that comes back after a pause is lifted to the slowest clock of those who work, so
//! that having been idle earns nothing (VTC, arXiv:2401.00588, section 4). Classes go in their order, but each that waits is
//! owed a part of what the others get (a floor), and goes first until it has had that.

use crate::terms::{Class, Tenancy};
use policies_domain::Label;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// A class that waits is owed this part of all that others get, in thousandths.
const FLOOR_PERMILLE: i64 = 100;
/// What a class is owed at most, in nanoseconds: half a second of the engine's time.
const OWED_NS_MAX: i64 = 500_000_000;
/// Ticks of a clock for a nanosecond at weight 1. At weight 1 a clock lasts for nine years of work.
const TICKS_PER_NS: u64 = 64;

/// What tenants wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lane {
    /// A slot.
    Slots,
    /// The next chunk of a prompt.
    Prefill,
}

/// Everybody's clocks.
#[derive(Debug)]
pub(crate) struct FairShares {
    tenancy: Tenancy,
    accounts: HashMap<Label, Account>,
    classes: [Shares; 3],
}

#[derive(Debug)]
struct Account {
    class: Class,
    weight: u64,
    clock: u64,
    /// Requests of the tenant, waiting or running.
    requests: usize,
    ready: [bool; 2],
}

/// One class.
#[derive(Debug, Default)]
struct Shares {
    /// Tenants that have a request here.
    active: BTreeSet<(u64, Label)>,
    /// Those of them that wait, for each lane.
    ready: [BTreeSet<(u64, Label)>; 2],
    /// The clock of whoever left last.
    latest: u64,
    /// What the floor gives it, in nanoseconds; less than nothing when its last turn was longer than that.
    owed_ns: i64,
}

impl FairShares {
    pub(crate) fn new(tenancy: Tenancy) -> Self {
        Self { tenancy, accounts: HashMap::new(), classes: Default::default() }
    }

    /// One more request of this tenant.
    pub(crate) fn enter(&mut self, tenant: Label) {
        let terms = *self.tenancy.of(tenant);
        let account = self.accounts.entry(tenant).or_insert_with(|| Account {
            class: terms.class,
            weight: u64::from(terms.weight.max(1)),
            clock: 0,
            requests: 0,
            ready: [false; 2],
        });
        account.requests += 1;
        if account.requests == 1 {
            let shares = &mut self.classes[account.class as usize];
            let others = shares.active.first().map_or(shares.latest, |(clock, _)| *clock);
            account.clock = account.clock.max(others);
            shares.active.insert((account.clock, tenant));
        }
    }

    /// One request less.
    pub(crate) fn leave(&mut self, tenant: Label) {
        for lane in [Lane::Slots, Lane::Prefill] {
            if self.accounts.get(&tenant).is_some_and(|account| account.requests == 1) {
                self.set_ready(tenant, lane, false);
            }
        }
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        account.requests = account.requests.saturating_sub(1);
        if account.requests == 0 {
            let shares = &mut self.classes[account.class as usize];
            shares.active.remove(&(account.clock, tenant));
            shares.latest = shares.latest.max(account.clock);
            if shares.active.is_empty() {
                shares.owed_ns = 0;
            }
        }
    }

    /// It waits in this lane, or does not any more.
    pub(crate) fn set_ready(&mut self, tenant: Label, lane: Lane, ready: bool) {
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        if std::mem::replace(&mut account.ready[lane as usize], ready) == ready {
            return;
        }
        let waiting = &mut self.classes[account.class as usize].ready[lane as usize];
        let _known =
            if ready { waiting.insert((account.clock, tenant)) } else { waiting.remove(&(account.clock, tenant)) };
    }

    /// It cost so many nanoseconds.
    pub(crate) fn charge(&mut self, tenant: Label, cost_ns: u64) {
        let Some(class) = self.accounts.get(&tenant).map(|account| account.class) else { return };
        self.settle_floors(class, i64::try_from(cost_ns).unwrap_or(i64::MAX));
        self.advance(tenant, |clock, ticks| clock.saturating_add(ticks), cost_ns);
    }

    fn settle_floors(&mut self, class: Class, cost_ns: i64) {
        let mut outranked = false;
        for (index, shares) in self.classes.iter_mut().enumerate() {
            let waits = shares.ready.iter().any(|ready| !ready.is_empty());
            if index == class as usize {
                // What it gets in its own order is not held against its floor later.
                let least = if outranked { -OWED_NS_MAX } else { shares.owed_ns.min(0) };
                shares.owed_ns = shares.owed_ns.saturating_sub(cost_ns).max(least);
            } else if waits {
                shares.owed_ns = shares.owed_ns.saturating_add(cost_ns / 1000 * FLOOR_PERMILLE).min(OWED_NS_MAX);
            }
            outranked |= waits;
        }
    }

    /// So many nanoseconds that were charged before did not come to be.
    pub(crate) fn refund(&mut self, tenant: Label, cost_ns: u64) {
        self.advance(tenant, u64::saturating_sub, cost_ns);
    }

    fn advance(&mut self, tenant: Label, change: impl Fn(u64, u64) -> u64, cost_ns: u64) {
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        let before = account.clock;
        account.clock = change(before, cost_ns.saturating_mul(TICKS_PER_NS) / account.weight);
        let shares = &mut self.classes[account.class as usize];
        let active = (account.requests > 0).then_some(&mut shares.active);
        let ready = shares.ready.iter_mut().zip(account.ready).filter(|(_, ready)| *ready).map(|(set, _)| set);
        for set in active.into_iter().chain(ready) {
            set.remove(&(before, tenant));
            set.insert((account.clock, tenant));
        }
    }

    /// Who waits in a lane, the next one first.
    pub(crate) fn order(&self, lane: Lane) -> impl Iterator<Item = Label> {
        let mut classes = Class::ALL;
        // Stable: classes that are owed nothing keep their order.
        classes.sort_by_key(|class| Reverse(self.classes[*class as usize].owed_ns.max(0)));
        classes
            .into_iter()
            .flat_map(move |class| self.classes[class as usize].ready[lane as usize].iter())
            .map(|(_, of)| *of)
    }

    /// How urgent its requests are.
    pub(crate) fn class(&self, tenant: Label) -> Class {
        self.tenancy.of(tenant).class
    }

    /// The part of its class that is the tenant's.
    pub(crate) fn weight(&self, tenant: Label) -> u64 {
        u64::from(self.tenancy.of(tenant).weight.max(1))
    }

    pub(crate) fn tenancy(&self) -> &Tenancy {
        &self.tenancy
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

    fn shares(tenants: &[(u32, Class, u32)]) -> FairShares {
        let terms = |(tenant, class, weight): &(u32, Class, u32)| {
            (label(*tenant), TenantTerms { class: *class, weight: *weight, ..TenantTerms::default() })
        };
        let mut shares = FairShares::new(Tenancy::new(tenants.iter().map(terms)).unwrap());
        for (tenant, ..) in tenants {
            shares.enter(label(*tenant));
            shares.set_ready(label(*tenant), Lane::Slots, true);
        }
        shares
    }

    /// What each tenant gets of `turns` turns that cost a millisecond each.
    fn turns(shares: &mut FairShares, turns: usize, tenants: u32) -> Vec<usize> {
        let mut got = vec![0; tenants as usize];
        for _ in 0..turns {
            let next = shares.order(Lane::Slots).next().unwrap();
            got[(1..=tenants).position(|tenant| label(tenant) == next).unwrap()] += 1;
            shares.charge(next, 1_000_000);
        }
        got
    }

    #[test]
    fn tenants_of_a_class_get_their_weights() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 3)]);
        assert_eq!(turns(&mut shares, 400, 2), [100, 300]);
    }

    #[test]
    fn a_class_that_waits_keeps_its_floor_and_no_more() {
        let mut shares = shares(&[
            (1, Class::Batch, 1),
            (2, Class::Interactive, 1),
            (3, Class::Standard, 1),
            (4, Class::Interactive, 1),
        ]);
        let got = turns(&mut shares, 10_000, 4);
        assert!((900..1000).contains(&got[0]), "batch: {got:?}");
        assert!((900..1000).contains(&got[2]), "standard: {got:?}");
        assert!(got[1].abs_diff(got[3]) <= 1);
    }

    #[test]
    fn having_been_idle_earns_nothing() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.leave(label(2));
        assert_eq!(turns(&mut shares, 1000, 2), [1000, 0]);
        shares.enter(label(2));
        shares.set_ready(label(2), Lane::Slots, true);
        let got = turns(&mut shares, 10, 2);
        assert_eq!(got, [5, 5], "it shares from now on, and catches up on nothing");
        // With nobody there at all, it is the same.
        shares.leave(label(1));
        shares.leave(label(2));
        shares.enter(label(1));
        shares.enter(label(2));
        for tenant in [1, 2] {
            shares.set_ready(label(tenant), Lane::Slots, true);
        }
        assert_eq!(turns(&mut shares, 10, 2), [5, 5]);
    }

    #[test]
    fn leaving_pays_no_debt() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.charge(label(1), 100_000_000);
        shares.leave(label(1));
        shares.enter(label(1));
        shares.set_ready(label(1), Lane::Slots, true);
        assert_eq!(turns(&mut shares, 100, 2), [0, 100]);
    }

    #[test]
    fn what_was_charged_too_much_comes_back() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.charge(label(1), 50_000_000);
        shares.refund(label(1), 40_000_000);
        assert_eq!(turns(&mut shares, 10, 2), [0, 10]);
        assert_eq!(turns(&mut shares, 10, 2), [5, 5]);
    }
}
