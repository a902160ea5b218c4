//! Logs with everything in order but what only somebody sees who reads the traces, and keeps a table of whose each page was.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../../verify/tests/forged/mod.rs"]
mod forged;

use audit_auditor::{Audited, Auditor, Examined, WITHOUT_TRACE_PERCENT};
use audit_provenance::{
    Body, ChunkRun, DetectorTrial, PageClass, PageRun, Prune, SealReason, SelfTest, TenantRef, Trace,
};
use audit_tlog::{AddCheckpoint, Checkpoint, LogSigner};
use audit_verify::SelfTests;
use audit_witness::{Answer, Witness, make_key};
use forged::{ACME, Forge, GLOBEX, incident, opened, sealed, signer, trace};
use policies_domain::{Generation, PageId, Trial};
use std::path::Path;
use tempfile::TempDir;

/// A log that is forged entry by entry, with its traces.
struct Made {
    folder: TempDir,
    forge: Forge,
    traces: Vec<u8>,
}

impl Made {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), forge: Forge::new(), traces: Vec::new() }
    }

    /// The end of an answer with this trace, which is kept.
    fn answer(&mut self, tenant: TenantRef, request: u8, trace: &Trace) {
        let at = self.forge.add(Some(tenant), opened(request));
        let bytes = trace.encode();
        let (own, public) = [PageClass::Own, PageClass::Public]
            .map(|class| trace.pages.iter().filter(|run| run.class == class).count() as u64)
            .into();
        let body = sealed(request, at, |sealing| {
            sealing.trace = Some(Trace::root(&bytes));
            (sealing.pages.own, sealing.pages.public) = (own, public);
        });
        let (index, _) = self.forge.add(Some(tenant), body);
        self.keep(index, &bytes);
    }

    fn keep(&mut self, index: u64, trace: &[u8]) {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&index.to_be_bytes()), trace);
        self.traces.extend((trace.len() as u32).to_be_bytes());
        self.traces.extend(sum.to_be_bytes());
        self.traces.extend(index.to_be_bytes());
        self.traces.extend(trace);
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes all files as they would be now.
    fn write(&self) -> Checkpoint {
        self.forge.write(self.path());
        std::fs::create_dir_all(self.path().join("traces")).unwrap();
        std::fs::write(self.path().join("traces/00000000000000000000"), &self.traces).unwrap();
        self.forge.files().1
    }

    fn auditor(&self) -> Auditor {
        Auditor::new(self.path(), signer().verifier_key(), 100)
    }

    fn audited(&self) -> Result<Audited, String> {
        said(self.auditor().audit(&self.write(), |_| {}))
    }
}

/// An objection's words.
fn said(audited: Result<Audited, Examined>) -> Result<Audited, String> {
    audited.map_err(|examined| match examined {
        Examined::Refused(objection) => objection,
        Examined::Unable(reason) => panic!("{reason}"),
    })
}

/// One page, read in all three steps, and three chunks.
fn reads(page: u32, generation: u32, class: PageClass) -> Trace {
    let run = PageRun { page: PageId(page), generation: Generation(generation), class, first_step: 0, last_step: 2 };
    Trace { pages: vec![run], chunks: trace().chunks }
}

#[test]
fn a_sound_log_is_read_as_it_grows() {
    let mut made = Made::new();
    let auditor = made.auditor();
    let mut checkpoints = Vec::new();
    // Beyond the first bundle, with every kind of width in between.
    for number in 0..200 {
        let tenant = if number % 2 == 0 { ACME } else { GLOBEX };
        made.answer(tenant, number + 1, &reads(number.into(), 1, PageClass::Own));
        if number % 37 == 0 {
            let checkpoint = made.write();
            let audited = auditor.audit(&checkpoint, |_| {}).unwrap();
            assert_eq!((audited.entries, audited.responses), (checkpoint.size, u64::from(number) + 1));
            assert_eq!((audited.without_trace, audited.stopped), (0, 0));
            checkpoints.push(checkpoint);
        }
    }
    let checkpoint = made.write();
    let audited = auditor.audit(&checkpoint, |_| {}).unwrap();
    assert_eq!((audited.entries, audited.responses, audited.without_trace), (401, 200, 0));
    assert_eq!(auditor.audit(&checkpoint, |_| {}), Ok(audited), "the same checkpoint again");
    assert_eq!(made.audited(), Ok(audited), "and from the beginning");
}

#[test]
fn self_tests_are_counted_and_nothing_is_objected_to_for_them() {
    let mut made = Made::new();
    for works in [true, false, true] {
        let trial = Trial { control_passed: true, fault_found: works };
        let detectors = vec![DetectorTrial { detector: "gate".to_owned(), trial }];
        let incident = if works { None } else { Some([9; 16]) };
        made.forge.add(None, Body::SelfTest(SelfTest { incident, detectors }));
    }
    made.answer(ACME, 1, &reads(4, 1, PageClass::Own));
    let audited = made.audited().unwrap();
    let SelfTests { tests, failed, longest_gap_us, .. } = audited.self_tests;
    assert_eq!((tests, failed, longest_gap_us, audited.responses), (3, 1, 1_000, 1));
}

#[test]
fn one_life_of_a_page_belongs_to_one_tenant() {
    let two = |second: &Trace, tenant| {
        let mut made = Made::new();
        made.answer(ACME, 1, &reads(4, 1, PageClass::Own));
        made.answer(tenant, 2, second);
        made.audited()
    };
    assert!(two(&reads(4, 1, PageClass::Own), ACME).is_ok(), "its own again");
    assert!(two(&reads(4, 2, PageClass::Own), GLOBEX).is_ok(), "another life");
    let objection = two(&reads(4, 1, PageClass::Own), GLOBEX).unwrap_err();
    assert_eq!(objection, "entry 4: page 4 was another's in its life 1, as an earlier response says");
    assert!(two(&reads(4, 1, PageClass::Public), GLOBEX).unwrap_err().starts_with("entry 4: page 4 was another's"));
}

#[test]
fn a_trace_is_the_one_of_its_entry_and_says_the_same() {
    let with = |trace: &Trace, kept: &Trace| {
        let mut made = Made::new();
        let at = made.forge.add(Some(ACME), opened(1));
        let body = sealed(1, at, |sealing| {
            sealing.trace = Some(Trace::root(&trace.encode()));
            sealing.pages.own = 1;
        });
        let (index, _) = made.forge.add(Some(ACME), body);
        made.keep(index, &kept.encode());
        made.audited()
    };
    let right = reads(4, 1, PageClass::Own);
    assert!(with(&right, &right).is_ok());
    let other = with(&right, &reads(5, 1, PageClass::Own)).unwrap_err();
    assert_eq!(other, "entry 2: the trace is not the one that was sealed");
    let foreign = reads(4, 1, PageClass::Other);
    assert_eq!(with(&foreign, &foreign).unwrap_err(), "entry 2: the trace has other page counts than the entry");
    let run = |first_step, stride| ChunkRun { chunks: 3, first_step, stride, span: 0 };
    for chunks in [
        vec![run(5, 0)],
        vec![run(0, 2)],
        vec![ChunkRun { chunks: 2, ..run(1, 0) }, ChunkRun { chunks: 1, ..run(0, 0) }],
    ] {
        let invented = Trace { chunks, ..right.clone() };
        let objection = with(&invented, &invented).unwrap_err();
        assert_eq!(objection, "entry 2: a chunk comes from steps that are not its response's");
    }
}

#[test]
fn a_lost_trace_is_counted_and_takes_no_other_with_it() {
    let mut made = Made::new();
    for number in 1..=4 {
        let before = made.traces.len();
        made.answer(ACME, number, &reads(number.into(), 1, PageClass::Own));
        if number == 2 {
            made.traces.truncate(before);
        }
    }
    let audited = made.audited().unwrap();
    assert_eq!((audited.responses, audited.without_trace), (4, 1));
    // A damaged one is stepped over; behind a damaged length nothing can be told apart.
    let middle = made.traces.len() / 2;
    made.traces[middle] ^= 1;
    assert_eq!(made.audited().unwrap().without_trace, 2);
    made.traces[2] ^= 1;
    assert_eq!(made.audited().unwrap().without_trace, 4);
    made.traces.clear();
    assert_eq!(made.audited().unwrap().without_trace, 4);
}

#[test]
fn traces_that_the_log_says_to_be_dropped_for_their_age_are_no_objection() {
    const DAY_US: u64 = 24 * 3_600 * 1_000_000;
    let mut made = Made::new();
    let answers = |made: &mut Made, numbers: std::ops::Range<u8>| {
        for number in numbers {
            made.answer(ACME, number, &reads(number.into(), 1, PageClass::Own));
        }
    };
    answers(&mut made, 1..21);
    let (before, newest_us) = (made.forge.entries.len() as u64, forged::START_US + 60_000);
    made.traces.clear();
    made.forge.later_us = 3 * DAY_US;
    answers(&mut made, 21..31);
    let audit = |made: &Made| {
        let checkpoint = made.write();
        said(Auditor::new(made.path(), signer().verifier_key(), WITHOUT_TRACE_PERCENT).audit(&checkpoint, |_| {}))
    };
    assert!(audit(&made).unwrap_err().starts_with("20 of 30 responses have no trace"));
    made.forge.add(None, Body::Prune(Prune { before, newest_us, retention_days: 2 }));
    let audited = audit(&made).unwrap();
    assert_eq!((audited.responses, audited.without_trace, audited.pruned), (30, 0, 20));
    // What came after is not covered by it.
    made.traces.clear();
    assert!(audit(&made).unwrap_err().starts_with("10 of 30 responses have no trace"));
}

#[test]
fn a_feed_that_is_not_there_is_an_objection_that_ends_when_it_is_not_asked_for() {
    let mut made = Made::new();
    for number in 1..=200 {
        made.answer(ACME, number, &reads(number.into(), 1, PageClass::Own));
    }
    let checkpoint = made.write();
    let feeds = made.path().join("feeds");
    let objection = said(made.auditor().audit(&checkpoint, |_| {}).and_then(|audited| {
        assert_eq!((audited.fed, audited.unfed), (0, 0), "nobody asked for it");
        Auditor::new(made.path(), signer().verifier_key(), WITHOUT_TRACE_PERCENT)
            .with_feeds(&feeds)
            .audit(&checkpoint, |_| {})
    }));
    let wanted = "of 200 of 200 responses the engine's feed does not have all, more than 1 in 100";
    assert_eq!(objection.unwrap_err(), wanted);
}

#[test]
fn traces_that_are_taken_away_are_an_objection_and_a_few_that_are_lost_are_none() {
    let mut made = Made::new();
    for number in 1..=200 {
        made.answer(ACME, number, &reads(number.into(), 1, PageClass::Own));
    }
    let checkpoint = made.write();
    let audit = || Auditor::new(made.path(), signer().verifier_key(), WITHOUT_TRACE_PERCENT).audit(&checkpoint, |_| {});
    assert!(audit().is_ok());
    let file = made.path().join("traces/00000000000000000000");
    let frame = made.traces.len() / 200;
    for (lost, is_objection) in [(1, false), (2, false), (4, true), (200, true)] {
        // A response's trace has the length of its numbers; what is cut in the middle of one takes that one along.
        std::fs::write(&file, &made.traces[..made.traces.len() - lost * frame]).unwrap();
        let audited = audit();
        assert_eq!(audited.is_err(), is_objection, "{lost}: {audited:?}");
        if let Err(examined) = audited {
            let objection = said(Err(examined)).unwrap_err();
            assert!(
                objection.ends_with("have no trace, more than 1 in 100: their pages cannot be checked"),
                "{objection}"
            );
        }
    }
}

#[test]
fn a_trace_that_was_read_ahead_and_never_counted_is_no_objection() {
    let mut made = Made::new();
    made.answer(ACME, 1, &reads(4, 1, PageClass::Own));
    let (first, kept) = (made.write(), made.traces.clone());
    // Of an entry that a crash will take back.
    made.keep(4, &reads(77, 1, PageClass::Own).encode());
    std::fs::write(made.path().join("traces/00000000000000000000"), &made.traces).unwrap();
    let auditor = made.auditor();
    assert!(auditor.audit(&first, |_| {}).is_ok());
    made.traces = kept;
    made.answer(GLOBEX, 2, &reads(5, 1, PageClass::Own));
    let audited = said(auditor.audit(&made.write(), |_| {})).unwrap();
    assert_eq!((audited.responses, audited.without_trace), (2, 0));
}

#[test]
fn a_response_that_was_stopped_is_no_objection_and_one_that_was_not_is() {
    let with = |reason, has_incident| {
        let mut made = Made::new();
        let at = made.forge.add(Some(ACME), opened(1));
        if has_incident {
            made.forge.add(Some(ACME), incident(1, at));
        }
        let read = Trace { chunks: Vec::new(), ..reads(4, 1, PageClass::Other) };
        let body = sealed(1, at, |sealing| {
            (sealing.reason, sealing.chunks) = (reason, 0);
            (sealing.pages.own, sealing.pages.foreign) = (0, 1);
            sealing.trace = Some(Trace::root(&read.encode()));
        });
        let (index, _) = made.forge.add(Some(ACME), body);
        made.keep(index, &read.encode());
        made.audited()
    };
    assert_eq!(with(SealReason::Isolation, true).unwrap().stopped, 1);
    assert!(with(SealReason::Isolation, false).is_err(), "no incident");
    assert!(with(SealReason::Stop, false).is_err(), "not stopped");
}

#[test]
fn what_is_objected_to_is_not_cosigned_now_or_later() {
    let data = tempfile::tempdir().unwrap();
    let key = make_key(data.path(), "auditor.example").unwrap();
    let mut made = Made::new();
    let mut witness = Witness::open(data.path(), vec![signer().verifier_key()]).unwrap();
    assert!(witness.examine(forged::ORIGIN, Box::new(made.auditor())));
    assert!(!witness.examine("other.example", Box::new(made.auditor())), "it is not followed");
    let ask = |made: &Made, old_size: u64| {
        let checkpoint = made.write();
        let files = made.forge.files().0;
        let tree = audit_tlog::TiledTree::new(checkpoint.size, checkpoint.root, &files);
        let proof = if old_size == 0 { Vec::new() } else { tree.prove_consistency(old_size).unwrap() };
        let note = checkpoint.sign(&signer()).unwrap();
        let answer = witness.add_checkpoint(AddCheckpoint { old_size, proof, checkpoint: note }.encode().as_bytes(), 1);
        (checkpoint, answer)
    };
    made.answer(ACME, 1, &reads(4, 1, PageClass::Own));
    let (first, Answer::Cosigned(line)) = ask(&made, 0) else { panic!("it is sound") };
    assert!(key.find(&first, line.as_bytes()).unwrap().is_some());
    made.answer(GLOBEX, 2, &reads(4, 1, PageClass::Own));
    assert!(matches!(ask(&made, first.size).1, Answer::Refused(_)));
    made.answer(GLOBEX, 3, &reads(5, 1, PageClass::Own));
    let Answer::Refused(objection) = ask(&made, first.size).1 else { panic!("it stays") };
    assert!(objection.starts_with("entry 4: page 4 was another's"), "{objection}");
    // Nor by one that reads it anew.
    assert!(made.audited().is_err());
}

#[test]
fn a_log_that_changed_its_key_is_audited_under_either_and_under_no_other() {
    let key = |seed| LogSigner::from_seed(forged::ORIGIN, &[seed; 32]).unwrap();
    let (former, next, stranger) = (signer(), key(2), key(9));
    let mut made = Made::new();
    made.answer(ACME, 1, &reads(4, 1, PageClass::Own));
    made.forge.begin(&former, &next);
    made.answer(ACME, 2, &reads(5, 1, PageClass::Own));
    let checkpoint = made.write();
    let audited = |checkpoint: &Checkpoint, key: &LogSigner, by: &[&LogSigner]| {
        let auditor = Auditor::new(made.path(), key.verifier_key(), 100);
        let audited = said(auditor.audit(checkpoint, |_| {}))?;
        let note = checkpoint.sign_with(by).unwrap();
        said(auditor.is_signed(checkpoint, note.as_bytes()).map(|()| audited))
    };
    for known in [&former, &next] {
        assert_eq!(audited(&checkpoint, known, &[&former, &next]).unwrap().entries, 6);
        let newest = "the checkpoint is not signed by the newest key that its entries name";
        assert_eq!(audited(&checkpoint, known, &[&former]).unwrap_err(), newest);
        let alone = audited(&checkpoint, known, &[&next]).unwrap_err();
        assert!(alone.contains("is not signed by the former one as well"), "{alone}");
    }
    let objection = audited(&checkpoint, &stranger, &[&former, &next]).unwrap_err();
    assert_eq!(objection, "the given key is neither the log's first one nor one that its entries name");
    // Behind its end a witness that audits takes the next key's word, and the former one's not.
    made.forge.finish(&former, &next);
    made.answer(ACME, 3, &reads(6, 1, PageClass::Own));
    let checkpoint = made.write();
    let folder = tempfile::tempdir().unwrap();
    make_key(folder.path(), "auditor.example/a1").unwrap();
    let keys = vec![former.verifier_key(), next.verifier_key()];
    let mut witness = Witness::open(folder.path(), keys).unwrap();
    witness.examine(forged::ORIGIN, Box::new(Auditor::new(made.path(), former.verifier_key(), 100)));
    let ask = |by: &[&LogSigner]| {
        let checkpoint = checkpoint.sign_with(by).unwrap();
        let request = AddCheckpoint { old_size: 0, proof: Vec::new(), checkpoint };
        witness.add_checkpoint(request.encode().as_bytes(), 1_796_000_000)
    };
    assert!(matches!(ask(&[&former]), Answer::Refused(reason) if reason.contains("newest key")));
    assert!(matches!(ask(&[&next]), Answer::Cosigned(_)));
}

#[test]
fn a_folder_that_cannot_be_read_is_read_again() {
    let mut made = Made::new();
    made.answer(ACME, 1, &reads(4, 1, PageClass::Own));
    let checkpoint = made.write();
    let entries = made.path().join("tile/entries");
    let aside = made.path().join("aside");
    std::fs::rename(&entries, &aside).unwrap();
    let auditor = made.auditor();
    let unable = auditor.audit(&checkpoint, |_| {}).unwrap_err();
    assert!(
        matches!(&unable, Examined::Unable(reason) if reason.starts_with("the log could not be read: ")),
        "{unable:?}"
    );
    std::fs::rename(&aside, &entries).unwrap();
    assert_eq!(auditor.audit(&checkpoint, |_| {}).unwrap().entries, 3);
    let other = Checkpoint { root: audit_tlog::Edge::new().root(), ..checkpoint };
    let refused = said(auditor.audit(&other, |_| {})).unwrap_err();
    assert_eq!(refused, "the entries have another root hash than the checkpoint of 3 entries");
}
