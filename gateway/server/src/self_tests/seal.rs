//! The seals of text: a piece opens under its own request's seal, and neither as another's nor with other text, in both layers.

use policies_domain::{Binding, Canary, ConnectionId, Epoch, Layer, SealError, SealKey, Trial};

/// No secret: what is sealed with it is nobody's.
pub(super) const SECRET: [u8; 32] = [0xca; 32];

pub(super) fn tried() -> Trial {
    let layers = [Layer::Text, Layer::Payload].map(in_layer);
    Trial {
        control_passed: layers.iter().all(|trial| trial.control_passed),
        fault_found: layers.iter().all(|trial| trial.fault_found),
    }
}

fn in_layer(layer: Layer) -> Trial {
    let key = SealKey::from_bytes(SECRET);
    let binding =
        |canary: Canary| Binding { request: canary.request(), label: canary.label(), connection: ConnectionId(0) };
    let (own, other) = (binding(Canary::A), binding(Canary::B));
    let seal = |of| key.sealer(layer, of).seal(Epoch::default(), 0, b"canary", None);
    // After a refusal a verifier lets nothing pass: each has a new one.
    let verified = |seal, text: &[u8]| key.verifier(layer, own).verify(&seal, text, None);
    let foreign = verified(seal(other), b"canary") == Err(SealError::Foreign { index: 0, held: other });
    let altered = verified(seal(own), b"another canary") == Err(SealError::Altered { index: 0 });
    Trial { control_passed: verified(seal(own), b"canary").is_ok(), fault_found: foreign && altered }
}
