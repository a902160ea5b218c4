//! The gateway as its clients see it: raw sockets on loopback, the real model, the real log.

mod bodies;
mod framing;
mod lifecycle;
mod streams;
mod world;
