//! What a reader is told of its pages.

use super::{Capability, Ledger, PAGE_TOKENS, PageLabel, PageState, Record, TraceError, UseError};
use policies_domain::{Label, Owner, PageId, PageRead, SequenceId};

impl Ledger {
    /// What a block table reads from its `first`-th entry on, as the ledger knows it at this moment, whatever the table's maker
    /// believed; appended to `into`. The reader takes the first `tokens` tokens of the whole table for written.
    ///
    /// # Errors
    /// [`TraceError`] when an entry names a page that does not exist, or counts on more than was written to one. What was
    /// appended before it means nothing then.
    pub fn trace(
        &self,
        first: usize,
        entries: &[Capability],
        tokens: usize,
        into: &mut Vec<PageRead>,
    ) -> Result<(), TraceError> {
        for (index, capability) in (first..).zip(entries) {
            let page = capability.page();
            let Some(Record { label, .. }) = self.records.get(page.0 as usize) else {
                return Err(TraceError::OutOfRange { page, pages_total: self.counts.total });
            };
            let wanted = tokens.saturating_sub(index * PAGE_TOKENS).min(PAGE_TOKENS);
            let fill = usize::from(label.fill);
            if wanted > fill {
                return Err(TraceError::NotWritten { page, fill, wanted });
            }
            into.push(page_read(page, *label));
        }
        Ok(())
    }

    /// May `reader`, cleared for `clearance`, read the first `tokens` tokens of this page now?
    ///
    /// # Errors
    /// [`UseError`], which says what does not fit.
    pub fn check_read(
        &self,
        capability: Capability,
        reader: SequenceId,
        clearance: Label,
        tokens: usize,
    ) -> Result<PageRead, UseError> {
        let page = capability.page();
        let record = self.records.get(page.0 as usize).ok_or(UseError::OutOfRange { page })?;
        let label = record.label;
        if !label.state.is_readable() {
            return Err(UseError::WrongState { page, state: label.state });
        }
        if record.tag != capability.tag() {
            return Err(UseError::TagMismatch { page });
        }
        if !label.domain.flows_to(clearance) {
            return Err(UseError::Foreign { page, held: label.domain, wanted: clearance });
        }
        let holds = match label.state {
            PageState::Shared => self.attached.contains(&(page, reader)),
            _ => label.owner == Owner::Sequence(reader),
        };
        if !holds {
            return Err(UseError::NotOwner { page, held: label.owner, wanted: Owner::Sequence(reader) });
        }
        let fill = usize::from(label.fill);
        if tokens > fill {
            return Err(UseError::NotWritten { page, fill, wanted: tokens });
        }
        Ok(page_read(page, label))
    }
}

fn page_read(page: PageId, label: PageLabel) -> PageRead {
    let PageLabel { generation, domain, state, .. } = label;
    PageRead { page, generation, label: domain, shared: state == PageState::Shared }
}
