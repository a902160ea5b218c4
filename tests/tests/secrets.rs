//! What clients say and what the model answers stays out of logs, metrics, errors and the audit log's files.

use anyhow::{Result, ensure};
use e2e::{Client, Demo, chat};
use std::path::Path;

/// Words that stand in no program text, so that finding one means that content was written down.
const CANARIES: [&str; 2] = ["zyxxolotl-pelican-7731", "quorvish-lantern-1907"];

fn files(folder: &Path, out: &mut Vec<(String, Vec<u8>)>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, out)?;
        } else {
            out.push((path.display().to_string(), std::fs::read(&path)?));
        }
    }
    Ok(())
}

fn find(bytes: &[u8], needle: &str) -> bool {
    bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
}

#[test]
fn nothing_that_passes_through_is_written_down_at_the_finest_log_level() -> Result<()> {
    let data = tempfile::tempdir()?;
    let demo = Demo::start_in(data.path(), &[("BULKHEAD_LOG", "trace")])?;
    let (acme, globex) = (demo.client(0)?, demo.client(1)?);
    let ask = |client: &Client, canary: &str| {
        let prompt = format!("Repeat exactly this and nothing else: {canary}");
        client.ask(&chat(&demo.model, &prompt, 40, false))
    };
    let (first, _) = ask(&acme, CANARIES[0])?;
    let (second, _) = ask(&globex, CANARIES[1])?;
    ensure!(!first.contains(CANARIES[1]) && !second.contains(CANARIES[0]), "one tenant's words reached the other");
    // Errors that could repeat what they complain about.
    let mut errors = String::new();
    for body in [
        format!("{{\"model\": \"{}\"", CANARIES[0]),
        format!("{{\"model\": \"{}\", \"messages\": []}}", CANARIES[0]),
        chat(&demo.model, CANARIES[0], 4, false).to_string().replace("\"user\"", &format!("\"{}\"", CANARIES[1])),
        chat(&demo.model, CANARIES[0], 4, false).to_string().replace("\"max_tokens\":4", "\"max_tokens\":\"four\""),
    ] {
        let response = acme.post_bytes("/v1/chat/completions", body.as_bytes())?;
        ensure!(response.status >= 400);
        errors += &response.text()?;
    }
    let wrong = Client::new(demo.address, Some(&format!("bk_{}", CANARIES[0])));
    errors += &wrong.post("/v1/chat/completions", &chat(&demo.model, "x", 1, false))?.text()?;
    let metrics = acme.get("/metrics")?.text()?;
    let keys: Vec<String> = demo.tenants.iter().map(|tenant| tenant.key.clone()).collect();
    let said = demo.stop()?;
    // Afterwards, when no file is being replaced any more.
    let mut written = Vec::new();
    files(data.path(), &mut written)?;
    ensure!(
        said.matches("answered").count() >= 6,
        "the log does not name every request: the test would not notice a leak"
    );
    written.extend([("stderr".into(), said.into_bytes()), ("metrics".into(), metrics.into_bytes())]);
    written.push(("errors".into(), errors.into_bytes()));
    let answers = [first.as_str(), second.as_str()];
    for (place, bytes) in &written {
        for secret in CANARIES.iter().copied().chain(keys.iter().map(String::as_str)).chain(answers) {
            ensure!(secret.len() < 8 || !find(bytes, secret), "{place} holds content that passed through");
        }
    }
    Ok(())
}
