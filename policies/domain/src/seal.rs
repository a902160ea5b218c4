//! Seals: what ties a piece of an answer to its request, its tenant, its admission, its step and its connection.
//!
//! A seal is made where a token is sampled, travels with the text, and is checked by everybody who hands the text on,
//! the last time by whoever writes to the socket. The key belongs to one request and is drawn with it: a piece of
//! another request fails whatever it says of itself. Nothing here can tell whether the text is right, only whose it is.

use crate::{FinishReason, Label, Permit, RequestId};
use std::fmt;
use zeroize::Zeroizing;

/// Which admission of a request: counted up over all requests of an engine, never given twice. 0 is before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Epoch(pub u64);

/// A connection's number in this process, never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

/// What all seals of one request have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The request.
    pub request: RequestId,
    /// Whose data it is.
    pub label: Label,
    /// Where its answer goes.
    pub connection: ConnectionId,
}

impl Binding {
    /// The binding of the one request that the permit is good for.
    #[must_use]
    pub fn of(permit: &Permit, connection: ConnectionId) -> Self {
        Self { request: permit.request(), label: permit.label(), connection }
    }
}

/// What the seal is of: a seal of the one kind does not pass for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The text of one step, sealed by the engine.
    Text = 0,
    /// Bytes for the socket, sealed by whoever encoded them.
    Payload = 1,
}

/// The secret of one request. Wiped when dropped; shows in no `Debug`.
#[derive(Clone)]
pub struct SealKey(Zeroizing<[u8; 32]>);

impl SealKey {
    /// From 32 random bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// For the process of the engine that makes the seals, over a connection that nobody else reads.
    #[must_use]
    pub fn reveal(&self) -> &[u8; 32] {
        &self.0
    }

    /// Makes seals.
    #[must_use]
    pub fn sealer(&self, layer: Layer, binding: Binding) -> Sealer {
        Sealer { key: self.clone(), layer, binding }
    }

    /// Checks seals.
    #[must_use]
    pub fn verifier(&self, layer: Layer, binding: Binding) -> Verifier {
        Verifier { key: self.clone(), layer, binding, next: 0, epoch: Epoch::default(), refused: None }
    }

    /// The head has a fixed length, so no other head and bytes make the same message.
    fn mac(&self, layer: Layer, origin: &Origin, finish: Option<FinishReason>, bytes: &[u8]) -> blake3::Hash {
        let finish = match finish {
            None => 0,
            Some(FinishReason::Stop) => 1,
            Some(FinishReason::Length) => 2,
        };
        let Origin { binding: Binding { request, label, connection }, epoch, index } = *origin;
        let mut head = [0; HEAD_BYTES];
        head[0] = layer as u8;
        head[1] = finish;
        head[2..6].copy_from_slice(&label.bits().to_le_bytes());
        head[6..10].copy_from_slice(&index.to_le_bytes());
        head[10..18].copy_from_slice(&epoch.0.to_le_bytes());
        head[18..26].copy_from_slice(&connection.0.to_le_bytes());
        head[26..].copy_from_slice(&request.bytes());
        blake3::Hasher::new_keyed(&self.0).update(&head).update(bytes).finalize()
    }
}

/// With the text of a token it mostly fits one block of 64 bytes.
const HEAD_BYTES: usize = 42;

impl fmt::Debug for SealKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SealKey")
    }
}

/// What a sealed piece says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Request, tenant, connection.
    pub binding: Binding,
    /// The admission of the request; [`Epoch::default`] for payloads.
    pub epoch: Epoch,
    /// Counts the pieces from 0, without a gap.
    pub index: u32,
}

/// A piece's origin, and the code that only the request's key makes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seal {
    origin: Origin,
    mac: blake3::Hash,
}

impl Seal {
    /// As it was received: to be believed after [`Verifier::verify`].
    #[must_use]
    pub fn received(origin: Origin, mac: [u8; 32]) -> Self {
        Self { origin, mac: mac.into() }
    }

    /// The code.
    #[must_use]
    pub fn mac(&self) -> [u8; 32] {
        self.mac.into()
    }

    /// What the piece says of itself: to be believed after [`Verifier::verify`].
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seal({:?})", self.origin)
    }
}

/// Makes the seals of one request.
#[derive(Debug)]
pub struct Sealer {
    key: SealKey,
    layer: Layer,
    binding: Binding,
}

impl Sealer {
    /// What it binds to.
    #[must_use]
    pub fn binding(&self) -> &Binding {
        &self.binding
    }

    /// The request's secret.
    #[must_use]
    pub fn key(&self) -> &SealKey {
        &self.key
    }

    /// Seals a piece.
    #[must_use]
    pub fn seal(&self, epoch: Epoch, index: u32, bytes: &[u8], finish: Option<FinishReason>) -> Seal {
        let origin = Origin { binding: self.binding, epoch, index };
        Seal { origin, mac: self.key.mac(self.layer, &origin, finish, bytes) }
    }
}

/// Why a piece is not passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// It was made for another request, tenant or connection.
    #[error("piece {index} is one of request `{}` of {}, for connection {}", held.request, held.label, held.connection.0)]
    Foreign {
        /// Its place among the other's pieces.
        index: u32,
        /// Whose it says it is.
        held: Binding,
    },
    /// A piece is missing, repeated or out of order.
    #[error("piece {held} came where piece {wanted} was due")]
    Gap {
        /// The number that came.
        held: u32,
        /// The number that was due.
        wanted: u32,
    },
    /// It comes from an admission that was over.
    #[error("piece {index} comes from an ended admission")]
    Ended {
        /// Its number.
        index: u32,
    },
    /// It is not what was sealed.
    #[error("piece {index} is not what was sealed")]
    Altered {
        /// The number that it has, or should have.
        index: u32,
    },
}

impl SealError {
    /// Whose the piece is, if it says that it is somebody else's.
    #[must_use]
    pub fn foreign(&self) -> Option<&Binding> {
        match self {
            Self::Foreign { held, .. } => Some(held),
            Self::Gap { .. } | Self::Ended { .. } | Self::Altered { .. } => None,
        }
    }

    /// The number of the piece.
    #[must_use]
    pub fn index(&self) -> u32 {
        match *self {
            Self::Foreign { index, .. } | Self::Ended { index } | Self::Altered { index } => index,
            Self::Gap { held, .. } => held,
        }
    }
}

/// Checks the pieces of one request, in order. After the first that is refused it lets none pass.
#[derive(Debug)]
pub struct Verifier {
    key: SealKey,
    layer: Layer,
    binding: Binding,
    next: u32,
    epoch: Epoch,
    refused: Option<SealError>,
}

impl Verifier {
    /// Lets a piece pass that this request's sealer made as the next one, for this connection.
    ///
    /// # Errors
    /// [`SealError`]; the same one from then on.
    pub fn verify(&mut self, seal: &Seal, bytes: &[u8], finish: Option<FinishReason>) -> Result<(), SealError> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        match self.examine(seal, bytes, finish) {
            Ok(()) => {
                (self.next, self.epoch) = (self.next.saturating_add(1), seal.origin.epoch);
                Ok(())
            }
            Err(error) => {
                self.refused = Some(error);
                Err(error)
            }
        }
    }

    /// Refuses a piece that has no seal at all, and every later one.
    pub fn refuse(&mut self) -> SealError {
        *self.refused.get_or_insert(SealError::Altered { index: self.next })
    }

    fn examine(&self, seal: &Seal, bytes: &[u8], finish: Option<FinishReason>) -> Result<(), SealError> {
        let Origin { binding, epoch, index } = seal.origin;
        if binding != self.binding {
            return Err(SealError::Foreign { index, held: binding });
        }
        if index != self.next {
            return Err(SealError::Gap { held: index, wanted: self.next });
        }
        if epoch < self.epoch {
            return Err(SealError::Ended { index });
        }
        // The comparison takes the same time wherever they differ.
        if self.key.mac(self.layer, &seal.origin, finish, bytes) != seal.mac {
            return Err(SealError::Altered { index });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantId;
    use proptest::prelude::*;

    fn key(number: u8) -> SealKey {
        SealKey::from_bytes([number; 32])
    }

    fn binding() -> Binding {
        let label = Label::of(TenantId::new(1).unwrap());
        Binding { request: RequestId::from_bytes([1; 16]), label, connection: ConnectionId(7) }
    }

    #[test]
    fn pieces_pass_in_order_and_under_later_admissions() {
        let (sealer, mut verifier) = (key(1).sealer(Layer::Text, binding()), key(1).verifier(Layer::Text, binding()));
        for (index, epoch) in [3, 3, 9, 9].into_iter().enumerate() {
            let finish = (index == 3).then_some(FinishReason::Stop);
            let seal = sealer.seal(Epoch(epoch), index as u32, b"text", finish);
            assert_eq!(verifier.verify(&seal, b"text", finish), Ok(()));
        }
    }

    #[test]
    fn a_piece_of_another_request_tenant_or_connection_is_refused_even_under_the_same_key() {
        let other_label = Label::of(TenantId::new(2).unwrap());
        let others = [
            Binding { request: RequestId::from_bytes([2; 16]), ..binding() },
            Binding { label: other_label, ..binding() },
            Binding { connection: ConnectionId(8), ..binding() },
        ];
        for held in others {
            let seal = key(1).sealer(Layer::Text, held).seal(Epoch(1), 0, b"text", None);
            let mut verifier = key(1).verifier(Layer::Text, binding());
            assert_eq!(verifier.verify(&seal, b"text", None), Err(SealError::Foreign { index: 0, held }));
            // It may lie about its origin, too.
            let lie = Seal { origin: Origin { binding: binding(), ..seal.origin }, ..seal };
            let mut verifier = key(1).verifier(Layer::Text, binding());
            assert_eq!(verifier.verify(&lie, b"text", None), Err(SealError::Altered { index: 0 }));
        }
    }

    #[test]
    fn another_key_or_layer_makes_no_seal() {
        let seal = key(2).sealer(Layer::Text, binding()).seal(Epoch(1), 0, b"text", None);
        let refused = key(1).verifier(Layer::Text, binding()).verify(&seal, b"text", None);
        assert_eq!(refused, Err(SealError::Altered { index: 0 }));
        let seal = key(1).sealer(Layer::Payload, binding()).seal(Epoch(1), 0, b"text", None);
        let refused = key(1).verifier(Layer::Text, binding()).verify(&seal, b"text", None);
        assert_eq!(refused, Err(SealError::Altered { index: 0 }));
    }

    #[test]
    fn a_gap_a_repetition_and_an_ended_admission_are_refused() {
        let sealer = key(1).sealer(Layer::Text, binding());
        let seal = |epoch, index| sealer.seal(Epoch(epoch), index, b"", None);
        for (held, error) in [
            (seal(5, 2), SealError::Gap { held: 2, wanted: 1 }),
            (seal(5, 0), SealError::Gap { held: 0, wanted: 1 }),
            (seal(4, 1), SealError::Ended { index: 1 }),
        ] {
            let mut verifier = key(1).verifier(Layer::Text, binding());
            assert_eq!(verifier.verify(&seal(5, 0), b"", None), Ok(()));
            assert_eq!(verifier.verify(&held, b"", None), Err(error));
        }
    }

    #[test]
    fn after_one_refusal_nothing_passes() {
        let sealer = key(1).sealer(Layer::Text, binding());
        let mut verifier = key(1).verifier(Layer::Text, binding());
        let right = sealer.seal(Epoch(1), 0, b"a", None);
        assert_eq!(verifier.verify(&right, b"b", None), Err(SealError::Altered { index: 0 }));
        assert_eq!(verifier.verify(&right, b"a", None), Err(SealError::Altered { index: 0 }));
        let mut verifier = key(1).verifier(Layer::Text, binding());
        assert_eq!(verifier.refuse(), SealError::Altered { index: 0 });
        assert_eq!(verifier.verify(&right, b"a", None), Err(SealError::Altered { index: 0 }));
    }

    #[test]
    fn neither_key_nor_code_shows_in_debug() {
        let sealer = key(0xab).sealer(Layer::Text, binding());
        let seal = sealer.seal(Epoch(1), 0, b"text", None);
        let shown = format!("{sealer:?} {:?} {seal:?}", key(0xab).verifier(Layer::Text, binding()));
        assert!(!shown.contains("171") && !shown.to_lowercase().contains("abab"), "{shown}");
        assert!(!shown.contains(&seal.mac.to_hex()[..8]), "{shown}");
    }

    proptest! {
        #[test]
        fn any_other_text_or_ending_is_refused(text in "[a-c]{0,6}", other in "[a-c]{0,6}", ends in any::<bool>()) {
            let sealer = key(1).sealer(Layer::Text, binding());
            let seal = sealer.seal(Epoch(1), 0, text.as_bytes(), None);
            let finish = ends.then_some(FinishReason::Length);
            let verified = key(1).verifier(Layer::Text, binding()).verify(&seal, other.as_bytes(), finish);
            prop_assert_eq!(verified.is_ok(), text == other && !ends);
        }
    }
}
