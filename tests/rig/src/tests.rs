//! The rig against itself: clean runs are clean, and what is broken on purpose is seen and stopped.

use super::*;
use engine_runtime::{EngineConfig, Fault};
use policies_domain::TenantId;

fn tenant(number: u32) -> TenantId {
    cast::tenant_id(number).unwrap()
}

#[test]
fn twenty_thousand_random_traces_are_as_they_must_be() {
    for seed in 0..5_000 {
        if let Err(script) = fuzzer::check(seed) {
            panic!("seed {seed}\n{script}");
        }
    }
}

#[test]
fn random_traces_do_something() {
    let setup = Setup::small();
    let found: Vec<Findings> = (0..20).map(|seed| fuzzer::run(&setup, &fuzzer::acts(seed, 300))).collect();
    assert!(found.iter().all(|found| found.responses > 5), "{found:?}");
    // A cache gives its pages before a request does.
    let gave_way = found.iter().filter(|found| found.gave_way > 0).count();
    assert!(gave_way > 15, "{gave_way}: {found:?}");
}

#[test]
fn who_gives_way_gets_its_whole_answer_all_the_same() {
    const GROUPS: [Groups; 3] = [Groups::One, Groups::InPlace, Groups::Copied];
    // Each of two requests gives way in each state that it may be in: after so many steps, again and again. A step may bring
    // several tokens.
    for (steps, groups) in (1..12).flat_map(|steps| GROUPS.map(|groups| (steps, groups))) {
        let mut acts = fuzzer::parse("arrive 40 240\narrive 20 240").unwrap();
        for way in ["preempt 0", "evict", "preempt 1", "evict"] {
            acts.extend(vec![Act::Step; steps]);
            acts.extend(fuzzer::parse(&format!("read 0 99\nread 1 99\n{way}")).unwrap());
        }
        let caching = Setup { groups, ..Setup::small() };
        // A cache gives its pages before a request does.
        let config = EngineConfig { prefix_cache: false, ..caching.config };
        for (setup, gave_way) in [(Setup { config, ..caching.clone() }, 4..=4), (caching, 2..=4)] {
            let found = fuzzer::run(&setup, &acts);
            assert!(found.is_clean() && found.responses == 2, "{groups:?} after {steps} steps: {found:?}");
            assert!(gave_way.contains(&found.gave_way), "{groups:?} after {steps} steps: {found:?}");
        }
    }
    // Nobody has a slot.
    for groups in GROUPS {
        let found = fuzzer::run(&Setup { groups, ..Setup::small() }, &[Act::Evict, Act::Preempt { request: 3 }]);
        assert_eq!(found, Findings::default());
    }
}

#[test]
fn a_prefill_group_that_begins_anew_changes_no_answer() {
    const TURNS: [&str; 5] = ["look", "prefill", "to-prefill", "to-decode", "decode"];
    let setup = Setup { groups: Groups::Copied, ..Setup::small() };
    // In every state that a handoff may be in, with what was sent lost or arriving late.
    for (acts_before, arriving) in (0..40).flat_map(|acts| (0..4).map(move |arriving| (acts, arriving))) {
        let turns: Vec<&str> = TURNS.into_iter().cycle().take(acts_before).collect();
        let script = format!("arrive 40 8\narrive 20 8\n{}\nrestart {arriving}\novertake\nlook", turns.join("\n"));
        let found = fuzzer::run(&setup, &fuzzer::parse(&script).unwrap());
        assert!(found.is_clean() && found.responses == 2, "{script}\n{found:?}");
        assert_eq!(found.restarts, 1, "{script}");
        assert_eq!(found.waits, 0, "no handoff waits for a timer to end it: {script}");
    }
    let in_place = Setup { groups: Groups::InPlace, ..Setup::small() };
    assert_eq!(fuzzer::run(&in_place, &[Act::Restart { arriving: 0 }]).restarts, 0, "they live together");
    let random = |seed| fuzzer::run(&setup, &fuzzer::split_acts(seed, 300)).restarts;
    assert!((0..20).map(random).sum::<usize>() > 10, "random runs have them too");
}

#[test]
fn stale_sentinel_false_alarm() {
    // Slow senders, over places that were others' a moment ago, in their thousands: nobody is called corrupt.
    let (mut requests, mut seed) = (0, 0);
    while requests < 10_000 {
        for groups in [Groups::InPlace, Groups::Copied] {
            let found = fuzzer::run(&Setup { groups, ..Setup::small() }, &fuzzer::split_acts(seed, 300));
            assert!(found.is_clean(), "seed {seed}, {groups:?}: {found:?}");
            requests += found.responses;
        }
        seed += 1;
    }
    // And one true collision is told, of those that it hit: as many as the manifests that were exchanged.
    let script =
        "arrive 40 8\narrive 40 8\nlook".to_owned() + &"\nto-prefill\nprefill\nto-decode\nlook\ndecode".repeat(60);
    let acts = fuzzer::parse(&script).unwrap();
    for groups in [Groups::InPlace, Groups::Copied] {
        let clean = Setup { groups, ..Setup::small() };
        let found = fuzzer::run(&clean, &acts);
        assert!(found.is_clean() && found.responses == 2, "{found:?}");
        let found = (0..4).map(|reader| {
            let faults = vec![Fault::SwappedManifests { reader: tenant(reader) }];
            fuzzer::run(&Setup { faults, ..clean.clone() }, &acts)
        });
        let caught: Vec<usize> = found.map(|found| found.caught.len()).collect();
        assert!(caught.iter().all(|caught| *caught <= 2) && caught.contains(&2), "{groups:?} {caught:?}");
    }
}

#[test]
fn every_fault_is_found_out_before_a_foreign_byte_leaves() {
    let survey = Survey::take(10, || ());
    assert!(survey.holds(), "{survey}");
    let leaks = |class: &str| survey.classes.iter().find(|row| row.class == class).map(|row| row.leaks_unchecked);
    for class in ["ALIAS", "SCRUB", "HANDOFF", "ROW"] {
        assert!(leaks(class) > Some(0), "without checks the faults of {class} leak: {survey}");
    }
}

#[test]
fn the_incident_leaks_without_checks_and_is_caught_with_them() {
    let incident = Incident::play(1, 400);
    assert!(incident.holds(), "{incident:#?}");
}

#[test]
fn a_planted_fault_is_stopped_before_a_foreign_byte_leaves_and_leaks_without_the_checks() {
    let mut caught = 0;
    let mut leaked = 0;
    for seed in 0..100 {
        let acts = fuzzer::acts(seed, 300);
        let reader = tenant(seed as u32 % 4);
        let faults = vec![[Fault::ForeignCapability { reader }, Fault::ForeignPageIndex { reader }][seed as usize % 2]];
        let setup = Setup { faults, ..Setup::small() };
        let findings = fuzzer::run(&setup, &acts);
        assert!(findings.is_safe(), "seed {seed}: {findings:?}");
        caught += findings.caught.len();
        let unchecked = fuzzer::run(&Setup { checks: Checks::NONE, ..setup }, &acts);
        leaked += unchecked.leaked.len();
    }
    assert!(caught > 20 && leaked > 20, "{caught} caught, {leaked} leaked");
}

#[test]
fn a_script_says_what_happens() {
    let acts = fuzzer::acts(3, 50);
    assert_eq!(fuzzer::parse(&fuzzer::script(&acts)), Ok(acts));
    for line in ["arrive 1", "arrive 1 2 3", "step 1", "read -1 2", "go", "leave", "preempt", "evict 1", "restart"] {
        assert_eq!(fuzzer::parse(line), Err(NoAct(line.to_owned())));
    }
}

#[test]
fn a_cache_that_tenants_share_is_stopped_before_a_foreign_byte_leaves() {
    let mut stopped = 0;
    for seed in 0..1000 {
        let Some(setup) = survey::setup(seed).filter(|setup| !setup.cache_faults.is_empty()) else { continue };
        let acts = fuzzer::acts_for(setup.groups, seed);
        let found = fuzzer::run(&setup, &acts);
        assert!(found.is_safe(), "seed {seed}, {:?}: {found:?}", setup.groups);
        stopped += usize::from(found.halted) + found.caught.len();
    }
    assert!(stopped > 50, "{stopped}");
}
