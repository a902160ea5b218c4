//! `bulkhead audit replay`: an answer computed again by whoever holds its receipt, without the operator.
//!
//! What a text was tokenized into is not unique, so the answer's tokens are not guessed from its text: they are sampled again,
//! from the prompt, the settings and the seed, as many as the receipt says. Each step's logits and its token go into the
//! replay digest, so the digest is the receipt's when every one of them has the same bits, and then the text that the tokens
//! make must be the response's.

use super::super::{note, say, serve};
use anyhow::{Context, Result, bail};
use audit_verify::{
    Evidence, RESPONSE_BYTES_MAX, ReceiptReport, ReplayAnswer, VerifierKey, check_receipt, payloads, read_file,
};
use clap::Args;
use engine_kernels::KvKind;
use engine_model::Model;
use engine_runtime::{AskedPrompt, EngineConfig, PromptInput, Replayer, Sampling};
use gateway_server::{Config, WeightsCache};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use policies_domain::Digest;
use serde_json::{Value, json};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The longest receipt.
const RECEIPT_BYTES_MAX: usize = 4 << 20;
/// The longest file of a key.
const KEY_BYTES_MAX: usize = 1 << 10;
/// The longest request.
const REQUEST_BYTES_MAX: usize = 64 << 20;

/// What to compute again, and on what.
#[derive(Clone, Debug, Args)]
pub(crate) struct ReplayArguments {
    /// The receipt, as `GET /v1/isolation/receipts/ID` gave it
    #[arg(long)]
    receipt: PathBuf,
    /// The request body, byte for byte as it was sent
    #[arg(long)]
    request: PathBuf,
    /// The response as it was received: server-sent events or a JSON body
    #[arg(long)]
    response: PathBuf,
    /// The log's verifier key, or a file that holds it; without it, `log.vkey` beside the receipt
    #[arg(long)]
    key: Option<String>,
    /// A configuration that names the model and what keys and values are stored as
    #[arg(long, conflicts_with = "model")]
    config: Option<PathBuf>,
    /// The model's file
    #[arg(long, required_unless_present = "config")]
    model: Option<PathBuf>,
    /// What keys and values were stored as: `bf16`, `f32` or `int8`
    #[arg(long, conflicts_with = "config", default_value = "bf16")]
    kv: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// What came of it, other than that the answer is the same.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotTheSame {
    #[error("the answer is NOT what this model computes from this request alone: {0}")]
    Different(&'static str),
    #[error("the answer cannot be compared: {0}")]
    CannotCompare(String),
}

impl NotTheSame {
    /// The program's exit code.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Different(_) => 3,
            Self::CannotCompare(_) => 4,
        }
    }
}

fn cannot<T>(reason: impl Into<String>) -> Result<T> {
    Err(NotTheSame::CannotCompare(reason.into()).into())
}

/// Checks the receipt, computes its answer again and compares.
pub(crate) async fn run(arguments: ReplayArguments) -> Result<()> {
    let receipt = read(&arguments.receipt, RECEIPT_BYTES_MAX)?;
    let request = read(&arguments.request, REQUEST_BYTES_MAX)?;
    let response = read(&arguments.response, RESPONSE_BYTES_MAX)?;
    let key = find_key(arguments.key.as_deref(), &arguments.receipt)?;
    let evidence = Evidence { request: Some(&request), response: Some(&response), ..Evidence::default() };
    let report = check_receipt(&receipt, &key, evidence)
        .map_err(|refusal| anyhow::anyhow!("{refusal} (check `{}`)", refusal.check()))
        .with_context(|| {
            format!("the receipt is refused under {key}, the one key that is known here: no rotation is followed")
        })?;
    comparable(&report)?;
    let (prompt, sampling) = gateway_server::asked_of(&request, report.sealed.request)
        .map_err(anyhow::Error::msg)
        .context("the request is none that this program serves")?;
    let config = config(&arguments)?;
    note(format_args!(
        "the receipt is genuine under {key}, the one key that is known here: no rotation of it is followed; loading the model"
    ));
    let model = serve::load_model(&config).await?;
    same_model(&report, &model, config.engine.kv)?;
    let json = arguments.json;
    let work = move || compare(&report, &response, &model, config.engine, &prompt, &sampling, json);
    let result = tokio::task::spawn_blocking(work).await.context("the replay was interrupted")??;
    say(match json {
        true => serde_json::to_string(&result)?,
        false => format!(
            "the answer is the same: {} tokens, computed again from the request alone, have the same logits and the same \
             text, bit for bit",
            result["tokens"]
        ),
    })?;
    Ok(())
}

/// Whether there is a digest to compare with.
fn comparable(report: &ReceiptReport) -> Result<()> {
    if report.sealed.replay.is_none() {
        return cannot(
            "its receipt has no replay digest: the operator makes one where `replay` of the tenant is above 0, or with \
             `[audit] replay_digest = true`",
        );
    }
    if report.replay_salt.is_none() {
        return cannot("its receipt does not hold the salt of the replay digest: the tenant's key was destroyed");
    }
    Ok(())
}

/// Another model, other weights or other kernels give other bits.
fn same_model(report: &ReceiptReport, model: &Model, kv: KvKind) -> Result<()> {
    let (digest, fingerprint) = (Digest(model.digest()), Digest(model.fingerprint(kv)));
    if digest != report.opened.model {
        return cannot(format!(
            "the model's file has SHA-256 {digest}, the answer was computed with {}",
            report.opened.model
        ));
    }
    if Some(fingerprint) != report.opened.fingerprint {
        let held = report.opened.fingerprint.map_or_else(|| "none".to_owned(), |held| held.to_string());
        return cannot(format!(
            "the model's fingerprint is {fingerprint} here and {held} in the receipt: same file, but `kv`, the kernels or the \
             program differ in what decides bits"
        ));
    }
    Ok(())
}

fn compare(
    report: &ReceiptReport,
    response: &[u8],
    model: &Arc<Model>,
    engine: EngineConfig,
    prompt: &PromptInput,
    sampling: &Sampling,
    quiet: bool,
) -> Result<Value> {
    let context = model.config().context_length;
    let asked = AskedPrompt::of_receipt(model, prompt, context).context("the prompt cannot be tokenized")?;
    let (prompt_tokens, tokens) = (asked.tokens(), usize::try_from(report.sealed.completion_tokens)?);
    if prompt_tokens as u64 != report.sealed.prompt_tokens {
        return Err(NotTheSame::Different("its prompt had another number of tokens").into());
    }
    let tokens_max = prompt_tokens.saturating_add(tokens);
    let mut replayer = Replayer::new(model.clone(), engine, tokens_max.min(context), engine.threads)?;
    let bar = bar(tokens_max, quiet);
    let made = replayer.regenerate(&asked, sampling, tokens, &mut |done| {
        bar.set_position(done as u64);
        true
    });
    bar.finish_and_clear();
    let made = made?;
    if made.ended_early {
        return Err(NotTheSame::Different("the model's output is no number there").into());
    }
    match report.replayed(&Digest(made.digest)) {
        ReplayAnswer::Same => {}
        ReplayAnswer::Different => return Err(NotTheSame::Different("logits or tokens have other bits").into()),
        // `comparable` has looked.
        ReplayAnswer::NotSealed | ReplayAnswer::NoSalt => return cannot("its receipt has nothing to compare with"),
    }
    if made.text != text_of(response)? {
        return Err(
            NotTheSame::Different("its tokens are the model's, and the text that was sent is not theirs").into()
        );
    }
    Ok(json!({
        "result": "same",
        "request": report.sealed.request.to_string(),
        "index": report.index,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "model": report.opened.model.to_string(),
        "fingerprint": report.opened.fingerprint.map(|fingerprint| fingerprint.to_string()),
        "checked": report.passed,
    }))
}

/// The text of a response in any of its four forms.
fn text_of(response: &[u8]) -> Result<String> {
    let mut text = String::new();
    for payload in payloads(response)? {
        let payload: Value = serde_json::from_slice(&payload).context("a payload of the response is no JSON")?;
        let choice = &payload["choices"][0];
        let pieces = [&choice["delta"]["content"], &choice["message"]["content"], &choice["text"]];
        pieces.into_iter().filter_map(Value::as_str).for_each(|piece| text += piece);
    }
    Ok(text)
}

fn config(arguments: &ReplayArguments) -> Result<Config> {
    if let Some(path) = &arguments.config {
        return serve::read_config(path);
    }
    let Some(model) = &arguments.model else { bail!("give --model FILE or --config FILE") };
    let mut config = Config::new("", model);
    config.engine.kv = KvKind::parse(&arguments.kv).context("`--kv` is bf16, f32 or int8")?;
    config.weights_cache = WeightsCache::User;
    Ok(config)
}

fn find_key(argument: Option<&str>, receipt: &Path) -> Result<VerifierKey> {
    if let Some(key) = argument.and_then(|argument| VerifierKey::parse(argument.trim()).ok()) {
        return Ok(key);
    }
    let beside = receipt.with_file_name("log.vkey");
    let path = argument.map_or(beside.as_path(), Path::new);
    if !path.exists() {
        bail!(
            "no key: give the log's verifier key with --key KEY or --key FILE, or put it beside the receipt as `log.vkey`; \
             without the key of the log that you trust, a signature proves nothing"
        );
    }
    let bytes = read(path, KEY_BYTES_MAX)?;
    let text = std::str::from_utf8(&bytes).with_context(|| format!("`{}` is not text", path.display()))?;
    VerifierKey::parse(text.trim()).with_context(|| format!("`{}`", path.display()))
}

fn read(path: &Path, bytes_max: usize) -> Result<Vec<u8>> {
    read_file(path, bytes_max).with_context(|| format!("cannot read `{}`", path.display()))
}

fn bar(tokens: usize, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(tokens as u64);
    let visible = std::io::stderr().is_terminal() && !quiet;
    bar.set_draw_target(if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() });
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} tokens, {eta} left") {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_response_is_found_in_each_of_its_forms() {
        for response in [
            r#"{"choices":[{"message":{"role":"assistant","content":"Hi you"}}]}"#,
            r#"{"choices":[{"text":"Hi you","index":0}]}"#,
            "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"Hi\"}}]}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\" you\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: {\"choices\":[],\"usage\":{}}\n\n: isolation {}\n\ndata: [DONE]\n\n",
            "data: {\"choices\":[{\"text\":\"Hi\"}]}\n\ndata: {\"choices\":[{\"text\":\" you\"}]}\n\ndata: [DONE]\n\n",
        ] {
            assert_eq!(text_of(response.as_bytes()).unwrap(), "Hi you", "{response}");
        }
        assert!(text_of(b"data: nothing\n\n").is_err());
    }

    #[test]
    fn each_finding_has_an_exit_code() {
        assert_eq!(NotTheSame::Different("x").exit_code(), 3);
        assert_eq!(NotTheSame::CannotCompare("x".into()).exit_code(), 4);
    }
}
