//! Who gets the engine next: between tenants, between their requests, between prompts and answers.
//!
//! Values without threads, clock or I/O: the step loop tells them what happened, how long it took and what time it is, and
//! asks what to do. A simulation does the same with an engine that it made up, so that what is shown of ten thousand
//! tenants is shown of this very code.
#![forbid(unsafe_code)]

mod admission;
mod cost;
mod fair;
mod pages;
mod scheduler;
mod terms;

pub use admission::{Bounds, Full, Load, places_of_one};
pub use cost::{CostModel, Costs, Pass, Row};
pub use scheduler::{Arrival, Chunk, Fit, Key, Reclaim, Scheduler, SchedulerConfig};
pub use terms::{Class, Overpromised, Tenancy, TenantTerms};
