//! The rig: the engine's own step loop, ledger and gate, with a model that tells whom it read, and no thread or clock.
//!
//! A run is a list of acts ([`Act`]); the same list gives the same run. What is true is known from the [`Tracer`]'s shadow,
//! which does not look at labels, tags or the log; what the product says is compared with that. Compiled for tests and for
//! `bulkhead selftest`, never into a shipped gateway.
#![forbid(unsafe_code)]

mod act;
mod blast;
mod cast;
pub mod catalogue;
mod client;
mod engine;
pub mod fuzzer;
mod incident;
mod quiet;
mod survey;
mod told;
mod tracer;
mod world;

pub use act::{Act, NoAct};
pub use blast::{Window, suspect_lives, touched_by_record, touched_in_truth};
pub use cast::Cast;
pub use client::{Client, State, Verdict, is_isolation_fault};
pub use incident::{Caught, Incident, Leaked, Run, Source};
pub use survey::{Row, Survey};
pub use tracer::{ForeignRead, Stay, Tracer};
pub use world::{Checks, Findings, Groups, Setup, World};

#[cfg(test)]
mod tests;
