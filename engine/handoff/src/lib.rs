//! The sealed handoff: how a prompt's KV pages go from who computed them to who goes on with them, and to nobody else.
//!
//! Three parties: the gateway's [`HandoffDesk`] draws the ids and knows the client, a [`PrefillSide`] computes the prompt, a
//! [`DecodeSide`] goes on from there. Each is a value that is given what happened and returns [`Effect`]s. There is no I/O,
//! no thread, no clock and no randomness here: time comes in as a duration since the side's own start, ids come in from
//! whoever draws them, and a driver (in `engine/runtime`) does what the effects say and reports how it went. Because the
//! sides are values, the model check explores these very sides and not a drawing of them.
//!
//! ```text
//! gateway             decode side                               prefill side
//!    |--- Reserve ------->| ReservePages                             |
//!    |<-- Credit ---------|                                          |
//!    |--- Start ---------------------------------------------------->| StartPrefill, Seal
//!    |                    |<----------------------------- Offer -----|   the manifest, sealed
//!    |                    | V1-V6, V9, V10                           |
//!    |                    |------ Fetch ---------------------------->| BeginSend
//!    |                    | BeginReceive . . . . . . bytes . . . . . |
//!    |                    | Measure (own fence, own memory), V7-V9   |
//!    |                    |------ Verified ------------------------->| C1 offered, C2 within the lease, C3 same pages
//!    |                    |<----------------------------- Commit ----|
//!    |                    | V9, Relabel, StartDecode                 |
//!    |<-- Decoding -------|------ Drained -------------------------->| Release
//! ```
//!
//! States of the decode side:
//!
//! ```text
//! Reserving -> Reserved -> Receiving -> Landed -> Verified -> Committed -> (decoding)
//!      \           \            \          \          \           \
//!       '-----------'------------'----------'----------'-----------'-> Aborting -> (freed | kept as evidence)
//! ```
//!
//! States of the prefill side. Once the commit is out, only the decode side's word ends it:
//!
//! ```text
//! Admitted -> Prefilling -> Sealed -> Offered -> Draining -> (released)
//!      \           \           \         \
//!       '-----------'-----------'---------'-> Aborting -> (freed | kept as evidence)
//! ```
//!
//! A page has two lifetimes, the request's and that of whoever works at it. `Aborting` lasts until every piece of work that
//! an effect began has been reported as ended, or as fenced; only then is `Release` asked for. A timer asks for
//! `Quarantine` and `Fence` and never for `Release`.
//!
//! Leases are durations. The prefill side counts from its offer, or from when a heartbeat came; the decode side uses 80 % of
//! the length, from when the offer came or from when it *sent* the heartbeat. No time of one process is compared with
//! another's, and whether it is still time to commit is the prefill side's to say.
//!
//! Transports are the driver's: pages that stay where they are (one pool), a copy within a process, or bytes over a socket
//! into a staging buffer that the receiver's own ledger copies in. No peer ever holds a right to write into a live pool.
//! Where pages stay, `BeginSend` lasts until the decode side has relabelled or dropped them.
//!
//! Refuses: anything that no state expects. It is counted ([`Dropped`]) and changes nothing.
#![forbid(unsafe_code)]

mod cause;
mod check;
mod content;
mod decode;
mod desk;
mod effect;
mod encoding;
mod ended;
mod identity;
mod key;
mod manifest;
mod message;
#[cfg(test)]
mod model_check;
mod prefill;
mod refusal;
mod wire;

pub use check::{Check, Checks};
pub use content::{ContentDigest, ContentKey, ContentTotals};
pub use decode::{DecodeConfig, DecodeInput, DecodeSide, DecodeState};
pub use desk::{DeskConfig, DeskState, HandoffDesk, OpenError, Opening};
pub use effect::{Dropped, Effect, End, Incident, PageSlot};
pub use encoding::DecodeError;
pub use ended::{Outcome, TOMBSTONES_MAX};
pub use identity::{Attempt, Fingerprint, HandoffId, Incarnation, Party, RequestDigest, RequestFacts, Route};
pub use key::{HandoffKey, Seal};
pub use manifest::{
    FirstStep, FirstToken, LAYERS_MAX, Manifest, ManifestPage, PAGES_MAX, SamplerState, SealedManifest,
};
pub use message::{AbortReason, HEARTBEAT_HANDOFFS_MAX, Message, Order};
pub use prefill::{PrefillConfig, PrefillEnd, PrefillInput, PrefillSide, PrefillState, SealedPage};
pub use refusal::{DecodeHost, Landed, LandedPage, PrefillHost, Refusal};
pub use wire::{FRAME_BYTES_MAX, LENGTH_BYTES, WIRE_VERSION, WireError, decode, encode, frame_length};
