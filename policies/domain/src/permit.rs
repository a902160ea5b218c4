//! Who asks, and the proof that a rule allowed it.

use crate::{Digest, Label, ModelName, RequestId, TenantId, TenantName};
use std::sync::Arc;

/// An authenticated caller. Made by `gateway/auth` from a credential that it checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    tenant: TenantId,
    name: TenantName,
}

impl Principal {
    /// For `gateway/auth` alone, after it has checked the credential.
    #[must_use]
    pub fn authenticated(tenant: TenantId, name: TenantName) -> Self {
        Self { tenant, name }
    }

    /// The tenant's number in this process.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// The tenant's name.
    #[must_use]
    pub fn name(&self) -> &TenantName {
        &self.name
    }
}

/// Why a request was permitted: what an auditor needs to decide it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyDecision {
    /// Digest of the rule set that was in force.
    pub rules: Digest,
    /// Names of the rules that decided, in the order of the set.
    pub determining: Vec<Arc<str>>,
}

/// Proof that a rule allowed this principal this request. Whoever does work for a tenant asks for one.
///
/// The label of everything that the request produces comes from here and from nowhere else.
#[derive(Clone, Debug)]
pub struct Permit {
    principal: Principal,
    request: RequestId,
    model: ModelName,
    decision: PolicyDecision,
}

impl Permit {
    /// For `policies/authz` alone, which is its one caller in the workspace (the architecture test counts them).
    #[must_use]
    pub fn granted_by_authz(
        principal: Principal,
        request: RequestId,
        model: ModelName,
        decision: PolicyDecision,
    ) -> Self {
        Self { principal, request, model, decision }
    }

    /// Who may do it.
    #[must_use]
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// For which request: a permit is good for one.
    #[must_use]
    pub fn request(&self) -> RequestId {
        self.request
    }

    /// With which model.
    #[must_use]
    pub fn model(&self) -> &ModelName {
        &self.model
    }

    /// By which rules.
    #[must_use]
    pub fn decision(&self) -> &PolicyDecision {
        &self.decision
    }

    /// The label of all data of this request, and its clearance.
    #[must_use]
    pub fn label(&self) -> Label {
        Label::of(self.principal.tenant)
    }
}
