//! The engine as the gateway sees it: tokenize, submit, read steps.
//!
//! One thread owns the KV store and runs the step loop (`step.rs`); requests reach it through a bounded inbox, steps
//! come back through one bounded channel each. Dropping [`Steps`] cancels: a running prefill stops within one layer.
//! What this crate refuses to do: to decide whether a step's text may be sent. It reports what was read.
#![forbid(unsafe_code)]

mod admission;
mod canary;
mod compute;
mod config;
mod custody;
mod detokenizer;
mod draft;
mod engine;
#[cfg(feature = "fault-injection")]
mod executor;
#[cfg(feature = "fault-injection")]
mod fault;
mod inbox;
mod machine;
mod outlet;
mod pace;
mod periods;
mod public_prefix;
mod remote;
mod replay;
mod replay_digest;
mod running;
mod sampling;
mod sequence;
mod split;
mod step;
mod steps;
mod ticket;
mod traced_table;
mod witness;

pub use canary::{try_ledger, try_manifest_seal, try_tag_check};
pub use compute::Compute;
#[cfg(feature = "fault-injection")]
pub use compute::PlainStore;
pub use config::{EngineBounds, EngineConfig, Split, StartEngineError};
pub use engine::{Engine, EngineStats, Setup, SubmitError};
pub use engine_handoff::Check;
pub use engine_kernels::KvKind;
pub use engine_scheduler::{Class, Overpromised, Tenancy, TenantTerms};
#[cfg(feature = "fault-injection")]
pub use executor::StepExecutor;
#[cfg(feature = "fault-injection")]
pub use fault::Fault;
pub use machine::DeclareError;
pub use public_prefix::PublicPrefix;
pub use remote::{RemoteWorker, StartWorkerError, Worker};
pub use replay::{AskedPrompt, Regenerated, ReplayError, ReplayJob, ReplayVerdict, Replayer};
pub use replay_digest::AnswerRecord;
pub use sampling::Sampling;
pub use sequence::{PromptInput, Sequence, TokenizeError};
#[cfg(feature = "fault-injection")]
pub use split::SplitExecutor;
pub use steps::{StepError, Steps, Timings, Usage};
pub use witness::Witness;
