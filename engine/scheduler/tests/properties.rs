//! What holds whatever happens: random tenants, requests and orders of calls.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use engine_scheduler::{
    Arrival, Chunk, Class, Costs, Fit, Key, Pass, Reclaim, Row, Scheduler, SchedulerConfig, Tenancy, TenantTerms,
};
use policies_domain::{Label, TenantId};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

const COSTS: Costs =
    Costs { decode_us: 1000.0, row_us: 100.0, read_us: 0.1, prefill_us: 500.0, token_us: 50.0, depth_us: 0.01 };
/// Below it a chunk is a prompt's end.
const CHUNK_TOKENS_MIN: usize = 32;

fn label(tenant: usize) -> Label {
    Label::of(TenantId::new(tenant as u32 + 1).unwrap())
}

fn scheduler(terms: &[TenantTerms], slots: usize) -> Scheduler {
    let tenancy = Tenancy::new(terms.iter().enumerate().map(|(tenant, terms)| (label(tenant), *terms))).unwrap();
    let age_bound = Duration::from_secs(2);
    Scheduler::new(SchedulerConfig { tenancy, costs: COSTS, slots, pages: 1000, chunk_tokens_max: 512, age_bound })
}

fn assert_sound(scheduler: &Scheduler) {
    #[cfg(debug_assertions)]
    scheduler.assert_sound();
    let _ = scheduler;
}

fn arrival(tenant: usize, prompt_tokens: usize, cached_tokens: usize) -> Arrival {
    Arrival { tenant: label(tenant), prompt_tokens, cached_tokens, restarts: 0 }
}

fn any_terms() -> impl Strategy<Value = TenantTerms> {
    (0..3usize, 1..5u32).prop_map(|(class, weight)| TenantTerms {
        class: Class::ALL[class],
        weight,
        ..TenantTerms::default()
    })
}

/// What can happen to a scheduler; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Call {
    Arrive { tenant: usize, prompt: usize, cached: usize },
    NoteCached { request: usize, cached: usize },
    Admit,
    Takeover { tenant: usize },
    Charge { request: usize, cost_us: u64 },
    Prefilled { request: usize },
    Forget { request: usize },
    Pages { tenant: usize, pages: usize, cached: usize },
}

fn any_call() -> impl Strategy<Value = Call> {
    let any = 0..1000usize;
    prop_oneof![
        4 => (any.clone(), 1..3000usize, 0..3000usize).prop_map(|(tenant, prompt, cached)| Call::Arrive { tenant, prompt, cached }),
        1 => (any.clone(), 0..3000usize).prop_map(|(request, cached)| Call::NoteCached { request, cached }),
        4 => Just(Call::Admit),
        1 => any.clone().prop_map(|tenant| Call::Takeover { tenant }),
        4 => (any.clone(), 0..200_000u64).prop_map(|(request, cost_us)| Call::Charge { request, cost_us }),
        2 => any.clone().prop_map(|request| Call::Prefilled { request }),
        2 => any.clone().prop_map(|request| Call::Forget { request }),
        2 => (any, 0..200usize, 0..100usize).prop_map(|(tenant, pages, cached)| Call::Pages { tenant, pages, cached: cached.min(pages) }),
    ]
}

/// What a caller knows.
struct Caller {
    scheduler: Scheduler,
    tenants: usize,
    slots: usize,
    /// Whose each request is, and whether it has a slot.
    requests: BTreeMap<Key, (usize, bool)>,
    pages: Vec<(usize, usize)>,
    next: Key,
}

impl Caller {
    fn new(terms: &[TenantTerms]) -> Self {
        let (tenants, slots) = (terms.len(), 8);
        let scheduler = scheduler(terms, slots);
        Self { scheduler, tenants, slots, requests: BTreeMap::new(), pages: vec![(0, 0); tenants], next: 0 }
    }

    fn key(&self, request: usize) -> Option<Key> {
        self.requests.keys().nth(request % self.requests.len().max(1)).copied()
    }

    fn call(&mut self, call: &Call) {
        let now = Duration::from_millis(self.next * 10);
        match *call {
            Call::Arrive { tenant, prompt, cached } => {
                let tenant = tenant % self.tenants;
                self.scheduler.arrive(now, self.next, arrival(tenant, prompt, cached.min(prompt - 1)));
                self.requests.insert(self.next, (tenant, false));
                self.next += 1;
            }
            Call::NoteCached { request, cached } => {
                if let Some(key) = self.key(request) {
                    self.scheduler.note_cached(key, cached);
                }
            }
            Call::Admit => self.admit(now),
            Call::Takeover { tenant } => {
                let tenant = tenant % self.tenants;
                if let Some(victim) = self.scheduler.victim_for_slot(label(tenant)) {
                    assert!(self.requests[&victim].1, "who has no slot gives none");
                    self.scheduler.forget(victim);
                    self.requests.remove(&victim);
                }
            }
            Call::Charge { request, cost_us } => {
                if let Some(key) = self.key(request) {
                    self.scheduler.charge(key, cost_us * 1000);
                }
            }
            Call::Prefilled { request } => {
                if let Some(key) = self.key(request) {
                    self.scheduler.prefilled(key);
                }
            }
            Call::Forget { request } => {
                if let Some(key) = self.key(request) {
                    self.scheduler.forget(key);
                    self.requests.remove(&key);
                }
            }
            Call::Pages { tenant, pages, cached } => {
                let tenant = tenant % self.tenants;
                self.scheduler.note_pages(label(tenant), pages, cached);
                self.pages[tenant] = (pages, cached);
            }
        }
    }

    fn admit(&mut self, now: Duration) {
        let next = self.scheduler.next(now, |_| Fit::Now);
        let waits = self.requests.values().any(|(_, has_slot)| !has_slot);
        assert_eq!(next.is_some(), waits, "whenever somebody waits, somebody is next");
        let Some(key) = next.filter(|_| self.scheduler.running() < self.slots) else { return };
        self.scheduler.admit(key);
        let request = self.requests.get_mut(&key).unwrap();
        assert!(!std::mem::replace(&mut request.1, true), "one slot for each");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_request_is_known_as_long_as_it_is_there(
        terms in prop::collection::vec(any_terms(), 1..6),
        calls in prop::collection::vec(any_call(), 1..120),
    ) {
        let mut caller = Caller::new(&terms);
        for call in &calls {
            caller.call(call);
            assert_sound(&caller.scheduler);
            let known = (0..caller.next).filter(|key| caller.scheduler.knows(*key));
            prop_assert!(known.eq(caller.requests.keys().copied()));
            let running = caller.requests.values().filter(|(_, has_slot)| *has_slot).count();
            prop_assert_eq!(caller.scheduler.running(), running);
            prop_assert_eq!(caller.scheduler.waiting(), caller.requests.len() - running);
        }
        for key in 0..caller.next {
            caller.scheduler.forget(key);
        }
        assert_sound(&caller.scheduler);
        prop_assert_eq!(caller.scheduler.running() + caller.scheduler.waiting(), 0);
    }

    #[test]
    fn what_a_tenant_was_guaranteed_is_taken_for_nobody_else(
        terms in prop::collection::vec(any_terms(), 1..6),
        calls in prop::collection::vec(any_call(), 1..120),
    ) {
        let mut caller = Caller::new(&terms);
        for call in &calls {
            caller.call(call);
            for tenant in 0..caller.tenants {
                let (from, pages) = match caller.scheduler.reclaim_for(label(tenant)) {
                    None => continue,
                    Some(Reclaim::Cache(from, pages)) => {
                        ((0..caller.tenants).find(|of| label(*of) == from).unwrap(), pages)
                    }
                    Some(Reclaim::Request(key)) => (caller.requests[&key].0, 0),
                };
                let (held, cached) = caller.pages[from];
                prop_assert!(pages <= cached);
                let guaranteed = caller.scheduler.guaranteed_pages(label(from));
                prop_assert!(from == tenant || (held > guaranteed && held - pages >= guaranteed));
            }
        }
    }

    /// The order between tenants is never an answer to: what is in somebody's cache?
    #[test]
    fn a_cached_prefix_never_changes_whose_turn_it_is(
        terms in prop::collection::vec(any_terms(), 1..6),
        calls in prop::collection::vec(any_call(), 1..80),
        cached in prop::collection::vec(0..3000usize, 80),
    ) {
        let mut caller = Caller::new(&terms);
        for call in &calls {
            caller.call(call);
            let whose = |caller: &Caller| {
                caller.scheduler.next(Duration::ZERO, |_| Fit::Now).map(|key| caller.requests[&key].0)
            };
            let before = whose(&caller);
            for (key, cached) in caller.requests.keys().zip(&cached) {
                caller.scheduler.note_cached(*key, *cached);
            }
            prop_assert_eq!(before, whose(&caller));
        }
    }

    /// The order of one tenant's requests among themselves is never an answer to: what does another one ask?
    #[test]
    fn another_tenant_s_prompts_do_not_change_the_order_of_one_s_own(
        own in prop::collection::vec((1..2000usize, 0..2000usize), 1..30),
        others in prop::collection::vec((1..4000usize, 0..4000usize), 30),
        changed in prop::collection::vec((1..4000usize, 0..4000usize), 30),
    ) {
        let order = |others: &[(usize, usize)]| {
            let mut scheduler = scheduler(&[TenantTerms::default(); 2], 4);
            for (number, ((prompt, cached), of_other)) in own.iter().zip(others).enumerate() {
                let key = number as Key * 2;
                scheduler.arrive(Duration::ZERO, key, arrival(0, *prompt, *cached.min(&(prompt - 1))));
                scheduler.arrive(Duration::ZERO, key + 1, arrival(1, of_other.0, of_other.1.min(of_other.0 - 1)));
            }
            let mut order = Vec::new();
            while let Some(key) = scheduler.next(Duration::ZERO, |_| Fit::Now) {
                scheduler.admit(key);
                let cost = scheduler.costs().request_ns(if key % 2 == 0 { own[key as usize / 2].0 } else { others[key as usize / 2].0 }, 0, 9);
                scheduler.charge(key, cost);
                scheduler.forget(key);
                order.extend(Some(key).filter(|key| key % 2 == 0));
            }
            order
        };
        prop_assert_eq!(order(&others), order(&changed));
    }

    #[test]
    fn a_plan_keeps_to_the_tokens_and_to_the_time(
        terms in prop::collection::vec(any_terms(), 1..6),
        exclusive in 0..8usize,
        prompts in prop::collection::vec((0..6usize, 0..3000usize, 0..5000usize), 1..30),
        left_us in -1e4..1e5f64,
    ) {
        let mut terms = terms;
        if let Some(terms) = terms.get_mut(exclusive) {
            terms.exclusive = true;
        }
        let mut scheduler = scheduler(&terms, 30);
        for (key, (tenant, ..)) in prompts.iter().enumerate() {
            scheduler.arrive(Duration::ZERO, key as Key, arrival(tenant % terms.len(), 100, 0));
            scheduler.admit(key as Key);
        }
        let rest = |key: Key| {
            let (_, tokens, depth) = prompts[key as usize];
            (tokens % 7 != 1).then_some(Row { tokens, depth })
        };
        let mut chunks = Vec::new();
        scheduler.plan_prefill(left_us, rest, &mut chunks);
        let tokens: usize = chunks.iter().map(|chunk| chunk.tokens).sum();
        prop_assert!(tokens <= 512);
        let rows = chunks.iter().map(|Chunk { key, tokens }| Row { tokens: *tokens, depth: rest(*key).unwrap().depth });
        let predicted_us = scheduler.costs().predict_us(Pass::Prefill, rows);
        prop_assert!(
            chunks.is_empty() || predicted_us <= left_us + 1.0 || chunks.len() == 1 && tokens <= CHUNK_TOKENS_MIN,
            "{predicted_us} in {left_us}: {chunks:?}"
        );
        let can_go_on = (0..prompts.len()).any(|key| rest(key as Key).is_some_and(|row| row.tokens > 0));
        prop_assert_eq!(can_go_on, !chunks.is_empty());
        for (number, Chunk { key, tokens }) in chunks.iter().enumerate() {
            prop_assert!(*tokens > 0 && *tokens <= rest(*key).unwrap().tokens);
            prop_assert!(chunks[..number].iter().all(|chunk| chunk.key != *key), "one chunk of a prompt");
        }
        let whose: Vec<usize> = chunks.iter().map(|chunk| prompts[chunk.key as usize].0 % terms.len()).collect();
        prop_assert!(whose.iter().all(|of| *of == whose[0] || !terms[*of].exclusive && !terms[whose[0]].exclusive));
    }

    /// See `fair.rs`: two steps and two chunks, where a chunk costs no more than a step.
    #[test]
    fn tenants_whose_prompts_wait_differ_by_two_steps_and_two_chunks_at_most(
        weights in prop::collection::vec(1..5u32, 2..6),
        steps in prop::collection::vec((0.0..40_000.0f64, 0.7..1.4f64), 50..200),
    ) {
        let terms: Vec<TenantTerms> =
            weights.iter().map(|weight| TenantTerms { weight: *weight, ..TenantTerms::default() }).collect();
        let mut scheduler = scheduler(&terms, weights.len());
        for tenant in 0..weights.len() {
            scheduler.arrive(Duration::ZERO, tenant as Key, arrival(tenant, 1_000_000, 0));
            scheduler.admit(tenant as Key);
        }
        let mut work = vec![0.0; weights.len()];
        let mut longest: f64 = 0.0;
        let depth = RefCell::new(vec![0; weights.len()]);
        for (left_us, truth) in steps {
            let mut chunks = Vec::new();
            let rest = |key: Key| Some(Row { tokens: 1_000_000, depth: depth.borrow()[key as usize] % 2000 });
            scheduler.plan_prefill(left_us, rest, &mut chunks);
            let rows: Vec<Row> =
                chunks.iter().map(|chunk| Row { tokens: chunk.tokens, ..rest(chunk.key).unwrap() }).collect();
            let took_us = scheduler.costs().predict_us(Pass::Prefill, rows.iter().copied()) * truth;
            longest = longest.max(took_us);
            let costs = *scheduler.costs();
            let took = Duration::from_secs_f64(took_us / 1e6);
            for (chunk, cost_ns) in chunks.iter().zip(costs.parts_ns(Pass::Prefill, rows.iter().copied(), took)) {
                scheduler.charge(chunk.key, cost_ns);
                let tenant = chunk.key as usize;
                work[tenant] += cost_ns as f64 / 1e3 / f64::from(weights[tenant]);
                depth.borrow_mut()[tenant] += chunk.tokens;
            }
            for one in 0..weights.len() {
                for other in 0..one {
                    let bound = 4.0 * longest / f64::from(weights[one].min(weights[other]));
                    prop_assert!((work[one] - work[other]).abs() <= bound, "{work:?}, {longest}");
                }
            }
        }
    }

    /// Slots go by what requests cost, however wrong that was predicted; and nobody waits for longer than a round.
    #[test]
    fn tenants_that_wait_for_slots_differ_by_what_their_slots_cost_and_none_starves(
        weights in prop::collection::vec(1..5u32, 2..6),
        slots in 1..12usize,
        costs in prop::collection::vec((10..2000usize, 1_000_000..100_000_000u64), 600),
    ) {
        let terms: Vec<TenantTerms> =
            weights.iter().map(|weight| TenantTerms { weight: *weight, ..TenantTerms::default() }).collect();
        let mut scheduler = scheduler(&terms, slots);
        let tenants = weights.len();
        for (key, (prompt, _)) in costs.iter().enumerate() {
            scheduler.arrive(Duration::ZERO, key as Key, arrival(key % tenants, *prompt, 0));
        }
        let mut work = vec![0.0; tenants];
        let mut running = std::collections::VecDeque::new();
        let (mut dearest, mut prepaid_most): (f64, f64) = (0.0, 0.0);
        // As long as everybody still waits.
        for _ in 0..costs.len() / tenants / 5 {
            while running.len() < slots {
                let Some(key) = scheduler.next(Duration::ZERO, |_| Fit::Now) else { break };
                let (prompt, cost_ns) = costs[key as usize];
                prepaid_most = prepaid_most.max(scheduler.costs().request_ns(prompt, 0, 16) as f64);
                dearest = dearest.max(cost_ns as f64);
                scheduler.admit(key);
                scheduler.prefilled(key);
                running.push_back(key);
            }
            let Some(key) = running.pop_front() else { break };
            let cost_ns = costs[key as usize].1;
            scheduler.charge(key, cost_ns);
            scheduler.forget(key);
            work[key as usize % tenants] += cost_ns as f64 / f64::from(weights[key as usize % tenants]);
            let bound = 2.0 * (slots + 1) as f64 * (dearest + prepaid_most);
            for one in &work {
                prop_assert!(work.iter().all(|other| (one - other).abs() <= bound), "{work:?}");
            }
        }
    }
}
