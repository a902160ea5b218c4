//! An auditor of a log: it reads every entry and every trace by itself, keeps its own table of whose each page was, and cosigns a
//! checkpoint only if it can say: everything below it was decoded, its rules were applied, and what broke one was stopped and is
//! in the log.
//!
//! With the engine's own account of its pages (`audit/feed`), which does not pass the gateway, it keeps a table of whose each page
//! is from when to when, and compares each response with what the engine says that it read for it.
//!
//! It shares the specification, the format of entries and the witness's memory with others, and nothing with who wrote the log.
//! It runs beside the gateway, as another user with another key, or anywhere that has a copy of the log's folder.
//! [`Auditor::audit`] is the story.
#![forbid(unsafe_code)]

mod auditor;
mod engine_side;
mod page_lives;
mod traces;

pub use audit_witness::Examined;
pub use auditor::{Audited, Auditor, Objection, WITHOUT_TRACE_PERCENT};
pub use engine_side::EngineFault;
