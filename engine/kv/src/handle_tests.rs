//! Pages and tickets as values that move. Apart from `page.rs` and `ticket.rs`, which the test of the locks compiles
//! again.

use crate::{InboundPage, Ledger, LedgerConfig, OwnedPage, PageFormat, PagePool, PageState, UseError};
use policies_domain::{HolderId, Label, Outcome, TenantId, TicketKind, TransferId};

const COPY: HolderId = HolderId(4);

fn pool(pages: u32) -> PagePool {
    let (boot_secret, format, compat, events_max) = ([1; 32], PageFormat::Bf16, 0, 0);
    PagePool::new(Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max }))
}

fn label(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

fn inbound(pool: &PagePool) -> InboundPage {
    pool.reserve(label(1), TransferId::new(1).unwrap()).unwrap()
}

#[test]
fn a_ticket_that_is_forgotten_quarantines_its_page() {
    let pool = pool(1);
    let page = inbound(&pool);
    drop(pool.ticket(page.life(), TicketKind::Write, COPY).unwrap());
    assert_eq!(pool.counts().quarantined, 1);
    drop(page);
    assert_eq!(pool.reclaim(|_| panic!("scrubbed under a writer")), 0);
    assert_eq!(pool.fence(COPY), 1);
    assert_eq!(pool.reclaim(|_| true), 1);
}

#[test]
fn a_page_outlives_its_owner_while_a_ticket_is_open() {
    let pool = pool(1);
    let page = inbound(&pool);
    let ticket = pool.ticket(page.life(), TicketKind::Write, COPY).unwrap();
    drop(page);
    assert_eq!((pool.reclaim(|_| true), pool.counts().draining), (0, 1));
    ticket.settle(Outcome::Failed).unwrap();
    assert_eq!(pool.reclaim(|_| true), 1);
}

#[test]
fn a_ticket_that_was_fenced_off_says_nothing_more() {
    let pool = pool(1);
    let page = inbound(&pool);
    let tickets = [(); 2].map(|()| {
        let ticket = pool.ticket(page.life(), TicketKind::Write, COPY).unwrap();
        assert_eq!(pool.fence(COPY), 1);
        ticket
    });
    let [first, second] = tickets;
    assert!(first.settle(Outcome::Done).is_err(), "the fence said that it failed");
    drop(second);
    assert_eq!(pool.counts().inbound, 1, "its outcome was known");
    assert!(page.commit(pool.open_sequence(), 16).is_err(), "nothing has landed");
}

#[test]
fn what_landed_is_committed_to_a_sequence_and_comes_back_from_it() {
    let pool = pool(2);
    for (tokens, sealed) in [(9, false), (16, true)] {
        let page = inbound(&pool);
        let ticket = pool.ticket(page.life(), TicketKind::Write, COPY).unwrap();
        let (page, error) = page.commit(pool.open_sequence(), tokens).unwrap_err();
        assert_eq!(error, UseError::NotLanded { page: page.life().page });
        ticket.settle(Outcome::Done).unwrap();
        let owned = page.commit(pool.open_sequence(), tokens).unwrap();
        assert_eq!(matches!(owned, OwnedPage::Sealed(_)), sealed);
        drop(owned);
    }
    assert_eq!((pool.reclaim(|_| true), pool.counts().free), (2, 2));
}

#[test]
fn an_offered_page_is_handed_over_or_withdrawn() {
    let pool = pool(1);
    let mut page = pool.allocate(label(1), pool.open_sequence()).unwrap();
    let (same, error) = page.seal().unwrap_err();
    assert_eq!(error, UseError::NotWritten { page: same.life().page, fill: 0, wanted: 1 });
    page = same;
    assert_eq!(page.fill(9), Ok(9));
    let outbound = page.seal().unwrap().offer().unwrap();
    let OwnedPage::Filling(page) = outbound.withdraw().unwrap() else { panic!("it has room") };
    let outbound = page.seal().unwrap().offer().unwrap();
    let (before, to) = (outbound.life(), pool.open_sequence());
    let reading = pool.ticket(before, TicketKind::Read, COPY).unwrap();
    let (outbound, error) = outbound.hand_over(to).unwrap_err();
    assert_eq!(error, UseError::TicketsOpen { page: before.page, tickets: 1 });
    reading.settle(Outcome::Done).unwrap();
    let OwnedPage::Filling(mut page) = outbound.hand_over(to).unwrap() else { panic!("it has room") };
    assert_eq!((page.fill(20), page.filled()), (Ok(7), 16));
    assert_eq!(page.life().generation.0, before.generation.0 + 2);
    drop(page);
    assert_eq!(pool.reclaim(|_| true), 1);
}

#[test]
fn a_shared_page_comes_back_with_its_last_holder() {
    let pool = pool(1);
    let mut page = pool.allocate(label(1), pool.open_sequence()).unwrap();
    page.fill(16).unwrap();
    let first = page.seal().unwrap().share().unwrap();
    assert!(matches!(first.attach(label(2), pool.open_sequence()), Err(UseError::Foreign { .. })));
    let second = first.attach(label(1), pool.open_sequence()).unwrap();
    assert_eq!(second.capability(), first.capability());
    drop(first);
    assert_eq!(pool.counts().shared, 1);
    drop(second);
    assert_eq!(pool.reclaim(|_| true), 1);
}

#[test]
fn a_page_that_comes_back_twice_stops_the_worker() {
    let pool = pool(1);
    let page = pool.allocate(label(1), pool.open_sequence()).unwrap();
    let (life, owner) = (page.life(), pool.lock().label(page.life().page).unwrap().owner);
    pool.lock().give_back(life, owner).unwrap();
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(page)));
    let message = panic.unwrap_err().downcast_ref::<String>().unwrap().clone();
    assert!(message.contains("a page came back wrongly: Err(AlreadyBack"), "{message}");
    assert_eq!(pool.lock().label(life.page).unwrap().state, PageState::Draining);
}
