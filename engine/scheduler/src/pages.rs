//! Who has more KV pages than it was guaranteed.

use crate::terms::Tenancy;
use policies_domain::Label;
use std::collections::{BTreeSet, HashMap};

/// The pages of each tenant against its guarantee.
#[derive(Debug)]
pub(crate) struct PageShares {
    pages: usize,
    held: HashMap<Label, Held>,
    /// Tenants with more than their guarantee, by how much.
    over: BTreeSet<(usize, Label)>,
}

/// What a tenant has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    pages: usize,
    /// Of these, pages that its cache alone holds.
    cached: usize,
    guaranteed: usize,
}

impl Held {
    fn over(self) -> usize {
        self.pages.saturating_sub(self.guaranteed)
    }
}

impl PageShares {
    /// Of so many pages in all.
    pub(crate) fn new(pages: usize) -> Self {
        Self { pages, held: HashMap::new(), over: BTreeSet::new() }
    }

    /// A tenant has so many pages now, `cached` of which nothing but its cache holds.
    pub(crate) fn note(&mut self, tenancy: &Tenancy, tenant: Label, pages: usize, cached: usize) {
        let guaranteed = tenancy.guaranteed_pages(tenant, self.pages);
        let now = Held { pages, cached, guaranteed };
        let before = self.held.insert(tenant, now).unwrap_or_default();
        if before.over() != now.over() {
            self.over.remove(&(before.over(), tenant));
            if now.over() > 0 {
                self.over.insert((now.over(), tenant));
            }
        }
        if pages == 0 {
            self.held.remove(&tenant);
        }
    }

    /// From whom pages may be taken for this tenant, and how many: those with most above their guarantees first. Among those
    /// above their guarantees nobody takes from who has less above it.
    pub(crate) fn over(&self, tenant: Label) -> impl Iterator<Item = (usize, Label)> {
        let own = self.held.get(&tenant).map_or(0, |held| held.over());
        self.over.iter().rev().copied().take_while(move |(over, _)| *over > own)
    }

    /// Tenants with more than their guarantee, by how much: who has most first.
    pub(crate) fn all_over(&self) -> impl Iterator<Item = (usize, Label)> {
        self.over.iter().rev().copied()
    }

    /// How much above its guarantee a tenant would be with so many pages more.
    pub(crate) fn over_with(&self, tenancy: &Tenancy, tenant: Label, more: usize) -> usize {
        let held = self.held.get(&tenant).map_or(0, |held| held.pages);
        (held + more).saturating_sub(tenancy.guaranteed_pages(tenant, self.pages))
    }

    /// Pages that nothing but the tenant's cache holds.
    pub(crate) fn cached(&self, tenant: Label) -> usize {
        self.held.get(&tenant).map_or(0, |held| held.cached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantTerms;
    use policies_domain::TenantId;

    fn label(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    fn from(shares: &PageShares, tenant: u32) -> Option<(usize, Label)> {
        shares.over(label(tenant)).next()
    }

    #[test]
    fn nobody_within_its_guarantee_gives_anything() {
        let tenancy = Tenancy::new([1, 2].map(|tenant| (label(tenant), TenantTerms::default()))).unwrap();
        let mut shares = PageShares::new(100);
        let mut note = |tenant, pages, cached| shares.note(&tenancy, label(tenant), pages, cached);
        note(1, 40, 40);
        note(2, 40, 0);
        assert_eq!((from(&shares, 1), from(&shares, 2)), (None, None));
        let mut note = |tenant, pages, cached| shares.note(&tenancy, label(tenant), pages, cached);
        note(2, 60, 10);
        assert_eq!(from(&shares, 1), Some((20, label(2))));
        assert_eq!(from(&shares, 2), None, "it makes room for itself");
        assert_eq!(from(&shares, 3), Some((20, label(2))));
        let mut note = |tenant, pages, cached| shares.note(&tenancy, label(tenant), pages, cached);
        note(1, 41, 0);
        assert_eq!(from(&shares, 1), Some((20, label(2))), "from whoever has more above it");
        assert_eq!(from(&shares, 2), None);
        assert_eq!(shares.cached(label(2)), 10);
        let mut note = |tenant, pages, cached| shares.note(&tenancy, label(tenant), pages, cached);
        note(2, 0, 0);
        note(1, 0, 0);
        assert!(shares.over.is_empty() && shares.held.is_empty());
    }
}
