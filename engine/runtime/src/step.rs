//! The step loop: admit, prefill one chunk, decode one token of everybody; on the one thread that owns the machine.
//!
//! Prefill and decode are separate forward passes with separate timings. What a request computes never depends on who
//! shares a step with it: the kernels promise the same bits for any batch, so preemption can recompute.

use crate::compute::Compute;
use crate::config::EngineConfig;
use crate::custody;
use crate::engine::Counters;
#[cfg(feature = "fault-injection")]
use crate::fault::{Fault, Planted};
use crate::inbox::{Inbox, Queue};
#[cfg(feature = "fault-injection")]
use crate::machine::Entries;
use crate::machine::{Machine, page_ref};
use crate::running::{Next, Running};
use crate::sampling::SamplingScratch;
use crate::steps::StepError;
use crate::ticket::Ticket;
use engine_handoff::FirstStep;
use engine_kernels::{PageFault, PageRef, Span};
use engine_kv::{AllocateError, PAGE_TOKENS};
use engine_model::ForwardError;
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
    /// Requests that hold a slot, the last admitted last. At most `sequences_max`.
    pub(crate) running: Vec<Running>,
    /// Requests that lost slot and pages to others. The inbox bounds them together with all others.
    pub(crate) preempted: Vec<Running>,
    /// Requests that a prefill group is done with.
    pub(crate) left: Vec<Left>,
    /// Pages that are needed come back when a handoff has ended.
    pub(crate) pages_awaited: bool,
    scratch: SamplingScratch,
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
}

/// Which pages a part reads, what the ledger says about them, and the digest of having read those that it holds.
struct Row {
    pages: Vec<PageRef>,
    trace: PageTrace,
    read_set: u64,
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
            preempted: Vec::new(),
            left: Vec::new(),
            pages_awaited: false,
            scratch: SamplingScratch::new(),
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
        self.pass(machine, Stage::Prefill, &[Part { index, ticket, first, end }]);
    }

    /// A prefill group computes all that it is given, what was sampled before a preemption included.
    fn prefills(&self, request: &Running) -> bool {
        self.role == Role::Prefill || !request.decodes()
    }

    /// One token for every request that decodes.
    pub(crate) fn decode_once(&mut self, machine: &mut Machine<impl Compute>) {
        let Some(group) = self.decode_group(machine) else { return };
        let part = |index: usize| {
            let request = &self.running[index];
            Part { index, ticket: request.ticket, first: request.computed, end: request.tokens.len() }
        };
        let group: Vec<Part> = group.into_iter().map(part).collect();
        self.pass(machine, Stage::Decode, &group);
    }

    /// One forward pass, and what follows from it for each request of the group (in the order of `running`).
    fn pass(&mut self, machine: &mut Machine<impl Compute>, stage: Stage, group: &[Part]) {
        let started = Instant::now();
        machine.follow();
        let mut rows = Vec::with_capacity(group.len());
        for part in group {
            match self.resolve(machine, part) {
                Ok(row) => rows.push(row),
                // The others have their step with the next turn.
                Err(Unresolved::Failed(error)) => return self.fail_row(part.ticket, error),
                Err(Unresolved::ForeignWrite(trace)) => return self.refuse_write(part.ticket, trace),
            }
        }
        let (running, inbox) = (&self.running, &self.inbox);
        let mut spans = Vec::with_capacity(group.len());
        for (part, row) in group.iter().zip(&rows) {
            let tokens = &running[part.index].tokens;
            let logits = part.end == tokens.len();
            let (ticket, tokens) = (part.ticket.row(), &tokens[part.first..part.end]);
            spans.push(Span { ticket, tokens, position: part.first, pages: &row.pages, logits });
        }
        // A client that left ends the pass if nobody else is in it; `gather` drops its request, and its pages with it.
        let stop = || inbox.is_stopped() || group.iter().all(|part| running[part.index].cancelled());
        let step = machine.pool.issue_step();
        let computed = machine.compute.run(&spans, &stop);
        // No thread of the pass touches a page any more, however it ended.
        assert!(machine.pool.retire_step(step).is_ok(), "one step at a time");
        if matches!(computed, Err(ForwardError::Stopped)) {
            return;
        }
        self.counters.computed(stage == Stage::Prefill, group.iter().map(|part| part.end - part.first).sum());
        let took_us = micros(started.elapsed());
        let mut ended = Vec::new();
        for (span, (part, row)) in group.iter().zip(rows).enumerate() {
            let next = match (&computed, machine.compute.fault(span)) {
                _ if self.row(part).is_err() => {
                    self.fail_row(part.ticket, StepError::RowBinding);
                    continue;
                }
                (Ok(()), None) if machine.compute.read_set(span) != Some(row.read_set) && self.checks() => {
                    self.refuse_reads(part.index)
                }
                (Ok(()), None) => self.conclude(machine, stage, part, row.trace, span, took_us),
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

    /// The pass is over and no page was wrong: the tokens count as computed, and the last one's logits give the next.
    fn conclude(
        &mut self,
        machine: &Machine<impl Compute>,
        stage: Stage,
        part: &Part,
        trace: PageTrace,
        span: usize,
        took_us: u64,
    ) -> Next {
        #[cfg(feature = "fault-injection")]
        let planted = self.planted_logits(machine, part, span);
        let request = &mut self.running[part.index];
        match stage {
            Stage::Prefill => request.timings.prefill_us += took_us,
            Stage::Decode => request.timings.decode_us += took_us,
        }
        request.computed = part.end;
        let advanced = request.block_table.as_mut().map(|block_table| block_table.advance(part.end - part.first));
        if !matches!(advanced, Some(Ok(()))) {
            return request.deliver_error(StepError::Internal);
        }
        #[cfg(feature = "fault-injection")]
        let span = self.planted.row_for(request.label, span);
        let logits = machine.compute.logits(span, part.ticket.row());
        #[cfg(feature = "fault-injection")]
        let logits = planted.as_deref().or(logits);
        match logits {
            _ if part.end < request.tokens.len() => request.deliver_read(trace),
            Some(logits) if self.role == Role::Prefill => request.deliver_prefilled(trace, logits, &mut self.scratch),
            Some(logits) => request.deliver_token(trace, logits, &machine.compute, &mut self.scratch),
            // Computed, without a fault and asked for: it is there, and another's.
            None => request.refuse_row(StepError::RowBinding),
        }
    }

    /// Who decodes in this step, with room for one more token each; the youngest lose their pages when there is none.
    fn decode_group(&mut self, machine: &mut Machine<impl Compute>) -> Option<Vec<usize>> {
        'group: loop {
            let ready = |request: &Running| request.decodes() && request.has_room();
            let group: Vec<usize> = (0..self.running.len()).filter(|index| ready(&self.running[*index])).collect();
            for index in &group {
                let tokens = self.running[*index].tokens.len();
                let running = self.running.len();
                if self.make_room(machine, *index, tokens).is_none() || self.running.len() != running {
                    if self.pages_awaited {
                        return None;
                    }
                    // Places have moved: look again. Ends, because every round has one request less.
                    continue 'group;
                }
            }
            return if group.is_empty() { None } else { Some(group) };
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

    /// Builds the block table that the kernels get, traces exactly that one, and compares it with what the custody log
    /// says of the sequence. The digest that the kernels must come to is made of the log's pages, not of the table's.
    fn resolve(&self, machine: &mut Machine<impl Compute>, part: &Part) -> Result<Row, Unresolved> {
        let mut entries = std::mem::take(&mut machine.entries);
        entries.clear();
        let request = self.row(part)?;
        let block_table = request.table()?;
        block_table.capabilities(part.end, &mut entries.capabilities);
        #[cfg_attr(not(feature = "fault-injection"), allow(unused_mut, reason = "a fault changes it"))]
        let mut pages: Vec<PageRef> = entries.capabilities.iter().map(|capability| page_ref(*capability)).collect();
        let known = machine.custody.pages(block_table.sequence(), part.first, part.end, &mut entries.held);
        if known != Ok(true) {
            return Err(StepError::Internal.into());
        }
        #[cfg(feature = "fault-injection")]
        self.plant(machine, part.index, &mut entries, &mut pages);
        let trace = machine.pool.trace(&entries.capabilities, part.first).map_err(|_| StepError::Internal)?;
        if let Some(difference) = custody::difference(&trace, &entries.held).filter(|_| self.checks()) {
            let read = trace.pages.get(difference.index);
            tracing::error!(request_id = %request.request, ?difference, ?read, "block table and custody log differ");
            return Err(StepError::ReadSet.into());
        }
        // What it reads is looked at before its text leaves; what it writes would be spoilt for its owner by then.
        let mut written = trace.pages.iter().skip(part.first / PAGE_TOKENS);
        if written.any(|page| page.label != request.label) && self.checks() {
            machine.entries = entries;
            return Err(Unresolved::ForeignWrite(machine.told(trace)));
        }
        entries.refs.extend(entries.held.iter().map(custody::page_ref));
        let read_set = machine.compute.expected_read_set(part.first, part.end - part.first, &entries.refs);
        machine.entries = entries;
        Ok(Row { pages, trace: machine.told(trace), read_set })
    }

    #[cfg(feature = "fault-injection")]
    fn plant(&self, machine: &Machine<impl Compute>, index: usize, entries: &mut Entries, pages: &mut [PageRef]) {
        let reader = self.running[index].label;
        let Some(fault) = self.planted.fault_for(reader) else { return };
        let foreign = self.running.iter().filter(|other| other.label != reader).find_map(|other| {
            let mut theirs = Vec::new();
            let block_table = other.block_table.as_ref()?;
            block_table.capabilities(1, &mut theirs);
            Some((*theirs.first()?, machine.custody.first_page(block_table.sequence())?))
        });
        match (fault, foreign) {
            (Fault::SwappedPages { .. }, _) if pages.len() > 1 => pages.swap(0, 1),
            (Fault::FalseTrace { .. }, _) if pages.len() > 1 => entries.capabilities.swap(0, 1),
            (Fault::ForeignCapability { .. }, Some((foreign, held))) => {
                entries.capabilities[0] = foreign;
                pages[0] = page_ref(foreign);
                entries.held[0] = held;
            }
            (Fault::ForeignEntry { .. }, Some((foreign, _))) => {
                entries.capabilities[0] = foreign;
                pages[0] = page_ref(foreign);
            }
            (Fault::ForeignPageIndex { .. }, Some((foreign, _))) => pages[0].page = foreign.page().0,
            _ => (),
        }
    }

    #[cfg(feature = "fault-injection")]
    fn planted_logits(&self, machine: &Machine<impl Compute>, part: &Part, span: usize) -> Option<Vec<f32>> {
        let Some(Fault::Logit { value, .. }) = self.planted.fault_for(self.running[part.index].label) else {
            return None;
        };
        let mut logits = machine.compute.logits(span, part.ticket.row())?.to_vec();
        *logits.last_mut()? = value;
        Some(logits)
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

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
