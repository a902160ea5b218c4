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
use crate::running::{Next, Running};
use crate::sampling::SamplingScratch;
use crate::steps::StepError;
use crate::ticket::Ticket;
use engine_handoff::FirstStep;
use engine_kernels::{PageFault, Span};
use engine_kv::{AllocateError, PAGE_TOKENS};
use engine_model::ForwardError;
use engine_scheduler::Tenancy;
use policies_domain::{PageId, PageTrace, QuarantineReason};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Free pages whose memory an idle engine keeps, for a quick start of the next short request: 24 MB of the default model.
pub(crate) const PAGES_KEPT: usize = 64;
/// At this depth chunks are half as long as at the beginning: about where a token costs twice as much.
const CHUNK_DEPTH: usize = 1024;
/// Tokens that the widest matrix kernel takes at once; chunks are multiples of it.
const CHUNK_STEP: usize = 8;

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
    pub(crate) tenancy: Tenancy,
    /// Requests that hold a slot, the last admitted last. At most `sequences_max`.
    pub(crate) running: Vec<Running>,
    /// Requests that lost slot and pages to others. The inbox bounds them together with all others.
    pub(crate) preempted: Vec<Running>,
    /// Requests that a prefill group is done with.
    pub(crate) left: Vec<Left>,
    /// Pages that are needed come back when a handoff has ended.
    pub(crate) pages_awaited: bool,
    scratch: SamplingScratch,
    /// Memory for the decodes of a step, and for the spans and the digests of a pass.
    group: Vec<Part>,
    spans: Vec<Span<'static>>,
    read_sets: Vec<u64>,
    /// Round robin over prefills.
    prefill_turn: usize,
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
            tenancy: Tenancy::default(),
            role,
            inbox,
            counters,
            config,
            running: Vec::with_capacity(config.sequences_max),
            preempted: Vec::new(),
            left: Vec::new(),
            pages_awaited: false,
            scratch: SamplingScratch::new(),
            group: Vec::new(),
            spans: Vec::new(),
            read_sets: Vec::new(),
            prefill_turn: 0,
            #[cfg(feature = "fault-injection")]
            planted: Planted::default(),
        }
    }

    /// Runs until the engine's handle is gone.
    pub(crate) fn run(mut self, mut machine: Machine<impl Compute>) {
        machine.compute.tie_caller();
        while self.gather(&mut machine) {
            self.step(&mut machine);
        }
        self.end();
    }

    /// Tells everybody that nothing follows.
    pub(crate) fn end(&mut self) {
        for request in self.running.drain(..).chain(self.preempted.drain(..)) {
            request.deliver_error(StepError::Stopped);
        }
    }

    /// Admits whoever may have a slot; sleeps when nobody can go on. `false`: the engine is stopped.
    fn gather(&mut self, machine: &mut Machine<impl Compute>) -> bool {
        // Scrubbing takes a while: as much of it as possible happens before the queue is locked.
        self.forget_the_cancelled(machine);
        let inbox = self.inbox.clone();
        inbox.wait_until(None, |queue| self.look(machine, queue))
    }

    /// Admits whoever may have a slot. `false`: nobody can go on.
    pub(crate) fn look(&mut self, machine: &mut Machine<impl Compute>, queue: &mut Queue) -> bool {
        self.admit(machine, queue);
        self.count_inside(queue);
        self.counters.running.store(self.running.len(), Ordering::Relaxed);
        if self.running.is_empty() {
            machine.compute.give_back(PAGES_KEPT);
        }
        self.running.iter().any(|request| request.has_room() && (self.role == Role::Whole || request.is_here()))
    }

    /// One chunk of somebody's prompt, one token of everybody else.
    pub(crate) fn step(&mut self, machine: &mut Machine<impl Compute>) {
        self.prefill_one_chunk(machine);
        self.decode_once(machine);
    }

    /// The next chunk of one prompt.
    pub(crate) fn prefill_one_chunk(&mut self, machine: &mut Machine<impl Compute>) {
        let turns = self.running.len();
        let candidate = (0..turns)
            .map(|offset| (self.prefill_turn + offset) % turns)
            .find(|index| self.prefills(&self.running[*index]) && self.running[*index].has_room());
        let Some(index) = candidate else { return };
        let first = self.running[index].computed;
        let end = self.running[index].tokens.len().min(first + self.chunk_tokens(first));
        let Some(index) = self.make_room(machine, index, end) else { return };
        self.prefill_turn = index + 1;
        let ticket = self.running[index].ticket;
        self.pass(machine, Stage::Prefill, &[Part { index, ticket, first, end, guesses: 0 }]);
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
        if !group.is_empty() {
            self.pass(machine, Stage::Decode, &group);
        }
        self.group = group;
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
                (Ok(()), None) => self.conclude(machine, stage, part, spans.start, took_us),
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
            }
        }
    }

    /// The request that the part was planned for.
    fn row(&self, part: &Part) -> Result<&Running, StepError> {
        self.running.get(part.index).filter(|request| request.ticket == part.ticket).ok_or(StepError::RowBinding)
    }

    fn place_of(&self, ticket: Ticket) -> Option<usize> {
        self.running.iter().position(|request| request.ticket == ticket)
    }

    fn leave(&mut self, index: usize, first: Option<FirstStep>) {
        let request = self.running.remove(index);
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
        if let Err(error) = request.note_written(part.sure_end() - part.first) {
            return request.deliver_error(error);
        }
        let trace = match request.table() {
            Ok((_, table)) => machine.told(table.tell()),
            Err(error) => return request.refuse_row(error),
        };
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

    /// Who decodes in this step, with room for one more token each; the youngest lose their pages when there is none.
    fn decode_group(&mut self, machine: &mut Machine<impl Compute>, group: &mut Vec<Part>) {
        'group: loop {
            group.clear();
            let ready = self.running.iter().enumerate().filter(|(_, request)| request.decodes() && request.has_room());
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

    /// Tokens of a chunk that begins at `first`. The deeper, the smaller: attention makes each token dearer, and a chunk
    /// is what others wait for, and what goes on for a moment after its client has left.
    fn chunk_tokens(&self, first: usize) -> usize {
        let whole = self.config.prefill_chunk_tokens;
        let tokens = whole * CHUNK_DEPTH / (CHUNK_DEPTH + first) / CHUNK_STEP * CHUNK_STEP;
        tokens.max(CHUNK_STEP).min(whole)
    }

    /// Grows the request's block table to `tokens`, taking pages from others if it must.
    ///
    /// Returns the request's place, which may have moved; `None` when it was itself the one to lose its pages, or failed.
    fn make_room(&mut self, machine: &mut Machine<impl Compute>, mut index: usize, tokens: usize) -> Option<usize> {
        loop {
            match machine.grow(self.running[index].block_table.as_mut()?, tokens) {
                Ok(()) => return Some(index),
                Err(AllocateError::PoolExhausted { .. }) if self.running.len() > 1 => (),
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
            let victim = self.victim_for_pages()?;
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

/// Gives the memory of a pass's spans back for the next one's.
fn emptied(mut spans: Vec<Span<'_>>) -> Vec<Span<'static>> {
    spans.clear();
    // Nothing is left that could be borrowed; the standard library collects into the memory that it takes from.
    spans.into_iter().map_while(|_| None).collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
