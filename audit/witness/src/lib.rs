//! A witness of transparency logs: it remembers the largest tree that it has seen of each log that it follows, and signs
//! a newer one only if that continues the old one. Whoever sees its signature knows that the log showed it no other history.
//!
//! It speaks C2SP tlog-witness (`POST /add-checkpoint`), cosigns as C2SP tlog-cosignature has it, and follows any log that
//! publishes C2SP checkpoints of three lines. It knows the specification (`audit-tlog`) and nothing of Bulkhead's log, so
//! that a fault of the log is not repeated by its witness. [`Witness::add_checkpoint`] is the story.
#![forbid(unsafe_code)]

mod serve;
mod store;
mod witness;

pub use serve::{Limits, serve, serve_until_signal};
pub use store::{StoreError, make_key};
pub use witness::{Answer, Examine, Examined, LOGS_MAX, OpenWitnessError, Witness};
