//! Random runs, and the shortest script of one that went wrong.

use crate::act::Act;
use crate::survey;
use crate::world::{Findings, Groups, Setup, World};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// Steps that the acts of a run may need to come to their end.
const STEPS_MAX: usize = 20_000;
/// Acts of a run, twice as many where there are two groups.
const ACTS: usize = 100;

/// The acts of a seed, for an engine of two groups.
#[must_use]
pub fn split_acts(seed: u64, count: usize) -> Vec<Act> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| split_act(&mut random)).collect()
}

fn split_act(random: &mut ChaCha8Rng) -> Act {
    let mut below = |bound: u32| random.next_u32() % bound;
    match below(100) {
        0..7 => Act::Arrive { prompt: 1 + below(120), answer: 1 + below(40) },
        7..21 => Act::Look,
        21..35 => Act::Prefill,
        35..48 => Act::Decode,
        48..49 => Act::Evict,
        49..51 => Act::Preempt { request: below(8) },
        51..64 => Act::ToPrefill,
        64..76 => Act::ToDecode,
        76..82 => Act::Overtake,
        82 => Act::Restart { arriving: below(6) },
        83..86 => Act::Pass { milliseconds: below(400) },
        86..97 => Act::Read { client: below(64), steps: 1 + below(8) },
        _ => Act::Leave { client: below(64) },
    }
}

/// The acts of a seed.
#[must_use]
pub fn acts(seed: u64, count: usize) -> Vec<Act> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| act(&mut random)).collect()
}

fn act(random: &mut ChaCha8Rng) -> Act {
    let mut below = |bound: u32| random.next_u32() % bound;
    match below(100) {
        0..12 => Act::Arrive { prompt: 1 + below(120), answer: 1 + below(40) },
        12..66 => Act::Step,
        66..68 => Act::Evict,
        68..70 => Act::Preempt { request: below(8) },
        70..95 => Act::Read { client: below(64), steps: 1 + below(8) },
        _ => Act::Leave { client: below(64) },
    }
}

/// One run.
#[must_use]
pub fn run(setup: &Setup, acts: &[Act]) -> Findings {
    let mut world = World::new(setup);
    acts.iter().for_each(|act| world.act(*act));
    world.end(STEPS_MAX)
}

/// As few of the acts as still do not hold: whole stretches are left out, then single ones.
#[must_use]
pub fn shrink(setup: &Setup, acts: &[Act], holds: impl Fn(&Findings) -> bool) -> Vec<Act> {
    let mut acts = acts.to_vec();
    let mut stretch = acts.len() / 2;
    while stretch > 0 {
        let mut start = 0;
        while start < acts.len() {
            let mut fewer = acts.clone();
            fewer.drain(start..(start + stretch).min(acts.len()));
            if holds(&run(setup, &fewer)) {
                start += stretch;
            } else {
                acts = fewer;
            }
        }
        stretch /= 2;
    }
    acts
}

/// Schedules of [`check`].
pub const SCHEDULES: u64 = 4;

/// The runs of a seed: without a fault, in all three kinds of engine, and with one of the faults.
///
/// # Errors
/// The shortest script of one that is not as it must be, with the engine in front of it.
pub fn check(seed: u64) -> Result<(), String> {
    for groups in [Groups::One, Groups::InPlace, Groups::Copied] {
        holds(&Setup { groups, ..Setup::small() }, seed, Findings::is_clean)?;
    }
    let faulty = survey::setup(seed).ok_or("no fault to plant")?;
    holds(&faulty, seed, Findings::is_safe)
}

fn holds(setup: &Setup, seed: u64, holds: impl Fn(&Findings) -> bool) -> Result<(), String> {
    let acts = acts_for(setup.groups, seed);
    if holds(&run(setup, &acts)) {
        return Ok(());
    }
    let short = shrink(setup, &acts, holds);
    let found = run(setup, &short);
    Err(format!("{setup:?}\n{found:?}\n\n{}", script(&short)))
}

/// The acts of a seed for this kind of engine.
pub(crate) fn acts_for(groups: Groups, seed: u64) -> Vec<Act> {
    match groups {
        Groups::One => acts(seed, ACTS),
        Groups::InPlace | Groups::Copied => split_acts(seed, 2 * ACTS),
    }
}

/// A script that [`parse`] reads.
#[must_use]
pub fn script(acts: &[Act]) -> String {
    acts.iter().map(|act| format!("{act}\n")).collect()
}

/// The acts of a script.
///
/// # Errors
/// The first line that is none.
pub fn parse(script: &str) -> Result<Vec<Act>, crate::act::NoAct> {
    script.lines().filter(|line| !line.trim().is_empty()).map(str::parse).collect()
}
