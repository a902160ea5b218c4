//! The tag of a page: 32 bits that change with every owner and every life of the page.

use policies_domain::{Generation, Label, PageId};
use std::fmt;

/// Makes tags under a secret that lives as long as the process, so that bytes of an earlier run match no page of this one.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct TagKey {
    secret: [u8; 32],
    /// Model and layout: pages that mean something else have other tags.
    compat: u16,
}

impl TagKey {
    pub(crate) fn new(boot_secret: [u8; 32], compat: u16) -> Self {
        Self { secret: boot_secret, compat }
    }

    /// Never 0, which the stores use for "nobody's page". A wrong page passes with a chance of 2^-32.
    pub(crate) fn tag(&self, page: PageId, generation: Generation, label: Label) -> u32 {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(&page.0.to_le_bytes());
        hasher.update(&generation.0.to_le_bytes());
        hasher.update(&label.bits().to_le_bytes());
        hasher.update(&self.compat.to_le_bytes());
        let mut bytes = [0; 4];
        hasher.finalize_xof().fill(&mut bytes);
        u32::from_le_bytes(bytes).max(1)
    }
}

impl fmt::Debug for TagKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TagKey")
    }
}
