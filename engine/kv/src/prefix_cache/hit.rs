//! What a lookup found.

use crate::capability::PAGE_TOKENS;
use crate::page::SharedPage;
use crate::pool::PagePool;
use policies_domain::{Label, SequenceId};

/// The first pages of a sequence that has not begun yet. They are its own from the lookup on: nobody can free them before it
/// begins, and dropping this gives them back.
#[derive(Debug)]
#[must_use = "the pages go back when it is dropped"]
pub struct Hit {
    pool: PagePool,
    label: Label,
    sequence: SequenceId,
    pages: Vec<SharedPage>,
}

impl Hit {
    pub(super) fn new(pool: PagePool, label: Label, sequence: SequenceId, pages: Vec<SharedPage>) -> Self {
        Self { pool, label, sequence, pages }
    }

    /// Tokens that need not be computed: what `cached_tokens` in a usage report is.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }

    /// Pages found.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Who asked.
    #[must_use]
    pub fn label(&self) -> Label {
        self.label
    }

    pub(crate) fn into_parts(self) -> (PagePool, Label, SequenceId, Vec<SharedPage>) {
        (self.pool, self.label, self.sequence, self.pages)
    }
}
