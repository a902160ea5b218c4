//! What steps cost, before they are made and after: measured at the start, and fitted to what passes take ever since.

mod fit;

use fit::Fit;
use std::time::Duration;

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

/// A pass is charged for this many times what it was predicted to take, at most. What is above that is a pause of the machine, and
/// nobody's work: whoever had a row in it would stand behind all others until they have had as much. A machine that has become
/// slower than that is known after two passes, and charged in full.
const CHARGED_MAX: f64 = 2.0;

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

/// Predicts passes, and is corrected by what they took. Every prediction of a pass with rows is more than nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostModel {
    costs: Costs,
    prefill: Fit,
    decode: Fit,
}

impl CostModel {
    /// With nothing to correct yet.
    #[must_use]
    pub fn new(costs: Costs) -> Self {
        let Costs { decode_us, row_us, read_us, prefill_us, token_us, depth_us } = costs;
        let mut model = Self {
            costs,
            prefill: Fit::new([prefill_us, token_us, depth_us]),
            decode: Fit::new([decode_us, row_us, read_us]),
        };
        model.adopt();
        model
    }

    /// What passes cost, as far as is known now.
    #[must_use]
    pub fn costs(&self) -> Costs {
        self.costs
    }

    /// What a pass of these rows takes, in microseconds. Nothing for no rows.
    #[must_use]
    pub fn predict_us(&self, pass: Pass, rows: impl IntoIterator<Item = Row>) -> f64 {
        let mut rows = rows.into_iter().peekable();
        if rows.peek().is_none() {
            return 0.0;
        }
        self.fixed_us(pass) + rows.map(|row| self.row_us(pass, row)).sum::<f64>()
    }

    /// What a pass costs before its first row.
    fn fixed_us(&self, pass: Pass) -> f64 {
        match pass {
            Pass::Prefill => self.costs.prefill_us,
            Pass::Decode => self.costs.decode_us,
        }
    }

    /// What a row adds.
    fn row_us(&self, pass: Pass, row: Row) -> f64 {
        let [tokens, reads] = amounts(pass, row);
        match pass {
            Pass::Prefill => tokens * self.costs.token_us + reads * self.costs.depth_us,
            Pass::Decode => tokens * self.costs.row_us + reads * self.costs.read_us,
        }
    }

    /// How many tokens of a prompt, after `depth` others of it, a pass that is made anyway can take in so many microseconds.
    #[must_use]
    pub fn tokens_within(&self, left_us: f64, depth: usize) -> usize {
        let left_us = left_us.max(0.0);
        let (first_us, more_us) = (self.costs.token_us + self.costs.depth_us * depth as f64, self.costs.depth_us);
        // Where `first_us * t + more_us * t^2 / 2` is what is left; written so that `more_us` may be 0.
        let root = (first_us * first_us + 2.0 * more_us * left_us).sqrt();
        (2.0 * left_us / (first_us + root)) as usize
    }

    /// What a prefill pass costs before its first token, in microseconds.
    #[must_use]
    pub fn prefill_fixed_us(&self) -> f64 {
        self.costs.prefill_us
    }

    /// What one more row with so many tokens before it adds to a decode pass, as a part of what a pass of that row alone takes:
    /// more than 0, at most 1.
    #[must_use]
    pub fn row_part(&self, depth: usize) -> f64 {
        let row_us = self.row_us(Pass::Decode, Row { tokens: 1, depth });
        row_us / (self.costs.decode_us + row_us)
    }

    /// A pass of these rows took so long.
    pub fn observe(&mut self, pass: Pass, rows: impl IntoIterator<Item = Row>, took: Duration) {
        let [mut all_tokens, mut all_reads] = [0.0; 2];
        for row in rows {
            let [tokens, reads] = amounts(pass, row);
            (all_tokens, all_reads) = (all_tokens + tokens, all_reads + reads);
        }
        if all_tokens == 0.0 {
            return;
        }
        let fit = match pass {
            Pass::Prefill => &mut self.prefill,
            Pass::Decode => &mut self.decode,
        };
        fit.observe([1.0, all_tokens, all_reads], took.as_secs_f64() * 1e6);
        self.adopt();
    }

    fn adopt(&mut self) {
        let [prefill_us, token_us, depth_us] = self.prefill.costs();
        let [decode_us, row_us, read_us] = self.decode.costs();
        self.costs = Costs { decode_us, row_us, read_us, prefill_us, token_us, depth_us };
    }

    /// Of what a pass took, the part of each row, in nanoseconds: by what rows of their kind cost. The parts add up to it, or
    /// to twice what was predicted if that is less, but for what rounding takes.
    pub fn parts_ns<'a>(
        &'a self,
        pass: Pass,
        rows: impl ExactSizeIterator<Item = Row> + Clone + 'a,
        took: Duration,
    ) -> impl Iterator<Item = u64> + 'a {
        let each_us = self.fixed_us(pass) / rows.len().max(1) as f64;
        let whole_us: f64 = rows.clone().map(|row| self.row_us(pass, row) + each_us).sum();
        let took_ns = (took.as_nanos() as f64).min(CHARGED_MAX * whole_us * 1e3);
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

/// Of a row: tokens that are computed, and tokens that these read, each for itself.
fn amounts(pass: Pass, Row { tokens, depth }: Row) -> [f64; 2] {
    let (tokens, depth) = (tokens as f64, depth as f64);
    match pass {
        Pass::Prefill => [tokens, tokens * (depth + tokens / 2.0)],
        Pass::Decode => [tokens, tokens * depth],
    }
}

#[cfg(test)]
mod tests;
