//! The way between two processes of one engine: frames over a Unix or TCP socket with mutual TLS.
//!
//! Each process has a certificate of the engine's own authority, and the certificate says which part of the engine it is:
//! neither side speaks to one that is not the other part. What the frames mean is not known here. A [`Link`] keeps their
//! order, bounds their size and number, notices a peer that has gone silent, and tells the end of what was said from a
//! connection that was cut.
//!
//! Callers are plain threads: a link's own thread does the waiting.
#![forbid(unsafe_code)]

mod address;
mod authority;
mod connection;
mod frame;
mod identity;
mod link;
mod role;

pub use address::{Address, AddressError};
pub use authority::{Authority, AuthorityError};
pub use connection::{Closer, ConnectError, Incoming, Listener, connect};
pub use frame::Frame;
pub use identity::{Identity, IdentityError, IdentityFiles};
pub use link::{Link, LinkEnd, LinkError, LinkReceiver, LinkSender, LinkTerms};
pub use role::Role;

#[cfg(test)]
mod tests;
