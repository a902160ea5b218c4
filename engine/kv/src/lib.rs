//! The ledger of KV pages: who holds which page, in which life of it, and the tag that proves it to a kernel.
//!
//! A page cannot exist without a [`Label`](policies_domain::Label), and a kernel cannot be pointed at a page without a
//! [`Capability`], which only the ledger makes. The bytes live elsewhere (`engine/kernels`); this crate never touches
//! them, but no page becomes free before its owner, every ticket and every step is done with it and its bytes are scrubbed
//! ([`Ledger::reclaim`]). What happened to every page is told in a log, and [`CustodyView`] is what that log alone says.
//!
//! Used by `engine/runtime`; the plain [`Ledger`] also by model checkers.
#![forbid(unsafe_code)]

mod block_table;
mod capability;
#[cfg(test)]
mod catalogue;
mod custody_log;
mod custody_view;
mod fault;
#[cfg(test)]
mod handle_tests;
mod ledger;
#[cfg(test)]
mod model;
mod page;
mod page_label;
mod pool;
mod prefix_cache;
mod sync;
mod tag;
mod ticket;
mod transfer_table;

pub use block_table::BlockTable;
pub use capability::{Capability, Grant, PAGE_TOKENS};
pub use custody_view::{CustodyError, CustodyView, HeldPage};
pub use fault::{CacheFault, LedgerFault};
pub use ledger::{
    AllocateError, Ledger, LedgerConfig, PageCounts, RetireError, TICKETS_PER_PAGE_MAX, TicketError, TraceError,
    UseError,
};
pub use page::{FillingPage, InboundPage, OutboundPage, OwnedPage, SealedPage, SharedPage};
pub use page_label::{PageFormat, PageLabel, PageState};
pub use pool::PagePool;
pub use prefix_cache::{Hit, KnownPrefix, PrefixCache, PrefixCacheConfig, PrefixCacheCounts};
pub use ticket::Ticket;
pub use transfer_table::{InboundTable, OutboundTable};
