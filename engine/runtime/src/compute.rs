//! What computes tokens, and the memory in which their keys and values lie: for the step loop, one thing.
//!
//! The real one is a model on this machine's processors ([`CpuCompute`]). A test puts another in its place, whose answers
//! say what they were made of: the step loop, the ledger and the handoff around it are the same.

#[cfg(feature = "fault-injection")]
mod plain_store;
#[cfg(test)]
#[cfg(feature = "fault-injection")]
pub(crate) mod tracer;

#[cfg(feature = "fault-injection")]
pub use plain_store::PlainStore;

use engine_kernels::{KvStore, KvStoreError, PageBytes, PageFault, PageRef, ReadSums, Span, TransferError};
use engine_model::{Forward, ForwardError, Model};
use std::sync::Arc;

/// A model with a store of KV pages. All that it is told about pages comes from the ledger.
pub trait Compute: Send {
    /// Computes the tokens of all spans: appends their K and V to their pages, and computes the logits asked for. `stop` is
    /// asked now and then. A span whose pages are not its own gets a fault and disturbs no other.
    ///
    /// # Errors
    /// [`ForwardError`]; the same run may be repeated then.
    fn run(&mut self, spans: &[Span<'_>], stop: &(dyn Fn() -> bool + Sync)) -> Result<(), ForwardError>;

    /// The page that was found not to be the span's in the last run, if any.
    fn fault(&self, span: usize) -> Option<PageFault>;

    /// The digest of the pages that were read for a span in the last run; `None` for spans that there were not.
    fn read_set(&self, span: usize) -> Option<u64>;

    /// What [`Compute::read_set`] is to give for a span of `tokens` from `position` on, when the sequence's pages have these
    /// sums and the span's last token is in `last`.
    fn expected_read_set(&self, position: usize, tokens: usize, sums: &ReadSums, last: PageRef) -> u64;

    /// Logits `[vocab]` of a span's last token, of the last run; `None` for spans that did not ask, had a fault or came
    /// with another ticket.
    fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]>;

    /// Gives a page to the holder of a tag: [`KvStore::assign`].
    ///
    /// # Errors
    /// [`KvStoreError`]; nothing has changed then.
    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError>;

    /// Destroys a page's bytes and tag: [`KvStore::scrub`].
    ///
    /// # Errors
    /// [`KvStoreError`]; the page is not to be used again.
    fn scrub(&mut self, page: u32) -> Result<(), KvStoreError>;

    /// A page for whoever sends it: [`KvStore::read_page`].
    ///
    /// # Errors
    /// [`TransferError`].
    fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError>;

    /// A page as its holder finds it, whatever the bytes in it are: [`KvStore::held_page`].
    ///
    /// # Errors
    /// [`TransferError`].
    fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError>;

    /// Takes the bytes of another store's page in: [`KvStore::land`].
    ///
    /// # Errors
    /// [`TransferError`]; nothing has changed then.
    fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError>;

    /// Bytes that come into a page whosoever it is, as from a peer that has a right to write into this memory: for tests of
    /// what that does. Nothing happens by default.
    #[cfg(feature = "fault-injection")]
    fn overwrite(&mut self, _page: u32, _bytes: &[u8]) {}

    /// Makes the holder of `tag` the page's next one; its bytes carry `carried` now: [`KvStore::relabel`].
    ///
    /// # Errors
    /// [`TransferError`]; nothing has changed then.
    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError>;

    /// Bytes of K and V of one layer of a page: [`KvStore::content_bytes`].
    fn content_bytes(&self) -> usize;

    /// Tokens that there are.
    fn vocabulary(&self) -> u32;

    /// A token that ends an answer.
    fn is_end(&self, token: u32) -> bool;

    /// What a token adds to an answer's text; `None` for control tokens.
    fn text(&self, token: u32) -> Option<&[u8]>;

    /// The calling thread is the one that will call [`Compute::run`].
    fn tie_caller(&self) {}

    /// Nothing runs: memory of free pages may go back to the system, but for the first `keep` pages.
    fn give_back(&mut self, _keep: usize) {}
}

/// A model on this machine's processors.
#[derive(Debug)]
pub(crate) struct CpuCompute {
    model: Arc<Model>,
    forward: Forward,
    store: KvStore,
}

impl CpuCompute {
    /// For runs of up to `tokens_max` tokens on `threads`, over this store.
    pub(crate) fn new(model: &Arc<Model>, store: KvStore, threads: usize, tokens_max: usize) -> Self {
        Self { model: model.clone(), forward: Forward::new(model.clone(), threads, tokens_max), store }
    }
}

impl Compute for CpuCompute {
    fn run(&mut self, spans: &[Span<'_>], stop: &(dyn Fn() -> bool + Sync)) -> Result<(), ForwardError> {
        self.forward.run(&mut self.store, spans, stop)
    }

    fn fault(&self, span: usize) -> Option<PageFault> {
        self.forward.fault(span)
    }

    fn read_set(&self, span: usize) -> Option<u64> {
        self.forward.read_set(span)
    }

    fn expected_read_set(&self, position: usize, tokens: usize, sums: &ReadSums, last: PageRef) -> u64 {
        self.forward.expected_read_set(position, tokens, sums, last)
    }

    fn logits(&self, span: usize, ticket: u64) -> Option<&[f32]> {
        self.forward.logits(span, ticket)
    }

    fn assign(&mut self, page: PageRef) -> Result<(), KvStoreError> {
        self.store.assign(page)
    }

    fn scrub(&mut self, page: u32) -> Result<(), KvStoreError> {
        self.store.scrub(page)
    }

    fn read_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        self.store.read_page(page)
    }

    fn held_page(&self, page: PageRef) -> Result<PageBytes<'_>, TransferError> {
        self.store.held_page(page)
    }

    fn land(&mut self, page: PageRef, bytes: &[u8]) -> Result<(), TransferError> {
        self.store.land(page, bytes)
    }

    fn relabel(&mut self, page: PageRef, carried: u32, tag: u32) -> Result<(), TransferError> {
        self.store.relabel(page, carried, tag)
    }

    fn content_bytes(&self) -> usize {
        self.store.content_bytes()
    }

    fn vocabulary(&self) -> u32 {
        u32::try_from(self.model.tokenizer().vocab()).unwrap_or(u32::MAX)
    }

    fn is_end(&self, token: u32) -> bool {
        self.model.tokenizer().is_end(token)
    }

    fn text(&self, token: u32) -> Option<&[u8]> {
        let tokenizer = self.model.tokenizer();
        if tokenizer.is_control(token) { None } else { tokenizer.token_bytes(token) }
    }

    fn tie_caller(&self) {
        self.forward.tie_caller();
    }

    fn give_back(&mut self, keep: usize) {
        self.store.give_back(keep);
    }
}
