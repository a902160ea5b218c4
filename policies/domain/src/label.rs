//! Who may see a piece of data.

use crate::TenantId;
use std::fmt;

/// The restriction on a KV page, and the clearance of a reader: a flat lattice.
///
/// `PUBLIC` lies below every tenant, `NOBODY` above all. [`Label::join`] goes up and never drops a restriction;
/// [`Label::flows_to`] is the only comparison. There is no way down: nothing here declassifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(Restriction);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Restriction {
    Public,
    Tenant(TenantId),
    Nobody,
}

impl Label {
    /// Data that everybody may read. Only an operator's declaration makes it; the engine never infers it.
    pub const PUBLIC: Self = Self(Restriction::Public);
    /// Data that nobody may read: a free page, or a mixture of two tenants.
    pub const NOBODY: Self = Self(Restriction::Nobody);

    /// Data of one tenant.
    #[must_use]
    pub fn of(tenant: TenantId) -> Self {
        Self(Restriction::Tenant(tenant))
    }

    /// The least label that is at least as restrictive as both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Restriction::Public, _) => other,
            (_, Restriction::Public) => self,
            (a, b) if a == b => self,
            _ => Self::NOBODY,
        }
    }

    /// May data with this label reach a reader with that clearance? `NOBODY` reaches no tenant and not the public.
    #[must_use]
    pub fn flows_to(self, clearance: Self) -> bool {
        match (self.0, clearance.0) {
            (Restriction::Public, _) => true,
            (Restriction::Tenant(a), Restriction::Tenant(b)) => a == b,
            (_, Restriction::Nobody) => true,
            (Restriction::Tenant(_), Restriction::Public) | (Restriction::Nobody, _) => false,
        }
    }

    /// The label as 32 bits, as page tags and log entries hold it: 0 nobody, 1 public, tenant number + 1 otherwise.
    #[must_use]
    pub fn bits(self) -> u32 {
        match self.0 {
            Restriction::Nobody => 0,
            Restriction::Public => 1,
            // INVARIANT: `TenantId::MAX` is `u32::MAX - 3` and the canaries' are the two above it, so this cannot wrap.
            Restriction::Tenant(tenant) => tenant.number() + 1,
        }
    }

    /// The inverse of [`Label::bits`]; `None` for the bits of a [`crate::Canary`] alone: nothing that is read or received is one's.
    #[must_use]
    pub fn from_bits(bits: u32) -> Option<Self> {
        match bits {
            0 => Some(Self::NOBODY),
            1 => Some(Self::PUBLIC),
            other => TenantId::new(other - 1).map(Self::of),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Restriction::Public => f.write_str("public"),
            Restriction::Nobody => f.write_str("nobody"),
            Restriction::Tenant(tenant) => write!(f, "{tenant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label() -> impl Strategy<Value = Label> {
        prop_oneof![
            Just(Label::PUBLIC),
            Just(Label::NOBODY),
            (1u32..5).prop_filter_map("tenant", |n| TenantId::new(n).map(Label::of)),
        ]
    }

    proptest! {
        #[test]
        fn join_is_the_least_upper_bound(a in label(), b in label(), c in label()) {
            prop_assert_eq!(a.join(a), a);
            prop_assert_eq!(a.join(b), b.join(a));
            prop_assert_eq!(a.join(b).join(c), a.join(b.join(c)));
            prop_assert!(a.flows_to(a.join(b)) && b.flows_to(a.join(b)));
            // Whatever both flow to, their join flows to as well.
            prop_assert_eq!(a.flows_to(c) && b.flows_to(c), a.join(b).flows_to(c));
        }

        #[test]
        fn flow_is_an_order(a in label(), b in label(), c in label()) {
            prop_assert!(a.flows_to(a));
            prop_assert!(!(a.flows_to(b) && b.flows_to(a)) || a == b);
            prop_assert!(!(a.flows_to(b) && b.flows_to(c)) || a.flows_to(c));
        }

        #[test]
        fn bits_are_one_to_one(a in label(), b in label()) {
            prop_assert_eq!(a.bits() == b.bits(), a == b);
            prop_assert_eq!(Label::from_bits(a.bits()), Some(a));
        }
    }

    #[test]
    fn one_tenant_never_flows_to_another() {
        let (acme, globex) = (TenantId::new(1).map(Label::of), TenantId::new(2).map(Label::of));
        let (Some(acme), Some(globex)) = (acme, globex) else { panic!("1 and 2 are tenant numbers") };
        assert!(!acme.flows_to(globex) && !globex.flows_to(acme));
        assert!(!acme.flows_to(Label::PUBLIC));
        assert!(!Label::NOBODY.flows_to(acme));
    }
}
