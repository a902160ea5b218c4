//! A gateway over HTTP, as two of its tenants: what any client can measure, and nothing else.

use super::measure::{Answered, Party, Probed, Shape};
use super::report::Server;
use crate::cli::http_client::{Address, Request, RequestError, Response, send};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// One answer takes no longer...
const REQUEST_TICKS_MAX: u32 = 120;
/// ...in seconds in which this program ran: one that was stopped meanwhile, or whose machine was, has waited for one of them.
const TICK: Duration = Duration::from_secs(1);
/// How often a request is sent again after `429` and `503`.
const ATTEMPTS_MAX: usize = 60;
/// The longest wait before that, whatever the gateway says.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Tokens of an answer whose stream is looked at.
const STREAM_TOKENS: u32 = 64;
/// The code with which a gateway stops an answer for an isolation fault.
const STOPPED: &str = "isolation_fault";
/// Longest message of a gateway that is repeated, characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// Keys of the two tenants. Has no `Debug`, and is never written anywhere.
#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) victim: String,
    pub(crate) attacker: String,
}

impl Keys {
    fn of(&self, party: Party) -> &str {
        match party {
            Party::Victim => &self.victim,
            Party::Attacker => &self.attacker,
        }
    }
}

/// A running gateway and the keys to ask it.
#[derive(Clone)]
pub(crate) struct HttpGateway {
    address: Address,
    keys: Keys,
    model: String,
}

impl HttpGateway {
    /// Finds out what model the gateway serves, that both keys may use it, and that it takes prompts of so many tokens.
    pub(crate) async fn connect(address: Address, keys: Keys, prompt_tokens_max: usize) -> Result<(Self, Server)> {
        let Model { id: model, fingerprint, context } = first_model(&address, &keys.victim).await?;
        if first_model(&address, &keys.attacker).await?.id != model {
            bail!("the two keys may not use the same model");
        }
        if let Some(context) = context.filter(|context| *context < prompt_tokens_max as u64) {
            bail!("prompts of {prompt_tokens_max} tokens are too long for the gateway, which takes {context} tokens");
        }
        let server = Server { address: address.to_string(), model: model.clone(), fingerprint };
        Ok((Self { address, keys, model }, server))
    }

    fn body(&self, prompt: &str, tokens: u32) -> String {
        let options = json!({"include_usage": true});
        json!({
            "model": self.model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "seed": 0, "stream": true,
            "stream_options": options,
        })
        .to_string()
    }

    /// Sends until it is not refused for overload. Gives back when the last attempt began; no response when an isolation fault
    /// stopped it.
    async fn post(&self, party: Party, body: String) -> Result<(Instant, Option<Response>)> {
        for _ in 0..ATTEMPTS_MAX {
            let request = Request {
                method: "POST",
                path: "/v1/completions",
                key: Some(self.keys.of(party)),
                body: Some(body.clone()),
            };
            let begun = Instant::now();
            let response = send(&self.address, request).await?;
            match response.status {
                200 => return Ok((begun, Some(response))),
                429 | 503 => tokio::time::sleep(wait(&response)).await,
                _ => match refusal(response).await {
                    Refusal { code, .. } if code == STOPPED => return Ok((begun, None)),
                    refusal => bail!(refusal.message),
                },
            }
        }
        bail!("the gateway is overloaded: a request was refused {ATTEMPTS_MAX} times")
    }

    async fn answer(&self, party: Party, prompt: &str) -> Result<(Instant, Instant, Answered)> {
        let (begun, response) = self.post(party, self.body(prompt, 1)).await?;
        let Some(mut response) = response else {
            let now = Instant::now();
            let first_us = microseconds(begun, now);
            return Ok((begun, now, Answered { first_us, prompt_tokens: 0, cached_tokens: 0, stopped: true }));
        };
        let mut first = None;
        let mut usage = (0, 0);
        while let Some(event) = response.event().await? {
            first.get_or_insert_with(Instant::now);
            if event == "[DONE]" {
                break;
            }
            let event = parse(&event)?;
            let count = |path| event.pointer(path).and_then(Value::as_u64);
            if let Some(prompt_tokens) = count("/usage/prompt_tokens") {
                usage = (prompt_tokens, count("/usage/prompt_tokens_details/cached_tokens").unwrap_or(0));
            }
        }
        let first = first.context(RequestError::Protocol("the stream ended before its first event"))?;
        let (prompt_tokens, cached_tokens) = usage;
        let first_us = microseconds(begun, first);
        Ok((begun, first, Answered { first_us, prompt_tokens, cached_tokens, stopped: false }))
    }

    async fn shape(&self, party: Party, prompt: &str) -> Result<Shape> {
        let (_, response) = self.post(party, self.body(prompt, STREAM_TOKENS)).await?;
        let mut response = response.context("an isolation fault stopped a stream")?;
        let mut events: Vec<(Instant, u64)> = Vec::new();
        while let Some(event) = response.event().await? {
            let at = (Instant::now(), response.events_bytes());
            if event == "[DONE]" {
                break;
            }
            // The token counts are no text.
            if parse(&event)?.pointer("/choices/0").is_some() {
                events.push(at);
            }
        }
        let (Some((first, _)), Some((last, bytes))) = (events.first(), events.last()) else {
            bail!(RequestError::Protocol("a stream without events"))
        };
        let gaps = (events.len() - 1).max(1) as f64;
        Ok(Shape { bytes: *bytes as f64 / events.len() as f64, gap_us: microseconds(*first, *last) / gaps })
    }
}

impl Probed for HttpGateway {
    async fn ask(&mut self, party: Party, prompt: &str) -> Result<Answered> {
        in_time(self.answer(party, prompt)).await.map(|(_, _, answered)| answered)
    }

    async fn ask_at_once(&mut self, batch: Vec<(Party, String)>) -> Result<Vec<Answered>> {
        let (begun, count) = (Instant::now(), batch.len());
        let mut asked = JoinSet::new();
        for (index, (party, prompt)) in batch.into_iter().enumerate() {
            let gateway = self.clone();
            asked.spawn(async move { (index, in_time(gateway.answer(party, &prompt)).await) });
        }
        let mut answered = vec![None; count];
        while let Some(done) = asked.join_next().await {
            let (index, answer) = done.context("a request was cut short")?;
            let (_, first, one) = answer?;
            // Whoever had to come back came later.
            answered[index] = Some(Answered { first_us: microseconds(begun, first), ..one });
        }
        answered.into_iter().collect::<Option<Vec<_>>>().context("a request was cut short")
    }

    async fn stream(&mut self, party: Party, prompt: &str) -> Result<Shape> {
        in_time(self.shape(party, prompt)).await
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let mut work = pin!(work);
    for _ in 0..REQUEST_TICKS_MAX {
        if let Ok(done) = tokio::time::timeout(TICK, &mut work).await {
            return done;
        }
    }
    bail!("an answer took more than {REQUEST_TICKS_MAX} s")
}

fn microseconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e6
}

fn wait(response: &Response) -> Duration {
    let seconds = response.header("retry-after").and_then(|seconds| seconds.parse().ok()).unwrap_or(1);
    Duration::from_secs(seconds).min(WAIT_MAX)
}

fn parse(event: &str) -> Result<Value> {
    let event: Value = serde_json::from_str(event).context("an event of the stream is not JSON")?;
    match event.pointer("/error/message").and_then(Value::as_str) {
        Some(message) => bail!("the gateway ended an answer: {}", shown(message)),
        None => Ok(event),
    }
}

/// A model as the gateway lists it.
struct Model {
    id: String,
    fingerprint: Option<String>,
    /// Tokens of prompt and completion together, at most.
    context: Option<u64>,
}

async fn first_model(address: &Address, key: &str) -> Result<Model> {
    let request = Request { method: "GET", path: "/v1/models", key: Some(key), body: None };
    let response = send(address, request).await?;
    if response.status != 200 {
        bail!(refusal(response).await.message);
    }
    let list: Value = serde_json::from_slice(&response.body().await?).context("the list of models is not JSON")?;
    let text = |path: &str| list.pointer(path).and_then(Value::as_str).map(str::to_owned);
    let id = text("/data/0/id").context("a key may use no model")?;
    let context = list.pointer("/data/0/max_model_len").and_then(Value::as_u64);
    Ok(Model { id, fingerprint: text("/data/0/fingerprint"), context })
}

/// How a result came to the log, or why not.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(untagged)]
pub(crate) enum Recorded {
    At { index: u64, leaf: String },
    Not { reason: String },
}

/// Gives the result to the gateway's log, as the first tenant.
pub(crate) async fn record(address: &Address, keys: &Keys, result: String) -> Result<Recorded> {
    let request = Request { method: "POST", path: "/v1/isolation/audits", key: Some(&keys.victim), body: Some(result) };
    let response = send(address, request).await?;
    if response.status != 201 {
        return Ok(Recorded::Not { reason: refusal(response).await.message });
    }
    let entry: Value = serde_json::from_slice(&response.body().await?).context("the record is not JSON")?;
    let index = entry.get("index").and_then(Value::as_u64).context("the record has no index")?;
    let leaf = entry.get("leaf").and_then(Value::as_str).context("the record has no leaf hash")?;
    Ok(Recorded::At { index, leaf: shown(leaf) })
}

/// What an OpenAI-shaped error says.
struct Refusal {
    message: String,
    code: String,
}

async fn refusal(response: Response) -> Refusal {
    let status = response.status;
    let body = response.body().await.unwrap_or_default();
    let error: Value = serde_json::from_slice(&body).unwrap_or_default();
    let text = |path: &str| error.pointer(path).and_then(Value::as_str);
    let message = match text("/error/message") {
        Some(message) => format!("{status}: {}", shown(message)),
        None => format!("the gateway answered {status}"),
    };
    Refusal { message, code: shown(text("/error/code").unwrap_or_default()) }
}

/// Text from elsewhere, short and without what would steer the terminal.
fn shown(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests;
