//! Why a side ends a handoff: told by another party, or for a reason of its own, which the others do not know yet.

use crate::message::AbortReason;
use crate::refusal::Refusal;

/// Why a handoff ends here.
pub(crate) enum Why {
    /// Another party said so.
    Told(AbortReason),
    /// Something of this side's own went wrong.
    Failed(AbortReason),
    /// A check refused it.
    Refused(Refusal),
    /// Its credit or lease ran out.
    Timer,
}

impl Why {
    pub(crate) fn reason(&self) -> AbortReason {
        match self {
            Self::Told(reason) | Self::Failed(reason) => *reason,
            Self::Refused(_) => AbortReason::Refused,
            Self::Timer => AbortReason::Expired,
        }
    }

    /// The others do not know yet.
    pub(crate) fn is_own(&self) -> bool {
        !matches!(self, Self::Told(_))
    }
}
