//! A dishonest operator holds the key: hashes and signatures are right, and what the entries say is not. The check that
//! notices it is named.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod forged;

use audit_provenance::{
    AuditVerdict, Body, Containment, CosignerLag, CosignerRole, DetectorTrial, EngineFault, EngineFaultClass,
    EntryVersion, Incident, IncidentClass, IncidentStage, IncidentState, IsolationAudit, Opened, PageCounts, Replay,
    ReplayOutcome, ReplayTime, SealReason, Sealing, SelfTest, TenantLink, Trace,
};
use audit_tlog::TlogProof;
use audit_verify::{Evidence, LogReport, ReplayAnswer, check_log, check_receipt};
use forged::{ACME, Forge, GLOBEX, PAYLOADS, genesis, incident, opened, sealed, signer, trace};
use policies_domain::{Digest, RequestId, Trial};
use std::path::PathBuf;

fn check(forge: &Forge) -> Result<LogReport, String> {
    let dir = tempfile::tempdir().unwrap();
    forge.write(dir.path());
    let checked = check_log(dir.path(), &signer().verifier_key(), None, |_, _| {});
    checked.map_err(|refusal| format!("{}: {refusal}", refusal.check()))
}

#[track_caller]
fn refused(forge: &Forge, check_name: &str, words: &str) {
    let refusal = check(forge).unwrap_err();
    assert!(refusal.starts_with(check_name) && refusal.contains(words), "{refusal}");
}

#[test]
fn an_honest_log_over_several_tiles_is_sound() {
    let mut forge = Forge::new();
    for request in 0..200 {
        forge.answer(if request % 3 == 0 { GLOBEX } else { ACME }, request);
        forge.add(None, Body::Heartbeat);
    }
    let report = check(&forge).unwrap();
    assert_eq!((report.checkpoint.size, report.tenants, report.unsealed), (601, 2, 0));
    assert_eq!(report.pages, [400, 0, 0]);
}

#[test]
fn a_tenants_chain_has_no_gap_no_double_and_no_other_past() {
    let link = |number, previous| Some(TenantLink { tenant: ACME, number, previous });
    let mut forge = Forge::new();
    let (_, first) = forge.add(Some(ACME), opened(1));
    let at = |forge: &mut Forge, number, previous| {
        forge.add_linked(link(number, previous), opened(2));
    };
    let mut gap = Forge::new();
    gap.add(Some(ACME), opened(1));
    at(&mut gap, 2, first);
    refused(&gap, "tenants", "is number 2 of tenant acacacac");
    let mut double = Forge::new();
    double.add(Some(ACME), opened(1));
    at(&mut double, 0, first);
    refused(&double, "tenants", "expected was 1");
    let mut other_past = Forge::new();
    other_past.add(Some(ACME), opened(1));
    at(&mut other_past, 1, Digest([9; 32]));
    refused(&other_past, "tenants", "does not name the previous entry");
    let mut swapped = Forge::new();
    swapped.answer(ACME, 1);
    swapped.answer(ACME, 2);
    swapped.entries.swap(2, 3);
    refused(&swapped, "tenants", "entry 2 is number 2");
    let mut nobodys = Forge::new();
    nobodys.add(None, opened(1));
    refused(&nobodys, "tenants", "has no tenant");
    let mut omitted = Forge::new();
    omitted.answer(ACME, 1);
    omitted.answer(ACME, 2);
    omitted.entries.remove(2);
    refused(&omitted, "tenants", "expected was 1");
}

#[test]
fn opened_and_sealed_entries_come_in_pairs() {
    let with = |lie: &dyn Fn(&mut Forge)| {
        let mut forge = Forge::new();
        lie(&mut forge);
        forge
    };
    refused(
        &with(&|log| {
            log.add(Some(ACME), sealed(1, (0, Digest([0; 32])), |_| {}));
        }),
        "pairing",
        "entry 1",
    );
    refused(
        &with(&|log| {
            let at = log.add(Some(ACME), opened(1));
            log.add(Some(ACME), sealed(1, at, |_| {}));
            log.add(Some(ACME), sealed(1, at, |_| {}));
        }),
        "pairing",
        "entry 3",
    );
    refused(
        &with(&|log| {
            log.answer(ACME, 1);
            log.add(Some(ACME), opened(1));
        }),
        "pairing",
        "a second time",
    );
    refused(
        &with(&|log| {
            let at = log.add(Some(ACME), opened(1));
            log.add(Some(GLOBEX), sealed(1, at, |_| {}));
        }),
        "pairing",
        "entry 2",
    );
    refused(
        &with(&|log| {
            let (index, _) = log.add(Some(ACME), opened(1));
            log.add(Some(ACME), sealed(1, (index, Digest([1; 32])), |_| {}));
        }),
        "pairing",
        "entry 2",
    );
}

#[test]
fn incidents_and_foreign_pages_cannot_be_left_out() {
    let foreign = |sealing: &mut Sealing| sealing.pages = PageCounts { own: 1, public: 0, foreign: 1 };
    let stopped = |sealing: &mut Sealing| sealing.reason = SealReason::Isolation;
    let mut hidden = Forge::new();
    let at = hidden.add(Some(ACME), opened(1));
    hidden.add(Some(ACME), sealed(1, at, foreign));
    refused(&hidden, "pages", "1 foreign pages were read and the response was not stopped");
    let mut unreported = Forge::new();
    let at = unreported.add(Some(ACME), opened(1));
    unreported.add(Some(ACME), sealed(1, at, stopped));
    refused(&unreported, "incidents", "entry 2");
    let mut played_down = Forge::new();
    let at = played_down.add(Some(ACME), opened(1));
    played_down.add(Some(ACME), incident(1, at));
    played_down.add(Some(ACME), sealed(1, at, |_| {}));
    refused(&played_down, "incidents", "entry 3");
    let mut admitted = Forge::new();
    let at = admitted.add(Some(ACME), opened(1));
    admitted.add(Some(ACME), incident(1, at));
    admitted.add(
        Some(ACME),
        sealed(1, at, |sealing| {
            foreign(sealing);
            stopped(sealing);
        }),
    );
    assert_eq!(check(&admitted).unwrap().pages, [1, 0, 1]);
}

fn fault(request: u8, opened: (u64, Digest)) -> Body {
    Body::Fault(EngineFault {
        class: EngineFaultClass::NotANumber,
        steps: 2,
        bytes_released: 5,
        request: RequestId::from_bytes([request; 16]),
        opened_index: opened.0,
        opened_leaf: opened.1,
    })
}

#[test]
fn what_probes_said_is_counted_and_has_a_tenant() {
    let audit =
        |verdict| Body::Audit(IsolationAudit { verdict, result: Digest([3; 32]), arms: 6, power: 9_000, strongest: 0 });
    let mut forge = Forge::new();
    forge.answer(ACME, 1);
    forge.add(Some(ACME), audit(AuditVerdict::Isolated));
    forge.add(Some(ACME), audit(AuditVerdict::Void));
    forge.answer(ACME, 2);
    let report = check(&forge).unwrap();
    assert_eq!(report.audits.into_iter().collect::<Vec<_>>(), [("isolated", 1), ("void", 1)]);
    let mut nobodys = Forge::new();
    nobodys.add(None, audit(AuditVerdict::Isolated));
    refused(&nobodys, "tenants", "entry 1");
}

fn replay_of(request: u8, sealed: (u64, Digest), outcome: ReplayOutcome) -> Body {
    Body::Replay(Replay {
        request: RequestId::from_bytes([request; 16]),
        sealed_index: sealed.0,
        sealed_leaf: sealed.1,
        outcome,
        tokens: 3,
        first_difference: None,
        when: ReplayTime::AfterRelease,
        cpu_us: 5,
    })
}

fn late_incident(request: u8, opened: (u64, Digest), class: IncidentClass) -> Body {
    let Body::Incident(found) = incident(request, opened) else { panic!("no incident") };
    Body::Incident(Incident { class, bytes_released: 9, incident: [0x2c; 16], ..found })
}

#[test]
fn what_was_computed_again_has_its_outcome_and_its_incident() {
    let begun = |lie: fn(&mut Sealing)| {
        let mut forge = Forge::new();
        let at = forge.add(Some(ACME), opened(1));
        let sealed = forge.add(Some(ACME), sealed(1, at, lie));
        (forge, at, sealed)
    };
    let told = |outcome, incident: Option<IncidentClass>| {
        let (mut forge, at, sealed) = begun(|_| {});
        if let Some(class) = incident {
            forge.add(Some(ACME), late_incident(1, at, class));
        }
        forge.add(Some(ACME), replay_of(1, sealed, outcome));
        forge
    };
    for outcome in [ReplayOutcome::Same, ReplayOutcome::NotDone] {
        let report = check(&told(outcome, None)).unwrap();
        assert_eq!(report.replays.into_iter().collect::<Vec<_>>(), [(outcome.as_str(), 1)]);
        refused(&told(outcome, Some(IncidentClass::Replay)), "replays", "entry 4");
    }
    let report = check(&told(ReplayOutcome::Different, Some(IncidentClass::Replay))).unwrap();
    assert_eq!((report.replays["different"], report.incidents["detected"]), (1, 1));
    refused(&told(ReplayOutcome::Different, None), "replays", "entry 3");
    refused(&told(ReplayOutcome::Different, Some(IncidentClass::Tag)), "pairing", "entry 3");

    let (mut twice, _, at) = begun(|_| {});
    twice.add(Some(ACME), replay_of(1, at, ReplayOutcome::Same));
    twice.add(Some(ACME), replay_of(1, at, ReplayOutcome::Same));
    refused(&twice, "replays", "entry 4");
    let (mut without_digest, _, at) = begun(|sealing| sealing.replay = None);
    without_digest.add(Some(ACME), replay_of(1, at, ReplayOutcome::Same));
    refused(&without_digest, "replays", "entry 3");
    let (mut others, _, at) = begun(|_| {});
    others.add(Some(GLOBEX), replay_of(1, at, ReplayOutcome::Same));
    refused(&others, "replays", "entry 3");
    let (mut elsewhere, opened_at, _) = begun(|_| {});
    elsewhere.add(Some(ACME), replay_of(1, opened_at, ReplayOutcome::Same));
    refused(&elsewhere, "replays", "entry 3");
    let mut early = Forge::new();
    let at = early.add(Some(ACME), opened(1));
    early.add(Some(ACME), replay_of(1, at, ReplayOutcome::NotDone));
    refused(&early, "replays", "entry 2");
}

#[test]
fn an_incident_moves_as_it_may_and_in_its_own_chain() {
    let state = |sequence, previous, state: IncidentStage| {
        let person = |person| state.is_closed().then_some([person; 16]);
        Body::IncidentState(IncidentState {
            incident: [0x1c; 16],
            sequence,
            previous,
            state,
            actor: person(1),
            second: person(2),
            evidence: state.is_closed().then_some(Digest([3; 32])),
            action: Containment::None,
            notice: None,
        })
    };
    let begun = || {
        let mut forge = Forge::new();
        let at = forge.add(Some(ACME), opened(1));
        let (_, first) = forge.add(Some(ACME), incident(1, at));
        forge.add(Some(ACME), sealed(1, at, |sealing| sealing.reason = SealReason::Isolation));
        (forge, first)
    };
    let (mut whole, first) = begun();
    let mut previous = first;
    let stages = [
        IncidentStage::Contained,
        IncidentStage::Triaged,
        IncidentStage::Notified,
        IncidentStage::Resolved,
        IncidentStage::Reopened,
        IncidentStage::FalsePositive,
    ];
    for (sequence, stage) in (1..).zip(stages) {
        previous = whole.add(Some(ACME), state(sequence, previous, stage)).1;
    }
    assert_eq!(check(&whole).unwrap().incidents.into_iter().collect::<Vec<_>>(), [("false_positive", 1)]);
    whole.add(Some(ACME), state(7, previous, IncidentStage::Triaged));
    refused(&whole, "incidents", "`triaged` does not follow `false_positive`");

    let one = |tenant, change: &dyn Fn(Digest) -> Body| {
        let (mut forge, first) = begun();
        forge.add(tenant, change(first));
        forge
    };
    let early = one(Some(ACME), &|first| state(1, first, IncidentStage::Reopened));
    refused(&early, "incidents", "`reopened` does not follow `detected`");
    let gap = one(Some(ACME), &|first| state(2, first, IncidentStage::Triaged));
    refused(&gap, "incidents", "sequence 2 came where 1 was due");
    let unlinked = one(Some(ACME), &|_| state(1, Digest([9; 32]), IncidentStage::Triaged));
    refused(&unlinked, "incidents", "previous entry");
    refused(&one(Some(GLOBEX), &|first| state(1, first, IncidentStage::Triaged)), "incidents", "entry 4");
    refused(&one(None, &|first| state(1, first, IncidentStage::Triaged)), "incidents", "entry 4");
    let mut nothing = Forge::new();
    nothing.answer(ACME, 1);
    nothing.add(Some(ACME), state(1, Digest([0; 32]), IncidentStage::Triaged));
    refused(&nothing, "incidents", "entry 3");
}

/// One that found what it was to find when `works`.
fn self_test(works: bool, incident: Option<u8>) -> Body {
    let trial = Trial { control_passed: true, fault_found: works };
    let detectors = vec![DetectorTrial { detector: "gate".to_owned(), trial }];
    Body::SelfTest(SelfTest { incident: incident.map(|byte| [byte; 16]), detectors })
}

#[test]
fn self_tests_are_counted_and_one_that_failed_is_an_incident_of_no_tenant() {
    let moved = |previous, sequence| {
        Body::IncidentState(IncidentState {
            incident: [1; 16],
            sequence,
            previous,
            state: IncidentStage::Contained,
            actor: None,
            second: None,
            evidence: None,
            action: Containment::EngineDrained,
            notice: None,
        })
    };
    let mut forge = Forge::new();
    forge.add(None, self_test(true, None));
    let (_, first) = forge.add(None, self_test(false, Some(1)));
    // It goes on: the same incident, in whose chain this is no entry.
    forge.add(None, self_test(false, Some(1)));
    forge.add(None, self_test(true, None));
    forge.add(None, moved(first, 1));
    forge.add(None, self_test(false, Some(2)));
    let report = check(&forge).unwrap();
    assert_eq!((report.self_tests.tests, report.self_tests.failed), (5, 3));
    assert_eq!(
        (report.self_tests.longest_gap_us, report.self_tests.last_us - report.self_tests.first_us),
        (2_000, 5_000)
    );
    assert_eq!(report.incidents.into_iter().collect::<Vec<_>>(), [("contained", 1), ("detected", 1)]);

    let mut of_a_tenant = Forge::new();
    of_a_tenant.add(Some(ACME), self_test(true, None));
    refused(&of_a_tenant, "incidents", "entry 1");
    let mut nothing = Forge::new();
    let (_, passed) = nothing.add(None, self_test(true, None));
    nothing.add(None, moved(passed, 1));
    refused(&nothing, "incidents", "entry 2");
}

#[test]
fn the_lag_of_a_cosigner_is_an_incident_of_no_tenant() {
    let lag = |incident| {
        Body::Lag(CosignerLag {
            incident: [incident; 16],
            role: CosignerRole::Auditor,
            cosigner: "auditor.example".to_owned(),
            cosigned: 1,
            published: 2,
            behind_us: 61_000_000,
            limit_us: 60_000_000,
        })
    };
    let moved = |previous| {
        Body::IncidentState(IncidentState {
            incident: [1; 16],
            sequence: 1,
            previous,
            state: IncidentStage::Contained,
            actor: None,
            second: None,
            evidence: None,
            action: Containment::None,
            notice: None,
        })
    };
    let mut forge = Forge::new();
    let (_, leaf) = forge.add(None, lag(1));
    forge.add(None, lag(2));
    forge.add(None, moved(leaf));
    let report = check(&forge).unwrap();
    assert_eq!(report.incidents.into_iter().collect::<Vec<_>>(), [("contained", 1), ("detected", 1)]);
    let mut elsewhere = forge.prefix(2);
    elsewhere.add(Some(ACME), moved(leaf));
    refused(&elsewhere, "incidents", "entry 2 belongs to no incident");
    let mut twice = forge.prefix(2);
    twice.add(None, lag(1));
    refused(&twice, "incidents", "entry 2 belongs to no incident");
    let mut of_a_tenant = forge.prefix(1);
    of_a_tenant.add(Some(ACME), lag(1));
    refused(&of_a_tenant, "incidents", "entry 1 says in a tenant's chain");
}

#[test]
fn a_request_that_the_engine_failed_does_not_end_well() {
    for (reason, is_sound) in [
        (SealReason::Error, true),
        (SealReason::Crash, true),
        (SealReason::Stop, false),
        (SealReason::Length, false),
        (SealReason::Aborted, false),
    ] {
        let mut forge = Forge::new();
        let at = forge.add(Some(ACME), opened(1));
        forge.add(Some(ACME), fault(1, at));
        forge.add(Some(ACME), sealed(1, at, |sealing| sealing.reason = reason));
        match is_sound {
            true => assert_eq!(check(&forge).unwrap().kinds["fault"], 1),
            false => refused(&forge, "faults", "entry 3: the engine failed the request"),
        }
    }
    let mut late = Forge::new();
    let at = late.add(Some(ACME), opened(1));
    late.add(Some(ACME), sealed(1, at, |_| {}));
    late.add(Some(ACME), fault(1, at));
    refused(&late, "pairing", "entry 3");
    let mut others = Forge::new();
    let at = others.add(Some(ACME), opened(1));
    others.add(Some(GLOBEX), fault(1, at));
    refused(&others, "pairing", "entry 2");
}

#[test]
fn a_log_goes_on_in_a_newer_format_and_never_in_an_older_one() {
    let opened_v1 = |request| match opened(request) {
        Body::Opened(opened) => Body::Opened(Opened { fingerprint: None, ..opened }),
        _ => panic!("not opened"),
    };
    let begun = || {
        let mut forge = Forge::of_version(EntryVersion::V1);
        let at = forge.add(Some(ACME), opened_v1(1));
        forge.version = EntryVersion::V2;
        forge.add(Some(ACME), sealed(1, at, |_| {}));
        forge.answer(ACME, 3);
        forge.version = EntryVersion::V3;
        forge.answer(ACME, 5);
        forge.version = EntryVersion::V4;
        forge.answer(ACME, 7);
        forge.version = EntryVersion::V5;
        forge
    };
    let mut forge = begun();
    forge.answer(ACME, 2);
    check(&forge).unwrap();
    forge.receipt(1, 2, &trace());
    let mut back = begun();
    back.answer(ACME, 4);
    back.version = EntryVersion::V4;
    back.add(None, Body::Heartbeat);
    refused(&back, "entries", "entry 11 has an older format than the entries before it");
    // A genesis names the format that it is written in.
    let mut other = Forge::new();
    other.entries.clear();
    other.version = EntryVersion::V1;
    other.add(None, genesis());
    refused(&other, "entries", "entry 0");
}

#[test]
fn the_first_entry_and_no_other_is_the_genesis() {
    let mut second = Forge::new();
    second.add(None, genesis());
    refused(&second, "entries", "entry 1");
    let mut missing = Forge::new();
    missing.entries.clear();
    missing.add(None, Body::Heartbeat);
    refused(&missing, "entries", "entry 0");
    let mut other = Forge::new();
    other.entries.clear();
    let Body::Genesis { schema, previous_checkpoint, verifier_key, .. } = genesis() else { panic!("no genesis") };
    other.add(None, Body::Genesis { origin: "other.example".into(), schema, previous_checkpoint, verifier_key });
    refused(&other, "entries", "entry 0");
}

#[test]
fn entries_that_are_none_are_refused_in_their_place() {
    let mut forge = Forge::new();
    forge.answer(ACME, 1);
    forge.entries.push(b"\xa0".to_vec());
    refused(&forge, "entries", "entry 3");
    let mut forge = Forge::new();
    let mut longer = forge.entries[0].clone();
    longer.push(0);
    forge.entries.push(longer);
    refused(&forge, "entries", "1 bytes after the end");
}

#[test]
fn any_changed_file_is_noticed() {
    let mut forge = Forge::new();
    (0..130).for_each(|request| forge.answer(ACME, request));
    let dir = tempfile::tempdir().unwrap();
    forge.write(dir.path());
    let key = signer().verifier_key();
    let checked = || check_log(dir.path(), &key, None, |_, _| {}).map_err(|refusal| refusal.check());
    assert!(checked().is_ok());
    let all =
        ["checkpoint", "tile/0/000", "tile/0/001.p/5", "tile/1/000.p/1", "tile/entries/000", "tile/entries/001.p/5"];
    for name in all {
        let path = dir.path().join(name);
        let whole = std::fs::read(&path).unwrap();
        for position in [0, whole.len() / 2, whole.len() - 1] {
            let mut changed = whole.clone();
            changed[position] ^= 1;
            std::fs::write(&path, changed).unwrap();
            assert!(checked().is_err(), "{name} at {position}");
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(checked().is_err(), "{name} cut");
        std::fs::write(&path, [&whole[..], b"\n"].concat()).unwrap();
        assert!(checked().is_err(), "{name} longer");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(checked().unwrap_err(), "files", "{name} removed");
        std::fs::write(&path, whole).unwrap();
    }
    assert!(checked().is_ok());
}

fn receipt(lie: impl FnOnce(&mut Sealing), shown: &Trace) -> Result<(), &'static str> {
    let mut forge = Forge::new();
    forge.answer(GLOBEX, 9);
    let at = forge.add(Some(ACME), opened(1));
    let (index, _) = forge.add(Some(ACME), sealed(1, at, lie));
    let text = forge.receipt(at.0, index, shown).encode();
    let response = PAYLOADS.map(|payload| format!("data: {payload}\n\n")).concat();
    let evidence = Evidence { request: None, response: Some(response.as_bytes()), ..Evidence::default() };
    check_receipt(text.as_bytes(), &signer().verifier_key(), evidence).map(|_| ()).map_err(|refusal| refusal.check())
}

#[test]
fn receipts_that_contradict_themselves_are_refused() {
    assert_eq!(receipt(|_| {}, &trace()), Ok(()));
    assert_eq!(receipt(|sealed| sealed.pages.own = 3, &trace()), Err("trace"));
    assert_eq!(receipt(|sealed| sealed.pages.foreign = 1, &trace()), Err("trace"));
    assert_eq!(receipt(|sealed| sealed.chunks = 4, &trace()), Err("trace"));
    assert_eq!(receipt(|sealed| sealed.steps = 2, &trace()), Err("trace"));
    assert_eq!(receipt(|sealed| sealed.chain = Some([0; 32]), &trace()), Err("response"));
    assert_eq!(receipt(|sealed| sealed.response = Some([0; 32]), &trace()), Err("response"));
    assert_eq!(receipt(|sealed| sealed.response = None, &trace()), Err("response"));
    assert_eq!(receipt(|sealed| sealed.opened_index = 1, &trace()), Err("pairing"));
    assert_eq!(receipt(|sealed| sealed.opened_leaf = Digest([0; 32]), &trace()), Err("pairing"));
    assert_eq!(receipt(|sealed| sealed.replay = None, &trace()), Err("pairing"), "a salt that opens nothing");
    let mut foreign = trace();
    foreign.pages[1].class = audit_provenance::PageClass::Other;
    assert_eq!(receipt(|_| {}, &foreign), Err("trace"));
    let admits = |sealed: &mut Sealing| {
        sealed.trace = Some(Trace::root(&foreign.encode()));
        sealed.pages = PageCounts { own: 1, public: 0, foreign: 1 };
    };
    assert_eq!(receipt(admits, &foreign), Err("pages"));
    let mut late = trace();
    late.pages[1].last_step = 3;
    assert_eq!(receipt(|sealed| sealed.trace = Some(Trace::root(&late.encode())), &late), Err("trace"));
}

/// The whole text of a receipt, as it always was; the two foreign verifiers read the same format.
#[test]
fn a_checkpoint_and_a_receipt_have_the_bytes_that_they_always_had() {
    let mut forge = Forge::new();
    forge.answer(GLOBEX, 9);
    forge.answer(ACME, 1);
    forge.add(None, Body::Heartbeat);
    let text = forge.receipt(3, 4, &trace()).encode();
    let held = |name: &str| {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit").join(name);
        std::fs::read_to_string(path).unwrap_or_default()
    };
    assert_eq!(text, held("receipt.tlog-proof"));
    assert_eq!(TlogProof::parse(text.as_bytes()).unwrap().checkpoint, held("checkpoint"));
    assert_eq!(format!("{}\n", signer().verifier_key()), held("log.vkey"));
    let report = check_receipt(text.as_bytes(), &signer().verifier_key(), Evidence::default()).unwrap();
    assert_eq!(report.opened.fingerprint, Some(Digest([10; 32])));
    assert_eq!(report.replayed(&Digest([26; 32])), ReplayAnswer::Same);
    assert_eq!(report.replayed(&Digest([27; 32])), ReplayAnswer::Different);
    // What was handed out before the format had a fingerprint still verifies,
    // or a replay digest.
    for (version, fingerprint) in [("v1", None), ("v2", Some(Digest([10; 32])))] {
        let before = held(&format!("receipt-{version}.tlog-proof"));
        let report = check_receipt(before.as_bytes(), &signer().verifier_key(), Evidence::default()).unwrap();
        assert_eq!((report.opened.fingerprint, report.sealed.replay, report.replay_salt), (fingerprint, None, None));
        assert_eq!(report.replayed(&Digest([26; 32])), ReplayAnswer::NotSealed);
        assert!(before.ends_with(&held(&format!("checkpoint-{version}"))));
    }
    for version in ["v3", "v4"] {
        let before = held(&format!("receipt-{version}.tlog-proof"));
        let report = check_receipt(before.as_bytes(), &signer().verifier_key(), Evidence::default()).unwrap();
        assert_eq!(report.replayed(&Digest([26; 32])), ReplayAnswer::Same);
        assert!(before.ends_with(&held(&format!("checkpoint-{version}"))));
    }
}
