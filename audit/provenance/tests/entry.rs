//! Entry bytes: the ones in `tests/golden/audit` for ever, and no others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use audit_provenance::{
    AuditVerdict, Body, ChunkChain, ChunkRun, ChunkRuns, Commitment, Containment, CosignerLag, CosignerRole, Coverage,
    DecodeError, DetectorTrial, Disclosure, DisclosureVersion, ENTRY_BYTES_MAX, EngineFault, EngineFaultClass, Entry,
    EntryVersion, Erased, Erasure, ErasureBasis, Field, Handover, Head, Hold, HoldReason, Incident, IncidentClass,
    IncidentLife, IncidentMoveError, IncidentStage, IncidentState, IsolationAudit, KeyRotation, KeyRotationStage,
    Opened, Openings, PageCounts, Prune, Release, Replay, ReplayOutcome, ReplayTime, SCHEMA, SealReason, Sealing,
    SelfTest, TenantLink, Trace,
};
use policies_domain::{Digest, RequestId, Trial};
use proptest::prelude::*;
use std::path::PathBuf;

fn head(tenant: bool) -> Head {
    let link = TenantLink { tenant: [0xaa; 16], number: 300, previous: Digest([0xbb; 32]) };
    Head {
        version: EntryVersion::CURRENT,
        uuid: [1; 16],
        blind: [2; 32],
        boot: [3; 16],
        wall_us: 1_796_000_523_123_456,
        mono_us: 70_000,
        tenant: tenant.then_some(link),
    }
}

fn entries() -> Vec<Entry> {
    let opened = Opened {
        epoch: 115,
        request: [4; 32],
        tenant_name: [5; 32],
        rules: Digest([6; 32]),
        determining: Digest([7; 32]),
        model: Digest([8; 32]),
        fingerprint: Some(Digest([17; 32])),
        build: Digest([9; 32]),
        stream: true,
    };
    let sealed = Sealing {
        request: RequestId::from_bytes([1; 16]),
        opened_index: 23,
        opened_leaf: Digest([10; 32]),
        reason: SealReason::Length,
        response: Some([11; 32]),
        chain: Some([12; 32]),
        chunks: 24,
        steps: 255,
        prompt_tokens: 256,
        completion_tokens: 65_535,
        pages: PageCounts { own: 65_536, public: 1, foreign: 0 },
        trace: Some(Digest([13; 32])),
        queued_us: 4_294_967_295,
        prefill_us: 4_294_967_296,
        decode_us: u64::MAX,
        coverage: Coverage { label_gate: true, kernel_tags: true, handover: Handover::None },
        replay: Some([19; 32]),
    };
    let crashed = Sealing {
        reason: SealReason::Crash,
        response: None,
        chain: None,
        trace: None,
        coverage: Coverage::default(),
        replay: None,
        ..sealed.clone()
    };
    let incident = Incident {
        incident: [14; 16],
        class: IncidentClass::ForeignPage,
        bytes_released: 0,
        step: Some(2),
        page: Some(3),
        generation: Some(5),
        request: RequestId::from_bytes([1; 16]),
        opened_index: 23,
        opened_leaf: Digest([10; 32]),
        victim: Some([15; 16]),
    };
    let replayed = Incident { class: IncidentClass::Replay, bytes_released: 99, ..incident.clone() };
    let late = Incident {
        class: IncidentClass::Tag,
        bytes_released: 99,
        step: None,
        generation: None,
        victim: None,
        ..incident.clone()
    };
    let fault = |class| EngineFault {
        class,
        steps: 7,
        bytes_released: 300,
        request: RequestId::from_bytes([1; 16]),
        opened_index: 23,
        opened_leaf: Digest([10; 32]),
    };
    let audit = IsolationAudit {
        verdict: AuditVerdict::ChannelFound,
        result: Digest([18; 32]),
        arms: 7,
        power: 12_345,
        strongest: IsolationAudit::STRENGTH_MAX,
    };
    let genesis = Body::Genesis {
        origin: "bulkhead.example/isolation/2026h2".into(),
        schema: Some(Digest([16; 32])),
        previous_checkpoint: None,
        verifier_key: "key".into(),
    };
    vec![
        Entry { head: head(false), body: genesis },
        Entry { head: head(true), body: Body::Opened(opened) },
        Entry { head: head(true), body: Body::Sealed(sealed) },
        Entry { head: head(true), body: Body::Sealed(crashed) },
        Entry { head: head(true), body: Body::Incident(incident) },
        Entry { head: head(true), body: Body::Incident(late) },
        Entry { head: head(true), body: Body::Incident(replayed) },
        Entry { head: head(true), body: Body::Fault(fault(EngineFaultClass::NotANumber)) },
        Entry { head: head(true), body: Body::Fault(fault(EngineFaultClass::Internal)) },
        Entry { head: head(true), body: Body::Audit(audit) },
        Entry { head: head(false), body: Body::Recovered { entries_discarded: 3, bytes_discarded: 1_234 } },
        Entry { head: head(true), body: Body::Replay(replay(ReplayOutcome::Same, None)) },
        Entry { head: head(true), body: Body::Replay(replay(ReplayOutcome::Different, Some(198))) },
        Entry { head: head(true), body: Body::IncidentState(moved(IncidentStage::Contained)) },
        Entry { head: head(true), body: Body::IncidentState(moved(IncidentStage::Resolved)) },
    ]
    .into_iter()
    .chain(keeping())
    .chain(rotations())
    .chain(lags())
    .chain(self_tests())
    .chain([Entry { head: head(false), body: Body::Heartbeat }])
    .collect()
}

fn lags() -> [Entry; 2] {
    let auditor = CosignerLag {
        incident: [51; 16],
        role: CosignerRole::Auditor,
        cosigner: "auditor.example/a1".to_owned(),
        cosigned: 0,
        published: 70_000,
        behind_us: 60_000_001,
        limit_us: 60_000_000,
    };
    let witness = CosignerLag { role: CosignerRole::Witness, cosigned: 69_999, ..auditor.clone() };
    [auditor, witness].map(|lag| Entry { head: head(false), body: Body::Lag(lag) })
}

fn self_tests() -> [Entry; 2] {
    let tried = |detector: &str, control_passed, fault_found| DetectorTrial {
        detector: detector.to_owned(),
        trial: Trial { control_passed, fault_found },
    };
    let passed = SelfTest { incident: None, detectors: vec![tried("gate", true, true), tried("seal", true, true)] };
    let detectors = vec![tried("gate", true, false), tried("seal", false, true), tried("ledger", true, true)];
    let failed = SelfTest { incident: Some([52; 16]), detectors };
    [passed, failed].map(|test| Entry { head: head(false), body: Body::SelfTest(test) })
}

fn is_of_version_5(body: &Body) -> bool {
    matches!(body, Body::KeyRotation(_) | Body::Lag(_) | Body::SelfTest(_))
}

fn rotations() -> [Entry; 2] {
    let begin = KeyRotation {
        stage: KeyRotationStage::Begin,
        previous: "log.example+00112233+AQ==".to_owned(),
        next: "log.example+44556677+Ag==".to_owned(),
        size: 70_000,
        root: Digest([40; 32]),
        by_previous: [41; 64],
        by_next: [42; 64],
    };
    let finish = KeyRotation { stage: KeyRotationStage::Finish, size: 70_123, ..begin.clone() };
    [begin, finish].map(|rotation| Entry { head: head(false), body: Body::KeyRotation(rotation) })
}

fn keeping() -> Vec<Entry> {
    let of = |tenant: bool, body| Entry { head: head(tenant), body };
    let (actor, second) = ([22; 16], [23; 16]);
    let erasure = Erasure { epoch: 115, key: Some(Digest([31; 32])), basis: ErasureBasis::Request, actor, second };
    let lost = Erasure { epoch: 116, key: None, basis: ErasureBasis::KeyLost, ..erasure.clone() };
    let erased = Erased { epoch: 115, erasure_index: 70_000, erasure_leaf: Digest([32; 32]), files: 1 };
    let hold = Hold { hold: [33; 16], first_us: 0, last_us: None, reason: HoldReason::Litigation, actor };
    let (first_us, last_us) = (1_796_000_000_000_000, Some(1_796_000_523_123_456));
    let of_everybody = Hold { first_us, last_us, reason: HoldReason::Other, ..hold.clone() };
    let prune = Prune { before: 4_096, newest_us: 1_790_000_000_000_000, retention_days: 30 };
    vec![
        of(true, Body::Erasure(erasure)),
        of(true, Body::Erasure(lost)),
        of(true, Body::Erased(erased)),
        of(true, Body::Hold(hold)),
        of(false, Body::Hold(of_everybody)),
        of(true, Body::Release(Release { hold: [33; 16], actor, second })),
        of(false, Body::Prune(prune)),
    ]
}

fn replay(outcome: ReplayOutcome, first_difference: Option<u64>) -> Replay {
    Replay {
        request: RequestId::from_bytes([1; 16]),
        sealed_index: 24,
        sealed_leaf: Digest([20; 32]),
        outcome,
        tokens: 200,
        first_difference,
        when: if first_difference.is_some() { ReplayTime::BeforeRelease } else { ReplayTime::AfterRelease },
        cpu_us: 1_234_567,
    }
}

/// An incident's second entry; what closes it has two persons and evidence.
fn moved(state: IncidentStage) -> IncidentState {
    let person = |person| state.is_closed().then_some([person; 16]);
    IncidentState {
        incident: [14; 16],
        sequence: 1,
        previous: Digest([21; 32]),
        state,
        actor: person(22),
        second: person(23),
        evidence: state.is_closed().then_some(Digest([24; 32])),
        action: if state.is_closed() { Containment::None } else { Containment::RequestEnded },
        notice: None,
    }
}

/// Compares with a stored file, which nobody changes: other bytes are another version of the format.
fn check_golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit").join(name);
    let held = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(held, text, "{} differs", path.display());
}

#[test]
fn entries_have_the_bytes_that_they_always_had() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines =
        entries().iter().map(|entry| format!("{} {}\n", entry.body.name(), hex(&entry.encode()))).collect::<String>();
    check_golden("entries.txt", &lines);
}

/// As version 1 had them: what it wrote is still read, and has its one form.
#[test]
fn entries_of_version_1_are_read_as_they_were() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit/entries-v1.txt");
    let bytes = |hex: &str| -> Vec<u8> {
        hex.as_bytes().chunks(2).map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap()).collect()
    };
    let mut names = Vec::new();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes = bytes(hex);
        let mut entry = Entry::decode(&bytes).unwrap();
        assert_eq!((entry.body.name(), entry.head.version), (name, EntryVersion::V1));
        assert_eq!(entry.encode(), bytes);
        if let Body::Opened(opened) = &entry.body {
            assert_eq!(opened.fingerprint, None);
        }
        names.push(name.to_owned());

        // One version's fields under the other's number are no entry.
        entry.head.version = EntryVersion::V2;
        match &entry.body {
            Body::Opened(_) => assert!(Entry::decode(&entry.encode()).is_err()),
            _ => assert_eq!(Entry::decode(&entry.encode()).as_ref(), Ok(&entry)),
        }
    }
    assert_eq!(names.len(), 8);
    for entry in entries() {
        let head = Head { version: EntryVersion::V1, ..entry.head.clone() };
        let older = Entry { head, body: entry.body.clone() };
        match entry.body {
            Body::Fault(_) => assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Kind { kind: 6 })),
            Body::Audit(_) => assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Kind { kind: 7 })),
            Body::Opened(_) => assert!(Entry::decode(&older.encode()).is_err(), "a fingerprint in version 1"),
            Body::Sealed(sealed) => {
                let read = Entry::decode(&older.encode()).unwrap();
                assert_eq!(read.body, Body::Sealed(Sealing { replay: None, ..sealed }));
            }
            Body::Incident(Incident { class: IncidentClass::Replay, .. }) => {
                assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Range { field: "class" }));
            }
            Body::Replay(_) => assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Kind { kind: 9 })),
            Body::IncidentState(_) => assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Kind { kind: 10 })),
            body if is_of_keeping(&body) || is_of_version_5(&body) => {
                assert!(matches!(Entry::decode(&older.encode()), Err(DecodeError::Kind { .. })))
            }
            _ => assert_eq!(Entry::decode(&older.encode()), Ok(older)),
        }
    }
}

/// As version 2 had them.
#[test]
fn entries_of_version_2_are_read_as_they_were() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit/entries-v2.txt");
    let mut count = 0;
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let mut entry = Entry::decode(&bytes).unwrap();
        assert_eq!((entry.body.name(), entry.head.version), (name, EntryVersion::V2));
        assert_eq!(entry.encode(), bytes);
        // Under the newer number the same fields are none, where the newer has one more.
        let mut newer = bytes.clone();
        newer[bytes.iter().position(|byte| *byte == 2).unwrap()] = 3;
        let read = Entry::decode(&newer);
        entry.head.version = EntryVersion::V3;
        match &entry.body {
            Body::Sealed(sealed) => assert!(sealed.replay.is_none() && read.is_err()),
            _ => assert_eq!(read, Ok(entry)),
        }
        count += 1;
    }
    assert_eq!(count, 11);
    for entry in entries() {
        let head = Head { version: EntryVersion::V2, ..entry.head.clone() };
        let older = Entry { head, body: entry.body.clone() }.encode();
        match entry.body {
            Body::Incident(Incident { class: IncidentClass::Replay, .. }) => {
                assert_eq!(Entry::decode(&older), Err(DecodeError::Range { field: "class" }));
            }
            Body::Replay(_) => assert_eq!(Entry::decode(&older), Err(DecodeError::Kind { kind: 9 })),
            Body::IncidentState(_) => assert_eq!(Entry::decode(&older), Err(DecodeError::Kind { kind: 10 })),
            body if is_of_keeping(&body) || is_of_version_5(&body) => {
                assert!(matches!(Entry::decode(&older), Err(DecodeError::Kind { .. })))
            }
            _ => assert!(Entry::decode(&older).is_ok()),
        }
    }
}

fn is_of_keeping(body: &Body) -> bool {
    matches!(body, Body::Erasure(_) | Body::Erased(_) | Body::Hold(_) | Body::Release(_) | Body::Prune(_))
}

/// Each line of the file is an entry of that version, and says what the one of these in its place says now.
fn check_older(file: &str, version: EntryVersion, now: &[Entry]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/audit").join(file);
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(text.lines().count(), now.len());
    for (line, now) in text.lines().zip(now) {
        let (name, hex) = line.split_once(' ').unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let entry = Entry::decode(&bytes).unwrap();
        assert_eq!((entry.body.name(), entry.head.version), (name, version));
        assert_eq!((entry.encode(), &entry.body), (bytes, &now.body));
    }
}

/// As version 4 had them: all that version 5 has, but for rotations of the key, cosigners that have fallen behind and self-tests.
#[test]
fn entries_of_version_4_are_read_as_they_were() {
    let now: Vec<Entry> = entries().into_iter().filter(|entry| !is_of_version_5(&entry.body)).collect();
    check_older("entries-v4.txt", EntryVersion::V4, &now);
    for (kind, entry) in
        [17, 17, 18, 18, 19, 19].into_iter().zip(rotations().into_iter().chain(lags()).chain(self_tests()))
    {
        let older = Entry { head: Head { version: EntryVersion::V4, ..entry.head }, body: entry.body };
        assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Kind { kind }));
    }
}

#[test]
fn a_self_test_that_failed_has_an_incident_and_no_other_has_one() {
    let [Entry { body: Body::SelfTest(passed), .. }, Entry { body: Body::SelfTest(failed), .. }] = self_tests() else {
        panic!("no self-tests")
    };
    let read =
        |test: SelfTest| Entry::decode(&Entry { head: head(false), body: Body::SelfTest(test) }.encode()).is_ok();
    assert!(read(passed.clone()) && read(failed.clone()));
    assert_eq!((passed.failed(), failed.failed()), (vec![], vec!["gate", "seal"]));
    assert!(!read(SelfTest { incident: failed.incident, ..passed.clone() }));
    assert!(!read(SelfTest { incident: None, ..failed }));
    let with = |detectors| SelfTest { detectors, ..passed.clone() };
    let named = |name: String| DetectorTrial { detector: name, ..passed.detectors[0].clone() };
    assert!(read(with((0..32).map(|number| named(format!("{number:064}"))).collect())), "as many as fit");
    for detectors in [
        vec![],
        vec![named("gate".into()), named("gate".into())],
        vec![named(String::new())],
        vec![named("x".repeat(65))],
        (0..33).map(|number| named(number.to_string())).collect(),
    ] {
        assert!(!read(with(detectors.clone())), "{detectors:?}");
    }
}

#[test]
fn whoever_is_within_the_limit_or_has_cosigned_everything_has_not_fallen_behind() {
    let [Entry { body: Body::Lag(lag), .. }, _] = lags() else { panic!("no lag") };
    let read = |lag: CosignerLag| Entry::decode(&Entry { head: head(false), body: Body::Lag(lag) }.encode()).is_ok();
    assert!(read(lag.clone()));
    assert!(!read(CosignerLag { behind_us: lag.limit_us, ..lag.clone() }));
    assert!(!read(CosignerLag { cosigned: lag.published, ..lag.clone() }));
    assert!(!read(CosignerLag { cosigner: String::new(), ..lag }));
}

/// As version 3 had them: all that version 4 has, but for what is said of keeping and destroying.
#[test]
fn entries_of_version_3_are_read_as_they_were() {
    let now = entries().into_iter().filter(|entry| !is_of_keeping(&entry.body) && !is_of_version_5(&entry.body));
    check_older("entries-v3.txt", EntryVersion::V3, &now.collect::<Vec<_>>());
    for (kind, entry) in [12, 12, 13, 14, 14, 15, 16].into_iter().zip(keeping()) {
        let older = Entry { head: Head { version: EntryVersion::V3, ..entry.head }, body: entry.body };
        assert_eq!(Entry::decode(&older.encode()), Err(DecodeError::Kind { kind }));
    }
}

#[test]
fn each_version_has_the_schema_that_it_always_had() {
    let v1 = "eb26186366bc5e3cd14fcec02bd76303077714042e8546601613653a8c5c853c";
    assert_eq!(EntryVersion::V1.schema_digest().to_string(), v1);
    assert_ne!(EntryVersion::CURRENT.schema_digest().to_string(), v1);
    // Logs that were begun under an earlier text of version 2 are still known, and no others.
    for earlier in [
        "07f0b331cc36adc852c124f0aaea521dd3be89bd1197570a0ebf24b4fbd6add5",
        "a74d6dce58b9bce2b8ac7e64190229dfeecd90512136ba8590779bde3bfdd4db",
        "dbc0c2ff4f481b40409011282e856f5b327e89748dc3f0f6d8f055f4d5594cbc",
        "85abd94d97e9d01dc18a0e5de117c9f590910df66eccad3c861da443377880a0",
        "58c455f5c3c5d1d6c15d6cc679f1b902d93fff49012a9c9d306c021a36a43537",
        "7ebca3154be8c711b949a115afa87e602990830707b56f98f56072579ac8c279",
    ] {
        let digest = Digest(std::array::from_fn(|at| u8::from_str_radix(&earlier[2 * at..2 * at + 2], 16).unwrap()));
        assert_eq!(digest.to_string(), earlier);
        assert!(EntryVersion::V2.knows_schema(digest) && !EntryVersion::V1.knows_schema(digest), "{earlier}");
    }
    assert!(EntryVersion::V2.knows_schema(EntryVersion::V2.schema_digest()));
    assert!(!EntryVersion::V2.knows_schema(EntryVersion::V1.schema_digest()));
    assert!(!EntryVersion::V2.knows_schema(Digest([7; 32])));
    let v2 = "502eb164c9151993c8b2c11af197d04dec870558e48eaed8543616bfc841f1e7";
    assert_eq!(EntryVersion::V2.schema_digest().to_string(), v2);
    let v3 = "5b118aed2bbf52c3dc343f968209d2c3703ab5f4186b26ba655605b970098bda";
    assert_eq!(EntryVersion::V3.schema_digest().to_string(), v3);
    assert!(EntryVersion::V3.knows_schema(EntryVersion::V3.schema_digest()));
    assert!(!EntryVersion::V3.knows_schema(EntryVersion::V2.schema_digest()));
    let v4 = "7eb85dd0529dcab289109e2d37eb816f2f3014e040de55f48991075a31ed0bec";
    assert_eq!(EntryVersion::V4.schema_digest().to_string(), v4);
    assert!(EntryVersion::V4.knows_schema(EntryVersion::V4.schema_digest()));
    assert!(!EntryVersion::V4.knows_schema(EntryVersion::V3.schema_digest()));
    assert!(EntryVersion::V5.knows_schema(EntryVersion::CURRENT.schema_digest()));
    assert!(!EntryVersion::V5.knows_schema(EntryVersion::V4.schema_digest()));
    assert!(SCHEMA.contains("version: 5,"));
}

#[test]
fn commitments_and_chains_have_the_values_that_they_always_had() {
    let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines = String::new();
    for field in [Field::Request, Field::Tenant, Field::Response, Field::Chunks, Field::Replay] {
        lines.push_str(&format!("{} {}\n", field.name(), hex(Commitment::of(field, &[1; 32], b"yes"))));
    }
    let mut chain = ChunkChain::new(&[1; 32], &[2; 32]);
    lines.push_str(&format!("chain 0 {}\n", hex(chain.head())));
    chain.push(b"{\"content\":\"yes\"}", 3, 4);
    lines.push_str(&format!("chain 1 {}\n", hex(chain.head())));
    check_golden("commitments.txt", &lines);
}

#[test]
fn entries_are_read_back() {
    for entry in entries() {
        assert_eq!(Entry::decode(&entry.encode()), Ok(entry));
    }
}

#[test]
fn no_other_bytes_are_read() {
    for entry in entries() {
        let bytes = entry.encode();
        for length in 0..bytes.len() {
            assert!(Entry::decode(&bytes[..length]).is_err(), "{} cut to {length}", entry.body.name());
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(Entry::decode(&longer), Err(DecodeError::Trailing { trailing: 1 }));
        for position in 0..bytes.len() {
            for flip in 0..8 {
                let mut changed = bytes.clone();
                changed[position] ^= 1 << flip;
                // What is still an entry is another one, and has only this form.
                if let Ok(other) = Entry::decode(&changed) {
                    assert_ne!(other, entry);
                    assert_eq!(other.encode(), changed);
                }
            }
        }
    }
    assert!(matches!(Entry::decode(&[0; ENTRY_BYTES_MAX + 1]), Err(DecodeError::TooLong { .. })));
}

#[test]
fn unknown_versions_kinds_and_longer_forms_are_refused() {
    let bytes = entries().last().unwrap().encode();
    assert_eq!((bytes[0], bytes[1], bytes[2]), (0x8a, 5, 11));
    let with = |position: usize, value: &[u8]| {
        let mut changed = bytes.clone();
        changed.splice(position..=position, value.iter().copied());
        Entry::decode(&changed).unwrap_err()
    };
    assert_eq!(with(1, &[6]), DecodeError::Version { version: 6 });
    assert_eq!(with(1, &[0]), DecodeError::Version { version: 0 });
    assert_eq!(with(2, &[3]), DecodeError::Kind { kind: 3 });
    assert!(matches!(with(2, &[0x18, 11]), DecodeError::NotDeterministic { .. }));
    assert!(matches!(with(0, &[0x98, 10]), DecodeError::NotDeterministic { .. }));
    assert!(matches!(with(0, &[0x9f]), DecodeError::NotDeterministic { .. }));
    assert!(matches!(with(0, &[0x8b]), DecodeError::Range { .. }));
    // A number without a tenant.
    let at = bytes.len() - 35;
    assert_eq!(bytes[at], 0);
    assert_eq!(with(at, &[1]), DecodeError::Range { field: "tenant number" });
}

#[test]
fn disclosures_are_read_in_their_one_form() {
    let openings = Openings {
        tenant_name: "acme".into(),
        request: [1; 32],
        tenant: [2; 32],
        response: [3; 32],
        chunks: [4; 32],
        replay: Some([7; 32]),
    };
    let disclosure = Disclosure {
        version: DisclosureVersion::CURRENT,
        sealed: entries()[2].encode(),
        opened: entries()[1].encode(),
        opened_index: 23,
        opened_proof: vec![[5; 32], [6; 32]],
        openings: Some(openings),
        trace: Some(vec![0x82, 0x80, 0x80]),
    };
    let bytes = disclosure.encode();
    assert_eq!(Disclosure::decode(&bytes), Ok(disclosure.clone()));
    for length in 0..bytes.len() {
        assert!(Disclosure::decode(&bytes[..length]).is_err());
    }
    assert_eq!(Disclosure::decode(&[&bytes[..], &[0]].concat()), Err(DecodeError::Trailing { trailing: 1 }));
    let long = Disclosure { opened_proof: vec![[0; 32]; 65], ..disclosure.clone() };
    assert_eq!(Disclosure::decode(&long.encode()), Err(DecodeError::Range { field: "opened proof" }));
    let huge = Disclosure { sealed: vec![0; ENTRY_BYTES_MAX + 1], ..disclosure.clone() };
    assert!(matches!(Disclosure::decode(&huge.encode()), Err(DecodeError::TooLong { .. })));
    let bare = Disclosure { openings: None, trace: None, ..disclosure.clone() };
    assert_eq!(Disclosure::decode(&bare.encode()), Ok(bare.clone()));
    // As receipts of version 1 have it: without the last salt, and never with it.
    let openings = disclosure.openings.clone().map(|openings| Openings { replay: None, ..openings });
    let older = Disclosure { version: DisclosureVersion::V1, openings, ..disclosure.clone() };
    assert_eq!(Disclosure::decode(&older.encode()), Ok(older.clone()));
    let bare = Disclosure { version: DisclosureVersion::V1, ..bare };
    assert_eq!(Disclosure::decode(&bare.encode()), Ok(bare));
    let without = Disclosure { version: DisclosureVersion::V2, ..older.clone() };
    assert_eq!(Disclosure::decode(&without.encode()), Ok(without.clone()), "no digest was sealed");
    let (mut mixed, mut other) = (older.encode(), without.encode());
    std::mem::swap(&mut mixed[1], &mut other[1]);
    for mixed in [mixed, other] {
        assert_eq!(Disclosure::decode(&mixed), Err(DecodeError::Range { field: "openings" }));
    }
}

#[test]
fn chunk_runs_are_short_for_ordinary_streams() {
    let mut runs = ChunkRuns::default();
    (0..500).for_each(|step| runs.push(step, step));
    runs.push(500, 503);
    runs.push(503, 503);
    let wanted = [
        ChunkRun { chunks: 500, first_step: 0, stride: 1, span: 0 },
        ChunkRun { chunks: 1, first_step: 500, stride: 0, span: 3 },
        ChunkRun { chunks: 1, first_step: 503, stride: 0, span: 0 },
    ];
    assert_eq!(runs.into_runs(), wanted);
}

#[test]
fn traces_with_absurd_counts_are_refused() {
    for bytes in [
        &[0x82, 0x9b, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x80][..],
        &[0x82, 0x19, 0x40, 0x01, 0x80],
        &[0x83, 0x80, 0x80, 0x80],
        // last step before first step
        &[0x82, 0x81, 0x85, 0, 1, 2, 5, 4, 0x80],
        // class 4
        &[0x82, 0x81, 0x85, 0, 1, 4, 0, 0, 0x80],
        // no chunks, and steps beyond 32 bits
        &[0x82, 0x80, 0x81, 0x84, 0, 0, 0, 0],
        &[0x82, 0x80, 0x81, 0x84, 2, 0, 0x1a, 0xff, 0xff, 0xff, 0xff, 0],
    ] {
        assert!(Trace::decode(bytes).is_err(), "{bytes:02x?}");
    }
}

proptest! {
    #[test]
    fn chunk_runs_say_which_steps_each_chunk_comes_from(chunks in prop::collection::vec((0u32..20, 0u32..3), 0..40)) {
        let mut runs = ChunkRuns::default();
        chunks.iter().for_each(|(first, span)| runs.push(*first, first + span));
        let trace = Trace { pages: Vec::new(), chunks: runs.into_runs() };
        let expanded: Vec<_> = trace.chunks.iter()
            .flat_map(|run| (0..run.chunks).map(|n| (run.first_step + n * run.stride, run.span))).collect();
        prop_assert_eq!(expanded, chunks);
        prop_assert_eq!(Trace::decode(&trace.encode()), Ok(trace));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(entry) = Entry::decode(&bytes) {
            prop_assert_eq!(entry.encode(), bytes.clone());
        }
        if let Ok(trace) = Trace::decode(&bytes) {
            prop_assert_eq!(trace.encode(), bytes.clone());
        }
        if let Ok(disclosure) = Disclosure::decode(&bytes) {
            prop_assert_eq!(disclosure.encode(), bytes);
        }
    }
}

#[test]
fn the_published_format_is_the_one_in_force() {
    let page = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/log-format.md");
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.contains(SCHEMA), "docs/log-format.md does not hold entry.cddl as it is");
}

#[test]
fn strengths_of_probabilities_are_bounded_and_never_round_to_more() {
    let strength = IsolationAudit::strength;
    assert_eq!([strength(1.0), strength(0.01), strength(1e-8), strength(0.0099)], [0, 2_000, 8_000, 2_004]);
    assert_eq!([strength(0.0), strength(f64::NAN), strength(2.0), strength(-1.0)], [1_000_000, 0, 0, 0]);
}

#[test]
fn a_replay_says_where_tokens_differ_and_nowhere_else() {
    let read = |outcome, place| {
        Entry::decode(&Entry { head: head(true), body: Body::Replay(replay(outcome, place)) }.encode())
    };
    let refused = Err(DecodeError::Range { field: "first difference" });
    assert!(read(ReplayOutcome::Different, None).is_ok(), "logits may differ where no token does");
    assert!(read(ReplayOutcome::Different, Some(199)).is_ok());
    assert_eq!(read(ReplayOutcome::Different, Some(200)), refused);
    assert_eq!(read(ReplayOutcome::Same, Some(0)), refused);
    assert_eq!(read(ReplayOutcome::NotDone, Some(0)), refused);
}

#[test]
fn what_closes_an_incident_takes_two_persons_and_evidence() {
    let read = |change: &dyn Fn(&mut IncidentState), stage| {
        let mut state = moved(stage);
        change(&mut state);
        Entry::decode(&Entry { head: head(true), body: Body::IncidentState(state) }.encode()).is_ok()
    };
    for stage in [IncidentStage::Resolved, IncidentStage::FalsePositive] {
        assert!(read(&|_| {}, stage));
        assert!(!read(&|state| state.second = None, stage));
        assert!(!read(&|state| state.actor = None, stage));
        assert!(!read(&|state| state.second = state.actor, stage));
        assert!(!read(&|state| state.evidence = None, stage));
        assert!(!read(&|state| state.notice = Some(Digest([1; 32])), stage));
    }
    assert!(read(&|_| {}, IncidentStage::Triaged));
    assert!(!read(&|state| state.sequence = 0, IncidentStage::Triaged));
    assert!(!read(&|state| state.second = Some([1; 16]), IncidentStage::Triaged), "a second person without a first");
    assert!(read(&|state| state.notice = Some(Digest([1; 32])), IncidentStage::Notified));
    assert!(!read(&|_| {}, IncidentStage::Detected));
}

#[test]
fn what_is_closed_is_reopened_and_nothing_else() {
    let all = [
        IncidentStage::Contained,
        IncidentStage::Triaged,
        IncidentStage::Notified,
        IncidentStage::Resolved,
        IncidentStage::FalsePositive,
        IncidentStage::Reopened,
    ];
    for from in all.into_iter().chain([IncidentStage::Detected]) {
        let life = IncidentLife { stage: from, sequence: 4, leaf: Digest([30; 32]) };
        for to in all {
            let state = IncidentState { sequence: 5, previous: life.leaf, ..moved(to) };
            let after = life.after(&state, Digest([31; 32]));
            match from.is_closed() == (to == IncidentStage::Reopened) {
                true => assert_eq!(after, Ok(IncidentLife { stage: to, sequence: 5, leaf: Digest([31; 32]) })),
                false => assert_eq!(after, Err(IncidentMoveError::Forbidden { from, to })),
            }
        }
    }
    let life = IncidentLife::detected(Digest([30; 32]));
    let right = IncidentState { previous: life.leaf, ..moved(IncidentStage::Contained) };
    let after = |state: IncidentState| life.after(&state, Digest([31; 32]));
    assert!(after(right.clone()).is_ok());
    let sequence = IncidentMoveError::Sequence { held: 2, wanted: 1 };
    assert_eq!(after(IncidentState { sequence: 2, ..right.clone() }), Err(sequence));
    assert_eq!(after(IncidentState { previous: Digest([29; 32]), ..right.clone() }), Err(IncidentMoveError::Previous));
    let alone = IncidentState { previous: life.leaf, second: None, ..moved(IncidentStage::Resolved) };
    assert_eq!(after(alone), Err(IncidentMoveError::Form));
}
