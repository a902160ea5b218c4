//! The rig against itself: clean runs are clean, and what is broken on purpose is seen and stopped.

use super::*;
use engine_runtime::Fault;
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
    let setup = Setup::small();
    assert!((0..20).all(|seed| fuzzer::run(&setup, &fuzzer::acts(seed, 300)).responses > 5), "they do something");
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
    for line in ["arrive 1", "arrive 1 2 3", "step 1", "read -1 2", "go", "leave"] {
        assert_eq!(fuzzer::parse(line), Err(NoAct(line.to_owned())));
    }
}
