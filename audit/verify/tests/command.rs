//! The command as a user types it: exit status, words, JSON.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod made_bundle;
mod real_log;

use audit_provenance::Disclosure;
use audit_tlog::{Checkpoint, Cosigner, Hash, LogSigner, TlogProof, VerifierKey};
use policies_domain::{Label, TenantId};
use real_log::{REQUEST_BODY, RealLog};
use std::path::Path;
use std::process::Command;

fn run(arguments: &[&str], folder: &Path) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_bulkhead-verify")).args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn a_receipt_is_checked_with_everything_at_hand() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("r.tlog-proof", log.receipt(&log.acme, 1).as_bytes());
    write("request.json", REQUEST_BODY);
    write("response.sse", events.as_bytes());

    let evidence = ["receipt", "r.tlog-proof", "--request", "request.json", "--response", "response.sse"];
    let (status, _, errors) = run(&evidence, folder.path());
    assert_eq!(status, 2);
    assert!(errors.contains("without the key of the log that you trust, a signature proves nothing"), "{errors}");

    let key = log.log.verifier_key();
    let (status, text, _) = run(&[&evidence[..], &["--key", &key]].concat(), folder.path());
    assert_eq!(status, 0, "{text}");
    assert!(text.contains(&format!("fingerprint sha256 {}\n", "03".repeat(32))), "{text}");
    for word in ["genuine", "as given", "acme", "label gate", "page tags in the kernels", "0 foreign", "response\n"] {
        assert!(text.contains(word), "no `{word}` in\n{text}");
    }
    assert!(!text.contains("unchecked") && !text.contains("not checked"), "{text}");

    std::fs::copy(log.key_file(), folder.path().join("log.vkey")).unwrap();
    let (status, text, _) = run(&["receipt", "r.tlog-proof", "--extract-entry", "entry.cbor"], folder.path());
    assert_eq!(status, 0);
    assert!(text.contains("trust it as far as you trust where that file came from"), "{text}");
    for part in ["request commitment: give --request FILE", "response commitment: give --response FILE", "chunk chain"]
    {
        assert!(text.contains(&format!("unchecked   {part}")), "no `{part}` in\n{text}");
    }
    assert!(text.contains("it was not checked against the request and the response\n"), "{text}");
    assert!(folder.path().join("entry.cbor").metadata().unwrap().len() > 300);

    let (status, text, _) = run(&["receipt", "r.tlog-proof", "--json"], folder.path());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, text.lines().count()), (0, 1));
    assert_eq!((value["result"].as_str(), value["key_given"].as_bool()), (Some("genuine"), Some(false)));
    assert_eq!(value["unchecked"], serde_json::json!(["request", "response", "chunks"]));
    assert_eq!(value["fingerprint"], "03".repeat(32));
    assert_eq!((value["tenant"].as_str(), value["pages"]["foreign"].as_u64()), (Some("acme"), Some(0)));

    write("response.sse", events.replace("be", "me").as_bytes());
    let (status, text, _) = run(&evidence, folder.path());
    assert_eq!(status, 1);
    assert!(text.contains("REFUSED") && text.contains("check       response"), "{text}");
    let (status, text, _) = run(&[&evidence[..], &["--json"]].concat(), folder.path());
    assert_eq!((status, text.contains("\"check\":\"response\"")), (1, true), "{text}");
}

#[tokio::test]
async fn wrong_usage_is_told_apart_from_a_refusal() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r");
    std::fs::write(&path, log.receipt(&log.acme, 1)).unwrap();
    let status = |arguments: &[&str]| run(arguments, folder.path());
    assert_eq!(status(&["receipt", "missing", "--key", &log.log.verifier_key()]).0, 2);
    assert!(status(&["receipt", "r", "--key", "nonsense"]).2.contains("neither a verifier key nor a file"));
    std::fs::write(folder.path().join("bad.vkey"), "nonsense").unwrap();
    assert_eq!(status(&["receipt", "r", "--key", "bad.vkey"]).0, 2);
    std::fs::write(folder.path().join("huge"), vec![b'a'; 2_000_000]).unwrap();
    let (code, _, errors) = status(&["receipt", "huge", "--key", &log.log.verifier_key()]);
    assert!(code == 2 && errors.contains("longer than"), "{errors}");
    assert_eq!(status(&["receipt"]).0, 2);
    assert_eq!(status(&["log", "nowhere"]).0, 2);
    std::fs::write(folder.path().join("empty"), "").unwrap();
    assert_eq!(status(&["receipt", "empty", "--key", &log.log.verifier_key()]).0, 1);
}

#[tokio::test]
async fn a_log_is_checked_and_summed_up() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.whole(&log.globex, 2).await;
    log.refused(&log.acme, 3, Label::of(TenantId::new(2).unwrap())).await;
    log.log.shutdown();
    let dir = log.dir.path().to_str().unwrap();
    let (status, text, errors) = run(&["log", dir], Path::new("/"));
    assert_eq!(status, 0, "{text}{errors}");
    assert!(text.contains("9: 1 genesis, 1 incident, 1 incident_state, 3 opened, 3 sealed"), "{text}");
    assert!(text.contains("1 isolation, 2 stop; 0 not sealed"), "{text}");
    let (status, text, _) = run(&["log", dir, "--json", "--key", &log.log.verifier_key()], Path::new("/"));
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, value["tree_size"].as_u64(), value["tenants"].as_u64()), (0, Some(9), Some(2)));

    let bundle = log.dir.path().join("tile/entries/000.p/9");
    let mut bytes = std::fs::read(&bundle).unwrap();
    bytes[700] ^= 1;
    std::fs::write(&bundle, bytes).unwrap();
    let (status, text, _) = run(&["log", dir], Path::new("/"));
    assert!(status == 1 && text.contains("REFUSED"), "{text}");
}

#[tokio::test]
async fn a_receipt_without_its_trace_is_not_said_to_show_pages() {
    let log = RealLog::open();
    let events = log.streamed(&log.acme, 1).await;
    let proof = TlogProof::parse(log.receipt(&log.acme, 1).as_bytes()).unwrap();
    let disclosure = Disclosure::decode(proof.extra.as_ref().unwrap()).unwrap();
    let bare = TlogProof { extra: Some(Disclosure { trace: None, ..disclosure }.encode()), ..proof };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    write("r", bare.encode().as_bytes());
    write("request.json", REQUEST_BODY);
    write("response.sse", events.as_bytes());
    let key = log.log.verifier_key();
    let evidence = ["receipt", "r", "--request", "request.json", "--response", "response.sse", "--key", &key];
    let (status, text, _) = run(&evidence, folder.path());
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("unchecked   trace: not available") && text.contains("unchecked   chunk chain"), "{text}");
    assert!(text.contains("the trace that would show each page is not available"), "{text}");
    assert!(!text.contains("every page") && !text.contains("trace, pages"), "{text}");
    let (_, text, _) = run(&[&evidence[..], &["--json"]].concat(), folder.path());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["unchecked"], serde_json::json!(["trace", "chunks"]));
    assert!(!value["verdict"].as_str().unwrap().contains("every page"), "{text}");
}

#[tokio::test]
async fn pipes_are_refused_and_not_waited_for() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("r"), log.receipt(&log.acme, 1)).unwrap();
    let pipe = |path: &Path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success(), "`mkfifo` failed");
    pipe(&folder.path().join("pipe"));
    let key = log.log.verifier_key();
    let with_key = |arguments: &[&str]| run(&[arguments, &["--key", &key]].concat(), folder.path());
    let refused = [
        with_key(&["receipt", "pipe"]),
        with_key(&["receipt", "r", "--request", "pipe"]),
        with_key(&["receipt", "r", "--response", "pipe"]),
        with_key(&["receipt", "r", "--extract-entry", "pipe"]),
        run(&["receipt", "r", "--key", "pipe"], folder.path()),
    ];
    for (status, text, errors) in refused {
        assert!(status == 2 && errors.contains("`pipe`: not a regular file"), "{text}{errors}");
    }
    for path in ["checkpoint", "tile/entries/000.p/3"] {
        let path = log.dir.path().join(path);
        let content = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        pipe(&path);
        let (status, text, errors) = with_key(&["log", log.dir.path().to_str().unwrap()]);
        assert!(status == 1 && text.contains("not a regular file"), "{text}{errors}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, content).unwrap();
    }
}

/// A cosignature of a note's checkpoint.
fn cosigned(note: &str, witness: &Cosigner, log: &str) -> String {
    let checkpoint = Checkpoint::open(note.as_bytes(), &VerifierKey::parse(log).unwrap()).unwrap();
    witness.cosign(&checkpoint, 1_796_000_000).unwrap()
}

#[tokio::test]
async fn a_receipt_counts_as_witnessed_with_the_quorum_that_is_asked_for() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    let key = log.log.verifier_key();
    let witnesses: Vec<Cosigner> =
        (1..=3).map(|n| Cosigner::from_seed(&format!("w{n}.example"), &[n; 32]).unwrap()).collect();
    let keys: Vec<String> = witnesses.iter().map(|witness| witness.verifier_key().to_string()).collect();
    let plain = log.receipt(&log.acme, 1);
    let note = TlogProof::parse(plain.as_bytes()).unwrap().checkpoint;
    let lines: Vec<String> = witnesses.iter().map(|witness| cosigned(&note, witness, &key)).collect();
    let folder = tempfile::tempdir().unwrap();
    let check = |receipt: &str, arguments: &[&str]| {
        std::fs::write(folder.path().join("r"), receipt).unwrap();
        let (status, text, errors) = run(&[&["receipt", "r", "--key", &key], arguments].concat(), folder.path());
        (status, text + &errors)
    };
    let two = format!("{plain}{}{}", lines[0], lines[1]);
    let (status, text) = check(&two, &["--witness", &keys[0], "--witness", &keys[1]]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("witnesses   w1.example (2026-11-30 00:53:20.000 UTC), w2.example ("), "{text}");
    assert!(text.contains("format, signature, witnesses, inclusion"), "{text}");
    let all = ["--witness", &keys[0], "--witness", &keys[1], "--witness", &keys[2]];
    let (status, text) = check(&two, &all);
    assert!(status == 1 && text.contains("check       witnesses") && text.contains("2 of the given"), "{text}");
    assert_eq!(check(&two, &[&all[..], &["--quorum", "2"]].concat()).0, 0);
    let (status, text) = check(&two, &[&all[..], &["--quorum", "2", "--json"]].concat());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, value["witnesses"][1]["name"].as_str()), (0, Some("w2.example")));
    std::fs::write(folder.path().join("w1.vkey"), format!("{}\n", keys[0])).unwrap();
    assert_eq!(check(&two, &["--witness", "w1.vkey"]).0, 0);

    // The same line twice is one witness; a namesake is none; a line of another checkpoint is a forgery.
    let twice = format!("{plain}{}{}", lines[0], lines[0]);
    assert_eq!(check(&twice, &["--witness", &keys[0], "--witness", &keys[1]]).0, 1);
    let namesake = Cosigner::from_seed("w1.example", &[9; 32]).unwrap();
    assert_eq!(check(&format!("{plain}{}", cosigned(&note, &namesake, &key)), &["--witness", &keys[0]]).0, 1);
    let other = Checkpoint { origin: "o".into(), size: 3, root: audit_tlog::leaf_hash(b"x") };
    let forged = format!("{plain}{}", witnesses[0].cosign(&other, 1_796_000_000).unwrap());
    let (status, text) = check(&forged, &["--witness", &keys[0]]);
    assert!(status == 1 && text.contains("the cosignature of `w1.example`"), "{text}");
    assert_eq!(check(&forged, &[]).0, 0, "who does not ask for a witness ignores its line");

    // Wrong usage.
    for arguments in [
        &["--quorum", "1"][..],
        &["--witness", &keys[0], "--quorum", "2"],
        &["--witness", &keys[0], "--quorum", "0"],
        &["--witness", &keys[0], "--witness", &keys[0]],
        &["--witness", &key],
        &["--witness", "nonsense"],
    ] {
        assert_eq!(check(&two, arguments).0, 2, "{arguments:?}");
    }
}

#[tokio::test]
async fn a_log_is_witnessed_up_to_what_was_cosigned_and_no_other_tree_passes() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    let witness = Cosigner::from_seed("w1.example", &[1; 32]).unwrap();
    let witness_key = witness.verifier_key().to_string();
    let key = log.log.verifier_key();
    log.log.shutdown();
    let dir = log.dir.path();
    let note = std::fs::read_to_string(dir.join("checkpoint")).unwrap();
    let size = Checkpoint::open(note.as_bytes(), &VerifierKey::parse(&key).unwrap()).unwrap().size;
    let check = || {
        let (status, text, _) = run(&["log", dir.to_str().unwrap(), "--witness", &witness_key], Path::new("/"));
        (status, text)
    };
    let write = |name: &str, note: &str| std::fs::write(dir.join(name), note).unwrap();
    let (status, text) = check();
    assert!(status == 1 && text.contains("check       witnesses"), "{text}");
    write("checkpoint", &format!("{note}{}", cosigned(&note, &witness, &key)));
    let (status, text) = check();
    assert!(status == 0 && text.contains(&format!("): the first {size} entries\n")), "{text}");
    assert!(text.contains("checked     signature, witnesses, tiles"), "{text}");

    // An older checkpoint is the witnessed one.
    write("checkpoint", &note);
    let signer = std::fs::read_to_string(dir.join("keys/log.skey")).unwrap();
    let signer = LogSigner::parse(signer.trim_end()).unwrap();
    let genesis = std::fs::read(dir.join("tile/0/000.p").join(size.to_string())).unwrap();
    let root = Hash(genesis[..32].try_into().unwrap());
    let older = |size, root| {
        let note = Checkpoint { origin: real_log::ORIGIN.into(), size, root }.sign(&signer).unwrap();
        let line = cosigned(&note, &witness, &key);
        note + &line
    };
    write("checkpoint.witnessed", &older(1, root));
    let (status, text) = check();
    assert!(status == 0 && text.contains("): the first 1 entries\n"), "{text}");
    // Signed by the log, cosigned by the witness, and not this log's: it has two histories. So it has when more was cosigned
    // than there is.
    for other in [older(1, audit_tlog::leaf_hash(b"x")), older(size + 1, root)] {
        write("checkpoint.witnessed", &other);
        let (status, text) = check();
        assert!(status == 1 && text.contains("two histories"), "{text}");
    }
    write("checkpoint.witnessed", &note);
    assert_eq!(check().0, 1, "without its line it is not witnessed");
}

#[tokio::test]
async fn a_bundle_is_checked_and_summed_up() {
    let log = RealLog::open();
    log.streamed(&log.acme, 1).await;
    log.refused(&log.acme, 3, Label::of(TenantId::new(2).unwrap())).await;
    log.log.shutdown();
    let parts = made_bundle::parts(log.dir.path(), "acme", 0, u64::MAX);
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    let bundle = parts.bundle();
    write("acme.tar", &bundle);
    let (status, _, errors) = run(&["bundle", "acme.tar"], folder.path());
    assert!(status == 2 && errors.contains("a signature proves nothing"), "{errors}");
    let key = log.log.verifier_key();
    let (status, text, _) = run(&["bundle", "acme.tar", "--key", &key], folder.path());
    assert_eq!(status, 0, "{text}");
    for line in [
        "bundle      genuine\n",
        "entries     6, numbers 0 to 5: none before or between is missing\n",
        "responses   2: 1 isolation, 1 stop; 0 not sealed\n",
        "incidents   1, 1 open\n",
        "not shown   that no later entry belongs to the time",
        "not shown   what the operator states of chains of others",
        "not shown   that everybody is shown the same log: give --witness KEY\n",
    ] {
        assert!(text.contains(line), "no `{line}` in\n{text}");
    }
    std::fs::copy(log.key_file(), folder.path().join("log.vkey")).unwrap();
    let (status, text, _) = run(&["bundle", "acme.tar", "--json"], folder.path());
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, value["result"].as_str(), value["key_given"].as_bool()), (0, Some("genuine"), Some(false)));
    assert_eq!(value["unchecked"], serde_json::json!(["end", "stated", "witnesses"]));
    assert_eq!(value["facts"]["pages"]["released_after_foreign"], 0);
    let report_key = parts.report_key.verifier_key().to_string();
    assert_eq!(run(&["bundle", "acme.tar", "--report-key", &report_key], folder.path()).0, 0);
    assert_eq!(run(&["bundle", "acme.tar", "--report-key", "nonsense"], folder.path()).0, 2);
    let (status, text, _) = run(&["bundle", "acme.tar", "--report-key", &key], folder.path());
    assert!(status == 1 && text.contains("check       manifest"), "{text}");

    let mut changed = bundle;
    let place = changed.len() / 2;
    changed[place] ^= 1;
    write("acme.tar", &changed);
    let (status, text, _) = run(&["bundle", "acme.tar"], folder.path());
    assert!(status == 1 && text.contains("REFUSED") && text.contains("check       manifest"), "{text}");
    let (status, text, _) = run(&["bundle", "acme.tar", "--json"], folder.path());
    assert!(status == 1 && text.contains("\"check\":\"manifest\""), "{text}");
    write("acme.tar", b"");
    assert_eq!(run(&["bundle", "acme.tar"], folder.path()).0, 1);
    assert_eq!(run(&["bundle", "missing.tar"], folder.path()).0, 2);
}
