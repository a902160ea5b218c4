//! A part of the engine in another process: what goes over the link between the two, and who does what on its ends.
//!
//! ```text
//! DecodeGroup                                                       PrefillGroup
//!      |------- Hello: secret, life, model ------------------------------->|
//!      |<----------------------------------- Welcome: life, pages ---------|   or Refused, and why
//!      |------- Prompt, Message ------------------------------------------>|
//!      |<----------------------------------- Read, Message, Page ... ------|
//! ```
//!
//! The gateway has one of the two, and the requests' readers: they are at the left end when a worker computes prompts
//! ([`connecting`] and [`worker::Deciding`] there), and at the right end when a worker decodes. Then requests go to the worker
//! and steps come back as [`stream_words`]: [`streams`] at the gateway's end, [`relay`] at the worker's.
//!
//! A link is one life of the prefill group: when it ends, so do all handoffs that are not committed, and nothing that was
//! said on it counts on the next one. Bytes of pages are gathered in memory of their own, and the decode group copies them
//! into pages that it keeps for them; nobody else ever writes into its pool.

mod connecting;
mod door;
mod exchange;
mod introduction;
mod relay;
mod stream_words;
mod streams;
mod terms;
#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests;
mod wire;
mod worker;

pub(crate) use connecting::Connecting;
pub use connecting::RemoteWorker;
pub(crate) use introduction::Requests;
pub(crate) use streams::Streams;
pub(crate) use terms::link_terms;
pub(crate) use wire::PromptBounds;
pub(crate) use worker::{Deciding, Serving};
pub use worker::{StartWorkerError, Worker};
