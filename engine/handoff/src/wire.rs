//! Messages as frames: `length | version | kind | body | seal`, the length counting what follows it.
//!
//! A decoder refuses what it does not know: another version, an unknown kind, a list beyond its bound, a byte too many. The
//! seal covers version, kind and body, so that a flipped bit cannot turn one handoff's message into another's.

use crate::encoding::{DecodeError, Decoder, Encoder};
use crate::identity::{HandoffId, Incarnation, RequestDigest, Route};
use crate::key::{HandoffKey, Seal};
use crate::manifest::{
    MANIFEST_BYTES_MAX, Manifest, SealedManifest, read_digest, read_domain, read_route, write_digest, write_route,
};
use crate::message::{AbortReason, HEARTBEAT_HANDOFFS_MAX, Message, Order};

/// The version of this encoding.
pub const WIRE_VERSION: u8 = 1;
/// Bytes of the length in front of a frame.
pub const LENGTH_BYTES: usize = 4;
/// Bytes of the largest frame after its length.
pub const FRAME_BYTES_MAX: usize = FRAME_BYTES_MIN + MANIFEST_BYTES_MAX + Seal::BYTES;
const FRAME_BYTES_MIN: usize = 2 + Seal::BYTES;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The length in front is one that no frame has. Nothing was allocated for it.
    #[error("a frame of {length} bytes, it has {FRAME_BYTES_MIN} to {FRAME_BYTES_MAX}")]
    Length {
        /// The length as it was said to be.
        length: u32,
    },
    /// There are more or fewer bytes than the length says.
    #[error("a frame of {length} bytes came with {bytes}")]
    Cut {
        /// The length as it was said to be.
        length: u32,
        /// Bytes that came.
        bytes: usize,
    },
    /// The seal is not that of these bytes under this key.
    #[error("the seal of the frame does not hold")]
    Seal,
    /// Another version of this encoding.
    #[error("a frame of version {version}, {WIRE_VERSION} is spoken here")]
    Version {
        /// The version.
        version: u8,
    },
    /// A kind of message that this version does not have.
    #[error("no message has the kind {kind}")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// The body is not one of its kind.
    #[error("the body of a message is malformed")]
    Body(#[from] DecodeError),
}

/// The number of bytes that follow the four of the length, for a reader that has these four.
///
/// # Errors
/// [`WireError::Length`], before anything is read or allocated.
pub fn frame_length(length: [u8; LENGTH_BYTES]) -> Result<usize, WireError> {
    let length = u32::from_le_bytes(length);
    if (FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&(length as usize)) {
        Ok(length as usize)
    } else {
        Err(WireError::Length { length })
    }
}

/// One message as a frame, its length in front.
#[must_use]
pub fn encode(message: &Message, key: &HandoffKey) -> Vec<u8> {
    let mut body = Encoder::default();
    body.u8(WIRE_VERSION);
    write(message, &mut body);
    let body = body.finish();
    let mut frame = Encoder::default();
    frame.length(body.len() + Seal::BYTES);
    frame.bytes(&body);
    frame.bytes(&key.frame(&body).bytes());
    frame.finish()
}

/// The message in one whole frame, its length in front.
///
/// # Errors
/// [`WireError`] for anything that [`encode`] does not make.
pub fn decode(frame: &[u8], key: &HandoffKey) -> Result<Message, WireError> {
    let Some((length, rest)) = frame.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(WireError::Cut { length: 0, bytes: frame.len() });
    };
    if frame_length(*length)? != rest.len() {
        return Err(WireError::Cut { length: u32::from_le_bytes(*length), bytes: rest.len() });
    }
    let Some((body, seal)) = rest.split_last_chunk::<{ Seal::BYTES }>() else {
        return Err(WireError::Seal);
    };
    if key.frame(body) != Seal::from_bytes(*seal) {
        return Err(WireError::Seal);
    }
    let mut decoder = Decoder::new(body);
    let version = decoder.u8()?;
    if version != WIRE_VERSION {
        return Err(WireError::Version { version });
    }
    let message = read(&mut decoder)?;
    decoder.finish()?;
    Ok(message)
}

fn write(message: &Message, to: &mut Encoder) {
    match message {
        Message::Reserve { route, order, credit_ms } => {
            head(to, 1, *route);
            write_order(to, *order);
            to.u32(*credit_ms);
        }
        Message::Credit { route, pages } => {
            head(to, 2, *route);
            to.u32(*pages);
        }
        Message::Start { route, order } => {
            head(to, 3, *route);
            write_order(to, *order);
        }
        Message::Offer(SealedManifest { manifest, seal }) => {
            to.u8(4);
            manifest.write(to);
            to.bytes(&seal.bytes());
        }
        Message::Fetch { route } => head(to, 5, *route),
        Message::Verified { route, total } => {
            head(to, 6, *route);
            write_digest(to, *total);
        }
        Message::Commit { route } => head(to, 7, *route),
        Message::Drained { route } => head(to, 8, *route),
        Message::Decoding { route } => head(to, 9, *route),
        Message::Abort { route, reason } => {
            head(to, 10, *route);
            to.u8(*reason as u8);
        }
        Message::Heartbeat { beat, prefill, decode, handoffs } => {
            to.u8(11);
            write_beat(to, *beat, [*prefill, *decode], handoffs);
        }
        Message::HeartbeatAck { beat, prefill, decode, handoffs } => {
            to.u8(12);
            write_beat(to, *beat, [*prefill, *decode], handoffs);
        }
    }
}

fn read(from: &mut Decoder<'_>) -> Result<Message, WireError> {
    Ok(match from.u8()? {
        1 => Message::Reserve { route: read_route(from)?, order: read_order(from)?, credit_ms: from.u32()? },
        2 => Message::Credit { route: read_route(from)?, pages: from.u32()? },
        3 => Message::Start { route: read_route(from)?, order: read_order(from)? },
        4 => Message::Offer(SealedManifest { manifest: Manifest::read(from)?, seal: Seal::from_bytes(from.array()?) }),
        5 => Message::Fetch { route: read_route(from)? },
        6 => Message::Verified { route: read_route(from)?, total: read_digest(from)? },
        7 => Message::Commit { route: read_route(from)? },
        8 => Message::Drained { route: read_route(from)? },
        9 => Message::Decoding { route: read_route(from)? },
        10 => Message::Abort { route: read_route(from)?, reason: read_reason(from)? },
        11 => {
            let (beat, [prefill, decode], handoffs) = read_beat(from)?;
            Message::Heartbeat { beat, prefill, decode, handoffs }
        }
        12 => {
            let (beat, [prefill, decode], handoffs) = read_beat(from)?;
            Message::HeartbeatAck { beat, prefill, decode, handoffs }
        }
        kind => return Err(WireError::Kind { kind }),
    })
}

fn head(to: &mut Encoder, kind: u8, route: Route) {
    to.u8(kind);
    write_route(to, route);
}

fn write_order(to: &mut Encoder, order: Order) {
    to.u32(order.domain.bits());
    to.bytes(&order.request.0);
    to.u32(order.tokens);
}

fn read_order(from: &mut Decoder<'_>) -> Result<Order, DecodeError> {
    Ok(Order { domain: read_domain(from)?, request: RequestDigest(from.array()?), tokens: from.u32()? })
}

fn read_reason(from: &mut Decoder<'_>) -> Result<AbortReason, DecodeError> {
    let number = from.u8()?;
    let known = AbortReason::ALL.into_iter().find(|reason| *reason as u8 == number);
    known.ok_or(DecodeError::Field { field: "reason" })
}

fn write_beat(to: &mut Encoder, beat: u64, lives: [Incarnation; 2], handoffs: &[HandoffId]) {
    to.u64(beat);
    lives.iter().for_each(|life| to.u64(life.0));
    to.length(handoffs.len());
    handoffs.iter().for_each(|id| to.bytes(&id.bytes()));
}

fn read_beat(from: &mut Decoder<'_>) -> Result<(u64, [Incarnation; 2], Vec<HandoffId>), DecodeError> {
    let beat = from.u64()?;
    let lives = [Incarnation(from.u64()?), Incarnation(from.u64()?)];
    let id = |from: &mut Decoder<'_>| from.array().map(HandoffId::from_bytes);
    Ok((beat, lives, from.list("handoffs", HEARTBEAT_HANDOFFS_MAX, 16, id)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::samples;
    use proptest::prelude::*;

    fn key() -> HandoffKey {
        HandoffKey::new([8; 32])
    }

    fn message() -> impl Strategy<Value = Message> {
        let order = || {
            (samples::domain(), any::<[u8; 32]>(), any::<u32>()).prop_map(|(domain, request, tokens)| Order {
                domain,
                request: RequestDigest(request),
                tokens,
            })
        };
        let beat = || {
            let ids = proptest::collection::vec(any::<[u8; 16]>().prop_map(HandoffId::from_bytes), 0..4);
            (any::<u64>(), any::<u64>().prop_map(Incarnation), any::<u64>().prop_map(Incarnation), ids)
        };
        let reason = prop::sample::select(AbortReason::ALL.to_vec());
        prop_oneof![
            (samples::route(), order(), any::<u32>()).prop_map(|(route, order, credit_ms)| Message::Reserve {
                route,
                order,
                credit_ms
            }),
            (samples::route(), any::<u32>()).prop_map(|(route, pages)| Message::Credit { route, pages }),
            (samples::route(), order()).prop_map(|(route, order)| Message::Start { route, order }),
            samples::manifest().prop_map(|manifest| Message::Offer(manifest.seal(&key()))),
            samples::route().prop_map(|route| Message::Fetch { route }),
            (samples::route(), samples::digest()).prop_map(|(route, total)| Message::Verified { route, total }),
            samples::route().prop_map(|route| Message::Commit { route }),
            samples::route().prop_map(|route| Message::Drained { route }),
            samples::route().prop_map(|route| Message::Decoding { route }),
            (samples::route(), reason).prop_map(|(route, reason)| Message::Abort { route, reason }),
            beat().prop_map(|(beat, prefill, decode, handoffs)| Message::Heartbeat { beat, prefill, decode, handoffs }),
            beat().prop_map(|(beat, prefill, decode, handoffs)| Message::HeartbeatAck {
                beat,
                prefill,
                decode,
                handoffs
            }),
        ]
    }

    /// A frame with a good seal around any version, kind and body: what a peer with a fault of its own could send.
    fn sealed(body: &[u8]) -> Vec<u8> {
        let mut frame = Encoder::default();
        frame.length(body.len() + Seal::BYTES);
        frame.bytes(body);
        frame.bytes(&key().frame(body).bytes());
        frame.finish()
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_sent(message in message()) {
            prop_assert_eq!(decode(&encode(&message, &key()), &key()), Ok(message));
        }

        #[test]
        fn every_truncation_and_every_addition_is_an_error(message in message()) {
            let mut frame = encode(&message, &key());
            for length in 0..frame.len() {
                prop_assert!(decode(&frame[..length], &key()).is_err(), "cut to {} bytes", length);
            }
            frame.push(0);
            prop_assert!(decode(&frame, &key()).is_err());
        }

        #[test]
        fn every_flipped_byte_is_an_error(message in message(), change in 1u8..) {
            let frame = encode(&message, &key());
            for at in 0..frame.len() {
                let mut other = frame.clone();
                other[at] ^= change;
                let error = decode(&other, &key()).unwrap_err();
                prop_assert!(at < LENGTH_BYTES || error == WireError::Seal, "{} at {}", error, at);
            }
            prop_assert_eq!(decode(&frame, &HandoffKey::new([9; 32])), Err(WireError::Seal));
        }

        /// A peer that holds the key is believed no more than its bytes deserve: a body that was cut, extended or changed
        /// is an error or another message, never a panic and never two encodings of one message.
        #[test]
        fn sealed_nonsense_is_an_error_or_one_message(message in message(), cut in any::<prop::sample::Index>(),
                                                      at in any::<prop::sample::Index>(), change in 1u8..,
                                                      more in proptest::collection::vec(any::<u8>(), 1..5)) {
            let frame = encode(&message, &key());
            let body = &frame[LENGTH_BYTES..frame.len() - Seal::BYTES];
            prop_assert!(decode(&sealed(&body[..cut.index(body.len())]), &key()).is_err());
            prop_assert!(decode(&sealed(&[body, &more].concat()), &key()).is_err());
            let mut changed = body.to_vec();
            let at = at.index(changed.len());
            changed[at] ^= change;
            if let Ok(other) = decode(&sealed(&changed), &key()) {
                prop_assert_eq!(encode(&other, &key()), sealed(&changed));
                prop_assert_ne!(other, message);
            }
        }

        #[test]
        fn any_bytes_are_no_message(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(decode(&bytes, &key()).is_err());
            let _ = decode(&sealed(&bytes), &key());
        }
    }

    #[test]
    fn lengths_of_no_frame_are_refused_before_anything_is_read() {
        for length in [0, FRAME_BYTES_MIN as u32 - 1, FRAME_BYTES_MAX as u32 + 1, u32::MAX] {
            assert_eq!(frame_length(length.to_le_bytes()), Err(WireError::Length { length }));
        }
        assert_eq!(frame_length((FRAME_BYTES_MAX as u32).to_le_bytes()), Ok(FRAME_BYTES_MAX));
    }

    #[test]
    fn other_versions_and_kinds_are_refused() {
        assert_eq!(decode(&sealed(&[2, 7]), &key()), Err(WireError::Version { version: 2 }));
        for kind in [0, 13, 255] {
            assert_eq!(decode(&sealed(&[WIRE_VERSION, kind]), &key()), Err(WireError::Kind { kind }));
        }
    }

    #[test]
    fn lists_beyond_their_bounds_are_refused() {
        let route = samples_route();
        let mut beat = Encoder::default();
        beat.bytes(&[WIRE_VERSION, 11]);
        beat.bytes(&[0; 24]);
        beat.u32(HEARTBEAT_HANDOFFS_MAX + 1);
        let mut offer = Encoder::default();
        offer.bytes(&[WIRE_VERSION, 4]);
        write_route(&mut offer, route);
        offer.u32(2);
        offer.bytes(&[0; 64]);
        offer.u32(1);
        offer.u32(u32::MAX);
        for body in [beat.finish(), offer.finish()] {
            let error = decode(&sealed(&body), &key()).unwrap_err();
            assert!(matches!(error, WireError::Body(DecodeError::TooMany { .. })), "{error}");
        }
    }

    fn samples_route() -> Route {
        read_route(&mut Decoder::new(&[0; 36])).unwrap()
    }
}
