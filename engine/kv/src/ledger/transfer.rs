//! Pages on their way from one sequence to another: within this ledger, or between two of them.

use super::{AllocateError, Grant, Ledger, PAGE_TOKENS, PageState, Record, UseError};
use policies_domain::{CustodyAct, Label, Owner, PageLife, SequenceId, TransferId};

impl Ledger {
    /// A free page for bytes that are still to come, in a fresh generation: [`PageState::Inbound`].
    ///
    /// # Errors
    /// [`AllocateError`].
    pub fn reserve(&mut self, domain: Label, transfer: TransferId) -> Result<Grant, AllocateError> {
        let grant = self.take(domain, Owner::Transfer(transfer), PageState::Inbound)?;
        self.note(grant.life().page, CustodyAct::Reserved { tag: grant.capability().tag() });
        Ok(grant)
    }

    /// A sealed page, full or not, may be copied by a transfer; its owner keeps it and writes to it no more.
    ///
    /// # Errors
    /// [`UseError`]: not the owner's, not sealed, or under suspicion.
    pub fn offer(&mut self, life: PageLife, owner: SequenceId) -> Result<(), UseError> {
        let PageLife { page, .. } = life;
        let Record { label, suspicion, .. } = *self.owned(life, Owner::Sequence(owner))?;
        if label.state != PageState::Sealed {
            return Err(UseError::WrongState { page, state: label.state });
        }
        if suspicion.is_some() {
            return Err(UseError::Suspected { page });
        }
        self.enter(page, PageState::Sealed, PageState::Outbound);
        // Steps issued so far may still read it for its owner: nobody else gets it before they have retired.
        self.records[page.0 as usize].fence = self.step_issued;
        self.note(page, CustodyAct::Offered);
        Ok(())
    }

    /// The offer is over without a taker: the page is its owner's as before, open when it has room.
    ///
    /// # Errors
    /// [`UseError`]: not the owner's, or not offered.
    pub fn withdraw(&mut self, life: PageLife, owner: SequenceId) -> Result<(), UseError> {
        let PageLife { page, .. } = life;
        let Record { label, .. } = *self.owned(life, Owner::Sequence(owner))?;
        if label.state != PageState::Outbound {
            return Err(UseError::WrongState { page, state: label.state });
        }
        let full = usize::from(label.fill) == PAGE_TOKENS;
        self.enter(page, PageState::Outbound, if full { PageState::Sealed } else { PageState::Open });
        self.note(page, CustodyAct::Withdrawn);
        Ok(())
    }

    /// What a transfer brought, or what `from` offered in this same pool, becomes `to`'s: in a new life of the page, with
    /// a new tag, so that whoever still writes under the old one writes for nobody. Open when it has room, else sealed.
    ///
    /// The caller has compared the bytes with what was promised. An inbound page holds `tokens` from now on; an offered
    /// one must hold exactly these.
    ///
    /// # Errors
    /// [`UseError`]: not `from`'s, neither inbound nor offered, nothing landed in it, a ticket or a step is open, it is
    /// under suspicion, or the tokens do not fit.
    pub fn commit(&mut self, life: PageLife, from: Owner, to: SequenceId, tokens: usize) -> Result<Grant, UseError> {
        let PageLife { page, .. } = life;
        let Record { label, landed, fence, suspicion, .. } = *self.owned(life, from)?;
        let fill = usize::from(label.fill);
        match label.state {
            PageState::Inbound if !landed => return Err(UseError::NotLanded { page }),
            PageState::Inbound if tokens == 0 || tokens > PAGE_TOKENS => {
                return Err(UseError::NotWritten { page, fill: PAGE_TOKENS, wanted: tokens });
            }
            PageState::Outbound if tokens != fill => return Err(UseError::NotWritten { page, fill, wanted: tokens }),
            PageState::Outbound if fence > self.step_retired => {
                return Err(UseError::StepOpen { page, step: fence, retired: self.step_retired });
            }
            PageState::Inbound | PageState::Outbound => (),
            state => return Err(UseError::WrongState { page, state }),
        }
        if suspicion.is_some() {
            return Err(UseError::Suspected { page });
        }
        self.no_tickets(page, |_| true)?;
        self.enter(page, label.state, if tokens == PAGE_TOKENS { PageState::Sealed } else { PageState::Open });
        let record = &mut self.records[page.0 as usize];
        record.label.owner = Owner::Sequence(to);
        record.label.fill = tokens as u16;
        record.landed = false;
        // A free and an allocation at once: odd again.
        let grant = self.renew(page, 2);
        self.note(page, CustodyAct::Committed { tag: grant.capability().tag(), fill: tokens as u16, from });
        Ok(grant)
    }
}
