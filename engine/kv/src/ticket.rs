//! The right to touch a page without owning it, as a value that cannot be copied and cannot be forgotten.

use crate::ledger::TicketError;
use crate::pool::PagePool;
use policies_domain::{HolderId, Outcome, PageLife, TicketKind};
use std::fmt;

/// An open ticket. The page is not free before it is settled; dropping it says that nobody knows how it ended.
pub struct Ticket {
    pool: PagePool,
    life: PageLife,
    kind: TicketKind,
    holder: HolderId,
    settled: bool,
}

impl Ticket {
    pub(crate) fn new(pool: PagePool, life: PageLife, kind: TicketKind, holder: HolderId) -> Self {
        Self { pool, life, kind, holder, settled: false }
    }

    /// Which page, in which life.
    #[must_use]
    pub fn life(&self) -> PageLife {
        self.life
    }

    /// What it allows.
    #[must_use]
    pub fn kind(&self) -> TicketKind {
        self.kind
    }

    /// Who holds it.
    #[must_use]
    pub fn holder(&self) -> HolderId {
        self.holder
    }

    /// Says how the work ended.
    ///
    /// # Errors
    /// [`TicketError`] when it was settled by somebody else, who fenced the holder off.
    pub fn settle(mut self, outcome: Outcome) -> Result<(), TicketError> {
        self.settled = true;
        self.pool.lock().settle(self.life, self.kind, self.holder, outcome)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.settled {
            // Refused when a fence has settled it: then its outcome is known.
            let _known = self.pool.lock().settle(self.life, self.kind, self.holder, Outcome::Unknown);
        }
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket({}, {:?}, holder {})", self.life.page, self.kind, self.holder.0)
    }
}
