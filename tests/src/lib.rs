//! What the end-to-end suites share: a running `bulkhead demo`, a client, and the paths of the binaries.
//!
//! Nothing here knows the product's types: the suites in `tests/` speak HTTP and read files, as a user would.
#![forbid(unsafe_code)]

mod binary;
mod browser;
mod client;
mod demo;
mod program;

pub use binary::{binary, model_path, repository, run};
pub use browser::Browser;
pub use client::{Client, Event, Response, chat};
pub use demo::{Demo, Tenant};
pub use program::Program;
