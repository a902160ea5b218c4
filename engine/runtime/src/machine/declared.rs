//! Pages that are everybody's, because an operator said so.
//!
//! Computed like any prompt and checked like any: each pass traces the block table that the kernels get, compares it with the
//! custody log, and the digest of what was read with that of the log's pages.

use super::Machine;
use crate::compute::Compute;
use crate::custody;
use crate::traced_table::TracedTable;
use engine_kernels::Span;
use engine_kv::{AllocateError, BlockTable};
use engine_model::ForwardError;
use policies_domain::{Label, PageId, QuarantineReason};

/// Why a declared prefix is not there.
#[derive(Debug, thiserror::Error)]
pub enum DeclareError {
    /// It needs more pages than there are.
    #[error("there are not enough pages for it")]
    Pages(#[from] AllocateError),
    /// The model failed.
    #[error("the model failed")]
    Forward(#[from] ForwardError),
    /// A page that it holds is not as it should be.
    #[error("the kernels found page `{page}` to be somebody else's")]
    PageFault {
        /// That page. It is kept as evidence.
        page: PageId,
    },
    /// The block table, the custody log and the kernels do not agree on what was read.
    #[error("what was read is not what was written down")]
    ReadSet,
    /// The ledger refused a step of its life.
    #[error("the ledger refused its pages")]
    Ledger,
    /// It was computed, and is not found.
    #[error("it is not found where it was kept")]
    NotKept,
}

impl<C: Compute> Machine<C> {
    /// Computes these tokens, whole pages of them, as everybody's, and keeps them as long as the machine is there. All that is
    /// everybody's has `pages_max` pages.
    ///
    /// # Errors
    /// [`DeclareError`]; nothing is kept then.
    pub(crate) fn declare(
        &mut self,
        tokens: &[u32],
        chunk_tokens: usize,
        pages_max: usize,
    ) -> Result<(), DeclareError> {
        let mut block_table = BlockTable::new_public(&self.pool);
        let mut table = TracedTable::new(block_table.sequence());
        let mut chunks = tokens.chunks(chunk_tokens.max(1));
        let computed = chunks.try_for_each(|chunk| self.compute_public(chunk, &mut block_table, &mut table));
        if computed.is_ok() {
            self.publish(tokens, &mut block_table, pages_max);
        }
        drop(block_table);
        self.reclaim();
        computed?;
        let kept = self.cache.as_ref().map_or(0, |cache| cache.peek(Label::PUBLIC, tokens, tokens.len()).tokens());
        if kept == tokens.len() { Ok(()) } else { Err(DeclareError::NotKept) }
    }

    /// One pass over the next tokens.
    fn compute_public(
        &mut self,
        tokens: &[u32],
        block_table: &mut BlockTable,
        table: &mut TracedTable,
    ) -> Result<(), DeclareError> {
        let first = block_table.tokens();
        let end = first + tokens.len();
        self.grow(block_table, end)?;
        self.follow();
        self.lay(block_table, table, first, end).map_err(|_| DeclareError::Ledger)?;
        let difference = self.trace(table, first).map_err(|_| DeclareError::Ledger)?;
        if difference.is_some() || table.reads().iter().any(|page| page.label != Label::PUBLIC) {
            return Err(DeclareError::ReadSet);
        }
        let last = self.entries.held.last().map(custody::page_ref).ok_or(DeclareError::Ledger)?;
        let sums = self.custody.sums(table.sequence()).map_err(|_| DeclareError::Ledger)?;
        let expected = self.compute.expected_read_set(first, tokens.len(), sums, last);
        let span = Span { ticket: 0, tokens, position: first, pages: table.entries(), logits: false };
        let step = self.pool.issue_step();
        let computed = self.compute.run(&[span], &|| false);
        // No thread of the pass touches a page any more, however it ended.
        assert!(self.pool.retire_step(step).is_ok(), "one step at a time");
        computed?;
        if let Some(fault) = self.compute.fault(0) {
            let page = PageId(fault.page);
            self.pool.quarantine(page, QuarantineReason::TagMismatch);
            return Err(DeclareError::PageFault { page });
        }
        if self.compute.read_set(0) != Some(expected) {
            return Err(DeclareError::ReadSet);
        }
        block_table.advance(tokens.len()).map_err(|_| DeclareError::Ledger)
    }
}

#[cfg(test)]
#[cfg(feature = "fault-injection")]
mod tests;
