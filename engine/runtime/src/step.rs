//! The step loop: admit, prefill one chunk, decode one token of everybody; on the one thread that owns the KV store.
//!
//! Prefill and decode are separate forward passes with separate timings. What a request computes never depends on who
//! shares a step with it: the kernels promise the same bits for any batch, so preemption can recompute.

use crate::config::EngineConfig;
use crate::engine::Counters;
#[cfg(feature = "fault-injection")]
use crate::fault::{Fault, Planted};
use crate::inbox::Inbox;
use crate::running::{Next, Running};
use crate::steps::StepError;
use engine_kernels::{KvStore, PageRef};
use engine_kv::{BlockTable, Capability, PAGE_TOKENS, PagePool};
use engine_model::{Forward, ForwardError, Model, Span};
use policies_domain::{PageId, PageTrace};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Everything that the engine's thread owns.
pub(crate) struct Stepper {
    pub(crate) model: Arc<Model>,
    pub(crate) forward: Forward,
    pub(crate) store: KvStore,
    pub(crate) pool: PagePool,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) config: EngineConfig,
    /// Admitted requests, the oldest first. At most `sequences_max`.
    pub(crate) running: Vec<Running>,
    /// Requests that lost their pages to older ones; they go first when there is room.
    pub(crate) preempted: Vec<Running>,
    /// Round robin over prefills.
    pub(crate) prefill_turn: usize,
    #[cfg(feature = "fault-injection")]
    pub(crate) planted: Planted,
}

/// One row's part of a step: which pages it may read, and what the ledger says about them.
struct Row {
    pages: Vec<PageRef>,
    trace: PageTrace,
}

impl Stepper {
    /// Runs until the engine's handle is gone.
    pub(crate) fn run(mut self) {
        while self.gather() {
            self.prefill_one_chunk();
            self.decode_once();
        }
        for request in self.running.drain(..).chain(self.preempted.drain(..)) {
            request.deliver_error(StepError::Stopped);
        }
    }

    /// Forgets the cancelled, admits the waiting, sleeps when nobody can go on. `false`: the engine is stopped.
    fn gather(&mut self) -> bool {
        let inbox = self.inbox.clone();
        inbox.wait_until(|waiting| {
            self.running.retain(|request| !request.cancelled());
            self.preempted.retain(|request| !request.cancelled());
            waiting.retain(|request| !request.cancelled());
            self.reclaim();
            while self.running.len() < self.config.sequences_max {
                let from_preempted = !self.preempted.is_empty();
                let first = if from_preempted { self.preempted.first() } else { waiting.front() };
                let Some(first) = first else { break };
                // Room for the prompt and its first token, besides one more page for everybody who runs.
                let pages_needed = (first.tokens.len() + 1).div_ceil(PAGE_TOKENS) + self.running.len();
                if pages_needed > self.pool.counts().free && !self.running.is_empty() {
                    break;
                }
                let admitted = if from_preempted { Some(self.preempted.remove(0)) } else { waiting.pop_front() };
                let Some(mut admitted) = admitted else { break };
                admitted.block_table = Some(BlockTable::new(&self.pool, admitted.label));
                if admitted.next_step == 0 {
                    admitted.timings.queued_us = micros(admitted.submitted.elapsed());
                }
                self.running.push(admitted);
            }
            self.counters.running.store(self.running.len(), std::sync::atomic::Ordering::Relaxed);
            self.running.iter().any(Running::has_room)
        })
    }

    /// The next chunk of one prompt.
    fn prefill_one_chunk(&mut self) {
        let turns = self.running.len();
        let candidate = (0..turns)
            .map(|offset| (self.prefill_turn + offset) % turns)
            .find(|index| !self.running[*index].decodes() && self.running[*index].has_room());
        let Some(index) = candidate else { return };
        let started = Instant::now();
        let first = self.running[index].computed;
        let end = self.running[index].tokens.len().min(first + self.config.prefill_chunk_tokens);
        let Some(index) = self.make_room(index, end) else { return };
        self.prefill_turn = index + 1;
        let Some(row) = self.resolve(index, end) else { return self.fail(index, StepError::Internal) };
        let request = &self.running[index];
        let last = end == request.tokens.len();
        let span = Span { tokens: &request.tokens[first..end], position: first, pages: &row.pages, logits: last };
        let (deliveries, inbox) = (&request.deliveries, &self.inbox);
        let stop = || deliveries.is_closed() || inbox.is_stopped();
        match self.forward.run(&mut self.store, &[span], &stop) {
            Ok(()) => (),
            // The client is gone: `gather` drops the request, and its pages with it.
            Err(ForwardError::Stopped) => return,
            Err(_) => return self.fail(index, StepError::Internal),
        }
        self.counters.add_prefilled(end - first);
        if let Some(fault) = self.forward.fault(0) {
            return self.page_fault(index, fault);
        }
        let request = &mut self.running[index];
        request.timings.prefill_us += micros(started.elapsed());
        request.computed = end;
        if let Some(block_table) = &mut request.block_table {
            block_table.advance(end - first);
        }
        let next = match self.forward.logits(0) {
            Some(logits) if last => request.deliver_token(row.trace, logits, self.model.tokenizer()),
            Some(_) | None if !last => request.deliver_read(row.trace),
            _ => return self.fail(index, StepError::Internal),
        };
        if next == Next::Ended {
            self.running.remove(index);
        }
    }

    /// One token for every request that decodes.
    fn decode_once(&mut self) {
        let started = Instant::now();
        let Some(group) = self.decode_group() else { return };
        let rows: Vec<(usize, Option<Row>)> =
            group.iter().map(|index| (*index, self.resolve(*index, self.running[*index].tokens.len()))).collect();
        let spans: Vec<Span<'_>> = rows
            .iter()
            .filter_map(|(index, row)| {
                let (request, row) = (&self.running[*index], row.as_ref()?);
                let tokens = &request.tokens[request.computed..];
                Some(Span { tokens, position: request.computed, pages: &row.pages, logits: true })
            })
            .collect();
        let (running, inbox) = (&self.running, &self.inbox);
        let stop = || inbox.is_stopped() || group.iter().all(|index| running[*index].cancelled());
        let outcome = self.forward.run(&mut self.store, &spans, &stop);
        drop(spans);
        if matches!(outcome, Err(ForwardError::Stopped)) {
            return;
        }
        let micros = micros(started.elapsed());
        let mut span = 0;
        let mut ended = Vec::new();
        for (index, row) in rows {
            let Some(row) = row.filter(|_| outcome.is_ok()) else {
                self.running[index].deliver_error(StepError::Internal);
                ended.push(index);
                continue;
            };
            let next = if let Some(fault) = self.forward.fault(span) {
                self.quarantine(index, fault);
                Next::Ended
            } else {
                let request = &mut self.running[index];
                request.timings.decode_us += micros;
                request.computed += 1;
                if let Some(block_table) = &mut request.block_table {
                    block_table.advance(1);
                }
                match self.forward.logits(span) {
                    Some(logits) => request.deliver_token(row.trace, logits, self.model.tokenizer()),
                    None => Next::Ended,
                }
            };
            span += 1;
            if next == Next::Ended {
                ended.push(index);
            }
        }
        self.counters.add_decoded(span);
        for index in ended.into_iter().rev() {
            self.running.remove(index);
        }
    }

    /// Who decodes in this step, with room for one more token each; the youngest lose their pages when there is none.
    fn decode_group(&mut self) -> Option<Vec<usize>> {
        'group: loop {
            let ready = |request: &Running| request.decodes() && request.has_room();
            let group: Vec<usize> = (0..self.running.len()).filter(|index| ready(&self.running[*index])).collect();
            for index in &group {
                let tokens = self.running[*index].tokens.len();
                let preempted = self.running.len();
                self.make_room(*index, tokens)?;
                if self.running.len() != preempted {
                    // Places have moved: look again. Ends, because every round has one request less.
                    continue 'group;
                }
            }
            return if group.is_empty() { None } else { Some(group) };
        }
    }

    /// Grows the request's block table to `tokens`, taking pages from the youngest others if it must.
    ///
    /// Returns the request's place, which may have moved; `None` when it was itself the one to lose its pages.
    fn make_room(&mut self, index: usize, tokens: usize) -> Option<usize> {
        loop {
            let store = &mut self.store;
            let mut assigned = true;
            let block_table = self.running[index].block_table.as_mut()?;
            let grown = block_table.grow(tokens, |capability| assigned &= store.assign(page_ref(capability)).is_ok());
            assert!(assigned, "the pool and the store disagree about which pages exist");
            if grown.is_ok() {
                return Some(index);
            }
            // Recomputed later to the same bits: nothing that was sent changes.
            let youngest = self.running.len() - 1;
            let mut victim = self.running.remove(youngest);
            victim.block_table = None;
            victim.computed = 0;
            victim.restarted = true;
            self.preempted.insert(0, victim);
            self.reclaim();
            if youngest == index {
                return None;
            }
        }
    }

    /// Builds the block table that the kernels get, and traces exactly that one.
    fn resolve(&mut self, index: usize, tokens: usize) -> Option<Row> {
        let mut capabilities = Vec::with_capacity(tokens.div_ceil(PAGE_TOKENS));
        self.running[index].block_table.as_ref()?.capabilities(tokens, &mut capabilities);
        let pages: Vec<PageRef> = capabilities.iter().map(|capability| page_ref(*capability)).collect();
        #[cfg(feature = "fault-injection")]
        let (capabilities, pages) = self.plant(index, capabilities, pages);
        let trace = self.pool.trace(&capabilities).ok()?;
        Some(Row { pages, trace })
    }

    #[cfg(feature = "fault-injection")]
    fn plant(
        &self,
        index: usize,
        mut capabilities: Vec<Capability>,
        mut pages: Vec<PageRef>,
    ) -> (Vec<Capability>, Vec<PageRef>) {
        let reader = self.running[index].label;
        let foreign = self.running.iter().filter(|other| other.label != reader).find_map(|other| {
            let mut theirs = Vec::new();
            other.block_table.as_ref()?.capabilities(1, &mut theirs);
            theirs.first().copied()
        });
        if let (Some(fault), Some(foreign)) = (self.planted.fault_for(reader), foreign) {
            match fault {
                Fault::ForeignCapability { .. } => {
                    capabilities[0] = foreign;
                    pages[0] = page_ref(foreign);
                }
                Fault::ForeignPageIndex { .. } => pages[0].page = foreign.page().0,
            }
        }
        (capabilities, pages)
    }

    fn page_fault(&mut self, index: usize, fault: engine_kernels::PageFault) {
        self.quarantine(index, fault);
        self.running.remove(index);
    }

    /// The page is kept as evidence; the request that read it ends, the others go on.
    fn quarantine(&self, index: usize, fault: engine_kernels::PageFault) {
        let request = &self.running[index];
        let page = PageId(fault.page);
        let known = self.pool.quarantine(page);
        tracing::error!(request_id = %request.request, %page, layer = fault.layer, known, "page tag mismatch");
        request.deliver_error(StepError::PageFault { page, layer: fault.layer });
    }

    fn fail(&mut self, index: usize, error: StepError) {
        let request = self.running.remove(index);
        tracing::error!(request_id = %request.request, %error, "request failed in the engine");
        request.deliver_error(error);
    }

    fn reclaim(&mut self) {
        let store = &mut self.store;
        self.pool.reclaim(|page| store.scrub(page.0).is_ok());
    }
}

fn page_ref(capability: Capability) -> PageRef {
    PageRef { page: capability.page().0, tag: capability.tag() }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
