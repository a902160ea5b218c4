//! Products against their definition, and the same bits everywhere.

use super::*;
use crate::activations::{BLOCK, Block};
use crate::matrix::tests::{KINDS, by_definition, pack_unchecked, random_bytes};
use crate::{KernelFamily, MatrixKind, MatrixSource, quantise};
use proptest::prelude::*;

fn matrix(kind: MatrixKind, rows: usize, width: usize, seed: u64) -> Matrix {
    let bytes = random_bytes(kind, rows, width, seed);
    Matrix::pack(&[MatrixSource { kind, rows, width, bytes: &bytes }], 1).unwrap().remove(0)
}

fn values(count: usize, seed: u64) -> Vec<f32> {
    let bytes = random_bytes(MatrixKind::F32, count.div_ceil(BLOCK), BLOCK, seed);
    bytes.as_chunks::<4>().0.iter().take(count).map(|bytes| 8.0 * f32::from_le_bytes(*bytes)).collect()
}

fn activations(tokens: usize, width: usize, seed: u64) -> Activations {
    let mut out = Activations::new(tokens, width);
    let mut team = Team::with_family(1, KernelFamily::Scalar).unwrap();
    quantise(&mut team, &values(tokens * width, seed), width, &mut out);
    out
}

/// The values that a row of activations stands for.
fn dequantised(input: &Activations, token: usize) -> Vec<f64> {
    let value =
        |block: &Block, i: usize| f64::from(block.quads[i / 4].to_le_bytes()[i % 4] as i8) * f64::from(block.scale);
    input.row(token).iter().flat_map(|block| (0..BLOCK).map(|i| value(block, i))).collect()
}

/// The definition, in f64, and the sum of the magnitudes of its terms.
fn dot(weights: &[f32], input: &[f64]) -> (f64, f64) {
    let terms = || std::iter::zip(weights, input).map(|(weight, x)| f64::from(*weight) * x);
    (terms().sum(), terms().map(f64::abs).sum())
}

/// The weights of a row.
fn row(matrix: &Matrix, row: usize) -> Vec<f32> {
    let mut weights = vec![0.0; matrix.width()];
    matrix.row(row, &mut weights);
    weights
}

/// A width of several blocks of either size, and of two segments of a panel.
fn width_for(kind: MatrixKind) -> usize {
    if kind.block_weights() == BLOCK { 544 } else { 768 }
}

#[test]
fn quantised_activations_are_within_half_a_step() {
    let x = values(3 * 96, 5);
    let mut out = Activations::new(3, 96);
    for family in KernelFamily::ALL {
        let Some(mut team) = Team::with_family(1, family) else { continue };
        quantise(&mut team, &x, 96, &mut out);
        for token in 0..3 {
            for (index, value) in dequantised(&out, token).into_iter().enumerate() {
                let step = f64::from(out.row(token)[index / BLOCK].scale);
                assert!((value - f64::from(x[token * 96 + index])).abs() <= 0.501 * step);
            }
            for block in out.row(token) {
                let sum: i32 =
                    block.quads.iter().flat_map(|quad| quad.to_le_bytes()).map(|byte| i32::from(byte as i8)).sum();
                assert_eq!((block.correction, block.scaled_sum), (-128 * sum, block.scale * sum as f32));
            }
        }
    }
}

#[test]
fn blocks_without_a_scale_become_zeros() {
    let mut team = Team::new(1);
    let mut out = Activations::new(1, 64);
    let mut x = [0.0; 64];
    x[40] = 1e-44;
    quantise(&mut team, &x, 64, &mut out);
    assert!(out.row(0).iter().all(|block| block.quads == [0; 8] && block.scaled_sum == 0.0));
}

#[test]
fn products_are_near_the_definition_and_the_same_bits_everywhere() {
    // A whole panel, and one that is not full.
    let (tokens, rows) = (71, 48);
    for kind in KINDS {
        let width = width_for(kind);
        let input = activations(tokens, width, 3);
        let bytes = random_bytes(kind, rows, width, 17);
        let weights = by_definition(kind, &bytes);
        let matrix = Matrix::pack(&[MatrixSource { kind, rows, width, bytes: &bytes }], 1).unwrap().remove(0);
        let mut reference = vec![0.0; tokens * rows];
        product(&mut Team::with_family(1, KernelFamily::Scalar).unwrap(), &[&matrix], &input, &mut reference);
        for token in 0..tokens {
            let x = dequantised(&input, token);
            for (row, weights) in weights.chunks_exact(width).enumerate() {
                let (wanted, magnitude) = dot(weights, &x);
                let error = (f64::from(reference[token * rows + row]) - wanted).abs();
                assert!(error <= 1e-6 * magnitude, "{kind:?}, row {row}: off by {error:e} of {magnitude}");
            }
        }
        for family in KernelFamily::ALL {
            for threads in 1..=3 {
                let Some(mut team) = Team::with_family(threads, family) else { continue };
                let mut out = vec![f32::NAN; tokens * rows];
                product(&mut team, &[&matrix], &input, &mut out);
                assert!(out.iter().map(|x| x.to_bits()).eq(reference.iter().map(|x| x.to_bits())), "{kind:?} {family}");
            }
        }
    }
}

/// With scales of 1 every product is of integers small enough for an f32.
#[test]
fn whole_numbers_come_out_exactly() {
    let (tokens, rows, width) = (5, 16, 512);
    let one = half::f16::from_f32(1.0).to_le_bytes();
    let mut x: Vec<f32> = values(tokens * width, 23).into_iter().map(|x| (x * 120.0).round()).collect();
    // The largest magnitude of a block is what its scale comes from.
    x.iter_mut().step_by(BLOCK).for_each(|x| *x = 127.0);
    assert!(x.iter().all(|x| x.abs() <= 127.0) && x.iter().any(|x| *x < -100.0));
    for kind in KINDS.into_iter().filter(|kind| !matches!(kind, MatrixKind::F32 | MatrixKind::F16 | MatrixKind::BF16)) {
        let mut bytes = random_bytes(kind, rows, width, 29);
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            match kind {
                MatrixKind::Q6_K => block[208..].copy_from_slice(&one),
                MatrixKind::Q4_1 | MatrixKind::Q5_1 | MatrixKind::Q4_K | MatrixKind::Q5_K => {
                    block[..4].copy_from_slice(&[one, one].concat());
                }
                _ => block[..2].copy_from_slice(&one),
            }
        }
        let weights = by_definition(kind, &bytes);
        let matrix = Matrix::pack(&[MatrixSource { kind, rows, width, bytes: &bytes }], 1).unwrap().remove(0);
        for family in KernelFamily::ALL {
            let Some(mut team) = Team::with_family(1, family) else { continue };
            let mut input = Activations::new(tokens, width);
            quantise(&mut team, &x, width, &mut input);
            let mut out = vec![f32::NAN; tokens * rows];
            product(&mut team, &[&matrix], &input, &mut out);
            for (token, x) in x.chunks_exact(width).enumerate() {
                for (row, weights) in weights.chunks_exact(width).enumerate() {
                    let wanted: i64 = std::iter::zip(weights, x).map(|(w, x)| *w as i64 * *x as i64).sum();
                    assert_eq!(out[token * rows + row] as f64, wanted as f64, "{kind:?} {family}, row {row}");
                }
            }
        }
    }
}

/// The largest sums that six bits with scales of eight can have: none of them is rounded.
#[test]
fn the_extremes_of_six_bits_are_exact() {
    let (rows, width) = (16, 256);
    for (sign, scale) in [(-1.0, -128i8), (1.0, -128), (1.0, 127)] {
        let mut block = vec![0; 210];
        block[192..208].fill(scale as u8);
        block[208..].copy_from_slice(&half::f16::from_f32(1.0).to_le_bytes());
        let bytes = block.repeat(rows);
        let source = MatrixSource { kind: MatrixKind::Q6_K, rows, width, bytes: &bytes };
        let matrix = Matrix::pack(&[source], 1).unwrap().remove(0);
        for family in KernelFamily::ALL {
            let Some(mut team) = Team::with_family(1, family) else { continue };
            let mut input = Activations::new(1, width);
            quantise(&mut team, &vec![sign * 127.0; width], width, &mut input);
            let mut out = vec![0.0; rows];
            product(&mut team, &[&matrix], &input, &mut out);
            let wanted = 256.0 * -32.0 * 127.0 * f64::from(sign) * f64::from(scale);
            assert!(out.iter().all(|x| f64::from(*x) == wanted), "{family}: {out:?} for {wanted}");
        }
    }
}

/// Bytes of a file are untrusted: scales that are no numbers spoil their own row and no other.
#[test]
fn hostile_scales_stay_in_their_row() {
    let (tokens, rows) = (9, 16);
    for kind in KINDS {
        let width = width_for(kind);
        let input = activations(tokens, width, 3);
        let good = random_bytes(kind, rows, width, 31);
        let row_bytes = good.len() / rows;
        for hostile in [0xff, 0x7c, 0xfc] {
            let mut bad = good.clone();
            bad[5 * row_bytes..6 * row_bytes].fill(hostile);
            // Refused at load; this is about what stands behind that.
            let [good, bad] = [&good, &bad].map(|bytes| pack_unchecked(MatrixSource { kind, rows, width, bytes }));
            let _ = row(&bad, 5);
            assert_eq!(row(&bad, 6), row(&good, 6));
            for family in KernelFamily::ALL {
                let Some(mut team) = Team::with_family(1, family) else { continue };
                let [mut of_good, mut of_bad] = [&good, &bad].map(|matrix| {
                    let mut out = vec![0.0; tokens * rows];
                    product(&mut team, &[matrix], &input, &mut out);
                    out
                });
                for token in 0..tokens {
                    let spoilt = &mut of_bad[token * rows + 5];
                    assert!(hostile != 0xff || spoilt.is_nan(), "{kind:?} {family}: {spoilt}");
                    *spoilt = 0.0;
                    of_good[token * rows + 5] = 0.0;
                }
                assert_eq!(of_bad, of_good, "{kind:?} {family}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn a_token_alone_gets_the_bits_of_a_token_among_many(
        tokens in prop_oneof![1usize..30, 30usize..120],
        is_wide: bool,
        kind in 0..KINDS.len(),
        threads in 1usize..4,
        seed in any::<u64>(),
    ) {
        let rows = 40;
        let width = if is_wide { 768 } else { KINDS[kind].block_weights().max(96) };
        let matrices = [matrix(KINDS[kind], rows, width, seed), matrix(MatrixKind::Q4_1, 16, width, !seed)];
        let stride = 48 + 16;
        let input = activations(tokens, width, seed);
        let mut team = Team::new(threads);
        let mut together = vec![0.0; tokens * stride];
        product(&mut team, &[&matrices[0], &matrices[1]], &input, &mut together);
        for token in 0..tokens {
            let mut alone = Activations::new(1, width);
            let x = values(tokens * width, seed);
            quantise(&mut team, &x[token * width..][..width], width, &mut alone);
            let mut out = vec![0.0; stride];
            product(&mut team, &[&matrices[0], &matrices[1]], &alone, &mut out);
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&out), bits(&together[token * stride..][..stride]));
        }
    }
}

#[test]
fn adding_and_swiglu_are_what_they_say() {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu = |x: f64| x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    check_adding_and_swiglu(Activation::Silu, &silu, false);
    check_adding_and_swiglu(Activation::GeluTanh, &gelu, false);
    check_adding_and_swiglu(Activation::Silu, &silu, true);
}

fn check_adding_and_swiglu(activation: Activation, definition: &dyn Fn(f64) -> f64, has_bias: bool) {
    let (tokens, width, ff) = (53, 64, 96);
    let input = activations(tokens, width, 11);
    let biased = |kind, rows, seed| {
        let bias = if has_bias { values(rows, seed + 50) } else { vec![0.0; rows] };
        let matrix = matrix(kind, rows, width, seed);
        (if has_bias { matrix.with_bias(bias.clone()) } else { matrix }, bias)
    };
    let [(gate, gate_bias), (up, up_bias)] = [1, 2].map(|seed| biased(MatrixKind::Q4_1, ff, seed));
    let (down, down_bias) = biased(MatrixKind::Q8_0, 32, 3);
    let mut bits = Vec::new();
    for family in KernelFamily::ALL {
        for threads in [1, 2] {
            let Some(mut team) = Team::with_family(threads, family) else { continue };
            let mut hidden = Activations::new(tokens, ff);
            product_swiglu(&mut team, &gate, &up, activation, &input, &mut hidden);
            let mut residual = values(tokens * 32, 7);
            product_add(&mut team, &down, &input, &mut residual);
            for token in 0..tokens {
                let x = dequantised(&input, token);
                for (index, value) in dequantised(&hidden, token).into_iter().enumerate() {
                    let (gate, up) = (dot(&row(&gate, index), &x).0, dot(&row(&up, index), &x).0);
                    let (gate, up) = (gate + f64::from(gate_bias[index]), up + f64::from(up_bias[index]));
                    let wanted = definition(gate) * up;
                    let step = f64::from(hidden.row(token)[index / BLOCK].scale);
                    assert!((value - wanted).abs() <= 0.51 * step, "{value} for {wanted}");
                }
                for index in 0..32 {
                    let (sum, magnitude) = dot(&row(&down, index), &x);
                    let wanted =
                        f64::from(values(tokens * 32, 7)[token * 32 + index]) + sum + f64::from(down_bias[index]);
                    assert!((f64::from(residual[token * 32 + index]) - wanted).abs() <= 1e-6 * (magnitude + 8.0));
                }
            }
            let quads = (0..tokens).flat_map(|token| hidden.row(token).iter().flat_map(|block| block.quads));
            bits.push((quads.collect::<Vec<_>>(), residual.iter().map(|x| x.to_bits()).collect::<Vec<_>>()));
        }
    }
    assert!(bits.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_bias_is_added_to_every_output_of_its_matrix_alone() {
    let (tokens, width) = (9, 64);
    let input = activations(tokens, width, 11);
    for kind in KINDS.into_iter().filter(|kind| kind.block_weights() == BLOCK) {
        // Rows that do not fill their last tile, beside a matrix without a bias.
        let (plain, other) = (matrix(kind, 40, width, 1), matrix(kind, 16, width, 2));
        let biased = plain.clone().with_bias((0..40).map(|row| row as f32).collect());
        for family in KernelFamily::ALL {
            let Some(mut team) = Team::with_family(2, family) else { continue };
            let [mut without, mut with] = [(); 2].map(|()| vec![0.0; tokens * 64]);
            product(&mut team, &[&plain, &other], &input, &mut without);
            product(&mut team, &[&biased, &other], &input, &mut with);
            for (index, (without, with)) in std::iter::zip(without, with).enumerate() {
                let bias = if index % 64 < 40 { (index % 64) as f32 } else { 0.0 };
                assert_eq!(with, without + bias, "{kind:?} {family}, row {}", index % 64);
            }
        }
    }
}

#[test]
#[should_panic(expected = "a bias for each row")]
fn a_bias_of_another_length_is_refused() {
    let _ = matrix(MatrixKind::Q4_1, 40, 64, 1).with_bias(vec![0.0; 48]);
}

#[test]
#[should_panic(expected = "inputs of the matrices")]
fn a_product_of_other_widths_is_refused() {
    let matrix = matrix(MatrixKind::Q4_1, 16, 64, 1);
    product(&mut Team::new(1), &[&matrix], &activations(1, 96, 1), &mut [0.0; 16]);
}

#[test]
#[should_panic(expected = "room for the outputs")]
fn a_product_without_room_is_refused() {
    let matrix = matrix(MatrixKind::Q4_1, 17, 64, 1);
    product(&mut Team::new(1), &[&matrix], &activations(1, 64, 1), &mut [0.0; 31]);
}
