//! What an auditor's opinion is to a tenant. The gate decides about every step before it leaves, for everybody; an auditor reads
//! the log behind it, and may fall behind. Then a tenant is not answered, or is told so, or neither, as was agreed with it.

use crate::config::{Agreement, SecondOpinion};
use crate::respond::RequestError;
use policies_domain::{Principal, TenantId, TenantName};
use std::collections::HashMap;

/// When it is worth another try: an auditor that is there again is asked within some seconds.
const RETRY_AFTER_MS: u64 = 5_000;

/// What was agreed, with those to whom it is something.
#[derive(Debug)]
pub(crate) struct SecondOpinions {
    agreed: HashMap<TenantId, SecondOpinion>,
}

impl SecondOpinions {
    pub(crate) fn of<'a>(principals: &[Principal], agreement: impl Fn(&TenantName) -> Option<&'a Agreement>) -> Self {
        let agreed = |principal: &Principal| Some((principal.tenant(), agreement(principal.name())?.second_opinion));
        let agreed = principals.iter().filter_map(agreed).filter(|(_, agreed)| *agreed != SecondOpinion::Observe);
        Self { agreed: agreed.collect() }
    }

    /// Whether this tenant's answer says that the auditor's opinion is outstanding. `auditor_lags` is asked where it matters.
    ///
    /// # Errors
    /// [`RequestError::AuditorLags`] for whoever is not answered then.
    pub(crate) fn ask(&self, tenant: TenantId, auditor_lags: impl FnOnce() -> bool) -> Result<bool, RequestError> {
        match self.agreed.get(&tenant).copied().unwrap_or_default() {
            SecondOpinion::Observe => Ok(false),
            SecondOpinion::Fence => Ok(auditor_lags()),
            SecondOpinion::Enforce if auditor_lags() => {
                Err(RequestError::AuditorLags { retry_after_ms: RETRY_AFTER_MS })
            }
            SecondOpinion::Enforce => Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_enforces_it_is_not_answered_without_it_and_whoever_fences_is_told() {
        let principal = |number, name: &str| {
            Principal::authenticated(TenantId::new(number).unwrap(), TenantName::parse(name).unwrap())
        };
        let principals = [principal(1, "acme"), principal(2, "globex"), principal(3, "initech"), principal(4, "umbra")];
        let of = |second_opinion| Agreement { second_opinion, ..Agreement::default() };
        let agreements = [SecondOpinion::Enforce, SecondOpinion::Fence, SecondOpinion::Observe].map(of);
        let opinions = SecondOpinions::of(&principals, |name| match name.as_str() {
            "acme" => agreements.first(),
            "globex" => agreements.get(1),
            "initech" => agreements.get(2),
            _ => None,
        });
        let ask = |tenant: usize, lags| opinions.ask(principals[tenant].tenant(), || lags);
        assert!(matches!(ask(0, true), Err(RequestError::AuditorLags { .. })));
        assert!(!ask(0, false).unwrap());
        assert!(ask(1, true).unwrap() && !ask(1, false).unwrap());
        for tenant in [2, 3] {
            assert!(!ask(tenant, true).unwrap() && !ask(tenant, false).unwrap());
        }
    }
}
