//! The step loop without its thread: a test says when a step is made, and with what model.
//!
//! Compiled only with the feature `fault-injection`, which no shipped binary has. Nothing here waits, sleeps or looks at a
//! clock to decide something: the same calls give the same steps.

use crate::compute::Compute;
use crate::config::EngineConfig;
use crate::engine::{Counters, SubmitError, enqueue};
use crate::fault::Fault;
use crate::inbox::Inbox;
use crate::machine::{DeclareError, Machine, Pages};
use crate::sampling::Sampling;
use crate::sequence::Sequence;
use crate::step::{Role, Stepper};
use crate::steps::Steps;
use engine_kv::{CacheFault, PAGE_TOKENS, PageFormat, PagePool};
use engine_scheduler::Tenancy;
use policies_domain::{Label, RequestId, Sealer};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// An engine that stands still until it is told to make a step.
pub struct StepExecutor<C> {
    stepper: Stepper,
    machine: Machine<C>,
}

impl<C: Compute> StepExecutor<C> {
    /// `compute` has [`EngineConfig::pages`] pages, all free. `boot_secret`: tags are made under it.
    #[must_use]
    pub fn new(compute: C, config: EngineConfig, boot_secret: [u8; 32]) -> Self {
        let pages = Pages { count: config.pages, first: 0, boot_secret, format: PageFormat::F32, compat: 0 };
        let inbox = Arc::new(Inbox::new(config.sequences_max + config.queue_max));
        let stepper = Stepper::new(Role::Whole, inbox, Arc::new(Counters::new()), config);
        let mut machine = Machine::new(compute, pages);
        machine.keep_swapped(boot_secret, config.swap_mib << 20);
        if config.prefix_cache {
            machine.keep_prefixes(boot_secret, [7; 32]);
        }
        Self { stepper, machine }
    }

    /// The same for these tenants.
    #[must_use]
    pub fn for_tenants(mut self, tenancy: &Tenancy) -> Self {
        self.stepper = self.stepper.for_tenants(tenancy);
        self
    }

    /// Makes these tokens everybody's, whole pages of them. It keeps prefixes, and works for nobody yet.
    ///
    /// # Errors
    /// [`DeclareError`].
    pub fn declare(&mut self, tokens: &[u32]) -> Result<(), DeclareError> {
        let EngineConfig { prefill_chunk_tokens, pages, .. } = self.stepper.config;
        self.machine.declare(tokens, prefill_chunk_tokens, pages)
    }

    /// Queues a request. Its text comes sealed by `sealer`.
    ///
    /// # Errors
    /// [`SubmitError`]; nothing is queued then.
    pub fn submit(
        &mut self,
        label: Label,
        request: RequestId,
        prompt: Vec<u32>,
        sampling: Sampling,
        sealer: Sealer,
    ) -> Result<Steps, SubmitError> {
        let config = &self.stepper.config;
        let context_max = (config.pages * PAGE_TOKENS).min(config.context_tokens_max.unwrap_or(usize::MAX));
        enqueue(&self.stepper.inbox, context_max, Sequence { tokens: prompt, label, request }, sampling, sealer)
    }

    /// Admits whoever may have a slot, computes one chunk of somebody's prompt and one token of everybody else. `false`,
    /// and nothing was computed: nobody can go on before a step is read or a request comes.
    pub fn step(&mut self) -> bool {
        let (stepper, machine) = (&mut self.stepper, &mut self.machine);
        stepper.forget_the_cancelled(machine);
        let inbox = stepper.inbox.clone();
        let found = inbox.look(|queue| stepper.look(machine, queue));
        if found {
            stepper.step(machine);
        }
        found
    }

    /// Time passes. From the first call on, steps of exclusive tenants begin at their times only.
    pub fn pass(&mut self, time: Duration) {
        self.stepper.now += time;
        self.stepper.keeps_periods = true;
    }

    /// Takes checks of the prefix cache away.
    pub fn plant_cache(&mut self, faults: Vec<CacheFault>) {
        if let Some(cache) = &mut self.machine.cache {
            cache.plant(faults);
        }
    }

    /// A request that has a slot loses it, and its pages: the one in this place, modulo their number. `false`: there is none.
    pub fn preempt(&mut self, place: usize) -> bool {
        self.stepper.make_give_way(&mut self.machine, Some(place))
    }

    /// As when a page is needed and none is free: whoever gives way first loses slot and pages. `false`: nobody has any.
    pub fn evict(&mut self) -> bool {
        self.stepper.make_give_way(&mut self.machine, None)
    }

    /// The ledger of its pages. Its custody log is followed by the step loop: whoever drains it takes events away.
    pub fn pool(&self) -> &PagePool {
        &self.machine.pool
    }

    /// What computes.
    pub fn compute(&mut self) -> &mut C {
        &mut self.machine.compute
    }

    /// Switches off what the step loop compares: block tables with the custody log, what is written with whose it is, and what
    /// was read with what was written down.
    pub fn uncheck(&self) {
        self.stepper.planted.uncheck();
    }

    /// The requests that hold a slot.
    #[cfg(test)]
    pub(crate) fn running(&mut self) -> &mut [crate::running::Running] {
        &mut self.stepper.running
    }

    /// Replaces the planted faults.
    pub fn plant(&self, faults: Vec<Fault>) {
        self.stepper.planted.set(faults);
    }
}

impl<C> fmt::Debug for StepExecutor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StepExecutor({:?})", self.machine.pool.counts())
    }
}

#[cfg(test)]
mod declared;
#[cfg(test)]
mod guesses;
#[cfg(test)]
mod prefixes;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod rows;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::compute::tracer::Tracer;
    use crate::config::Split;
    use crate::steps::StepError;
    use engine_kernels::{KvKind, PageRef};
    use policies_domain::{Binding, ConnectionId, Layer, SealKey, TenantId};

    pub(crate) const CONFIG: EngineConfig = EngineConfig {
        threads: 1,
        pages: 24,
        sequences_max: 4,
        queue_max: 8,
        prefill_chunk_tokens: 32,
        step_target_ms: 60_000,
        queue_wait_max_ms: 600_000,
        prefix_cache: false,
        speculation: false,
        swap_mib: 0,
        context_tokens_max: None,
        kv: KvKind::F32,
        split: Split::Off,
        decode_threads: None,
        preallocate: false,
    };

    pub(crate) fn label(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    pub(crate) fn prompt(tenant: u32, tokens: u32) -> Vec<u32> {
        (0..tokens).map(|token| tenant * 1000 + token).collect()
    }

    pub(crate) fn sealer(label: Label, request: RequestId) -> Sealer {
        let binding = Binding { request, label, connection: ConnectionId(1) };
        SealKey::from_bytes([request.bytes()[0]; 32]).sealer(Layer::Text, binding)
    }

    fn executor() -> StepExecutor<Tracer> {
        StepExecutor::new(Tracer::new(CONFIG.pages), CONFIG, [1; 32])
    }

    fn submit(executor: &mut StepExecutor<Tracer>, tenant: u32, tokens: u32, answer: usize) -> Steps {
        let sampling = Sampling { max_tokens: Some(answer), temperature: 0.0, ..Sampling::default() };
        let (label, request) = (label(tenant), RequestId::from_bytes([tenant as u8; 16]));
        executor.submit(label, request, prompt(tenant, tokens), sampling, sealer(label, request)).unwrap()
    }

    fn read(steps: &mut Steps, into: &mut String) -> Option<StepError> {
        while let Some(step) = steps.try_next() {
            match step {
                Ok(step) => *into += step.text.reveal(),
                Err(error) => return Some(error),
            }
        }
        None
    }

    #[test]
    fn whoever_holds_it_makes_the_steps_and_the_answers_are_the_model_s() {
        let mut executor = executor();
        // Together they need more pages than there are: somebody gives way.
        let mut all: Vec<(u32, Steps, String)> =
            (1..5).map(|tenant| (tenant, submit(&mut executor, tenant, 70, 60), String::new())).collect();
        let mut steps = 0;
        while executor.step() {
            steps += 1;
            assert!(steps < 1000, "it does not end");
            for (_, steps, text) in &mut all {
                assert_eq!(read(steps, text), None);
            }
        }
        for (tenant, _, text) in &all {
            assert_eq!(*text, Tracer::answer(&prompt(*tenant, 70), 60));
        }
        assert!(!executor.step(), "nobody is left");
        assert!(executor.pool().counts().free == CONFIG.pages && executor.compute().is_scrubbed());
    }

    #[test]
    fn a_byte_that_changes_under_a_reader_shows_in_the_answer_or_as_a_fault() {
        for (place, caught) in [(0, true), (64, false)] {
            let mut executor = executor();
            let (mut steps, mut text) = (submit(&mut executor, 1, 20, 8), String::new());
            assert!(executor.step());
            executor.compute().page(0)[place] ^= 1;
            while executor.step() {}
            let error = read(&mut steps, &mut text);
            assert_eq!(error.is_some(), caught, "{error:?}");
            assert_ne!(text, Tracer::answer(&prompt(1, 20), 8));
        }
    }

    /// Two tenants decode; the first has more pages than are looked up in a step.
    fn two_decode() -> (StepExecutor<Tracer>, Steps, Steps, String) {
        let mut executor = executor();
        let [mut reader, mut other] = [1, 2].map(|tenant| submit(&mut executor, tenant, 70, 60));
        let (mut text, mut others) = (String::new(), String::new());
        while text.len() < 8 || others.len() < 8 {
            assert!(executor.step());
            assert_eq!([read(&mut reader, &mut text), read(&mut other, &mut others)], [None; 2]);
        }
        (executor, reader, other, text)
    }

    #[test]
    fn what_the_kernels_get_is_wrong_at_a_place_that_is_not_looked_up_any_more() {
        type Change = fn(&mut [PageRef], &[PageRef]);
        // Each page carries the tag that goes with it: no kernel can see it.
        let changes: [(&str, Change); 4] = [
            ("another tenant's page", |own, theirs| own[0] = theirs[0]),
            ("another tenant's page in another place", |own, theirs| own[2] = theirs[1]),
            ("a page doubled, and one missing", |own, _| own[1] = own[0]),
            ("two pages in each other's place", |own, _| own.swap(1, 3)),
        ];
        for (what, change) in changes {
            let (mut executor, mut reader, mut other, mut text) = two_decode();
            let [own, theirs] = [1, 2].map(|tenant| {
                executor.stepper.running.iter().position(|request| request.label == label(tenant)).unwrap()
            });
            let [own, theirs] = executor.stepper.running.get_disjoint_mut([own, theirs]).unwrap();
            let table = own.table().unwrap().1;
            assert!(table.settled() > 3, "the place is not looked up any more");
            change(table.entries_mut(), theirs.entries());
            let before = text.clone();
            while executor.step() {
                assert_eq!(read(&mut other, &mut String::new()), None, "{what}: nobody else is touched");
                if let Some(error) = read(&mut reader, &mut text) {
                    assert_eq!(error, StepError::ReadSet, "{what}");
                    break;
                }
            }
            assert_eq!(text, before, "{what}: something left");
        }
        // Twin: nothing is changed.
        let (mut executor, mut reader, _other, mut text) = two_decode();
        while executor.step() {
            assert_eq!(read(&mut reader, &mut text), None);
        }
        assert_eq!(text, Tracer::answer(&prompt(1, 70), 60));
    }

    #[test]
    fn a_fault_in_the_middle_of_an_answer_is_noticed_as_at_its_beginning() {
        let reader = TenantId::new(1).unwrap();
        for (fault, caught) in [
            (Fault::SwappedPages { reader }, true),
            (Fault::FalseTrace { reader }, true),
            (Fault::ForeignEntry { reader }, true),
            (Fault::ForeignPageIndex { reader }, true),
            // For the gate.
            (Fault::ForeignCapability { reader }, false),
        ] {
            let (mut executor, mut steps, _other, _) = two_decode();
            executor.plant(vec![fault]);
            assert!(executor.step());
            match steps.try_next().unwrap() {
                Err(StepError::ReadSet | StepError::PageFault { .. }) => assert!(caught, "{fault:?}"),
                Err(error) => panic!("{fault:?}: {error:?}"),
                Ok(step) => {
                    assert!(!caught, "{fault:?}");
                    assert_eq!((step.trace.kept, step.trace.pages[0].label), (0, label(2)), "{fault:?}");
                }
            }
        }
    }

    #[test]
    fn who_leaves_holds_nothing_and_nobody_goes_on() {
        let mut executor = executor();
        let steps = submit(&mut executor, 1, 20, 8);
        assert!(executor.step() && executor.pool().counts().free < CONFIG.pages);
        drop(steps);
        assert!(!executor.step());
        assert!(executor.pool().counts().free == CONFIG.pages && executor.compute().is_scrubbed());
    }
}
