//! Start-time fair queueing between tenants on what their work really cost.
//!
//! Each tenant has a clock that runs by the cost of its work, slower the larger its weight; the next turn is that of the
//! tenant whose clock is behind. A tenant that begins to wait is lifted to the slowest clock of those who wait already, so
//! that having been idle, or nearly idle, earns nothing (VTC, arXiv:2401.00588, section 4) but a short burst: a quarter of a
//! second of its share, at most. Of several that wake together each has that against those who waited before, and none against
//! another one of them. Classes go in their order, but each that waits is owed a part of what the others get (a
//! floor), and goes first until it has had that.
//!
//! Two tenants of a class that wait all the time differ in work done, each divided by its weight, by no more than
//! - in the lane of prompts: the cost of two turns, and a turn is a step's prefill and what the prediction missed;
//! - in the lane of slots: what the slots of one of them cost from admission to end, twice, because what has a slot goes on.
//!   Beside its clock a tenant's place counts what was paid in advance for its slots, or one that waits with a thousand
//!   requests would get every free slot before the first of them costs anything.

use crate::terms::{Class, Tenancy};
use policies_domain::Label;
use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// A class that waits is owed this part of all that others get, in thousandths.
const FLOOR_PERMILLE: i64 = 100;
/// What a class is owed at most, in nanoseconds: half a second of the engine's time.
const OWED_NS_MAX: i64 = 500_000_000;
/// What a class is in debt at most, in nanoseconds: the longest prompt on a small machine, so that a class that is given one
/// for being owed a millisecond waits for the rest of it.
const DEBT_NS_MAX: i64 = 10_000_000_000;
/// Of its share, what a tenant did not use lately and may have at once, in nanoseconds of the engine's time: two requests of a
/// quiet tenant that come together would stand behind a flood otherwise. Over any time nobody gets more than its share and this.
const BURST_NS: u64 = 250_000_000;
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

impl Lane {
    const ALL: [Self; 2] = [Self::Slots, Self::Prefill];
}

/// Everybody's clocks.
#[derive(Debug)]
pub(crate) struct FairShares {
    tenancy: Tenancy,
    accounts: HashMap<Label, Account>,
    classes: [Shares; 3],
}

/// One tenant's, with what decisions ask of its terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) class: Class,
    pub(crate) exclusive: bool,
    weight: u64,
    /// Work done, in ticks.
    clock: u64,
    /// How far it was left behind the others when it began to wait, and has not come forward since, in ticks. Whoever begins to wait
    /// is lifted to where others stand without that, or each of several that wake together would be put before the one before.
    credit: u64,
    /// Work paid for in advance and not done, in nanoseconds.
    prepaid_ns: u64,
    ready: [bool; 2],
}

impl Account {
    fn waits(&self) -> bool {
        self.ready != [false; 2]
    }

    /// Where it stands for those who begin to wait.
    fn reference(&self) -> u64 {
        self.clock.saturating_add(self.credit)
    }

    /// Where it stands in a lane.
    fn place(&self, lane: Lane) -> u64 {
        match lane {
            Lane::Slots => self.clock.saturating_add(self.ticks(self.prepaid_ns)),
            Lane::Prefill => self.clock,
        }
    }

    fn ticks(&self, cost_ns: u64) -> u64 {
        cost_ns.saturating_mul(TICKS_PER_NS) / self.weight
    }

    /// How far it is behind the next one in the order of prompts, in microseconds of its work.
    pub(crate) fn lag_us(&self, next: &Self) -> f64 {
        (next.clock.saturating_sub(self.clock) as f64) * self.weight as f64 / TICKS_PER_NS as f64 / 1e3
    }
}

/// One class.
#[derive(Debug, Default)]
struct Shares {
    /// Tenants that wait in any lane, by where they stand for others.
    waiting: BTreeSet<(u64, Label)>,
    /// Those that wait in each lane, by their places.
    ready: [BTreeSet<(u64, Label)>; 2],
    /// The latest clock of those who waited and do not any more.
    latest: u64,
    /// What the floor gives it in each lane, in nanoseconds; less than nothing when its last turn was longer than that.
    owed_ns: [i64; 2],
}

impl Shares {
    fn insert(&mut self, tenant: Label, account: &Account) {
        if account.waits() {
            self.waiting.insert((account.reference(), tenant));
        }
        for lane in Lane::ALL.into_iter().filter(|lane| account.ready[*lane as usize]) {
            self.ready[lane as usize].insert((account.place(lane), tenant));
        }
    }

    fn remove(&mut self, tenant: Label, account: &Account) {
        if account.waits() {
            self.waiting.remove(&(account.reference(), tenant));
        }
        for lane in Lane::ALL.into_iter().filter(|lane| account.ready[*lane as usize]) {
            self.ready[lane as usize].remove(&(account.place(lane), tenant));
        }
    }

    /// It waits for what it waited for, in other places perhaps: most work was paid for in advance, and moves nobody in the lane
    /// of slots.
    fn move_to(&mut self, tenant: Label, before: &Account, now: &Account) {
        let replace = |set: &mut BTreeSet<(u64, Label)>, before: u64, now: u64| {
            if before != now {
                set.remove(&(before, tenant));
                set.insert((now, tenant));
            }
        };
        if now.waits() {
            replace(&mut self.waiting, before.reference(), now.reference());
        }
        for lane in Lane::ALL.into_iter().filter(|lane| now.ready[*lane as usize]) {
            replace(&mut self.ready[lane as usize], before.place(lane), now.place(lane));
        }
    }
}

impl FairShares {
    pub(crate) fn new(tenancy: Tenancy) -> Self {
        // No decision waits until a table has grown.
        Self { accounts: HashMap::with_capacity(tenancy.tenants()), tenancy, classes: Default::default() }
    }

    /// It waits in this lane, or does not any more.
    pub(crate) fn set_ready(&mut self, tenant: Label, lane: Lane, ready: bool) {
        let mut account = self.account(tenant);
        if account.ready[lane as usize] == ready {
            return;
        }
        let shares = &mut self.classes[account.class as usize];
        shares.remove(tenant, &account);
        if !account.waits() {
            let others = shares.waiting.first().map_or(shares.latest, |(reference, _)| *reference);
            // With what it paid for and has not had: a quiet tenant's running requests do not put its next one behind a flood.
            let kept = account.ticks(account.prepaid_ns.saturating_add(BURST_NS));
            account.clock = account.clock.max(others.saturating_sub(kept));
            account.credit = others.saturating_sub(account.clock);
        }
        account.ready[lane as usize] = ready;
        if !account.waits() {
            shares.latest = shares.latest.max(account.clock);
        }
        shares.insert(tenant, &account);
        if shares.ready[lane as usize].is_empty() {
            // What nobody waited for is not owed later.
            shares.owed_ns[lane as usize] = shares.owed_ns[lane as usize].min(0);
        }
        self.accounts.insert(tenant, account);
    }

    pub(crate) fn account(&self, tenant: Label) -> Account {
        let new = || {
            let terms = self.tenancy.of(tenant);
            let (class, exclusive, weight) = (terms.class, terms.exclusive, u64::from(terms.weight.max(1)));
            Account { class, exclusive, weight, clock: 0, credit: 0, prepaid_ns: 0, ready: [false; 2] }
        };
        self.accounts.get(&tenant).copied().unwrap_or_else(new)
    }

    /// It did work that cost so many nanoseconds, `prepaid_ns` of which it paid for before.
    pub(crate) fn charge(&mut self, tenant: Label, cost_ns: u64, prepaid_ns: u64) {
        self.advance(tenant, |account| {
            let ticks = account.ticks(cost_ns);
            account.clock = account.clock.saturating_add(ticks);
            account.credit = account.credit.saturating_sub(ticks);
            account.prepaid_ns = account.prepaid_ns.saturating_sub(prepaid_ns);
        });
    }

    /// As before, and it was a turn in the lane of prompts.
    pub(crate) fn charge_prefill(&mut self, tenant: Label, cost_ns: u64, prepaid_ns: u64) {
        self.settle_floors(tenant, Lane::Prefill, cost_ns);
        self.charge(tenant, cost_ns, prepaid_ns);
    }

    /// It gets a slot and pays for so many nanoseconds of work in advance.
    pub(crate) fn prepay(&mut self, tenant: Label, prepaid_ns: u64) {
        self.settle_floors(tenant, Lane::Slots, prepaid_ns);
        self.advance(tenant, |account| account.prepaid_ns = account.prepaid_ns.saturating_add(prepaid_ns));
    }

    /// So many nanoseconds that it paid for are not going to be worked. The work that it did stays on its clock.
    pub(crate) fn refund(&mut self, tenant: Label, prepaid_ns: u64) {
        if prepaid_ns == 0 {
            return;
        }
        self.advance(tenant, |account| account.prepaid_ns = account.prepaid_ns.saturating_sub(prepaid_ns));
        self.unsettle_floors(self.class(tenant), i64::try_from(prepaid_ns).unwrap_or(i64::MAX));
    }

    fn advance(&mut self, tenant: Label, change: impl FnOnce(&mut Account)) {
        // A tenant has an account since its first request.
        let Some(account) = self.accounts.get_mut(&tenant) else { return };
        let before = *account;
        change(account);
        self.classes[account.class as usize].move_to(tenant, &before, account);
    }

    /// It had a turn in a lane that cost so many nanoseconds.
    fn settle_floors(&mut self, tenant: Label, lane: Lane, cost_ns: u64) {
        let class = self.class(tenant);
        let cost_ns = i64::try_from(cost_ns).unwrap_or(i64::MAX);
        let mut outranked = false;
        for (index, shares) in self.classes.iter_mut().enumerate() {
            let waits = !shares.ready[lane as usize].is_empty();
            let owed_ns = &mut shares.owed_ns[lane as usize];
            if index == class as usize {
                // What it gets in its own order is not held against its floor later.
                let least = if outranked { -DEBT_NS_MAX } else { (*owed_ns).min(0) };
                *owed_ns = owed_ns.saturating_sub(cost_ns).max(least);
            } else {
                let most = if waits { OWED_NS_MAX } else { 0 };
                *owed_ns = owed_ns.saturating_add(floor_of(cost_ns)).min(most);
            }
            outranked |= waits;
        }
    }

    /// A slot's turn was cheaper than it was paid for. Takes back what others were owed for it, or a flood of requests that
    /// are cancelled would put the last class first; and nobody is owed more than before.
    fn unsettle_floors(&mut self, class: Class, refund_ns: i64) {
        for (index, shares) in self.classes.iter_mut().enumerate() {
            let owed_ns = &mut shares.owed_ns[Lane::Slots as usize];
            *owed_ns = if index == class as usize {
                owed_ns.saturating_add(refund_ns).min((*owed_ns).max(0))
            } else {
                owed_ns.saturating_sub(floor_of(refund_ns)).max((*owed_ns).min(0))
            };
        }
    }

    /// Who waits in a lane, the next one first.
    pub(crate) fn order(&self, lane: Lane) -> impl Iterator<Item = Label> {
        let mut classes = Class::ALL;
        // Stable: classes that are owed nothing keep their order.
        classes.sort_by_key(|class| Reverse(self.classes[*class as usize].owed_ns[lane as usize].max(0)));
        classes
            .into_iter()
            .flat_map(move |class| self.classes[class as usize].ready[lane as usize].iter())
            .map(|(_, of)| *of)
    }

    /// Whether somebody else waits, for whatever, who is more urgent or had less of its share: by more than what anybody may have
    /// at once.
    pub(crate) fn is_ahead(&self, tenant: Label) -> bool {
        let account = self.account(tenant);
        let (more_urgent, class) = self.classes.split_at(account.class as usize);
        let others = class.first().and_then(|shares| shares.waiting.iter().find(|(_, of)| *of != tenant));
        let most = |others: u64| others.saturating_add(account.ticks(BURST_NS));
        more_urgent.iter().any(|shares| !shares.waiting.is_empty())
            || others.is_some_and(|(_, other)| account.clock > most(self.account(*other).clock))
    }

    /// How urgent its requests are.
    pub(crate) fn class(&self, tenant: Label) -> Class {
        self.account(tenant).class
    }

    /// The part of its class that is the tenant's.
    pub(crate) fn weight(&self, tenant: Label) -> u64 {
        self.account(tenant).weight
    }

    pub(crate) fn tenancy(&self) -> &Tenancy {
        &self.tenancy
    }

    /// Everybody who waits stands where the account says, and nobody else does.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn assert_sound(&self) {
        let mut wanted: [Shares; 3] = Default::default();
        for (tenant, account) in &self.accounts {
            wanted[account.class as usize].insert(*tenant, account);
        }
        for (shares, wanted) in self.classes.iter().zip(&wanted) {
            assert!(shares.waiting == wanted.waiting && shares.ready == wanted.ready, "places are not the accounts'");
            for lane in Lane::ALL {
                let most = if shares.ready[lane as usize].is_empty() { 0 } else { OWED_NS_MAX };
                assert!((-DEBT_NS_MAX..=most).contains(&shares.owed_ns[lane as usize]), "a floor out of its bounds");
            }
        }
    }

    /// Whether a tenant waits in a lane, and what it paid in advance.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn state(&self, tenant: Label) -> ([bool; 2], u64) {
        let account = self.account(tenant);
        (account.ready, account.prepaid_ns)
    }
}

/// What a class that waits is owed of what another one gets.
fn floor_of(cost_ns: i64) -> i64 {
    cost_ns / 1000 * FLOOR_PERMILLE
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
            shares.settle_floors(next, Lane::Slots, 1_000_000);
            shares.charge(next, 1_000_000, 0);
        }
        shares.assert_sound();
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
    fn having_been_idle_earns_a_quarter_of_a_second_and_no_more() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.set_ready(label(2), Lane::Slots, false);
        assert_eq!(turns(&mut shares, 1000, 2), [1000, 0]);
        shares.set_ready(label(2), Lane::Slots, true);
        let got = turns(&mut shares, 260, 2);
        assert_eq!(got, [5, 255], "of a thousand turns it catches up on 250");
        // With nobody there at all, it is the same.
        shares.set_ready(label(1), Lane::Slots, false);
        shares.set_ready(label(2), Lane::Slots, false);
        for tenant in [1, 2] {
            shares.set_ready(label(tenant), Lane::Slots, true);
        }
        assert_eq!(turns(&mut shares, 10, 2), [5, 5]);
    }

    #[test]
    fn of_several_that_wake_together_none_is_put_before_another() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1), (3, Class::Standard, 1)]);
        [2, 3].into_iter().for_each(|tenant| shares.set_ready(label(tenant), Lane::Slots, false));
        assert_eq!(turns(&mut shares, 1000, 3), [1000, 0, 0]);
        [2, 3].into_iter().for_each(|tenant| shares.set_ready(label(tenant), Lane::Slots, true));
        assert_eq!(turns(&mut shares, 20, 3), [0, 10, 10]);
        assert_eq!(turns(&mut shares, 510, 3), [10, 250, 250], "and each catches up on a quarter of a second");
    }

    #[test]
    fn one_request_that_runs_all_the_time_keeps_no_place_in_the_past() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1), (3, Class::Standard, 1)]);
        // The third one's request has a slot and costs next to nothing; then it floods.
        shares.set_ready(label(3), Lane::Slots, false);
        assert_eq!(turns(&mut shares, 1000, 3), [500, 500, 0]);
        shares.charge(label(3), 1000, 0);
        shares.set_ready(label(2), Lane::Slots, false);
        shares.set_ready(label(2), Lane::Slots, true);
        shares.set_ready(label(3), Lane::Slots, true);
        assert_eq!(turns(&mut shares, 280, 3), [10, 10, 260]);
    }

    #[test]
    fn what_runs_and_is_paid_for_puts_nobody_behind_a_flood() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.set_ready(label(2), Lane::Slots, false);
        turns(&mut shares, 100, 2);
        shares.prepay(label(2), 50_000_000);
        shares.prepay(label(1), 1_000_000);
        shares.set_ready(label(2), Lane::Slots, true);
        assert_eq!(shares.order(Lane::Slots).next(), Some(label(2)));
    }

    #[test]
    fn leaving_pays_no_debt() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.charge(label(1), 100_000_000, 0);
        shares.set_ready(label(1), Lane::Slots, false);
        shares.set_ready(label(1), Lane::Slots, true);
        assert_eq!(turns(&mut shares, 100, 2), [0, 100]);
    }

    #[test]
    fn what_was_paid_in_advance_counts_for_slots_alone_and_comes_back() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.prepay(label(1), 50_000_000);
        for tenant in [1, 2] {
            shares.set_ready(label(tenant), Lane::Prefill, true);
        }
        assert_eq!(shares.order(Lane::Slots).next(), Some(label(2)));
        assert_eq!(shares.order(Lane::Prefill).next(), Some(label(1)), "it has done nothing yet");
        shares.charge(label(1), 10_000_000, 10_000_000);
        assert_eq!(shares.order(Lane::Prefill).next(), Some(label(2)));
        shares.refund(label(1), 40_000_000);
        assert_eq!(turns(&mut shares, 10, 2), [0, 10]);
        assert_eq!(turns(&mut shares, 10, 2), [5, 5]);
    }

    #[test]
    fn a_refund_gives_nobody_a_place_before_those_who_came_since() {
        let mut shares = shares(&[(1, Class::Standard, 1), (2, Class::Standard, 1)]);
        shares.set_ready(label(2), Lane::Slots, false);
        shares.prepay(label(1), 50_000_000);
        shares.set_ready(label(2), Lane::Slots, true);
        shares.refund(label(1), 50_000_000);
        assert_eq!(turns(&mut shares, 10, 2), [5, 5]);
    }

    #[test]
    fn a_flood_of_cancelled_requests_does_not_put_the_last_class_first() {
        let mut shares = shares(&[(1, Class::Interactive, 1), (2, Class::Batch, 1)]);
        for _ in 0..100 {
            shares.prepay(label(1), 50_000_000);
            shares.refund(label(1), 50_000_000);
        }
        assert_eq!(shares.order(Lane::Slots).next(), Some(label(1)));
        assert_eq!(shares.classes[Class::Batch as usize].owed_ns, [0, 0]);
        let got = turns(&mut shares, 1000, 2);
        assert!((85..=95).contains(&got[1]), "{got:?}");
    }

    #[test]
    fn a_long_turn_of_a_class_that_was_owed_little_is_paid_for_later() {
        let mut shares = shares(&[(1, Class::Interactive, 1), (2, Class::Batch, 1)]);
        let mut long_turns = 0;
        for _ in 0..10_000 {
            let next = shares.order(Lane::Slots).next().unwrap();
            let cost_ns = if next == label(2) { 5_000_000_000 } else { 1_000_000 };
            long_turns += usize::from(next == label(2));
            shares.settle_floors(next, Lane::Slots, cost_ns);
            if next == label(2) {
                // Whoever asks for one thing at a time does not get round it.
                shares.set_ready(label(2), Lane::Slots, false);
                shares.set_ready(label(2), Lane::Slots, true);
            }
        }
        assert_eq!(long_turns, 1, "ten seconds of others' work do not pay for a second one");
    }
}
