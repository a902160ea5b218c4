//! The checks of the protocol by name. All of them are on; only a test can switch one off.

/// One rule that the protocol stands on. Its name is the one in refusals, tests and documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Check {
    /// The handoff is known, in this life of the worker, and was not begun or committed before.
    V1,
    /// The manifest's seal holds.
    V2,
    /// The domain is the one that the gateway authenticated.
    V3,
    /// The request digest is the one of one's own copy of the request.
    V4,
    /// Model and layout are one's own.
    V5,
    /// The pages are all pages of the prompt, once each and in order.
    V6,
    /// Every page and every layer has the digest of the manifest, in one's own memory.
    V7,
    /// The tag in each landed page is that of the source page's life in the manifest.
    V8,
    /// The pages that were landed in are the ones that were kept for it, and still are.
    V9,
    /// The first token is one that the vocabulary has and the grammar allows.
    V10,
    /// Any side may abort at any time.
    A1,
    /// A handoff that ended stays known for a while, so that nothing late begins it again.
    A2,
    /// Pages with work in flight are not freed before that work has ended.
    A3,
    /// A timer never frees a page.
    A4,
    /// A prefill that failed sends no manifest.
    A5,
    /// What was refused is never decoded.
    A6,
    /// A client that leaves ends the handoff on both sides.
    A7,
    /// The prefill side commits only what it offers, once.
    C1,
    /// The prefill side commits only within the lease, on its own clock.
    C2,
    /// The prefill side commits only while its pages live the life that they were sealed in.
    C3,
    /// No prefill without a credit of the decode side.
    K1,
    /// No id is used twice.
    G1,
}

impl Check {
    /// All of them.
    pub const ALL: [Self; 22] = [
        Self::V1,
        Self::V2,
        Self::V3,
        Self::V4,
        Self::V5,
        Self::V6,
        Self::V7,
        Self::V8,
        Self::V9,
        Self::V10,
        Self::A1,
        Self::A2,
        Self::A3,
        Self::A4,
        Self::A5,
        Self::A6,
        Self::A7,
        Self::C1,
        Self::C2,
        Self::C3,
        Self::K1,
        Self::G1,
    ];
}

/// Which checks are on. There is one value, [`Checks::ALL`], outside of tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checks {
    off: u32,
}

impl Checks {
    /// Every check.
    pub const ALL: Self = Self { off: 0 };

    /// All but these: to show that a test notices.
    #[cfg(any(test, feature = "fault-injection"))]
    #[must_use]
    pub fn without(checks: &[Check]) -> Self {
        Self { off: checks.iter().fold(0, |off, check| off | 1 << *check as u32) }
    }

    pub(crate) fn on(self, check: Check) -> bool {
        self.off & 1 << check as u32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_off_alone() {
        for off in Check::ALL {
            let checks = Checks::without(&[off]);
            for check in Check::ALL {
                assert_eq!(checks.on(check), check != off);
                assert!(Checks::ALL.on(check));
            }
        }
    }
}
