//! What choosing a token from a whole vocabulary needs: the likeliest, and everybody's weight.

use crate::KernelFamily;
use crate::simd::{Kernel, LANES, Simd, dispatch, exp};

/// Least power of e that [`weights`] tells from nothing.
const EXPONENT_MIN: f32 = -87.0;

/// The largest of the values and the first place that has it. `None` when there are none, or one is not finite.
#[must_use]
pub fn largest(family: KernelFamily, values: &[f32]) -> Option<(usize, f32)> {
    let largest = dispatch(family, Largest(values))?;
    Some((values.iter().position(|value| *value == largest)?, largest))
}

/// `e^((value - largest) / temperature)` of each value, at most 1; 0 below `e^-87`. `largest` is what [`largest`] gave,
/// `temperature` is positive. `out` is overwritten.
pub fn weights(family: KernelFamily, values: &[f32], largest: f32, temperature: f32, out: &mut Vec<f32>) {
    out.clear();
    out.resize(values.len(), 0.0);
    dispatch(family, Weights { values, largest, temperature, out });
}

struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = Option<f32>;
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> Option<f32> {
        let (chunks, rest) = self.0.as_chunks::<LANES>();
        let mut largest = simd.splat(f32::NEG_INFINITY);
        // Stays 0 for finite values, and becomes NaN with the first that is not.
        let mut zero = simd.splat(0.0);
        for chunk in chunks {
            let values = simd.load(chunk);
            largest = simd.max(values, largest);
            zero = simd.fma(values, simd.splat(0.0), zero);
        }
        let all = rest.iter().fold(simd.largest(largest), |all, value| if *value > all { *value } else { all });
        let is_finite = simd.sum(zero) == 0.0 && rest.iter().all(|value| value.is_finite());
        (is_finite && all.is_finite()).then_some(all)
    }
}

struct Weights<'a> {
    values: &'a [f32],
    largest: f32,
    temperature: f32,
    out: &'a mut [f32],
}

impl Kernel for Weights<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { values, largest, temperature, out } = self;
        let least = exp(simd, simd.splat(EXPONENT_MIN));
        let (chunks, rest) = values.as_chunks::<LANES>();
        let (to_chunks, to_rest) = out.as_chunks_mut::<LANES>();
        let mut last = [largest; LANES];
        last[..rest.len()].copy_from_slice(rest);
        let mut to_last = [0.0; LANES];
        let to = to_chunks.iter_mut().chain(std::iter::once(&mut to_last));
        for (to, chunk) in std::iter::zip(to, chunks.iter().chain(std::iter::once(&last))) {
            let exponent = simd.div(simd.sub(simd.load(chunk), simd.splat(largest)), simd.splat(temperature));
            // What `exp` clamps becomes 0; of weights that matter this takes less than half a unit.
            simd.store(simd.sub(exp(simd, exponent), least), to);
        }
        to_rest.copy_from_slice(&to_last[..to_rest.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7_919 + 13) % 1_009) as f32 / 40.0 - 12.0).collect()
    }

    fn families() -> impl Iterator<Item = KernelFamily> {
        KernelFamily::ALL.into_iter().filter(|family| family.is_available())
    }

    #[test]
    fn the_first_of_the_largest_is_found_wherever_it_is() {
        for family in families() {
            for count in [1, 15, 16, 17, 64, 1_000] {
                for place in [0, count / 2, count - 1] {
                    let mut values = values(count);
                    values[place] = 99.0;
                    values[count - 1] = 99.0;
                    assert_eq!(largest(family, &values), Some((place, 99.0)), "{family}, {count}");
                }
            }
            assert_eq!(largest(family, &[]), None);
            assert_eq!(largest(family, &[-3.0, -2.0]), Some((1, -2.0)));
        }
    }

    #[test]
    fn what_is_not_finite_is_noticed_wherever_it_is() {
        for family in families() {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for place in [0, 17, 47, 48, 50] {
                    let mut values = values(51);
                    values[place] = bad;
                    assert_eq!(largest(family, &values), None, "{family}: {bad} at {place}");
                }
            }
        }
    }

    #[test]
    fn weights_are_near_the_definition_and_the_same_bits_in_every_family() {
        let values = values(1_000);
        let (_, most) = largest(KernelFamily::Scalar, &values).unwrap();
        for temperature in [0.01, 0.7, 1.0, 5.0] {
            let mut reference = Vec::new();
            weights(KernelFamily::Scalar, &values, most, temperature, &mut reference);
            for (weight, value) in std::iter::zip(&reference, &values) {
                let exponent = (f64::from(*value) - f64::from(most)) / f64::from(temperature);
                let wanted = exponent.exp();
                assert!((f64::from(*weight) - wanted).abs() <= wanted * 3e-6 * (1.0 + exponent.abs() / 10.0) + 1e-37);
                assert!(exponent > -87.0 || *weight == 0.0, "{weight} for e^{exponent}");
            }
            assert!(reference.contains(&1.0) && reference.iter().all(|weight| (0.0..=1.0).contains(weight)));
            for family in families() {
                let mut out = vec![7.0; 3];
                weights(family, &values, most, temperature, &mut out);
                assert!(out.iter().map(|x| x.to_bits()).eq(reference.iter().map(|x| x.to_bits())), "{family}");
            }
        }
    }
}
