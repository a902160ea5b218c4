//! Prefixes that are found where prompts are computed: in the one pool of both groups, or in the prefill group's own.

use super::tests::{CONFIG, World};
use crate::compute::tracer::Tracer;
use crate::config::EngineConfig;
use crate::executor::tests::{label, prompt};
use crate::fault::Fault;
use crate::steps::StepError;
use engine_handoff::Check;
use engine_scheduler::{Tenancy, TenantTerms};
use policies_domain::TenantId;
use std::time::Duration;

/// The first two tenants are guaranteed nine pages of 24 each; everybody else has no guarantee.
pub(super) fn tenancy() -> Tenancy {
    Tenancy::new([1, 2].map(|tenant| (label(tenant), TenantTerms::default()))).unwrap()
}

fn world(copies: bool) -> World {
    World::caching(copies, EngineConfig { prefix_cache: true, ..CONFIG }, &tenancy())
}

/// Tokens of the prompt that were found.
fn answered(world: &mut World, tenant: u32, tokens: u32, wanted: usize) -> usize {
    let client = world.submit(tenant, tokens, wanted);
    found(world, client)
}

fn found(world: &mut World, client: usize) -> usize {
    world.run();
    let client = &world.clients[client];
    assert_eq!((client.error, client.text.clone()), (None, client.expected()));
    client.steps.as_ref().unwrap().usage().cached_tokens
}

#[test]
fn a_second_request_computes_what_is_not_cached_and_answers_the_same() {
    for copies in [false, true] {
        let mut world = world(copies);
        let found = [70, 70, 75, 40, 64].map(|tokens| answered(&mut world, 1, tokens, 8));
        assert_eq!(found, [0, 64, 64, 32, 48], "copies: {copies}");
        assert_eq!(answered(&mut world, 2, 70, 8), 0);
        assert_eq!([answered(&mut world, 3, 70, 8), answered(&mut world, 3, 70, 8)], [0; 2], "it has no guarantee");
        world.all_are_right();
        world.is_clean();
    }
}

#[test]
fn the_same_prompt_of_another_tenant_finds_nothing() {
    for copies in [false, true] {
        let mut world = world(copies);
        answered(&mut world, 1, 70, 8);
        let other = world.submit_tokens(2, prompt(1, 70), 8);
        assert_eq!(found(&mut world, other), 0);
        world.all_are_right();
    }
}

#[test]
fn a_conversation_finds_its_answers_where_both_groups_have_one_pool() {
    for (copies, wanted) in [(false, 96), (true, 64)] {
        let mut world = world(copies);
        answered(&mut world, 1, 70, 40);
        let mut turns = prompt(1, 70);
        turns.extend(world.clients[0].text.bytes().map(|letter| u32::from(letter - b'a')));
        turns.extend(prompt(3, 10));
        let second = world.submit_tokens(1, turns, 8);
        assert_eq!(found(&mut world, second), wanted, "copies: {copies}");
        world.is_clean();
    }
}

#[test]
fn shared_pages_of_a_handoff_that_is_refused_are_suspected_and_computed_again() {
    let hit = TenantId::new(1).unwrap();
    for copies in [false, true] {
        for fault in [Fault::FlippedByte { reader: hit }, Fault::LateWriter { reader: hit }] {
            let mut world = world(copies);
            answered(&mut world, 1, 70, 8);
            world.engine.plant(vec![fault]);
            let client = world.submit(1, 70, 8);
            world.run();
            let refused = &world.clients[client];
            let check = refused.error;
            assert!(
                matches!(check, Some(StepError::Handoff { check: Check::V7 | Check::V8 })) && refused.text.is_empty(),
                "copies: {copies}, {fault:?}: {check:?}"
            );
            world.engine.plant(Vec::new());
            assert_eq!(
                answered(&mut world, 1, 70, 8),
                0,
                "copies: {copies}, {fault:?}: what is suspected is not found"
            );
            assert_eq!(answered(&mut world, 1, 70, 8), 64, "copies: {copies}, {fault:?}");
        }
    }
}

#[test]
fn a_prompt_that_failed_or_was_left_is_not_kept() {
    for copies in [false, true] {
        let mut world = world(copies);
        world.engine.plant(vec![Fault::SwappedPages { reader: TenantId::new(1).unwrap() }]);
        let client = world.submit(1, 70, 8);
        world.run();
        assert_eq!(world.clients[client].error, Some(StepError::ReadSet));
        world.engine.plant(Vec::new());
        let left = world.submit(1, 200, 8);
        (0..2).for_each(|_| _ = world.engine.step());
        world.clients[left].steps = None;
        world.run();
        assert_eq!(answered(&mut world, 1, 70, 8), 0);
        world.is_clean();
    }
}

#[test]
fn a_pool_full_of_cached_pages_stops_nobody() {
    for copies in [false, true] {
        for tenant in 1..4 {
            let mut world = world(copies);
            for caching in [1, 2] {
                answered(&mut world, caching, 145, 1);
            }
            let large = world.submit_tokens(tenant, prompt(7, 340), 8);
            world.run();
            let both = [world.submit_tokens(tenant, prompt(8, 150), 30), world.submit_tokens(3, prompt(9, 150), 30)];
            world.run();
            for client in [large, both[0], both[1]] {
                let client = &world.clients[client];
                assert_eq!((client.error, client.text.clone()), (None, client.expected()), "{copies} {tenant}");
            }
            world.is_clean();
        }
    }
}

#[test]
fn a_flood_of_one_tenant_does_not_take_what_is_guaranteed_to_another() {
    for copies in [false, true] {
        let mut world = world(copies);
        answered(&mut world, 1, 70, 8);
        for round in 0..3 {
            (0..5).for_each(|other| _ = world.submit_tokens(2, prompt(10 + 5 * round + other, 100), 8));
            world.run();
            assert_eq!(answered(&mut world, 1, 70, 8), 64, "copies: {copies}, round {round}");
        }
        world.all_are_right();
        world.is_clean();
    }
}

#[test]
fn whoever_waits_for_too_long_is_told_when_to_come_back() {
    for copies in [false, true] {
        let config = EngineConfig { sequences_max: 1, queue_wait_max_ms: 1000, ..CONFIG };
        let mut world = World::new(copies, config);
        let first = world.submit(1, 20, 40);
        assert!(world.engine.step());
        let second = world.submit(2, 20, 4);
        world.engine.step();
        world.engine.pass(Duration::from_millis(1001));
        world.run();
        let [first, second] = [first, second].map(|client| &world.clients[client]);
        assert_eq!((first.error, &first.text), (None, &Tracer::answer(&prompt(1, 20), 40)));
        assert!(matches!(second.error, Some(StepError::Expired { .. })) && second.text.is_empty());
        world.is_clean();
    }
}
