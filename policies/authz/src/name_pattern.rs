//! A name, or a family of names: at most one `*`, which stands for any run of characters.

/// Text that is not a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParsePatternError {
    /// Nothing was given.
    #[error("the pattern is empty")]
    Empty,
    /// Longer than any name can be.
    #[error("the pattern is longer than 128 bytes")]
    TooLong,
    /// More than one `*`: what two of them should mean invites mistakes.
    #[error("the pattern has more than one `*`")]
    Stars,
    /// A character that no name has, so that the rule could never match (`?`, `[`, a space).
    #[error("the pattern has a character that no name has at byte {position}")]
    Character {
        /// Offset in bytes.
        position: usize,
    },
}

/// Matches a whole name, case and all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NamePattern {
    Exact(Box<str>),
    Around { prefix: Box<str>, suffix: Box<str> },
}

impl NamePattern {
    pub(crate) fn parse(text: &str) -> Result<Self, ParsePatternError> {
        if text.is_empty() {
            return Err(ParsePatternError::Empty);
        }
        if text.len() > 128 {
            return Err(ParsePatternError::TooLong);
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:/*".contains(c);
        if let Some((position, _)) = text.char_indices().find(|(_, c)| !allowed(*c)) {
            return Err(ParsePatternError::Character { position });
        }
        match text.split_once('*') {
            None => Ok(Self::Exact(text.into())),
            Some((_, suffix)) if suffix.contains('*') => Err(ParsePatternError::Stars),
            Some((prefix, suffix)) => Ok(Self::Around { prefix: prefix.into(), suffix: suffix.into() }),
        }
    }

    pub(crate) fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(exact) => **exact == *name,
            // Prefix and suffix may not share characters: `ab*ba` is not `aba`.
            Self::Around { prefix, suffix } => {
                name.strip_prefix(&**prefix).is_some_and(|rest| rest.ends_with(&**suffix))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let table = [
            ("acme", "acme", true),
            ("acme", "acme2", false),
            ("acme", "Acme", false),
            ("*", "", true),
            ("*", "anything", true),
            ("acme-*", "acme-", true),
            ("acme-*", "acme", false),
            ("*-70b", "x-70b", true),
            ("*-70b", "x-70bs", false),
            ("ab*ba", "abba", true),
            ("ab*ba", "aba", false),
        ];
        for (pattern, name, matches) in table {
            assert_eq!(NamePattern::parse(pattern).unwrap().matches(name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn what_could_never_match_is_refused() {
        let refused = |text: &str| NamePattern::parse(text).unwrap_err();
        assert_eq!(refused(""), ParsePatternError::Empty);
        assert_eq!(refused("a*b*c"), ParsePatternError::Stars);
        assert_eq!(refused("**"), ParsePatternError::Stars);
        assert_eq!(refused("acme?"), ParsePatternError::Character { position: 4 });
        assert_eq!(refused("ac me"), ParsePatternError::Character { position: 2 });
        assert_eq!(refused(&"a".repeat(129)), ParsePatternError::TooLong);
    }
}
