//! Pages that several sequences read: whole, written completely, and of a domain that flows to each of them.

use super::{Capability, Grant, Ledger, PAGE_TOKENS, PageState, Record, UseError, count};
use crate::fault::LedgerFault;
use policies_domain::{CustodyAct, Label, Owner, PageId, PageLife, SequenceId};

impl Ledger {
    /// Other sequences of the same tenant may hold the page, too. Its owner is the first of them.
    ///
    /// # Errors
    /// [`UseError`]: only a full sealed page is shared, after the steps that may be writing it, and none under suspicion.
    pub fn share(&mut self, life: PageLife, owner: SequenceId) -> Result<(), UseError> {
        let PageLife { page, .. } = life;
        let Record { label, suspicion, fence, .. } = *self.owned(life, Owner::Sequence(owner))?;
        if label.state != PageState::Sealed {
            return Err(UseError::WrongState { page, state: label.state });
        }
        if usize::from(label.fill) < PAGE_TOKENS {
            return Err(UseError::NotWritten { page, fill: label.fill.into(), wanted: PAGE_TOKENS });
        }
        if suspicion.is_some() {
            return Err(UseError::Suspected { page });
        }
        if fence > self.step_retired {
            return Err(UseError::StepOpen { page, step: fence, retired: self.step_retired });
        }
        self.enter(page, PageState::Sealed, PageState::Shared);
        self.attached.insert((page, owner));
        self.records[page.0 as usize].holders = 1;
        self.note(page, CustodyAct::Shared);
        Ok(())
    }

    /// May a sequence that is cleared for `domain` hold the page from now on?
    ///
    /// # Errors
    /// [`UseError`]: another tenant's, not shared, or under suspicion.
    pub fn may_attach(&self, life: PageLife, domain: Label) -> Result<(), UseError> {
        let PageLife { page, .. } = life;
        let Record { label, suspicion, .. } = *self.living(life)?;
        if label.state != PageState::Shared {
            return Err(UseError::WrongState { page, state: label.state });
        }
        // Everything flows to `NOBODY`, and nobody reads.
        let cleared = label.domain.flows_to(domain) && domain != Label::NOBODY;
        if !cleared && !self.planted(LedgerFault::ForeignAttach) && !self.planted(LedgerFault::SharedPrefixes) {
            return Err(UseError::Foreign { page, held: label.domain, wanted: domain });
        }
        if suspicion.is_some() {
            return Err(UseError::Suspected { page });
        }
        Ok(())
    }

    /// `sequence` holds the shared page from now on, as the next one after those that it has.
    ///
    /// # Errors
    /// [`UseError`]: as for [`Ledger::may_attach`], or held by the sequence already.
    pub fn attach(&mut self, life: PageLife, domain: Label, sequence: SequenceId) -> Result<Grant, UseError> {
        let PageLife { page, generation } = life;
        self.may_attach(life, domain)?;
        if self.attached.contains(&(page, sequence)) {
            return Err(UseError::Attached { page, holder: Owner::Sequence(sequence) });
        }
        let before = self.only_kept(page);
        self.attached.insert((page, sequence));
        let record = &mut self.records[page.0 as usize];
        record.holders += 1;
        let tag = record.tag;
        self.count_kept(page, before);
        self.note_by(page, Owner::Sequence(sequence), CustodyAct::Attached);
        Ok(Grant::new(Capability::new(page, tag), generation))
    }

    /// A sequence of its own, which computes nothing, holds the shared page for those that come later.
    ///
    /// # Errors
    /// [`UseError`]: as for [`Ledger::may_attach`].
    pub fn keep(&mut self, life: PageLife, domain: Label) -> Result<(SequenceId, Grant), UseError> {
        self.may_attach(life, domain)?;
        let (page, keeper) = (life.page, self.open_sequence());
        let grant = self.attach(life, domain, keeper)?;
        let before = self.only_kept(page);
        self.keepers.insert(keeper);
        self.records[page.0 as usize].keepers += 1;
        self.count_kept(page, before);
        Ok((keeper, grant))
    }

    /// Pages of this domain that only keepers hold, and that are free once these let go of them.
    #[must_use]
    pub fn kept_alone(&self, domain: Label) -> usize {
        self.kept_alone.get(&domain).copied().unwrap_or_default()
    }

    /// Nobody but keepers holds the page, and it is in order.
    #[must_use]
    pub fn only_kept(&self, page: PageId) -> bool {
        self.records.get(page.0 as usize).is_some_and(|record| {
            let Record { label, holders, keepers, suspicion, .. } = *record;
            label.state == PageState::Shared && keepers > 0 && holders == keepers && suspicion.is_none()
        })
    }

    /// One holder less; `false`: it was none.
    pub(super) fn detach(&mut self, page: PageId, sequence: SequenceId) -> bool {
        let before = self.only_kept(page);
        let held = self.attached.remove(&(page, sequence));
        if held {
            let keeper = self.keepers.remove(&sequence);
            let record = &mut self.records[page.0 as usize];
            record.holders -= 1;
            record.keepers -= u32::from(keeper);
            self.count_kept(page, before);
        }
        held
    }

    /// Called after whatever may have made the page one that only keepers hold, or may have ended that.
    pub(super) fn count_kept(&mut self, page: PageId, before: bool) {
        let now = self.only_kept(page);
        if now != before {
            let domain = self.records[page.0 as usize].label.domain;
            count(&mut self.kept_alone, domain, now);
        }
    }
}
