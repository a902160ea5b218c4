//! Why a side ends a handoff: told by another party, or for a reason of its own, which the others do not know yet.

use crate::check::{Check, Checks};
use crate::effect::{Effect, Incident};
use crate::ended::{Job, Jobs};
use crate::identity::{Party, Route};
use crate::message::AbortReason;
use crate::refusal::Refusal;
use policies_domain::Label;

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

/// What is ended, and on which side.
pub(crate) struct Place {
    pub(crate) route: Route,
    pub(crate) domain: Label,
    pub(crate) side: Party,
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

    /// The pages stay as they are: something was wrong with them.
    pub(crate) fn leaves_evidence(&self) -> bool {
        self.reason() == AbortReason::Refused
    }

    /// A timer frees what may still be worked at: with A4 switched off alone.
    pub(crate) fn frees_at_once(&self, checks: Checks) -> bool {
        matches!(self, Self::Timer) && !checks.on(Check::A4)
    }

    /// The same on both sides: takes the pages out of use while anything works at them or when they are evidence, asks for
    /// an end of that work, and puts a refusal on record.
    pub(crate) fn stop_work(&self, checks: Checks, jobs: &mut Jobs, at: &Place, out: &mut Vec<Effect>) {
        let Place { route, domain, side } = *at;
        if matches!(self, Self::Timer) && checks.on(Check::A4) {
            jobs.begin(Job::Fence);
        }
        let evidence = self.leaves_evidence();
        if evidence || !jobs.none() {
            out.push(Effect::Quarantine { route, evidence });
        }
        if !jobs.none() {
            out.push(Effect::Fence { route });
        }
        if let Self::Refused(refusal) = *self {
            out.push(Effect::Incident(Incident { route, domain, seen_by: side, refusal }));
        }
    }
}
