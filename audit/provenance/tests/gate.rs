//! The gate against wrong pages, wrong requests and wrong orders; and against a naive record of every page read.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_provenance::{Gate, PageClass, PageRecord, Trace, Violation};
use policies_domain::{
    Binding, Completion, ConnectionId, Digest, Epoch, FinishReason, Generation, Label, Layer, ModelName, PageId,
    PageRead, PageTrace, Permit, PolicyDecision, Principal, RequestId, SealError, SealKey, Sealer, Step, TenantId,
    TenantName, Verifier,
};
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};

fn permit() -> Permit {
    let tenant = Principal::authenticated(TenantId::new(1).unwrap(), TenantName::parse("acme").unwrap());
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: Vec::new() };
    Permit::granted_by_authz(tenant, RequestId::from_bytes([1; 16]), ModelName::parse("m").unwrap(), decision)
}

fn own() -> Label {
    permit().label()
}

fn other() -> Label {
    Label::of(TenantId::new(2).unwrap())
}

fn read(page: u32, generation: u32, label: Label) -> PageRead {
    PageRead { page: PageId(page), generation: Generation(generation), label, shared: false }
}

fn binding() -> Binding {
    Binding::of(&permit(), ConnectionId(1))
}

fn sealer(key: u8) -> Sealer {
    SealKey::from_bytes([key; 32]).sealer(Layer::Text, binding())
}

fn verifier() -> Verifier {
    SealKey::from_bytes([1; 32]).verifier(Layer::Text, binding())
}

fn step(index: u32, pages: Vec<PageRead>) -> Step {
    Step {
        request: RequestId::from_bytes([1; 16]),
        index,
        trace: PageTrace { kept: 0, pages },
        restarted: false,
        tokens: 1,
        text: Completion::new("text".into()),
        finish: None,
        seal: sealer(1).seal(Epoch(1), index, b"text", None),
    }
}

#[test]
fn own_and_public_pages_pass_and_are_run_length_coded() {
    let mut gate = Gate::new(&permit());
    for index in 0..100 {
        let pages = (0..=index / 10).map(|page| read(page, 1, if page == 0 { Label::PUBLIC } else { own() })).collect();
        let released = gate.check(step(index, pages)).unwrap();
        assert_eq!((released.text().reveal(), released.first_step(), released.last_step()), ("text", index, index));
    }
    assert_eq!(gate.records().len(), 10);
    let last = PageRecord { page: PageId(9), generation: Generation(1), label: own(), first_step: 90, last_step: 99 };
    assert_eq!(gate.records()[9], last);
    assert_eq!((gate.pages().own, gate.pages().public, gate.pages().foreign), (9, 1, 0));
    assert_eq!((gate.steps(), gate.tokens()), (100, 100));
}

#[test]
fn a_foreign_page_anywhere_in_a_step_closes_the_gate_for_good() {
    for position in 0..4 {
        for label in [other(), Label::NOBODY] {
            let mut gate = Gate::new(&permit());
            gate.check(step(0, (0..4).map(|page| read(page, 1, own())).collect())).unwrap();
            let mut pages: Vec<_> = (0..4).map(|page| read(page, 1, own())).collect();
            pages[position] = read(77, 5, label);
            let violation = gate.check(step(1, pages)).unwrap_err();
            let (page, generation) = (PageId(77), Generation(5));
            assert_eq!(violation, Violation::ForeignPage { step: 1, page, generation, held: label, wanted: own() });
            assert_eq!(gate.check(step(1, Vec::new())).unwrap_err(), violation);
            assert_eq!(gate.check(step(2, Vec::new())).unwrap_err(), violation);
            assert_eq!((gate.pages().own, gate.pages().foreign, gate.steps()), (4, 1, 1));
        }
    }
}

#[test]
fn what_was_named_once_is_read_on_without_a_word() {
    let mut gate = Gate::new(&permit());
    let keeps = |index, kept, pages| Step { trace: PageTrace { kept, pages }, ..step(index, Vec::new()) };
    gate.check(step(0, vec![read(3, 1, own()), read(4, 1, own())])).unwrap();
    gate.check(keeps(1, 2, Vec::new())).unwrap();
    gate.check(keeps(2, 2, vec![read(5, 1, own())])).unwrap();
    let run = |page, first_step, last_step| PageRecord {
        page: PageId(page),
        generation: Generation(1),
        label: own(),
        first_step,
        last_step,
    };
    assert_eq!(gate.records(), [run(3, 0, 2), run(4, 0, 2), run(5, 2, 2)]);
    // One of them is no longer read, and another is named a second time behind its own place.
    gate.check(keeps(3, 1, vec![read(3, 1, own())])).unwrap();
    assert_eq!(gate.records(), [run(3, 0, 3), run(4, 0, 2), run(5, 2, 2)]);
    let foreign = gate.check(keeps(4, 2, vec![read(6, 1, other())])).unwrap_err();
    assert!(matches!(foreign, Violation::ForeignPage { page: PageId(6), .. }));
    assert_eq!(gate.records()[0], run(3, 0, 4), "what else that step read is evidence, too");
}

#[test]
fn nothing_is_read_on_that_no_step_named() {
    let keeps = |index, kept| Step { trace: PageTrace { kept, pages: Vec::new() }, ..step(index, Vec::new()) };
    let mut gate = Gate::new(&permit());
    let gap = Violation::TraceGap { step: 0, kept: 1, known: 0 };
    assert_eq!(gate.check(keeps(0, 1)).unwrap_err(), gap);
    assert_eq!(gate.check(step(0, Vec::new())).unwrap_err(), gap, "closed for good");
    let begun = || {
        let mut gate = Gate::new(&permit());
        gate.check(step(0, vec![read(3, 1, own()), read(4, 1, own())])).unwrap();
        gate
    };
    assert_eq!(begun().check(keeps(1, 3)).unwrap_err(), Violation::TraceGap { step: 1, kept: 3, known: 2 });
    // The lives of a sequence that began anew are over, whatever it read before.
    let again = Step { restarted: true, ..keeps(1, 1) };
    assert_eq!(begun().check(again).unwrap_err(), Violation::TraceGap { step: 1, kept: 1, known: 0 });
    // What the last step did not read is not known any more.
    let mut gate = begun();
    gate.check(keeps(1, 1)).unwrap();
    assert_eq!(gate.check(keeps(2, 2)).unwrap_err(), Violation::TraceGap { step: 2, kept: 2, known: 1 });
}

#[test]
fn a_page_that_changes_its_label_is_foreign_from_then_on() {
    let mut gate = Gate::new(&permit());
    gate.check(step(0, vec![read(3, 1, own())])).unwrap();
    let violation = gate.check(step(1, vec![read(3, 1, other())])).unwrap_err();
    assert!(matches!(violation, Violation::ForeignPage { held, .. } if held == other()));
}

#[test]
fn a_page_in_a_second_life_is_a_violation_even_with_the_right_label() {
    let mut gate = Gate::new(&permit());
    gate.check(step(0, vec![read(3, 1, own()), read(4, 1, own())])).unwrap();
    let violation = gate.check(step(1, vec![read(3, 1, own()), read(4, 3, own())])).unwrap_err();
    let wanted = Violation::StaleGeneration { step: 1, page: PageId(4), held: Generation(3), wanted: Generation(1) };
    assert_eq!(violation, wanted);
    let mut gate = Gate::new(&permit());
    let same_step = gate.check(step(0, vec![read(3, 1, own()), read(3, 3, own())]));
    assert!(matches!(same_step, Err(Violation::StaleGeneration { .. })));
}

#[test]
fn a_restarted_sequence_reads_lives_that_are_no_older_than_before() {
    let mut gate = Gate::new(&permit());
    gate.check(step(0, vec![read(3, 3, own()), read(4, 3, own()), read(5, 3, own())])).unwrap();
    // A page that was kept for it, one that was given out anew, and another one.
    let kept = PageRead { shared: true, ..read(3, 3, own()) };
    let again = Step { restarted: true, ..step(1, vec![kept, read(4, 5, own()), read(9, 1, own())]) };
    gate.check(again).unwrap();
    assert_eq!(gate.pages().own, 5, "the kept page counts once");
    let pages = vec![kept, read(4, 5, own()), read(9, 1, own()), read(5, 1, own())];
    let violation = gate.check(step(2, pages)).unwrap_err();
    let wanted = Violation::StaleGeneration { step: 2, page: PageId(5), held: Generation(1), wanted: Generation(3) };
    assert_eq!(violation, wanted);
}

#[test]
fn a_restarted_sequence_does_not_go_on_with_a_page_that_only_it_had() {
    for (generation, shared, passes) in [(3, true, true), (3, false, false), (1, true, false), (1, false, false)] {
        let mut gate = Gate::new(&permit());
        gate.check(step(0, vec![read(3, 3, own())])).unwrap();
        let page = PageRead { shared, ..read(3, generation, own()) };
        let again = gate.check(Step { restarted: true, ..step(1, vec![page]) });
        assert_eq!(again.is_ok(), passes, "{page:?}");
    }
}

#[test]
fn a_restarted_sequence_reads_nobody_else_s_page_in_the_life_that_it_knew() {
    let mut gate = Gate::new(&permit());
    gate.check(step(0, vec![read(3, 3, own())])).unwrap();
    let again = Step { restarted: true, ..step(1, vec![PageRead { shared: true, ..read(3, 3, Label::NOBODY) }]) };
    assert!(matches!(gate.check(again), Err(Violation::ForeignPage { .. })));
}

#[test]
fn another_request_a_gap_and_a_repetition_are_refused() {
    let mut gate = Gate::new(&permit());
    let stranger = Step { request: RequestId::from_bytes([2; 16]), ..step(0, Vec::new()) };
    assert!(matches!(gate.check(stranger), Err(Violation::RequestMismatch { step: 0, .. })));
    assert!(gate.check(step(0, Vec::new())).is_err());
    for (first, second) in [(0, 2), (0, 0)] {
        let mut gate = Gate::new(&permit());
        gate.check(step(first, Vec::new())).unwrap();
        assert_eq!(gate.check(step(second, Vec::new())).unwrap_err(), Violation::StepGap { held: second, wanted: 1 });
    }
    assert_eq!(Gate::new(&permit()).check(step(1, vec![])).unwrap_err(), Violation::StepGap { held: 1, wanted: 0 });
}

#[test]
fn a_fault_that_a_kernel_reports_closes_the_gate_and_the_first_one_stays() {
    let mut gate = Gate::new(&permit());
    gate.close(Violation::PageFault { page: PageId(5), layer: 2 });
    gate.close(Violation::StepGap { held: 1, wanted: 0 });
    assert_eq!(gate.check(step(0, Vec::new())).unwrap_err(), Violation::PageFault { page: PageId(5), layer: 2 });
}

#[test]
fn released_text_joins_in_order_only() {
    let mut gate = Gate::new(&permit());
    let mut first = gate.check(step(0, Vec::new())).unwrap();
    let second = gate.check(step(1, Vec::new())).unwrap();
    let third = gate.check(step(2, Vec::new())).unwrap();
    let third = first.append(third).unwrap_err();
    first.append(second).unwrap();
    first.append(third).unwrap();
    assert_eq!(
        (first.text().reveal(), first.tokens(), first.first_step(), first.last_step()),
        ("texttexttext", 3, 0, 2)
    );
}

#[test]
fn joined_text_is_verified_step_by_step() {
    let released = |steps: Vec<Step>| {
        let mut gate = Gate::new(&permit());
        let mut released: Vec<_> = steps.into_iter().map(|step| gate.check(step).unwrap()).collect();
        let mut joined = released.remove(0);
        released.into_iter().for_each(|next| joined.append(next).unwrap());
        joined
    };
    let of = |key: u8, index, text: &str, finish| Step {
        text: Completion::new(text.into()),
        finish,
        seal: sealer(key).seal(Epoch(1), index, text.as_bytes(), finish),
        ..step(index, Vec::new())
    };
    let stop = Some(FinishReason::Stop);
    let whole = || vec![of(1, 0, "", None), of(1, 1, "one ", None), of(1, 2, "two", stop)];
    assert_eq!(released(whole()).verify(&mut verifier()), Ok(()));
    // The first piece again, and a piece of another request's key.
    let mut verifier_again = verifier();
    assert_eq!(released(whole()).verify(&mut verifier_again), Ok(()));
    let repeated = released(whole()).verify(&mut verifier_again);
    assert_eq!(repeated, Err(SealError::Gap { held: 0, wanted: 3 }));
    let foreign = vec![of(1, 0, "a", None), of(2, 1, "b", stop)];
    assert_eq!(released(foreign).verify(&mut verifier()), Err(SealError::Altered { index: 1 }));
    // Every change to what the engine sealed: text moved between steps, another text, another end.
    let with = |change: fn(&mut Vec<Step>)| {
        let mut steps = whole();
        change(&mut steps);
        released(steps).verify(&mut verifier())
    };
    let moved = with(|steps| {
        steps[1].text = Completion::new("one t".into());
        steps[2].text = Completion::new("wo".into());
    });
    assert_eq!(moved, Err(SealError::Altered { index: 1 }));
    assert_eq!(with(|steps| steps[0].text = Completion::new("x".into())), Err(SealError::Altered { index: 0 }));
    assert_eq!(with(|steps| steps[2].finish = None), Err(SealError::Altered { index: 2 }));
    assert_eq!(with(|steps| steps[2].finish = Some(FinishReason::Length)), Err(SealError::Altered { index: 2 }));
}

proptest! {
    /// Whatever is read, the runs say exactly which pages were read in which steps.
    #[test]
    fn runs_equal_a_record_of_every_read(
        traces in prop::collection::vec((0usize..8, prop::collection::vec(0u32..6, 0..8)), 1..20),
    ) {
        let mut gate = Gate::new(&permit());
        let (mut naive, mut table) = (BTreeSet::new(), Vec::new());
        for (index, (kept, pages)) in (0..).zip(&traces) {
            table.truncate(*kept);
            let trace = PageTrace { kept: table.len(), pages: pages.iter().map(|page| read(*page, 1, own())).collect() };
            gate.check(Step { trace, ..step(index, Vec::new()) }).unwrap();
            table.extend(pages);
            naive.extend(table.iter().map(|page| (*page, index)));
        }
        let runs: BTreeSet<_> = gate.records().iter()
            .flat_map(|run| (run.first_step..=run.last_step).map(|step| (run.page.0, step))).collect();
        prop_assert_eq!(&runs, &naive);
        let covered: u32 = gate.records().iter().map(|run| run.last_step - run.first_step + 1).sum();
        prop_assert_eq!(covered as usize, naive.len());
        prop_assert_eq!(gate.pages().own as usize, naive.iter().map(|(page, _)| page).collect::<HashSet<_>>().len());
    }

    /// Of any labels, text is released exactly when all of them flow to the reader.
    #[test]
    fn text_is_released_exactly_when_every_label_flows(labels in prop::collection::vec(0u32..5, 0..10)) {
        let pages: Vec<_> = (0..).zip(&labels).map(|(page, bits)| read(page, 1, Label::from_bits(*bits).unwrap())).collect();
        let flows = pages.iter().all(|page| page.label == Label::PUBLIC || page.label == own());
        prop_assert_eq!(Gate::new(&permit()).check(step(0, pages)).is_ok(), flows);
    }
}

#[test]
fn a_disclosed_trace_names_no_other_tenant() {
    let mut gate = Gate::new(&permit());
    let foreign = read(2, 1, Label::of(TenantId::new(123_456).unwrap()));
    gate.check(step(0, vec![read(0, 1, own()), read(1, 1, Label::PUBLIC), foreign, read(3, 1, Label::NOBODY)]))
        .unwrap_err();
    let trace = Trace::new(&gate.records(), own(), Vec::new());
    let classes: Vec<_> = trace.pages.iter().map(|run| run.class).collect();
    assert_eq!(classes, [PageClass::Own, PageClass::Public, PageClass::Other, PageClass::Nobody]);
    let encoded = trace.encode();
    assert!(!encoded.windows(3).any(|window| window == &123_457u32.to_be_bytes()[1..]));
    assert_eq!(Trace::decode(&encoded), Ok(trace));
}
