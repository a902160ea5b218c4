//! One page through its life: free, filling, sealed. Each state is a type; a page moves and is never copied.

use crate::ledger::PagePool;
use policies_domain::{Generation, Label, PageId};
use std::fmt;

/// Tokens that one page holds.
pub const PAGE_TOKENS: usize = 16;

/// What a kernel needs to read a page, as it stands in a block table. Only the ledger makes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A page in the free list: scrubbed, labelled `NOBODY`, in an even generation.
#[derive(Debug)]
pub(crate) struct FreePage(pub(crate) PageId);

/// What every owned page carries. Dropping it gives the page back: it waits for its scrub and is then free.
struct Owned {
    pool: PagePool,
    capability: Capability,
    generation: Generation,
    label: Label,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.pool.give_back(self.capability.page, self.generation);
    }
}

/// A page that its sequence is writing to.
pub struct FillingPage {
    owned: Owned,
    filled: usize,
}

impl FillingPage {
    pub(crate) fn new(pool: PagePool, capability: Capability, generation: Generation, label: Label) -> Self {
        Self { owned: Owned { pool, capability, generation, label }, filled: 0 }
    }

    /// What a kernel is given to read or append to this page.
    #[must_use]
    pub fn capability(&self) -> Capability {
        self.owned.capability
    }

    /// Whose data it holds.
    #[must_use]
    pub fn label(&self) -> Label {
        self.owned.label
    }

    /// Tokens written so far, at most [`PAGE_TOKENS`].
    #[must_use]
    pub fn filled(&self) -> usize {
        self.filled
    }

    /// Takes note of `tokens` more tokens and returns how many of them still fitted.
    pub fn fill(&mut self, tokens: usize) -> usize {
        let taken = tokens.min(PAGE_TOKENS - self.filled);
        self.filled += taken;
        taken
    }

    /// A full page is never written again.
    ///
    /// # Errors
    /// Hands the page back when it is not full.
    pub fn seal(self) -> Result<SealedPage, Self> {
        if self.filled < PAGE_TOKENS {
            return Err(self);
        }
        self.owned.pool.note_sealed(self.owned.capability.page, self.owned.generation);
        Ok(SealedPage { owned: self.owned })
    }
}

impl fmt::Debug for FillingPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FillingPage({}, {}, {}/{PAGE_TOKENS})", self.owned.capability.page, self.owned.label, self.filled)
    }
}

/// A full page.
pub struct SealedPage {
    owned: Owned,
}

impl SealedPage {
    /// What a kernel is given to read this page.
    #[must_use]
    pub fn capability(&self) -> Capability {
        self.owned.capability
    }

    /// Whose data it holds.
    #[must_use]
    pub fn label(&self) -> Label {
        self.owned.label
    }
}

impl fmt::Debug for SealedPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SealedPage({}, {})", self.owned.capability.page, self.owned.label)
    }
}
