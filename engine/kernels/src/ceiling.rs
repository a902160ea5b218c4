//! What the machine itself allows: how fast memory can be read and how fast a family's instructions can multiply.
//!
//! Benchmarks time these and give a kernel's speed as a share of them; nothing else uses them. They do the least work
//! that keeps the memory or the multipliers busy, with the same team, the same instructions and the same kind of memory
//! as the kernels. The caller has the clock and takes the best of the variants.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::memory::AnonymousMemory;
use crate::simd::{Kernel, LANES, Simd, dispatch};
use crate::team::Team;

/// Bytes of a vector, and of a cache line.
const LINE_BYTES: usize = 4 * LANES;
/// Pieces of a thread's share: the size of what a product of a small model gives a thread at a time.
const PIECES_PER_THREAD: usize = 16;
/// Operands that the peaks go through: they stay in the first-level cache, and no compiler sees them repeat.
const OPERANDS: usize = 960;
/// Passes over the operands that one piece of a peak takes: about a millisecond of a fast core.
const PASSES: usize = 4_096;

/// How memory is walked through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPattern {
    /// Places of a piece that are read in turn: 1, 2, 4 or 8.
    pub streams: usize,
    /// How far ahead a cache line is asked for; 0 for not at all.
    pub prefetch_bytes: usize,
}

impl ReadPattern {
    /// Those worth trying.
    pub const ALL: [Self; 12] = [
        Self { streams: 1, prefetch_bytes: 0 },
        Self { streams: 1, prefetch_bytes: 1_024 },
        Self { streams: 1, prefetch_bytes: 4_096 },
        Self { streams: 2, prefetch_bytes: 0 },
        Self { streams: 2, prefetch_bytes: 2_048 },
        Self { streams: 2, prefetch_bytes: 4_096 },
        Self { streams: 4, prefetch_bytes: 0 },
        Self { streams: 4, prefetch_bytes: 1_024 },
        Self { streams: 4, prefetch_bytes: 2_048 },
        Self { streams: 8, prefetch_bytes: 0 },
        Self { streams: 8, prefetch_bytes: 1_024 },
        Self { streams: 8, prefetch_bytes: 2_048 },
    ];
}

/// Memory to be read, of the kind that weights lie in: anonymous, on huge pages where the system has them.
#[derive(Debug)]
pub struct ReadCeiling {
    memory: AnonymousMemory,
}

impl ReadCeiling {
    /// Memory of about `bytes`, every page of it written; `None` when the system refuses it.
    #[must_use]
    pub fn new(bytes: usize) -> Option<Self> {
        let mut memory = AnonymousMemory::new(bytes.next_multiple_of(LINE_BYTES))?;
        // As floats neither zero nor so small that adding them is slow.
        memory.bytes_mut().fill(1);
        Some(Self { memory })
    }

    /// How many bytes [`ReadCeiling::read`] reads.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.memory.bytes().len()
    }

    /// Reads all of it once with every thread of the team; gives how many bytes were read.
    pub fn read(&self, team: &mut Team, pattern: ReadPattern) -> usize {
        let (lines, _) = self.memory.bytes().as_chunks::<LINE_BYTES>();
        let pieces = PIECES_PER_THREAD * team.threads();
        let (family, read) = (team.family(), AtomicU64::new(0));
        team.run(pieces, &|_, piece| {
            let lines = &lines[lines.len() * piece / pieces..lines.len() * (piece + 1) / pieces];
            let prefetch_lines = pattern.prefetch_bytes / LINE_BYTES;
            black_box(match pattern.streams {
                0 | 1 => dispatch(family, Read::<1> { lines, prefetch_lines }),
                2 | 3 => dispatch(family, Read::<2> { lines, prefetch_lines }),
                4..=7 => dispatch(family, Read::<4> { lines, prefetch_lines }),
                _ => dispatch(family, Read::<8> { lines, prefetch_lines }),
            });
            read.fetch_add(lines.len() as u64, Ordering::Relaxed);
        });
        read.into_inner() as usize * LINE_BYTES
    }
}

struct Read<'a, const STREAMS: usize> {
    lines: &'a [[u8; LINE_BYTES]],
    prefetch_lines: usize,
}

impl<const STREAMS: usize> Kernel for Read<'_, STREAMS> {
    type Output = f32;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> f32 {
        let each = self.lines.len() / STREAMS;
        let streams: [&[[u8; LINE_BYTES]]; STREAMS] =
            std::array::from_fn(|stream| &self.lines[stream * each..][..each]);
        // Two sums for each stream: one alone would wait for its own addition.
        let mut sums = [[simd.splat(0.0); 2]; STREAMS];
        for line in 0..each {
            for (stream, sums) in std::iter::zip(streams, &mut sums) {
                if self.prefetch_lines > 0 {
                    simd.prefetch(stream.as_ptr().wrapping_add(line + self.prefetch_lines).cast());
                }
                sums[line % 2] = simd.add(sums[line % 2], simd.load_f32_bytes(&stream[line]));
            }
        }
        let mut total = simd.splat(0.0);
        for line in &self.lines[STREAMS * each..] {
            total = simd.add(total, simd.load_f32_bytes(line));
        }
        for sum in sums.as_flattened() {
            total = simd.add(total, *sum);
        }
        simd.sum(total)
    }
}

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multiplication {
    /// Four products of bytes added to an i32: `dot_unsigned` of the vector trait.
    BytesDot,
    /// A product of f32 added to an f32: `fma` of the vector trait.
    FloatFma,
}

impl Multiplication {
    /// Chains of additions that [`multiply`] can have in flight at once; what is best depends on the machine.
    pub const CHAINS: [usize; 4] = [4, 6, 12, 15];

    /// Multiplications and additions of one step on all lanes.
    fn operations(self) -> u64 {
        match self {
            Self::BytesDot => 2 * 4 * LANES as u64,
            Self::FloatFma => 2 * LANES as u64,
        }
    }
}

/// Multiplies out of registers and the first-level cache with every thread of the team, in `chains` that do not wait for
/// each other, `pieces` per thread of a millisecond or so; gives how many operations were done (a multiplication and an
/// addition are two).
pub fn multiply(team: &mut Team, what: Multiplication, chains: usize, pieces: usize) -> u64 {
    let (family, done) = (team.family(), AtomicU64::new(0));
    let operands: [u8; OPERANDS] = black_box(std::array::from_fn(|index| (index % 5) as u8));
    team.run(pieces * team.threads(), &|_, _| {
        let operands = &operands;
        let steps = match chains {
            0..=4 => dispatch(family, Multiply::<4> { what, operands }),
            5..=6 => dispatch(family, Multiply::<6> { what, operands }),
            7..=12 => dispatch(family, Multiply::<12> { what, operands }),
            _ => dispatch(family, Multiply::<15> { what, operands }),
        };
        done.fetch_add(steps * what.operations(), Ordering::Relaxed);
    });
    done.into_inner()
}

struct Multiply<'a, const CHAINS: usize> {
    what: Multiplication,
    operands: &'a [u8; OPERANDS],
}

impl<const CHAINS: usize> Kernel for Multiply<'_, CHAINS> {
    /// Steps done.
    type Output = u64;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> u64 {
        let (operands, _) = self.operands.as_chunks::<CHAINS>();
        let bytes = simd.load_bytes(&black_box([3; LINE_BYTES]));
        match self.what {
            Multiplication::BytesDot => {
                let mut sums = [simd.splat_i32(0); CHAINS];
                let operands: Vec<[i32; CHAINS]> =
                    operands.iter().map(|chunk| chunk.map(|byte| i32::from(byte) * 0x0101_0101)).collect();
                for _ in 0..PASSES {
                    for chunk in &operands {
                        for (sum, quad) in std::iter::zip(&mut sums, chunk) {
                            *sum = simd.dot_unsigned(*sum, bytes, *quad);
                        }
                    }
                }
                black_box(sums.iter().fold(0i32, |total, sum| total.wrapping_add(simd.sum_i32(*sum))));
            }
            Multiplication::FloatFma => {
                let mut sums = [simd.splat(0.0); CHAINS];
                let factor = simd.splat(black_box(0.5));
                let operands: Vec<[f32; CHAINS]> =
                    operands.iter().map(|chunk| chunk.map(|byte| f32::from(byte) + 1.0)).collect();
                for _ in 0..PASSES {
                    for chunk in &operands {
                        for (sum, operand) in std::iter::zip(&mut sums, chunk) {
                            *sum = simd.fma(factor, simd.splat(*operand), *sum);
                        }
                    }
                }
                black_box(sums.iter().fold(0.0, |total, sum| total + simd.sum(*sum)));
            }
        }
        (PASSES * operands.len() * CHAINS) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::KernelFamily;

    #[test]
    fn every_pattern_reads_every_byte_once_and_really() {
        for threads in [1, 3] {
            for bytes in [1, 4_096, 100_000] {
                let ceiling = ReadCeiling::new(bytes).unwrap();
                for pattern in ReadPattern::ALL {
                    assert_eq!(ceiling.read(&mut Team::new(threads), pattern), bytes.next_multiple_of(64));
                }
            }
        }
        let lines = vec![[0x3f; LINE_BYTES]; 21];
        let one = f32::from_bits(0x3f3f_3f3f);
        for family in KernelFamily::ALL.into_iter().filter(|family| family.is_available()) {
            let sums = [
                dispatch(family, Read::<1> { lines: &lines, prefetch_lines: 4 }),
                dispatch(family, Read::<2> { lines: &lines, prefetch_lines: 0 }),
                dispatch(family, Read::<4> { lines: &lines, prefetch_lines: 0 }),
                dispatch(family, Read::<8> { lines: &lines, prefetch_lines: 16 }),
            ];
            for sum in sums {
                assert!((sum - 21.0 * 16.0 * one).abs() < 0.01, "{family}: {sum}");
            }
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert!(ReadCeiling::new(isize::MAX as usize).is_none());
    }

    #[test]
    fn operations_are_counted_for_every_thread_and_piece() {
        for what in [Multiplication::BytesDot, Multiplication::FloatFma] {
            for chains in Multiplication::CHAINS {
                let one = multiply(&mut Team::new(1), what, chains, 1);
                assert_eq!(one, (PASSES * (OPERANDS / chains * chains)) as u64 * what.operations());
                assert_eq!(multiply(&mut Team::new(2), what, chains, 3), 6 * one);
            }
        }
    }
}
