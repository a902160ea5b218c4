//! Tickets: who may touch a page besides its owner, and what became of it.
//!
//! A page has two lifetimes, its owner's and that of whoever copies it. It is free when both are over, and the second one
//! is over only when its holder, or somebody who has fenced the holder off, says how it ended. Time says nothing: it can
//! only put a page out of use.

use super::{Ledger, PageState, Record, TicketError, UseError};
use crate::fault::LedgerFault;
use policies_domain::{CustodyAct, HolderId, Outcome, PageId, PageLife, QuarantineReason, TicketKind};

/// Open tickets of one page at a time: a few transfers and a copy to another tier.
pub const TICKETS_PER_PAGE_MAX: usize = 8;

impl Ledger {
    /// Lets `holder` touch the page until the ticket is settled.
    ///
    /// # Errors
    /// [`TicketError`]: the page is not readable, or not being filled; the holder has this ticket; another one writes.
    pub fn open_ticket(&mut self, life: PageLife, kind: TicketKind, holder: HolderId) -> Result<(), TicketError> {
        let PageLife { page, .. } = life;
        let Record { label, tickets, suspicion, .. } = *self.living(life)?;
        let fits = match kind {
            TicketKind::Read => label.state.is_readable(),
            TicketKind::Write => matches!(label.state, PageState::Open | PageState::Inbound),
        };
        if !fits {
            return Err(UseError::WrongState { page, state: label.state }.into());
        }
        if suspicion.is_some() {
            return Err(UseError::Suspected { page }.into());
        }
        let taken = self
            .tickets_of(page)
            .find(|(by, of)| (*by == holder && *of == kind) || (kind == TicketKind::Write && *of == TicketKind::Write));
        if let Some((holder, kind)) = taken {
            return Err(TicketError::Taken { page, kind, holder });
        }
        if usize::from(tickets) == TICKETS_PER_PAGE_MAX {
            return Err(TicketError::TooMany { page, tickets_max: TICKETS_PER_PAGE_MAX });
        }
        self.tickets.insert((page, holder, kind), false);
        let record = &mut self.records[page.0 as usize];
        record.tickets += 1;
        record.landed &= kind == TicketKind::Read;
        self.note(page, CustodyAct::TicketOpened { kind, holder });
        Ok(())
    }

    /// Says how the work behind a ticket ended.
    ///
    /// [`Outcome::Unknown`] leaves the ticket open and puts the page out of use: one that was being written at once, one
    /// that was only read when its owner gives it back. An outcome that becomes known later ends that, too.
    ///
    /// # Errors
    /// [`TicketError`]: a stale life, or no such ticket.
    pub fn settle(
        &mut self,
        life: PageLife,
        kind: TicketKind,
        holder: HolderId,
        outcome: Outcome,
    ) -> Result<(), TicketError> {
        let PageLife { page, .. } = life;
        if self.planted(LedgerFault::EarlyFreeUnseen) && self.living(life).is_err() {
            self.note_late(life, CustodyAct::TicketSettled { kind, holder, outcome });
            return Ok(());
        }
        self.living(life)?;
        let Some(unknown) = self.tickets.get_mut(&(page, holder, kind)) else {
            return Err(TicketError::Unknown { page, kind, holder });
        };
        if outcome == Outcome::Unknown {
            *unknown = true;
            self.note(page, CustodyAct::TicketSettled { kind, holder, outcome });
            self.doubt(page, kind, QuarantineReason::UnknownOutcome);
            return Ok(());
        }
        self.tickets.remove(&(page, holder, kind));
        let record = &mut self.records[page.0 as usize];
        record.tickets -= 1;
        if kind == TicketKind::Write {
            record.landed = outcome == Outcome::Done && record.label.state == PageState::Inbound;
        }
        self.note(page, CustodyAct::TicketSettled { kind, holder, outcome });
        self.clear_doubt(page);
        Ok(())
    }

    /// The time of everything that `holder` has open is up: its pages go out of use, and none becomes free. Returns how
    /// many tickets that were.
    pub fn expire(&mut self, holder: HolderId) -> usize {
        let open = self.tickets_held(holder);
        for (page, kind) in &open {
            self.tickets.insert((*page, holder, *kind), true);
            let outcome = Outcome::Unknown;
            self.note(*page, CustodyAct::TicketSettled { kind: *kind, holder, outcome });
            self.doubt(*page, *kind, QuarantineReason::Timeout);
        }
        open.len()
    }

    /// `holder` can touch nothing any more: its copies have drained, or its way into this memory is torn down. All that
    /// it has open has failed. Returns how many tickets that were.
    pub fn fence(&mut self, holder: HolderId) -> usize {
        let open = self.tickets_held(holder);
        for (page, kind) in &open {
            let life = self.life(*page);
            let settled = self.settle(life, *kind, holder, Outcome::Failed);
            assert!(settled.is_ok(), "an open ticket is of the page's present life");
        }
        open.len()
    }

    /// Puts a page out of use and keeps its bytes. Its owner goes on with it until it gives it back, except when the page
    /// is still being filled. `false`: there is no such page.
    pub fn quarantine(&mut self, page: PageId, reason: QuarantineReason) -> bool {
        let Some(record) = self.records.get(page.0 as usize) else { return false };
        match record.label.state {
            PageState::Free => {
                self.free.retain(|free| *free != page);
                self.records[page.0 as usize].given_back = true;
                self.impound(page, reason);
            }
            PageState::Draining | PageState::Inbound | PageState::Quarantined => self.impound(page, reason),
            PageState::Open | PageState::Sealed | PageState::Shared | PageState::Outbound => self.suspect(page, reason),
        }
        true
    }

    /// Out of quarantine, if it is there because of an outcome that is known now, and its owner let go of it.
    pub(super) fn release(&mut self, page: PageId) {
        let Record { label, tickets, suspicion, given_back, .. } = self.records[page.0 as usize];
        let doubted = suspicion.is_none_or(|reason| !reason.is_evidence());
        if label.state == PageState::Quarantined && given_back && tickets == 0 && doubted {
            self.records[page.0 as usize].suspicion = None;
            self.enter(page, PageState::Quarantined, PageState::Draining);
            self.draining.push(page);
            self.note(page, CustodyAct::Released);
        }
    }

    pub(super) fn no_tickets(&self, page: PageId, matters: impl Fn(TicketKind) -> bool) -> Result<(), UseError> {
        let tickets = self.tickets_of(page).filter(|(_, kind)| matters(*kind)).count();
        if tickets == 0 { Ok(()) } else { Err(UseError::TicketsOpen { page, tickets }) }
    }

    fn tickets_of(&self, page: PageId) -> impl Iterator<Item = (HolderId, TicketKind)> {
        let of_page = (page, HolderId(0), TicketKind::Read)..=(page, HolderId(u64::MAX), TicketKind::Write);
        self.tickets.range(of_page).map(|((_, holder, kind), _)| (*holder, *kind))
    }

    fn tickets_held(&self, holder: HolderId) -> Vec<(PageId, TicketKind)> {
        let of_holder = self.tickets.keys().filter(|(_, by, _)| *by == holder);
        of_holder.map(|(page, _, kind)| (*page, *kind)).collect()
    }

    fn life(&self, page: PageId) -> PageLife {
        PageLife { page, generation: self.records[page.0 as usize].label.generation }
    }

    /// Nobody knows whether the page is still being touched.
    fn doubt(&mut self, page: PageId, kind: TicketKind, reason: QuarantineReason) {
        let state = self.records[page.0 as usize].label.state;
        if kind == TicketKind::Write || !state.is_readable() {
            self.impound(page, reason);
        } else {
            self.suspect(page, reason);
        }
    }

    /// The page's last unknown outcome is known: whatever is no evidence is in order again.
    fn clear_doubt(&mut self, page: PageId) {
        let of_page = (page, HolderId(0), TicketKind::Read)..=(page, HolderId(u64::MAX), TicketKind::Write);
        let unknown = self.tickets.range(of_page).any(|(_, unknown)| *unknown);
        let Record { label, suspicion, .. } = self.records[page.0 as usize];
        if unknown || suspicion.is_none_or(QuarantineReason::is_evidence) {
            return;
        }
        if label.state == PageState::Quarantined {
            self.release(page);
        } else {
            let before = self.only_kept(page);
            self.records[page.0 as usize].suspicion = None;
            self.count_kept(page, before);
        }
    }

    /// Remembers why the page is not to be used again. Evidence outweighs doubt; else the first reason stays.
    fn suspect(&mut self, page: PageId, reason: QuarantineReason) {
        let before = self.only_kept(page);
        let suspicion = &mut self.records[page.0 as usize].suspicion;
        let stronger = suspicion.is_none_or(|known| reason.is_evidence() && !known.is_evidence());
        if stronger {
            *suspicion = Some(reason);
            self.count_kept(page, before);
            self.note(page, CustodyAct::Suspected { reason });
        }
    }

    /// Out of use now.
    fn impound(&mut self, page: PageId, reason: QuarantineReason) {
        self.suspect(page, reason);
        let Record { label, suspicion, .. } = self.records[page.0 as usize];
        if label.state == PageState::Quarantined {
            return;
        }
        self.draining.retain(|draining| *draining != page);
        self.enter(page, label.state, PageState::Quarantined);
        self.note(page, CustodyAct::Quarantined { reason: suspicion.unwrap_or(reason) });
    }
}
