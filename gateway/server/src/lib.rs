//! The gateway: HTTP in, OpenAI's API, one embedded engine, one audit log.
//!
//! [`serve`](../src/gateway_server/serve.rs.html) is the story of a request. This crate is the only one that knows
//! Pingora (`exchange`), JSON (`generate`, `reply`) and all of auth, rules, engine and log; none of those know each
//! other. What it refuses to do: send text that did not pass the provenance gate, or answer without a durable entry.
#![forbid(unsafe_code)]

mod audits;
mod bounded_file;
mod chat_renderer;
mod config;
mod engine_feed;
mod exchange;
mod framing;
mod gateway;
mod generate;
mod host;
mod json;
mod keeping;
mod metrics;
mod open_files;
mod operators;
mod own_entries;
mod replays;
mod reply;
mod respond;
mod routes;
mod seats;
mod second_opinion;
mod self_tests;
mod serve;
mod shape;
mod tls;
mod turns;
mod webhooks;
mod witnesses;

pub use chat_renderer::{RenderProcesses, render_chat};
pub use config::{
    Agreement, Config, ConfigError, IndexKind, Limits, MetricsReaders, Mistake, ParseConfigError, ReplayTerms,
    SecondOpinion, StreamShape, WebhookPlace, WeightsCache, WitnessPlace, WitnessSettings, WorkerPlace,
};
pub use exchange::ConnectionLimits;
pub use gateway::{Gateway, StartError};
pub use metrics::StartMetricsError;
pub use tls::{LoadTlsError, TlsFiles};
pub use webhooks::StartWebhookError;

/// What a route says of a request's body, for the fuzz targets: nothing is computed.
///
/// # Errors
/// The message that a client would get.
#[doc(hidden)]
pub fn check_request_body(chat: bool, body: &[u8]) -> Result<(), String> {
    let api = if chat { generate::Api::Chat } else { generate::Api::Text };
    generate::Generate::parse(api, body, 0, StreamShape::AsItComes).map(drop).map_err(|error| error.to_string())
}

/// What a request asks the model for, read from its body as the gateway read it: for who computes a recorded answer again.
///
/// # Errors
/// The message that the client would have got.
pub fn asked_of(
    body: &[u8],
    request: policies_domain::RequestId,
) -> Result<(engine_runtime::PromptInput, engine_runtime::Sampling), String> {
    // A body of one route is none of the other: the one has `messages`, the other `prompt`.
    let parse = |api| generate::Generate::parse(api, body, generate::seed_of(request), StreamShape::AsItComes);
    let of_chat = |_| parse(generate::Api::Chat);
    let generate = parse(generate::Api::Text).or_else(of_chat).map_err(|error| error.to_string())?;
    Ok((generate.prompt, generate.sampling))
}
