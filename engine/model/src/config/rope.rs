//! The frequencies of a rotary position embedding, and how models stretch them over a longer context.

use std::f64::consts::TAU;

use engine_kernels::Rope;
use engine_kernels::elementary::{ln, power};
use serde::Serialize;

use super::{ConfigError, LayerRope, ModelConfig, ROPE_BASE, ROPE_FACTOR};

/// One rotation: the base of its frequencies, and their scaling.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RopeConfig {
    /// Pair `i` turns by `base^(-2i / rope_dims)` radians a position.
    pub base: f32,
    /// What becomes of that.
    pub scaling: RopeScaling,
}

/// How frequencies are changed for a context longer than the one that they were trained with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All of them are divided. Source: position interpolation, arXiv:2306.15595.
    Linear {
        /// At least 1.
        factor: f32,
    },
    /// Slow ones are divided, fast ones are not, those between are blended by their wavelength. Source: Llama 3.1.
    /// GGUF files have the divisors as a tensor instead.
    Llama3 {
        /// At least 1.
        factor: f32,
        /// `original_context` divided by the longest blended wavelength.
        low_freq_factor: f32,
        /// `original_context` divided by the shortest blended wavelength; more than `low_freq_factor`.
        high_freq_factor: f32,
        /// Tokens of context before the scaling.
        original_context: usize,
    },
    /// As `Llama3`, blended by the pair's number, and with queries and keys scaled. Source: YaRN, arXiv:2309.00071.
    Yarn {
        /// At least 1.
        factor: f32,
        /// Tokens of context before the scaling.
        original_context: usize,
        /// Pairs that turn at least this often in the original context are not divided; 32 unless stated.
        beta_fast: f32,
        /// Pairs that turn at most this often are divided in full; 1 unless stated.
        beta_slow: f32,
        /// What rotated queries and rotated keys are multiplied by; see [`RopeScaling::yarn_attention_factor`].
        attention_factor: f32,
    },
}

impl RopeScaling {
    /// The attention factor of YaRN, unless a model states another: `1 + ln(factor) / 10`.
    #[must_use]
    pub fn yarn_attention_factor(factor: f32) -> f32 {
        if factor <= 1.0 { 1.0 } else { (1.0 + 0.1 * ln(factor.into())) as f32 }
    }
}

/// `share` of the frequency as it is, the rest divided by `factor`.
fn blend(frequency: f64, factor: f32, share: f64) -> f64 {
    frequency * share + frequency / f64::from(factor) * (1.0 - share)
}

impl ModelConfig {
    /// The rotation of [`LayerRope::Global`]; `divisors`, if any, divide its frequencies.
    pub(crate) fn global_rotation(&self, divisors: &[f32]) -> Rope {
        Rope::new(self.rope_pairs, self.rope.frequencies(self.rope_dims, divisors), self.rope.magnitude())
    }

    /// The rotation of [`LayerRope::Local`], which costs nothing where no block has it.
    pub(crate) fn local_rotation(&self) -> Rope {
        let is_used = self.blocks.iter().any(|block| block.rope == LayerRope::Local);
        let dims = if is_used { self.rope_dims } else { 0 };
        Rope::new(self.rope_pairs, self.local_rope.frequencies(dims, &[]), self.local_rope.magnitude())
    }
}

impl RopeConfig {
    /// Radians a position, for each of `dims / 2` pairs.
    fn frequencies(&self, dims: usize, divisors: &[f32]) -> Vec<f64> {
        let base = f64::from(self.base);
        let scaled = |pair: usize| {
            let frequency = power(base, -2.0 * pair as f64 / dims as f64);
            let frequency = frequency / divisors.get(pair).map_or(1.0, |divisor| f64::from(*divisor));
            match self.scaling {
                RopeScaling::None => frequency,
                RopeScaling::Linear { factor } => frequency / f64::from(factor),
                RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                    // How often the pair turns in the original context, as a place between the two borders.
                    let turns = original_context as f64 * frequency / TAU;
                    let (low, high) = (f64::from(low_freq_factor), f64::from(high_freq_factor));
                    blend(frequency, factor, ((turns - low) / (high - low)).clamp(0.0, 1.0))
                }
                RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, .. } => {
                    // The pair that turns `beta` times in the original context, where pairs are numbers on a line.
                    let pair_of = |beta: f32| {
                        dims as f64 * ln(original_context as f64 / (f64::from(beta) * TAU)) / (2.0 * ln(base))
                    };
                    let first = pair_of(beta_fast).floor().max(0.0);
                    let last = pair_of(beta_slow).ceil().min(dims as f64 - 1.0);
                    let last = if first == last { last + 0.001 } else { last };
                    blend(frequency, factor, 1.0 - ((pair as f64 - first) / (last - first)).clamp(0.0, 1.0))
                }
            }
        };
        (0..dims / 2).map(scaled).collect()
    }

    fn magnitude(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor.into(),
            RopeScaling::None | RopeScaling::Linear { .. } | RopeScaling::Llama3 { .. } => 1.0,
        }
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let contradiction = |text: String| Err(ConfigError::Contradiction(text));
        if !ROPE_BASE.contains(&f64::from(self.base)) {
            return contradiction(format!("a rope base of {}", self.base));
        }
        let (factor, original_context) = match self.scaling {
            RopeScaling::None => return Ok(()),
            RopeScaling::Linear { factor } => (factor, 1),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let is_ascending = low_freq_factor > 0.0 && high_freq_factor > low_freq_factor;
                if !is_ascending || !high_freq_factor.is_finite() {
                    return contradiction(format!("rope frequency factors {low_freq_factor} and {high_freq_factor}"));
                }
                (factor, original_context)
            }
            RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor } => {
                if !(beta_slow > 0.0 && beta_fast >= beta_slow && beta_fast.is_finite()) {
                    return contradiction(format!("rope turns {beta_slow} and {beta_fast}"));
                }
                if !(attention_factor > 0.0 && attention_factor.is_finite()) || self.base <= 1.0 {
                    return contradiction(format!("an attention factor {attention_factor}, a base of {}", self.base));
                }
                (factor, original_context)
            }
        };
        if !ROPE_FACTOR.contains(&f64::from(factor)) {
            return contradiction(format!("a rope factor of {factor}"));
        }
        if original_context == 0 {
            return contradiction("an original context without tokens".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { base: 10_000.0, scaling }
    }

    fn llama3(factor: f32, low_freq_factor: f32, high_freq_factor: f32, original_context: usize) -> RopeConfig {
        rope(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context })
    }

    fn yarn(factor: f32, original_context: usize, [beta_fast, beta_slow, attention_factor]: [f32; 3]) -> RopeConfig {
        rope(RopeScaling::Yarn { factor, original_context, beta_fast, beta_slow, attention_factor })
    }

    /// By how much each pair's frequency is divided.
    fn divisors(config: RopeConfig, dims: usize) -> Vec<f64> {
        let plain = rope(RopeScaling::None).frequencies(dims, &[]);
        std::iter::zip(plain, config.frequencies(dims, &[])).map(|(plain, scaled)| plain / scaled).collect()
    }

    #[test]
    fn scaling_leaves_fast_pairs_and_divides_slow_ones() {
        for (pair, frequency) in rope(RopeScaling::None).frequencies(128, &[]).into_iter().enumerate() {
            let wanted = 10_000f64.powf(-(pair as f64) / 64.0);
            assert!((frequency - wanted).abs() <= 1e-14 * wanted, "{pair}");
        }
        assert_eq!(divisors(rope(RopeScaling::Linear { factor: 4.0 }), 128), [4.0; 64]);
        let halved = rope(RopeScaling::None).frequencies(4, &[1.0, 2.0]);
        assert!((halved[0] - 1.0).abs() < 1e-15 && (halved[1] - 0.005).abs() < 1e-15, "divisors of the file");
        for config in [llama3(8.0, 1.0, 4.0, 8_192), yarn(8.0, 8_192, [32.0, 1.0, 1.2])] {
            let divisors = divisors(config, 128);
            assert!((divisors[0] - 1.0).abs() < 1e-12 && (divisors[63] - 8.0).abs() < 1e-12, "{divisors:?}");
            assert!(divisors.windows(2).all(|pair| pair[0] <= pair[1] + 1e-12), "{divisors:?}");
            assert!(divisors.iter().filter(|divisor| (1.001..7.999).contains(*divisor)).count() > 5, "{divisors:?}");
        }
        assert_eq!(yarn(8.0, 8_192, [32.0, 1.0, 1.25]).magnitude(), 1.25);
        assert_eq!(
            (RopeScaling::yarn_attention_factor(1.0), RopeScaling::yarn_attention_factor(4.0)),
            (1.0, 1.138_629_4)
        );
    }

    #[test]
    fn numbers_that_no_scaling_has_are_refused() {
        for (config, wanted) in [
            (RopeConfig { base: 0.5, scaling: RopeScaling::None }, "a rope base of 0.5"),
            (RopeConfig { base: f32::NAN, scaling: RopeScaling::None }, "a rope base of NaN"),
            (rope(RopeScaling::Linear { factor: 0.0 }), "a rope factor of 0"),
            (llama3(f32::INFINITY, 1.0, 4.0, 32), "a rope factor of inf"),
            (llama3(8.0, 4.0, 4.0, 32), "rope frequency factors 4 and 4"),
            (llama3(8.0, 0.0, 4.0, 32), "rope frequency factors 0 and 4"),
            (llama3(8.0, 1.0, f32::INFINITY, 32), "rope frequency factors 1 and inf"),
            (llama3(8.0, 1.0, 4.0, 0), "an original context without tokens"),
            (yarn(4.0, 0, [32.0, 1.0, 1.0]), "an original context without tokens"),
            (yarn(4.0, 32, [1.0, 32.0, 1.0]), "rope turns 32 and 1"),
            (yarn(4.0, 32, [32.0, f32::NAN, 1.0]), "rope turns NaN and 32"),
            (yarn(4.0, 32, [32.0, 1.0, -1.0]), "an attention factor -1"),
            (RopeConfig { base: 1.0, ..yarn(4.0, 32, [32.0, 1.0, 1.0]) }, "a base of 1"),
        ] {
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
