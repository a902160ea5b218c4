//! The rule file: read once, checked as a whole, then only matched.

use crate::name_pattern::{NamePattern, ParsePatternError};
use policies_domain::{Digest, ModelName, TenantName};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::collections::HashSet;
use std::sync::Arc;

/// Every request walks all rules; so many take a few microseconds.
const RULES_MAX: usize = 1024;
/// Patterns in one rule.
const PATTERNS_MAX: usize = 1024;

/// A rule file that cannot be used. It is refused as a whole: half a policy is none.
#[derive(Debug, thiserror::Error)]
pub enum ReadRulesError {
    /// Not TOML, an unknown key, a missing key or a value of another type.
    #[error("{0}")]
    Syntax(#[from] toml::de::Error),
    /// More rules than are supported.
    #[error("{rules} rules, at most {rules_max} are supported", rules_max = RULES_MAX)]
    TooManyRules {
        /// Rules in the file.
        rules: usize,
    },
    /// A rule's name is empty, too long, or used before: decisions could not be told apart by it.
    #[error("rule {position}: the name must be 1 to 64 of letters, digits, `-`, `_` and unlike the others")]
    Name {
        /// Counted from 1.
        position: usize,
    },
    /// A rule names nobody or nothing, or more than 1,024.
    #[error("rule `{rule}`: `{list}` must have 1 to {patterns_max} entries", patterns_max = PATTERNS_MAX)]
    List {
        /// The rule.
        rule: Arc<str>,
        /// `tenants` or `models`.
        list: &'static str,
    },
    /// One of the patterns cannot be read.
    #[error("rule `{rule}`, `{list}`: {source}")]
    Pattern {
        /// The rule.
        rule: Arc<str>,
        /// `tenants` or `models`.
        list: &'static str,
        /// What is wrong.
        source: ParsePatternError,
    },
    /// A `forbid` rule with a limit: it is not clear which side of it would be forbidden.
    #[error("rule `{rule}`: `completion_tokens_max` is for `permit` rules")]
    LimitOnForbid {
        /// The rule.
        rule: Arc<str>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Effect {
    Permit,
    Forbid,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRules {
    #[serde(default)]
    rule: Vec<RawRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    name: String,
    effect: Effect,
    tenants: Vec<String>,
    models: Vec<String>,
    completion_tokens_max: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct RuleSet {
    pub(crate) rules: Vec<Rule>,
    pub(crate) digest: Digest,
}

#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) name: Arc<str>,
    pub(crate) effect: Effect,
    pub(crate) completion_tokens_max: Option<u64>,
    tenants: Vec<NamePattern>,
    models: Vec<NamePattern>,
}

impl RuleSet {
    pub(crate) fn read(text: &str) -> Result<Self, ReadRulesError> {
        let raw: RawRules = toml::from_str(text)?;
        if raw.rule.len() > RULES_MAX {
            return Err(ReadRulesError::TooManyRules { rules: raw.rule.len() });
        }
        let mut names = HashSet::new();
        for (position, rule) in raw.rule.iter().enumerate() {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            let fit = (1..=64).contains(&rule.name.len()) && rule.name.chars().all(legal);
            if !fit || !names.insert(rule.name.as_str()) {
                return Err(ReadRulesError::Name { position: position + 1 });
            }
        }
        let digest = Digest(Sha256::digest(text.as_bytes()).into());
        let rules = raw.rule.into_iter().map(Rule::check).collect::<Result<_, _>>()?;
        Ok(Self { rules, digest })
    }
}

impl Rule {
    fn check(raw: RawRule) -> Result<Self, ReadRulesError> {
        let name: Arc<str> = raw.name.into();
        if raw.effect == Effect::Forbid && raw.completion_tokens_max.is_some() {
            return Err(ReadRulesError::LimitOnForbid { rule: name });
        }
        let patterns = |list: &'static str, texts: &[String]| {
            if texts.is_empty() || texts.len() > PATTERNS_MAX {
                return Err(ReadRulesError::List { rule: name.clone(), list });
            }
            let parsed: Result<Vec<_>, _> = texts.iter().map(|text| NamePattern::parse(text)).collect();
            parsed.map_err(|source| ReadRulesError::Pattern { rule: name.clone(), list, source })
        };
        let (tenants, models) = (patterns("tenants", &raw.tenants)?, patterns("models", &raw.models)?);
        Ok(Self { effect: raw.effect, completion_tokens_max: raw.completion_tokens_max, tenants, models, name })
    }

    pub(crate) fn matches(&self, tenant: &TenantName, model: &ModelName) -> bool {
        let any = |patterns: &[NamePattern], name: &str| patterns.iter().any(|pattern| pattern.matches(name));
        any(&self.tenants, tenant.as_str()) && any(&self.models, model.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(lines: &str) -> String {
        format!("[[rule]]\n{lines}\n")
    }

    #[test]
    fn a_file_with_any_mistake_is_refused_as_a_whole() {
        let good = "name = \"a\"\neffect = \"permit\"\ntenants = [\"*\"]\nmodels = [\"*\"]";
        assert!(RuleSet::read(&rule(good)).is_ok());
        let table = [
            (rule(&format!("{good}\nmodel = \"x\"")), "unknown field `model`"),
            (format!("rules = []\n{}", rule(good)), "unknown field `rules`"),
            (rule(&good.replace("permit", "allow")), "unknown variant `allow`"),
            (rule(&good.replace("effect = \"permit\"\n", "")), "missing field `effect`"),
            (rule(&good.replace("tenants = [\"*\"]", "tenants = []")), "`tenants` must have 1 to"),
            (rule(&good.replace("models = [\"*\"]", "models = [\"a b\"]")), "`models`: the pattern has a character"),
            (rule(&good.replace("\"a\"", "\"\"")), "rule 1: the name"),
            (rule(good) + &rule(good), "rule 2: the name"),
            (rule(&format!("{good}\ncompletion_tokens_max = -1")), "completion_tokens_max"),
            (rule(&format!("{}\ncompletion_tokens_max = 5", good.replace("permit", "forbid"))), "for `permit` rules"),
            ("[[rule]".to_owned(), "TOML parse error"),
        ];
        for (text, part) in table {
            let error = RuleSet::read(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}\n{error}");
        }
    }

    #[test]
    fn the_number_of_rules_is_bounded() {
        let rules: String = (0..=RULES_MAX)
            .map(|n| rule(&format!("name = \"r{n}\"\neffect = \"permit\"\ntenants = [\"*\"]\nmodels = [\"*\"]")))
            .collect();
        assert!(matches!(RuleSet::read(&rules).unwrap_err(), ReadRulesError::TooManyRules { rules: 1025 }));
    }

    #[test]
    fn the_digest_is_that_of_the_file() {
        let digest = RuleSet::read("").unwrap().digest;
        assert_eq!(digest.to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_ne!(RuleSet::read("# a comment counts as well").unwrap().digest, digest);
    }
}
