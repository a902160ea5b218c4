//! A prefill group in another process: what goes over the link between the two, and who does what on its ends.
//!
//! ```text
//! gateway: DecodeGroup, readers                        worker: PrefillGroup
//!      |------- Hello: secret, life, model ------------------>|
//!      |<---------------------- Welcome: life, pages ---------|   or Refused, and why
//!      |------- Prompt, Message ----------------------------->|
//!      |<---------------------- Read, Message, Page ... ------|
//! ```
//!
//! A link is one life of the prefill group: when it ends, so do all handoffs that are not committed, and nothing that was
//! said on it counts on the next one. Bytes of pages are gathered in memory of their own, and the decode group copies them
//! into pages that it keeps for them; nobody else ever writes into its pool.

mod exchange;
mod introduction;
mod terms;
#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests;
mod wire;
mod worker;

pub use exchange::RemotePrefill;
pub(crate) use exchange::{Arrivals, RemotePeer};
pub(crate) use terms::link_terms;
pub use worker::{PrefillWorker, StartWorkerError};
