//! What the operator promised each tenant.

use policies_domain::Label;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Of the pages, what is divided into guarantees. The rest is for whoever needs more than its guarantee.
const GUARANTEED_PERCENT: u64 = 80;

/// How urgent a tenant's requests are. Within a class tenants share by weight; a more urgent class goes first, but for a floor
/// that every class keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// Somebody waits for each word.
    Interactive,
    /// Somebody waits for the answer.
    #[default]
    Standard,
    /// Nobody waits.
    Batch,
}

impl Class {
    /// Every class, the most urgent first.
    pub const ALL: [Self; 3] = [Self::Interactive, Self::Standard, Self::Batch];

    /// As the configuration writes it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Standard => "standard",
            Self::Batch => "batch",
        }
    }

    /// As the configuration writes it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == text)
    }
}

/// One tenant's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantTerms {
    /// How urgent its requests are.
    pub class: Class,
    /// Its part of what its class gets, against the other tenants of the class. At least 1, at most [`TenantTerms::WEIGHT_MAX`].
    pub weight: u32,
    /// Its guaranteed part of all KV pages, in thousandths; by weight among all tenants when `None`.
    pub kv_permille: Option<u32>,
    /// Requests of it that may wait for a slot; three quarters of the whole queue when `None`.
    pub queue_max: Option<usize>,
    /// Its steps are never shared with another tenant's, and begin at fixed times.
    pub exclusive: bool,
    /// Tokens may be guessed from the request's own text and verified several at a time. Changes no bit of an answer, but how
    /// many tokens a step gives depends on them.
    pub speculates: bool,
}

impl TenantTerms {
    /// The largest weight.
    pub const WEIGHT_MAX: u32 = 1000;
}

impl Default for TenantTerms {
    fn default() -> Self {
        Self {
            class: Class::default(),
            weight: 1,
            kv_permille: None,
            queue_max: None,
            exclusive: false,
            speculates: true,
        }
    }
}

/// Everybody's terms. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Tenancy(Arc<Terms>);

#[derive(Debug, Default)]
struct Terms {
    of: BTreeMap<Label, TenantTerms>,
    /// Of everybody whose guarantee goes by weight.
    weights: u64,
    /// Thousandths of the guaranteed part that were promised by number.
    promised: u64,
    otherwise: TenantTerms,
}

/// More was promised than there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the tenants' guaranteed parts of the KV pages add up to {permille} thousandths, at most {permille_max} can be given"
)]
pub struct Overpromised {
    /// What the parts add up to.
    pub permille: u64,
    /// What can be given.
    pub permille_max: u64,
}

impl Tenancy {
    /// Of these tenants. Whoever is not among them has the default terms and no guarantee.
    ///
    /// # Errors
    /// [`Overpromised`].
    pub fn new(tenants: impl IntoIterator<Item = (Label, TenantTerms)>) -> Result<Self, Overpromised> {
        let of: BTreeMap<_, _> = tenants.into_iter().collect();
        let by_weight = of.values().filter(|terms| terms.kv_permille.is_none());
        let weights = by_weight.map(|terms| u64::from(terms.weight)).sum();
        let promised = of.values().filter_map(|terms| terms.kv_permille).map(u64::from).sum();
        let permille_max = GUARANTEED_PERCENT * 10;
        if promised > permille_max {
            return Err(Overpromised { permille: promised, permille_max });
        }
        let otherwise = TenantTerms::default();
        Ok(Self(Arc::new(Terms { of, weights, promised, otherwise })))
    }

    /// How many have terms of their own.
    pub(crate) fn tenants(&self) -> usize {
        self.0.of.len()
    }

    /// One tenant's terms.
    #[must_use]
    pub fn of(&self, tenant: Label) -> &TenantTerms {
        self.0.of.get(&tenant).unwrap_or(&self.0.otherwise)
    }

    /// Of everybody's terms, under their numbers: two processes that share out the work of the same tenants have the same.
    #[must_use]
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("bulkhead 2026 terms of the tenants v1");
        for (tenant, terms) in &self.0.of {
            let TenantTerms { class, weight, kv_permille, queue_max, exclusive, speculates } = *terms;
            let queue_max = queue_max.map_or(u64::MAX, |queue_max| queue_max as u64);
            hasher.update(&tenant.bits().to_le_bytes());
            hasher.update(&[class as u8, u8::from(exclusive), u8::from(speculates)]);
            hasher.update(&weight.to_le_bytes());
            hasher.update(&kv_permille.unwrap_or(u32::MAX).to_le_bytes());
            hasher.update(&queue_max.to_le_bytes());
        }
        *hasher.finalize().as_bytes()
    }

    /// Of so many pages, those that nobody takes from this tenant. All guarantees together are four fifths of the pages.
    #[must_use]
    pub fn guaranteed_pages(&self, tenant: Label, pages: usize) -> usize {
        let Terms { of, weights, promised, .. } = &*self.0;
        let Some(terms) = of.get(&tenant) else { return 0 };
        let pages = pages as u128;
        let part = match terms.kv_permille {
            Some(permille) => pages * u128::from(permille) / 1000,
            None => {
                let left = u128::from(GUARANTEED_PERCENT * 10 - promised);
                pages * left * u128::from(terms.weight) / (u128::from(*weights).max(1) * 1000)
            }
        };
        usize::try_from(part).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::TenantId;

    fn label(number: u32) -> Label {
        Label::of(TenantId::new(number).unwrap())
    }

    fn terms(weight: u32, kv_permille: Option<u32>) -> TenantTerms {
        TenantTerms { weight, kv_permille, ..TenantTerms::default() }
    }

    #[test]
    fn guarantees_are_four_fifths_of_the_pages_by_weight() {
        let tenancy = Tenancy::new([(label(1), terms(3, None)), (label(2), terms(1, None))]).unwrap();
        assert_eq!([1, 2, 3].map(|tenant| tenancy.guaranteed_pages(label(tenant), 1000)), [600, 200, 0]);
        assert_eq!(tenancy.guaranteed_pages(Label::PUBLIC, 1000), 0);
        assert_eq!(Tenancy::default().guaranteed_pages(label(1), 1000), 0);
    }

    #[test]
    fn what_was_promised_by_number_comes_first() {
        let tenancy =
            Tenancy::new([(label(1), terms(9, Some(500))), (label(2), terms(1, None)), (label(3), terms(1, None))]);
        let tenancy = tenancy.unwrap();
        assert_eq!([1, 2, 3].map(|tenant| tenancy.guaranteed_pages(label(tenant), 1000)), [500, 150, 150]);
        let wrong = Tenancy::new([(label(1), terms(1, Some(500))), (label(2), terms(1, Some(301)))]);
        assert_eq!(wrong.unwrap_err(), Overpromised { permille: 801, permille_max: 800 });
    }

    #[test]
    fn two_processes_have_the_same_terms_only_if_all_of_them_are() {
        let of = |tenants: &[(u32, TenantTerms)]| {
            Tenancy::new(tenants.iter().map(|(number, terms)| (label(*number), *terms))).unwrap().digest()
        };
        let (one, two) = (terms(1, None), terms(2, Some(100)));
        let digest = of(&[(1, one), (2, two)]);
        assert_eq!(of(&[(2, two), (1, one)]), digest, "in whatever order they are told");
        for other in [
            TenantTerms { class: Class::Batch, ..one },
            TenantTerms { weight: 3, ..one },
            TenantTerms { kv_permille: Some(0), ..one },
            TenantTerms { queue_max: Some(0), ..one },
            TenantTerms { exclusive: true, ..one },
            TenantTerms { speculates: false, ..one },
        ] {
            assert_ne!(of(&[(1, other), (2, two)]), digest, "{other:?}");
        }
        assert_ne!(of(&[(1, two), (2, one)]), digest, "each under its number");
        assert_ne!(of(&[(1, one), (2, two), (3, one)]), digest);
        assert_ne!(of(&[(1, one)]), Tenancy::default().digest());
    }

    #[test]
    fn classes_are_read_as_they_are_written() {
        for class in Class::ALL {
            assert_eq!(Class::parse(class.as_str()), Some(class));
        }
        assert_eq!(Class::parse("urgent"), None);
    }
}
