//! What is kept of a long answer: which pages were read in which step.

use super::super::callers::{greedy, submit};
use super::verification::receipt;
use super::{Logs, Rig, open_entry, outcome};
use anyhow::{Context, Result, ensure};
use engine_runtime::PromptInput;
use serde_json::{Value as Json, json};
use std::path::Path;

/// Of prompt and answer.
const TOKENS: usize = 2_000;
const ANSWER_TOKENS: usize = 200;

pub(super) async fn measure(logs: &Logs, rig: &Rig) -> Result<Json> {
    let (folder, log) = logs.open()?;
    let engine = rig.engine()?;
    let permit = rig.callers.permit(0)?;
    let prompt = PromptInput::Tokens(rig.prompt(TOKENS - ANSWER_TOKENS, 0));
    let sequence = engine.tokenize(&permit, &prompt)?;
    let mut steps = submit(&engine, &permit, sequence, greedy(ANSWER_TOKENS))?;
    let mut entry = open_entry(&log, &permit).await?;
    let mut number = 0_u64;
    while let Some(step) = steps.next().await {
        let released = entry.check(step?).map_err(|_| anyhow::anyhow!("a step was refused"))?;
        entry.sent(br#"{"content": "text"}"#, &released);
        number += 1;
    }
    let usage = steps.usage();
    let sealed = entry.seal(outcome(usage.prompt_tokens, usage.completion_tokens)).await?;
    ensure!(sealed.chunks == number, "chunks are missing");
    let receipt = receipt(&log, permit.principal(), permit.request()).await?;
    log.shutdown();
    Ok(json!({
        "tokens": usage.prompt_tokens + usage.completion_tokens,
        "steps": number,
        "trace_bytes": bytes_below(&folder.path().join("log/traces"))?,
        "receipt_with_trace_bytes": receipt.len(),
    }))
}

/// Of all files in a folder.
fn bytes_below(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for file in std::fs::read_dir(folder).with_context(|| format!("`{}` cannot be read", folder.display()))? {
        bytes += file?.metadata()?.len();
    }
    Ok(bytes)
}
