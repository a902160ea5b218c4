//! The gate: a step that read a page of its own reader passes, one that read another's is stopped, and for that.

use audit_provenance::{Gate, Violation};
use policies_domain::{Canary, Step, Trial};

/// `step`: the first step of a canary's request, which read a page of another one or of its own.
pub(super) fn tried(step: impl Fn(Canary, Canary) -> Step) -> Trial {
    let (reader, other) = (Canary::A, Canary::B);
    let passed = Gate::try_with(reader, step(reader, reader));
    let stopped = Gate::try_with(reader, step(reader, other));
    let (of_other, of_reader) = (other.label(), reader.label());
    let is_that = |violation| match violation {
        Violation::ForeignPage { held, wanted, .. } => (held, wanted) == (of_other, of_reader),
        _ => false,
    };
    Trial { control_passed: passed.is_ok(), fault_found: stopped.is_err_and(is_that) }
}
