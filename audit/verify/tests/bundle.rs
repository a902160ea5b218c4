//! Evidence bundles: genuine ones of a real log, ones in which each part was changed, with and without the operator's help, and
//! ones of forged logs. The check that notices it is named.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test fails by panicking"
)]

mod forged;
mod made_bundle;
mod real_log;

use audit_evidence::{
    CERTIFICATE, CHECKPOINT, Content, ENTRIES, Files, MANIFEST, NameOpening, OSCAL, ProvenEntry, REPORT_HTML,
    REPORT_JSON, REPORT_PDF, STATEMENT, StatedSelfTests, VERIFIER, VictimIncident, sign_manifest,
};
use audit_provenance::{
    Body, Containment, EngineFault, EngineFaultClass, Entry, IncidentStage, IncidentState, REPORT_KEY_PURPOSE, Replay,
    ReplayOutcome, ReplayTime, SealReason, TenantLink, report_key_text,
};
use audit_tlog::{Checkpoint, KeyChain, LogSigner, RotationStage, SignedRotation, TiledTree, sign_text};
use audit_verify::{BundleEvidence, BundleReport, BundleUnchecked, VerifierKey, check_bundle};
use forged::{ACME, Forge, GLOBEX, incident, opened, sealed, signer};
use made_bundle::{Parts, parts};
use policies_domain::{Digest, Label, RequestId, TenantId};
use real_log::RealLog;

/// A real log of two tenants: answers of both, and one of acme's that met a page of globex'.
async fn real() -> RealLog {
    let log = RealLog::open();
    log.streamed(&log.acme, 11).await;
    log.whole(&log.globex, 12).await;
    log.refused(&log.acme, 13, Label::of(TenantId::new(2).unwrap())).await;
    log.streamed(&log.acme, 14).await;
    log.log.shutdown();
    log
}

fn check(bundle: &[u8], key: &VerifierKey) -> Result<BundleReport, String> {
    let checked = check_bundle(bundle, key, BundleEvidence::default(), |_, _| {});
    checked.map_err(|refusal| format!("{}: {refusal}", refusal.check()))
}

#[track_caller]
fn refused(bundle: &[u8], key: &VerifierKey, check_name: &str, words: &str) {
    let refusal = check(bundle, key).map(|report| report.passed).unwrap_err();
    assert!(refusal.starts_with(check_name) && refusal.contains(words), "{refusal}");
}

#[tokio::test]
async fn a_bundle_of_a_real_log_is_genuine_and_says_nothing_of_others() {
    let log = real().await;
    let acme = parts(log.dir.path(), "acme", 0, u64::MAX);
    let bundle = acme.bundle();
    let report = check(&bundle, &acme.key).unwrap();
    let wanted = ["archive", "files", "manifest", "checkpoint", "statement", "entries", "inclusion", "chain", "time"];
    assert_eq!(report.passed, [&wanted[..], &["name", "story", "report"]].concat());
    assert_eq!(report.unchecked, [BundleUnchecked::End, BundleUnchecked::Stated, BundleUnchecked::Witnesses]);
    let facts = &report.facts;
    assert_eq!((facts.responses.opened, facts.responses.sealed, facts.responses.not_sealed), (3, 3, 0));
    assert_eq!(
        (facts.incidents.len(), facts.incidents[0].state, facts.pages.released_after_foreign),
        (1, "contained", 0)
    );
    assert!(facts.incidents[0].withheld && facts.completeness.withheld == 1);
    assert_eq!((facts.completeness.first_number, facts.completeness.begin_is_closed), (0, true));

    let globex = parts(log.dir.path(), "globex", 0, u64::MAX);
    let other = globex.bundle();
    let report = check(&other, &globex.key).unwrap();
    assert_eq!(report.statement.as_victim.len(), 1);
    let holds = |bundle: &[u8], word: &[u8]| bundle.windows(word.len()).any(|window| window == word);
    let requests = |numbers: &[u8]| numbers.iter().map(|number| [*number; 16]).collect::<Vec<_>>();
    for (bundle, others, requests) in [(&bundle, &globex, requests(&[12])), (&other, &acme, requests(&[11, 13, 14]))] {
        let reference = others.statement.reference.as_bytes();
        let raw = hex::decode(reference).unwrap();
        let named = [others.statement.tenant.as_bytes(), reference, &raw];
        assert!(named.iter().all(|name| !holds(bundle, name)), "{}", others.statement.tenant);
        for request in requests {
            let text = RequestId::from_bytes(request).to_string();
            assert!(!holds(bundle, &request) && !holds(bundle, text.as_bytes()), "{text}");
        }
    }
}

#[tokio::test]
async fn a_time_within_is_closed_at_both_ends() {
    let log = real().await;
    let all = parts(log.dir.path(), "acme", 0, u64::MAX);
    let times: Vec<u64> = all.entries.iter().filter_map(|one| Some(decoded(one)?.head.wall_us)).collect();
    let within = parts(log.dir.path(), "acme", times[1], times[times.len() - 2]);
    let report = check(&within.bundle(), &within.key).unwrap();
    assert!(!report.unchecked.contains(&BundleUnchecked::End));
    let complete = &report.facts.completeness;
    // The one that is withheld has a number, too.
    assert_eq!(
        (complete.first_number, complete.last_number, complete.entries),
        (1, times.len() as u64 - 1, times.len() as u64 - 1)
    );
    assert_eq!((report.facts.responses.opened_before, report.facts.responses.not_sealed), (1, 1));
    // Without the one before or after it is another claim, and one of them is refused.
    let mut cut = parts(log.dir.path(), "acme", times[1], times[times.len() - 2]);
    cut.entries.pop();
    assert!(check(&cut.bundle(), &cut.key).unwrap().unchecked.contains(&BundleUnchecked::End));
    cut.entries.remove(0);
    refused(&cut.bundle(), &cut.key, "time", "the entry before the time is missing");
    let mut wide = parts(log.dir.path(), "acme", 0, u64::MAX);
    (wide.statement.from_us, wide.statement.to_us) = (times[2], times[3]);
    refused(&wide.bundle(), &wide.key, "time", "more entries outside of the time");
    (wide.statement.from_us, wide.statement.to_us) = (0, 1);
    wide.entries.truncate(1);
    refused(&wide.bundle(), &wide.key, "time", "no entry of the time");
}

fn decoded(proven: &ProvenEntry) -> Option<Entry> {
    let Content::Entry(bytes) = &proven.content else { return None };
    Some(Entry::decode(bytes).unwrap())
}

fn bytes_of(proven: &mut ProvenEntry) -> &mut Vec<u8> {
    let Content::Entry(bytes) = &mut proven.content else { panic!("withheld") };
    bytes
}

/// For what is done for its effect.
fn done<T>(_: T) {}

/// A lie, and the words of the check that finds it.
type Lie = (&'static str, &'static str, Box<dyn Fn(&mut Parts)>);

fn lie(check: &'static str, words: &'static str, lie: impl Fn(&mut Parts) + 'static) -> Lie {
    (check, words, Box::new(lie))
}

#[tokio::test]
async fn each_part_of_a_bundle_that_was_changed_is_named() {
    let log = real().await;
    let make = || parts(log.dir.path(), "acme", 0, u64::MAX);
    let globexs = parts(log.dir.path(), "globex", 0, u64::MAX).entries;
    let other_log = RealLog::open();
    other_log.streamed(&other_log.acme, 1).await;
    other_log.log.shutdown();
    let other = parts(other_log.dir.path(), "acme", 0, u64::MAX);
    let (other_note, other_certificate) = (other.note.clone(), other.certificate.clone());
    // With the report key in hand: what is signed is whatever the operator wants.
    let lies = [
        lie("chain", "expected was 3", |parts| done(parts.entries.remove(2))),
        lie("chain", "expected was 1", |parts| parts.entries.swap(1, 2)),
        lie("chain", "out of order", |parts| {
            let twice = parts.entries[2].clone();
            parts.entries.insert(3, twice);
        }),
        lie("chain", "is not of this tenant", move |parts| {
            let place = parts.entries.iter().position(|one| one.index > globexs[0].index).unwrap();
            parts.entries.insert(place, globexs[0].clone());
        }),
        lie("chain", "is not of this tenant", |parts| parts.statement.reference = "ab".repeat(16)),
        lie("time", "the entry before the time is missing", |parts| done(parts.entries.remove(0))),
        lie("inclusion", "is not proven", |parts| bytes_of(&mut parts.entries[1])[40] ^= 1),
        lie("inclusion", "is not proven", |parts| {
            let withheld = parts.entries.iter_mut().find(|one| matches!(one.content, Content::Withheld(_))).unwrap();
            withheld.content = Content::Withheld([1; 32]);
        }),
        lie("chain", "is not of this tenant", |parts| {
            let first = parts.entries[0].leaf();
            parts.entries[0].content = Content::Withheld(first.0);
        }),
        lie("chain", "is not of this tenant", |parts| {
            let last = parts.entries.last_mut().unwrap();
            last.content = Content::Withheld(last.leaf().0);
        }),
        lie("statement", "what is withheld", |parts| {
            let leaf = parts.entries[1].leaf();
            parts.entries[1].content = Content::Withheld(leaf.0);
        }),
        lie("statement", "what is withheld", |parts| parts.statement.withheld.clear()),
        lie("statement", "an incident that is withheld", |parts| parts.statement.withheld[0].request.push('x')),
        lie("story", "incidents do not agree", |parts| {
            parts.statement.withheld[0].request = RequestId::from_bytes([11; 16]).to_string();
        }),
        lie("inclusion", "is not proven", |parts| parts.entries[1].proof[0][3] ^= 1),
        lie("inclusion", "is not proven", |parts| done(parts.entries[1].proof.pop())),
        lie("inclusion", "is not proven", |parts| parts.entries[1].index += 1),
        lie("inclusion", "is not in a tree", |parts| parts.entries[1].index = u64::MAX),
        lie("checkpoint", "not signed by the expected key", move |parts| parts.note.clone_from(&other_note)),
        lie("checkpoint", "not", |parts| parts.note[ORIGIN_BYTES] ^= 1),
        lie("manifest", "not signed by the expected key", move |parts| {
            parts.certificate.clone_from(&other_certificate)
        }),
        lie("manifest", "give the key", |parts| parts.certificate = None),
        lie("name", "does not open", |parts| parts.statement.tenant = "initech".into()),
        lie("name", "does not open", |parts| {
            parts.statement.name = Some(NameOpening { entry: 1, salt: "00".repeat(32) });
        }),
        lie("name", "does not open", |parts| {
            parts.statement.name.as_mut().unwrap().entry = parts.entries[1].index;
        }),
        lie("statement", "the tenant's name", |parts| parts.statement.tenant = "<script>".into()),
        lie("statement", "the reference", |parts| parts.statement.reference.make_ascii_uppercase()),
        lie("statement", "the time", |parts| (parts.statement.from_us, parts.statement.to_us) = (5, 4)),
        lie("statement", "it has form 2", |parts| parts.statement.format = 2),
        lie("statement", "a time in it", |parts| {
            parts.statement.to_us = u64::MAX - 1;
            parts.statement.as_victim.push(victim_at(u64::MAX));
        }),
        lie("statement", "of self-tests", |parts| self_tests_are(parts, 1, 2, 0)),
        lie("statement", "of self-tests", |parts| self_tests_are(parts, 1, 0, 1)),
        lie("statement", "of self-tests", |parts| {
            (parts.statement.from_us, parts.statement.to_us) = (3, 8);
            parts.statement.as_victim.clear();
            self_tests_are(parts, 2, 0, 6);
        }),
    ];
    for (check_name, words, change) in lies {
        let mut parts = make();
        let key = parts.key.clone();
        change(&mut parts);
        refused(&parts.bundle(), &key, check_name, words);
    }
    // Reports that do not follow, signed all the same.
    for name in [REPORT_JSON, REPORT_HTML, REPORT_PDF, OSCAL, VERIFIER] {
        let parts = make();
        let mut files = parts.files();
        let mut bytes = files.get(name).unwrap().to_vec();
        let last = bytes.len() - 10;
        bytes[last] ^= 1;
        files.put(name, bytes);
        refused(&parts.sealed(files), &parts.key, "report", &format!("`{name}` does not follow"));
    }
    // And without the report key: whatever was changed, or taken out.
    for name in [STATEMENT, CHECKPOINT, ENTRIES, REPORT_JSON, REPORT_HTML, REPORT_PDF, OSCAL, VERIFIER] {
        let parts = make();
        let mut files = Files::from_archive(&parts.bundle()).unwrap();
        let mut bytes = files.get(name).unwrap().to_vec();
        bytes[7] ^= 1;
        files.put(name, bytes);
        refused(&files.to_archive().unwrap(), &parts.key, "manifest", &format!("`{name}` is not the file"));
    }
}

const ORIGIN_BYTES: usize = 3;

fn victim_at(detected_us: u64) -> VictimIncident {
    VictimIncident {
        id: "00".repeat(16),
        class: "foreign_page".into(),
        severity: "high".into(),
        state: "contained".into(),
        detected_us,
        updated_us: detected_us,
        bytes_released: 0,
        page: None,
        generation: None,
    }
}

#[tokio::test]
async fn a_file_that_is_missing_or_vouched_for_by_nobody_is_named() {
    let log = real().await;
    let parts = parts(log.dir.path(), "acme", 0, u64::MAX);
    let whole = Files::from_archive(&parts.bundle()).unwrap();
    for (name, _) in whole.iter() {
        let mut files = Files::default();
        whole.iter().filter(|(held, _)| *held != name).for_each(|(held, bytes)| files.put(held, bytes.to_vec()));
        let check_name = if name == CERTIFICATE { "manifest" } else { "files" };
        refused(
            &files.to_archive().unwrap(),
            &parts.key,
            check_name,
            if name == CERTIFICATE { "give the key" } else { name },
        );
        if name != MANIFEST && name != CERTIFICATE {
            files.put(name, Vec::new());
            refused(&files.to_archive().unwrap(), &parts.key, "manifest", name);
        }
    }
    // Somebody else's report key, and words of the log that are not for this.
    let stranger = LogSigner::from_seed(parts.report_key.name(), &[7; 32]).unwrap();
    let mut files = whole.clone();
    files.put(MANIFEST, sign_manifest(parts.key.name(), &files, &stranger).unwrap().into_bytes());
    refused(&files.to_archive().unwrap(), &parts.key, "manifest", "not signed by the expected key");
    let given = stranger.verifier_key();
    let beside = BundleEvidence { report_key: Some(&given), witnesses: None };
    assert!(check_bundle(&files.to_archive().unwrap(), &parts.key, beside, |_, _| {}).is_ok());
    for (origin, line) in [
        ("other.example", parts.report_key.verifier_key().to_string()),
        (parts.key.name(), parts.key.to_string()),
        (parts.key.name(), "nonsense".to_owned()),
    ] {
        let skey = std::fs::read_to_string(log.dir.path().join("keys/log.skey")).unwrap();
        let logs = LogSigner::parse(skey.trim_end()).unwrap();
        let word = sign_text(REPORT_KEY_PURPOSE, &report_key_text(origin, &line), &logs).unwrap();
        let mut files = parts.files();
        files.put(CERTIFICATE, word.into_bytes());
        refused(&parts.sealed(files), &parts.key, "manifest", "of another log");
    }
    // The checkpoint is the log's word, too, and not for a key.
    let mut files = parts.files();
    files.put(CERTIFICATE, parts.note.clone());
    refused(&parts.sealed(files), &parts.key, "manifest", "signed for something else");
}

#[tokio::test]
async fn what_another_version_rendered_is_said_to_be_unchecked() {
    let log = real().await;
    let mut parts = parts(log.dir.path(), "acme", 0, u64::MAX);
    parts.statement.rendering += 1;
    let mut files = parts.files();
    files.put(REPORT_HTML, b"another page".to_vec());
    let report = check(&parts.sealed(files), &parts.key).unwrap();
    assert!(report.unchecked.contains(&BundleUnchecked::Report) && !report.passed.contains(&"report"));
    assert_eq!(report.facts.responses.sealed, 3, "figures are made of the entries");
    parts.statement.name = None;
    assert!(check(&parts.bundle(), &parts.key).unwrap().unchecked.contains(&BundleUnchecked::Name));
}

#[tokio::test]
async fn a_flipped_byte_anywhere_in_a_bundle_is_found() {
    let log = RealLog::open();
    log.whole(&log.acme, 11).await;
    log.log.shutdown();
    let parts = parts(log.dir.path(), "acme", 0, u64::MAX);
    let (bundle, key) = (parts.bundle(), parts.key.clone());
    assert!(check(&bundle, &key).is_ok());
    // Every byte up to the reports; of these, which one digest each covers, every eleventh, and so of every header some.
    let page = bundle.windows(15).position(|window| window == b"<!doctype html>").unwrap();
    let places = (0..page).chain((page..bundle.len()).step_by(11)).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        for half in places.chunks(places.len().div_ceil(2)) {
            let (bundle, key) = (&bundle, &key);
            scope.spawn(move || {
                let mut changed = bundle.clone();
                for place in half.iter().copied() {
                    changed[place] ^= 1 << (place % 8);
                    assert!(check(&changed, key).is_err(), "byte {place}");
                    changed[place] = bundle[place];
                }
            });
        }
    });
}

fn self_tests_are(parts: &mut Parts, tests: u64, failed: u64, longest_gap_us: u64) {
    parts.statement.self_tests = Some(StatedSelfTests { tests, failed, longest_gap_us });
}

/// A bundle of acme's in a forged log, with the report that honest code makes of it.
fn forged_parts(forge: &Forge) -> Parts {
    let (files, checkpoint) = forge.files();
    let tree = TiledTree::new(checkpoint.size, checkpoint.root, &files);
    let mut entries = Vec::new();
    for (index, bytes) in (0_u64..).zip(&forge.entries) {
        if Entry::decode(bytes).unwrap().head.tenant.is_some_and(|link| link.tenant == ACME) {
            let proof = tree.prove_inclusion(index).unwrap().iter().map(|hash| hash.0).collect();
            entries.push(ProvenEntry { index, content: Content::Entry(bytes.clone()), proof });
        }
    }
    let report_key = LogSigner::from_seed(&format!("{}/report", forged::ORIGIN), &[43; 32]).unwrap();
    let text = report_key_text(forged::ORIGIN, &report_key.verifier_key().to_string());
    let note = Checkpoint::sign(&checkpoint, &signer()).unwrap().into_bytes();
    Parts {
        key: signer().verifier_key(),
        note,
        statement: audit_evidence::Statement {
            format: audit_evidence::FORMAT,
            rendering: audit_evidence::RENDERING,
            program: "test".to_owned(),
            made_us: 1_796_000_000_000_000,
            tenant: "acme".to_owned(),
            reference: hex::encode(ACME),
            from_us: 0,
            to_us: u64::MAX,
            name: Some(NameOpening { entry: 1, salt: hex::encode([22; 32]) }),
            withheld: Vec::new(),
            as_victim: Vec::new(),
            side_channels: Vec::new(),
            self_tests: None,
        },
        entries,
        report_key,
        certificate: Some(sign_text(REPORT_KEY_PURPOSE, &text, &signer()).unwrap().into_bytes()),
    }
}

/// Somebody has a key that was dropped, and vouches with it for a report key of his own.
#[test]
fn a_key_that_was_dropped_vouches_for_no_bundle() {
    let next = LogSigner::from_seed(forged::ORIGIN, &[2; 32]).unwrap();
    let mut forge = Forge::new();
    forge.answer(ACME, 1);
    let (before, old) = (forge.files().1, forged_parts(&forge));
    forge.begin(&signer(), &next);
    let checkpoint = forge.files().1;
    let begun = SignedRotation::sign(RotationStage::Begin, &signer(), &next, before.size, before.root).unwrap();
    let mut keys = KeyChain::new(signer().verifier_key());
    keys.follow(&begun).unwrap();
    let mut parts = forged_parts(&forge);
    let word = |by: &LogSigner, parts: &Parts| {
        let text = report_key_text(forged::ORIGIN, &parts.report_key.verifier_key().to_string());
        Some(sign_text(REPORT_KEY_PURPOSE, &text, by).unwrap().into_bytes())
    };
    let check = |parts: &Parts| {
        let checked = check_bundle(&parts.bundle(), &keys, BundleEvidence::default(), |_, _| {});
        checked.map(|report| report.signed_by).map_err(|refusal| refusal.to_string())
    };
    parts.note = checkpoint.sign_with(&[&signer(), &next]).unwrap().into_bytes();
    let dropped = check(&parts).unwrap_err();
    assert!(dropped.contains("a key that the log, of 4 entries, does not have any more"), "{dropped}");
    parts.certificate = word(&next, &parts);
    assert_eq!(check(&parts), Ok(vec![signer().verifier_key(), next.verifier_key()]));
    parts.note = checkpoint.sign(&signer()).unwrap().into_bytes();
    let alone = check(&parts).unwrap_err();
    assert!(alone.contains("of 4 entries is not signed by the key that the log has at this size"), "{alone}");
    // What was made before holds as it did.
    assert_eq!(check(&old), Ok(vec![signer().verifier_key()]));
}

#[track_caller]
fn forged_refused(forge: &Forge, check_name: &str, words: &str) {
    let parts = forged_parts(forge);
    refused(&parts.bundle(), &parts.key, check_name, words);
}

fn state(incident: [u8; 16], sequence: u64, previous: Digest, state: IncidentStage) -> Body {
    let (action, notice) = (Containment::None, None);
    Body::IncidentState(IncidentState {
        incident,
        sequence,
        previous,
        state,
        actor: Some([1; 16]),
        second: None,
        evidence: None,
        action,
        notice,
    })
}

#[test]
fn what_a_dishonest_operator_wrote_into_the_chain_is_named() {
    let mut honest = Forge::new();
    honest.answer(ACME, 1);
    honest.answer(GLOBEX, 2);
    honest.answer(ACME, 3);
    let parts = forged_parts(&honest);
    check(&parts.bundle(), &parts.key).unwrap();
    let link = |number, previous| Some(TenantLink { tenant: ACME, number, previous });

    let with = |lie: &dyn Fn(&mut Forge, (u64, Digest))| {
        let mut forge = Forge::new();
        let at = forge.add(Some(ACME), opened(1));
        lie(&mut forge, at);
        forge
    };
    forged_refused(
        &with(&|forge, (_, leaf)| done(forge.add_linked(link(2, leaf), opened(2)))),
        "chain",
        "expected was 1",
    );
    forged_refused(
        &with(&|forge, _| done(forge.add_linked(link(1, Digest([9; 32])), opened(2)))),
        "chain",
        "does not name",
    );
    let foreign = |forge: &mut Forge, at| {
        let lie = |sealing: &mut audit_provenance::Sealing| sealing.pages.foreign = 1;
        done(forge.add(Some(ACME), sealed(1, at, lie)));
    };
    forged_refused(&with(&foreign), "story", "1 foreign pages were read");
    let twice = |forge: &mut Forge, at| {
        forge.add(Some(ACME), sealed(1, at, |_| {}));
        done(forge.add(Some(ACME), sealed(1, at, |_| {})));
    };
    forged_refused(&with(&twice), "story", "does not belong");
    let elsewhere = |forge: &mut Forge, (index, _): (u64, Digest)| {
        done(forge.add(Some(ACME), sealed(1, (index, Digest([1; 32])), |_| {})))
    };
    forged_refused(&with(&elsewhere), "story", "does not belong");
    let reopened = |forge: &mut Forge, _| done(forge.add(Some(ACME), opened(1)));
    forged_refused(&with(&reopened), "story", "does not belong");
    let untold = |forge: &mut Forge, at| {
        forge.add(Some(ACME), incident(1, at));
        done(forge.add(Some(ACME), sealed(1, at, |_| {})));
    };
    forged_refused(&with(&untold), "story", "incidents do not agree");
    let without = |forge: &mut Forge, at| {
        done(forge.add(Some(ACME), sealed(1, at, |sealing| sealing.reason = SealReason::Isolation)))
    };
    forged_refused(&with(&without), "story", "incidents do not agree");
    let fault = |forge: &mut Forge, at: (u64, Digest)| {
        let request = RequestId::from_bytes([1; 16]);
        let class = EngineFaultClass::Internal;
        forge.add(
            Some(ACME),
            Body::Fault(EngineFault {
                class,
                steps: 0,
                bytes_released: 0,
                request,
                opened_index: at.0,
                opened_leaf: at.1,
            }),
        );
        done(forge.add(Some(ACME), sealed(1, at, |_| {})));
    };
    forged_refused(&with(&fault), "story", "faults do not agree");
    let skipped = |forge: &mut Forge, at| {
        let (_, leaf) = forge.add(Some(ACME), incident(1, at));
        done(forge.add(Some(ACME), state([0x1c; 16], 2, leaf, IncidentStage::Triaged)));
    };
    forged_refused(&with(&skipped), "story", "where 1 was due");
    let differs = |outcome, moved: i64| {
        move |forge: &mut Forge, at: (u64, Digest)| {
            let (index, leaf) = forge.add(Some(ACME), sealed(1, at, |_| {}));
            let sealed_index = index.checked_add_signed(moved).unwrap();
            let replay = Replay {
                request: RequestId::from_bytes([1; 16]),
                sealed_index,
                sealed_leaf: leaf,
                outcome,
                tokens: 3,
                first_difference: None,
                when: ReplayTime::AfterRelease,
                cpu_us: 1,
            };
            forge.add(Some(ACME), Body::Replay(replay));
        }
    };
    forged_refused(&with(&differs(ReplayOutcome::Different, 0)), "story", "replay do not agree");
    forged_refused(&with(&differs(ReplayOutcome::Same, -1)), "story", "replay do not agree");
    let parts = forged_parts(&with(&differs(ReplayOutcome::Same, 0)));
    assert_eq!(check(&parts.bundle(), &parts.key).unwrap().facts.replays.same, 1);
}
