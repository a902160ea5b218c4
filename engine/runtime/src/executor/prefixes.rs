//! What a tenant's later requests find of its earlier ones, who else does (nobody), and who gives room for what.

use super::tests::{CONFIG, label, prompt, sealer};
use super::*;
use crate::admission::ALIKE_WAIT_MAX;
use crate::compute::tracer::Tracer;
use crate::custody;
use crate::pace::Pace;
use crate::steps::{StepError, Usage};
use engine_scheduler::TenantTerms;
use policies_domain::{HolderId, Outcome, PageLife, TenantId, TicketKind};
use proptest::prelude::*;

const CACHING: EngineConfig = EngineConfig { prefix_cache: true, ..CONFIG };

/// The first two tenants are guaranteed nine pages of 24 each; everybody else has no guarantee.
fn tenancy() -> Tenancy {
    Tenancy::new([1, 2].map(|tenant| (label(tenant), TenantTerms::default()))).unwrap()
}

/// Whose request it is, what its client got, and what it is to get.
struct Asked {
    tenant: u32,
    steps: Option<Steps>,
    text: String,
    expected: String,
    usage: Usage,
    error: Option<StepError>,
    restarted: bool,
}

struct Run {
    executor: StepExecutor<Tracer>,
    asked: Vec<Asked>,
}

impl Run {
    fn new() -> Self {
        Self::on(Tracer::new(CACHING.pages), CACHING)
    }

    fn on(tracer: Tracer, config: EngineConfig) -> Self {
        Self { executor: StepExecutor::new(tracer, config, [1; 32]).for_tenants(&tenancy()), asked: Vec::new() }
    }

    fn ask(&mut self, tenant: u32, prompt: Vec<u32>, answer: usize) -> usize {
        let sampling = Sampling { max_tokens: Some(answer), temperature: 0.0, ..Sampling::default() };
        let (label, request) = (label(tenant), RequestId::from_bytes([self.asked.len() as u8 + 1; 16]));
        let expected = Tracer::answer(&prompt, answer);
        let steps = self.executor.submit(label, request, prompt, sampling, sealer(label, request)).unwrap();
        let (text, usage) = (String::new(), Usage::default());
        self.asked.push(Asked { tenant, steps: Some(steps), text, expected, usage, error: None, restarted: false });
        self.asked.len() - 1
    }

    fn read(&mut self) {
        for asked in &mut self.asked {
            let Some(steps) = &mut asked.steps else { continue };
            while let Some(step) = steps.try_next() {
                match step {
                    Ok(step) => {
                        assert!(step.trace.pages.iter().all(|read| read.label == label(asked.tenant)));
                        asked.text += step.text.reveal();
                        asked.restarted |= step.restarted;
                    }
                    Err(error) => asked.error = Some(error),
                }
            }
            asked.usage = steps.usage();
        }
    }

    fn step(&mut self) -> bool {
        let found = self.executor.step();
        self.read();
        found
    }

    fn finish(&mut self) {
        let mut steps = 0;
        // Whoever waited for its reader goes on after the first look that found nobody.
        while self.step() || self.step() {
            steps += 1;
            assert!(steps < 2000, "it does not end");
        }
    }

    /// Until it is answered: how many tokens its tenant's cache had of it, and how many tokens were computed.
    fn answered(&mut self, tenant: u32, prompt: Vec<u32>, answer: usize) -> (usize, usize) {
        let before = self.executor.compute().computed.len();
        let asked = self.ask(tenant, prompt, answer);
        self.finish();
        let asked = &self.asked[asked];
        assert_eq!((asked.error, &asked.text), (None, &asked.expected));
        (asked.usage.cached_tokens, self.executor.compute().computed.len() - before)
    }

    fn cached(&self, tenant: u32) -> usize {
        self.executor.machine.cache.as_ref().unwrap().pages_of(label(tenant))
    }

    /// In each step, from one memory to another.
    fn copy_at_most(&mut self, pages: usize) {
        let page_bytes = self.executor.compute().page(0).len();
        self.executor.stepper.pace = Pace::of_bytes(pages * page_bytes);
    }

    /// Requests that the queue counts: whoever ended or left since the last look is one of them. A tenant may have nine.
    fn inside(&self) -> usize {
        let inbox = self.executor.stepper.inbox.clone();
        inbox.look(|queue| {
            let inside = queue.inside.values().map(|load| load.running + load.waiting);
            queue.came.len() + inside.sum::<usize>()
        })
    }

    /// Nobody is left behind, and every page is free, kept for somebody, or evidence.
    fn is_clean(&mut self) {
        let (stepper, machine) = (&mut self.executor.stepper, &self.executor.machine);
        assert_eq!((stepper.running.len(), stepper.waiting.len()), (0, 0));
        assert_eq!((stepper.scheduler.running(), stepper.scheduler.waiting()), (0, 0));
        stepper.scheduler.assert_sound();
        machine.pool.assert_sound();
        let counts = machine.pool.counts();
        assert_eq!(counts.free + machine.cached() + counts.quarantined, counts.total, "{counts:?}");
        let inbox = stepper.inbox.clone();
        inbox.look(|queue| {
            stepper.count_inside(queue);
            assert!(queue.inside.is_empty() && queue.came.is_empty());
        });
    }
}

/// The tokens of an answer.
fn tokens_of(text: &str) -> Vec<u32> {
    text.bytes().map(|letter| u32::from(letter - b'a')).collect()
}

#[test]
fn a_second_request_computes_what_is_not_cached_and_answers_the_same() {
    let mut run = Run::new();
    assert_eq!(run.answered(1, prompt(1, 70), 8), (0, 77));
    // Four whole pages are there; the rest of the prompt and seven tokens of the answer are computed.
    assert_eq!(run.answered(1, prompt(1, 70), 8), (64, 13));
    assert_eq!(run.answered(1, prompt(1, 75), 8).0, 64, "a longer one, too");
    assert_eq!(run.answered(1, prompt(1, 40), 8).0, 32, "and a shorter one");
    let mut other = prompt(1, 70);
    other[20] += 1;
    assert_eq!(run.answered(1, other, 8).0, 16, "as far as it is the same");
    run.is_clean();
}

#[test]
fn prompts_that_begin_alike_and_come_together_are_computed_once() {
    let mut run = Run::new();
    let longer = |more: u32| [prompt(1, 100), prompt(5, more)].concat();
    for more in 1..=4 {
        run.ask(1, longer(more), 2);
    }
    run.ask(2, longer(1), 2);
    run.finish();
    let cached: Vec<usize> = run.asked.iter().map(|asked| asked.usage.cached_tokens).collect();
    assert_eq!(cached, [0, 96, 96, 96, 0], "another tenant waits for nobody, and finds nothing");
    for asked in &run.asked {
        assert_eq!((asked.error, &asked.text), (None, &asked.expected));
    }
    run.is_clean();
}

#[test]
fn nobody_waits_for_a_prompt_that_does_not_go_on_or_for_a_little() {
    let mut run = Run::new();
    let first = run.ask(1, prompt(1, 100), 2);
    run.executor.step();
    // Its reader goes, and with it the prompt that the second one could have waited for.
    run.asked[first].steps = None;
    let second = run.ask(1, prompt(1, 100), 2);
    run.finish();
    assert_eq!((run.asked[second].usage.cached_tokens, &run.asked[second].text), (0, &run.asked[second].expected));
    let (one, other) = ([prompt(2, 60), prompt(3, 9)].concat(), [prompt(2, 60), prompt(4, 9)].concat());
    let asked = [one, other].map(|tokens| run.ask(1, tokens, 2));
    run.step();
    assert_eq!(run.executor.stepper.running.len(), 2, "48 tokens are not worth a wait");
    run.finish();
    assert!(asked.iter().all(|asked| run.asked[*asked].usage.cached_tokens == 0));
    run.is_clean();
}

#[test]
fn waiting_for_a_prompt_that_begins_alike_has_an_end() {
    let mut run = Run::on(Tracer::new(48), EngineConfig { pages: 48, ..CACHING });
    run.ask(1, prompt(1, 300), 2);
    run.step();
    run.ask(1, prompt(1, 300), 2);
    run.step();
    assert_eq!(run.executor.stepper.running.len(), 1);
    run.executor.stepper.now += ALIKE_WAIT_MAX;
    run.step();
    assert_eq!(run.executor.stepper.running.len(), 2);
    run.finish();
    run.is_clean();
}

#[test]
fn the_last_token_of_a_prompt_is_always_computed() {
    let mut run = Run::new();
    run.answered(1, prompt(1, 64), 1);
    assert_eq!(run.answered(1, prompt(1, 64), 1), (48, 16));
    assert_eq!(run.answered(1, prompt(1, 65), 1), (64, 1));
    assert_eq!(run.answered(1, prompt(1, 16), 1), (0, 16));
}

#[test]
fn a_conversation_finds_its_answers_too() {
    let mut run = Run::new();
    let mut turns = prompt(1, 70);
    run.answered(1, turns.clone(), 40);
    turns.extend(tokens_of(&run.asked[0].text));
    turns.extend(prompt(3, 10));
    // All but the last token of the answer was computed: 109 tokens.
    assert_eq!(run.answered(1, turns, 8).0, 96);
    run.is_clean();
}

#[test]
fn another_tenant_finds_nothing_and_a_tenant_without_guarantee_keeps_nothing() {
    let mut run = Run::new();
    for tenant in [1, 2, 3, 3] {
        assert_eq!(run.answered(tenant, prompt(1, 70), 8), (0, 77), "tenant {tenant}");
    }
    assert_eq!([1, 2, 3].map(|tenant| run.cached(tenant)), [4, 4, 0]);
    run.is_clean();
}

#[test]
fn what_failed_is_not_kept() {
    let reader = TenantId::new(1).unwrap();
    for fault in [Fault::SwappedPages { reader }, Fault::FalseTrace { reader }] {
        let mut run = Run::new();
        run.executor.plant(vec![fault]);
        let asked = run.ask(1, prompt(1, 30), 8);
        run.finish();
        assert_eq!((run.asked[asked].error, run.cached(1)), (Some(StepError::ReadSet), 0), "{fault:?}");
        run.executor.plant(Vec::new());
        assert_eq!(run.answered(1, prompt(1, 30), 8).0, 0, "{fault:?}");
        run.is_clean();
    }
    // What is said after the prompt is no number.
    let mut run = Run::on(Tracer::with_habits(CACHING.pages, Some(30)), CACHING);
    let asked = run.ask(1, prompt(1, 30), 8);
    run.finish();
    assert_eq!((run.asked[asked].error, run.cached(1)), (Some(StepError::NotANumber), 0));
    run.is_clean();
}

#[test]
fn a_page_that_is_evidence_is_found_no_more_nor_what_is_behind_it() {
    let mut run = Run::new();
    run.answered(1, prompt(1, 70), 8);
    let asked = run.ask(1, prompt(1, 70), 8);
    assert!(run.step());
    let table = run.executor.stepper.running[0].block_table.as_ref().unwrap();
    let mut pages = Vec::new();
    table.capabilities(0, 64, &mut pages);
    // Its tag, which every reader compares.
    run.executor.compute().page(pages[1].page().0)[0] ^= 1;
    run.finish();
    assert!(matches!(run.asked[asked].error, Some(StepError::PageFault { .. })), "{:?}", run.asked[asked].error);
    assert_eq!(run.answered(1, prompt(1, 70), 8).0, 16, "the page before it is in order");
    assert_eq!(run.executor.pool().counts().quarantined, 1);
    assert_eq!(run.answered(1, prompt(1, 70), 8).0, 64, "and the others are new");
    run.is_clean();
}

#[test]
fn of_a_prompt_whose_client_left_nothing_is_kept_that_is_not_complete() {
    for steps in 1..6 {
        let mut run = Run::new();
        let asked = run.ask(1, prompt(1, 200), 8);
        (0..steps).for_each(|_| assert!(run.step()));
        run.asked[asked].steps = None;
        run.finish();
        assert_eq!(run.cached(1), 0, "after {steps} steps");
        run.is_clean();
    }
}

#[test]
fn whoever_gave_way_finds_its_own_prefix_again() {
    let mut run = Run::new();
    let asked = run.ask(1, prompt(1, 70), 30);
    while run.asked[asked].text.len() < 4 {
        assert!(run.step());
    }
    let before = run.executor.compute().computed.len();
    assert!(run.executor.preempt(0));
    run.finish();
    let Asked { text, expected, usage, restarted, .. } = &run.asked[asked];
    assert_eq!((text, *restarted), (expected, true));
    assert_eq!(usage.cached_tokens, 0, "nothing was there when it came first");
    // Its prompt's whole pages were not computed again.
    assert!(run.executor.compute().computed.len() - before < 30 + 16);
    run.is_clean();
}

#[test]
fn a_flood_of_one_tenant_does_not_take_what_is_guaranteed_to_another() {
    let mut run = Run::new();
    run.answered(1, prompt(1, 70), 8);
    for round in 0..4 {
        (0..5).for_each(|other| _ = run.ask(2, prompt(10 + 5 * round + other, 100), 8));
        run.finish();
        assert_eq!(run.answered(1, prompt(1, 70), 8).0, 64, "round {round}");
    }
    assert!(run.cached(2) <= 9, "nobody keeps more than its guarantee");
    assert!(run.asked.iter().all(|asked| asked.error.is_none() && asked.text == asked.expected));
    run.is_clean();
}

#[test]
fn whoever_needs_room_takes_it_from_its_own_cache_first() {
    let mut run = Run::new();
    run.answered(1, prompt(1, 70), 8);
    run.answered(2, prompt(2, 145), 1);
    assert_eq!([1, 2].map(|tenant| run.cached(tenant)), [4, 9]);
    // Eleven pages are free, and it needs sixteen.
    run.answered(2, prompt(7, 240), 8);
    assert_eq!(run.answered(1, prompt(1, 70), 8).0, 64);
    run.is_clean();
}

#[test]
fn a_cache_above_its_guarantee_gives_before_a_request_does() {
    let mut run = Run::new();
    run.answered(2, prompt(2, 145), 1);
    let runs = run.ask(2, prompt(8, 90), 40);
    assert!(run.step() && run.step());
    // 16 of 24 pages are the second tenant's, nine of them for later.
    let comes = run.ask(1, prompt(1, 150), 4);
    run.finish();
    for asked in [runs, comes] {
        let Asked { error, text, expected, restarted, .. } = &run.asked[asked];
        assert_eq!((*error, text, *restarted), (None, expected, false));
    }
    run.is_clean();
}

#[test]
fn a_pool_full_of_cached_pages_stops_nobody() {
    for tenant in 1..5 {
        let mut run = Run::new();
        for caching in [1, 2] {
            run.answered(caching, prompt(caching, 145), 1);
        }
        assert_eq!(run.executor.pool().counts().free, 6);
        // One needs nearly all pages, then two need more than there are, in turn.
        run.answered(tenant, prompt(7, 340), 8);
        let both = [run.ask(tenant, prompt(8, 150), 30), run.ask(3, prompt(9, 150), 30)];
        run.finish();
        for asked in both {
            assert_eq!(run.asked[asked].text, run.asked[asked].expected, "tenant {tenant}");
        }
        run.is_clean();
    }
}

#[test]
fn hits_of_many_requests_at_once_do_not_overflow_the_custody_log() {
    const PAGES: usize = 300;
    const SLOTS: usize = 32;
    let config = EngineConfig { pages: PAGES, sequences_max: SLOTS, queue_max: SLOTS, ..CACHING };
    let tenancy = Tenancy::new([(label(1), TenantTerms::default())]).unwrap();
    let executor = StepExecutor::new(Tracer::new(PAGES), config, [1; 32]).for_tenants(&tenancy);
    let mut run = Run { executor, asked: Vec::new() };
    run.answered(1, prompt(1, 3205), 1);
    assert!(200 * SLOTS > custody::events_max(PAGES as u32), "a look for all of them at once would be too late");
    let all: Vec<usize> = (0..SLOTS).map(|_| run.ask(1, prompt(1, 3205), 1)).collect();
    run.finish();
    for asked in &all {
        assert_eq!((run.asked[*asked].usage.cached_tokens, run.asked[*asked].error), (3200, None));
    }
    // All leave at once.
    let all: Vec<usize> = (0..SLOTS).map(|_| run.ask(1, prompt(1, 3205), 20)).collect();
    (0..3).for_each(|_| assert!(run.step()));
    all.iter().for_each(|asked| run.asked[*asked].steps = None);
    run.finish();
    run.is_clean();
    // Nor when nothing but tables begins.
    let machine = &mut run.executor.machine;
    let tables: Vec<_> = (0..SLOTS).map(|_| machine.begin_table(label(1), &prompt(1, 3205))).collect();
    for table in &tables {
        let known = machine.custody.pages(table.sequence(), 0, 3200, 3200, &mut Vec::new());
        assert!(matches!(known, Ok(true)), "{known:?}");
    }
}

#[test]
fn another_tenant_s_prefix_is_stopped_where_it_would_be_held() {
    let mut run = Run::new();
    run.executor.plant_cache(vec![CacheFault::OneTree]);
    run.answered(1, prompt(1, 70), 8);
    // One tree for all: found, and refused by the ledger.
    assert_eq!(run.answered(2, prompt(1, 70), 8).0, 0);
    // And with a ledger that refuses nothing: the comparisons with the log and the labels are behind it.
    let mut run = Run::new();
    run.executor.plant_cache(vec![CacheFault::OneTree]);
    run.executor.pool().plant(vec![engine_kv::LedgerFault::ForeignAttach]);
    run.answered(1, prompt(1, 70), 8);
    let (id, sampling) = (RequestId::from_bytes([99; 16]), Sampling { max_tokens: Some(8), ..Sampling::default() });
    let mut steps = run.executor.submit(label(2), id, prompt(1, 70), sampling, sealer(label(2), id)).unwrap();
    let told = loop {
        let found = run.executor.step();
        if let Some(told) = steps.try_next() {
            break told;
        }
        assert!(found, "nothing came of it");
    };
    if let Ok(step) = told {
        // The gate ends it by this label.
        assert!(step.trace.pages.iter().any(|read| read.label == label(1)), "nobody noticed");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whoever comes, leaves and gives way: answers are those of the prompts, nobody stays behind, no page is lost.
    #[test]
    fn a_cache_changes_no_answer_and_loses_no_page(
        swaps: bool,
        pages_a_step in 1usize..12,
        acts in prop::collection::vec((0u32..12, 1u32..4, 1u32..120, any::<prop::sample::Index>()), 1..120),
    ) {
        let mut run = Run::on(Tracer::new(CACHING.pages), EngineConfig { swap_mib: usize::from(swaps), ..CACHING });
        run.copy_at_most(pages_a_step);
        for (act, tenant, tokens, which) in acts {
            match act {
                0..3 if run.inside() < 9 => {
                    // Two families of prompts for each tenant, one of them everybody's.
                    let family = if which.index(2) == 0 { tenant } else { 9 };
                    run.ask(tenant, prompt(family, tokens), 1 + which.index(40));
                }
                3 => _ = run.executor.preempt(which.index(4)),
                4 => _ = run.executor.evict(),
                5 if !run.asked.is_empty() => {
                    let asked = which.index(run.asked.len());
                    run.asked[asked].steps = None;
                }
                _ => _ = run.step(),
            }
            // Whoever is answered is out of the way.
            for asked in &mut run.asked {
                if asked.text.len() == asked.expected.len() && !asked.text.is_empty() {
                    asked.steps = None;
                }
            }
        }
        run.finish();
        for asked in run.asked.iter().filter(|asked| asked.steps.is_some()) {
            prop_assert_eq!((asked.error, &asked.text), (None, &asked.expected));
        }
        run.is_clean();
        prop_assert!([1, 2].iter().all(|tenant| run.cached(*tenant) <= 9) && run.cached(3) == 0);
        prop_assert_eq!(run.executor.pool().counts().quarantined, 0);
    }
}

/// Whoever gives way does so for somebody's step: nobody is let in to give way at once, again and again.
#[test]
fn a_pool_that_is_too_small_for_all_is_no_storm() {
    for (pages, swap_mib) in [(16, 0), (16, 64), (20, 64), (24, 0), (24, 64), (32, 64)] {
        let config = EngineConfig { pages, swap_mib, ..CACHING };
        let mut run = Run::on(Tracer::new(pages), config);
        for number in 0..8 {
            // Some begin alike, so that pages are shared; the answers outgrow the pool.
            run.ask(1 + number % 2, prompt(1 + number % 3, 40 + 7 * number), 60 + 20 * (number as usize % 3));
        }
        run.finish();
        for asked in &run.asked {
            assert_eq!((asked.error, &asked.text), (None, &asked.expected));
        }
        let counters = &run.executor.stepper.counters;
        let gave_way = counters.preempted.load(std::sync::atomic::Ordering::Relaxed);
        assert!(gave_way <= 40, "{pages} pages, {swap_mib} MiB: {gave_way}");
        run.is_clean();
    }
}

#[test]
fn what_a_request_begins_with_does_not_go_for_it() {
    let mut run = Run::new();
    run.answered(1, prompt(1, 70), 1);
    run.answered(1, prompt(2, 70), 1);
    // 16 pages are free and it needs 17 behind its prefix, whose pages were used least recently.
    assert_eq!(run.answered(1, prompt(1, 330), 1).0, 64);
    run.is_clean();
}

#[test]
fn who_could_be_let_in_by_its_own_prefix_alone_takes_nothing_and_stops_nobody() {
    let mut run = Run::new();
    run.answered(1, prompt(1, 70), 1);
    // Each within its guarantee: 4 pages are kept, 13 in use, 7 free, of which the two may need one each.
    let run_already = [run.ask(1, prompt(3, 88), 8), run.ask(2, prompt(4, 100), 8)];
    assert!(run.step() && run.step() && run.step() && run.step());
    // It needs seven behind its four.
    let waits = run.ask(1, prompt(1, 170), 2);
    let small = run.ask(1, prompt(5, 15), 1);
    assert!(run.step());
    let waiting: Vec<usize> = run.executor.stepper.waiting.iter().map(|request| request.tokens.len()).collect();
    assert_eq!((waiting, run.executor.stepper.running.len()), (vec![170], 3));
    run.finish();
    for asked in run_already.into_iter().chain([waits, small]) {
        let Asked { error, text, expected, restarted, .. } = &run.asked[asked];
        assert_eq!((*error, text, *restarted), (None, expected, false));
    }
    assert_eq!(run.asked[waits].usage.cached_tokens, 64);
    run.is_clean();
}

#[test]
fn what_a_cache_holds_as_well_does_not_come_free_with_a_request() {
    let mut run = Run::new();
    let large = run.ask(2, prompt(4, 145), 200);
    while run.asked[large].text.len() < 140 {
        assert!(run.step());
    }
    // It has 18 pages, nine of which its tenant keeps anyway: nine come free, and no more is above its guarantee.
    let comes = run.ask(1, prompt(1, 130), 4);
    assert!(run.step());
    let running: Vec<Label> = run.executor.stepper.running.iter().map(|request| request.label).collect();
    assert_eq!(running, [label(1)]);
    run.finish();
    for asked in [large, comes] {
        assert_eq!((run.asked[asked].error, &run.asked[asked].text), (None, &run.asked[asked].expected));
    }
    run.is_clean();
}

#[test]
fn whoever_comes_back_with_its_pages_gets_room_from_its_own_cache() {
    let config = EngineConfig { pages: 16, swap_mib: 64, ..CACHING };
    let mut run = Run::on(Tracer::new(16), config);
    let asked = run.ask(1, prompt(1, 97), 100);
    while run.asked[asked].text.len() < 80 {
        assert!(run.step());
    }
    let before = run.executor.compute().computed.len();
    assert!(run.executor.preempt(0));
    // Six pages of its prompt are kept, ten are free, and it needs twelve.
    assert_eq!((run.cached(1), run.executor.pool().counts().free), (6, 10));
    run.finish();
    let swapped_in = run.executor.stepper.counters.swapped_in.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((swapped_in, run.executor.compute().computed.len() - before), (1, 20), "nothing is computed again");
    assert_eq!((run.asked[asked].error, &run.asked[asked].text), (None, &run.asked[asked].expected));
    run.is_clean();
}

#[test]
fn who_gives_way_keeps_as_much_as_a_step_has_time_for_and_computes_the_rest() {
    let config = EngineConfig { swap_mib: 64, prefix_cache: false, ..CACHING };
    let mut run = Run::on(Tracer::new(24), config);
    run.copy_at_most(4);
    let asked = run.ask(1, prompt(1, 97), 100);
    while run.asked[asked].text.len() < 80 {
        assert!(run.step());
    }
    let before = run.executor.compute().computed.len();
    assert!(run.executor.preempt(0));
    let kept = |run: &Run| -> Vec<Option<usize>> {
        run.executor.stepper.waiting.iter().map(|request| request.swapped.as_ref().map(|kept| kept.tokens)).collect()
    };
    assert_eq!(kept(&run), [Some(64)], "four pages of twelve");
    run.finish();
    let again = run.executor.compute().computed.len() - before;
    // What was said is sampled once: 20 tokens were left to say, and the last one is not computed.
    assert_eq!(again, 97 + 80 - 64 + 19);
    assert_eq!((run.asked[asked].error, &run.asked[asked].text), (None, &run.asked[asked].expected));
    run.is_clean();
}

#[test]
fn of_many_who_come_back_as_many_do_in_a_step_as_it_has_time_for() {
    let config = EngineConfig { swap_mib: 64, prefix_cache: false, ..CACHING };
    let mut run = Run::on(Tracer::new(24), config);
    let asked = [1, 2, 3].map(|tenant| run.ask(tenant, prompt(tenant, 40), 60));
    while asked.iter().any(|asked| run.asked[*asked].text.len() < 4) {
        assert!(run.step());
    }
    while run.executor.preempt(0) {}
    assert!(run.executor.stepper.waiting.iter().all(|request| request.swapped.is_some()));
    // Three pages each.
    run.copy_at_most(5);
    let back = |run: &Run| run.executor.stepper.counters.swapped_in.load(std::sync::atomic::Ordering::Relaxed);
    for step in 1..=3 {
        assert!(run.step());
        assert_eq!(back(&run), step);
    }
    run.finish();
    for asked in asked {
        assert_eq!((run.asked[asked].error, &run.asked[asked].text), (None, &run.asked[asked].expected));
    }
    run.is_clean();
}

#[test]
fn nobody_is_let_in_on_pages_that_did_not_come_free() {
    let mut run = Run::new();
    run.answered(1, prompt(3, 70), 1);
    let first = run.ask(2, prompt(4, 100), 12);
    (0..4).for_each(|_| assert!(run.step()));
    // Thirteen pages are free, and its tenant's cache has the other four; somebody reads two of these.
    let machine = &mut run.executor.machine;
    let table = machine.begin_table(label(1), &prompt(3, 70));
    let mut pages = Vec::new();
    table.capabilities(0, 32, &mut pages);
    let read = |page: policies_domain::PageId| {
        let generation = machine.pool.label(page).unwrap().generation;
        machine.pool.ticket(PageLife { page, generation }, TicketKind::Read, HolderId(1)).unwrap()
    };
    let tickets: Vec<_> = pages.iter().map(|held| read(held.page())).collect();
    drop(table);
    let comes = run.ask(1, prompt(1, 250), 2);
    let running = |run: &Run| -> Vec<Label> { run.executor.stepper.running.iter().map(|of| of.label).collect() };
    assert!(run.step());
    assert_eq!((running(&run), run.cached(1)), (vec![label(2)], 0), "they are given, and drain");
    tickets.into_iter().for_each(|ticket| ticket.settle(Outcome::Done).unwrap());
    assert!(run.step());
    assert_eq!(running(&run), [label(2), label(1)]);
    run.finish();
    for asked in [first, comes] {
        let Asked { error, text, expected, restarted, .. } = &run.asked[asked];
        assert_eq!((*error, text, *restarted), (None, expected, false));
    }
    run.is_clean();
}
