//! The ledger behind a lock, shared by everybody who holds pages of one store.

use crate::ledger::{AllocateError, Capability, Ledger, PageCounts, PageLabel, RetireError, TicketError, TraceError};
use crate::page::{FillingPage, InboundPage, Owned};
use crate::sync::{Arc, Mutex, MutexGuard};
use crate::ticket::Ticket;
use policies_domain::{
    CustodyRecord, HolderId, Label, Owner, PageId, PageLife, PageRead, QuarantineReason, SequenceId, TicketKind,
    TransferId,
};
use std::fmt;
use std::sync::PoisonError;

/// All pages of one store. Clones share the ledger.
#[derive(Clone)]
pub struct PagePool(Arc<Mutex<Ledger>>);

impl PagePool {
    /// Shares this ledger from now on.
    #[must_use]
    pub fn new(ledger: Ledger) -> Self {
        Self(Arc::new(Mutex::new(ledger)))
    }

    /// A number for a new sequence.
    #[must_use]
    pub fn open_sequence(&self) -> SequenceId {
        self.lock().open_sequence()
    }

    /// A free page for one tenant's sequence, in a fresh generation.
    ///
    /// The caller must hand the capability to the store before it writes to the page.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn allocate(&self, label: Label, sequence: SequenceId) -> Result<FillingPage, AllocateError> {
        let grant = self.lock().allocate(label, sequence)?;
        Ok(FillingPage::new(Owned::new(self.clone(), grant, label, Owner::Sequence(sequence))))
    }

    /// A free page for data that an operator has declared to be everybody's: [`Ledger::allocate_public`].
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn allocate_public(&self, sequence: SequenceId) -> Result<FillingPage, AllocateError> {
        let grant = self.lock().allocate_public(sequence)?;
        Ok(FillingPage::new(Owned::new(self.clone(), grant, Label::PUBLIC, Owner::Sequence(sequence))))
    }

    /// A free page for bytes that are still to come, in a fresh generation.
    ///
    /// # Errors
    /// [`AllocateError`]; nothing has changed then.
    pub fn reserve(&self, label: Label, transfer: TransferId) -> Result<InboundPage, AllocateError> {
        let grant = self.lock().reserve(label, transfer)?;
        Ok(InboundPage::new(Owned::new(self.clone(), grant, label, Owner::Transfer(transfer))))
    }

    /// Lets `holder`, who is not the page's owner, touch it until the ticket is settled.
    ///
    /// # Errors
    /// [`TicketError`].
    pub fn ticket(&self, life: PageLife, kind: TicketKind, holder: HolderId) -> Result<Ticket, TicketError> {
        self.lock().open_ticket(life, kind, holder)?;
        Ok(Ticket::new(self.clone(), life, kind, holder))
    }

    /// The time of all tickets of `holder` is up: [`Ledger::expire`].
    pub fn expire(&self, holder: HolderId) -> usize {
        self.lock().expire(holder)
    }

    /// `holder` can touch nothing any more: [`Ledger::fence`].
    pub fn fence(&self, holder: HolderId) -> usize {
        self.lock().fence(holder)
    }

    /// What a block table reads: [`Ledger::trace`].
    ///
    /// # Errors
    /// [`TraceError`].
    pub fn trace(
        &self,
        first: usize,
        entries: &[Capability],
        tokens: usize,
        into: &mut Vec<PageRead>,
    ) -> Result<(), TraceError> {
        self.lock().trace(first, entries, tokens, into)
    }

    /// A step begins: [`Ledger::issue_step`].
    #[must_use]
    pub fn issue_step(&self) -> u64 {
        self.lock().issue_step()
    }

    /// A step is over: [`Ledger::retire_step`].
    ///
    /// # Errors
    /// [`RetireError`].
    pub fn retire_step(&self, step: u64) -> Result<(), RetireError> {
        self.lock().retire_step(step)
    }

    /// Scrubs and frees what nobody can touch any more: [`Ledger::reclaim`].
    pub fn reclaim(&self, scrub: impl FnMut(PageId) -> bool) -> usize {
        self.lock().reclaim(scrub)
    }

    /// Puts a page out of use: [`Ledger::quarantine`].
    pub fn quarantine(&self, page: PageId, reason: QuarantineReason) -> bool {
        self.lock().quarantine(page, reason)
    }

    /// Takes the custody events since the last call: [`Ledger::drain`].
    pub fn drain(&self, into: &mut Vec<CustodyRecord>) {
        self.lock().drain(into);
    }

    /// What the ledger says of a page: [`Ledger::label`].
    #[must_use]
    pub fn label(&self, page: PageId) -> Option<PageLabel> {
        self.lock().label(page)
    }

    /// How many pages are in which state.
    #[must_use]
    pub fn counts(&self) -> PageCounts {
        self.lock().counts()
    }

    /// Pages of one domain that are not free: [`Ledger::held_by`].
    #[must_use]
    pub fn held_by(&self, label: Label) -> usize {
        self.lock().held_by(label)
    }

    /// For tests: [`Ledger::assert_sound`].
    ///
    /// # Panics
    /// As there.
    #[cfg(any(test, feature = "fault-injection"))]
    pub fn assert_sound(&self) {
        self.lock().assert_sound();
    }

    /// Pages of one domain that only keepers hold: [`Ledger::kept_alone`].
    #[must_use]
    pub fn kept_alone(&self, label: Label) -> usize {
        self.lock().kept_alone(label)
    }

    /// Replaces the planted faults.
    #[cfg(feature = "fault-injection")]
    pub fn plant(&self, faults: Vec<crate::LedgerFault>) {
        self.lock().plant(faults);
    }

    /// A defect that a test planted.
    pub(crate) fn shares_prefixes(&self) -> bool {
        cfg!(any(test, feature = "fault-injection")) && self.lock().shares_prefixes()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Ledger> {
        // A panic while the ledger was locked is one of its own assertions: whoever comes next must not go on with it,
        // but `Drop` must not panic twice either. The assertions of the ledger see whatever is wrong.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PagePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PagePool({:?})", self.counts())
    }
}
