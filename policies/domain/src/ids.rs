//! Identities. Every one of them is minted inside Bulkhead; nothing a client sends becomes a key.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A tenant's number inside one running gateway: dense, given out by the tenant registry, never reused while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantId(NonZeroU32);

impl TenantId {
    /// Numbers above this are kept free: two for [`crate::Canary`], and one for labels that are no tenant's (see
    /// [`crate::Label::bits`]).
    pub const MAX: u32 = u32::MAX - 3;

    /// `None` for 0 and for numbers above [`TenantId::MAX`].
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        if number > Self::MAX { None } else { NonZeroU32::new(number).map(Self) }
    }

    /// The number of a canary: so far above the numbers of tenants, 1 or 2.
    pub(crate) const fn reserved(above_max: u32) -> Self {
        Self(NonZeroU32::MIN.saturating_add(Self::MAX - 1 + above_max))
    }

    /// The number itself.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0.get()
    }
}

impl fmt::Display for TenantId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tenant-{}", self.0)
    }
}

/// A name did not have the form that its kind requires.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseNameError {
    /// Nothing was given.
    #[error("the name is empty")]
    Empty,
    /// Longer than the kind allows; lengths in bytes.
    #[error("the name has {length} bytes, at most {length_max} are allowed")]
    TooLong {
        /// Bytes given.
        length: usize,
        /// Bytes allowed.
        length_max: usize,
    },
    /// A character outside the allowed set, by byte position.
    #[error("the name has a character that is not allowed at byte {position}")]
    Character {
        /// Offset in bytes.
        position: usize,
    },
}

fn check_name(text: &str, length_max: usize, allowed: impl Fn(char) -> bool) -> Result<(), ParseNameError> {
    if text.is_empty() {
        return Err(ParseNameError::Empty);
    }
    if text.len() > length_max {
        return Err(ParseNameError::TooLong { length: text.len(), length_max });
    }
    match text.char_indices().find(|(_, c)| !allowed(*c)) {
        Some((position, _)) => Err(ParseNameError::Character { position }),
        None => Ok(()),
    }
}

/// A tenant's name as the operator writes it: 1 to 63 of `a-z`, `0-9`, `-`. Stable across restarts, unlike [`TenantId`].
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TenantName(Arc<str>);

impl TenantName {
    /// # Errors
    /// [`ParseNameError`] when the text is empty, longer than 63 bytes or holds another character.
    pub fn parse(text: &str) -> Result<Self, ParseNameError> {
        check_name(text, 63, |c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')?;
        Ok(Self(Arc::from(text)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name under which a model is served: 1 to 128 of letters, digits, `-`, `_`, `.`, `:`, `/`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelName(Arc<str>);

impl ModelName {
    /// # Errors
    /// [`ParseNameError`] when the text is empty, longer than 128 bytes or holds another character.
    pub fn parse(text: &str) -> Result<Self, ParseNameError> {
        check_name(text, 128, |c| c.is_ascii_alphanumeric() || "-_.:/".contains(c))?;
        Ok(Self(Arc::from(text)))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One request, from admission to receipt. A UUID version 7 minted by the gateway; `X-Isolation-Id` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(uuid::Uuid);

impl RequestId {
    /// From the UUID that the gateway minted.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(uuid::Uuid::from_bytes(bytes))
    }

    /// Reads the hyphenated form; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() != 36 {
            return None;
        }
        uuid::Uuid::try_parse(text).ok().map(Self)
    }

    /// The 16 bytes, most significant first.
    #[must_use]
    pub fn bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A page's place in the pool, counted from 0. The same place serves many owners over time: see [`Generation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page-{}", self.0)
    }
}

/// How often a page was allocated or freed: odd while it is owned, even while it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(pub u32);

/// A SHA-256 digest.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_numbers_leave_room_for_the_labels_that_are_no_tenants() {
        assert!(TenantId::new(0).is_none());
        assert!((TenantId::MAX + 1..=u32::MAX).all(|number| TenantId::new(number).is_none()));
        assert_eq!(TenantId::new(TenantId::MAX).map(TenantId::number), Some(u32::MAX - 3));
    }

    #[test]
    fn names_refuse_what_is_not_in_their_alphabet() {
        assert_eq!(TenantName::parse(""), Err(ParseNameError::Empty));
        assert_eq!(TenantName::parse("Acme"), Err(ParseNameError::Character { position: 0 }));
        assert_eq!(TenantName::parse("ac me"), Err(ParseNameError::Character { position: 2 }));
        assert!(matches!(TenantName::parse(&"a".repeat(64)), Err(ParseNameError::TooLong { .. })));
        assert!(TenantName::parse("acme-2").is_ok());
        assert!(ModelName::parse("org/Model-1.5:q4").is_ok());
        assert!(ModelName::parse("two words").is_err());
    }

    #[test]
    fn request_ids_are_read_in_the_hyphenated_form_only() {
        let id = RequestId::from_bytes([7; 16]);
        assert_eq!(RequestId::parse(&id.to_string()), Some(id));
        assert_eq!(RequestId::parse(&id.to_string().replace('-', "")), None);
        assert_eq!(RequestId::parse("not-a-request"), None);
    }
}
