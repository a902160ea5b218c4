//! Why the ledger refuses. Nothing has changed when it does.

use super::PageState;
use policies_domain::{Generation, HolderId, Label, Owner, PageId, TicketKind};

/// Why a page could not be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum AllocateError {
    /// No free page is left.
    #[error("page pool exhausted: 0 of {pages_total} pages are free")]
    PoolExhausted {
        /// Pages of the pool.
        pages_total: usize,
    },
    /// Data of nobody, or of everybody, has no sequence that could own it.
    #[error("a page cannot be labelled `{label}`: it belongs to exactly one tenant")]
    NotATenant {
        /// The label asked for.
        label: Label,
    },
}

/// Why a block table could not be traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TraceError {
    /// The block table names a page that the pool does not have.
    #[error("block table names `{page}`, the pool ends at {pages_total} pages")]
    OutOfRange {
        /// The page named.
        page: PageId,
        /// Pages of the pool.
        pages_total: usize,
    },
    /// The reader takes more tokens for written than there are.
    #[error("`{page}` holds {fill} tokens, its reader takes {wanted} for written")]
    NotWritten {
        /// The page named.
        page: PageId,
        /// Tokens in it.
        fill: usize,
        /// Tokens that the reader counts on.
        wanted: usize,
    },
}

/// Why a page may not be used like this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum UseError {
    /// There is no such page.
    #[error("`{page}` is no page of this pool")]
    OutOfRange {
        /// The page named.
        page: PageId,
    },
    /// The handle is of another life of the page.
    #[error("`{page}` is in generation {}, its handle is of {}", held.0, wanted.0)]
    Stale {
        /// The page.
        page: PageId,
        /// Its generation.
        held: Generation,
        /// The handle's.
        wanted: Generation,
    },
    /// The capability's tag is not the one of the page's present life.
    #[error("`{page}` has another tag than its reader holds")]
    TagMismatch {
        /// The page.
        page: PageId,
    },
    /// Somebody else's page.
    #[error("`{page}` is held by {held}, not by {wanted}")]
    NotOwner {
        /// The page.
        page: PageId,
        /// Who holds it.
        held: Owner,
        /// Who came.
        wanted: Owner,
    },
    /// Another tenant's page.
    #[error("`{page}` labelled `{held}` does not flow to `{wanted}`")]
    Foreign {
        /// The page.
        page: PageId,
        /// Its label.
        held: Label,
        /// The label of whoever came.
        wanted: Label,
    },
    /// Not in this state.
    #[error("`{page}` is {state}")]
    WrongState {
        /// The page.
        page: PageId,
        /// Its state.
        state: PageState,
    },
    /// It was given back before. Who does that has lost count of its pages.
    #[error("`{page}` was given back already")]
    AlreadyBack {
        /// The page.
        page: PageId,
    },
    /// Beyond what was written, or nothing was.
    #[error("`{page}` holds {fill} tokens, {wanted} are asked for")]
    NotWritten {
        /// The page.
        page: PageId,
        /// Tokens in it.
        fill: usize,
        /// Tokens asked for.
        wanted: usize,
    },
    /// No write to it ended well, or one failed after that.
    #[error("nothing has landed in `{page}`")]
    NotLanded {
        /// The page.
        page: PageId,
    },
    /// Somebody else may still touch it.
    #[error("`{page}` has {tickets} open tickets")]
    TicketsOpen {
        /// The page.
        page: PageId,
        /// How many.
        tickets: usize,
    },
    /// A step that may touch it is still under way.
    #[error("`{page}` waits for step {step}, only {retired} has retired")]
    StepOpen {
        /// The page.
        page: PageId,
        /// The step.
        step: u64,
        /// The newest one that has retired.
        retired: u64,
    },
    /// It is under suspicion and will be quarantined.
    #[error("`{page}` is kept as evidence")]
    Suspected {
        /// The page.
        page: PageId,
    },
    /// The sequence holds it already.
    #[error("`{page}` is attached to {holder} already")]
    Attached {
        /// The page.
        page: PageId,
        /// Who.
        holder: Owner,
    },
}

/// Why a ticket could not be opened or settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TicketError {
    /// The page may not be used like this.
    #[error(transparent)]
    Page(#[from] UseError),
    /// The holder has this ticket, or another holder has the one for writing.
    #[error("`{page}` has an open {kind:?} ticket of holder {}", holder.0)]
    Taken {
        /// The page.
        page: PageId,
        /// Which kind.
        kind: TicketKind,
        /// Who has it.
        holder: HolderId,
    },
    /// As many tickets as a page may have.
    #[error("`{page}` has {tickets_max} open tickets, more are not allowed")]
    TooMany {
        /// The page.
        page: PageId,
        /// The bound.
        tickets_max: usize,
    },
    /// There is no such ticket: it was settled before, or never opened.
    #[error("holder {} has no open {kind:?} ticket of `{page}`", holder.0)]
    Unknown {
        /// The page.
        page: PageId,
        /// Which kind.
        kind: TicketKind,
        /// Who came.
        holder: HolderId,
    },
}

/// Why a step could not retire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[error("step {step} cannot retire: {retired} of {issued} issued ones have")]
pub struct RetireError {
    /// The step.
    pub step: u64,
    /// The newest one that has retired; steps retire in order.
    pub retired: u64,
    /// The newest one that was issued.
    pub issued: u64,
}
