//! Two groups over a model whose answers say what was read: what is handed over is what was computed, whoever leaves, waits
//! or is lost on the way.

use super::{SplitExecutor, prefix_tests};
use crate::compute::tracer::Tracer;
use crate::config::EngineConfig;
use crate::executor::tests::{self as executor, label, prompt, sealer};
use crate::pace::Pace;
use crate::sampling::Sampling;
use crate::steps::{StepError, Steps};
use engine_kv::PAGE_TOKENS;
use engine_scheduler::Tenancy;
use policies_domain::{Generation, PageId, RequestId};
use proptest::prelude::*;
use std::collections::HashMap;
use std::time::Duration;

pub(super) const CONFIG: EngineConfig = EngineConfig { queue_max: 60, ..executor::CONFIG };

/// A request and what its client got.
pub(super) struct Client {
    pub(super) tenant: u32,
    pub(super) prompt: Vec<u32>,
    pub(super) wanted: usize,
    pub(super) steps: Option<Steps>,
    pub(super) text: String,
    pub(super) error: Option<StepError>,
    /// A step read a page of another tenant: the gate would have ended it.
    pub(super) foreign: bool,
    finished: bool,
    next_step: u32,
    lives: HashMap<PageId, Generation>,
    ended: HashMap<PageId, Generation>,
}

impl Client {
    /// Reads what is there, with the eyes of the gate.
    pub(super) fn read(&mut self) {
        while let Some(step) = self.steps.as_mut().and_then(Steps::try_next) {
            assert!(self.error.is_none() && !self.finished, "something came after the end");
            let step = match step {
                Ok(step) => step,
                Err(error) => {
                    self.error = Some(error);
                    return;
                }
            };
            assert_eq!(step.index, self.next_step);
            self.next_step += 1;
            if step.restarted {
                self.ended.extend(self.lives.drain());
            }
            for read in &step.trace.pages {
                self.foreign |= read.label != label(self.tenant);
                assert!(self.ended.get(&read.page).is_none_or(|ended| *ended <= read.generation), "an older life");
                assert_eq!(*self.lives.entry(read.page).or_insert(read.generation), read.generation);
            }
            self.text += step.text.reveal();
            self.finished = step.finish.is_some();
        }
    }

    pub(super) fn expected(&self) -> String {
        Tracer::answer(&self.prompt, self.wanted)
    }

    pub(super) fn over(&self) -> bool {
        self.finished || self.error.is_some() || self.steps.is_none()
    }
}

pub(super) struct World {
    pub(super) engine: SplitExecutor<Tracer>,
    pub(super) clients: Vec<Client>,
}

impl World {
    pub(super) fn new(copies: bool, config: EngineConfig) -> Self {
        let of_prefill = copies.then(|| Tracer::new(config.pages));
        let engine = SplitExecutor::new(Tracer::new(config.pages), of_prefill, config, [1; 32]);
        Self { engine, clients: Vec::new() }
    }

    /// For these tenants, who may keep what is guaranteed to them.
    pub(super) fn caching(copies: bool, config: EngineConfig, tenancy: &Tenancy) -> Self {
        let Self { engine, clients } = Self::new(copies, config);
        Self { engine: engine.for_tenants(tenancy), clients }
    }

    /// In each step, into the decode group's pool.
    fn copy_at_most(&mut self, pages: usize) {
        let page_bytes = self.engine.computes().0.page(0).len();
        *self.engine.pace() = Pace::of_bytes(pages * page_bytes);
    }

    pub(super) fn submit(&mut self, tenant: u32, tokens: u32, wanted: usize) -> usize {
        self.submit_tokens(tenant, prompt(tenant, tokens), wanted)
    }

    pub(super) fn submit_tokens(&mut self, tenant: u32, prompt: Vec<u32>, wanted: usize) -> usize {
        let sampling = Sampling { max_tokens: Some(wanted), temperature: 0.0, ..Sampling::default() };
        let id = self.clients.len() as u8;
        let request = RequestId::from_bytes([id; 16]);
        let steps = self
            .engine
            .submit(label(tenant), request, prompt.clone(), sampling, sealer(label(tenant), request))
            .unwrap();
        self.clients.push(Client {
            tenant,
            prompt,
            wanted,
            steps: Some(steps),
            text: String::new(),
            error: None,
            foreign: false,
            finished: false,
            next_step: 0,
            lives: HashMap::new(),
            ended: HashMap::new(),
        });
        self.clients.len() - 1
    }

    pub(super) fn read(&mut self) {
        self.clients.iter_mut().for_each(Client::read);
    }

    /// Until nobody can go on. Time passes when that is before everybody has what they want.
    pub(super) fn run(&mut self) {
        for _ in 0..20_000 {
            let found = self.engine.step();
            self.read();
            if !found {
                if self.clients.iter().all(Client::over) {
                    break;
                }
                self.engine.pass(Duration::from_millis(1100));
            }
        }
        assert!(self.clients.iter().all(Client::over), "it does not end: {:?}", self.engine);
        // Whoever left a moment ago has left the groups, too.
        for _ in 0..5 {
            self.engine.step();
            self.engine.pass(Duration::from_millis(1100));
            self.engine.prefill();
        }
    }

    /// Nothing is held but by caches, nothing is left behind, and nothing was put out of use.
    pub(super) fn is_clean(&mut self) {
        let (pool, of_prefill) = self.engine.pools();
        let mut cached = 0;
        for pool in [Some(pool), of_prefill].into_iter().flatten() {
            pool.assert_sound();
            let (counts, kept) = (pool.counts(), (1..10).map(|tenant| pool.kept_alone(label(tenant))).sum::<usize>());
            assert_eq!(counts.free + kept, counts.total, "{counts:?}");
            cached += kept;
        }
        let (compute, of_prefill) = self.engine.computes();
        let scrubbed = compute.is_scrubbed() && of_prefill.is_none_or(|compute| compute.is_scrubbed());
        assert!(scrubbed || cached > 0);
        self.engine.nobody_is_left();
    }

    pub(super) fn all_are_right(&self) {
        for client in self.clients.iter().filter(|client| client.steps.is_some()) {
            assert_eq!((client.error, client.text.clone()), (None, client.expected()));
            assert!(!client.foreign);
        }
    }
}

/// The first touch of a page takes long: a step that made it for all pages of a long prompt would keep everybody waiting.
#[test]
fn a_long_prompt_has_its_pages_at_once_and_touches_them_one_by_one() {
    for copies in [false, true] {
        let mut world = World::new(copies, CONFIG);
        world.submit(1, 300, 4);
        let (mut assigned, mut steps) = (0, 0);
        while assigned < 300_usize.div_ceil(PAGE_TOKENS) {
            let found = world.engine.step();
            world.read();
            let of_prefill = if copies { world.engine.computes().1 } else { Some(world.engine.computes().0) };
            let now = of_prefill.map_or(0, |compute| compute.assigned);
            let chunk_pages = CONFIG.prefill_chunk_tokens.div_ceil(PAGE_TOKENS) + 1;
            assert!(found && now <= assigned + chunk_pages, "{now} after {assigned}");
            steps += usize::from(now > assigned);
            if now > 0 {
                let (pool, of_prefill) = world.engine.pools();
                let counts = of_prefill.unwrap_or(pool).counts();
                assert!(counts.total - counts.free >= 19, "nobody else takes what it will need");
            }
            assigned = now;
        }
        assert!(steps > 2);
        world.run();
        world.all_are_right();
        world.is_clean();
    }
}

/// A pass of those who decode does not wait for all bytes of a long prompt.
#[test]
fn a_long_prompt_lands_step_by_step_whatever_becomes_of_it() {
    for leaves_after in [1, 2, 3, usize::MAX] {
        let mut world = World::new(true, CONFIG);
        world.copy_at_most(4);
        let (long, other) = (world.submit(1, 300, 4), world.submit(2, 20, 200));
        let (mut landed, mut most, mut steps) = (0, 0, 0);
        while !world.clients[long].over() && world.engine.step() {
            let before = world.clients[other].next_step;
            world.read();
            let now = world.engine.computes().0.landed;
            steps += usize::from(now > landed && now > 4);
            most = most.max(now - landed);
            if now > landed && steps > 1 {
                assert!(world.clients[other].next_step > before, "nobody waits for it");
            }
            if steps == leaves_after {
                world.clients[long].steps = None;
            }
            landed = now;
        }
        assert_eq!(most, 4);
        assert!(steps == leaves_after || steps == 19_usize.div_ceil(4), "{steps}");
        world.run();
        world.all_are_right();
        world.is_clean();
    }
}

#[test]
fn bytes_that_come_twice_do_no_harm() {
    for pages_a_step in [1, 4, 100] {
        let mut world = World::new(true, CONFIG);
        world.copy_at_most(pages_a_step);
        let clients = [world.submit(1, 100, 20), world.submit(2, 20, 40)];
        let mut turn = 0;
        loop {
            world.engine.look();
            world.engine.prefill();
            while world.engine.bring_to_prefill() {}
            if world.engine.double_bytes() {
                break;
            }
            world.engine.bring_to_decode();
            turn += 1;
            assert!(turn < 50, "no bytes came");
        }
        world.run();
        world.all_are_right();
        assert!(clients.iter().all(|client| world.clients[*client].over()));
        world.is_clean();
    }
}

#[test]
fn what_is_handed_over_is_what_was_computed() {
    for copies in [false, true] {
        let mut world = World::new(copies, CONFIG);
        for (tenant, tokens, wanted) in [(1, 1, 3), (2, 16, 40), (3, 17, 17), (1, 100, 30), (4, 33, 1), (5, 300, 60)] {
            world.submit(tenant, tokens, wanted);
        }
        world.run();
        world.all_are_right();
        world.is_clean();
    }
}

#[test]
fn pages_that_are_not_enough_for_all_delay_and_change_nothing() {
    for copies in [false, true] {
        // Each needs 11 pages in the end and begins with 3: somebody gives way.
        let mut world = World::new(copies, EngineConfig { pages: 16, ..CONFIG });
        for tenant in 1..7 {
            world.submit(tenant, 40, 130);
        }
        world.run();
        world.all_are_right();
        assert!(world.clients.iter().any(|client| client.ended.len() > 3), "nobody gave way: it is no test");
        world.is_clean();
    }
}

#[test]
fn who_did_not_read_and_gave_way_goes_on_when_all_of_its_prompt_has_been_read() {
    for copies in [false, true] {
        // More chunks than steps that wait for a reader.
        let mut world = World::new(copies, EngineConfig { prefill_chunk_tokens: 8, ..CONFIG });
        let stalls = world.submit(1, 300, 5);
        while world.engine.step() {}
        assert_eq!(world.clients[stalls].next_step, 0);
        let other = world.submit(2, 300, 5);
        for _ in 0..200 {
            world.engine.step();
            world.clients[other].read();
        }
        assert!(world.clients[other].over(), "it gave way to nobody");
        world.run();
        world.all_are_right();
        assert!(!world.clients[stalls].ended.is_empty(), "it did not give way");
        world.is_clean();
    }
}

#[test]
fn a_prefill_group_without_pages_makes_prompts_wait() {
    let mut world = World::new(true, CONFIG);
    let (_, of_prefill) = world.engine.pools();
    let held: Vec<_> =
        (0..20).map(|_| of_prefill.unwrap().allocate(label(9), of_prefill.unwrap().open_sequence()).unwrap()).collect();
    let (first, second) = (world.submit(1, 60, 5), world.submit(2, 60, 5));
    for _ in 0..50 {
        world.engine.step();
        world.read();
    }
    // Four pages are left: one prompt at a time, and both in the end.
    assert!(world.clients[first].over() && world.clients[second].over());
    let large = world.submit(3, 100, 5);
    for _ in 0..50 {
        world.engine.step();
        world.read();
    }
    assert!(!world.clients[large].over(), "it computed with pages that it did not have");
    drop(held);
    world.run();
    world.all_are_right();
    world.is_clean();
}

#[test]
fn what_no_pool_can_hold_fails_and_does_not_wait_for_ever() {
    for copies in [false, true] {
        let mut world = World::new(copies, CONFIG);
        let (pool, of_prefill) = world.engine.pools();
        for page in 0..10 {
            let reason = policies_domain::QuarantineReason::ScrubFailed;
            of_prefill.unwrap_or(pool).quarantine(PageId(page), reason);
        }
        let (large, small) = (world.submit(1, 300, 5), world.submit(2, 100, 5));
        world.run();
        assert_eq!(world.clients[large].error, Some(StepError::PoolExhausted));
        assert_eq!(world.clients[small].text, world.clients[small].expected());
    }
}

/// Makes the next thing happen that can, one at a time; `false`: nothing can.
fn one_thing(engine: &mut SplitExecutor<Tracer>, turn: usize) -> bool {
    if engine.bring_to_prefill() || engine.bring_to_decode() {
        return true;
    }
    let found = engine.look();
    match turn % 2 {
        0 => engine.prefill(),
        _ => engine.decode(),
    }
    found
}

#[test]
fn a_client_may_leave_at_any_moment() {
    for copies in [false, true] {
        let mut moments = 0;
        for moment in 0.. {
            let mut world = World::new(copies, CONFIG);
            let (leaves, _stays) = (world.submit(1, 70, 20), world.submit(2, 50, 20));
            let happened = (0..moment).filter(|turn| one_thing(&mut world.engine, *turn)).count();
            world.read();
            let over = world.clients[leaves].over();
            world.clients[leaves].steps = None;
            world.run();
            world.all_are_right();
            world.is_clean();
            moments = moments.max(happened);
            if over {
                break;
            }
        }
        assert!(moments > 30, "{moments}");
    }
}

#[test]
fn a_lease_that_ends_sets_pages_aside_and_the_request_is_computed_anew() {
    for copies in [false, true] {
        for moment in 0..24 {
            let mut world = World::new(copies, CONFIG);
            world.submit(1, 70, 20);
            for turn in 0..moment {
                one_thing(&mut world.engine, turn);
            }
            // Longer than a lease: neither group has heard anything of the other.
            world.engine.pass(Duration::from_secs(11));
            world.run();
            world.all_are_right();
            world.is_clean();
        }
    }
}

#[test]
fn a_prompt_whose_request_gave_way_is_computed_no_further() {
    let mut world = World::new(true, CONFIG);
    world.submit(1, 200, 4);
    for turn in 0..8 {
        one_thing(&mut world.engine, turn);
    }
    let held = |world: &World| {
        let counts = world.engine.pools().1.unwrap().counts();
        counts.total - counts.free
    };
    assert!(held(&world) > 0, "it is being computed");
    assert!(world.engine.preempt(0));
    // No word has come: the abort that says so may be late, or lost.
    world.engine.prefill();
    assert_eq!(held(&world), 0);
    world.run();
    world.all_are_right();
    world.is_clean();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Time passes, everybody takes turns in any order, requests give way, clients leave and stop reading. Words are not lost: no link between
    /// groups loses one and goes on. What the protocol does about it is checked where the protocol is.
    #[test]
    fn no_order_of_events_gives_a_wrong_answer_or_loses_a_page(
        copies: bool,
        caches: bool,
        swaps: bool,
        pages_a_step in 1usize..20,
        requests in prop::collection::vec((1u32..4, 1u32..120, 1usize..40), 1..8),
        events in prop::collection::vec((0u8..10, any::<prop::sample::Index>()), 0..400),
    ) {
        let config = EngineConfig { prefix_cache: caches, swap_mib: usize::from(swaps), ..CONFIG };
        let mut world = World::caching(copies, config, &prefix_tests::tenancy());
        world.copy_at_most(pages_a_step);
        for (tenant, tokens, wanted) in requests {
            world.submit(tenant, tokens, wanted);
        }
        for (event, which) in events {
            match event {
                0 | 1 => _ = world.engine.look(),
                2 | 3 => world.engine.prefill(),
                4 => world.engine.decode(),
                5 => _ = world.engine.bring_to_prefill(),
                6 => _ = world.engine.bring_to_decode(),
                // All of them together are less than a lease.
                7 => world.engine.pass(Duration::from_millis(which.index(20) as u64)),
                8 => _ = world.engine.preempt(which.index(4)),
                _ => {
                    let client = which.index(world.clients.len());
                    if which.index(7) == 0 {
                        world.clients[client].steps = None;
                    } else {
                        world.clients[client].read();
                    }
                }
            }
        }
        world.run();
        for client in world.clients.iter().filter(|client| client.steps.is_some()) {
            prop_assert_eq!((client.error, client.foreign), (None, false));
            prop_assert_eq!(&client.text, &client.expected());
        }
        world.is_clean();
    }
}
