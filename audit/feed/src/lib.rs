//! The engine's own account of its pages, as files beside the log: which page is whose, from when to when, and what each pass
//! read for whom. Written by the thread that computes, past all that handles requests, and read by an auditor, who compares it
//! with what the gateway put into the log.
//!
//! No text, no tokens, no name: pages, lives, labels as numbers, requests as their ids.
#![forbid(unsafe_code)]

mod reader;
mod record;
mod writer;

pub use reader::{Feed, FeedError};
pub use record::Record;
pub use writer::{EngineFeed, FeedSettings, OpenFeedError};
