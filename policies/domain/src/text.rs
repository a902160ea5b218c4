//! Text that must never reach a log: its `Debug` prints a length.

use std::fmt;

/// Text that the model wrote for a tenant.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Completion(String);

impl Completion {
    /// Wraps text so that it cannot be printed by accident.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// For the encoder of a response, and for nobody who writes logs.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// No text at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Completion({} bytes)", self.0.len())
    }
}

/// A secret as a client presented it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential(String);

impl Credential {
    /// Wraps what stood in the request.
    #[must_use]
    pub fn new(secret: String) -> Self {
        Self(secret)
    }

    /// For the one comparison in `gateway/auth`.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_a_length_and_no_content() {
        assert_eq!(format!("{:?}", Completion::new("secret".into())), "Completion(6 bytes)");
        assert_eq!(format!("{:?}", Credential::new("sk-1".into())), "Credential(4 bytes)");
    }
}
