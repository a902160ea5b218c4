//! What the scheduler does under an engine that is made up, as JSON; see `cargo xtask bench scheduler-simulation`.
//!
//! `simulate [--json FILE | --decisions TENANTS LIVE]`
//!
//! Only the cost of a decision is measured with a clock, and depends on the machine. All else is decided by the seed, so that
//! the same decision is made in every run: the least that it took in a number of them is what it costs, and what a run took
//! beyond that is the machine's: interrupts, other programs, memory that is touched for the first time. With `--decisions`
//! alone the decisions of one size are made once and nothing looks at a clock, for tools that count instructions.
#![forbid(unsafe_code)]

mod random;
mod scenarios;
mod simulation;

use engine_scheduler::Class;
use scenarios::{Samples, WARM_UP, Waits, percentile};
use serde_json::{Value as Json, json};
use simulation::{Decision, Simulation, Unwatched, Watch};
use std::time::{Duration, Instant};

const SEED: u64 = 20_261_130;
/// Steps of each size that are timed, after half as many that are not.
const STEPS: usize = 400;
/// Runs of each size. A decision's cost is the least of them.
const RUNS: usize = 5;
/// Tenants and live sequences.
const SIZES: [(usize, usize); 7] = [
    (100, 1_000),
    (100, 10_000),
    (100, 100_000),
    (1_000, 10_000),
    (1_000, 100_000),
    (10_000, 10_000),
    (10_000, 100_000),
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let file = match arguments.as_slice() {
        [] => None,
        [flag, file] if flag == "--json" => Some(file),
        [flag, tenants, live] if flag == "--decisions" => {
            run(tenants.parse()?, live.parse()?, &mut Unwatched);
            return Ok(());
        }
        _ => return Err("usage: simulate [--json FILE | --decisions TENANTS LIVE]".into()),
    };
    let result = json!({
        "seed": SEED,
        "clock_ns": clock_ns(),
        "runs": RUNS,
        "decisions": SIZES.map(|(tenants, live)| decisions(tenants, live)),
        "equal": shares(&[1; 16]),
        "weighted": shares(&[1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 1, 2, 4, 8]),
        "prompts": prompts(&[1, 1, 1, 1]),
        "prompts_weighted": prompts(&[1, 3]),
        "classes": classes(),
        "quiet": quiet(scenarios::quiet_neighbour),
        "quiet_small": quiet(scenarios::quiet_on_a_small_machine),
        "uniform": uniform(),
        "pauses": pauses(),
        "everybody": everybody(),
    });
    let text = serde_json::to_string_pretty(&result)? + "\n";
    match file {
        None => print(&text),
        Some(file) => std::fs::write(file, text)?,
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the result of a command-line program")]
fn print(text: &str) {
    print!("{text}");
}

/// Times every decision.
#[derive(Default)]
struct Stopwatch([Vec<f64>; 6]);

impl Watch for Stopwatch {
    fn see<T>(&mut self, decision: Decision, decide: impl FnOnce() -> T, count: impl Fn(&T) -> usize) -> T {
        let begin = Instant::now();
        let decided = decide();
        let took_ns = begin.elapsed().as_nanos() as f64;
        let count = count(&decided);
        if count > 0 {
            self.0[decision as usize].push(took_ns / count as f64);
        }
        decided
    }
}

/// What looking at the clock twice takes; it is in every figure.
fn clock_ns() -> f64 {
    let mut watch = Stopwatch::default();
    for _ in 0..10_000 {
        watch.see(Decision::Charge, || (), |()| 1);
    }
    percentile(&watch.0[Decision::Charge as usize], 0.5)
}

/// Makes the decisions of one size; those of the last steps are watched.
fn run(tenants: usize, live: usize, watch: &mut impl Watch) -> Simulation {
    let mut simulation = scenarios::everybody(tenants, live, SEED);
    for step in 0..STEPS + STEPS / 2 {
        if step < STEPS / 2 {
            simulation.step(&mut Unwatched);
        } else {
            simulation.step(watch);
        }
    }
    simulation
}

fn decisions(tenants: usize, live: usize) -> Json {
    let mut once = Stopwatch::default();
    let looks = run(tenants, live, &mut once).looks_max;
    let mut least = Stopwatch(once.0.clone());
    for _ in 1..RUNS {
        let mut again = Stopwatch::default();
        run(tenants, live, &mut again);
        for (least, again) in least.0.iter_mut().zip(&again.0) {
            // INVARIANT: the same decisions in the same order, or nothing could be compared.
            assert_eq!(least.len(), again.len(), "two runs of one seed differ");
            least.iter_mut().zip(again).for_each(|(least, again)| *least = least.min(*again));
        }
    }
    let mut result = json!({"tenants": tenants, "live": live, "looks_max": looks});
    let told = |once: &[f64], least: &[f64]| {
        json!({
            "count": once.len(),
            "mean_ns": round(mean(once)),
            "median_ns": round(percentile(once, 0.5)),
            "p99_ns": round(percentile(once, 0.99)),
            "least_mean_ns": round(mean(least)),
            "least_median_ns": round(percentile(least, 0.5)),
            "least_p99_ns": round(percentile(least, 0.99)),
            "least_max_ns": round(percentile(least, 1.0)),
        })
    };
    for (decision, name) in Decision::ALL.into_iter().zip(NAMES) {
        result[name] = told(&once.0[decision as usize], &least.0[decision as usize]);
    }
    let all = |watch: &Stopwatch| watch.0.iter().flatten().copied().collect::<Vec<f64>>();
    result["all"] = told(&all(&once), &all(&least));
    result
}

/// Of the decisions, in their order.
const NAMES: [&str; 6] = ["arrive", "admit", "chunk", "charge", "give_way", "forget"];

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

fn series(points: &[(Duration, f64)]) -> Json {
    points.iter().step_by(2).map(|(at, value)| json!([round(at.as_secs_f64()), round(*value)])).collect()
}

fn shares(weights: &[u32]) -> Json {
    let mut simulation = scenarios::backlogged(weights, SEED);
    let samples = Samples::of(&mut simulation, WARM_UP + Duration::from_secs(60));
    let most_slots = simulation.books.iter().map(|book| book.slots_max).max().unwrap_or(0);
    let bound = scenarios::slots_bound(&simulation, most_slots);
    told(&samples, weights, bound)
}

fn prompts(weights: &[u32]) -> Json {
    let mut simulation = scenarios::prompts_alone(weights, SEED);
    let samples = Samples::of(&mut simulation, WARM_UP + Duration::from_secs(60));
    told(&samples, weights, scenarios::prompts_bound(&simulation))
}

fn told(samples: &Samples, weights: &[u32], bound: f64) -> Json {
    let weights: Vec<f64> = weights.iter().map(|weight| f64::from(*weight)).collect();
    let jain = samples.jain(&weights);
    json!({
        "tenants": weights.len(),
        "weights": weights,
        "jain_min": round(jain.iter().map(|(_, index)| *index).fold(1.0, f64::min)),
        "jain": series(&jain),
        "difference_max_s": round(samples.difference_max(&weights)),
        "difference_bound_s": round(bound),
        "difference_s": series(&samples.differences(&weights)),
    })
}

fn classes() -> Json {
    let mut simulation = scenarios::classes(SEED);
    simulation.run_until(Duration::from_secs(300), &mut Unwatched);
    let waits = Waits::of(&simulation, |tenant| if tenant >= 9 { 20 } else { 40 });
    let row = |waits: &Waits| {
        json!({
            "class": waits.class.as_str(),
            "part_of_all_work": round(waits.part),
            "wait_p50_s": round(waits.p50),
            "wait_p99_s": round(waits.p99),
            "wait_longest_s": round(waits.longest),
            "wait_promised_s": round(waits.promised),
        })
    };
    json!({"seconds": 300, "classes": waits.iter().map(row).collect::<Vec<_>>()})
}

fn quiet(scenario: fn(bool, u64) -> Simulation) -> Json {
    let run = |flood| {
        let mut simulation = scenario(flood, SEED);
        simulation.run_until(Duration::from_secs(300), &mut Unwatched);
        let book = &simulation.books[0];
        [
            percentile(&book.ttft, 0.5),
            percentile(&book.ttft, 0.99),
            percentile(&book.itl, 0.5),
            percentile(&book.itl, 0.99),
        ]
    };
    let (within, flood) = (run(false), run(true));
    let names = ["ttft_p50_s", "ttft_p99_s", "itl_p50_s", "itl_p99_s"];
    let told =
        |values: [f64; 4]| names.into_iter().zip(values).map(|(name, value)| (name.to_owned(), json!(round(value))));
    json!({
        "neighbours_within_their_shares": Json::Object(told(within).collect()),
        "one_floods": Json::Object(told(flood).collect()),
        "ttft_p99_ratio": round(flood[1] / within[1]),
        "itl_p99_ratio": round(flood[3] / within[3]),
    })
}

/// Requests that all come at once: of four tenants, and of one who asks for all of them.
fn uniform() -> Json {
    let [one, four] = [1, 4].map(|tenants| scenarios::uniform(tenants, SEED));
    json!({"tenants": 4, "one_tenant_s": round(one), "fair_s": round(four), "throughput_ratio": round(one / four)})
}

/// A machine that is away for a second, once in a hundred passes.
fn pauses() -> Json {
    let longest = [0, 10_000].map(|pauses_per_million| {
        let mut simulation = scenarios::quiet_beside_pauses(pauses_per_million, SEED);
        simulation.run_until(Duration::from_secs(300), &mut Unwatched);
        (simulation.pauses.len(), percentile(&scenarios::ttft_beside_pauses(&simulation), 1.0))
    });
    let [(_, without), (count, after)] = longest;
    json!({"pauses": count, "ttft_max_without_s": round(without), "ttft_max_after_pauses_s": round(after)})
}

fn everybody() -> Json {
    let mut simulation: Simulation = scenarios::everybody(10_000, 100_000, SEED);
    simulation.run_until(Duration::from_secs(60), &mut Unwatched);
    let counts = simulation.counts;
    json!({
        "tenants": 10_000,
        "live": 100_000,
        "seconds": 60,
        "steps": counts.steps,
        "arrived": counts.arrived,
        "ended": counts.ended,
        "cancelled": counts.cancelled,
        "gave_way": counts.gave_way,
        "cache_pages_reclaimed": counts.cache_pages_reclaimed,
        "stalled": counts.stalled,
        "longest_step_ms": round(simulation.longest_step.as_secs_f64() * 1e3),
        "classes": Class::ALL.map(Class::as_str),
    })
}
