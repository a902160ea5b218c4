//! Against values of SciPy 1.x (`ks_2samp` exact, `mannwhitneyu`, `binomtest`), statsmodels (`multipletests`), and of every
//! arrangement counted one by one in exact fractions where no library knows ties or places.

use super::super::prompts::Random;
use super::*;

const X: [f64; 20] = [
    0.61, 0.29, 0.06, 0.59, -1.73, -0.74, 0.51, -0.56, 0.39, 1.64, 0.05, -0.06, 0.64, -0.82, 0.37, 1.77, 1.09, -1.28,
    2.36, 1.31,
];
const Y: [f64; 20] = [
    1.05, -0.32, -0.40, 1.06, -2.47, 0.12, 0.98, 2.41, 2.07, 1.93, 2.55, 0.88, 1.21, 3.02, 1.46, 0.77, 1.99, 2.8, 0.33,
    1.5,
];

#[track_caller]
fn close(found: f64, wanted: f64) {
    assert!((found - wanted).abs() <= 1e-9 * wanted.abs(), "{found} is not {wanted}");
}

#[track_caller]
fn ks(first: &[f64], second: &[f64], side: Side, statistic: f64, p: f64) {
    let tested = kolmogorov_smirnov(first, second, side);
    close(tested.statistic, statistic);
    close(tested.p, p);
}

#[test]
fn kolmogorov_smirnov_has_the_exact_probability() {
    ks(&X, &Y[..15], Side::FirstSmaller, 0.483_333_333_333_333_34, 0.013_057_298_083_997_259);
    ks(&X, &Y[..15], Side::Either, 0.483_333_333_333_333_34, 0.026_114_595_860_107_354);
    ks(&X, &Y, Side::FirstSmaller, 0.5, 0.006_149_306_299_231_338);
    ks(&X, &Y, Side::Either, 0.5, 0.012_298_612_583_953_778);
}

#[test]
fn kolmogorov_smirnov_is_exact_far_out_as_well() {
    let counted = |shift: f64| (0..250).map(|k| f64::from(k) + shift).collect::<Vec<_>>();
    ks(&counted(0.0), &counted(60.5), Side::FirstSmaller, 0.244, 3.044_759_143_982_733e-7);
    ks(&counted(0.0), &counted(60.5), Side::Either, 0.244, 6.089_518_287_965_462e-7);
    ks(&counted(0.0), &counted(1000.5), Side::FirstSmaller, 1.0, 8.565_727_532_409_837e-150);
    close(kolmogorov_smirnov_least_p(250, Side::FirstSmaller), 8.565_727_532_409_837e-150);
    close(kolmogorov_smirnov_least_p(250, Side::Either), 2.0 * 8.565_727_532_409_837e-150);
}

#[test]
fn ties_are_no_evidence() {
    // 31 and 37 of the 462 ways to deal these eleven values are as far apart.
    let (a, b) = ([1.0, 1.0, 2.0, 2.0, 3.0, 1.0], [2.0, 3.0, 3.0, 4.0, 4.0]);
    ks(&a, &b, Side::FirstSmaller, 0.633_333_333_333_333_3, 31.0 / 462.0);
    ks(&a, &b, Side::Either, 0.633_333_333_333_333_3, 37.0 / 462.0);
    assert_eq!(kolmogorov_smirnov(&[5.0; 40], &[5.0; 40], Side::Either), Tested { statistic: 0.0, p: 1.0 });
}

#[test]
fn the_wrong_direction_and_empty_samples_say_nothing() {
    let (low, high) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
    assert_eq!(kolmogorov_smirnov(&high, &low, Side::FirstSmaller), Tested { statistic: 0.0, p: 1.0 });
    assert_eq!(kolmogorov_smirnov(&[], &low, Side::Either), Tested { statistic: 0.0, p: 1.0 });
    close(kolmogorov_smirnov(&high, &low, Side::Either).p, 0.1);
}

#[track_caller]
fn auc(first: &[f64], second: &[f64], [value, low, high]: [f64; 3]) {
    let auc = paired_auc(first, second, NORMAL_975);
    close(auc.value, value);
    close(auc.low, low);
    close(auc.high, high);
}

#[test]
fn the_area_and_its_interval_are_those_of_their_definition() {
    auc(&X, &Y, [0.7225, 0.567_241_653_686_973_7, 0.877_758_346_313_026_4]);
    let (a, b) = ([1.0, 2.0, 2.0, 3.0, 5.0, 8.0, 9.0, 9.0], [2.0, 2.0, 4.0, 3.0, 6.0, 8.0, 10.0, 12.0]);
    auc(&a, &b, [0.59375, 0.513_556_398_941_588_8, 0.673_943_601_058_411_2]);
    auc(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0], [1.0, 1.0, 1.0]);
}

#[test]
fn one_pair_says_nothing_of_the_area() {
    assert_eq!(paired_auc(&[1.0], &[9.0], NORMAL_975), Auc { value: 0.5, low: 0.0, high: 1.0 });
    assert_eq!(within_pairs(&[], &[], NORMAL_975), Auc { value: 0.5, low: 0.0, high: 1.0 });
}

#[test]
fn mcnemar_is_the_binomial_test_of_the_pairs_that_differ() {
    for (only_first, only_second, p) in [
        (2, 11, 0.022_460_937_5),
        (11, 2, 0.022_460_937_5),
        (0, 12, 0.000_488_281_25),
        (5, 5, 1.0),
        (0, 0, 1.0),
        (30, 12, 0.007_915_897_334_896_727),
    ] {
        close(mcnemar(only_first, only_second).p, p);
    }
}

#[test]
fn places_are_compared_with_every_row_of_places() {
    close(places(&[1, 2, 1, 3, 1], 4).p, 0.109_375);
    close(places(&[5, 4, 5, 5], 5).p, 0.016);
    close(places(&[1, 5, 3], 5).p, 1.0);
    let twenty = [1, 2, 1, 1, 3, 2, 9, 4, 1, 2, 5, 3, 1, 2, 7, 4, 2, 1, 6, 3];
    close(places(&twenty, 10).p, 6.550_833_700_179_68e-5);
    close(places(&twenty, 10).statistic, 3.0);
    assert_eq!(places(&[], 10).p, 1.0);
}

#[test]
fn holm_corrects_for_how_many_arms_there_are() {
    let check = |given: &[f64], wanted: &[f64]| holm(given).iter().zip(wanted).for_each(|(a, b)| close(*a, *b));
    check(&[0.01, 0.04, 0.03, 0.005], &[0.03, 0.06, 0.06, 0.02]);
    check(&[0.004; 6], &[0.024; 6]);
    check(&[0.5, 0.9, 1.0, 1e-9, 0.02], &[1.0, 1.0, 1.0, 5e-9, 0.08]);
    assert!(holm(&[]).is_empty());
}

#[test]
fn mcnemar_is_exact_beyond_what_one_number_holds() {
    for (only_first, only_second, p) in [
        (750, 750, 1.0),
        (5_200, 4_800, 6.593_515_598_672_442e-5),
        (620, 580, 0.260_227_380_296_723_15),
        (900, 300, 5.345_122_072_811_029e-70),
        (1_070, 30, 6.686_236_507_682_802e-273),
        (1_500, 0, 0.0),
    ] {
        close(mcnemar(only_first, only_second).p, p);
    }
}

#[test]
fn signs_are_of_pairs_and_ties_are_no_evidence() {
    let (a, b) = ([1.0, 100.0, 10.0, 7.0, 3.0], [2.0, 101.0, 11.0, 7.0, 2.0]);
    close(signs(&a, &b).p, mcnemar(3, 1).p);
    close(within_pairs(&a, &b, NORMAL_975).value, 0.7);
    let seven_of_ten: Vec<f64> = (0..10).map(|k| if k < 7 { 0.0 } else { 2.0 }).collect();
    let auc = within_pairs(&seven_of_ten, &[1.0; 10], NORMAL_975);
    close(auc.low, 0.396_778_147_461_145_37);
    close(auc.high, 0.892_208_732_593_699_3);
}

#[test]
fn intervals_hold_at_every_look_together() {
    // Of 1,000 samples without a difference 50 leave an interval at one of five looks; 80 is beyond four standard errors.
    // With intervals for one look alone they would be 142.
    let mut random = Random::new(20);
    let mut left = 0;
    for _ in 0..1_000 {
        let mut drawn = || (0..250).map(|_| random.next() as f64).collect::<Vec<_>>();
        let (first, second) = (drawn(), drawn());
        let misses = |n: usize| {
            let auc = paired_auc(&first[..n], &second[..n], POCOCK_5);
            auc.low > 0.5 || auc.high < 0.5
        };
        left += usize::from((1..=5).any(|look| misses(50 * look)));
    }
    assert!((25..80).contains(&left), "{left} of 1,000");
}
