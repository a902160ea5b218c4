//! May this principal make this request of this model? Nothing is allowed unless a rule permits it.
//!
//! The rules are data (`policies/rules/`). Any doubt while deciding is a denial: a limit that cannot be compared, no
//! matching rule, an empty set. This crate is the only one that makes a [`policies_domain::Permit`].
#![forbid(unsafe_code)]
#![cfg_attr(not(test), warn(clippy::indexing_slicing))]

mod name_pattern;
mod rule_set;

pub use name_pattern::ParsePatternError;
pub use rule_set::ReadRulesError;

use policies_domain::{Digest, ModelName, Permit, PolicyDecision, Principal, RequestId};
use rule_set::{Effect, RuleSet};
use std::sync::Arc;

/// What the rules may look at besides who asks and for which model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Completion tokens asked for; `None`: as many as the model's context holds.
    pub completion_tokens_max: Option<u64>,
}

/// No permit. Says nothing about what other tenants may do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No rule permits it.
    #[error("no rule permits this tenant to use this model")]
    NoRule,
    /// A rule forbids it, whatever the others say.
    #[error("rule `{rule}` forbids it")]
    Forbidden {
        /// The first such rule.
        rule: Arc<str>,
    },
    /// A rule would permit it for fewer tokens.
    #[error("at most {tokens_max} completion tokens are permitted")]
    TooManyTokens {
        /// The largest limit among the rules that match otherwise.
        tokens_max: u64,
    },
}

/// The rules in force.
#[derive(Debug)]
pub struct Authz {
    rules: RuleSet,
}

impl Authz {
    /// The rules that ship with this build: every configured tenant may use every served model.
    pub const DEFAULT_RULES: &'static str = include_str!("../../rules/default.toml");

    /// Reads a rule file.
    ///
    /// # Errors
    /// [`ReadRulesError`] for text that is not TOML, unknown keys, bad patterns, two rules of one name, a limit on a
    /// `forbid` rule, or more than 1,024 rules.
    pub fn read(text: &str) -> Result<Self, ReadRulesError> {
        Ok(Self { rules: RuleSet::read(text)? })
    }

    /// SHA-256 of the rule file, as every decision names it.
    #[must_use]
    pub fn digest(&self) -> Digest {
        self.rules.digest
    }

    /// Decides one request.
    ///
    /// # Errors
    /// [`Denied`] unless a `permit` rule matches and no `forbid` rule does.
    pub fn permit(
        &self,
        principal: &Principal,
        request: RequestId,
        model: &ModelName,
        facts: &Facts,
    ) -> Result<Permit, Denied> {
        let determining = self.decide(principal, model, facts)?;
        let decision = PolicyDecision { rules: self.rules.digest, determining };
        Ok(Permit::granted_by_authz(principal.clone(), request, model.clone(), decision))
    }

    /// Would this principal be permitted anything at all of this model? For lists of models; grants nothing.
    #[must_use]
    pub fn lists(&self, principal: &Principal, model: &ModelName) -> bool {
        self.decide(principal, model, &Facts { completion_tokens_max: Some(0) }).is_ok()
    }

    fn decide(&self, principal: &Principal, model: &ModelName, facts: &Facts) -> Result<Vec<Arc<str>>, Denied> {
        let (mut determining, mut limit_missed) = (Vec::new(), None);
        for rule in self.rules.rules.iter().filter(|rule| rule.matches(principal.name(), model)) {
            match rule.effect {
                Effect::Forbid => return Err(Denied::Forbidden { rule: rule.name.clone() }),
                Effect::Permit => match (rule.completion_tokens_max, facts.completion_tokens_max) {
                    (None, _) => determining.push(rule.name.clone()),
                    (Some(limit), Some(asked)) if asked <= limit => determining.push(rule.name.clone()),
                    // Too many, or not stated: what cannot be compared is not permitted.
                    (Some(limit), _) => limit_missed = limit_missed.max(Some(limit)),
                },
            }
        }
        match (determining.is_empty(), limit_missed) {
            (false, _) => Ok(determining),
            (true, Some(tokens_max)) => Err(Denied::TooManyTokens { tokens_max }),
            (true, None) => Err(Denied::NoRule),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use policies_domain::{Label, TenantId, TenantName};

    const RULES: &str = r#"
        [[rule]]
        name = "acme-small"
        effect = "permit"
        tenants = ["acme"]
        models = ["smol*"]
        completion_tokens_max = 100

        [[rule]]
        name = "acme-long"
        effect = "permit"
        tenants = ["acme"]
        models = ["smol-long"]

        [[rule]]
        name = "trial"
        effect = "permit"
        tenants = ["trial-*"]
        models = ["*"]

        [[rule]]
        name = "no-big-trials"
        effect = "forbid"
        tenants = ["trial-*"]
        models = ["*-70b"]
    "#;

    fn decide(rules: &str, tenant: &str, model: &str, tokens: Option<u64>) -> Result<Permit, Denied> {
        let principal = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse(tenant).unwrap());
        Authz::read(rules).unwrap().permit(
            &principal,
            RequestId::from_bytes([1; 16]),
            &ModelName::parse(model).unwrap(),
            &Facts { completion_tokens_max: tokens },
        )
    }

    fn determining(permit: &Permit) -> Vec<&str> {
        permit.decision().determining.iter().map(|rule| &**rule).collect()
    }

    #[test]
    fn a_permit_names_who_what_and_why() {
        let permit = decide(RULES, "acme", "smol-long", Some(50)).unwrap();
        assert_eq!(determining(&permit), ["acme-small", "acme-long"]);
        assert_eq!(permit.label(), Label::of(TenantId::new(1).unwrap()));
        assert_eq!(permit.request(), RequestId::from_bytes([1; 16]));
        assert_eq!(permit.decision().rules, Authz::read(RULES).unwrap().digest());
    }

    #[test]
    fn nothing_is_allowed_without_a_rule() {
        for rules in ["", "rule = []", RULES] {
            assert_eq!(decide(rules, "globex", "smol", Some(1)).unwrap_err(), Denied::NoRule);
        }
        assert_eq!(decide(RULES, "acme", "other", Some(1)).unwrap_err(), Denied::NoRule);
        assert_eq!(decide(RULES, "acme-2", "smol", Some(1)).unwrap_err(), Denied::NoRule, "names match as a whole");
        assert_eq!(decide(RULES, "trial", "smol", Some(1)).unwrap_err(), Denied::NoRule);
    }

    #[test]
    fn a_forbid_rule_wins_whatever_its_place() {
        let forbidden = Denied::Forbidden { rule: "no-big-trials".into() };
        assert_eq!(decide(RULES, "trial-7", "smol-70b", Some(1)).unwrap_err(), forbidden);
        assert!(decide(RULES, "trial-7", "smol", None).is_ok());
        let reversed = format!(
            "{}{}",
            "[[rule]]\nname = \"no\"\neffect = \"forbid\"\ntenants = [\"*\"]\nmodels = [\"*\"]\n",
            Authz::DEFAULT_RULES
        );
        assert_eq!(decide(&reversed, "acme", "smol", None).unwrap_err(), Denied::Forbidden { rule: "no".into() });
    }

    #[test]
    fn a_limit_that_is_passed_or_cannot_be_compared_denies() {
        assert_eq!(determining(&decide(RULES, "acme", "smol", Some(100)).unwrap()), ["acme-small"]);
        let denied = Denied::TooManyTokens { tokens_max: 100 };
        assert_eq!(decide(RULES, "acme", "smol", Some(101)).unwrap_err(), denied);
        assert_eq!(decide(RULES, "acme", "smol", Some(u64::MAX)).unwrap_err(), denied);
        assert_eq!(decide(RULES, "acme", "smol", None).unwrap_err(), denied);
        // Another rule without a limit still permits it, and is the one that is named.
        assert_eq!(determining(&decide(RULES, "acme", "smol-long", None).unwrap()), ["acme-long"]);
    }

    #[test]
    fn lists_show_what_some_request_could_use() {
        let authz = Authz::read(RULES).unwrap();
        let sees = |tenant: &str, model: &str| {
            let principal = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse(tenant).unwrap());
            authz.lists(&principal, &ModelName::parse(model).unwrap())
        };
        assert!(sees("acme", "smol"));
        assert!(!sees("globex", "smol"));
        assert!(!sees("trial-1", "smol-70b"));
    }

    #[test]
    fn the_default_rules_permit_every_configured_tenant() {
        assert!(decide(Authz::DEFAULT_RULES, "acme", "any/model", None).is_ok());
    }
}
