//! What a cached prefix saves: the first token of a prompt that nobody sent before, and of one that begins as it did.

use super::{Rig, compared};
use anyhow::Result;
use serde_json::{Value as Json, json};
use std::sync::Arc;

const PREFIXES: [usize; 2] = [500, 1_500];
/// What follows a prefix.
const TAIL_TOKENS: usize = 16;

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    let engine = rig.engine(rig.config(), rig.equal()?)?;
    let mut rows = Vec::new();
    for prefix_tokens in PREFIXES {
        let (mut sides, mut cached_tokens) = ([Vec::new(), Vec::new()], 0);
        // The first repetition warms caches and is not counted.
        for repetition in 0..=rig.repetitions {
            let prefix = rig.fresh_prompt(prefix_tokens);
            let prompt = || prefix.iter().copied().chain(rig.fresh_prompt(TAIL_TOKENS)).collect();
            let cold = rig.ask(&engine, 0, prompt(), 1).await?;
            rig.idle(&engine).await?;
            let warm = rig.ask(&engine, 0, prompt(), 1).await?;
            rig.idle(&engine).await?;
            if repetition > 0 {
                sides[0].push(cold.ttft_ms()?);
                sides[1].push(warm.ttft_ms()?);
                cached_tokens = warm.usage.cached_tokens;
            }
        }
        let (cold, warm, ratio) = compared(&sides)?;
        rows.push(json!({
            "prefix_tokens": prefix_tokens, "prompt_tokens": prefix_tokens + TAIL_TOKENS, "cached_tokens": cached_tokens,
            "cold_ttft_ms": cold, "warm_ttft_ms": warm, "ratio": ratio,
        }));
    }
    Ok(json!({"prefixes": rows}))
}
