//! What is put before the scheduler, and what is looked at.

use crate::random::Random;
use crate::simulation::{Book, Demand, Machine, Simulation, Tenant, Unwatched};
use engine_scheduler::{Class, TenantTerms};
use std::time::Duration;

/// A window of Jain's index.
pub(crate) const WINDOW: Duration = Duration::from_secs(10);
/// How often books are read.
const SAMPLE: Duration = Duration::from_millis(500);
/// Before it nothing is looked at: the scheduler learns what the machine costs.
pub(crate) const WARM_UP: Duration = Duration::from_secs(10);

/// Work of each tenant, in seconds, at each time.
#[derive(Debug, Default)]
pub(crate) struct Samples(pub(crate) Vec<(Duration, Vec<f64>)>);

impl Samples {
    /// Runs and reads the books.
    pub(crate) fn of(simulation: &mut Simulation, until: Duration) -> Self {
        let mut samples = Self::default();
        simulation.run_until(WARM_UP, &mut Unwatched);
        while simulation.now < until {
            let work = simulation.books.iter().map(|book| book.work_ns as f64 / 1e9).collect();
            samples.0.push((simulation.now, work));
            simulation.run_until(simulation.now + SAMPLE, &mut Unwatched);
        }
        samples
    }

    /// Jain's index of what the tenants got for their weights, over each window: (end of the window, index).
    pub(crate) fn jain(&self, weights: &[f64]) -> Vec<(Duration, f64)> {
        let windows = self.0.iter().filter_map(|(begin, before)| {
            let (end, after) = self.0.iter().find(|(at, _)| *at >= *begin + WINDOW)?;
            let shares: Vec<f64> = after
                .iter()
                .zip(before)
                .zip(weights)
                .map(|((after, before), weight)| (after - before) / weight)
                .collect();
            let (sum, squares): (f64, f64) = (shares.iter().sum(), shares.iter().map(|share| share * share).sum());
            Some((*end, sum * sum / (shares.len() as f64 * squares)))
        });
        windows.collect()
    }

    /// The largest difference, at each time, between what any two tenants got for their weights since the first sample.
    pub(crate) fn differences(&self, weights: &[f64]) -> Vec<(Duration, f64)> {
        let Some((_, first)) = self.0.first() else { return Vec::new() };
        let difference = |work: &Vec<f64>| {
            let shares = work.iter().zip(first).zip(weights).map(|((work, first), weight)| (work - first) / weight);
            let (low, high) = shares.fold((f64::MAX, f64::MIN), |(low, high), share| (low.min(share), high.max(share)));
            high - low
        };
        self.0.iter().map(|(at, work)| (*at, difference(work))).collect()
    }

    /// The largest difference between any two over any span between samples.
    pub(crate) fn difference_max(&self, weights: &[f64]) -> f64 {
        let mut most: f64 = 0.0;
        for one in 0..weights.len() {
            for other in 0..one {
                let ahead = self.0.iter().map(|(_, work)| work[one] / weights[one] - work[other] / weights[other]);
                let (low, high) = ahead.fold((f64::MAX, f64::MIN), |(low, high), of| (low.min(of), high.max(of)));
                most = most.max(high - low);
            }
        }
        most
    }
}

/// Sixteen tenants that always wait, some with long prompts, some with short ones.
pub(crate) fn backlogged(weights: &[u32], seed: u64) -> Simulation {
    let tenant = |(number, weight): (usize, &u32)| {
        let tenant =
            if number % 4 == 3 { Tenant::long(Demand::Backlog(60)) } else { Tenant::chat(Demand::Backlog(60)) };
        Tenant { terms: TenantTerms { weight: *weight, ..tenant.terms }, ..tenant }
    };
    let tenants = weights.iter().enumerate().map(tenant).collect();
    // With pages to spare: who holds a slot goes on, and cost alone decides.
    Simulation::new(Machine { pages: 200_000, ..Machine::default() }, tenants, 0, seed, &mut Unwatched)
}

/// The same with prompts alone: all that there is to divide is steps' prefill.
pub(crate) fn prompts_alone(weights: &[u32], seed: u64) -> Simulation {
    let tenant = |(number, weight): (usize, &u32)| {
        let terms = TenantTerms { weight: *weight, ..TenantTerms::default() };
        let prompt = if number % 2 == 0 { (60_000, 60_000) } else { (20_000, 40_000) };
        Tenant { terms, prompt, answer: (1, 1), ..Tenant::long(Demand::Backlog(3)) }
    };
    let tenants: Vec<Tenant> = weights.iter().enumerate().map(tenant).collect();
    let machine = Machine { pages: 1_000_000, slots: 3 * tenants.len(), ..Machine::default() };
    Simulation::new(machine, tenants, 0, seed, &mut Unwatched)
}

/// What two tenants that wait may differ by, in seconds: see `fair.rs`. In the lane of slots: the slots of one of them, each
/// with the dearest request, twice.
pub(crate) fn slots_bound(simulation: &Simulation, slots_of_one: usize) -> f64 {
    2.0 * slots_of_one as f64 * simulation.dearest_ns as f64 / 1e9
}

/// In the lane of prompts: two steps and two chunks; a chunk is no longer than a step.
pub(crate) fn prompts_bound(simulation: &Simulation) -> f64 {
    4.0 * simulation.longest_step.as_secs_f64()
}

/// All three classes, each with more than there is room for.
pub(crate) fn classes(seed: u64) -> Simulation {
    let class = |number: usize| Class::ALL[number % 3];
    let tenant = |number: usize| {
        let tenant = if number >= 9 { Tenant::long(Demand::Backlog(20)) } else { Tenant::chat(Demand::Backlog(40)) };
        Tenant { terms: TenantTerms { class: class(number), ..tenant.terms }, ..tenant }
    };
    Simulation::new(Machine::default(), (0..12).map(tenant).collect(), 0, seed, &mut Unwatched)
}

/// What waits were in a class, and what its share gives.
pub(crate) struct Waits {
    pub(crate) class: Class,
    /// Of all work, the class's part.
    pub(crate) part: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    /// The longest one, of those who wait still too.
    pub(crate) longest: f64,
    /// How long the queue of a tenant takes at the rate that the class's floor, or the rest, gives it.
    pub(crate) promised: f64,
}

impl Waits {
    /// Of each class, the tenant with the longest waits counting.
    pub(crate) fn of(simulation: &Simulation, live: impl Fn(usize) -> usize) -> Vec<Self> {
        let all: u64 = simulation.books.iter().map(|book| book.work_ns).sum();
        let waits = |class: Class| {
            let members: Vec<usize> =
                (0..simulation.books.len()).filter(|tenant| Class::ALL[tenant % 3] == class).collect();
            let work: u64 = members.iter().map(|tenant| simulation.books[*tenant].work_ns).sum();
            // Two classes have floors below the first one's: each gets a twelfth, and the first one ten of them.
            let part = if class == Class::Interactive { 10.0 / 12.0 } else { 1.0 / 12.0 };
            let promised = members.iter().map(|tenant| {
                let Book { work_ns, ended, .. } = &simulation.books[*tenant];
                let each = *work_ns as f64 / 1e9 / (*ended).max(1) as f64;
                (live(*tenant) + 1) as f64 * each * members.len() as f64 / part
            });
            let promised = promised.fold(0.0, f64::max);
            let all_waits: Vec<f64> =
                members.iter().flat_map(|tenant| simulation.books[*tenant].waits.iter().copied()).collect();
            let longest = all_waits.iter().copied().fold(0.0, f64::max);
            Self {
                class,
                part: work as f64 / all as f64,
                p50: percentile(&all_waits, 0.5),
                p99: percentile(&all_waits, 0.99),
                longest: longest.max(simulation.longest_wait_so_far(|tenant| members.contains(&tenant))),
                promised,
            }
        };
        Class::ALL.into_iter().map(waits).collect()
    }
}

/// One quiet tenant beside eight others that ask for their shares and no more; with `flood`, the first of them asks for a
/// hundred times as much.
pub(crate) fn quiet_neighbour(flood: bool, seed: u64) -> Simulation {
    let rate = |per_second| Demand::Rate { per_second, on: 1.0, off: 0.0 };
    let mut tenants = vec![Tenant::chat(rate(1.0))];
    for number in 0..8 {
        let per_second = if flood && number == 0 { 100.0 * NEIGHBOUR_RATE } else { NEIGHBOUR_RATE };
        let terms = TenantTerms { queue_max: Some(2000), ..TenantTerms::default() };
        tenants.push(Tenant { terms, ..Tenant::chat(rate(per_second)) });
    }
    Simulation::new(Machine { slots: 64, ..Machine::default() }, tenants, 0, seed, &mut Unwatched)
}

/// Equal tenants that ask for 64 answers at once; the time until all are written, in seconds.
pub(crate) fn uniform(tenants: usize, seed: u64) -> f64 {
    let tenant = Tenant { prompt: (200, 200), answer: (60, 60), ..Tenant::chat(Demand::Once(64 / tenants)) };
    let mut simulation = Simulation::new(Machine::small(), vec![tenant; tenants], 0, seed, &mut Unwatched);
    while !simulation.is_idle() {
        simulation.step(&mut Unwatched);
    }
    simulation.now.as_secs_f64()
}

/// A quiet tenant beside one that always waits, on a small machine that is away for a while now and then.
pub(crate) fn quiet_beside_pauses(pauses_per_million: usize, seed: u64) -> Simulation {
    let quiet = Demand::Rate { per_second: 2.0, on: 1.0, off: 0.0 };
    let quiet = Tenant { prompt: (40, 40), answer: (30, 30), ..Tenant::chat(quiet) };
    let machine = Machine { pauses_per_million, pause: Duration::from_secs(1), ..Machine::small() };
    Simulation::new(machine, vec![quiet, Tenant::chat(Demand::Backlog(100))], 0, seed, &mut Unwatched)
}

/// A quiet tenant whose prompts begin as earlier ones did, beside three with longer ones that ask for their shares, on a small machine;
/// with `flood`, the first of them asks for a hundred times as much.
pub(crate) fn quiet_on_a_small_machine(flood: bool, seed: u64) -> Simulation {
    let rate = |per_second| Demand::Rate { per_second, on: 1.0, off: 0.0 };
    let mut tenants = vec![Tenant { prompt: (24, 24), answer: (30, 30), ..Tenant::chat(rate(1.0)) }];
    for number in 0..3 {
        let per_second = if flood && number == 0 { 100.0 * SMALL_RATE } else { SMALL_RATE };
        let terms = TenantTerms { queue_max: Some(192), ..TenantTerms::default() };
        let (prompt, answer) = ((200, 200), (60, 60));
        tenants.push(Tenant { terms, prompt, answer, ..Tenant::chat(rate(per_second)) });
    }
    Simulation::new(Machine { slots: 64, ..Machine::small() }, tenants, 0, seed, &mut Unwatched)
}

/// As [`NEIGHBOUR_RATE`], on a small machine.
const SMALL_RATE: f64 = 1.7;

/// TTFT of the first tenant's requests that neither came nor got their first token while the machine was away, in seconds.
pub(crate) fn ttft_beside_pauses(simulation: &Simulation) -> Vec<f64> {
    let (book, pauses) = (&simulation.books[0], &simulation.pauses);
    let waited = |arrived: f64, ttft: f64| pauses.iter().any(|(from, to)| arrived <= *to && arrived + ttft >= *from);
    let asked = book.arrived.iter().zip(&book.ttft).filter(|(arrived, ttft)| !waited(**arrived, **ttft));
    asked.map(|(_, ttft)| *ttft).collect()
}

/// Requests a second that are a neighbour's share.
const NEIGHBOUR_RATE: f64 = 9.0;

/// Everybody at once: Zipf's law over all, long prompts, floods, clients that leave, tenants that sleep and wake, three classes,
/// four weights.
pub(crate) fn everybody(tenants: usize, live: usize, seed: u64) -> Simulation {
    let mut random = Random(seed);
    let others = tenants / 20;
    let tenant = |number: usize| {
        let demand = if number < tenants - others {
            Demand::Zipf
        } else if number + 4 >= tenants {
            Demand::Rate { per_second: 200.0, on: 1.0, off: 0.0 }
        } else {
            Demand::Rate { per_second: 2.0, on: 3.0, off: 17.0 }
        };
        let tenant = if random.part() < 0.1 { Tenant::long(demand) } else { Tenant::chat(demand) };
        let weight = [1, 1, 2, 4][random.between((0, 3))];
        let class = Class::ALL[random.between((0, 2))];
        let terms = TenantTerms { class, weight, queue_max: Some(2000), ..tenant.terms };
        Tenant { terms, cancels_percent: if random.part() < 0.2 { 30 } else { 1 }, ..tenant }
    };
    // Too few for everybody's caches.
    let pages = 8_000 + 3 * tenants;
    let tenants = (0..tenants).map(tenant).collect();
    Simulation::new(Machine { pages, ..Machine::default() }, tenants, live, seed, &mut Unwatched)
}

/// Of these values, in any order.
pub(crate) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(((values.len() as f64 * part) as usize).min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
}
