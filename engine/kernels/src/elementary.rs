//! Sine, cosine, exponential and logarithm in f64 that have the same bits on every machine.
//!
//! The functions of a system's mathematical library differ in their last bits from one library to the next, and with
//! them would the logits behind every rotation. These are sums and products in a fixed order, which IEEE 754 defines to
//! the bit; they are within a few units in the last place of the true values. For tables made once a run, not for
//! kernels.

use std::f64::consts::{FRAC_2_PI, LN_2, LOG2_E, SQRT_2};

/// Pi / 2 in parts of 29 bits: their products with whole numbers of up to 24 bits are exact.
const HALF_PI: [f64; 3] = [1.570796325802803, 9.920935774287987e-10, 2.2517417706346578e-18];
/// ln 2 in two parts, the first of 32 bits.
const LN_2_PARTS: [f64; 2] = [0.6931471803691238, 1.9082149292705877e-10];

/// Coefficients of Taylor series, the highest power first. Inside the reduced ranges below, the first term that is left
/// out is under 1e-19.
const SINE: [f64; 9] = [
    1.0 / 355_687_428_096_000.0,
    -1.0 / 1_307_674_368_000.0,
    1.0 / 6_227_020_800.0,
    -1.0 / 39_916_800.0,
    1.0 / 362_880.0,
    -1.0 / 5_040.0,
    1.0 / 120.0,
    -1.0 / 6.0,
    1.0,
];
const COSINE: [f64; 10] = [
    -1.0 / 6_402_373_705_728_000.0,
    1.0 / 20_922_789_888_000.0,
    -1.0 / 87_178_291_200.0,
    1.0 / 479_001_600.0,
    -1.0 / 3_628_800.0,
    1.0 / 40_320.0,
    -1.0 / 720.0,
    1.0 / 24.0,
    -0.5,
    1.0,
];
const EXPONENTIAL: [f64; 15] = [
    1.0 / 87_178_291_200.0,
    1.0 / 6_227_020_800.0,
    1.0 / 479_001_600.0,
    1.0 / 39_916_800.0,
    1.0 / 3_628_800.0,
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];
/// Of `atanh(s) / s` in `s^2`.
const AREA_TANGENT: [f64; 12] = [
    1.0 / 23.0,
    1.0 / 21.0,
    1.0 / 19.0,
    1.0 / 17.0,
    1.0 / 15.0,
    1.0 / 13.0,
    1.0 / 11.0,
    1.0 / 9.0,
    1.0 / 7.0,
    1.0 / 5.0,
    1.0 / 3.0,
    1.0,
];

fn series(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

/// The largest angle, either way, whose sine and cosine are exact to the last bits, radians.
pub const ANGLE_MAX: f64 = (1u32 << 24) as f64;

/// Sine and cosine of an angle of up to [`ANGLE_MAX`] radians either way; positions of any context are below that.
#[must_use]
pub fn sin_cos(angle: f64) -> (f64, f64) {
    let quarters = (angle * FRAC_2_PI).round_ties_even();
    let rest = HALF_PI.iter().fold(angle, |rest, part| rest - quarters * part);
    let square = rest * rest;
    let (sine, cosine) = (rest * series(square, &SINE), series(square, &COSINE));
    match quarters.rem_euclid(4.0) as u8 {
        0 => (sine, cosine),
        1 => (cosine, -sine),
        2 => (-sine, -cosine),
        _ => (-cosine, sine),
    }
}

/// `e^x` for x from -700 to 700; nearer to zero or to infinity than that, it stays at the bound.
#[must_use]
pub fn exp(x: f64) -> f64 {
    let x = x.clamp(-700.0, 700.0);
    let doublings = (x * LOG2_E).round_ties_even();
    let rest = LN_2_PARTS.iter().fold(x, |rest, part| rest - doublings * part);
    series(rest, &EXPONENTIAL) * f64::from_bits(((doublings as i64 + 1_023) as u64) << 52)
}

/// The natural logarithm of a positive, normal number.
#[must_use]
pub fn ln(x: f64) -> f64 {
    let exponent = ((x.to_bits() >> 52) & 0x7ff) as i64 - 1_023;
    let mantissa = f64::from_bits(x.to_bits() & ((1 << 52) - 1) | 1_023 << 52);
    let (mantissa, exponent) = if mantissa > SQRT_2 { (mantissa / 2.0, exponent + 1) } else { (mantissa, exponent) };
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    exponent as f64 * LN_2 + 2.0 * s * series(s * s, &AREA_TANGENT)
}

/// `base^exponent` for a positive base.
#[must_use]
pub fn power(base: f64, exponent: f64) -> f64 {
    exp(exponent * ln(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The system's library is another implementation, and a good one.
    #[test]
    fn sines_are_those_of_the_library() {
        let mut worst = 0.0f64;
        for step in 0..400_000u32 {
            // All sizes, both signs, and the places where quarters meet.
            let angle = f64::from(step) * 0.37 - 20_000.0;
            let meeting = f64::from(step) * std::f64::consts::FRAC_PI_4;
            let large = 1.6e7 - f64::from(step) * 1.003;
            for angle in [angle, angle * 1e-6, meeting, large] {
                let ((sine, cosine), (wanted_sine, wanted_cosine)) = (sin_cos(angle), angle.sin_cos());
                worst = worst.max((sine - wanted_sine).abs()).max((cosine - wanted_cosine).abs());
            }
        }
        assert!(worst < 3e-16, "{worst:e}");
        assert_eq!(sin_cos(0.0), (0.0, 1.0));
    }

    #[test]
    fn powers_are_those_of_the_library() {
        for base in [1.0, 1.5, 10_000.0, 100_000.0, 500_000.0, 1e6, 5e6, 1e10f64] {
            for step in 0..=512 {
                let exponent = -f64::from(step) / 512.0;
                let (power, wanted) = (power(base, exponent), base.powf(exponent));
                assert!((power - wanted).abs() <= 1e-14 * wanted, "{base}^{exponent}: {power} for {wanted}");
            }
        }
        for step in 1..100_000 {
            let x = f64::from(step) * 0.013;
            assert!((ln(x) - x.ln()).abs() <= 3e-16 * x.ln().abs().max(1.0), "{x}");
            let x = x - 600.0;
            assert!((exp(x) - x.exp()).abs() <= 1e-15 * x.exp(), "{x}");
        }
        assert_eq!((exp(0.0), ln(1.0), exp(1e9), exp(-1e9)), (1.0, 0.0, exp(700.0), exp(-700.0)));
    }

    /// The exact bits, so that a compiler or a machine that computes otherwise is noticed.
    #[test]
    fn the_bits_are_pinned() {
        let (sine, cosine) = sin_cos(12_345.678_9);
        let bits = [sine, cosine, power(500_000.0, -0.734_375), ln(10_000.0), exp(-1.25)].map(f64::to_bits);
        let wanted = [
            0xbfe6_8298_a1ce_c146,
            0x3fe6_be7c_89fe_4a8e,
            0x3f11_1d41_f32c_72e3,
            0x4022_6bb1_bbb5_5515,
            0x3fd2_5618_372a_584f,
        ];
        assert_eq!(bits, wanted, "{bits:#018x?}");
    }
}
