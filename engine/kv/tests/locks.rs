//! The pool's locks under a model checker: the same source as in the library, with the checker's locks in the place of
//! the standard ones, run in every order that threads can take.
#![allow(dead_code, reason = "the sources of the library are compiled again, and the orders use a part of them")]
#![allow(unreachable_pub, reason = "public in the library")]
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails its test")]

/// What the library takes from its own modules.
mod ledger {
    pub(crate) use engine_kv::*;
}
mod sync {
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};
}
#[cfg(feature = "fault-injection")]
use engine_kv::LedgerFault;
#[path = "../src/page.rs"]
mod page;
#[path = "../src/pool.rs"]
mod pool;
#[path = "../src/ticket.rs"]
mod ticket;

use engine_kv::{Ledger, LedgerConfig, PageFormat};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;
use policies_domain::{HolderId, Label, Outcome, TenantId, TicketKind, TransferId};
use pool::PagePool;

const COPY: HolderId = HolderId(1);

fn pool(pages: u32) -> PagePool {
    let (boot_secret, format, compat, events_max) = ([1; 32], PageFormat::Bf16, 0, 0);
    PagePool::new(Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max }))
}

fn label(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

/// An owner that gives a page up, a writer that still has a ticket, a worker that reclaims and a newcomer: the page is
/// scrubbed after the writer's last touch, and the newcomer gets it after that or not at all.
#[test]
fn no_order_scrubs_a_page_under_its_writer() {
    loom::model(|| {
        let pool = pool(1);
        let page = pool.reserve(label(1), TransferId::new(1).unwrap()).unwrap();
        let ticket = pool.ticket(page.life(), TicketKind::Write, COPY).unwrap();
        let writing = Arc::new(AtomicBool::new(true));
        let writer = thread::spawn({
            let writing = writing.clone();
            move || {
                writing.store(false, Ordering::Release);
                ticket.settle(Outcome::Done).unwrap();
            }
        });
        let reclaimer = thread::spawn({
            let (pool, writing) = (pool.clone(), writing.clone());
            move || {
                pool.reclaim(|_| {
                    assert!(!writing.load(Ordering::Acquire), "scrubbed under its writer");
                    true
                });
                if let Ok(newcomer) = pool.allocate(label(2), pool.open_sequence()) {
                    assert!(!writing.load(Ordering::Acquire), "given out under its writer");
                    drop(newcomer);
                }
            }
        });
        drop(page);
        writer.join().unwrap();
        reclaimer.join().unwrap();
        pool.reclaim(|_| true);
        assert_eq!(pool.counts().free, 1, "nothing is lost either");
    });
}

/// A timer and the holder itself end one ticket at the same time: the page is never free before an outcome is known.
#[test]
fn a_timer_never_frees_whatever_it_races_with() {
    loom::model(|| {
        let pool = pool(1);
        let page = pool.reserve(label(1), TransferId::new(1).unwrap()).unwrap();
        let ticket = pool.ticket(page.life(), TicketKind::Write, COPY).unwrap();
        let known = Arc::new(AtomicBool::new(false));
        drop(page);
        let timer = thread::spawn({
            let (pool, known) = (pool.clone(), known.clone());
            move || {
                pool.expire(COPY);
                pool.reclaim(|_| {
                    assert!(known.load(Ordering::Acquire), "time freed a page");
                    true
                });
            }
        });
        known.store(true, Ordering::Release);
        ticket.settle(Outcome::Failed).unwrap();
        timer.join().unwrap();
        pool.reclaim(|_| true);
        assert_eq!(pool.counts().free, 1);
    });
}

/// Two tenants want the only page: never both have it, and each finds it scrubbed.
#[test]
fn one_page_is_never_two_tenants() {
    loom::model(|| {
        let pool = pool(1);
        let taken = Arc::new(AtomicBool::new(false));
        let threads = [1, 2].map(|number| {
            let (pool, taken) = (pool.clone(), taken.clone());
            thread::spawn(move || {
                if let Ok(mut page) = pool.allocate(label(number), pool.open_sequence()) {
                    assert!(!taken.swap(true, Ordering::AcqRel), "two owners");
                    page.fill(1).unwrap();
                    taken.store(false, Ordering::Release);
                    drop(page);
                    pool.reclaim(|_| true);
                }
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        pool.reclaim(|_| true);
        assert_eq!(pool.counts().free, 1);
    });
}
