//! The block table of one request as the kernels get it, and what the ledger said of each of its entries.
//!
//! Both are made in one place and go on from step to step: an entry is looked up when its page comes, again as long as the
//! page is being written, once more when it is full, and never after that. What a step costs does not depend on how much the
//! sequence has read before.
//!
//! What is not looked up again rests on three others, none of which asks this table. The custody log gives the sequence's
//! pages, which change in nothing but their fill as long as the sequence has let go of none; after that it has none to read
//! (`custody.rs`). The kernels compare the tag of every page, in every step, with the one that it carries in this life. And
//! the digest of what they read is compared with that of the log's pages, in their places.

use crate::machine::page_ref;
use engine_kernels::PageRef;
use engine_kv::{Capability, PAGE_TOKENS};
use policies_domain::{PageRead, PageTrace, SequenceId};

/// Of one sequence.
#[derive(Debug)]
pub(crate) struct TracedTable {
    sequence: SequenceId,
    /// For the kernels.
    entries: Vec<PageRef>,
    /// As the ledger had them.
    reads: Vec<PageRead>,
    /// So many of the first entries are of pages that were full when they were looked up.
    settled: usize,
    /// So many of the first entries are as the last step told them.
    told: usize,
}

impl TracedTable {
    /// Of a sequence that has read nothing.
    pub(crate) fn new(sequence: SequenceId) -> Self {
        Self { sequence, entries: Vec::new(), reads: Vec::new(), settled: 0, told: 0 }
    }

    pub(crate) fn sequence(&self) -> SequenceId {
        self.sequence
    }

    /// Entries before this one are not looked up again.
    pub(crate) fn settled(&self) -> usize {
        self.settled
    }

    /// What the kernels get.
    pub(crate) fn entries(&self) -> &[PageRef] {
        &self.entries
    }

    /// As the ledger had them.
    pub(crate) fn reads(&self) -> &[PageRead] {
        &self.reads
    }

    /// Replaces the entries that are not settled.
    pub(crate) fn lay(&mut self, capabilities: &[Capability]) {
        self.entries.truncate(self.settled);
        self.entries.extend(capabilities.iter().map(|capability| page_ref(*capability)));
    }

    /// Replaces what the ledger said of the entries that are not settled. It takes the first `written` tokens for written.
    pub(crate) fn note(&mut self, reads: &[PageRead], written: usize) {
        let same = std::iter::zip(&self.reads[self.settled..], reads).take_while(|(before, now)| before == now).count();
        self.reads.truncate(self.settled + same);
        self.told = self.told.min(self.reads.len());
        self.reads.extend_from_slice(&reads[same..]);
        self.settled = (written / PAGE_TOKENS).min(self.reads.len());
    }

    /// What the next step has to say: it leaves, or nothing of the request does any more. Allocates only when there is
    /// something new.
    pub(crate) fn tell(&mut self) -> PageTrace {
        let kept = std::mem::replace(&mut self.told, self.reads.len());
        PageTrace { kept, pages: self.reads[kept..].to_vec() }
    }

    /// For faults that are planted where the table is made: it is made anew.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn forget(&mut self) {
        *self = Self::new(self.sequence);
    }

    /// For faults that are planted in what the kernels get.
    #[cfg(feature = "fault-injection")]
    pub(crate) fn entries_mut(&mut self) -> &mut [PageRef] {
        &mut self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::{Generation, Label, PageId, TenantId};

    fn reads(pages: std::ops::Range<u32>) -> Vec<PageRead> {
        let label = Label::of(TenantId::new(1).unwrap());
        pages.map(|page| PageRead { page: PageId(page), generation: Generation(1), label, shared: false }).collect()
    }

    fn table() -> TracedTable {
        TracedTable::new(SequenceId::new(1).unwrap())
    }

    #[test]
    fn an_entry_is_looked_up_until_it_was_found_full() {
        let mut table = table();
        // A chunk of 40 tokens, of which none is written when it is traced.
        table.note(&reads(0..3), 0);
        assert_eq!(table.settled(), 0);
        // The next token: two pages are full, and known to be.
        table.note(&reads(0..3), 40);
        assert_eq!(table.settled(), 2);
        for written in 41..48 {
            table.note(&reads(2..3), written);
            assert_eq!(table.settled(), 2);
        }
        // The last one of a page is written; the next page is there.
        table.note(&reads(2..4), 48);
        assert_eq!(table.settled(), 3);
        table.note(&reads(3..4), 49);
        assert_eq!((table.settled(), table.tell().pages), (3, reads(0..4)));
        // Whatever is said to be written, what was not looked up is not settled.
        table.note(&reads(3..4), 1_000);
        assert_eq!(table.settled(), 4);
    }

    #[test]
    fn a_step_says_what_no_step_said() {
        let mut table = table();
        table.note(&reads(0..2), 0);
        // The step was not made: the next one says it.
        table.note(&reads(0..2), 0);
        assert_eq!(table.tell(), PageTrace { kept: 0, pages: reads(0..2) });
        table.note(&reads(0..3), 20);
        assert_eq!(table.tell(), PageTrace { kept: 2, pages: reads(2..3) });
        table.note(&reads(1..3), 21);
        assert_eq!(table.tell(), PageTrace { kept: 3, pages: Vec::new() });
    }

    #[test]
    fn whatever_is_different_about_a_page_is_said_again() {
        let label = Label::of(TenantId::new(2).unwrap());
        let changes: [fn(&mut PageRead, Label); 3] = [
            |read, _| read.page = PageId(9),
            |read, _| read.generation = Generation(3),
            |read, label| read.label = label,
        ];
        for change in changes {
            for index in 1..3 {
                let mut table = table();
                table.note(&reads(0..3), 0);
                table.tell();
                table.note(&reads(0..3), 16);
                let mut now = reads(1..3);
                change(&mut now[index - 1], label);
                table.note(&now, 17);
                assert_eq!(table.tell(), PageTrace { kept: index, pages: now[index - 1..].to_vec() });
            }
        }
    }

    #[test]
    fn a_table_that_became_shorter_keeps_no_more_than_it_has() {
        let mut table = table();
        table.note(&reads(0..3), 0);
        table.tell();
        table.note(&reads(0..2), 0);
        assert_eq!(table.tell(), PageTrace { kept: 2, pages: Vec::new() });
        table.note(&reads(0..3), 0);
        assert_eq!(table.tell(), PageTrace { kept: 2, pages: reads(2..3) });
    }
}
