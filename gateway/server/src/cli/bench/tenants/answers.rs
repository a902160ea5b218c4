//! What a client sees of an answer: when its tokens came.

use anyhow::{Context, Result};
use engine_runtime::{Steps, Usage};
use std::time::Instant;

/// An answer, read to its end.
pub(super) struct Answer {
    pub(super) asked: Instant,
    /// When tokens came. A step can bring several.
    pub(super) came: Vec<Instant>,
    pub(super) usage: Usage,
}

impl Answer {
    /// From the request to the first token.
    pub(super) fn ttft_ms(&self) -> Result<f64> {
        let first = self.came.first().context("no token was sampled")?;
        Ok(first.duration_since(self.asked).as_secs_f64() * 1e3)
    }

    /// From each step with tokens to the next one.
    pub(super) fn gaps_ms(&self) -> impl Iterator<Item = f64> {
        self.came.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64() * 1e3)
    }

    /// While it was written, the first token not counted.
    pub(super) fn tokens_per_second(&self) -> Result<f64> {
        let (first, last) = self.came.first().zip(self.came.last()).context("no token was sampled")?;
        let seconds = last.duration_since(*first).as_secs_f64();
        let tokens = self.usage.completion_tokens.saturating_sub(1);
        Some(tokens as f64 / seconds)
            .filter(|speed| speed.is_finite() && *speed > 0.0)
            .context("an answer of one token")
    }
}

/// Reads an answer to its end.
pub(super) async fn read(asked: Instant, steps: Steps) -> Result<Answer> {
    read_on(asked, steps, Vec::new()).await
}

/// Reads on after tokens that came at these times.
pub(super) async fn read_on(asked: Instant, mut steps: Steps, mut came: Vec<Instant>) -> Result<Answer> {
    while let Some(step) = steps.next().await {
        if step?.tokens > 0 {
            came.push(Instant::now());
        }
    }
    Ok(Answer { asked, came, usage: steps.usage() })
}
