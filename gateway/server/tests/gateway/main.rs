//! The gateway as its clients see it: raw sockets on loopback, the real model, the real log.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a panic is how a test fails")]

mod audits;
mod bodies;
mod framing;
mod lifecycle;
mod prefixes;
mod streams;
mod templates;
mod tls;
mod world;
