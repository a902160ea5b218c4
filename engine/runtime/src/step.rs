//! The step loop: admit, prefill one chunk, decode one token of everybody; on the one thread that owns the machine.
//!
//! Prefill and decode are separate forward passes with separate timings. What a request computes never depends on who
//! shares a step with it: the kernels promise the same bits for any batch, so preemption can recompute.

mod guessing;
#[cfg(feature = "fault-injection")]
mod planting;

use crate::compute::Compute;
use crate::config::EngineConfig;
use crate::custody;
use crate::engine::Counters;
#[cfg(feature = "fault-injection")]
use crate::fault::Planted;
use crate::inbox::{Inbox, Queue};
use crate::machine::Machine;
use crate::pace::Pace;
use crate::periods::Periods;
use crate::running::{Next, Running};
use crate::sampling::SamplingScratch;
use crate::steps::StepError;
use crate::ticket::Ticket;
use engine_handoff::FirstStep;
use engine_kernels::{PageFault, Span};
use engine_kv::{AllocateError, PAGE_TOKENS};
use engine_model::ForwardError;
use engine_scheduler::{Chunk, CostModel, Costs, Key, Pass, Row, Scheduler, SchedulerConfig, Tenancy};
use policies_domain::{Label, PageId, PageTrace, QuarantineReason};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Free pages whose memory an idle engine keeps, for a quick start of the next short request: 24 MB of the default model.
pub(crate) const PAGES_KEPT: usize = 64;
/// How often a group that cannot go on looks at who has waited for too long.
const LOOK: Duration = Duration::from_millis(250);
/// The part of a step's time that is planned for: a pass may take longer than was predicted.
const STEP_AIM: f64 = 0.7;
/// The same while requests wait for a slot: all steps are full then, and whoever is being answered is not to feel that others queue.
/// Prompts are cut a little shorter for it, which costs a few reads of the weights.
const STEP_AIM_CROWDED: f64 = 0.6;
/// A request that waited for this long lets nobody pass any more.
const AGE_BOUND: Duration = Duration::from_secs(2);

/// What a step loop does of a request's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// All of it.
    Whole,
    /// Prompts, which are handed over then.
    Prefill,
    /// What comes after a prompt that was handed over.
    Decode,
}

/// The requests of one group, and whose turn it is. Has no thread and needs no time to pass: a test makes its steps one by
/// one. What it works on is a [`Machine`], which two groups may share.
pub(crate) struct Stepper {
    pub(crate) role: Role,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) config: EngineConfig,
    /// Requests that hold a slot, the last admitted last. At most `sequences_max`.
    pub(crate) running: Vec<Running>,
    /// Requests that have no slot yet, or gave it up to others. The inbox bounds them together with all others.
    pub(crate) waiting: Vec<Running>,
    /// Who gets what. It knows all that run, and those of the waiting that could.
    pub(crate) scheduler: Scheduler,
    /// What time it is: whoever drives the group says so before each look and each step.
    pub(crate) now: Duration,
    /// Passes cost what they took. Else they cost what was predicted, and the same calls make the same steps.
    pub(crate) measures: bool,
    /// Time passes for it: steps of exclusive tenants wait for theirs.
    pub(crate) keeps_periods: bool,
    /// When steps of exclusive tenants begin again.
    pub(crate) periods: Periods,
    /// What may be copied in this step.
    pub(crate) pace: Pace,
    /// Tenants that had pages when it was last looked.
    pub(crate) page_holders: Vec<Label>,
    /// The place in `waiting` that was looked up in the cache last.
    pub(crate) looked_up: usize,
    /// Requests that a prefill group is done with.
    pub(crate) left: Vec<Left>,
    /// Pages that are needed come back when a handoff has ended.
    pub(crate) pages_awaited: bool,
    scratch: SamplingScratch,
    /// Memory for the decodes of a step, and for the spans and the digests of a pass.
    group: Vec<Part>,
    spans: Vec<Span<'static>>,
    read_sets: Vec<u64>,
    chunks: Vec<Chunk>,
    costs_ns: Vec<u64>,
    #[cfg(feature = "fault-injection")]
    pub(crate) planted: Planted,
}

/// A request that a prefill group computed, or could not.
pub(crate) struct Left {
    pub(crate) request: Running,
    /// `None`: it failed, and its client was told why.
    pub(crate) first: Option<FirstStep>,
}

/// The two stages of a request. They never share a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Prefill,
    Decode,
}

/// What one request computes in one forward pass: its tokens from `first` to before `end`.
struct Part {
    /// Place in `running`, as long as that request is there.
    index: usize,
    ticket: Ticket,
    first: usize,
    end: usize,
    /// So many of them, the last ones, are guessed. Each is a span of its own, because there are logits in front of it.
    guesses: usize,
}

impl Part {
    /// Where the tokens end that are known.
    fn sure_end(&self) -> usize {
        self.end - self.guesses
    }

    /// First token and number of tokens of each of its spans, in order.
    fn spans(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (first, sure_end) = (self.first, self.sure_end());
        std::iter::once((first, sure_end - first)).chain((sure_end..self.end).map(|guess| (guess, 1)))
    }
}

/// Why a part is not computed.
enum Unresolved {
    Failed(StepError),
    /// It would write into another's page. What the pass would have read.
    ForeignWrite(PageTrace),
}

impl From<StepError> for Unresolved {
    fn from(error: StepError) -> Self {
        Self::Failed(error)
    }
}

impl Stepper {
    /// With nothing to do yet.
    pub(crate) fn new(role: Role, inbox: Arc<Inbox>, counters: Arc<Counters>, config: EngineConfig) -> Self {
        Self {
            role,
            inbox,
            counters,
            config,
            running: Vec::with_capacity(config.sequences_max),
            waiting: Vec::new(),
            scheduler: scheduler(&config, Tenancy::default(), Costs::GUESS),
            now: Duration::ZERO,
            measures: false,
            keeps_periods: false,
            periods: Periods::default(),
            pace: Pace::new(Duration::from_millis(config.step_target_ms as u64)),
            page_holders: Vec::new(),
            looked_up: 0,
            left: Vec::new(),
            pages_awaited: false,
            scratch: SamplingScratch::new(),
            group: Vec::new(),
            spans: Vec::new(),
            read_sets: Vec::new(),
            chunks: Vec::new(),
            costs_ns: Vec::new(),
            #[cfg(feature = "fault-injection")]
            planted: Planted::default(),
        }
    }

    /// For these tenants, on a machine whose passes cost this much. Passes are timed from here on.
    pub(crate) fn on_terms(mut self, tenancy: &Tenancy, costs: Costs) -> Self {
        self = self.for_tenants(tenancy);
        *self.scheduler.costs_mut() = CostModel::new(costs);
        (self.measures, self.keeps_periods) = (true, true);
        self
    }

    /// For these tenants. It has nothing to do yet.
    pub(crate) fn for_tenants(mut self, tenancy: &Tenancy) -> Self {
        self.scheduler = scheduler(&self.config, tenancy.clone(), Costs::GUESS);
        self
    }

    /// Runs until the engine's handle is gone.
    pub(crate) fn run(mut self, mut machine: Machine<impl Compute>) {
        machine.compute.tie_caller();
        let started = Instant::now();
        while self.gather(&mut machine, started) {
            self.now = started.elapsed();
            self.step(&mut machine);
        }
        self.end();
    }

    /// Tells everybody that nothing follows.
    pub(crate) fn end(&mut self) {
        for request in self.running.drain(..).chain(self.waiting.drain(..)) {
            request.deliver_error(StepError::Stopped);
        }
    }

    /// Admits whoever may have a slot; sleeps when nobody can go on. `false`: the engine is stopped.
    fn gather(&mut self, machine: &mut Machine<impl Compute>, started: Instant) -> bool {
        // Scrubbing takes a while: as much of it as possible happens before the queue is locked.
        self.forget_the_cancelled(machine);
        let inbox = self.inbox.clone();
        // A pause counts from now, not from the step before: periods of exclusive tenants do not move with what steps take.
        self.now = started.elapsed();
        inbox.wait_until(self.pause(), |queue| {
            self.now = started.elapsed();
            self.look(machine, queue)
        })
    }

    /// How long the group may sleep when nobody can go on; as long as nobody comes or reads when `None`.
    pub(crate) fn pause(&self) -> Option<Duration> {
        let next = self.periods.next(self.running.iter().map(|request| request.label), self.now);
        next.or_else(|| (!self.waiting.is_empty()).then_some(LOOK))
    }

    /// Admits whoever may have a slot. `false`: nobody can go on.
    pub(crate) fn look(&mut self, machine: &mut Machine<impl Compute>, queue: &mut Queue) -> bool {
        self.pace.begin();
        self.admit(machine, queue);
        self.count_inside(queue);
        self.counters.running.store(self.running.len(), Ordering::Relaxed);
        if self.running.is_empty() {
            machine.compute.give_back(PAGES_KEPT);
        }
        let here = |request: &Running| self.role == Role::Whole || request.is_here();
        self.running.iter().any(|request| request.has_room() && here(request) && self.is_due(request.label))
    }

    /// Chunks of prompts, one token of everybody else.
    pub(crate) fn step(&mut self, machine: &mut Machine<impl Compute>) {
        let left_us = self.left_us();
        self.prefill_chunks(machine, left_us);
        self.decode_once(machine);
        self.end_step();
    }

    /// The time of this step is over.
    pub(crate) fn end_step(&mut self) {
        self.periods.begin(self.now, self.target());
        self.pace.begin();
    }

    /// How long a step is to take.
    pub(crate) fn target(&self) -> Duration {
        Duration::from_millis(self.config.step_target_ms as u64)
    }

    /// What copies and decoding leave of a step, in microseconds; less than nothing when it takes longer than a step should.
    pub(crate) fn left_us(&self) -> f64 {
        let decodes =
            self.running.iter().filter(|request| request.decodes() && request.is_here() && request.has_room());
        let rows = decodes.map(|request| Row { tokens: 1, depth: request.computed });
        let decode_us = self.scheduler.costs().predict_us(Pass::Decode, rows);
        let aim = if self.scheduler.waiting() > 0 { STEP_AIM_CROWDED } else { STEP_AIM };
        self.target().as_secs_f64() * 1e6 * aim - self.pace.copied_us() - decode_us
    }

    /// Whether steps may be made for this tenant now.
    pub(crate) fn is_due(&self, tenant: Label) -> bool {
        !self.keeps_periods || !self.scheduler.tenancy().of(tenant).exclusive || self.periods.is_due(tenant, self.now)
    }

    /// The next chunks of prompts, in one pass, for which there are so many microseconds.
    pub(crate) fn prefill_chunks(&mut self, machine: &mut Machine<impl Compute>, left_us: f64) {
        let mut chunks = std::mem::take(&mut self.chunks);
        chunks.clear();
        self.scheduler.plan_prefill(left_us, |key| self.rest_of_prompt(key), &mut chunks);
        chunks.retain(|chunk| self.make_room_for(machine, *chunk));
        let mut group = std::mem::take(&mut self.group);
        group.clear();
        // Room for one of them may have cost another one its pages.
        group.extend(chunks.iter().filter_map(|chunk| self.prefill_part(*chunk)));
        group.sort_unstable_by_key(|part| part.index);
        self.chunks = chunks;
        if !group.is_empty() {
            self.pass(machine, Stage::Prefill, &group);
        }
        self.group = group;
    }

    /// What is to be computed of a request's prompt; `None` when it cannot go on now.
    fn rest_of_prompt(&self, key: Key) -> Option<Row> {
        let request = self.running.iter().find(|request| request.arrival == key)?;
        let goes_on = self.prefills(request) && request.has_room() && self.is_due(request.label);
        goes_on.then_some(Row { tokens: request.tokens.len() - request.computed, depth: request.computed })
    }

    /// `false`: it has no pages for its chunk.
    fn make_room_for(&mut self, machine: &mut Machine<impl Compute>, chunk: Chunk) -> bool {
        let Some(index) = self.place_of_key(chunk.key) else { return false };
        let end = self.running[index].computed + chunk.tokens;
        self.make_room(machine, index, end).is_some()
    }

    fn prefill_part(&self, chunk: Chunk) -> Option<Part> {
        let index = self.place_of_key(chunk.key)?;
        let request = &self.running[index];
        let (first, end) = (request.computed, request.computed + chunk.tokens);
        let has_room = request.block_table.as_ref().is_some_and(|table| table.room() >= end);
        has_room.then_some(Part { index, ticket: request.ticket, first, end, guesses: 0 })
    }

    pub(crate) fn place_of_key(&self, key: Key) -> Option<usize> {
        self.running.iter().position(|request| request.arrival == key)
    }

    /// A prefill group computes all that it is given, what was sampled before a preemption included.
    fn prefills(&self, request: &Running) -> bool {
        self.role == Role::Prefill || !request.decodes()
    }

    /// One token for every request that decodes.
    pub(crate) fn decode_once(&mut self, machine: &mut Machine<impl Compute>) {
        let mut group = std::mem::take(&mut self.group);
        self.decode_group(machine, &mut group);
        self.guess(machine, &mut group);
        // Nobody shares a pass with a tenant that is exclusive.
        let mut alone: Vec<Label> = group.iter().filter_map(|part| self.exclusive(part)).collect();
        alone.sort_unstable();
        alone.dedup();
        let mut apart: Vec<Part> = Vec::new();
        if !alone.is_empty() {
            apart = group.extract_if(.., |part| self.exclusive(part).is_some()).collect();
        }
        if !group.is_empty() {
            self.pass(machine, Stage::Decode, &group);
        }
        for tenant in alone {
            group.clear();
            // Places have moved with whoever ended.
            let here = apart.iter().filter_map(|part| Some(Part { index: self.place_of(part.ticket)?, ..*part }));
            group.extend(here.filter(|part| self.running[part.index].label == tenant));
            if !group.is_empty() {
                self.pass(machine, Stage::Decode, &group);
            }
        }
        self.group = group;
    }

    /// The tenant of a part, if nobody may share a pass with it.
    fn exclusive(&self, part: &Part) -> Option<Label> {
        let label = self.running[part.index].label;
        self.scheduler.tenancy().of(label).exclusive.then_some(label)
    }

    /// One forward pass, and what follows from it for each request of the group (in the order of `running`).
    fn pass(&mut self, machine: &mut Machine<impl Compute>, stage: Stage, group: &[Part]) {
        let started = Instant::now();
        machine.follow();
        self.read_sets.clear();
        for part in group {
            match self.resolve(machine, part) {
                Ok(()) => (),
                // The others have their step with the next turn.
                Err(Unresolved::Failed(error)) => return self.fail_row(part.ticket, error),
                Err(Unresolved::ForeignWrite(trace)) => return self.refuse_write(part.ticket, trace),
            }
        }
        let (running, inbox) = (&self.running, &self.inbox);
        let mut spans = std::mem::take(&mut self.spans);
        for part in group {
            let request = &running[part.index];
            let logits = part.sure_end() == request.tokens.len();
            let (ticket, pages) = (part.ticket.row(), request.entries());
            let known = std::iter::once(&request.tokens[part.first..part.sure_end()]);
            // `resolve` has found them to be its own.
            let guesses = request.guesses().unwrap_or_default().chunks(1).take(part.guesses);
            let planned = std::iter::zip(part.spans(), known.chain(guesses));
            spans.extend(planned.map(|((position, _), tokens)| Span { ticket, tokens, position, pages, logits }));
        }
        // A client that left ends the pass if nobody else is in it; `gather` drops its request, and its pages with it.
        let stop = || inbox.is_stopped() || group.iter().all(|part| running[part.index].cancelled());
        let step = machine.pool.issue_step();
        let computed = machine.compute.run(&spans, &stop);
        self.spans = emptied(spans);
        // No thread of the pass touches a page any more, however it ended.
        assert!(machine.pool.retire_step(step).is_ok(), "one step at a time");
        // Also when the client left in the middle: what was computed was computed.
        self.charge(stage, group, started);
        if matches!(computed, Err(ForwardError::Stopped)) {
            return;
        }
        let known = group.iter().map(|part| part.sure_end() - part.first).sum();
        self.counters.computed(stage == Stage::Prefill, known);
        let took_us = micros(started.elapsed());
        let (mut ended, mut spans) = (Vec::new(), 0..0);
        for part in group {
            spans = spans.end..spans.end + 1 + part.guesses;
            let expected = |span: usize| self.read_sets.get(span).copied();
            let next = match (&computed, spans.clone().find_map(|span| machine.compute.fault(span))) {
                _ if self.row(part).is_err() => {
                    self.fail_row(part.ticket, StepError::RowBinding);
                    continue;
                }
                (Ok(()), None)
                    if spans.clone().any(|span| machine.compute.read_set(span) != expected(span)) && self.checks() =>
                {
                    self.refuse_reads(part.index)
                }
                (Ok(()), None) => {
                    let next = self.conclude(machine, stage, part, spans.start, took_us);
                    if next != Next::GoesOn || stage == Stage::Prefill {
                        self.publish(machine, part.index);
                    }
                    next
                }
                (Ok(()), Some(fault)) => self.quarantine(machine, part.index, fault),
                (Err(_), _) => self.running[part.index].deliver_error(StepError::Internal),
            };
            match next {
                Next::GoesOn => (),
                Next::Ended => ended.push((part.ticket, None)),
                Next::Prefilled(first) => ended.push((part.ticket, Some(first))),
            }
        }
        for (ticket, first) in ended {
            if let Some(index) = self.place_of(ticket) {
                self.leave(index, first);
                machine.follow();
            }
        }
    }

    /// Everybody in the pass pays its part of it.
    fn charge(&mut self, stage: Stage, group: &[Part], started: Instant) {
        let pass = match stage {
            Stage::Prefill => Pass::Prefill,
            Stage::Decode => Pass::Decode,
        };
        let rows = group.iter().map(|part| Row { tokens: part.end - part.first, depth: part.first });
        let took = if self.measures {
            started.elapsed()
        } else {
            Duration::from_secs_f64(self.scheduler.costs().predict_us(pass, rows.clone()) / 1e6)
        };
        let mut costs_ns = std::mem::take(&mut self.costs_ns);
        costs_ns.clear();
        costs_ns.extend(self.scheduler.costs().parts_ns(pass, rows.clone(), took));
        if self.measures {
            self.scheduler.costs_mut().observe(pass, rows, took);
        }
        for (part, cost_ns) in group.iter().zip(&costs_ns) {
            let request = &mut self.running[part.index];
            request.cost_ns += cost_ns;
            self.scheduler.charge(request.arrival, *cost_ns);
            if self.scheduler.tenancy().of(request.label).exclusive {
                self.periods.note(request.label);
            }
        }
        self.costs_ns = costs_ns;
    }

    /// The request that the part was planned for.
    fn row(&self, part: &Part) -> Result<&Running, StepError> {
        self.running.get(part.index).filter(|request| request.ticket == part.ticket).ok_or(StepError::RowBinding)
    }

    fn place_of(&self, ticket: Ticket) -> Option<usize> {
        self.running.iter().position(|request| request.ticket == ticket)
    }

    fn leave(&mut self, index: usize, first: Option<FirstStep>) {
        let request = self.take_out(index);
        if self.role == Role::Prefill {
            self.left.push(Left { request, first });
        }
    }

    /// The pass is over and no page was wrong: the tokens count as computed, and the last one's logits give the next. What was
    /// guessed counts when the sampler says the same.
    fn conclude(
        &mut self,
        machine: &Machine<impl Compute>,
        stage: Stage,
        part: &Part,
        span: usize,
        took_us: u64,
    ) -> Next {
        let request = &mut self.running[part.index];
        match stage {
            Stage::Prefill => request.timings.prefill_us += took_us,
            Stage::Decode => request.timings.decode_us += took_us,
        }
        let written = request.note_written(part.sure_end() - part.first);
        if request.computed == request.tokens.len() {
            self.scheduler.prefilled(request.arrival);
        }
        if let Err(error) = written {
            return self.running[part.index].deliver_error(error);
        }
        let trace = match request.table() {
            Ok((_, table)) => machine.told(table.tell()),
            Err(error) => return request.refuse_row(error),
        };
        machine.witness_pass(request.request, &trace);
        if part.sure_end() < request.tokens.len() {
            return request.deliver_read(trace);
        }
        if self.role != Role::Prefill {
            return self.say(machine, part, span, trace);
        }
        match self.logits(machine, part, span) {
            Some(logits) => self.running[part.index].deliver_prefilled(trace, &logits, &mut self.scratch),
            // Computed, without a fault and asked for: it is there, and another's.
            None => self.running[part.index].refuse_row(StepError::RowBinding),
        }
    }

    /// What is computed of a request is kept for later ones of its tenant, as far as nothing is wrong with it. A prompt that
    /// somebody else goes on with is kept when it has arrived there.
    pub(crate) fn publish(&mut self, machine: &mut Machine<impl Compute>, index: usize) {
        let pages_max = self.scheduler.guaranteed_pages(self.running[index].label);
        let request = &mut self.running[index];
        let whole = request.computed >= request.prompt_tokens && !request.cancelled();
        if self.role != Role::Prefill
            && whole
            && let Some(table) = &mut request.block_table
        {
            machine.publish(&request.tokens[..request.computed], table, pages_max);
        }
    }

    /// Who decodes in this step, with room for one more token each; the youngest lose their pages when there is none.
    fn decode_group(&mut self, machine: &mut Machine<impl Compute>, group: &mut Vec<Part>) {
        'group: loop {
            group.clear();
            let ready = self
                .running
                .iter()
                .enumerate()
                .filter(|(_, request)| request.decodes() && request.has_room() && self.is_due(request.label));
            group.extend(ready.map(|(index, request)| Part {
                index,
                ticket: request.ticket,
                first: request.computed,
                end: request.tokens.len(),
                guesses: 0,
            }));
            for place in 0..group.len() {
                let running = self.running.len();
                let Part { index, end, .. } = group[place];
                if self.make_room(machine, index, end).is_none() || self.running.len() != running {
                    if self.pages_awaited {
                        return group.clear();
                    }
                    // Places have moved: look again. Ends, because every round has one request less.
                    continue 'group;
                }
            }
            return;
        }
    }

    /// Grows the request's block table to `tokens`, taking pages from others if it must.
    ///
    /// Returns the request's place, which may have moved; `None` when it was itself the one to lose its pages, or failed.
    fn make_room(&mut self, machine: &mut Machine<impl Compute>, mut index: usize, tokens: usize) -> Option<usize> {
        loop {
            match machine.grow(self.running[index].block_table.as_mut()?, tokens) {
                Ok(()) => return Some(index),
                Err(AllocateError::PoolExhausted { .. }) if self.running.len() > 1 || machine.cached() > 0 => (),
                // Nobody is left to give way, as when pages are quarantined: waiting would be for ever.
                Err(AllocateError::PoolExhausted { .. }) => {
                    self.fail(index, StepError::PoolExhausted);
                    return None;
                }
                Err(AllocateError::NotATenant { .. }) => {
                    self.fail(index, StepError::Internal);
                    return None;
                }
            }
            let Some(victim) = self.victim_for_pages(machine, index) else {
                // A cache gave pages.
                continue;
            };
            let here = self.running[victim].is_here();
            self.preempt(machine, victim);
            if !here {
                self.pages_awaited = true;
                return None;
            }
            match victim.cmp(&index) {
                Less => index -= 1,
                Equal => return None,
                Greater => (),
            }
        }
    }

    /// Goes on with the block table that the kernels get, traces exactly that one, and compares it with what the custody log
    /// says of the sequence. The digests that the kernels must come to, one for each span, are made of the log's pages, not of
    /// the table's. What is full and was looked up is settled: see [`TracedTable`](crate::traced_table::TracedTable).
    fn resolve(&mut self, machine: &mut Machine<impl Compute>, part: &Part) -> Result<(), Unresolved> {
        let checks = self.checks();
        if self.row(part)?.guesses()?.len() < part.guesses {
            return Err(StepError::RowBinding.into());
        }
        #[cfg(feature = "fault-injection")]
        let remakes = self.planted.remakes_table(self.running[part.index].label);
        let request = &mut self.running[part.index];
        let (block_table, table) = request.table()?;
        #[cfg(feature = "fault-injection")]
        if remakes {
            table.forget();
        }
        machine.lay(block_table, table, part.first, part.end)?;
        #[cfg(feature = "fault-injection")]
        self.plant(machine, part.index)?;
        let request = &mut self.running[part.index];
        let (id, label) = (request.request, request.label);
        let (_, table) = request.table()?;
        if let Some(difference) = machine.trace(table, part.first)?.filter(|_| checks) {
            tracing::error!(request_id = %id, ?difference, "block table and custody log differ");
            return Err(StepError::ReadSet.into());
        }
        // What it reads is looked at before its text leaves; what it writes would be spoilt for its owner by then.
        let mut written = table.reads().iter().skip(part.first / PAGE_TOKENS);
        if written.any(|page| page.label != label) && checks {
            return Err(Unresolved::ForeignWrite(machine.told(table.tell())));
        }
        let sums = machine.custody.sums(table.sequence()).map_err(|_| StepError::Internal)?;
        for (position, tokens) in part.spans() {
            let pages_behind = part.end.div_ceil(PAGE_TOKENS) - (position + tokens).div_ceil(PAGE_TOKENS);
            let last = machine.entries.held.iter().nth_back(pages_behind).map(custody::page_ref);
            let last = last.ok_or(StepError::Internal)?;
            self.read_sets.push(machine.compute.expected_read_set(position, tokens, sums, last));
        }
        Ok(())
    }

    /// The page is kept as evidence; the request that read it ends, the others go on.
    fn quarantine(&self, machine: &Machine<impl Compute>, index: usize, fault: PageFault) -> Next {
        let request = &self.running[index];
        let known = machine.pool.quarantine(PageId(fault.page), QuarantineReason::TagMismatch);
        let page = PageId(machine.first_page + fault.page);
        tracing::error!(request_id = %request.request, %page, layer = fault.layer, known, "page tag mismatch");
        request.deliver_error(StepError::PageFault { page, layer: fault.layer })
    }

    /// Nobody can say what this request saw: it ends, the others go on.
    fn refuse_reads(&self, index: usize) -> Next {
        let request = &self.running[index];
        tracing::error!(request_id = %request.request, "the kernels read other pages than were written down");
        request.deliver_error(StepError::ReadSet)
    }

    /// The pass would have written into a page that is not the request's: it is not made, and what it would have read goes to
    /// whoever judges reads. The request ends whatever they say.
    fn refuse_write(&mut self, ticket: Ticket, trace: PageTrace) {
        let Some(index) = self.place_of(ticket) else { return };
        let request = &mut self.running[index];
        tracing::error!(request_id = %request.request, "a page that is not the request's was to be written");
        if request.deliver_read(trace) == Next::GoesOn {
            request.deliver_error(StepError::Internal);
        }
        self.leave(index, None);
    }

    /// Whether the step loop compares what it is told with what the log and the kernels say.
    fn checks(&self) -> bool {
        #[cfg(feature = "fault-injection")]
        return !self.planted.unchecked();
        #[cfg(not(feature = "fault-injection"))]
        true
    }

    fn fail_row(&mut self, ticket: Ticket, error: StepError) {
        if let Some(index) = self.place_of(ticket) {
            self.fail(index, error);
        }
    }

    pub(crate) fn fail(&mut self, index: usize, error: StepError) {
        let request = &self.running[index];
        tracing::error!(request_id = %request.request, %error, "request failed in the engine");
        request.deliver_error(error);
        self.leave(index, None);
    }
}

fn scheduler(config: &EngineConfig, tenancy: Tenancy, costs: Costs) -> Scheduler {
    let EngineConfig { sequences_max: slots, pages, prefill_chunk_tokens: chunk_tokens_max, .. } = *config;
    Scheduler::new(SchedulerConfig { tenancy, costs, slots, pages, chunk_tokens_max, age_bound: AGE_BOUND })
}

/// Gives the memory of a pass's spans back for the next one's.
fn emptied(mut spans: Vec<Span<'_>>) -> Vec<Span<'static>> {
    spans.clear();
    // Nothing is left that could be borrowed; the standard library collects into the memory that it takes from.
    spans.into_iter().map_while(|_| None).collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
