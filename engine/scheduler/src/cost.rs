//! What steps cost, before they are made and after.

use std::time::Duration;

/// How fast a measured factor follows: about the last twenty steps.
const CORRECTION_WEIGHT: f64 = 0.05;
/// One step that took longer than this many times what was predicted was disturbed from outside: it counts as this.
const SURPRISE_MAX: f64 = 4.0;
/// Beyond this a model of costs is no model.
const CORRECTION_MAX: f64 = 100.0;

/// What an engine's passes cost, in microseconds: measured at the start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// A decode pass of no rows.
    pub decode_us: f64,
    /// Each row of it.
    pub row_us: f64,
    /// Each token that a row reads.
    pub read_us: f64,
    /// A prefill pass of no tokens.
    pub prefill_us: f64,
    /// Each token of it.
    pub token_us: f64,
    /// Each token that a token reads.
    pub depth_us: f64,
}

impl Costs {
    /// Of the default model on two cores of a server: until something was measured.
    pub const GUESS: Self =
        Self { decode_us: 2000.0, row_us: 500.0, read_us: 0.3, prefill_us: 1000.0, token_us: 350.0, depth_us: 0.1 };
}

/// The two kinds of passes. They never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Chunks of prompts.
    Prefill,
    /// The next tokens of answers.
    Decode,
}

/// What one row of a pass computes: so many tokens, after so many others of its sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Tokens computed.
    pub tokens: usize,
    /// Tokens before them.
    pub depth: usize,
}

/// Predicts passes, and is corrected by what they took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    costs: Costs,
    /// What passes of each kind take against what was measured at the start.
    correction: [f64; 2],
}

impl CostModel {
    /// With nothing to correct yet.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        Self { costs, correction: [1.0; 2] }
    }

    /// What a pass of these rows takes, in microseconds. Nothing for no rows.
    #[must_use]
    pub fn predict_us(&self, pass: Pass, rows: impl IntoIterator<Item = Row>) -> f64 {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return 0.0;
        }
        (self.fixed_us(pass) + rows.map(|row| self.row_us(pass, row)).sum::<f64>()) * self.correction[pass as usize]
    }

    /// What a pass costs before its first row, not corrected.
    fn fixed_us(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Prefill => self.costs.prefill_us,
            Pass::Decode => self.costs.decode_us,
        }
    }

    /// What a row adds, not corrected.
    fn row_us(&self, pass: Pass, Row { tokens, depth }: Row) -> f64 {
        let (tokens, depth) = (tokens as f64, depth as f64);
        match pass {
            Pass::Prefill => tokens * (self.costs.token_us + self.costs.depth_us * (depth + tokens / 2.0)),
            Pass::Decode => tokens * (self.costs.row_us + self.costs.read_us * depth),
        }
    }

    /// How many tokens of a prompt, after `depth` others of it, a pass that is made anyway can take in so many microseconds.
    #[must_use]
    pub fn tokens_within(&self, left_us: f64, depth: usize) -> usize {
        let left_us = (left_us / self.correction[Pass::Prefill as usize]).max(0.0);
        let (first_us, more_us) = (self.costs.token_us + self.costs.depth_us * depth as f64, self.costs.depth_us);
        // Where `first_us * t + more_us * t^2 / 2` is what is left; written so that `more_us` may be 0.
        let root = (first_us * first_us + 2.0 * more_us * left_us).sqrt();
        (2.0 * left_us / (first_us + root)) as usize
    }

    /// What a prefill pass costs before its first token, in microseconds.
    #[must_use]
    pub fn prefill_fixed_us(&self) -> f64 {
        self.costs.prefill_us * self.correction[Pass::Prefill as usize]
    }

    /// A pass of these rows took so long.
    pub fn observe(&mut self, pass: Pass, rows: impl IntoIterator<Item = Row>, took: Duration) {
        let predicted_us = self.predict_us(pass, rows);
        if predicted_us <= 0.0 {
            return;
        }
        let ratio = (took.as_secs_f64() * 1e6 / predicted_us).clamp(1.0 / SURPRISE_MAX, SURPRISE_MAX);
        let correction = &mut self.correction[pass as usize];
        *correction = (*correction * ratio.powf(CORRECTION_WEIGHT)).clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX);
    }

    /// Of what a pass took, the part of each row, in nanoseconds: by what rows of their kind cost. The parts add up to it,
    /// but for what rounding takes.
    pub fn parts_ns<'a>(
        &'a self,
        pass: Pass,
        rows: impl ExactSizeIterator<Item = Row> + Clone + 'a,
        took: Duration,
    ) -> impl Iterator<Item = u64> + 'a {
        let each_us = self.fixed_us(pass) / rows.len().max(1) as f64;
        let whole_us: f64 = rows.clone().map(|row| self.row_us(pass, row) + each_us).sum();
        let took_ns = took.as_nanos() as f64;
        rows.map(move |row| (took_ns * (self.row_us(pass, row) + each_us) / whole_us.max(f64::MIN_POSITIVE)) as u64)
    }

    /// What a request costs in all when it is alone, in nanoseconds: its prompt but for what is cached, and so many tokens of
    /// an answer.
    #[must_use]
    pub fn request_ns(&self, prompt_tokens: usize, cached_tokens: usize, answer_tokens: usize) -> u64 {
        let prompt = Row { tokens: prompt_tokens.saturating_sub(cached_tokens), depth: cached_tokens };
        let answer = Row { tokens: answer_tokens, depth: prompt_tokens };
        let us = self.predict_us(Pass::Prefill, [prompt]) + self.predict_us(Pass::Decode, [answer]);
        (us * 1e3) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs =
        Costs { decode_us: 1000.0, row_us: 100.0, read_us: 1.0, prefill_us: 500.0, token_us: 50.0, depth_us: 0.1 };

    fn row(tokens: usize, depth: usize) -> Row {
        Row { tokens, depth }
    }

    #[test]
    fn a_pass_costs_something_and_each_row_more() {
        let model = CostModel::new(COSTS);
        assert_eq!(model.predict_us(Pass::Decode, []), 0.0);
        assert_eq!(model.predict_us(Pass::Decode, [row(1, 50), row(1, 0)]), 1250.0);
        assert_eq!(model.predict_us(Pass::Prefill, [row(100, 1000)]), 500.0 + 100.0 * (50.0 + 105.0));
    }

    #[test]
    fn a_chunk_is_as_long_as_the_time_that_is_left() {
        let model = CostModel::new(COSTS);
        for depth in [0, 100, 2000, 8000] {
            for left_us in [0.0, 100.0, 5_000.0, 80_000.0] {
                let tokens = model.tokens_within(left_us, depth);
                let predicted = |tokens| model.predict_us(Pass::Prefill, [row(tokens, depth)]) - COSTS.prefill_us;
                assert!(predicted(tokens) <= left_us * 1.001, "{depth} {left_us}: {tokens}");
                assert!(predicted(tokens + tokens / 10 + 2) > left_us, "{depth} {left_us}: {tokens} is too few");
            }
        }
        assert_eq!(model.tokens_within(-5.0, 0), 0);
    }

    #[test]
    fn predictions_follow_the_machine_and_forget_a_hiccup() {
        let mut model = CostModel::new(COSTS);
        let rows = [row(1, 100); 4];
        let before = model.predict_us(Pass::Decode, rows);
        for _ in 0..200 {
            model.observe(Pass::Decode, rows, Duration::from_secs_f64(before * 3.0 / 1e6));
        }
        let after = model.predict_us(Pass::Decode, rows);
        assert!((after / before - 3.0).abs() < 0.01, "{after}");
        model.observe(Pass::Decode, rows, Duration::from_secs(100));
        assert!(model.predict_us(Pass::Decode, rows) < after * 1.1);
        assert_eq!(
            model.predict_us(Pass::Prefill, [row(10, 0)]),
            CostModel::new(COSTS).predict_us(Pass::Prefill, [row(10, 0)])
        );
    }

    #[test]
    fn whoever_has_the_deeper_context_pays_more_and_all_is_paid() {
        let model = CostModel::new(COSTS);
        let rows = [row(1, 0), row(1, 4000), row(3, 0)];
        let took = Duration::from_millis(9);
        let parts: Vec<u64> = model.parts_ns(Pass::Decode, rows.into_iter(), took).collect();
        assert!(parts[1] > 3 * parts[0] && parts[2] > parts[0]);
        assert!(parts.iter().sum::<u64>().abs_diff(9_000_000) < 10);
    }
}
