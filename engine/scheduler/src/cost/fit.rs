//! What passes of one kind cost, fitted to what they took: three costs, which are a pass's, a token's, and a token's that is
//! read.
//!
//! Least squares of relative errors, the older ones forgotten. Costs are factors of what they were at the start. What passes do
//! not tell apart (always the same number of rows, always the same depth) changes with the rest: the machine became slower or
//! faster in all. No factor leaves its bounds, whatever was seen. Nothing but sums, products and quotients: the same passes give
//! the same costs on every machine.
//!
//! Source: recursive least squares with exponential forgetting (Ljung, System Identification, 11.2), solved anew each time,
//! which three unknowns allow, so that nothing has to be kept positive by hand.

/// What is left of a pass in the sums with each one that follows: thirty count.
const KEEPS: f64 = 0.97;
/// What passes are off by, on average, while the costs fit: less than this part.
const SETTLED: f64 = 0.2;
/// How fast that average follows.
const SETTLES: f64 = 0.1;
/// Of a pass that costs what it did at the start, and of one token alone, so many count at the start ...
const TRUST: f64 = 0.3;
/// ... and of one whose reads cost what they did: those are guessed, or measured in too short a time.
const TRUST_READS: f64 = 0.1;
/// How much what passes do not tell apart is held to the proportions of the start, as a part of what they tell.
const HOLD: f64 = 0.0005;
/// A pass that takes this many times what was predicted, or less than such a part of it, is a surprise. It counts as so much,
/// or as much as the one before it if that is more: one pass may have been disturbed from outside, two are a change.
const SURPRISE: f64 = 1.5;
/// Never as more than this.
const SURPRISE_MAX: f64 = 4.0;
/// No cost grows to more than so many times its unit, ...
const FACTOR_MAX: f64 = 100.0;
/// ... and no token costs less than such a part of what it did at the start. Passes and reads may cost nothing.
const TOKEN_FACTOR_MIN: f64 = 0.01;
/// A token costs this many microseconds at the start, at least.
const TOKEN_US_MIN: f64 = 1e-3;
/// What a read costs is measured in such parts of what a token costs, at least: with so many to read it costs twice as much.
const READ_PART: f64 = 1.0 / 512.0;

/// Costs of a pass, a token and a read; or an amount of each.
type Three = [f64; 3];

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    /// What factors are of, in microseconds.
    units: Three,
    /// Factors at the start, and now.
    start: Three,
    factors: Three,
    /// Sums over passes: the products of what each part would be with a factor of 1, by what was predicted for all.
    products: [Three; 3],
    /// And of these with what the pass took.
    seen: Three,
    /// What the last pass took, by what was predicted.
    last: f64,
    /// What passes were off by lately, as a part.
    off: f64,
}

impl Fit {
    /// With these costs of a pass, a token and a read, in microseconds. What is no number is nothing.
    pub(super) fn new(costs: Three) -> Self {
        let [pass, token, read] = costs.map(|cost| if cost.is_finite() { cost.max(0.0) } else { 0.0 });
        let token = token.max(TOKEN_US_MIN);
        let units = [pass.max(token), token, read.max(token * READ_PART)];
        let start = [pass / units[0], 1.0, read / units[2]];
        let trust = [TRUST, TRUST, TRUST_READS];
        let (mut products, mut seen) = ([[0.0; 3]; 3], [0.0; 3]);
        (0..3).for_each(|at| (products[at][at], seen[at]) = (trust[at], trust[at] * start[at]));
        Self { units, start, factors: start, products, seen, last: 1.0, off: 0.0 }
    }

    /// Of a pass, a token and a read, in microseconds.
    pub(super) fn costs(&self) -> Three {
        [0, 1, 2].map(|of| self.units[of] * self.factors[of])
    }

    /// A pass of so much took so many microseconds.
    pub(super) fn observe(&mut self, amounts: Three, took_us: f64) {
        let predicted_us = dot(amounts, self.costs());
        if !(predicted_us.is_normal() && predicted_us > 0.0 && took_us.is_finite()) {
            return;
        }
        let took = (took_us / predicted_us).clamp(1.0 / SURPRISE_MAX, SURPRISE_MAX);
        let counted = took.clamp(self.last.min(1.0 / SURPRISE), self.last.max(SURPRISE));
        self.last = took;
        let surprised = !(1.0 / SURPRISE..=SURPRISE).contains(&counted);
        // What fitted so far, and not any more twice: the machine has changed, and what was seen of it would take so much now.
        let slower = if surprised && self.off < SETTLED { counted } else { 1.0 };
        self.off += SETTLES * ((counted - 1.0).abs() - self.off);
        let parts = [0, 1, 2].map(|of| amounts[of] * self.units[of] / predicted_us);
        for (of, part) in parts.iter().enumerate() {
            for (with, other) in parts.iter().enumerate() {
                self.products[of][with] = KEEPS * self.products[of][with] + part * other;
            }
            self.seen[of] = KEEPS * self.seen[of] * slower + part * counted;
        }
        self.factors = self.solve();
    }

    /// The factors that fit best within their bounds. Whatever would leave them most is set to its bound, and the others are
    /// fitted again.
    fn solve(&self) -> Three {
        let (lowest, highest) = ([0.0, TOKEN_FACTOR_MIN, 0.0], FACTOR_MAX);
        let (mut matrix, mut right) = (self.products, self.seen);
        // Held to a multiple of `start`, whichever: nothing in that direction, and the same in all others.
        let hold = HOLD * (0..3).map(|at| self.products[at][at]).sum::<f64>();
        let length = dot(self.start, self.start);
        for (of, row) in matrix.iter_mut().enumerate() {
            for (with, entry) in row.iter_mut().enumerate() {
                *entry += hold * (f64::from(u8::from(of == with)) - self.start[of] * self.start[with] / length);
            }
        }
        let mut set = [false; 3];
        loop {
            let factors = eliminate(matrix, right);
            let outside = |of: &usize| (lowest[*of] - factors[*of]).max(factors[*of] - highest);
            let free = (0..3).filter(|of| !set[*of]);
            let Some(worst) = free.max_by(|one, other| outside(one).total_cmp(&outside(other))) else { return factors };
            // Also what is no number, which nothing that was seen leads to.
            if outside(&worst) <= 0.0 {
                return factors;
            }
            let bound = if factors[worst] > highest { highest } else { lowest[worst] };
            for of in 0..3 {
                right[of] = if of == worst { bound } else { right[of] - matrix[of][worst] * bound };
                (matrix[of][worst], matrix[worst][of]) = (0.0, 0.0);
            }
            matrix[worst][worst] = 1.0;
            set[worst] = true;
        }
    }
}

/// Solves three equations with a symmetric, positive matrix.
fn eliminate(mut matrix: [Three; 3], mut right: Three) -> Three {
    for pivot in 0..3 {
        for row in pivot + 1..3 {
            let (of_pivot, factor) = (matrix[pivot], matrix[row][pivot] / matrix[pivot][pivot]);
            matrix[row].iter_mut().zip(of_pivot).for_each(|(entry, above)| *entry -= factor * above);
            right[row] -= factor * right[pivot];
        }
    }
    let last = right[2] / matrix[2][2];
    let middle = (right[1] - matrix[1][2] * last) / matrix[1][1];
    [(right[0] - matrix[0][1] * middle - matrix[0][2] * last) / matrix[0][0], middle, last]
}

fn dot(one: Three, other: Three) -> f64 {
    one[0] * other[0] + one[1] * other[1] + one[2] * other[2]
}
