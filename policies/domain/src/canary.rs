//! Two tenants that nobody is: with data of theirs the gateway tries its own detectors while it serves.

use crate::{Label, RequestId, TenantId};

/// Whose data a detector is tried with. No key and no configuration leads to one: their numbers are above
/// [`TenantId::MAX`], and their requests are none that a gateway mints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// Who reads.
    A,
    /// Whose data it must not see.
    B,
}

impl Canary {
    /// Its number, which no tenant has.
    #[must_use]
    pub fn tenant(self) -> TenantId {
        match self {
            Self::A => TenantId::reserved(1),
            Self::B => TenantId::reserved(2),
        }
    }

    /// The label of its data, and its clearance.
    #[must_use]
    pub fn label(self) -> Label {
        Label::of(self.tenant())
    }

    /// Its one request. A gateway mints UUIDs of version 7, which this is not.
    #[must_use]
    pub fn request(self) -> RequestId {
        match self {
            Self::A => RequestId::from_bytes([0xca; 16]),
            Self::B => RequestId::from_bytes([0xcb; 16]),
        }
    }
}

/// What came of trying a detector: both must be true. A detector that finds everything guards nothing, and one that finds
/// nothing does not either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// What is right was let through.
    pub control_passed: bool,
    /// What is wrong was found, and taken for what it is.
    pub fault_found: bool,
}

impl Trial {
    /// Whether the detector works.
    #[must_use]
    pub fn passed(self) -> bool {
        self.control_passed && self.fault_found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tenant_is_a_canary_and_neither_flows_to_the_other() {
        let (a, b) = (Canary::A, Canary::B);
        for canary in [a, b] {
            assert_eq!(TenantId::new(canary.tenant().number()), None);
            // Nor does a label that came from elsewhere become one's.
            assert_eq!(Label::from_bits(canary.label().bits()), None);
            assert!(canary.label().flows_to(canary.label()));
            assert!(![Label::PUBLIC, Label::NOBODY].contains(&canary.label()));
        }
        assert_ne!(a.label().bits(), b.label().bits());
        assert!(!a.label().flows_to(b.label()) && !b.label().flows_to(a.label()));
        assert_ne!(a.request(), b.request());
    }

    #[test]
    fn a_detector_works_when_it_tells_right_from_wrong() {
        let trial = |control_passed, fault_found| Trial { control_passed, fault_found }.passed();
        assert!(trial(true, true));
        assert!(!trial(true, false) && !trial(false, true) && !Trial::default().passed());
    }
}
