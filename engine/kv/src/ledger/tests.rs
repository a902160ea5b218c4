//! One behaviour each.

use super::*;
use policies_domain::{Outcome, PageRead, TenantId, TransferId};

pub(super) fn tenant(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

pub(super) fn ledger(pages: u32) -> Ledger {
    let (boot_secret, format, compat, events_max) = ([1; 32], PageFormat::Bf16, 7, 0);
    Ledger::new(LedgerConfig { pages, boot_secret, format, compat, events_max })
}

/// A page of the tenant with this many tokens, and its owner.
fn page(ledger: &mut Ledger, number: u32, tokens: usize) -> (Grant, SequenceId) {
    let owner = ledger.open_sequence();
    let grant = ledger.allocate(tenant(number), owner).unwrap();
    ledger.append(grant.life(), owner, tokens).unwrap();
    (grant, owner)
}

fn state(ledger: &Ledger, grant: Grant) -> PageState {
    ledger.label(grant.life().page).unwrap().state
}

const READ: TicketKind = TicketKind::Read;
const WRITE: TicketKind = TicketKind::Write;
const COPY: HolderId = HolderId(9);

#[test]
fn a_page_needs_the_label_of_one_tenant() {
    let mut ledger = ledger(2);
    let sequence = ledger.open_sequence();
    let transfer = TransferId::new(0).unwrap();
    for label in [Label::NOBODY, Label::PUBLIC] {
        assert_eq!(ledger.allocate(label, sequence), Err(AllocateError::NotATenant { label }));
        assert_eq!(ledger.reserve(label, transfer), Err(AllocateError::NotATenant { label }));
    }
    assert_eq!(ledger.counts().free, 2);
}

#[test]
fn a_page_is_not_free_before_it_is_scrubbed() {
    let mut ledger = ledger(1);
    let (grant, owner) = page(&mut ledger, 1, 3);
    ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    assert_eq!(ledger.counts().draining, 1);
    assert_eq!(ledger.allocate(tenant(2), owner), Err(AllocateError::PoolExhausted { pages_total: 1 }));
    let mut scrubbed = Vec::new();
    assert_eq!(
        ledger.reclaim(|page| {
            scrubbed.push(page);
            true
        }),
        1
    );
    assert_eq!(scrubbed, [PageId(0)]);
    assert!(ledger.allocate(tenant(2), owner).is_ok());
    ledger.assert_sound();
}

#[test]
fn a_page_that_cannot_be_scrubbed_is_never_used_again() {
    let mut ledger = ledger(1);
    let (grant, owner) = page(&mut ledger, 1, 3);
    ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    assert_eq!(ledger.reclaim(|_| false), 0);
    assert_eq!(ledger.counts(), PageCounts { total: 1, quarantined: 1, ..PageCounts::default() });
    assert!(ledger.allocate(tenant(1), owner).is_err());
    assert_eq!(ledger.reclaim(|_| true), 0, "a second attempt does not make it better");
    ledger.assert_sound();
}

#[test]
fn a_quarantined_page_keeps_its_bytes_and_never_returns() {
    let mut ledger = ledger(2);
    let (grant, owner) = page(&mut ledger, 1, 3);
    let id = grant.life().page;
    let mismatch = QuarantineReason::TagMismatch;
    assert!(ledger.quarantine(id, mismatch) && !ledger.quarantine(PageId(7), mismatch));
    ledger.append(grant.life(), owner, 1).expect("its owner did nothing wrong and goes on");
    ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    let mut scrubbed = Vec::new();
    ledger.reclaim(|page| {
        scrubbed.push(page);
        true
    });
    assert!(scrubbed.is_empty(), "evidence was destroyed");
    assert_eq!(ledger.counts().quarantined, 1);
    assert!(ledger.quarantine(PageId(1 - id.0), mismatch), "a free page can be taken out of use as well");
    assert_eq!(ledger.counts().quarantined, 2);
    assert!(ledger.allocate(tenant(1), owner).is_err());
    ledger.assert_sound();
}

#[test]
fn every_life_of_a_page_has_its_own_tag() {
    let mut ledger = ledger(1);
    let mut seen = Vec::new();
    for round in 0..50u32 {
        let (grant, owner) = page(&mut ledger, 1 + round % 2, 1);
        let tag = grant.capability().tag();
        let label = ledger.label(PageId(0)).unwrap();
        assert_eq!((label.generation.0, label.domain), (2 * round + 1, tenant(1 + round % 2)), "odd while it is owned");
        assert!(!seen.contains(&tag));
        seen.push(tag);
        ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
        ledger.reclaim(|_| true);
        assert_eq!(ledger.label(PageId(0)).unwrap().generation.0, 2 * round + 2, "even while it is free");
    }
    for (boot, compat) in [(2, 7), (1, 8)] {
        let format = PageFormat::Bf16;
        let mut other = Ledger::new(LedgerConfig { pages: 1, boot_secret: [boot; 32], format, compat, events_max: 0 });
        assert!(!seen.contains(&page(&mut other, 1, 1).0.capability().tag()), "boot {boot}, model {compat}");
    }
}

#[test]
fn the_trace_tells_the_ledgers_truth_about_a_stale_capability() {
    let mut ledger = ledger(1);
    let (grant, owner) = page(&mut ledger, 1, 5);
    let stale = grant.capability();
    ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    ledger.reclaim(|_| true);
    assert_eq!(traced(&ledger, &[stale], 0).unwrap()[0].label, Label::NOBODY);
    let (_, owner) = page(&mut ledger, 2, 5);
    assert_eq!(traced(&ledger, &[stale], 5).unwrap()[0].label, tenant(2));
    assert_eq!(ledger.check_read(stale, owner, tenant(2), 1), Err(UseError::TagMismatch { page: PageId(0) }));
    let beyond = Capability::new(PageId(9), 1);
    assert_eq!(traced(&ledger, &[beyond], 0), Err(TraceError::OutOfRange { page: PageId(9), pages_total: 1 }));
    assert_eq!(ledger.check_read(beyond, owner, tenant(2), 0), Err(UseError::OutOfRange { page: PageId(9) }));
}

#[test]
fn no_read_goes_beyond_what_was_written() {
    let mut ledger = ledger(2);
    let owner = ledger.open_sequence();
    let grants = [(); 2].map(|()| ledger.allocate(tenant(1), owner).unwrap());
    ledger.append(grants[0].life(), owner, 20).unwrap();
    ledger.append(grants[1].life(), owner, 4).unwrap();
    let table = grants.map(Grant::capability);
    let whole = traced(&ledger, &table, 20).unwrap();
    assert_eq!(whole.len(), 2);
    let page = table[1].page();
    assert_eq!(traced(&ledger, &table, 21), Err(TraceError::NotWritten { page, fill: 4, wanted: 5 }));
    // The same from the second entry on.
    let mut rest = Vec::new();
    assert_eq!((ledger.trace(1, &table[1..], 20, &mut rest), &rest[..]), (Ok(()), &whole[1..]));
    let beyond = ledger.trace(1, &table[1..], 21, &mut rest);
    assert_eq!(beyond, Err(TraceError::NotWritten { page, fill: 4, wanted: 5 }));
    assert!(ledger.check_read(table[1], owner, tenant(1), 4).is_ok());
    let beyond = UseError::NotWritten { page, fill: 4, wanted: 5 };
    assert_eq!(ledger.check_read(table[1], owner, tenant(1), 5), Err(beyond));
    assert_eq!(traced(&ledger, &[], 100), Ok(Vec::new()), "no page, nothing read");
}

fn traced(ledger: &Ledger, table: &[Capability], tokens: usize) -> Result<Vec<PageRead>, TraceError> {
    let mut reads = Vec::new();
    ledger.trace(0, table, tokens, &mut reads).map(|()| reads)
}

#[test]
fn only_the_owner_reads_and_writes_and_only_in_this_life() {
    let mut ledger = ledger(2);
    let (grant, owner) = page(&mut ledger, 1, 5);
    let (life, other) = (grant.life(), ledger.open_sequence());
    let PageLife { page, generation } = life;
    let not_owner = UseError::NotOwner { page, held: Owner::Sequence(owner), wanted: Owner::Sequence(other) };
    let before = ledger.clone();
    assert_eq!(ledger.append(life, other, 1), Err(not_owner));
    assert_eq!(ledger.seal(life, other), Err(not_owner));
    assert_eq!(ledger.give_back(life, Owner::Sequence(other)), Err(not_owner));
    assert_eq!(ledger.check_read(grant.capability(), other, tenant(1), 1), Err(not_owner));
    let foreign = UseError::Foreign { page, held: tenant(1), wanted: tenant(2) };
    assert_eq!(ledger.check_read(grant.capability(), owner, tenant(2), 1), Err(foreign));
    for wanted in [Generation(generation.0 - 1), Generation(generation.0 + 2)] {
        let stale = UseError::Stale { page, held: generation, wanted };
        let life = PageLife { page, generation: wanted };
        assert_eq!(ledger.append(life, owner, 1), Err(stale));
        assert_eq!(ledger.give_back(life, Owner::Sequence(owner)), Err(stale));
        assert_eq!(ledger.open_ticket(life, READ, COPY), Err(stale.into()));
    }
    assert!(ledger.give_back(PageLife { page: PageId(1), generation: Generation(0) }, Owner::Nobody).is_err());
    assert_eq!(ledger, before, "what is refused changes nothing");
}

#[test]
fn a_page_comes_back_once() {
    let mut ledger = ledger(2);
    let (grant, owner) = page(&mut ledger, 1, 5);
    ledger.give_back(grant.life(), Owner::Sequence(owner)).unwrap();
    let back = UseError::AlreadyBack { page: grant.life().page };
    assert_eq!(ledger.give_back(grant.life(), Owner::Sequence(owner)), Err(back));
    ledger.reclaim(|_| true);
    assert!(matches!(ledger.give_back(grant.life(), Owner::Sequence(owner)), Err(UseError::Stale { .. })));
    ledger.assert_sound();
}

#[test]
fn what_is_sealed_is_written_no_more_and_what_is_empty_is_not_sealed() {
    let mut ledger = ledger(2);
    let (grant, owner) = page(&mut ledger, 1, 0);
    let (life, id) = (grant.life(), grant.life().page);
    assert_eq!(ledger.seal(life, owner), Err(UseError::NotWritten { page: id, fill: 0, wanted: 1 }));
    assert_eq!(ledger.append(life, owner, 3), Ok(3));
    ledger.open_ticket(life, WRITE, COPY).unwrap();
    assert_eq!(ledger.seal(life, owner), Err(UseError::TicketsOpen { page: id, tickets: 1 }));
    ledger.settle(life, WRITE, COPY, Outcome::Done).unwrap();
    ledger.seal(life, owner).unwrap();
    let sealed = UseError::WrongState { page: id, state: PageState::Sealed };
    assert_eq!(ledger.append(life, owner, 1), Err(sealed));
    assert_eq!(ledger.seal(life, owner), Err(sealed));
    assert_eq!(ledger.open_ticket(life, WRITE, COPY), Err(sealed.into()));
    assert_eq!(ledger.share(life, owner), Err(UseError::NotWritten { page: id, fill: 3, wanted: 16 }));
}

#[test]
fn a_shared_page_is_one_tenants_and_drains_after_its_last_reader() {
    let mut ledger = ledger(1);
    let (grant, first) = page(&mut ledger, 1, 16);
    let (life, second) = (grant.life(), ledger.open_sequence());
    assert!(matches!(ledger.attach(life, tenant(1), second), Err(UseError::WrongState { .. })), "not shared yet");
    ledger.seal(life, first).unwrap();
    ledger.share(life, first).unwrap();
    assert!(matches!(ledger.attach(life, tenant(2), second), Err(UseError::Foreign { .. })));
    assert!(ledger.check_read(grant.capability(), second, tenant(1), 16).is_err());
    assert_eq!(ledger.attach(life, tenant(1), second), Ok(grant));
    assert!(matches!(ledger.attach(life, tenant(1), second), Err(UseError::Attached { .. })));
    assert!(ledger.check_read(grant.capability(), second, tenant(1), 16).is_ok());
    ledger.give_back(life, Owner::Sequence(first)).unwrap();
    assert!(ledger.give_back(life, Owner::Sequence(first)).is_err(), "it has let go already");
    assert_eq!(state(&ledger, grant), PageState::Shared);
    assert!(ledger.check_read(grant.capability(), first, tenant(1), 1).is_err());
    ledger.give_back(life, Owner::Sequence(second)).unwrap();
    assert_eq!(ledger.reclaim(|_| true), 1);
    ledger.assert_sound();
}

#[test]
fn what_was_transferred_has_a_life_and_a_tag_of_its_own() {
    let mut ledger = ledger(2);
    let transfer = TransferId::new(3).unwrap();
    let grant = ledger.reserve(tenant(1), transfer).unwrap();
    let (life, from, to) = (grant.life(), Owner::Transfer(transfer), ledger.open_sequence());
    let id = life.page;
    assert_eq!(ledger.commit(life, from, to, 16), Err(UseError::NotLanded { page: id }), "nothing has come");
    assert!(ledger.check_read(grant.capability(), to, tenant(1), 0).is_err(), "what is still to come is not read");
    ledger.open_ticket(life, WRITE, COPY).unwrap();
    assert_eq!(ledger.commit(life, from, to, 16), Err(UseError::NotLanded { page: id }), "it is still coming");
    ledger.settle(life, WRITE, COPY, Outcome::Failed).unwrap();
    assert_eq!(ledger.commit(life, from, to, 16), Err(UseError::NotLanded { page: id }), "it has not come");
    ledger.open_ticket(life, WRITE, COPY).unwrap();
    ledger.settle(life, WRITE, COPY, Outcome::Done).unwrap();
    for tokens in [0, 17] {
        assert!(matches!(ledger.commit(life, from, to, tokens), Err(UseError::NotWritten { .. })), "{tokens}");
    }
    let other = Owner::Transfer(TransferId::new(4).unwrap());
    assert!(matches!(ledger.commit(life, other, to, 16), Err(UseError::NotOwner { .. })));
    let committed = ledger.commit(life, from, to, 11).unwrap();
    assert_eq!(committed.life().generation.0, life.generation.0 + 2);
    assert_ne!(committed.capability().tag(), grant.capability().tag());
    assert!(ledger.check_read(committed.capability(), to, tenant(1), 11).is_ok());
    assert!(ledger.check_read(grant.capability(), to, tenant(1), 11).is_err(), "whoever wrote as the transfer is out");
    assert!(matches!(ledger.open_ticket(life, WRITE, COPY), Err(TicketError::Page(UseError::Stale { .. }))));
    assert!(ledger.commit(committed.life(), from, to, 11).is_err(), "once");
    assert_eq!(ledger.append(committed.life(), to, 9), Ok(5), "it has room for five more");
    ledger.assert_sound();
}

#[test]
fn an_offered_page_changes_hands_after_its_copies_and_steps() {
    let mut ledger = ledger(1);
    let (grant, owner) = page(&mut ledger, 1, 11);
    let (life, from, to) = (grant.life(), Owner::Sequence(owner), ledger.open_sequence());
    assert!(matches!(ledger.offer(life, owner), Err(UseError::WrongState { .. })), "it is being written");
    ledger.seal(life, owner).unwrap();
    let step = ledger.issue_step();
    ledger.offer(life, owner).unwrap();
    assert!(ledger.check_read(grant.capability(), owner, tenant(1), 11).is_ok(), "its owner reads on");
    let open = UseError::StepOpen { page: life.page, step, retired: 0 };
    assert_eq!(ledger.commit(life, from, to, 11), Err(open));
    ledger.retire_step(step).unwrap();
    ledger.open_ticket(life, READ, COPY).unwrap();
    assert_eq!(ledger.commit(life, from, to, 11), Err(UseError::TicketsOpen { page: life.page, tickets: 1 }));
    ledger.settle(life, READ, COPY, Outcome::Done).unwrap();
    assert!(matches!(ledger.commit(life, from, to, 12), Err(UseError::NotWritten { .. })));
    ledger.withdraw(life, owner).unwrap();
    assert_eq!(state(&ledger, grant), PageState::Open, "it has room, as before");
    ledger.seal(life, owner).unwrap();
    ledger.offer(life, owner).unwrap();
    let committed = ledger.commit(life, from, to, 11).unwrap();
    assert!(ledger.check_read(grant.capability(), owner, tenant(1), 1).is_err());
    assert!(ledger.check_read(committed.capability(), to, tenant(1), 11).is_ok());
    assert!(ledger.give_back(life, from).is_err(), "it was handed over");
    ledger.assert_sound();
}

#[test]
fn steps_retire_in_order_and_once() {
    let mut ledger = ledger(1);
    assert_eq!(ledger.retire_step(1), Err(RetireError { step: 1, retired: 0, issued: 0 }));
    assert_eq!((ledger.issue_step(), ledger.issue_step()), (1, 2));
    assert_eq!(ledger.retire_step(2), Err(RetireError { step: 2, retired: 0, issued: 2 }));
    ledger.retire_step(1).unwrap();
    assert!(ledger.retire_step(1).is_err());
    ledger.retire_step(2).unwrap();
    assert!(ledger.retire_step(3).is_err());
}

#[test]
#[should_panic(expected = "would go from free to sealed")]
fn a_state_that_does_not_follow_stops_the_worker() {
    ledger(1).enter(PageId(0), PageState::Free, PageState::Sealed);
}

#[test]
#[should_panic(expected = "pages were lost or doubled: 1 free")]
fn a_page_that_is_in_no_list_stops_the_worker() {
    let mut ledger = ledger(2);
    ledger.free.pop();
    ledger.issue_step();
}

#[test]
#[should_panic(expected = "pages were lost or doubled: 2 free and 1 draining")]
fn a_page_that_is_in_two_lists_stops_the_worker() {
    let mut ledger = ledger(2);
    ledger.draining.push(PageId(0));
    ledger.issue_step();
}

#[test]
#[should_panic(expected = "pages were lost or doubled")]
fn a_page_that_is_lost_stops_the_worker() {
    let mut ledger = ledger(2);
    ledger.counts.sealed += 1;
    page(&mut ledger, 1, 0);
}
