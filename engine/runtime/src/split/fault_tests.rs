//! Planted faults of a handoff: each is refused by its check before a token, and touches nobody else.

use super::tests::{CONFIG, World};
use crate::fault::Fault;
use crate::steps::StepError;
use engine_handoff::Check;
use policies_domain::TenantId;

const HIT: u32 = 1;

fn hit() -> TenantId {
    TenantId::new(HIT).unwrap()
}

/// With the fault planted for one tenant, and two others who come before and after. Returns the hit one's error, and how
/// many pages are kept as evidence.
fn plant(copies: bool, fault: Fault) -> (Option<StepError>, usize) {
    let mut world = World::new(copies, CONFIG);
    let before = world.submit(3, 40, 10);
    world.engine.plant(vec![fault]);
    let (hit, after) = (world.submit(HIT, 70, 20), world.submit(4, 50, 20));
    world.run();
    for other in [before, after] {
        let client = &world.clients[other];
        assert_eq!((client.error, &client.text), (None, &client.expected()), "{fault:?} touched somebody else");
    }
    let client = &world.clients[hit];
    assert_eq!(client.text, "", "{fault:?}: a token left before the handoff was refused");
    let (pool, of_prefill) = world.engine.pools();
    let pools = [Some(pool), of_prefill];
    let quarantined = pools.into_iter().flatten().map(|pool| pool.counts().quarantined).sum();
    let mut again = World::new(copies, CONFIG);
    again.submit(HIT, 70, 20);
    again.run();
    again.all_are_right();
    (client.error, quarantined)
}

fn refused_by(check: Check) -> Option<StepError> {
    Some(StepError::Handoff { check })
}

#[test]
fn source_pages_that_are_freed_early_are_not_handed_over() {
    for copies in [false, true] {
        let (error, _) = plant(copies, Fault::EarlyFree { reader: hit() });
        assert_eq!(error, refused_by(Check::C3));
    }
}

#[test]
fn a_late_writer_into_a_page_that_landed_is_noticed_by_its_tag() {
    for copies in [false, true] {
        let (error, quarantined) = plant(copies, Fault::LateWriter { reader: hit() });
        assert_eq!(error, refused_by(Check::V8));
        assert_eq!(quarantined, if copies { 10 } else { 5 }, "the pages are kept as evidence on both ends");
    }
}

#[test]
fn a_byte_that_changes_on_its_way_is_noticed_by_its_digest() {
    for copies in [false, true] {
        let (error, quarantined) = plant(copies, Fault::FlippedByte { reader: hit() });
        assert_eq!(error, refused_by(Check::V7));
        assert_eq!(quarantined, if copies { 10 } else { 5 }, "the pages are kept as evidence on both ends");
    }
}

#[test]
fn a_request_that_is_taken_for_another_tenant_s_is_refused() {
    for copies in [false, true] {
        let (error, _) = plant(copies, Fault::WrongDomain { reader: hit() });
        assert_eq!(error, refused_by(Check::V3));
    }
}

#[test]
fn another_prompt_of_the_same_tenant_is_refused() {
    for copies in [false, true] {
        let (error, _) = plant(copies, Fault::OtherPrompt { reader: hit() });
        assert_eq!(error, refused_by(Check::V4));
    }
}

#[test]
fn exchanged_manifests_are_refused_on_both_ends_and_nowhere_else() {
    for copies in [false, true] {
        let mut world = World::new(copies, CONFIG);
        world.engine.plant(vec![Fault::SwappedManifests { reader: hit() }]);
        for tenant in 1..5 {
            world.submit(tenant, 30 + 20 * tenant, 20);
        }
        world.run();
        let (refused, right): (Vec<_>, Vec<_>) = world.clients.iter().partition(|client| client.error.is_some());
        assert!(refused.iter().any(|client| client.tenant == HIT) && refused.len() == 2);
        for client in refused {
            assert_eq!((client.error, client.text.as_str()), (refused_by(Check::V2), ""));
        }
        for client in right {
            assert_eq!(client.text, client.expected());
        }
    }
}
