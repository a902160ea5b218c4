//! Defects that a test brings back into the ledger and the prefix cache. Only tests, and builds with the feature `fault-injection`, can.

/// One historic defect, or one check switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LedgerFault {
    /// Pages become free although a ticket on them is open (`decode-page-reuse-before-writer-done`).
    EarlyFree,
    /// Pages become free although a step that may touch them is under way (`next-step-writes-after-free`).
    NoStepFence,
    /// Whoever gives a page back twice has it freed twice (`free-list-duplicate`).
    DoubleFree,
    /// Pages become free without being scrubbed (`recurrent-state-not-zeroed`).
    NoScrub,
    /// As `EarlyFree`, and nothing in the ledger notices: a page's tickets are forgotten when it is freed, and what their
    /// holders say later is only written down. What is left are the checks of those who read.
    EarlyFreeUnseen,
    /// A sequence may hold another tenant's shared page (`weak-block-hash`, `prefix-hit-timing`).
    ForeignAttach,
    /// The prefix caches over this pool are one for all tenants ([`CacheFault::OneTree`]), and its pages may be held by all.
    SharedPrefixes,
    /// The assertions at the door of the free list are off: layer removal, to see what stands behind them.
    NoAssertions,
}

/// One check of the prefix cache switched off, or a cache as others have had it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheFault {
    /// All tenants' prefixes are in one tree, under one key (`prefix-hit-timing`). Pages of others are found, and held where
    /// the ledger lets it ([`LedgerFault::ForeignAttach`]).
    OneTree,
    /// Keys are eight bits of a hash (`weak-block-hash`). To be planted before the first question.
    ToyHash,
    /// What a key leads to is taken for what was asked for (`weak-block-hash`).
    NoTokenComparison,
}
