//! The decisions of one step loop: who gets a slot, whose prompt goes on, who gives way.

mod claim;
mod queues;

use crate::cost::{CostModel, Costs, Pass, Row};
use crate::fair::{FairShares, Lane};
use crate::pages::PageShares;
use crate::terms::{Class, Tenancy};
use policies_domain::Label;
use queues::Queues;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// A request's name, the caller's. An older request has a lower one.
pub type Key = u64;

/// Tenants that are looked at for one decision, at most: the next ones in order.
const TENANTS_LOOKED_AT: usize = 16;
/// Tenants whose prompts could go on and for which a step has too little left, before no more of them are looked at: what is left
/// then goes to those who have a chunk.
const PASSED_OVER_MAX: usize = 4;
/// Of one tenant, requests that are looked at for one decision.
const REQUESTS_LOOKED_AT: usize = 4;
/// Tokens of a chunk, at least, with what is left of a prompt as an exception: below it a pass reads the weights for too little.
const CHUNK_TOKENS_MIN: usize = 32;
/// The chunk that a step makes however little time it has takes this many microseconds at most, if it need not be fewer than
/// [`CHUNK_STEP`] tokens for that: half of the usual target. Deep in a long prompt, on a slow machine, 32 tokens take longer.
const CHUNK_US_MAX: f64 = 40_000.0;
/// Chunks that are not a prompt's last are multiples of this: rows that a kernel takes at once.
const CHUNK_STEP: usize = 8;
/// Tokens of an answer that a request pays for when it is admitted. What it really costs is settled as it comes.
const ANSWER_TOKENS_PREPAID: usize = 16;
/// A class keeps this part of the slots against more urgent ones, in thousandths, and one at least.
const SLOT_FLOOR_PERMILLE: usize = 100;
/// Slots for a weight of one, as a whole number that can be compared.
const RATIO: u64 = 1 << 20;

/// What a scheduler is made from.
#[derive(Clone, Debug)]
pub struct SchedulerConfig {
    /// Everybody's terms.
    pub tenancy: Tenancy,
    /// What passes cost.
    pub costs: Costs,
    /// Requests that may have a slot at a time.
    pub slots: usize,
    /// KV pages of the pool.
    pub pages: usize,
    /// Tokens of prompts in one step, at most.
    pub chunk_tokens_max: usize,
    /// A request that has waited for this long is not passed by others of its tenant, nor by smaller ones of anybody.
    pub age_bound: Duration,
}

/// A request that comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Whose it is.
    pub tenant: Label,
    /// Tokens to compute before the first one of the answer.
    pub prompt_tokens: usize,
    /// Of these, what its tenant's cache has.
    pub cached_tokens: usize,
    /// How often it gave way before.
    pub restarts: u32,
}

/// Whether a request could begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It could.
    Now,
    /// Not now. Others may go before it, as long as it has not waited for too long.
    Later,
    /// It had better wait. Others may go before it.
    Rather,
    /// Not now, and nobody goes before it.
    Hold,
}

/// Who gives pages up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// This tenant's cache, up to so many pages.
    Cache(Label, usize),
    /// This request, whose pages go.
    Request(Key),
}

/// The next piece of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Whose.
    pub key: Key,
    /// How many tokens of it.
    pub tokens: usize,
}

#[derive(Clone, Copy, Debug)]
struct Request {
    arrival: Arrival,
    since: Duration,
    /// Charged and not spent, in nanoseconds.
    prepaid_ns: u64,
    has_slot: bool,
    prefills: bool,
}

/// See the module. What every call costs grows with the logarithm of the number of tenants and requests.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    shares: FairShares,
    pages: PageShares,
    costs: CostModel,
    /// In a tree: no request waits until a table of all has grown.
    requests: BTreeMap<Key, Request>,
    queues: HashMap<Label, Queues>,
    /// Tenants that have slots: by class, and the one with the most for its weight last.
    holders: BTreeSet<(Class, u64, Label)>,
    slots_taken: [usize; 3],
}

impl Scheduler {
    /// With nothing to do yet.
    #[must_use]
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            shares: FairShares::new(config.tenancy.clone()),
            pages: PageShares::new(config.pages),
            costs: CostModel::new(config.costs),
            requests: BTreeMap::new(),
            queues: HashMap::with_capacity(config.tenancy.tenants()),
            holders: BTreeSet::new(),
            slots_taken: [0; 3],
            config,
        }
    }

    /// A request waits for a slot. `key` is nobody's else.
    pub fn arrive(&mut self, now: Duration, key: Key, arrival: Arrival) {
        let request = Request { arrival, since: now, prepaid_ns: 0, has_slot: false, prefills: false };
        if self.requests.insert(key, request).is_some() {
            debug_assert!(false, "two requests of one name");
            return;
        }
        self.queues.entry(arrival.tenant).or_default().wait(key, arrival.cached_tokens);
        self.shares.set_ready(arrival.tenant, Lane::Slots, true);
    }

    /// Another part of its prompt is in the cache by now.
    pub fn note_cached(&mut self, key: Key, cached_tokens: usize) {
        let waits_otherwise =
            |request: &&mut Request| !request.has_slot && request.arrival.cached_tokens != cached_tokens;
        let Some(request) = self.requests.get_mut(&key).filter(waits_otherwise) else { return };
        let before = std::mem::replace(&mut request.arrival.cached_tokens, cached_tokens);
        if let Some(queues) = self.queues.get_mut(&request.arrival.tenant) {
            queues.wait_no_more(key, before);
            queues.wait(key, cached_tokens);
        }
    }

    /// Whether this request is known, waiting or with a slot.
    #[must_use]
    pub fn knows(&self, key: Key) -> bool {
        self.requests.contains_key(&key)
    }

    /// Who gets the next slot: of the tenant whose turn it is, the request with the longest cached prefix, or the oldest one
    /// when that has waited for too long. `fits` says whether it could begin.
    pub fn next(&self, now: Duration, mut fits: impl FnMut(Key) -> Fit) -> Option<Key> {
        for tenant in self.shares.order(Lane::Slots).take(TENANTS_LOOKED_AT) {
            let Some(queues) = self.queues.get(&tenant) else { continue };
            let aged = |key| now.saturating_sub(self.since(key)) >= self.config.age_bound;
            let aged_first = queues.oldest().filter(|key| aged(*key));
            for key in aged_first.into_iter().chain(queues.longest_prefix_first().take(REQUESTS_LOOKED_AT)) {
                match fits(key) {
                    Fit::Now => return Some(key),
                    Fit::Hold => return None,
                    Fit::Later if aged(key) => return None,
                    Fit::Later | Fit::Rather => (),
                }
            }
        }
        None
    }

    /// A request gets a slot, and computes its prompt.
    pub fn admit(&mut self, key: Key) {
        let Some(request) = self.requests.get_mut(&key).filter(|request| !request.has_slot) else { return };
        (request.has_slot, request.prefills) = (true, true);
        let Arrival { tenant, prompt_tokens, cached_tokens, restarts } = request.arrival;
        let prepaid_ns = self.costs.request_ns(prompt_tokens, cached_tokens, ANSWER_TOKENS_PREPAID);
        request.prepaid_ns = prepaid_ns;
        let queues = self.queues.entry(tenant).or_default();
        queues.wait_no_more(key, cached_tokens);
        queues.prefilling.insert(key);
        let waits = queues.waits();
        self.change_slots(tenant, |queues| {
            queues.running.insert((Reverse(restarts), key));
        });
        self.shares.prepay(tenant, prepaid_ns);
        // In this order: between the lanes it does not stop waiting.
        self.shares.set_ready(tenant, Lane::Prefill, true);
        self.shares.set_ready(tenant, Lane::Slots, waits);
    }

    /// Its prompt is computed, or not computed here.
    pub fn prefilled(&mut self, key: Key) {
        let Some(request) = self.requests.get_mut(&key).filter(|request| request.prefills) else { return };
        request.prefills = false;
        let tenant = request.arrival.tenant;
        let queues = self.queues.entry(tenant).or_default();
        queues.prefilling.remove(&key);
        let ready = !queues.prefilling.is_empty();
        self.shares.set_ready(tenant, Lane::Prefill, ready);
    }

    /// A request is gone, wherever it was. One that gave way comes back with [`Scheduler::arrive`].
    pub fn forget(&mut self, key: Key) {
        self.prefilled(key);
        let Some(request) = self.requests.remove(&key) else { return };
        let Arrival { tenant, cached_tokens, restarts, .. } = request.arrival;
        if request.has_slot {
            self.change_slots(tenant, |queues| {
                queues.running.remove(&(Reverse(restarts), key));
            });
        } else if let Some(queues) = self.queues.get_mut(&tenant) {
            queues.wait_no_more(key, cached_tokens);
            let waits = queues.waits();
            self.shares.set_ready(tenant, Lane::Slots, waits);
        }
        self.shares.refund(tenant, request.prepaid_ns);
        if self.queues.get(&tenant).is_some_and(Queues::is_empty) {
            self.queues.remove(&tenant);
        }
    }

    /// A request's work cost so much.
    pub fn charge(&mut self, key: Key, cost_ns: u64) {
        let Some(request) = self.requests.get_mut(&key) else { return };
        let prepaid = request.prepaid_ns.min(cost_ns);
        request.prepaid_ns -= prepaid;
        let (tenant, prefills) = (request.arrival.tenant, request.prefills);
        if prefills {
            self.shares.charge_prefill(tenant, cost_ns, prepaid);
        } else {
            self.shares.charge(tenant, cost_ns, prepaid);
        }
    }

    /// Somebody who gives its slot to a request of `tenant` when all are taken: the youngest of those that gave way least
    /// often, of a less urgent class or of the tenant with the most slots for its weight. `None`: nobody has more than its share.
    #[must_use]
    pub fn victim_for_slot(&self, tenant: Label) -> Option<Key> {
        let (class, weight) = (self.shares.class(tenant), self.shares.weight(tenant));
        let own = self.slots_of(tenant) as u64;
        let floor = (self.config.slots * SLOT_FLOOR_PERMILLE / 1000).max(1);
        let below_floor = self.slots_taken[class as usize] < floor;
        // Less urgent classes give first.
        let holder = Class::ALL.into_iter().rev().find_map(|of| {
            let (_, _, holder) =
                self.holders.range((of, 0, Label::PUBLIC)..=(of, u64::MAX, Label::NOBODY)).next_back()?;
            let theirs = self.slots_of(*holder) as u64;
            let gives = if of == class {
                // Giving way costs something: whoever has some waits for what ends, unless the other one keeps more.
                let kept = own + if own == 0 { 1 } else { 2 };
                theirs.saturating_sub(1) * weight >= kept * self.shares.weight(*holder)
            } else {
                (of > class || below_floor) && self.slots_taken[of as usize] > floor
            };
            gives.then_some(*holder)
        })?;
        self.newest(holder)
    }

    /// Who gives pages up for `tenant` when none is free: the cache of whoever has most above its guarantee, down to that, then
    /// its newest request. The tenant itself when nobody has more above its guarantee than it. `None`: nobody has anything to
    /// give now, and the tenant has to wait.
    #[must_use]
    pub fn reclaim_for(&self, tenant: Label) -> Option<Reclaim> {
        let others = self.pages.over(tenant).take(TENANTS_LOOKED_AT).map(|(over, from)| (from, over));
        others.chain([(tenant, usize::MAX)]).find_map(|(from, pages_max)| {
            let cached = self.pages.cached(from).min(pages_max);
            if cached > 0 {
                return Some(Reclaim::Cache(from, cached));
            }
            self.newest(from).map(Reclaim::Request)
        })
    }

    /// Whether rows may be computed for this tenant that may turn out to be for nothing: not while somebody waits who is more
    /// urgent, or had less of its share.
    #[must_use]
    pub fn may_guess(&self, tenant: Label) -> bool {
        !self.shares.is_ahead(tenant)
    }

    /// A tenant has so many pages now, `cached` of which nothing but its cache holds.
    pub fn note_pages(&mut self, tenant: Label, pages: usize, cached: usize) {
        self.pages.note(&self.config.tenancy, tenant, pages, cached);
    }

    /// What prompts get of a step in which so much time is left, appended to `into`. There is always a chunk for somebody.
    ///
    /// Each tenant in its order gets what is left, but while another of its class waits no more than half of it, or than what
    /// it is behind that one; nothing of an exclusive tenant shares a pass with others. `rest`: what of a prompt is to be computed, or that it cannot go on now.
    pub fn plan_prefill(&self, left_us: f64, rest: impl Fn(Key) -> Option<Row>, into: &mut Vec<Chunk>) {
        let mut left_us = left_us - self.costs.prefill_fixed_us();
        let mut left_tokens = self.config.chunk_tokens_max;
        let begin = into.len();
        let accounts = self.shares.order(Lane::Prefill).map(|tenant| (tenant, self.shares.account(tenant)));
        let mut order = accounts.peekable();
        let (mut planned_for, mut passed_over) = (0, 0);
        while planned_for < TENANTS_LOOKED_AT
            && passed_over < PASSED_OVER_MAX
            && let Some((tenant, account)) = order.next()
        {
            let (mut can_go_on, planned) = (false, into.len());
            let exclusive = account.exclusive;
            if exclusive && into.len() > begin {
                continue;
            }
            let other = order.peek().filter(|(_, next)| !exclusive && next.class == account.class);
            let (mut own_us, mut own_tokens) = match other.map(|(_, next)| account.lag_us(next)) {
                Some(lag_us) => (
                    (left_us / 2.0).max(lag_us).min(left_us),
                    left_tokens.div_ceil(2).max(self.costs.tokens_within(lag_us, 0)).min(left_tokens),
                ),
                None => (left_us, left_tokens),
            };
            let prompts = self.queues.get(&tenant).into_iter().flat_map(|queues| &queues.prefilling);
            let rows = prompts.filter_map(|key| Some((*key, rest(*key).filter(|row| row.tokens > 0)?)));
            for (key, row) in rows.take(left_tokens / CHUNK_STEP + 1) {
                can_go_on = true;
                let within = self.costs.tokens_within(own_us, row.depth).min(own_tokens);
                let first = (into.len() == begin).then(|| self.least(row.depth));
                let Some(tokens) = chunk_tokens(row.tokens, within, first, left_tokens) else { break };
                let took_us =
                    self.costs.predict_us(Pass::Prefill, [Row { tokens, ..row }]) - self.costs.prefill_fixed_us();
                into.push(Chunk { key, tokens });
                (own_us, left_us) = (own_us - took_us, left_us - took_us);
                own_tokens = own_tokens.saturating_sub(tokens);
                left_tokens = left_tokens.saturating_sub(tokens);
            }
            if exclusive && into.len() > begin {
                break;
            }
            // Tenants whose prompts cannot go on hide nobody behind them; there are no more of them than slots.
            planned_for += usize::from(can_go_on);
            passed_over += usize::from(can_go_on && into.len() == planned);
            let left = self.costs.tokens_within(left_us, 0).min(left_tokens);
            if into.len() > begin && left < CHUNK_STEP {
                break;
            }
        }
        self.top_up(left_us, left_tokens, rest, &mut into[begin..]);
    }

    /// Tokens, after `depth` others of a prompt, of the chunk that a step makes in any case.
    fn least(&self, depth: usize) -> usize {
        self.costs.tokens_within(CHUNK_US_MAX, depth).clamp(CHUNK_STEP, CHUNK_TOKENS_MIN)
    }

    /// What is left when everybody had a part goes to whoever can use it, in the same order.
    fn top_up(&self, left_us: f64, tokens_max: usize, rest: impl Fn(Key) -> Option<Row>, chunks: &mut [Chunk]) {
        let (mut left_us, mut left_tokens) = (left_us, tokens_max);
        for chunk in chunks {
            let Some(row) = rest(chunk.key) else { continue };
            let (more, depth) = (row.tokens.saturating_sub(chunk.tokens), row.depth + chunk.tokens);
            let within = self.costs.tokens_within(left_us, depth).min(left_tokens).min(more);
            let tokens = if within == more { more } else { within / CHUNK_STEP * CHUNK_STEP };
            left_us -= self.costs.predict_us(Pass::Prefill, [Row { tokens, depth }]) - self.costs.prefill_fixed_us();
            left_tokens -= tokens;
            chunk.tokens += tokens;
        }
    }

    /// What passes cost.
    #[must_use]
    pub fn costs(&self) -> &CostModel {
        &self.costs
    }

    /// What passes cost, to be corrected.
    pub fn costs_mut(&mut self) -> &mut CostModel {
        &mut self.costs
    }

    /// Everybody's terms.
    #[must_use]
    pub fn tenancy(&self) -> &Tenancy {
        self.shares.tenancy()
    }

    /// Pages that nobody takes from this tenant.
    #[must_use]
    pub fn guaranteed_pages(&self, tenant: Label) -> usize {
        self.config.tenancy.guaranteed_pages(tenant, self.config.pages)
    }

    /// Requests that have a slot.
    #[must_use]
    pub fn running(&self) -> usize {
        self.slots_taken.iter().sum()
    }

    /// Requests that wait for one.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.requests.len() - self.running()
    }

    /// Panics unless every set says the same of every request. Costs as much as there are requests: for tests.
    #[cfg(any(test, debug_assertions))]
    #[doc(hidden)]
    pub fn assert_sound(&self) {
        self.shares.assert_sound();
        let mut wanted: HashMap<Label, (Queues, u64)> = HashMap::new();
        for (key, request) in &self.requests {
            let (queues, prepaid_ns) = wanted.entry(request.arrival.tenant).or_default();
            *prepaid_ns += request.prepaid_ns;
            if request.has_slot {
                queues.running.insert((Reverse(request.arrival.restarts), *key));
            } else {
                queues.wait(*key, request.arrival.cached_tokens);
            }
            if request.prefills {
                queues.prefilling.insert(*key);
            }
        }
        let (mut holders, mut slots_taken) = (BTreeSet::new(), [0; 3]);
        for (tenant, (queues, prepaid_ns)) in &wanted {
            assert!(self.queues.get(tenant) == Some(queues), "a tenant's queues are not its requests");
            let ready = [queues.waits(), !queues.prefilling.is_empty()];
            assert_eq!(self.shares.state(*tenant), (ready, *prepaid_ns), "an account is not its requests'");
            if !queues.running.is_empty() {
                holders.insert(self.holder(*tenant, queues.running.len()));
                slots_taken[self.shares.class(*tenant) as usize] += queues.running.len();
            }
        }
        assert_eq!(self.queues.len(), wanted.len(), "queues of nobody");
        assert_eq!((&self.holders, self.slots_taken), (&holders, slots_taken), "slots are not the requests'");
    }

    fn since(&self, key: Key) -> Duration {
        self.requests.get(&key).map_or(Duration::MAX, |request| request.since)
    }

    fn slots_of(&self, tenant: Label) -> usize {
        self.queues.get(&tenant).map_or(0, |queues| queues.running.len())
    }

    fn newest(&self, tenant: Label) -> Option<Key> {
        self.queues.get(&tenant)?.running.last().map(|(_, key)| *key)
    }

    fn change_slots(&mut self, tenant: Label, change: impl FnOnce(&mut Queues)) {
        let queues = self.queues.entry(tenant).or_default();
        let before = queues.running.len();
        change(queues);
        let now = queues.running.len();
        self.holders.remove(&self.holder(tenant, before));
        if now > 0 {
            self.holders.insert(self.holder(tenant, now));
        }
        let taken = &mut self.slots_taken[self.shares.class(tenant) as usize];
        *taken = *taken + now - before;
    }

    fn holder(&self, tenant: Label, slots: usize) -> (Class, u64, Label) {
        (self.shares.class(tenant), slots as u64 * RATIO / self.shares.weight(tenant), tenant)
    }
}

/// Of `rest` tokens of a prompt, how many are computed when there is time for `within`: not too few, unless it is the end of the
/// prompt. The first chunk of a step has so many whatever there is time for. `None`: there is no time left.
fn chunk_tokens(rest: usize, within: usize, first: Option<usize>, tokens_max: usize) -> Option<usize> {
    let least = first.unwrap_or(CHUNK_TOKENS_MIN).min(tokens_max);
    let tokens = if first.is_some() { within.max(least) } else { within }.min(rest).min(tokens_max);
    let whole = tokens / CHUNK_STEP * CHUNK_STEP;
    let chunk = match tokens {
        _ if tokens == rest => tokens,
        _ if whole >= least => whole,
        _ if first.is_some() => tokens,
        _ => 0,
    };
    Some(chunk).filter(|tokens| *tokens > 0)
}

#[cfg(test)]
mod tests;
