//! The scheduler under an engine and a clock that are made up. Everything that decides is the scheduler's own code; this file
//! does what a step loop does around it, and keeps books.
//!
//! A step has one row for each answer and the chunks that were planned. It takes what the *true* costs say, with noise; the
//! scheduler was calibrated with others and has to notice.

use crate::random::{Random, Zipf};
use engine_scheduler::{
    Arrival, Chunk, CostModel, Costs, Fit, Key, Pass, Reclaim, Row, Scheduler, SchedulerConfig, Tenancy, TenantTerms,
};
use policies_domain::{Label, TenantId};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

/// Tokens of a page.
const PAGE_TOKENS: usize = 16;
/// Of a cache, pages that are given up at once.
const CACHE_PAGES_AT_ONCE: usize = 16;
/// Slots that change hands before one step, at most.
const TAKEOVERS_PER_STEP: usize = 64;

/// What is asked of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// A request comes.
    Arrive,
    /// Who gets the next slot, and that it has it.
    Admit,
    /// One chunk of a step's prompts.
    Chunk,
    /// One row's cost.
    Charge,
    /// Who gives its slot, or its pages.
    GiveWay,
    /// A request ends.
    Forget,
}

impl Decision {
    pub(crate) const ALL: [Self; 6] =
        [Self::Arrive, Self::Admit, Self::Chunk, Self::Charge, Self::GiveWay, Self::Forget];
}

/// Looks at decisions from outside: the simulation itself has no clock but its own.
pub(crate) trait Watch {
    /// `decide` makes so many decisions of a kind.
    fn see<T>(&mut self, decision: Decision, decide: impl FnOnce() -> T, count: impl Fn(&T) -> usize) -> T;
}

/// Looks at nothing.
pub(crate) struct Unwatched;

impl Watch for Unwatched {
    fn see<T>(&mut self, _: Decision, decide: impl FnOnce() -> T, _: impl Fn(&T) -> usize) -> T {
        decide()
    }
}

/// The engine that is made up.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    pub(crate) slots: usize,
    pub(crate) pages: usize,
    pub(crate) chunk_tokens_max: usize,
    /// What a step may take.
    pub(crate) step_target_us: f64,
    /// What the scheduler was told.
    pub(crate) calibrated: Costs,
    /// What is so.
    pub(crate) truth: Costs,
    /// A step takes up to this part more or less than the truth.
    pub(crate) noise: f64,
    /// Of a million passes, so many find the machine away for a while, whatever they compute.
    pub(crate) pauses_per_million: usize,
    pub(crate) pause: Duration,
    pub(crate) age_bound: Duration,
}

impl Default for Machine {
    /// A model of eight billion weights on one large accelerator: prompts are dearer than was measured, rows cheaper.
    fn default() -> Self {
        let calibrated = Costs {
            decode_us: 5000.0,
            row_us: 80.0,
            read_us: 0.03,
            prefill_us: 800.0,
            token_us: 15.0,
            depth_us: 0.002,
        };
        let truth = Costs {
            decode_us: 4000.0,
            row_us: 60.0,
            read_us: 0.04,
            prefill_us: 1000.0,
            token_us: 18.0,
            depth_us: 0.003,
        };
        Self {
            slots: 256,
            pages: 40_000,
            chunk_tokens_max: 2048,
            step_target_us: 50_000.0,
            calibrated,
            truth,
            noise: 0.1,
            pauses_per_million: 0,
            pause: Duration::ZERO,
            age_bound: Duration::from_secs(2),
        }
    }
}

impl Machine {
    /// A model of a hundred million weights on two cores.
    pub(crate) fn small() -> Self {
        let costs = Costs {
            decode_us: 1700.0,
            row_us: 500.0,
            read_us: 0.3,
            prefill_us: 1000.0,
            token_us: 350.0,
            depth_us: 0.1,
        };
        let truth = Costs { decode_us: 1900.0, row_us: 550.0, ..costs };
        let (slots, pages, chunk_tokens_max, step_target_us) = (16, 4096, 512, 56_000.0);
        Self { slots, pages, chunk_tokens_max, step_target_us, calibrated: costs, truth, ..Self::default() }
    }
}

/// When a tenant's requests come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Demand {
    /// With its rank among all: one comes whenever one of anybody's ends.
    Zipf,
    /// So many are there at any time.
    Backlog(usize),
    /// So many come at once, and no more.
    Once(usize),
    /// So many a second, at random times, during the first of two spans that alternate, in seconds.
    Rate { per_second: f64, on: f64, off: f64 },
}

/// One tenant: what it was promised and what it does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tenant {
    pub(crate) terms: TenantTerms,
    pub(crate) demand: Demand,
    pub(crate) prompt: (usize, usize),
    pub(crate) answer: (usize, usize),
    /// Of its requests, in hundredths, those whose client leaves within two seconds.
    pub(crate) cancels_percent: usize,
}

impl Tenant {
    /// Short questions and answers.
    pub(crate) fn chat(demand: Demand) -> Self {
        let terms = TenantTerms::default();
        Self { terms, demand, prompt: (100, 300), answer: (40, 120), cancels_percent: 0 }
    }

    /// Long prompts and short answers.
    pub(crate) fn long(demand: Demand) -> Self {
        Self { prompt: (3000, 5000), answer: (10, 60), ..Self::chat(demand) }
    }
}

#[derive(Clone, Debug)]
struct Sequence {
    tenant: usize,
    arrived: Duration,
    prompt_tokens: usize,
    cached_tokens: usize,
    answer_tokens: usize,
    /// Tokens whose keys and values are there.
    computed: usize,
    answered: usize,
    /// What is computed before its next token: its prompt, and its answer so far when it gave way.
    prefill_tokens: usize,
    pages: usize,
    restarts: u32,
    has_slot: bool,
    waited: Option<Duration>,
    last_token: Option<Duration>,
}

impl Sequence {
    fn to_prefill(&self) -> usize {
        self.prefill_tokens.saturating_sub(self.computed)
    }
}

/// What a tenant got, and what it saw.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book {
    /// Cost of its work, in nanoseconds.
    pub(crate) work_ns: u64,
    pub(crate) ended: usize,
    /// From a request's arrival to its first slot, in seconds.
    pub(crate) waits: Vec<f64>,
    /// From its arrival to its first token.
    pub(crate) ttft: Vec<f64>,
    /// When those arrived.
    pub(crate) arrived: Vec<f64>,
    /// Between two tokens.
    pub(crate) itl: Vec<f64>,
    /// Slots that it had at a time, at most.
    pub(crate) slots_max: usize,
    slots: usize,
    live: usize,
    held: usize,
    cached: usize,
    /// Of its cache, what others may take.
    cache_over: usize,
}

/// What happened in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) steps: usize,
    pub(crate) arrived: usize,
    pub(crate) ended: usize,
    pub(crate) cancelled: usize,
    pub(crate) gave_way: usize,
    pub(crate) cache_pages_reclaimed: usize,
    /// Whoever asked for pages while nobody had any to give.
    pub(crate) stalled: usize,
}

/// See the module.
pub(crate) struct Simulation {
    machine: Machine,
    tenants: Vec<Tenant>,
    pub(crate) scheduler: Scheduler,
    truth: CostModel,
    random: Random,
    zipf: Zipf,
    numbers: HashMap<Label, usize>,
    pub(crate) now: Duration,
    sequences: HashMap<Key, Sequence>,
    running: BTreeSet<Key>,
    comes: BTreeSet<(Duration, usize)>,
    leaves: BTreeMap<Key, Duration>,
    leaves_by_time: BTreeSet<(Duration, Key)>,
    next_key: Key,
    pages_free: usize,
    /// Pages of caches above their tenants' guarantees.
    cache_over: usize,
    pub(crate) books: Vec<Book>,
    pub(crate) counts: Counts,
    /// When the machine was away, in seconds.
    pub(crate) pauses: Vec<(f64, f64)>,
    /// What the last step cost, for bounds.
    pub(crate) longest_step: Duration,
    /// Requests that one decision looked at, at most: for a slot, for the chunks of a step.
    pub(crate) looks_max: [usize; 2],
    /// The most that one request cost from its admission on, in nanoseconds.
    pub(crate) dearest_ns: u64,
    cost_ns: HashMap<Key, u64>,
}

pub(crate) fn label(tenant: usize) -> Label {
    TenantId::new(tenant as u32 + 1).map_or(Label::NOBODY, Label::of)
}

impl Simulation {
    /// With so many live requests of the tenants whose demand is [`Demand::Zipf`].
    pub(crate) fn new(machine: Machine, tenants: Vec<Tenant>, live: usize, seed: u64, watch: &mut impl Watch) -> Self {
        let terms = tenants.iter().enumerate().map(|(tenant, of)| (label(tenant), of.terms));
        let config = SchedulerConfig {
            tenancy: Tenancy::new(terms).unwrap_or_default(),
            costs: machine.calibrated,
            slots: machine.slots,
            pages: machine.pages,
            chunk_tokens_max: machine.chunk_tokens_max,
            age_bound: machine.age_bound,
        };
        let mut simulation = Self {
            scheduler: Scheduler::new(config),
            truth: CostModel::new(machine.truth),
            random: Random(seed),
            zipf: Zipf::new(tenants.iter().filter(|tenant| tenant.demand == Demand::Zipf).count()),
            numbers: (0..tenants.len()).map(|tenant| (label(tenant), tenant)).collect(),
            now: Duration::ZERO,
            sequences: HashMap::new(),
            running: BTreeSet::new(),
            comes: BTreeSet::new(),
            leaves: BTreeMap::new(),
            leaves_by_time: BTreeSet::new(),
            next_key: 0,
            pages_free: machine.pages,
            cache_over: 0,
            books: vec![Book::default(); tenants.len()],
            counts: Counts::default(),
            pauses: Vec::new(),
            longest_step: Duration::ZERO,
            looks_max: [0; 2],
            dearest_ns: 0,
            cost_ns: HashMap::new(),
            machine,
            tenants,
        };
        simulation.populate(live, watch);
        simulation
    }

    fn populate(&mut self, live: usize, watch: &mut impl Watch) {
        for _ in 0..live {
            self.come_by_zipf(watch);
        }
        for tenant in 0..self.tenants.len() {
            match self.tenants[tenant].demand {
                Demand::Zipf => (),
                Demand::Backlog(requests) | Demand::Once(requests) => {
                    (0..requests).for_each(|_| self.come(tenant, watch));
                }
                Demand::Rate { .. } => self.plan_arrival(tenant),
            }
        }
    }

    /// Tenants of this demand are the first ones, by rank.
    fn come_by_zipf(&mut self, watch: &mut impl Watch) {
        let tenant = self.zipf.draw(&mut self.random);
        self.come(tenant, watch);
    }

    fn plan_arrival(&mut self, tenant: usize) {
        let Demand::Rate { per_second, on, off } = self.tenants[tenant].demand else { return };
        let mut at = self.now.as_secs_f64() + self.random.gap_seconds(per_second);
        if off > 0.0 && at % (on + off) >= on {
            at += on + off - at % (on + off);
        }
        self.comes.insert((Duration::from_secs_f64(at), tenant));
    }

    fn come(&mut self, tenant: usize, watch: &mut impl Watch) {
        let Tenant { prompt, answer, cancels_percent, .. } = self.tenants[tenant];
        let key = self.next_key;
        self.next_key += 1;
        let prompt_tokens = self.random.between(prompt);
        let cached_most = (self.books[tenant].cached * PAGE_TOKENS).min(prompt_tokens - 1);
        let cached_tokens = self.random.between((0, cached_most)) / PAGE_TOKENS * PAGE_TOKENS;
        let sequence = Sequence {
            tenant,
            arrived: self.now,
            prompt_tokens,
            cached_tokens,
            answer_tokens: self.random.between(answer),
            computed: 0,
            answered: 0,
            prefill_tokens: prompt_tokens,
            pages: 0,
            restarts: 0,
            has_slot: false,
            waited: None,
            last_token: None,
        };
        if self.random.between((0, 99)) < cancels_percent {
            let at = self.now + Duration::from_secs_f64(self.random.part() * 2.0);
            self.leaves.insert(key, at);
            self.leaves_by_time.insert((at, key));
        }
        self.counts.arrived += 1;
        self.books[tenant].live += 1;
        self.arrive(key, &sequence, watch);
        self.sequences.insert(key, sequence);
    }

    fn arrive(&mut self, key: Key, sequence: &Sequence, watch: &mut impl Watch) {
        let arrival = Arrival {
            tenant: label(sequence.tenant),
            prompt_tokens: sequence.prefill_tokens,
            cached_tokens: sequence.cached_tokens,
            restarts: sequence.restarts,
        };
        let (scheduler, now) = (&mut self.scheduler, self.now);
        watch.see(Decision::Arrive, || scheduler.arrive(now, key, arrival), |()| 1);
    }

    /// Runs until this time.
    pub(crate) fn run_until(&mut self, until: Duration, watch: &mut impl Watch) {
        while self.now < until {
            self.step(watch);
        }
    }

    /// What a step loop does, in its order.
    pub(crate) fn step(&mut self, watch: &mut impl Watch) {
        self.clients_come_and_leave(watch);
        self.admit(watch);
        self.make_room_for_answers(watch);
        let answers = self.answers();
        let decode_us = self.scheduler.costs().predict_us(Pass::Decode, answers.iter().map(|(_, row)| *row));
        let mut chunks = Vec::new();
        {
            let (scheduler, sequences, looks) = (&self.scheduler, &self.sequences, Cell::new(0));
            let rest = |key: Key| {
                looks.set(looks.get() + 1);
                let sequence = sequences.get(&key)?;
                Some(Row { tokens: sequence.to_prefill(), depth: sequence.computed })
            };
            let left_us = self.machine.step_target_us - decode_us;
            let plan = || {
                scheduler.plan_prefill(left_us, rest, &mut chunks);
                chunks.len()
            };
            watch.see(Decision::Chunk, plan, |chunks| *chunks);
            self.looks_max[1] = self.looks_max[1].max(looks.get());
        }
        let prompts: Vec<(Key, Row)> = chunks
            .iter()
            .map(|Chunk { key, tokens }| (*key, Row { tokens: *tokens, depth: self.sequences[key].computed }))
            .collect();
        let begin = self.now;
        self.pass(Pass::Decode, &answers, watch);
        self.pass(Pass::Prefill, &prompts, watch);
        self.counts.steps += 1;
        self.longest_step = self.longest_step.max(self.now - begin);
        self.tokens_come_out(&answers, watch);
        self.prompts_go_on(&prompts, watch);
        if answers.is_empty() && prompts.is_empty() {
            self.wait();
        }
    }

    fn wait(&mut self) {
        let next = [self.comes.first().map(|(at, _)| *at), self.leaves_by_time.first().map(|(at, _)| *at)];
        let next = next.into_iter().flatten().min().unwrap_or(self.now);
        self.now = next.max(self.now + Duration::from_millis(1));
    }

    fn clients_come_and_leave(&mut self, watch: &mut impl Watch) {
        while let Some((at, tenant)) = self.comes.first().copied().filter(|(at, _)| *at <= self.now) {
            self.comes.remove(&(at, tenant));
            // A queue is bounded: whoever has this many is told to come back.
            let live_max = self.tenants[tenant].terms.queue_max.unwrap_or(usize::MAX);
            if self.books[tenant].live < live_max {
                self.come(tenant, watch);
            }
            self.plan_arrival(tenant);
        }
        while let Some((_, key)) = self.leaves_by_time.first().copied().filter(|(at, _)| *at <= self.now) {
            self.counts.cancelled += 1;
            self.end(key, watch);
        }
    }

    fn admit(&mut self, watch: &mut impl Watch) {
        let (mut takeovers, mut later) = (0, BTreeSet::new());
        for _ in 0..self.machine.slots {
            let Some(key) = self.decide_next(&later, watch) else { return };
            let tenant = self.sequences[&key].tenant;
            if self.running.len() >= self.machine.slots {
                let scheduler = &self.scheduler;
                let victim = watch.see(Decision::GiveWay, || scheduler.victim_for_slot(label(tenant)), |_| 1);
                let Some(victim) = victim.filter(|_| takeovers < TAKEOVERS_PER_STEP) else { return };
                takeovers += 1;
                self.give_way(victim, watch);
            }
            if !self.make_room(key, watch) {
                later.insert(key);
                continue;
            }
            let scheduler = &mut self.scheduler;
            watch.see(Decision::Admit, || scheduler.admit(key), |()| 1);
            self.running.insert(key);
            let Some(sequence) = self.sequences.get_mut(&key) else { return };
            sequence.has_slot = true;
            let book = &mut self.books[tenant];
            book.slots += 1;
            book.slots_max = book.slots_max.max(book.slots);
            sequence.computed = sequence.cached_tokens;
            if sequence.waited.is_none() {
                let waited = self.now - sequence.arrived;
                sequence.waited = Some(waited);
                self.books[tenant].waits.push(waited.as_secs_f64());
            }
        }
    }

    fn decide_next(&mut self, later: &BTreeSet<Key>, watch: &mut impl Watch) -> Option<Key> {
        let (scheduler, sequences, books) = (&self.scheduler, &self.sequences, &self.books);
        let (now, free, mut looks) = (self.now, self.pages_free + self.cache_over, 0);
        let fits = |key: Key| {
            looks += 1;
            let Some(sequence) = sequences.get(&key).filter(|_| !later.contains(&key)) else { return Fit::Later };
            let Book { held, cached, .. } = books[sequence.tenant];
            let wanted = pages_of(sequence.prefill_tokens + 1);
            let within_guarantee = held + wanted <= scheduler.guaranteed_pages(label(sequence.tenant));
            if wanted <= free + cached || within_guarantee { Fit::Now } else { Fit::Later }
        };
        let next = watch.see(Decision::Admit, || scheduler.next(now, fits), |_| 1);
        self.looks_max[0] = self.looks_max[0].max(looks);
        next
    }

    /// Pages for a prompt, its cached ones among them.
    fn make_room(&mut self, key: Key, watch: &mut impl Watch) -> bool {
        let Some(sequence) = self.sequences.get(&key) else { return false };
        let (tenant, cached_tokens) = (sequence.tenant, sequence.cached_tokens);
        let wanted = pages_of(sequence.prefill_tokens + 1);
        // What was in the cache may be gone by now.
        let hit = (cached_tokens / PAGE_TOKENS).min(self.books[tenant].cached);
        self.books[tenant].cached -= hit;
        self.books[tenant].held += hit;
        let within_guarantee = self.books[tenant].held + wanted - hit <= self.scheduler.guaranteed_pages(label(tenant));
        while self.pages_free < wanted - hit {
            // Nobody's work is thrown away for a prompt that could wait.
            if !self.reclaim(tenant, within_guarantee, watch) {
                self.books[tenant].cached += hit;
                self.books[tenant].held -= hit;
                return false;
            }
        }
        self.pages_free -= wanted - hit;
        self.books[tenant].held += wanted - hit;
        self.note_pages(tenant);
        let Some(sequence) = self.sequences.get_mut(&key) else { return false };
        (sequence.pages, sequence.cached_tokens) = (wanted, hit * PAGE_TOKENS);
        self.scheduler.note_cached(key, hit * PAGE_TOKENS);
        true
    }

    fn note_pages(&mut self, tenant: usize) {
        let guaranteed = self.scheduler.guaranteed_pages(label(tenant));
        let book = &mut self.books[tenant];
        let over = (book.held + book.cached).saturating_sub(guaranteed).min(book.cached);
        self.cache_over = self.cache_over + over - std::mem::replace(&mut book.cache_over, over);
        let Book { held, cached, .. } = *book;
        self.scheduler.note_pages(label(tenant), held + cached, cached);
    }

    /// Whether somebody gave pages up for this tenant.
    fn reclaim(&mut self, tenant: usize, requests_too: bool, watch: &mut impl Watch) -> bool {
        let scheduler = &self.scheduler;
        match watch.see(Decision::GiveWay, || scheduler.reclaim_for(label(tenant)), |_| 1) {
            Some(Reclaim::Cache(from, pages)) => {
                let Some(from) = self.numbers.get(&from).copied() else { return false };
                let pages = pages.min(CACHE_PAGES_AT_ONCE).min(self.books[from].cached);
                self.books[from].cached -= pages;
                self.pages_free += pages;
                self.counts.cache_pages_reclaimed += pages;
                self.note_pages(from);
                pages > 0
            }
            Some(Reclaim::Request(key)) if requests_too => {
                self.give_way(key, watch);
                true
            }
            _ => {
                self.counts.stalled += 1;
                false
            }
        }
    }

    fn give_way(&mut self, key: Key, watch: &mut impl Watch) {
        self.counts.gave_way += 1;
        let scheduler = &mut self.scheduler;
        watch.see(Decision::Forget, || scheduler.forget(key), |()| 1);
        self.running.remove(&key);
        self.settle(key);
        let Some(mut sequence) = self.sequences.remove(&key) else { return };
        self.pages_free += sequence.pages;
        self.books[sequence.tenant].slots -= 1;
        self.books[sequence.tenant].held -= sequence.pages;
        self.note_pages(sequence.tenant);
        (sequence.pages, sequence.cached_tokens, sequence.computed, sequence.has_slot) = (0, 0, 0, false);
        sequence.prefill_tokens = sequence.prompt_tokens + sequence.answered;
        sequence.restarts += 1;
        self.arrive(key, &sequence, watch);
        self.sequences.insert(key, sequence);
    }

    fn settle(&mut self, key: Key) {
        self.dearest_ns = self.dearest_ns.max(self.cost_ns.remove(&key).unwrap_or(0));
    }

    /// A page for each answer that fills its last one.
    fn make_room_for_answers(&mut self, watch: &mut impl Watch) {
        let full = |sequence: &Sequence| sequence.computed + 1 > sequence.pages * PAGE_TOKENS;
        let keys: Vec<Key> = self.running.iter().copied().filter(|key| full(&self.sequences[key])).collect();
        for key in keys {
            let tenant = self.sequences[&key].tenant;
            while self.running.contains(&key) && self.pages_free == 0 && self.reclaim(tenant, true, watch) {}
            if !self.running.contains(&key) || self.pages_free == 0 {
                continue;
            }
            self.pages_free -= 1;
            self.books[tenant].held += 1;
            self.note_pages(tenant);
            if let Some(sequence) = self.sequences.get_mut(&key) {
                sequence.pages += 1;
            }
        }
    }

    /// The rows of a step that have a page to write to.
    fn answers(&self) -> Vec<(Key, Row)> {
        let row = |key: &Key| {
            let sequence = &self.sequences[key];
            let ready = sequence.to_prefill() == 0 && sequence.computed < sequence.pages * PAGE_TOKENS;
            ready.then_some((*key, Row { tokens: 1, depth: sequence.computed }))
        };
        self.running.iter().filter_map(row).collect()
    }

    /// Time goes by, and everybody in the pass pays for it.
    fn pass(&mut self, pass: Pass, rows: &[(Key, Row)], watch: &mut impl Watch) {
        if rows.is_empty() {
            return;
        }
        let rows_alone = rows.iter().map(|(_, row)| *row);
        let noise = 1.0 + self.machine.noise * (2.0 * self.random.part() - 1.0);
        let mut took = Duration::from_secs_f64(self.truth.predict_us(pass, rows_alone.clone()) * noise / 1e6);
        if self.machine.pauses_per_million > 0 && self.random.between((1, 1_000_000)) <= self.machine.pauses_per_million
        {
            took += self.machine.pause;
            self.pauses.push((self.now.as_secs_f64(), (self.now + took).as_secs_f64()));
        }
        self.now += took;
        let costs = *self.scheduler.costs();
        for ((key, _), cost_ns) in rows.iter().zip(costs.parts_ns(pass, rows_alone.clone(), took)) {
            let scheduler = &mut self.scheduler;
            watch.see(Decision::Charge, || scheduler.charge(*key, cost_ns), |()| 1);
            self.books[self.sequences[key].tenant].work_ns += cost_ns;
            *self.cost_ns.entry(*key).or_default() += cost_ns;
        }
        self.scheduler.costs_mut().observe(pass, rows_alone, took);
    }

    fn tokens_come_out(&mut self, answers: &[(Key, Row)], watch: &mut impl Watch) {
        for (key, _) in answers {
            let Some(sequence) = self.sequences.get_mut(key) else { continue };
            sequence.computed += 1;
            self.token(*key, watch);
        }
    }

    fn prompts_go_on(&mut self, prompts: &[(Key, Row)], watch: &mut impl Watch) {
        for (key, row) in prompts {
            let Some(sequence) = self.sequences.get_mut(key) else { continue };
            sequence.computed += row.tokens;
            if sequence.to_prefill() == 0 {
                self.scheduler.prefilled(*key);
                self.token(*key, watch);
            }
        }
    }

    /// The next token of an answer.
    fn token(&mut self, key: Key, watch: &mut impl Watch) {
        let now = self.now;
        let Some(sequence) = self.sequences.get_mut(&key) else { return };
        sequence.answered += 1;
        let book = &mut self.books[sequence.tenant];
        match sequence.last_token.replace(now) {
            None => {
                book.ttft.push((now - sequence.arrived).as_secs_f64());
                book.arrived.push(sequence.arrived.as_secs_f64());
            }
            Some(last) => book.itl.push((now - last).as_secs_f64()),
        }
        if sequence.answered >= sequence.answer_tokens {
            self.counts.ended += 1;
            book.ended += 1;
            self.end(key, watch);
        }
    }

    fn end(&mut self, key: Key, watch: &mut impl Watch) {
        let scheduler = &mut self.scheduler;
        watch.see(Decision::Forget, || scheduler.forget(key), |()| 1);
        self.running.remove(&key);
        self.settle(key);
        if let Some(at) = self.leaves.remove(&key) {
            self.leaves_by_time.remove(&(at, key));
        }
        let Some(sequence) = self.sequences.remove(&key) else { return };
        let tenant = sequence.tenant;
        let book = &mut self.books[tenant];
        // What its prompt filled stays in its tenant's cache.
        let kept = (sequence.prompt_tokens / PAGE_TOKENS).min(sequence.pages);
        book.live -= 1;
        book.slots -= usize::from(sequence.has_slot);
        book.held -= sequence.pages;
        book.cached += kept;
        self.pages_free += sequence.pages - kept;
        self.note_pages(tenant);
        match self.tenants[tenant].demand {
            Demand::Zipf => self.come_by_zipf(watch),
            Demand::Backlog(_) => self.come(tenant, watch),
            Demand::Rate { .. } | Demand::Once(_) => (),
        }
    }

    /// Whether nobody is there.
    pub(crate) fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The longest time that anybody waits for its first slot, of those who do still, in seconds.
    pub(crate) fn longest_wait_so_far(&self, of: impl Fn(usize) -> bool) -> f64 {
        let waiting = self.sequences.values().filter(|sequence| sequence.waited.is_none() && of(sequence.tenant));
        waiting.map(|sequence| (self.now - sequence.arrived).as_secs_f64()).fold(0.0, f64::max)
    }

    /// Panics unless the books are the sequences'.
    #[cfg(debug_assertions)]
    #[allow(dead_code, reason = "the tests look; the program that measures does not")]
    pub(crate) fn assert_sound(&self) {
        self.scheduler.assert_sound();
        assert_eq!(self.scheduler.running(), self.running.len());
        assert_eq!(self.scheduler.running() + self.scheduler.waiting(), self.sequences.len());
        assert!(
            self.sequences.iter().all(|(key, sequence)| {
                self.scheduler.knows(*key) && sequence.has_slot == self.running.contains(key)
            })
        );
        let held: usize = self.sequences.values().map(|sequence| sequence.pages).sum();
        let cached: usize = self.books.iter().map(|book| book.cached).sum();
        assert_eq!(self.pages_free + held + cached, self.machine.pages, "pages were lost or made");
    }
}

fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(PAGE_TOKENS)
}
