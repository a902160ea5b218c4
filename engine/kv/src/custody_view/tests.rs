//! What the view refuses. That it follows whatever a ledger does is shown in `model.rs`.

use super::*;
use crate::ledger::{Ledger, LedgerConfig, PageFormat};
use policies_domain::{QuarantineReason, TenantId, TransferId};

fn tenant(number: u32) -> Label {
    Label::of(TenantId::new(number).unwrap())
}

fn sequence(number: u32) -> SequenceId {
    SequenceId::new(number).unwrap()
}

/// A view of four pages that has followed everything which `acts` did to a ledger, and the ledger.
fn followed(acts: impl FnOnce(&mut Ledger)) -> (CustodyView, Vec<CustodyRecord>) {
    let (boot_secret, format, compat, events_max) = ([3; 32], PageFormat::Bf16, 0, 256);
    let mut ledger = Ledger::new(LedgerConfig { pages: 4, boot_secret, format, compat, events_max });
    acts(&mut ledger);
    let mut records = Vec::new();
    ledger.drain(&mut records);
    let mut view = CustodyView::new(4);
    records.iter().for_each(|record| view.follow(record).unwrap());
    (view, records)
}

/// One page open with 5 tokens, of sequence 1.
fn open_page() -> CustodyView {
    followed(|ledger| {
        let owner = ledger.open_sequence();
        let life = ledger.allocate(tenant(1), owner).unwrap().life();
        ledger.append(life, owner, 5).unwrap();
    })
    .0
}

/// What happens next to page 0, told by sequence 1.
fn next(view: &CustodyView, act: CustodyAct) -> CustodyEvent {
    let Page { life, label, owner, .. } = view.pages[0];
    CustodyEvent { number: view.next, step_issued: 0, step_retired: 0, life, label, owner, act }
}

fn refused(view: &CustodyView, event: CustodyEvent) -> bool {
    let mut view = view.clone();
    let impossible = CustodyError::Impossible { number: event.number, page: event.life.page };
    let error = view.follow(&CustodyRecord::Event(event)).err();
    assert!(error.is_none_or(|error| error == impossible), "{error:?}");
    // A view that has refused says nothing any more.
    assert!(error.is_none_or(|error| view.tokens(sequence(1)) == Err(error)));
    assert!(error.is_none_or(|error| view.pages(sequence(1), 0).err() == Some(error)));
    error.is_some()
}

#[test]
fn a_missing_doubled_or_lost_event_ends_the_view() {
    let (_, records) = followed(|ledger| {
        let owner = ledger.open_sequence();
        for _ in 0..3 {
            ledger.allocate(tenant(1), owner).unwrap();
        }
    });
    for (order, wanted, found) in [([1, 2], 0, 1), ([0, 2], 1, 2), ([0, 0], 1, 0)] {
        let mut view = CustodyView::new(4);
        let followed: Result<(), _> = order.iter().try_for_each(|place| view.follow(&records[*place]));
        assert_eq!(followed, Err(CustodyError::Gap { found, wanted }));
        assert_eq!(view.follow(&records[1]), Err(CustodyError::Gap { found, wanted }), "for good");
    }
    let mut view = CustodyView::new(4);
    let lost = CustodyError::Lost { first: 0, events: 2 };
    assert_eq!(view.follow(&CustodyRecord::Lost { first: 0, events: 2 }), Err(lost));
    assert_eq!(view.follow(&records[2]), Err(lost));
    assert_eq!(view.tokens(sequence(1)), Err(lost));
    assert_eq!(view.owner(PageLife { page: PageId(0), generation: Generation(0) }), None);
}

#[test]
fn what_cannot_happen_to_an_open_page_is_refused() {
    let view = open_page();
    let shared = CustodyAct::Shared;
    let quarantined = CustodyAct::Quarantined { reason: QuarantineReason::Timeout };
    let impossible = [
        CustodyAct::Allocated { tag: 9 },
        CustodyAct::Reserved { tag: 9 },
        CustodyAct::Committed { tag: 9, fill: 5, from: Owner::Sequence(sequence(1)) },
        CustodyAct::Attached,
        shared,
        CustodyAct::Offered,
        CustodyAct::Withdrawn,
        CustodyAct::Freed,
        CustodyAct::Released,
        CustodyAct::Appended { fill: 5 },
        CustodyAct::Appended { fill: 4 },
        CustodyAct::Appended { fill: 17 },
        CustodyAct::TicketSettled { kind: TicketKind::Read, holder: HolderId(0), outcome: Outcome::Done },
        CustodyAct::TicketSettled { kind: TicketKind::Read, holder: HolderId(0), outcome: Outcome::Unknown },
    ];
    for act in impossible {
        assert!(refused(&view, next(&view, act)), "{act:?}");
    }
    let possible = [
        CustodyAct::Appended { fill: 6 },
        CustodyAct::Sealed,
        CustodyAct::GivenBack,
        quarantined,
        CustodyAct::TicketOpened { kind: TicketKind::Write, holder: HolderId(0) },
    ];
    for act in possible {
        let event = next(&view, act);
        assert!(!refused(&view, event), "{act:?}");
        let generation = Generation(event.life.generation.0 + 2);
        let (other, elsewhere) = (Owner::Sequence(sequence(2)), PageLife { page: PageId(9), ..event.life });
        let stale = PageLife { generation, ..event.life };
        assert!(refused(&view, CustodyEvent { life: stale, ..event }), "{act:?} in another life");
        assert!(refused(&view, CustodyEvent { life: elsewhere, ..event }), "{act:?} to a page that there is not");
        assert!(refused(&view, CustodyEvent { label: tenant(2), ..event }), "{act:?} under another label");
        let anybodys = matches!(act, CustodyAct::TicketOpened { .. }) || act == quarantined;
        assert!(anybodys || refused(&view, CustodyEvent { owner: other, ..event }), "{act:?} by another");
    }
}

#[test]
fn a_life_begins_free_untouched_and_somebodys() {
    let freed = |touch: fn(&mut Ledger, PageLife, SequenceId)| {
        followed(|ledger| {
            let owner = ledger.open_sequence();
            let life = ledger.allocate(tenant(1), owner).unwrap().life();
            touch(ledger, life, owner);
        })
        .0
    };
    let view = freed(|ledger, life, owner| {
        ledger.give_back(life, Owner::Sequence(owner)).unwrap();
        ledger.reclaim(|_| true);
    });
    let life = PageLife { page: PageId(0), generation: Generation(3) };
    let owner = Owner::Sequence(sequence(2));
    let begin = CustodyEvent { life, label: tenant(2), owner, ..next(&view, CustodyAct::Allocated { tag: 4 }) };
    assert!(!refused(&view, begin));
    for (wrong, why) in [
        (CustodyEvent { label: Label::NOBODY, ..begin }, "nobody's"),
        (
            CustodyEvent { label: Label::PUBLIC, act: CustodyAct::Reserved { tag: 4 }, ..begin },
            "everybody's, from elsewhere",
        ),
        (CustodyEvent { owner: Owner::Nobody, ..begin }, "without an owner"),
        (
            CustodyEvent { owner: Owner::Transfer(TransferId::new(1).unwrap()), ..begin },
            "a transfer's, already written",
        ),
        (CustodyEvent { act: CustodyAct::Allocated { tag: 0 }, ..begin }, "without a tag"),
        (CustodyEvent { life: PageLife { generation: Generation(1), ..life }, ..begin }, "a life that was"),
        (CustodyEvent { life: PageLife { generation: Generation(5), ..life }, ..begin }, "a life left out"),
    ] {
        assert!(refused(&view, wrong), "{why}");
    }
    // Given back under a ticket, or under a step: it does not become free.
    for touched in [
        freed(|ledger, life, owner| {
            ledger.open_ticket(life, TicketKind::Read, HolderId(1)).unwrap();
            ledger.give_back(life, Owner::Sequence(owner)).unwrap();
        }),
        freed(|ledger, life, owner| {
            ledger.issue_step();
            ledger.give_back(life, Owner::Sequence(owner)).unwrap();
        }),
    ] {
        let life = PageLife { page: PageId(0), generation: Generation(2) };
        let free = CustodyEvent { life, label: Label::NOBODY, ..next(&touched, CustodyAct::Freed) };
        assert!(refused(&touched, free));
    }
}

#[test]
fn the_owner_of_a_life_is_known_until_it_ends() {
    let (view, _) = followed(|ledger| {
        let owners = [ledger.open_sequence(), ledger.open_sequence()];
        for owner in owners {
            let life = ledger.allocate(tenant(1), owner).unwrap().life();
            ledger.append(life, owner, 16).unwrap();
        }
        let life = PageLife { page: PageId(1), generation: Generation(1) };
        ledger.give_back(life, Owner::Sequence(owners[1])).unwrap();
    });
    let life = |page, generation| PageLife { page: PageId(page), generation: Generation(generation) };
    assert_eq!(view.owner(life(0, 1)), Some(Owner::Sequence(sequence(1))));
    assert_eq!(view.owner(life(0, 3)), None, "a life that is still to come");
    assert_eq!(view.owner(life(1, 1)), None, "given back");
    assert_eq!(view.owner(life(9, 1)), None);
    assert_eq!((view.sequences(), view.tokens(sequence(1))), (1, Ok(16)));
    assert_eq!(view.tokens(sequence(2)), Err(CustodyError::NotHeld { sequence: sequence(2) }));
}

#[test]
fn a_sequence_with_a_page_out_of_use_reads_nothing() {
    let (view, _) = followed(|ledger| {
        let owner = ledger.open_sequence();
        let life = ledger.allocate(tenant(1), owner).unwrap().life();
        ledger.allocate(tenant(1), owner).unwrap();
        ledger.open_ticket(life, TicketKind::Write, HolderId(1)).unwrap();
        ledger.expire(HolderId(1));
    });
    for first in 0..3 {
        let unreadable = CustodyError::Unreadable { page: PageId(0) };
        assert_eq!(view.pages(sequence(1), first).err(), Some(unreadable), "nothing from place {first} on");
    }
}

#[test]
fn nobody_who_holds_a_shared_page_reads_after_it_was_put_out_of_use() {
    let (mut view, _) = followed(|ledger| {
        let [first, second, third] = [(); 3].map(|()| ledger.open_sequence());
        let [prefix, own] = [(); 2].map(|()| ledger.allocate(tenant(1), first).unwrap().life());
        ledger.append(prefix, first, 16).unwrap();
        ledger.append(own, first, 1).unwrap();
        ledger.seal(prefix, first).unwrap();
        ledger.share(prefix, first).unwrap();
        ledger.attach(prefix, tenant(1), second).unwrap();
        ledger.allocate(tenant(2), third).unwrap();
    });
    let quarantined = next(&view, CustodyAct::Quarantined { reason: QuarantineReason::TagMismatch });
    view.follow(&CustodyRecord::Event(quarantined)).unwrap();
    for holder in 1..3 {
        let unreadable = CustodyError::Unreadable { page: PageId(0) };
        assert_eq!(view.pages(sequence(holder), 0).err(), Some(unreadable), "sequence {holder}");
    }
    assert_eq!(view.pages(sequence(3), 0).map(|pages| pages.len()), Ok(1), "another tenant's goes on");
}

#[test]
fn shared_and_transferred_pages_are_whose_they_are_in_order() {
    let (view, _) = followed(|ledger| {
        let [first, second, third] = [(); 3].map(|()| ledger.open_sequence());
        let prefix = ledger.allocate(tenant(1), first).unwrap().life();
        ledger.append(prefix, first, 16).unwrap();
        ledger.seal(prefix, first).unwrap();
        ledger.share(prefix, first).unwrap();
        ledger.attach(prefix, tenant(1), second).unwrap();
        let own = ledger.allocate(tenant(1), second).unwrap().life();
        ledger.append(own, second, 3).unwrap();
        let transfer = TransferId::new(1).unwrap();
        let inbound = ledger.reserve(tenant(2), transfer).unwrap().life();
        ledger.open_ticket(inbound, TicketKind::Write, HolderId(1)).unwrap();
        ledger.settle(inbound, TicketKind::Write, HolderId(1), Outcome::Done).unwrap();
        ledger.commit(inbound, Owner::Transfer(transfer), third, 7).unwrap();
        ledger.give_back(prefix, Owner::Sequence(first)).unwrap();
    });
    let pages =
        |number| view.pages(sequence(number), 0).map(|held| held.map(|page| (page.life.page.0, page.fill)).collect());
    assert_eq!(pages(1), Err::<Vec<_>, _>(CustodyError::NotHeld { sequence: sequence(1) }));
    assert_eq!(pages(2), Ok(vec![(0, 16), (1, 3)]));
    assert_eq!(pages(3), Ok(vec![(2, 7)]));
    assert_eq!((view.tokens(sequence(2)), view.tokens(sequence(3))), (Ok(19), Ok(7)));
}

#[test]
fn what_is_everybodys_was_computed_from_nothing_else() {
    let (view, _) = followed(|ledger| {
        let [public, first, later] = [(); 3].map(|()| ledger.open_sequence());
        let prefix = ledger.allocate_public(public).unwrap().life();
        ledger.append(prefix, public, 16).unwrap();
        ledger.seal(prefix, public).unwrap();
        ledger.share(prefix, public).unwrap();
        ledger.attach(prefix, tenant(1), first).unwrap();
        ledger.allocate(tenant(1), first).unwrap();
        ledger.attach(prefix, tenant(2), later).unwrap();
    });
    let life = PageLife { page: PageId(2), generation: Generation(1) };
    let (label, act) = (Label::PUBLIC, CustodyAct::Allocated { tag: 4 });
    for (number, possible) in [(1, true), (2, false), (3, true), (4, true)] {
        let owner = Owner::Sequence(sequence(number));
        let event = CustodyEvent { life, label, owner, ..next(&view, act) };
        assert_eq!(!refused(&view, event), possible, "sequence {number}");
    }
    let labels = view.pages(sequence(2), 0).unwrap().map(|page| page.label).collect::<Vec<_>>();
    assert_eq!(labels, [Label::PUBLIC, tenant(1)], "a tenant's sequence reads on behind it");
}

#[test]
fn a_page_is_not_shared_under_a_step_that_may_be_writing_it() {
    let (view, _) = followed(|ledger| {
        let owner = ledger.open_sequence();
        let life = ledger.allocate(tenant(1), owner).unwrap().life();
        ledger.append(life, owner, 16).unwrap();
        ledger.issue_step();
        ledger.seal(life, owner).unwrap();
    });
    let shared = CustodyEvent { step_issued: 1, ..next(&view, CustodyAct::Shared) };
    assert!(refused(&view, shared));
    assert!(!refused(&view, CustodyEvent { step_retired: 1, ..shared }));
}
