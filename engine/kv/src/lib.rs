//! The ledger of KV pages: who owns which page, in which life of it, and the tag that proves it to a kernel.
//!
//! A page cannot exist without a [`Label`](policies_domain::Label), and a kernel cannot be pointed at a page without a
//! [`Capability`], which only the ledger makes. The bytes live elsewhere (`engine/kernels`); this crate never touches
//! them, but no page becomes free before its owner of the bytes has scrubbed it ([`PagePool::reclaim`]).
//!
//! Used by `engine/runtime` alone.
#![forbid(unsafe_code)]

mod block_table;
mod ledger;
mod page;
mod tag;

pub use block_table::BlockTable;
pub use ledger::{AllocateError, PageCounts, PagePool, TraceError};
pub use page::{Capability, FillingPage, PAGE_TOKENS, SealedPage};
