//! The scheduler under an engine that is made up: see `examples/simulate`, which shows the same at full size.

#[path = "../examples/simulate/random.rs"]
mod random;
#[path = "../examples/simulate/scenarios.rs"]
mod scenarios;
#[path = "../examples/simulate/simulation.rs"]
mod simulation;

use scenarios::{Samples, WARM_UP, WINDOW, Waits, percentile};
use simulation::{Decision, Simulation, Unwatched};
use std::time::Duration;

const SEED: u64 = 7;

fn assert_sound(simulation: &Simulation) {
    #[cfg(debug_assertions)]
    simulation.assert_sound();
    let _ = simulation;
}

fn jain_min(samples: &Samples, weights: &[f64]) -> f64 {
    let jain = samples.jain(weights);
    assert!(!jain.is_empty());
    jain.iter().map(|(_, index)| *index).fold(1.0, f64::min)
}

#[test]
fn tenants_that_always_wait_get_their_weights_in_any_ten_seconds() {
    for weights in [[1; 16], [1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 1, 2, 4, 8]] {
        let mut simulation = scenarios::backlogged(&weights, SEED);
        let samples = Samples::of(&mut simulation, WARM_UP + 2 * WINDOW);
        let weights = weights.map(f64::from);
        assert!(jain_min(&samples, &weights) >= 0.99);
        let slots_most = simulation.books.iter().map(|book| book.slots_max).max().unwrap();
        assert!(samples.difference_max(&weights) <= scenarios::slots_bound(&simulation, slots_most));
        assert!(samples.differences(&weights).len() > 10);
        assert_sound(&simulation);
    }
}

#[test]
fn prompts_that_always_wait_differ_by_a_few_steps() {
    for weights in [vec![1, 1, 1, 1], vec![1, 3], vec![1; 12]] {
        let mut simulation = scenarios::prompts_alone(&weights, SEED);
        let samples = Samples::of(&mut simulation, WARM_UP + 2 * WINDOW);
        let weights: Vec<f64> = weights.into_iter().map(f64::from).collect();
        assert!(jain_min(&samples, &weights) >= 0.99);
        let (most, bound) = (samples.difference_max(&weights), scenarios::prompts_bound(&simulation));
        assert!(most <= bound, "{most} of {bound}");
    }
}

#[test]
fn no_class_starves_under_a_more_urgent_one() {
    let mut simulation = scenarios::classes(SEED);
    simulation.run_until(Duration::from_secs(120), &mut Unwatched);
    for waits in Waits::of(&simulation, |tenant| if tenant >= 9 { 20 } else { 40 }) {
        let Waits { class, part, p50, p99, longest, promised } = waits;
        // A queue that all came at once finds the slots taken, and those who have them go on.
        assert!(longest <= 2.0 * promised, "{class:?}: {longest} s, promised {promised} s");
        assert!(p50 <= p99 && p99 <= longest);
        assert!(part >= 0.07, "{class:?} gets {part} of all work");
    }
    assert_sound(&simulation);
}

#[test]
fn a_quiet_tenant_does_not_notice_a_flood() {
    let [within, flood] = [false, true].map(|flood| {
        let mut simulation = scenarios::quiet_neighbour(flood, SEED);
        simulation.run_until(Duration::from_secs(200), &mut Unwatched);
        let book = &simulation.books[0];
        assert!(book.ended > 100);
        [percentile(&book.ttft, 0.99), percentile(&book.itl, 0.99)]
    });
    assert!(flood[0] <= 1.25 * within[0], "TTFT: {} s beside {} s", flood[0], within[0]);
    assert!(flood[1] <= 1.15 * within[1], "ITL: {} s beside {} s", flood[1], within[1]);
}

#[test]
fn a_quiet_tenant_is_not_put_behind_each_neighbour_that_wakes_with_it() {
    for seed in 1..4 {
        let [within, flood] = [false, true].map(|flood| {
            let mut simulation = scenarios::quiet_on_a_small_machine(flood, seed);
            simulation.run_until(Duration::from_secs(400), &mut Unwatched);
            let book = &simulation.books[0];
            assert!(book.ended > 300);
            percentile(&book.ttft, 0.99)
        });
        assert!(flood <= 1.25 * within, "TTFT: {flood} s beside {within} s");
    }
}

#[test]
fn everybody_at_once_leaves_no_slot_and_no_page_behind() {
    let mut simulation = scenarios::everybody(200, 2_000, SEED);
    for step in 0..600 {
        simulation.step(&mut Unwatched);
        if step % 20 == 0 {
            assert_sound(&simulation);
        }
    }
    let counts = simulation.counts;
    assert!(counts.ended > 100 && counts.cancelled > 20 && counts.gave_way > 0, "{counts:?}");
    assert!(counts.arrived >= counts.ended + counts.cancelled && counts.steps == 600);
    assert!(counts.cache_pages_reclaimed > 0 && counts.stalled < 600 * 64);
    assert_eq!(Decision::ALL.map(|decision| decision as usize), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn equal_tenants_at_once_take_as_long_as_one_who_asks_for_all_of_it() {
    for seed in 1..6 {
        let ratio = scenarios::uniform(1, seed) / scenarios::uniform(4, seed);
        assert!(ratio >= 0.98, "{ratio} of the throughput with seed {seed}");
    }
}

/// Whoever had a row in a pass that took a second longer, through no work of its own, would wait until the others have had as
/// much.
#[test]
fn a_pause_of_the_machine_is_nobody_s_work() {
    for seed in 1..4 {
        let [undisturbed, paused] = [0, 10_000].map(|pauses_per_million| {
            let mut simulation = scenarios::quiet_beside_pauses(pauses_per_million, seed);
            simulation.run_until(Duration::from_secs(300), &mut Unwatched);
            assert_eq!(simulation.pauses.len() > 20, pauses_per_million > 0);
            let ttft = scenarios::ttft_beside_pauses(&simulation);
            assert!(ttft.len() > 200);
            percentile(&ttft, 1.0)
        });
        assert!(paused <= 2.0 * undisturbed, "{paused} s after a pause, {undisturbed} s without");
    }
}
