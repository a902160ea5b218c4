//! Two lifetimes: what the outcome of a ticket does to its page.

use super::tests::{ledger, tenant};
use super::*;
use policies_domain::{Outcome, TransferId};

const READ: TicketKind = TicketKind::Read;
const WRITE: TicketKind = TicketKind::Write;
const COPY: HolderId = HolderId(1);

/// A page whose owner has written to it and given it back while tickets of these kinds were open.
fn given_back_with(kinds: &[TicketKind]) -> (Ledger, PageLife) {
    let mut ledger = ledger(1);
    let owner = ledger.open_sequence();
    let life = ledger.allocate(tenant(1), owner).unwrap().life();
    ledger.append(life, owner, 4).unwrap();
    for (holder, kind) in kinds.iter().enumerate() {
        ledger.open_ticket(life, *kind, HolderId(holder as u64 + 1)).unwrap();
    }
    ledger.give_back(life, Owner::Sequence(owner)).unwrap();
    (ledger, life)
}

fn state(ledger: &Ledger) -> PageState {
    ledger.label(PageId(0)).unwrap().state
}

#[test]
fn a_page_is_free_after_its_last_ticket_and_not_before() {
    for outcome in [Outcome::Done, Outcome::Failed] {
        let (mut ledger, life) = given_back_with(&[WRITE, READ]);
        assert_eq!(ledger.reclaim(|_| panic!("scrubbed under a writer")), 0);
        ledger.settle(life, WRITE, COPY, outcome).unwrap();
        assert_eq!(ledger.reclaim(|_| panic!("scrubbed under a reader")), 0);
        ledger.settle(life, READ, HolderId(2), outcome).unwrap();
        assert_eq!(ledger.reclaim(|_| true), 1, "{outcome:?} is an outcome");
        ledger.assert_sound();
    }
}

#[test]
fn an_outcome_that_nobody_knows_quarantines_until_it_is_known() {
    for kind in [READ, WRITE] {
        let (mut ledger, life) = given_back_with(&[kind]);
        ledger.settle(life, kind, COPY, Outcome::Unknown).unwrap();
        assert_eq!(state(&ledger), PageState::Quarantined);
        assert_eq!(ledger.reclaim(|_| panic!("scrubbed while somebody may write")), 0);
        ledger.settle(life, kind, COPY, Outcome::Failed).unwrap();
        assert_eq!(state(&ledger), PageState::Draining);
        assert_eq!(ledger.reclaim(|_| true), 1);
        ledger.assert_sound();
    }
}

#[test]
fn time_quarantines_and_frees_nothing() {
    let (mut ledger, _) = given_back_with(&[READ]);
    assert_eq!(ledger.expire(HolderId(2)), 0, "somebody else's time");
    assert_eq!(ledger.expire(COPY), 1);
    assert_eq!(state(&ledger), PageState::Quarantined);
    assert_eq!(ledger.expire(COPY), 1, "the ticket is still open");
    assert_eq!(ledger.reclaim(|_| true), 0);
    assert_eq!(ledger.fence(COPY), 1, "the holder's way in is torn down: that is an outcome");
    assert_eq!(ledger.fence(COPY), 0);
    assert_eq!(ledger.reclaim(|_| true), 1);
    ledger.assert_sound();
}

#[test]
fn evidence_stays_whatever_the_outcome() {
    for reason in [QuarantineReason::TagMismatch, QuarantineReason::VerifyFailed] {
        let (mut ledger, life) = given_back_with(&[READ]);
        ledger.settle(life, READ, COPY, Outcome::Unknown).unwrap();
        ledger.quarantine(life.page, reason);
        ledger.settle(life, READ, COPY, Outcome::Done).unwrap();
        assert_eq!(state(&ledger), PageState::Quarantined, "{reason:?}");
        assert_eq!(ledger.reclaim(|_| panic!("evidence was destroyed")), 0);
        ledger.assert_sound();
    }
}

#[test]
fn the_owner_of_a_page_that_was_only_read_goes_on() {
    let mut ledger = ledger(1);
    let owner = ledger.open_sequence();
    let grant = ledger.allocate(tenant(1), owner).unwrap();
    let life = grant.life();
    ledger.open_ticket(life, READ, COPY).unwrap();
    ledger.settle(life, READ, COPY, Outcome::Unknown).unwrap();
    assert_eq!(ledger.append(life, owner, 2), Ok(2));
    assert!(ledger.check_read(grant.capability(), owner, tenant(1), 2).is_ok());
    assert_eq!(ledger.open_ticket(life, READ, HolderId(2)), Err(UseError::Suspected { page: life.page }.into()));
    let known_again = {
        let mut ledger = ledger.clone();
        ledger.settle(life, READ, COPY, Outcome::Done).unwrap();
        ledger.open_ticket(life, READ, HolderId(2)).unwrap();
        ledger
    };
    known_again.assert_sound();
    ledger.give_back(life, Owner::Sequence(owner)).unwrap();
    assert_eq!(state(&ledger), PageState::Quarantined, "somebody may still read it");
    ledger.assert_sound();
}

#[test]
fn what_somebody_may_be_writing_is_read_by_nobody() {
    let mut ledger = ledger(1);
    let owner = ledger.open_sequence();
    let grant = ledger.allocate(tenant(1), owner).unwrap();
    let life = grant.life();
    ledger.append(life, owner, 4).unwrap();
    ledger.open_ticket(life, WRITE, COPY).unwrap();
    ledger.expire(COPY);
    let quarantined = UseError::WrongState { page: life.page, state: PageState::Quarantined };
    assert_eq!(ledger.check_read(grant.capability(), owner, tenant(1), 4), Err(quarantined));
    assert_eq!(ledger.append(life, owner, 1), Err(quarantined));
    ledger.fence(COPY);
    assert_eq!(state(&ledger), PageState::Quarantined, "its owner holds it, and knows no better");
    ledger.give_back(life, Owner::Sequence(owner)).unwrap();
    assert_eq!(ledger.give_back(life, Owner::Sequence(owner)), Err(UseError::AlreadyBack { page: life.page }));
    assert_eq!(ledger.reclaim(|_| true), 1);
    ledger.assert_sound();
}

#[test]
fn an_inbound_page_that_is_doubted_or_wrong_is_never_committed() {
    for reason in [None, Some(QuarantineReason::VerifyFailed)] {
        let mut ledger = ledger(1);
        let (transfer, to) = (TransferId::new(1).unwrap(), ledger.open_sequence());
        let life = ledger.reserve(tenant(1), transfer).unwrap().life();
        ledger.open_ticket(life, WRITE, COPY).unwrap();
        match reason {
            None => assert_eq!(ledger.expire(COPY), 1),
            Some(reason) => {
                ledger.settle(life, WRITE, COPY, Outcome::Done).unwrap();
                assert!(ledger.quarantine(life.page, reason));
            }
        }
        let committed = ledger.commit(life, Owner::Transfer(transfer), to, 16);
        assert_eq!(committed, Err(UseError::WrongState { page: life.page, state: PageState::Quarantined }));
        ledger.give_back(life, Owner::Transfer(transfer)).unwrap();
        assert_eq!(ledger.reclaim(|_| true), 0);
        ledger.assert_sound();
    }
}

#[test]
fn one_writer_and_each_ticket_once() {
    let mut ledger = ledger(2);
    let transfer = TransferId::new(1).unwrap();
    let life = ledger.reserve(tenant(1), transfer).unwrap().life();
    let page = life.page;
    let inbound = UseError::WrongState { page, state: PageState::Inbound };
    assert_eq!(ledger.open_ticket(life, READ, COPY), Err(inbound.into()), "what is still to come is not read");
    ledger.open_ticket(life, WRITE, COPY).unwrap();
    for holder in [COPY, HolderId(2)] {
        let taken = TicketError::Taken { page, kind: WRITE, holder: COPY };
        assert_eq!(ledger.open_ticket(life, WRITE, holder), Err(taken));
    }
    let none = TicketError::Unknown { page, kind: WRITE, holder: HolderId(2) };
    assert_eq!(ledger.settle(life, WRITE, HolderId(2), Outcome::Done), Err(none), "another holder's");
    ledger.settle(life, WRITE, COPY, Outcome::Done).unwrap();
    assert!(ledger.settle(life, WRITE, COPY, Outcome::Done).is_err(), "settled once");
    let owner = ledger.open_sequence();
    let life = ledger.allocate(tenant(1), owner).unwrap().life();
    for holder in 0..TICKETS_PER_PAGE_MAX as u64 {
        ledger.open_ticket(life, READ, HolderId(holder)).unwrap();
    }
    let many = TicketError::TooMany { page: life.page, tickets_max: TICKETS_PER_PAGE_MAX };
    assert_eq!(ledger.open_ticket(life, READ, HolderId(99)), Err(many));
    ledger.assert_sound();
}
