//! How pages become free: after their owner, every ticket, every step that may touch them, and their scrub.

use super::{Ledger, PageState, Record, RetireError, UseError, count};
use crate::fault::LedgerFault;
use policies_domain::{CustodyAct, Generation, Label, Owner, PageId, QuarantineReason};

impl Ledger {
    /// A step begins, or is sent to a device: its kernels may touch every page that is owned now. Returns its number.
    pub fn issue_step(&mut self) -> u64 {
        self.assert_lists();
        self.step_issued += 1;
        self.step_issued
    }

    /// The step's kernels touch nothing any more. Steps retire in order.
    ///
    /// # Errors
    /// [`RetireError`] for a step that is not the next one.
    pub fn retire_step(&mut self, step: u64) -> Result<(), RetireError> {
        let (retired, issued) = (self.step_retired, self.step_issued);
        if step != retired + 1 || step > issued {
            return Err(RetireError { step, retired, issued });
        }
        self.step_retired = step;
        Ok(())
    }

    /// May this page, which was given back, be scrubbed and freed?
    ///
    /// # Errors
    /// [`UseError`]: it was not given back, a ticket on it is open, or a step that was issued before is under way.
    pub fn may_free(&self, page: PageId) -> Result<(), UseError> {
        let Some(Record { label, fence, .. }) = self.records.get(page.0 as usize) else {
            return Err(UseError::OutOfRange { page });
        };
        if label.state != PageState::Draining {
            return Err(UseError::WrongState { page, state: label.state });
        }
        if !self.planted(LedgerFault::EarlyFree) && !self.planted(LedgerFault::EarlyFreeUnseen) {
            self.no_tickets(page, |_| true)?;
        }
        if *fence > self.step_retired && !self.planted(LedgerFault::NoStepFence) {
            return Err(UseError::StepOpen { page, step: *fence, retired: self.step_retired });
        }
        Ok(())
    }

    /// Scrubs the pages that were given back and that nobody can touch any more, then frees them. Returns how many.
    ///
    /// `scrub` destroys the page's bytes and its tag in the store; a page whose scrub fails is quarantined.
    pub fn reclaim(&mut self, mut scrub: impl FnMut(PageId) -> bool) -> usize {
        let mut draining = std::mem::take(&mut self.draining);
        let mut freed = 0;
        draining.retain(|page| {
            let state = self.records[page.0 as usize].label.state;
            let freed_before = state != PageState::Draining;
            assert!(!freed_before || self.planted(LedgerFault::NoAssertions), "{page} is freed twice: it is {state}");
            if freed_before {
                self.free.push(*page);
                return false;
            }
            if self.may_free(*page).is_err() {
                return true;
            }
            if self.planted(LedgerFault::NoScrub) || scrub(*page) {
                self.free(*page);
                freed += 1;
            } else {
                self.records[page.0 as usize].suspicion = Some(QuarantineReason::ScrubFailed);
                self.enter(*page, PageState::Draining, PageState::Quarantined);
                self.note(*page, CustodyAct::Quarantined { reason: QuarantineReason::ScrubFailed });
            }
            false
        });
        // Keeps the allocation: this runs between two steps.
        self.draining = draining;
        freed
    }

    /// The door of the free list. Says again what [`Ledger::may_free`] says, from what is kept elsewhere.
    fn free(&mut self, page: PageId) {
        let retired = self.step_retired;
        let checked = !self.planted(LedgerFault::NoAssertions);
        if self.planted(LedgerFault::EarlyFreeUnseen) {
            self.tickets.retain(|(of, ..), _| *of != page);
            self.records[page.0 as usize].tickets = 0;
        }
        let record = &mut self.records[page.0 as usize];
        if checked {
            assert!(record.given_back && record.holders == 0, "{page} would be free under its owner");
            assert_eq!(record.tickets, 0, "{page} would be free with open tickets");
            assert!(record.fence <= retired, "{page} would be free before step {} has retired", record.fence);
            assert!(record.suspicion.is_none(), "{page} would be free although it is under suspicion");
        }
        record.label.generation = Generation(record.label.generation.0.wrapping_add(1));
        let domain = std::mem::replace(&mut record.label.domain, Label::NOBODY);
        record.label.owner = Owner::Nobody;
        record.label.fill = 0;
        record.tag = 0;
        record.landed = false;
        count(&mut self.held, domain, false);
        self.enter(page, PageState::Draining, PageState::Free);
        self.free.push(page);
        self.note(page, CustodyAct::Freed);
    }
}
