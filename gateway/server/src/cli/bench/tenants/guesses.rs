//! What guessed tokens save: answers that repeat what was said before, and answers that do not.

use super::{Rig, compared, in_turn};
use anyhow::{Context, Result};
use engine_runtime::EngineConfig;
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// Prompts that a model goes on with by saying the same again, and by saying something new.
const PROMPTS: [(&str, &str); 2] = [
    (
        "repeating",
        "Berth 1: empty. Berth 2: empty. Berth 3: empty. Berth 4: empty. Berth 5: empty. Berth 6: empty. Berth 7: empty. \
         Berth 8: empty. Berth 9: empty. Berth 10: empty. Berth 11: empty. Berth",
    ),
    ("new", "Once there was a lighthouse keeper who did not believe in ledgers. One evening"),
];
const ANSWER_TOKENS: usize = 128;

pub(super) async fn measure(rig: &Arc<Rig>) -> Result<Json> {
    let engine = |speculation| rig.engine(EngineConfig { speculation, ..rig.config() }, rig.equal()?);
    let engines = [engine(false)?, engine(true)?];
    let mut rows = Vec::new();
    for (name, text) in PROMPTS {
        let prompt = rig.model.tokenizer().encode(text, false).context("the prompt's text cannot be tokenized")?;
        let mut sides = [Vec::new(), Vec::new()];
        let before = engines[1].stats();
        // The first repetition warms caches and is not counted.
        for repetition in 0..=rig.repetitions {
            for guessed in in_turn(repetition) {
                let side = usize::from(guessed);
                let answer = rig.ask(&engines[side], 0, prompt.clone(), ANSWER_TOKENS).await?;
                if repetition > 0 {
                    sides[side].push(answer.tokens_per_second()?);
                }
            }
        }
        let after = engines[1].stats();
        let guessed = after.tokens_guessed_total - before.tokens_guessed_total;
        let accepted = after.tokens_accepted_total - before.tokens_accepted_total;
        let (plain, guessing, ratio) = compared(&sides)?;
        rows.push(json!({
            "prompt": name, "answer_tokens": ANSWER_TOKENS, "guessed_tokens": guessed, "accepted_tokens": accepted,
            "plain_tokens_per_second": plain, "guessing_tokens_per_second": guessing, "ratio": ratio,
        }));
    }
    Ok(json!({"prompts": rows}))
}
