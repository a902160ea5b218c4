//! What is kept twice in a ledger, compared.

use super::{Ledger, PageCounts, PageState, count};
use policies_domain::{Label, Owner, PageId, SequenceId, TicketKind};
use std::collections::{BTreeMap, BTreeSet};

impl Ledger {
    /// Walks all pages and compares what is kept twice. For tests and model checkers: its cost grows with the pool.
    ///
    /// # Panics
    /// When anything does not fit together.
    pub fn assert_sound(&self) {
        let mut counts = PageCounts { total: self.records.len(), ..PageCounts::default() };
        let listed = |list: &[PageId]| list.iter().copied().collect::<BTreeSet<_>>();
        let (free, draining) = (listed(&self.free), listed(&self.draining));
        assert_eq!((free.len(), draining.len()), (self.free.len(), self.draining.len()), "a page is listed twice");
        for (page, record) in self.records.iter().enumerate() {
            let page = PageId(page as u32);
            let label = record.label;
            *counts.of(label.state) += 1;
            let tickets = self.tickets.keys().filter(|(of, ..)| *of == page).count();
            assert_eq!(tickets, usize::from(record.tickets), "{page}: tickets");
            let writers = self.tickets.keys().filter(|(of, _, kind)| *of == page && *kind == TicketKind::Write).count();
            assert!(writers <= 1, "{page} has two writers");
            let holders = self.attached.iter().filter(|(of, _)| *of == page).count();
            assert_eq!(holders, record.holders as usize, "{page}: holders");
            let keeps = |by: &&(PageId, SequenceId)| by.0 == page && self.keepers.contains(&by.1);
            assert_eq!(self.attached.iter().filter(keeps).count(), record.keepers as usize, "{page}: keepers");
            assert_eq!(free.contains(&page), label.state == PageState::Free, "{page}: free list");
            assert_eq!(draining.contains(&page), label.state == PageState::Draining, "{page}: draining list");
            let in_use = !matches!(label.state, PageState::Free | PageState::Quarantined);
            assert!(!in_use || label.generation.0 % 2 == 1, "{page} is owned in an even generation");
            if label.state == PageState::Free {
                assert!(label.generation.0.is_multiple_of(2), "{page} is free in an odd generation");
                assert_eq!((label.domain, label.owner, label.fill), (Label::NOBODY, Owner::Nobody, 0), "{page}");
                assert_eq!((tickets, record.tag), (0, 0), "{page} is free, and somebody may touch it");
                assert!(record.fence <= self.step_retired, "{page} is free before its step has retired");
            }
        }
        assert_eq!(counts, self.counts);
        assert!(self.counts.conserved());
        self.assert_domains();
    }

    /// What is counted for each domain is what a walk finds.
    fn assert_domains(&self) {
        let (mut held, mut kept_alone) = (BTreeMap::new(), BTreeMap::new());
        let owned = self.records.iter().map(|record| record.label.domain).filter(|domain| *domain != Label::NOBODY);
        owned.for_each(|domain| count(&mut held, domain, true));
        for (page, record) in self.records.iter().enumerate() {
            if self.only_kept(PageId(page as u32)) {
                count(&mut kept_alone, record.label.domain, true);
            }
        }
        assert_eq!((held, kept_alone), (self.held.clone(), self.kept_alone.clone()), "pages of the domains");
        let keepers: usize = self.records.iter().map(|record| record.keepers as usize).sum();
        assert_eq!(keepers, self.keepers.len(), "each keeper keeps one page");
    }
}
