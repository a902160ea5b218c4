//! What the ledger hands out for a page.

use policies_domain::{Generation, PageId, PageLife};

/// Tokens that one page holds.
pub const PAGE_TOKENS: usize = 16;

/// What a kernel needs to read a page, as it stands in a block table. Only the ledger makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    page: PageId,
    tag: u32,
}

impl Capability {
    pub(crate) fn new(page: PageId, tag: u32) -> Self {
        Self { page, tag }
    }

    /// Which page.
    #[must_use]
    pub fn page(self) -> PageId {
        self.page
    }

    /// The tag that the reader holds; the page must still carry the same one when it is read.
    #[must_use]
    pub fn tag(self) -> u32 {
        self.tag
    }
}

/// One life of a page, given to an owner. Only the ledger makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    capability: Capability,
    generation: Generation,
}

impl Grant {
    pub(crate) fn new(capability: Capability, generation: Generation) -> Self {
        Self { capability, generation }
    }

    /// What a kernel is given to read or append to the page.
    #[must_use]
    pub fn capability(self) -> Capability {
        self.capability
    }

    /// Which page, in which life.
    #[must_use]
    pub fn life(self) -> PageLife {
        PageLife { page: self.capability.page, generation: self.generation }
    }
}
