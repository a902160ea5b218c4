//! Both groups without a thread and without a clock: a test says who does what next, and which parcel travels.
//!
//! Compiled only with the feature `fault-injection`, which no shipped binary has.

use super::{DecodeGroup, Pair, Parcel, PrefillGroup, Terms};
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
use engine_handoff::{Check, Checks, Incarnation};
use engine_kv::{CacheFault, PAGE_TOKENS, PageFormat, PagePool};
use engine_scheduler::Tenancy;
use policies_domain::{CustodyRecord, Label, RequestId, Sealer};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// No two pools have tags of one secret.
const SECRET_OF_PREFILL: u8 = 0x55;

/// A split engine that stands still until it is told what happens next.
pub struct SplitExecutor<C> {
    pair: Pair<C>,
    inbox: Arc<Inbox>,
    config: EngineConfig,
    now: Duration,
    /// For another life of the prefill group.
    terms: Terms,
    boot_secret: [u8; 32],
    /// How often that group began anew.
    restarts: u32,
    tenancy: Tenancy,
}

impl<C: Compute> SplitExecutor<C> {
    /// The decode group works on `compute`, which has [`EngineConfig::pages`] pages, and so does the prefill group when it
    /// gets no model with as many pages of its own: pages are copied then, and stay where they are otherwise.
    ///
    /// # Panics
    /// When the pages have a size that no digest is made for.
    #[must_use]
    pub fn new(compute: C, of_prefill: Option<C>, config: EngineConfig, boot_secret: [u8; 32]) -> Self {
        Self::with_checks(compute, of_prefill, config, boot_secret, Checks::ALL)
    }

    /// As [`SplitExecutor::new`], and nobody verifies a handoff, a block table or what was read.
    ///
    /// # Panics
    /// As there.
    #[must_use]
    pub fn unchecked(compute: C, of_prefill: Option<C>, config: EngineConfig, boot_secret: [u8; 32]) -> Self {
        let verification = [
            Check::V1,
            Check::V2,
            Check::V3,
            Check::V4,
            Check::V5,
            Check::V6,
            Check::V7,
            Check::V8,
            Check::V9,
            Check::V10,
        ];
        let executor = Self::with_checks(compute, of_prefill, config, boot_secret, Checks::without(&verification));
        executor.pair.decode.stepper.planted.uncheck();
        executor
    }

    #[allow(clippy::expect_used, reason = "a test that cannot be set up fails")]
    fn with_checks(
        compute: C,
        of_prefill: Option<C>,
        config: EngineConfig,
        boot_secret: [u8; 32],
        checks: Checks,
    ) -> Self {
        let in_place = of_prefill.is_none();
        let terms = Terms::new(boot_secret, compute.content_bytes(), [7; 32], in_place, config.sequences_max);
        let mut terms = terms.expect("slabs have a size that digests are made for");
        terms.checks = checks;
        let (inbox, counters) =
            (Arc::new(Inbox::new(config.sequences_max + config.queue_max)), Arc::new(Counters::new()));
        let decode = Stepper::new(Role::Decode, inbox.clone(), counters.clone(), config);
        let mut prefill = Stepper::new(Role::Prefill, inbox.clone(), counters, config);
        prefill.planted = decode.planted.clone();
        let count = u32::try_from(config.pages).unwrap_or(u32::MAX);
        let mut of_prefill = of_prefill
            .map(|compute| Machine::new(compute, pages(&config, 0, boot_secret.map(|byte| byte ^ SECRET_OF_PREFILL))));
        let first = if in_place { 0 } else { count };
        let mut machine = Machine::new(compute, pages(&config, first, boot_secret));
        machine.keep_swapped(boot_secret, config.swap_mib << 20);
        if config.prefix_cache {
            of_prefill.as_mut().unwrap_or(&mut machine).keep_prefixes(boot_secret, [7; 32]);
        }
        let lives = [Incarnation(1), Incarnation(2)];
        let decode = DecodeGroup::new(decode, terms.clone(), lives[0], Some(lives[1]), boot_secret);
        let prefill = PrefillGroup::new(prefill, terms.clone(), lives[1]);
        let pair = Pair::new(decode, prefill, machine, of_prefill);
        Self { pair, inbox, config, now: Duration::ZERO, terms, boot_secret, restarts: 0, tenancy: Tenancy::default() }
    }

    /// The same for these tenants.
    #[must_use]
    pub fn for_tenants(mut self, tenancy: &Tenancy) -> Self {
        self.pair.decode.stepper = self.pair.decode.stepper.for_tenants(tenancy);
        self.pair.prefill.stepper = self.pair.prefill.stepper.for_tenants(tenancy);
        self.tenancy = tenancy.clone();
        self
    }

    /// Makes these tokens everybody's, whole pages of them, where prompts are computed. It keeps prefixes, and works for nobody
    /// yet.
    ///
    /// # Errors
    /// [`DeclareError`].
    pub fn declare(&mut self, tokens: &[u32]) -> Result<(), DeclareError> {
        let Pair { machine, of_prefill, .. } = &mut self.pair;
        let EngineConfig { prefill_chunk_tokens, pages, .. } = self.config;
        of_prefill.as_mut().unwrap_or(machine).declare(tokens, prefill_chunk_tokens, pages)
    }

    /// Queues a request.
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
        let context_max = (self.config.pages * PAGE_TOKENS).min(self.config.context_tokens_max.unwrap_or(usize::MAX));
        enqueue(&self.inbox, context_max, Sequence { tokens: prompt, label, request }, sampling, sealer)
    }

    /// All that follows once, everything that is on its way included. `false`: nobody can go on before a step is read, a
    /// request comes or time passes.
    pub fn step(&mut self) -> bool {
        let found = self.look();
        if found {
            self.pair.step(self.now);
        }
        found
    }

    /// Admits whoever may have a slot and forgets who left. `false`: nobody can go on.
    pub fn look(&mut self) -> bool {
        self.pair.decode.stepper.forget_the_cancelled(&mut self.pair.machine);
        let (pair, now) = (&mut self.pair, self.now);
        self.inbox.look(|queue| pair.look(now, queue))
    }

    /// One chunk of somebody's prompt.
    pub fn prefill(&mut self) {
        self.pair.prefill_step(self.now);
    }

    /// One token of everybody who has pages.
    pub fn decode(&mut self) {
        self.pair.decode_step(self.now);
    }

    /// One parcel arrives at the prefill group. `false`: there is none.
    pub fn bring_to_prefill(&mut self) -> bool {
        self.pair.bring_to_prefill(self.now)
    }

    /// One parcel arrives at the decode group. `false`: there is none.
    pub fn bring_to_decode(&mut self) -> bool {
        self.pair.bring_to_decode(self.now)
    }

    /// A request that has a slot loses it, and its pages or its handoff: the one in this place, modulo their number. `false`:
    /// there is none.
    pub fn preempt(&mut self, place: usize) -> bool {
        self.pair.decode.make_give_way(&mut self.pair.machine, self.now, Some(place))
    }

    /// As when the decode group needs a page and none is free: whoever gives way first loses slot, pages or handoff.
    /// `false`: nobody has any.
    pub fn evict(&mut self) -> bool {
        self.pair.decode.make_give_way(&mut self.pair.machine, self.now, None)
    }

    /// The prefill group's life ends, and another one begins on `compute`, whose pages are all free. Of what the old one has
    /// sent, so many parcels still arrive at most, before the word that it is gone; what was sent to it arrives at the new one.
    ///
    /// # Errors
    /// `compute`: groups with one pool live and end together.
    pub fn restart_prefill(&mut self, compute: C, arriving: usize) -> Result<C, C> {
        let Some(machine) = self.pair.of_prefill.as_mut() else { return Err(compute) };
        self.restarts += 1;
        let (config, inbox) = (self.config, self.inbox.clone());
        let mut stepper = Stepper::new(Role::Prefill, inbox, self.pair.prefill.stepper.counters.clone(), config);
        stepper.planted = self.pair.prefill.stepper.planted.clone();
        let stepper = stepper.for_tenants(&self.tenancy);
        let life = Incarnation(2 + u64::from(self.restarts));
        let new = PrefillGroup::new(stepper, self.terms.clone(), life);
        let mut old = std::mem::replace(&mut self.pair.prefill, new);
        old.outbox.truncate(arriving);
        self.pair.prefill.outbox.append(&mut old.outbox);
        let peers = [None, Some(life)].map(|life| Parcel::Peer { life });
        self.pair.prefill.outbox.extend(peers);
        // Its pages go back to a pool that is no more.
        drop(old);
        let count = u32::try_from(config.pages).unwrap_or(u32::MAX);
        let first = count.saturating_mul(self.restarts + 1);
        let secret = self.boot_secret.map(|byte| byte.wrapping_add(self.restarts as u8) ^ SECRET_OF_PREFILL);
        let mut new = Machine::new(compute, pages(&config, first, secret));
        if config.prefix_cache {
            new.keep_prefixes(secret, [7; 32]);
        }
        Ok(std::mem::replace(machine, new).compute)
    }

    /// Time passes, and the groups look at what has expired.
    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.pair.tick(self.now);
    }

    /// Parcels on their way to the prefill group and to the decode group.
    pub fn on_the_way(&self) -> (usize, usize) {
        (self.pair.decode.outbox.len(), self.pair.prefill.outbox.len())
    }

    /// The first parcel that is on its way to the decode group behind the bytes of pages arrives before them: bytes take a
    /// way of their own. `false`: there is none.
    pub fn overtake_bytes(&mut self) -> bool {
        let outbox = &mut self.pair.prefill.outbox;
        let index = outbox.iter().position(|parcel| !matches!(parcel, Parcel::Bytes { .. }));
        let parcel = index.and_then(|index| outbox.remove(index));
        let found = parcel.is_some();
        if let Some(parcel) = parcel {
            self.pair.prefill.outbox.push_front(parcel);
            self.pair.bring_to_decode(self.now);
        }
        found
    }

    /// A setting that nobody should choose: the prefill group has a right to write into the decode group's memory, and its
    /// bytes are written where they were going, whatever has become of the handoff. With `free_early`, pages do not wait
    /// for them, and neither the ledger nor the reader of its log notices.
    pub fn make_one_sided(&mut self, free_early: bool) {
        self.pair.decode.stepper.planted.make_one_sided(free_early);
        if free_early {
            self.pair.machine.pool.plant(vec![engine_kv::LedgerFault::EarlyFreeUnseen]);
            self.pair.machine.custody.forgive_open_tickets();
        }
    }

    /// Pages of the decode group to which bytes are on their way that nobody waits for.
    pub fn abandoned_pages(&self) -> Vec<u32> {
        self.pair.decode.abandoned_pages().collect()
    }

    /// The number that the decode group's first page has in what is told to others.
    pub fn first_page(&self) -> u32 {
        self.pair.machine.first_page
    }

    /// From now on the custody log of the decode group's pages is kept.
    pub fn keep_records(&mut self) {
        self.pair.machine.custody.kept = Some(Vec::new());
    }

    /// What was kept of it, up to this moment.
    pub fn records(&mut self) -> Vec<CustodyRecord> {
        self.pair.machine.follow();
        self.pair.machine.custody.kept.take().unwrap_or_default()
    }

    /// The ledgers of the decode group and, when it has its own, of the prefill group.
    pub fn pools(&self) -> (&PagePool, Option<&PagePool>) {
        (&self.pair.machine.pool, self.pair.of_prefill.as_ref().map(|machine| &machine.pool))
    }

    /// Neither group has anything of anybody.
    #[cfg(test)]
    pub(super) fn nobody_is_left(&mut self) {
        let Pair { decode, prefill, .. } = &mut self.pair;
        for stepper in [&decode.stepper, &prefill.stepper] {
            assert!(stepper.running.is_empty() && stepper.waiting.is_empty(), "{:?}", stepper.role);
            assert_eq!((stepper.scheduler.running(), stepper.scheduler.waiting()), (0, 0), "{:?}", stepper.role);
            stepper.scheduler.assert_sound();
        }
        self.inbox.look(|queue| {
            decode.stepper.count_inside(queue);
            assert!(queue.inside.is_empty() && queue.came.is_empty());
        });
    }

    /// The first bytes that are on their way to the decode group arrive a second time, right behind the first. `false`: there are
    /// none.
    #[cfg(test)]
    pub(super) fn double_bytes(&mut self) -> bool {
        let outbox = &mut self.pair.prefill.outbox;
        let first = outbox.iter().enumerate().find_map(|(index, parcel)| match parcel {
            Parcel::Bytes { route, pages, bytes } => Some((index, *route, *pages, bytes.clone())),
            _ => None,
        });
        let Some((index, route, pages, bytes)) = first else { return false };
        outbox.insert(index + 1, Parcel::Bytes { route, pages, bytes });
        true
    }

    /// What the decode group may copy.
    #[cfg(test)]
    pub(super) fn pace(&mut self) -> &mut crate::pace::Pace {
        &mut self.pair.decode.stepper.pace
    }

    /// What the decode group computes on and, when it has its own, the prefill group.
    pub fn computes(&mut self) -> (&mut C, Option<&mut C>) {
        (&mut self.pair.machine.compute, self.pair.of_prefill.as_mut().map(|machine| &mut machine.compute))
    }

    /// Takes checks of the prefix cache away.
    pub fn plant_cache(&mut self, faults: Vec<CacheFault>) {
        let machine = self.pair.of_prefill.as_mut().unwrap_or(&mut self.pair.machine);
        if let Some(cache) = &mut machine.cache {
            cache.plant(faults);
        }
    }

    /// Replaces the planted faults.
    pub fn plant(&self, faults: Vec<Fault>) {
        self.pair.decode.stepper.planted.set(faults);
    }
}

fn pages(config: &EngineConfig, first: u32, boot_secret: [u8; 32]) -> Pages {
    Pages { count: config.pages, first, boot_secret, format: PageFormat::F32, compat: 0 }
}

impl<C> fmt::Debug for SplitExecutor<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SplitExecutor({:?})", self.pair.machine.pool.counts())
    }
}
