//! What the machine allows, measured in the same run as everything else: bytes and operations per second.

use super::spread::{Series, Spread};
use anyhow::{Context, Result};
use engine_kernels::{Multiplication, ReadCeiling, ReadPattern, Team, multiply};
use serde::Serialize;
use std::fmt;
use std::time::Instant;

/// Tries of each variant before the best is chosen.
const TRIES: usize = 5;
/// Readings of the memory before those that count: what the peers left in the shared cache is out then, as it is when an
/// engine has decoded a few steps.
const READINGS_FIRST: usize = 4;
/// Readings of the memory that one measurement takes the mean of: about as many as an engine decodes steps.
const READINGS: usize = 32;
/// Pieces of work per thread, about a millisecond each, that one measurement of a peak takes.
const PIECES: usize = 8;

/// The ceilings' means to be measured: the best variant of each is chosen once, then measured in turn with the engine.
pub(super) struct Ceilings {
    team: Team,
    memory: ReadCeiling,
    pattern: ReadPattern,
    bytes_chains: usize,
    floats_chains: usize,
}

/// One measurement of all of them, per second.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    pub(super) bytes: f64,
    pub(super) int8_operations: f64,
    pub(super) f32_operations: f64,
}

/// What was measured over a run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    threads: usize,
    /// Reading memory of the weights' size, of the weights' kind.
    read_gigabytes_per_second: Spread,
    read_bytes: usize,
    read_streams: usize,
    read_prefetch_bytes: usize,
    /// Dot products of bytes, with the kernels' own instruction.
    int8_giga_operations_per_second: Spread,
    f32_giga_operations_per_second: Spread,
}

impl Ceilings {
    /// For reading `bytes` at a time, with the machine's best instructions.
    pub(super) fn new(threads: usize, bytes: u64) -> Result<Self> {
        let mut team = Team::new(threads);
        let memory = ReadCeiling::new(usize::try_from(bytes)?).context("no memory to measure its bandwidth with")?;
        let pattern = best(ReadPattern::ALL, |pattern| read(&mut team, &memory, pattern))?;
        let mut chains = |what| best(Multiplication::CHAINS, |chains| operations_per_second(&mut team, what, chains));
        let (bytes_chains, floats_chains) = (chains(Multiplication::BytesDot)?, chains(Multiplication::FloatFma)?);
        Ok(Self { team, memory, pattern, bytes_chains, floats_chains })
    }

    pub(super) fn sample(&mut self) -> Sample {
        let Self { team, memory, pattern, bytes_chains, floats_chains } = self;
        Sample {
            bytes: read(team, memory, *pattern),
            int8_operations: operations_per_second(team, Multiplication::BytesDot, *bytes_chains),
            f32_operations: operations_per_second(team, Multiplication::FloatFma, *floats_chains),
        }
    }

    pub(super) fn report(&self, samples: &[Sample]) -> Result<Report> {
        let giga = |of: fn(&Sample) -> f64| {
            let values: Series = samples.iter().map(|sample| of(sample) / 1e9).collect();
            Spread::of(&values)
        };
        Ok(Report {
            threads: self.team.threads(),
            read_gigabytes_per_second: giga(|sample| sample.bytes)?,
            read_bytes: self.memory.bytes(),
            read_streams: self.pattern.streams,
            read_prefetch_bytes: self.pattern.prefetch_bytes,
            int8_giga_operations_per_second: giga(|sample| sample.int8_operations)?,
            f32_giga_operations_per_second: giga(|sample| sample.f32_operations)?,
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} GB/s, {:.0} int8 and {:.0} f32 GOP/s",
            self.read_gigabytes_per_second.median,
            self.int8_giga_operations_per_second.median,
            self.f32_giga_operations_per_second.median
        )
    }
}

/// The variant with the best median of a few tries.
fn best<T: Copy, const N: usize>(variants: [T; N], mut speed: impl FnMut(T) -> f64) -> Result<T> {
    let mut found: Option<(f64, T)> = None;
    for variant in variants {
        let tries: Series = (0..TRIES).map(|_| speed(variant)).collect();
        let median = Spread::of(&tries)?.median;
        if found.is_none_or(|(best, _)| median > best) {
            found = Some((median, variant));
        }
    }
    Ok(found.context("no variants")?.1)
}

/// Bytes per second.
fn read(team: &mut Team, memory: &ReadCeiling, pattern: ReadPattern) -> f64 {
    for _ in 0..READINGS_FIRST {
        memory.read(team, pattern);
    }
    let start = Instant::now();
    let bytes: usize = (0..READINGS).map(|_| memory.read(team, pattern)).sum();
    bytes as f64 / start.elapsed().as_secs_f64()
}

fn operations_per_second(team: &mut Team, what: Multiplication, chains: usize) -> f64 {
    let start = Instant::now();
    let operations = multiply(team, what, chains, PIECES);
    operations as f64 / start.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variant_with_the_best_median_is_chosen_not_one_lucky_try() {
        let mut calls = 0;
        let chosen = best([1, 2, 3], |variant| {
            calls += 1;
            // 3 is lucky once, 2 is good each time.
            match variant {
                2 => 10.0,
                3 if calls == 3 * TRIES => 100.0,
                _ => 1.0,
            }
        });
        assert_eq!(chosen.unwrap(), 2);
        assert!(best([0; 0], |_: usize| 1.0).is_err());
    }
}
