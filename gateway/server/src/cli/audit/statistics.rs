//! The tests with which the audit judges what it measured: exact wherever that can be computed, and no random numbers.
//!
//! Each is a function of samples alone. The values in the tests below are those of other implementations (SciPy,
//! statsmodels) or of every arrangement counted one by one.

/// Half the width of a 95 % interval in standard errors: the 0.975 quantile of the normal distribution.
pub(crate) const NORMAL_975: f64 = 1.959_963_984_540_054;
/// The same for a sample that is looked at five times, after equal parts, and may end at any of them for its interval: all five intervals hold
/// with 95 % (Pocock, Biometrika 64, 1977, 191-199; Jennison and Turnbull, Group Sequential Methods, 2000, table 2.1).
pub(crate) const POCOCK_5: f64 = 2.413;

/// A statistic and how probable one at least as extreme is when there is no difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tested {
    pub(crate) statistic: f64,
    pub(crate) p: f64,
}

/// Which differences count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The first sample is smaller.
    FirstSmaller,
    /// Any difference between the distributions.
    Either,
}

/// The two-sample Kolmogorov-Smirnov test: the largest distance between the empirical distribution functions.
///
/// The probability is exact, ties included: every order in which the values could have fallen to the two samples is one path
/// over a grid, and those are counted that are as far from the diagonal somewhere between two distinct values. Probabilities
/// are only added, so that small ones are right as well; below about 1e-300 they are 0.
pub(crate) fn kolmogorov_smirnov(first: &[f64], second: &[f64], side: Side) -> Tested {
    let (n, m) = (first.len(), second.len());
    if n == 0 || m == 0 {
        return Tested { statistic: 0.0, p: 1.0 };
    }
    let mut pooled: Vec<(f64, bool)> =
        first.iter().map(|value| (*value, true)).chain(second.iter().map(|value| (*value, false))).collect();
    pooled.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Behind which of the pooled values, counted from 1, both functions have settled.
    let settled = |taken: usize| taken == n + m || pooled.get(taken - 1).map(|a| a.0) != pooled.get(taken).map(|b| b.0);
    let distance = |of_first: usize, of_second: usize| {
        let signed = (of_first * m) as i64 - (of_second * n) as i64;
        if side == Side::Either { signed.abs() } else { signed }
    };
    let (mut largest, mut of_first) = (0, 0);
    for (taken, (_, is_first)) in (1..).zip(&pooled) {
        of_first += usize::from(*is_first);
        if settled(taken) {
            largest = largest.max(distance(of_first, taken - of_first));
        }
    }
    let statistic = largest as f64 / (n * m) as f64;
    if largest == 0 {
        return Tested { statistic, p: 1.0 };
    }
    let settled: Vec<bool> = (0..=n + m).map(|taken| taken > 0 && settled(taken)).collect();
    // Row by row: with what probability a path is at a point and was not as far out before.
    let (mut row, mut p) = (vec![0.0; m + 1], 0.0);
    for of_first in 0..=n {
        for of_second in 0..=m {
            let taken = of_first + of_second;
            let left = (n + m - taken + 1) as f64;
            let from_above = if of_first > 0 { row[of_second] * (n - of_first + 1) as f64 / left } else { 0.0 };
            let from_left = if of_second > 0 { row[of_second - 1] * (m - of_second + 1) as f64 / left } else { 0.0 };
            let here = if taken == 0 { 1.0 } else { from_above + from_left };
            let out = settled[taken] && distance(of_first, of_second) >= largest;
            row[of_second] = if out { 0.0 } else { here };
            p += if out { here } else { 0.0 };
        }
    }
    Tested { statistic, p: p.min(1.0) }
}

/// The least probability that [`kolmogorov_smirnov`] can give for two samples of `n` without ties.
pub(crate) fn kolmogorov_smirnov_least_p(n: usize, side: Side) -> f64 {
    // 1 / (2n choose n): one path of all goes along the border, and one along the other one.
    let one = (1..=n).fold(1.0, |p, k| p * k as f64 / (n + k) as f64);
    if side == Side::Either { 2.0 * one } else { one }
}

/// How well a value tells its sample, with the ends of a 95 % interval: 0.5 is not at all, 0 and 1 always.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub(crate) struct Auc {
    pub(crate) value: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The area under the ROC curve of whoever takes small values for those of the first sample: the probability that a value of
/// the first is smaller than one of the second, ties counted half (Mann-Whitney's U over n squared).
///
/// The interval is that of DeLong, DeLong and Clarke-Pearson (Biometrics 44, 1988, 837-845), which assumes no distribution,
/// where Hanley and McNeil's assumes an exponential one; with the pairs as clusters (Obuchowski, Biometrics 53, 1997, 567-578),
/// since the two values of a pair were measured one after the other and share what the machine did meanwhile.
///
/// `first` and `second` are pairs in order, so both have the same length; what one has more is not looked at. The interval has
/// `half_width` standard errors to each side.
pub(crate) fn paired_auc(first: &[f64], second: &[f64], half_width: f64) -> Auc {
    let n = first.len().min(second.len());
    let (first, second) = (&first[..n], &second[..n]);
    if n < 2 {
        return Auc { value: 0.5, low: 0.0, high: 1.0 };
    }
    let sorted = |sample: &[f64]| {
        let mut sorted = sample.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted
    };
    let (sorted_first, sorted_second) = (sorted(first), sorted(second));
    // The part of a sorted sample that is below a value, and the part that is not above it; their mean counts ties half.
    let below = |sample: &[f64], value: f64| {
        let less = sample.partition_point(|other| *other < value);
        let not_more = sample.partition_point(|other| *other <= value);
        (less + not_more) as f64 / (2 * n) as f64
    };
    // DeLong's structural components, one for each value.
    let of_first: Vec<f64> = first.iter().map(|value| 1.0 - below(&sorted_second, *value)).collect();
    let of_second: Vec<f64> = second.iter().map(|value| below(&sorted_first, *value)).collect();
    let value = of_first.iter().sum::<f64>() / n as f64;
    let squares: f64 = of_first.iter().zip(&of_second).map(|(a, b)| (a + b - 2.0 * value).powi(2)).sum();
    let half_width = half_width * (squares / (n * (n - 1)) as f64).sqrt();
    Auc { value, low: (value - half_width).max(0.0), high: (value + half_width).min(1.0) }
}

/// How often the first of a pair is the smaller one, against how often it is the larger one: the exact test of signs, which is
/// McNemar's. What both of a pair share, however much it drifts from pair to pair, is not in it.
pub(crate) fn signs(first: &[f64], second: &[f64]) -> Tested {
    let pairs = || first.iter().zip(second);
    mcnemar(pairs().filter(|(a, b)| a < b).count(), pairs().filter(|(a, b)| a > b).count())
}

/// The part of the pairs in which the first is the smaller one, ties counted half: how often a guess from one pair is right.
/// With Wilson's interval of `half_width` standard errors (Journal of the American Statistical Association 22, 1927, 209-212);
/// ties make it wider than it need be.
pub(crate) fn within_pairs(first: &[f64], second: &[f64], half_width: f64) -> Auc {
    let n = first.len().min(second.len()) as f64;
    if n == 0.0 {
        return Auc { value: 0.5, low: 0.0, high: 1.0 };
    }
    let score = |(a, b): (&f64, &f64)| {
        if a < b {
            1.0
        } else if a > b {
            0.0
        } else {
            0.5
        }
    };
    let value = first.iter().zip(second).map(score).sum::<f64>() / n;
    let square = half_width * half_width / n;
    let middle = (value + square / 2.0) / (1.0 + square);
    let half_width = half_width * (value * (1.0 - value) / n + square / (4.0 * n)).sqrt() / (1.0 + square);
    Auc { value, low: (middle - half_width).max(0.0), high: (middle + half_width).min(1.0) }
}

/// A number large enough to be divided by now and then, and how many halvings that is.
const SCALE: f64 = (1_u64 << SCALE_HALVINGS) as f64;
const SCALE_HALVINGS: usize = 60;

/// McNemar's exact test of pairs that differ: `only_first` in one way, `only_second` in the other. Two-sided.
pub(crate) fn mcnemar(only_first: usize, only_second: usize) -> Tested {
    let (discordant, fewer) = (only_first + only_second, only_first.min(only_second));
    // In units of 2^-halvings: from about a thousand pairs on, one arrangement of all of them is no number any more.
    let (mut term, mut tail, mut halvings) = (1.0_f64, 1.0_f64, discordant);
    for k in 0..fewer {
        term *= (discordant - k) as f64 / (k + 1) as f64;
        tail += term;
        if tail > SCALE && halvings >= SCALE_HALVINGS {
            (term, tail, halvings) = (term / SCALE, tail / SCALE, halvings - SCALE_HALVINGS);
        }
    }
    while halvings > 0 && tail > 0.0 {
        let now = halvings.min(SCALE_HALVINGS);
        tail *= 0.5_f64.powi(now as i32);
        halvings -= now;
    }
    let statistic = only_first as f64 - only_second as f64;
    Tested { statistic, p: (2.0 * tail).min(1.0) }
}

/// The permutation test of places: in each round one of `candidates` was the one in question, put among the others at random,
/// and came out in a place from 1 to `candidates`. When nothing told it from the others, every place is as probable. The
/// statistic is the mean place; the probability is exact, over every possible row of places, and two-sided.
pub(crate) fn places(places: &[usize], candidates: usize) -> Tested {
    let rounds = places.len();
    if rounds == 0 || candidates < 2 {
        return Tested { statistic: 0.0, p: 1.0 };
    }
    // The distribution of the sum of the places, each counted from 0.
    let mut distribution = vec![1.0];
    for _ in 0..rounds {
        let mut next = vec![0.0; distribution.len() + candidates - 1];
        for (sum, probability) in distribution.iter().enumerate() {
            for place in 0..candidates {
                next[sum + place] += probability / candidates as f64;
            }
        }
        distribution = next;
    }
    let sum: usize = places.iter().sum();
    let from_zero = sum.saturating_sub(rounds).min(distribution.len() - 1);
    let at_most: f64 = distribution[..=from_zero].iter().sum();
    let at_least: f64 = distribution[from_zero..].iter().sum();
    Tested { statistic: sum as f64 / rounds as f64, p: (2.0 * at_most.min(at_least)).min(1.0) }
}

/// Holm's correction (Scandinavian Journal of Statistics 6, 1979, 65-70): each probability as it may be compared with the
/// level of the whole family. Holds whatever the tests have to do with each other.
pub(crate) fn holm(probabilities: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..probabilities.len()).collect();
    order.sort_by(|a, b| probabilities[*a].total_cmp(&probabilities[*b]));
    let (mut adjusted, mut floor) = (vec![1.0; probabilities.len()], 0.0_f64);
    for (rank, index) in order.into_iter().enumerate() {
        let left = (probabilities.len() - rank) as f64;
        floor = floor.max((probabilities[index] * left).min(1.0));
        adjusted[index] = floor;
    }
    adjusted
}

#[cfg(test)]
mod tests;
