//! A tenant's own entries over HTTP: all of them and nobody else's, checked offline, from the first one and from a receipt.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Demo, Response, binary, chat};
use serde_json::Value;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MINE: &str = "/v1/isolation/mine";

/// A page, as soon as all of it is published.
fn page(client: &Client, path: &str) -> Result<Response> {
    for _ in 0..200 {
        let response = client.get(path)?;
        match response.status {
            200 if response.json()?["next"].is_null() || path != MINE => return Ok(response),
            200 | 202 => {
                ensure!(response.status == 200 || response.header("retry-after").is_some(), "no time to come back");
                std::thread::sleep(Duration::from_millis(50));
            }
            status => anyhow::bail!("status {status}: {}", response.text()?),
        }
    }
    anyhow::bail!("{path} was not published within ten seconds")
}

fn verify(folder: &Path, arguments: &[&str]) -> Result<(i32, Value)> {
    let mut command = Command::new(binary("bulkhead-verify")?);
    let output = command.arg("mine").args(arguments).arg("--json").current_dir(folder).output()?;
    let said =
        serde_json::from_slice(&output.stdout).with_context(|| String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok((output.status.code().context("no status")?, said))
}

fn entries(page: &Value) -> Result<Vec<Value>> {
    Ok(page["entries"].as_array().context("no entries")?.clone())
}

#[test]
fn a_tenant_is_shown_all_of_its_entries_and_nobody_else_s() -> Result<()> {
    let demo = Demo::start()?;
    let (acme, globex) = (demo.client(0)?, demo.client(1)?);
    let folder = tempfile::tempdir()?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes);
    write("log.vkey", &acme.get("/v1/isolation/key")?.body)?;
    // The demo has asked a question as each of them.
    let begun = entries(&page(&acme, MINE)?.json()?)?.len() as u64;

    let body = |words: &str| chat(&demo.model, words, 2, false);
    let mut receipts = Vec::new();
    for number in 0..4 {
        let (_, id) = acme.ask(&body(&format!("Say {number}.")))?;
        globex.ask(&body("Say nothing."))?;
        receipts.push(acme.receipt(&id)?);
    }
    for (place, receipt) in receipts.iter().enumerate() {
        write(&format!("receipt{place}"), receipt.as_bytes())?;
    }
    let (mine, theirs) = (page(&acme, MINE)?, page(&globex, MINE)?);
    ensure!(mine.header("cache-control") == Some("no-store") && mine.header("link").is_none());
    write("mine.json", &mine.body)?;
    write("theirs.json", &theirs.body)?;
    let (own, other) = (entries(&mine.json()?)?, entries(&theirs.json()?)?);
    let end = begun + 8;
    ensure!((own.len() as u64, other.len() as u64) == (end, end), "{} and {}", own.len(), other.len());
    ensure!(own.iter().all(|entry| other.iter().all(|other| entry["index"] != other["index"])));
    ensure!(mine.json()?["tenant"] == "acme" && mine.json()?["tenant_ref"] != theirs.json()?["tenant_ref"]);
    ensure!(!mine.text()?.contains("globex"));

    let (status, said) = verify(folder.path(), &["mine.json", "--receipt", "receipt3"])?;
    ensure!(status == 0 && said["tenant"] == "acme" && said["to"] == end && said["receipt"] == end - 1, "{said}");
    ensure!(
        said["responses"]["length"].as_u64().unwrap_or(0) + said["responses"]["stop"].as_u64().unwrap_or(0) == end / 2,
        "{said}"
    );
    ensure!(said["pages"]["foreign"] == 0, "{said}");

    // The same in parts, and from a receipt on.
    let number = |receipt: &str| -> Result<(u64, u64)> {
        let output = Command::new(binary("bulkhead-verify")?)
            .args(["receipt", receipt, "--json"])
            .current_dir(folder.path())
            .output()?;
        let said: Value = serde_json::from_slice(&output.stdout)?;
        Ok((said["tenant_number"].as_u64().context("no number")?, said["tree_size"].as_u64().context("no size")?))
    };
    let (held, size) = number("receipt1")?;
    let first = page(&acme, &format!("{MINE}?to={}", held + 1))?;
    ensure!(entries(&first.json()?)?.len() as u64 == held + 1, "no more than was asked for");
    let size_of = |page: &Response| -> Result<u64> {
        Ok(page.json()?["checkpoint"].as_str().and_then(|note| note.lines().nth(1)).context("no size")?.parse()?)
    };
    let second = page(&acme, &format!("{MINE}?from={}&held={}", held + 1, size_of(&first)?))?;
    write("first.json", &first.body)?;
    write("second.json", &second.body)?;
    let (status, said) = verify(folder.path(), &["second.json", "first.json", "--receipt", "receipt3"])?;
    ensure!(status == 0 && said["to"] == end, "{said}");
    let rest = page(&acme, &format!("{MINE}?from={}&held={size}", held + 1))?;
    write("rest.json", &rest.body)?;
    let (status, said) = verify(folder.path(), &["rest.json", "--after", "receipt1", "--receipt", "receipt2"])?;
    ensure!(status == 0 && said["after"] == held && said["from"] == held + 1, "{said}");

    // What is left out is noticed, and so is what is not one's own.
    for (files, check) in [
        (&["second.json"][..], "numbers"),
        (&["first.json", "--receipt", "receipt3"], "tail"),
        (&["theirs.json", "--receipt", "receipt3"], "receipt"),
        (&["rest.json", "--after", "receipt2"], "consistency"),
    ] {
        let (status, said) = verify(folder.path(), files)?;
        ensure!(status == 1 && said["check"] == check, "{files:?}: {said}");
    }
    let changed = mine.text()?.replacen("\"proof\":[\"", "\"proof\":[\"A", 1);
    write("changed.json", changed.as_bytes())?;
    ensure!(verify(folder.path(), &["changed.json"])?.0 == 1);
    Ok(())
}

#[test]
fn whoever_asks_wrongly_is_told_so_and_shown_nothing() -> Result<()> {
    let demo = Demo::start()?;
    let acme = demo.client(0)?;
    acme.ask(&chat(&demo.model, "Hello", 2, false))?;
    let whole = page(&acme, MINE)?;
    let end = entries(&whole.json()?)?.len() as u64;
    ensure!(end >= 2);
    let nobody = Client::new(demo.address, None);
    ensure!(nobody.get(MINE)?.status == 401 && nobody.get(&format!("{MINE}?tenant=acme"))?.status == 401);
    ensure!(Client::new(demo.address, Some("bk_nonsense")).get(MINE)?.status == 401);
    for nonsense in [
        "?from=",
        "?from=-1",
        "?from=01",
        "?from=+1",
        "?from=x",
        "?from=1&from=1",
        "?from=18446744073709551616",
        "?to=0",
        "?from=2&to=2",
        "?tenant=globex",
        "?tenant_ref=00",
        "?from=0&to=1&x=1",
        "?held=1.5",
    ] {
        let answer = acme.get(&format!("{MINE}{nonsense}"))?;
        ensure!(
            answer.status == 400 && answer.json()?["error"]["code"] == "invalid_query",
            "{nonsense}: {}",
            answer.text()?
        );
    }
    for more in [&*format!("?from={}", end + 1), "?from=18446744073709551615", "?held=9999999"] {
        let answer = acme.get(&format!("{MINE}{more}"))?;
        ensure!(
            answer.status == 409 && answer.json()?["error"]["code"] == "log_is_shorter",
            "{more}: {}",
            answer.text()?
        );
    }
    ensure!(entries(&acme.get(&format!("{MINE}?from={end}"))?.json()?)?.is_empty(), "right behind the last one");
    ensure!(entries(&acme.get(&format!("{MINE}?from=1&to=9999"))?.json()?)?.len() as u64 == end - 1, "what there is");
    ensure!(acme.post(MINE, &Value::Null)?.status == 405);
    Ok(())
}
