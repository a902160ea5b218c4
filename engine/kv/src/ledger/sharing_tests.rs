//! Pages that several sequences hold: one behaviour each.

use super::tests::{ledger, tenant};
use super::*;

/// A full page of this domain, sealed, and its owner.
fn sealed(ledger: &mut Ledger, domain: Label) -> (PageLife, SequenceId) {
    let owner = ledger.open_sequence();
    let grant = match domain {
        Label::PUBLIC => ledger.allocate_public(owner),
        domain => ledger.allocate(domain, owner),
    };
    let life = grant.unwrap().life();
    ledger.append(life, owner, PAGE_TOKENS).unwrap();
    ledger.seal(life, owner).unwrap();
    (life, owner)
}

fn shared(ledger: &mut Ledger, domain: Label) -> (PageLife, SequenceId) {
    let (life, owner) = sealed(ledger, domain);
    ledger.share(life, owner).unwrap();
    (life, owner)
}

#[test]
fn a_page_is_shared_after_the_step_that_wrote_it() {
    let mut ledger = ledger(1);
    let step = ledger.issue_step();
    let (life, owner) = sealed(&mut ledger, tenant(1));
    let open = UseError::StepOpen { page: life.page, step, retired: 0 };
    assert_eq!(ledger.share(life, owner), Err(open));
    ledger.retire_step(step).unwrap();
    assert_eq!(ledger.share(life, owner), Ok(()));
    ledger.assert_sound();
}

#[test]
fn a_page_under_suspicion_or_with_room_is_not_shared() {
    let mut ledger = ledger(2);
    let (life, owner) = sealed(&mut ledger, tenant(1));
    ledger.quarantine(life.page, QuarantineReason::TagMismatch);
    assert_eq!(ledger.share(life, owner), Err(UseError::Suspected { page: life.page }));
    let half = ledger.allocate(tenant(1), owner).unwrap().life();
    assert!(matches!(ledger.share(half, owner), Err(UseError::WrongState { .. })));
    ledger.append(half, owner, 15).unwrap();
    ledger.seal(half, owner).unwrap();
    let wanted = UseError::NotWritten { page: half.page, fill: 15, wanted: 16 };
    assert_eq!(ledger.share(half, owner), Err(wanted));
    ledger.assert_sound();
}

#[test]
fn everybodys_page_flows_to_every_tenant_and_a_tenants_to_itself() {
    let mut ledger = ledger(2);
    let (public, _) = shared(&mut ledger, Label::PUBLIC);
    let (own, _) = shared(&mut ledger, tenant(1));
    for (life, to, flows) in [
        (public, tenant(1), true),
        (public, tenant(2), true),
        (public, Label::PUBLIC, true),
        (public, Label::NOBODY, false),
        (own, tenant(1), true),
        (own, tenant(2), false),
        (own, Label::PUBLIC, false),
        (own, Label::NOBODY, false),
    ] {
        let reader = ledger.open_sequence();
        let held = ledger.label(life.page).unwrap().domain;
        let refused = Err(UseError::Foreign { page: life.page, held, wanted: to });
        let attached = ledger.attach(life, to, reader).map(|grant| grant.life());
        assert_eq!(attached, if flows { Ok(life) } else { refused }, "{held} to {to}");
        assert_eq!(ledger.keep(life, to).is_ok(), flows, "{held} kept for {to}");
        let read = ledger.check_read(ledger_capability(&ledger, life), reader, to, 16);
        assert_eq!(read.is_ok(), flows);
    }
    ledger.assert_sound();
}

fn ledger_capability(ledger: &Ledger, life: PageLife) -> Capability {
    Capability::new(life.page, ledger.records[life.page.0 as usize].tag)
}

#[test]
fn the_pages_of_each_domain_are_counted_until_they_are_free() {
    let mut ledger = ledger(4);
    let (life, owner) = sealed(&mut ledger, tenant(1));
    sealed(&mut ledger, tenant(1));
    sealed(&mut ledger, tenant(2));
    sealed(&mut ledger, Label::PUBLIC);
    let held = |ledger: &Ledger| [tenant(1), tenant(2), Label::PUBLIC, tenant(3)].map(|of| ledger.held_by(of));
    assert_eq!(held(&ledger), [2, 1, 1, 0]);
    ledger.give_back(life, Owner::Sequence(owner)).unwrap();
    assert_eq!(held(&ledger), [2, 1, 1, 0], "a page that drains is no one else's yet");
    ledger.reclaim(|_| true);
    assert_eq!(held(&ledger), [1, 1, 1, 0]);
    ledger.quarantine(life.page, QuarantineReason::VerifyFailed);
    assert_eq!(held(&ledger), [1, 1, 1, 0], "nobody's page that is out of use is nobody's");
    ledger.assert_sound();
}

#[test]
fn a_page_that_only_keepers_hold_is_told_apart() {
    let mut ledger = ledger(2);
    let (life, owner) = shared(&mut ledger, tenant(1));
    let (keeper, _) = ledger.keep(life, tenant(1)).unwrap();
    assert_eq!(ledger.kept_alone(tenant(1)), 0, "its owner holds it");
    ledger.give_back(life, Owner::Sequence(owner)).unwrap();
    assert_eq!((ledger.kept_alone(tenant(1)), ledger.kept_alone(tenant(2))), (1, 0));
    let reader = ledger.open_sequence();
    ledger.attach(life, tenant(1), reader).unwrap();
    assert_eq!(ledger.kept_alone(tenant(1)), 0);
    ledger.give_back(life, Owner::Sequence(keeper)).unwrap();
    ledger.assert_sound();
    assert_eq!(ledger.kept_alone(tenant(1)), 0, "nobody keeps it");
    let (keeper, _) = ledger.keep(life, tenant(1)).unwrap();
    ledger.give_back(life, Owner::Sequence(reader)).unwrap();
    assert_eq!(ledger.kept_alone(tenant(1)), 1);
    ledger.quarantine(life.page, QuarantineReason::TagMismatch);
    assert_eq!(ledger.kept_alone(tenant(1)), 0, "it would not come back");
    ledger.assert_sound();
    ledger.give_back(life, Owner::Sequence(keeper)).unwrap();
    assert_eq!((ledger.counts().quarantined, ledger.counts().shared), (1, 0));
    ledger.assert_sound();
}

#[test]
fn what_is_doubted_for_a_while_is_kept_again_when_its_outcome_is_known() {
    let mut ledger = ledger(1);
    let (life, owner) = shared(&mut ledger, tenant(1));
    ledger.keep(life, tenant(1)).unwrap();
    ledger.give_back(life, Owner::Sequence(owner)).unwrap();
    ledger.open_ticket(life, TicketKind::Read, HolderId(1)).unwrap();
    ledger.expire(HolderId(1));
    assert_eq!(ledger.kept_alone(tenant(1)), 0);
    assert_eq!(ledger.may_attach(life, tenant(1)), Err(UseError::Suspected { page: life.page }));
    ledger.fence(HolderId(1));
    assert_eq!((ledger.kept_alone(tenant(1)), ledger.may_attach(life, tenant(1))), (1, Ok(())));
    ledger.assert_sound();
}

#[test]
fn a_keepers_number_is_given_to_nobody_else() {
    let mut ledger = ledger(1);
    let (life, _) = shared(&mut ledger, tenant(1));
    let (keeper, _) = ledger.keep(life, tenant(1)).unwrap();
    // All numbers have been given out since.
    ledger.sequence_next = keeper;
    assert_eq!(ledger.open_sequence(), keeper.following());
    ledger.give_back(life, Owner::Sequence(keeper)).unwrap();
    ledger.sequence_next = keeper;
    assert_eq!(ledger.open_sequence(), keeper, "it keeps nothing any more");
}
