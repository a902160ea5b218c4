//! A stranger's view: an answer, its receipt, the offline verifier, and everything that must be refused.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Demo, Program, binary, chat, model_path, run};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

fn verify(arguments: &[&str], folder: &Path) -> Result<Output> {
    Ok(Command::new(binary("bulkhead-verify")?).args(arguments).current_dir(folder).output()?)
}

#[test]
fn an_answer_can_be_proved_to_a_stranger_and_a_changed_one_cannot() -> Result<()> {
    let demo = Demo::start()?;
    let (acme, globex) = (demo.client(0)?, demo.client(1)?);
    let folder = tempfile::tempdir()?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes);

    let request = chat(&demo.model, "Name three colours.", 20, false).to_string();
    let response = acme.post_bytes("/v1/chat/completions", request.as_bytes())?;
    let id = response.header("x-isolation-id").context("no isolation id")?.to_string();
    ensure!(response.header("x-isolation-mode") == Some("enforce"));
    let link = response.header("link").context("no link to the receipt")?;
    ensure!(link.contains(&format!("/v1/isolation/receipts/{id}")) && link.contains("isolation-receipt"), "{link}");
    let receipt = acme.receipt(&id)?;
    ensure!(receipt.len() <= 8 << 10, "the receipt of a small answer has {} bytes", receipt.len());

    ensure!(globex.get(&format!("/v1/isolation/receipts/{id}"))?.status == 404, "globex may not know that it exists");
    ensure!(Client::new(demo.address, None).get(&format!("/v1/isolation/receipts/{id}"))?.status == 401);

    write("receipt", receipt.as_bytes())?;
    write("request.json", request.as_bytes())?;
    write("response.json", &response.body)?;
    write("log.vkey", &acme.get("/v1/isolation/key")?.body)?;
    let all = ["receipt", "receipt", "--request", "request.json", "--response", "response.json"];
    let sound = verify(&all, folder.path())?;
    let shown = String::from_utf8_lossy(&sound.stdout).into_owned();
    ensure!(sound.status.success(), "{shown}");
    // One fingerprint in the list of models, in the answer and in the record.
    let models: Value = serde_json::from_slice(&acme.get("/v1/models")?.body)?;
    let fingerprint = models["data"][0]["fingerprint"].as_str().context("no fingerprint")?;
    ensure!(fingerprint.len() == 64 && shown.contains(&format!("fingerprint sha256 {fingerprint}\n")), "{shown}");
    let answer: Value = serde_json::from_slice(&response.body)?;
    ensure!(answer["system_fingerprint"] == format!("fp_{}", &fingerprint[..16]), "{answer}");

    // The same as COSE, for who prefers it.
    let path = format!("/v1/isolation/receipts/{id}");
    let cose = acme.get_as(&path, "application/cose, text/plain;q=0.5")?;
    ensure!(cose.header("content-type") == Some("application/cose") && cose.header("vary") == Some("Accept"));
    ensure!(cose.body.len() < receipt.len(), "{} bytes", cose.body.len());
    ensure!(globex.get_as(&path, "application/cose")?.status == 404);
    write("receipt.cose", &cose.body)?;
    let of_cose = ["receipt", "receipt.cose", "--request", "request.json", "--response", "response.json"];
    let sound_cose = verify(&of_cose, folder.path())?;
    ensure!(sound_cose.status.success(), "{}", String::from_utf8_lossy(&sound_cose.stdout));

    // One changed byte of the answer, the request or the receipt.
    let answer = String::from_utf8(response.body)?;
    let content = answer.find("\"content\":\"").context("no content")? + 12;
    for (file, original, position) in [
        ("response.json", answer.as_bytes(), content),
        ("request.json", request.as_bytes(), request.find("three").context("no prompt")?),
        ("receipt", receipt.as_bytes(), receipt.len() / 2),
        ("receipt", receipt.as_bytes(), receipt.len() - 10),
        ("receipt.cose", &cose.body, 20),
        ("receipt.cose", &cose.body, cose.body.len() - 10),
    ] {
        let mut changed = original.to_vec();
        changed[position] = if changed[position] == b'A' { b'B' } else { b'A' };
        write(file, &changed)?;
        let refused = verify(if file == "receipt.cose" { &of_cose } else { &all }, folder.path())?;
        let code = refused.status.code();
        ensure!(code == Some(1), "{file} changed at {position}: {}", String::from_utf8_lossy(&refused.stdout));
        write(file, original)?;
    }
    ensure!(verify(&all, folder.path())?.status.success(), "the originals must be back in place");
    Ok(())
}

#[test]
fn whoever_holds_a_receipt_is_shown_that_the_log_has_only_grown() -> Result<()> {
    let demo = Demo::start()?;
    let acme = demo.client(0)?;
    let folder = tempfile::tempdir()?;
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes);
    let answered = || -> Result<String> {
        let response =
            acme.post_bytes("/v1/chat/completions", chat(&demo.model, "Hello", 2, false).to_string().as_bytes())?;
        acme.receipt(response.header("x-isolation-id").context("no isolation id")?)
    };
    let held = answered()?;
    // The checkpoint's second line.
    let size: u64 = held.split("\n\n").nth(1).and_then(|note| note.lines().nth(1)).context("no size")?.parse()?;
    answered()?;
    let path = |from: &str| format!("/v1/isolation/proof/consistency?from={from}");
    let answer = acme.get(&path(&size.to_string()))?;
    ensure!(answer.status == 200 && answer.header("cache-control") == Some("no-store"));
    write("held", held.as_bytes())?;
    write("answer", &answer.body)?;
    write("log.vkey", &acme.get("/v1/isolation/key")?.body)?;
    let sound = verify(&["consistency", "held", "answer"], folder.path())?;
    let shown = String::from_utf8_lossy(&sound.stdout).into_owned();
    ensure!(sound.status.success() && shown.contains(&format!("{size} then, ")), "{shown}");
    let grown = shown.lines().find_map(|line| line.strip_prefix("entries"));
    ensure!(grown != Some(&format!("     {size} then, {size} now")), "{shown}");
    // The first hash of the proof, changed.
    let mut changed = answer.body.clone();
    let place = changed.iter().position(|byte| *byte == b'\n').context("no line")? + 3;
    changed[place] = if changed[place] == b'A' { b'B' } else { b'A' };
    write("answer", &changed)?;
    let refused = verify(&["consistency", "held", "answer", "--json"], folder.path())?;
    let said: Value = serde_json::from_slice(&refused.stdout)?;
    ensure!(refused.status.code() == Some(1) && said["check"] == "consistency", "{said}");

    ensure!(acme.get(&path("9999999"))?.status == 409, "more than there is");
    for nonsense in ["", "-1", "01", "+1", "1&from=2", "x", "18446744073709551616"] {
        ensure!(acme.get(&path(nonsense))?.status == 400, "{nonsense}");
    }
    ensure!(Client::new(demo.address, None).get(&path("1"))?.status == 401);
    ensure!(acme.get(&path("0"))?.status == 200 && acme.get(&path("1"))?.status == 200);
    Ok(())
}

#[test]
fn a_streamed_answer_is_proved_as_curl_prints_it() -> Result<()> {
    let demo = Demo::start()?;
    let folder = tempfile::tempdir()?;
    let request = chat(&demo.model, "Name three animals.", 20, true).to_string();
    let url = format!("http://{}", demo.address);
    let bearer = format!("authorization: Bearer {}", demo.tenants[0].key);
    let curl =
        |arguments: &[&str]| run(Command::new("curl").args(["-sS", "--max-time", "60", "-H", &bearer]).args(arguments));
    let answer = curl(&["-D", "-", "-d", &request, &format!("{url}/v1/chat/completions")])?;
    let answer = String::from_utf8(answer.stdout)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no head")?;
    let id =
        head.lines().find_map(|line| line.strip_prefix("x-isolation-id: ").or(line.strip_prefix("X-Isolation-Id: ")));
    let id = id.context("no isolation id")?.trim();
    std::fs::write(folder.path().join("request.json"), &request)?;
    std::fs::write(folder.path().join("response.sse"), body)?;
    std::fs::write(folder.path().join("receipt"), demo.client(0)?.receipt(id)?)?;
    std::fs::copy(demo.log_dir.join("log.vkey"), folder.path().join("log.vkey"))?;
    let all = ["receipt", "receipt", "--request", "request.json", "--response", "response.sse", "--json"];
    let sound = verify(&all, folder.path())?;
    ensure!(sound.status.success(), "{}", String::from_utf8_lossy(&sound.stdout));
    let cut = body.replacen("data: {", "data:  {", 1);
    ensure!(cut != body);
    let cut: Vec<&str> = body.split("\n\n").collect();
    std::fs::write(folder.path().join("response.sse"), [&cut[..1], &cut[2..]].concat().join("\n\n"))?;
    ensure!(verify(&all, folder.path())?.status.code() == Some(1), "a missing event must be noticed");
    Ok(())
}

#[test]
fn a_stream_of_constant_shape_is_proved_event_by_event() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = |name: &str| folder.path().join(name);
    let data = path("data").display().to_string();
    let made = run(Command::new(binary("bulkhead")?).args(["key", "new", "acme", "--data-dir", &data]))?;
    let said = String::from_utf8(made.stderr)?;
    let key = said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned();
    let config = format!(
        "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"smol\"\nweights_cache = {:?}\n\
         [engine]\nthreads = 2\npages = 512\n[limits]\nconstant_shape_period_ms = 50\n\
         [scheduler.tenants.acme]\nstream = \"constant-shape\"\n{}",
        model_path()?,
        binary("bulkhead")?.with_file_name("weights-cache"),
        String::from_utf8(made.stdout)?,
    );
    std::fs::write(path("bulkhead.toml"), config)?;
    let mut gateway = Program::start(["serve", "--config", &path("bulkhead.toml").display().to_string()])?;
    let line = gateway.wait_for("listening on http://")?;
    let acme = Client::new(line.rsplit_once("http://").context("no address")?.1.trim().parse()?, Some(&key));

    let request = chat("smol", "Name three rivers.", 40, true).to_string();
    let response = acme.post_bytes("/v1/chat/completions", request.as_bytes())?;
    let id = response.header("x-isolation-id").context("no isolation id")?.to_string();
    let body = String::from_utf8(response.body)?;
    let events: Vec<&str> = body.split("\n\n").filter(|event| event.starts_with("data: {")).collect();
    ensure!(events.len() > 2 && events.iter().all(|event| event.len() == events[0].len()), "{body}");
    std::fs::write(path("request.json"), &request)?;
    std::fs::write(path("receipt"), acme.receipt(&id)?)?;
    std::fs::write(path("log.vkey"), &acme.get("/v1/isolation/key")?.body)?;
    let all = ["receipt", "receipt", "--request", "request.json", "--response", "response.sse"];
    let verdict = |body: &str| -> Result<Output> {
        std::fs::write(path("response.sse"), body)?;
        verify(&all, folder.path())
    };
    let sound = verdict(&body)?;
    ensure!(sound.status.success(), "{}", String::from_utf8_lossy(&sound.stdout));
    // Padding is part of what was sent, and so is an event that says nothing.
    ensure!(verdict(&body.replacen("\"obfuscation\":\"0", "\"obfuscation\":\"1", 1))?.status.code() == Some(1));
    let missing = body.replacen(&format!("{}\n\n", events[1]), "", 1);
    ensure!(
        missing.len() < body.len() && verdict(&missing)?.status.code() == Some(1),
        "a missing event must be noticed"
    );
    ensure!(!gateway.stop()?.contains("panicked"));
    Ok(())
}

#[test]
fn the_log_survives_a_killed_gateway_and_names_what_was_cut() -> Result<()> {
    let data = tempfile::tempdir()?;
    let demo = Demo::start_in(data.path(), &[])?;
    let log = demo.log_dir.clone();
    let acme = demo.client(0)?;
    let (_, id) = acme.ask(&chat(&demo.model, "Name a river.", 8, false))?;
    let receipt = acme.receipt(&id)?;
    let (_, mut events) = acme.stream("/v1/chat/completions", &chat(&demo.model, "Tell a story.", 400, true))?;
    events.next().context("no event")??;
    run(Command::new("kill").args(["-KILL", &demo.pid().to_string()]))?;
    drop(events);
    drop(demo);

    let again = Demo::start_in(data.path(), &[])?;
    ensure!(again.log_dir == log, "the second start has another log");
    again.client(0)?.ask(&chat(&again.model, "Name a lake.", 8, false))?;
    again.stop()?;
    let output = run(Command::new(binary("bulkhead-verify")?).arg("log").arg(&log).arg("--json"))?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(report["responses"]["crash"] == 1, "the cut stream must be sealed as such: {report}");
    ensure!(report["unsealed"] == 0, "{report}");
    // A receipt from before the crash is still good for whoever kept it.
    let folder = tempfile::tempdir()?;
    std::fs::write(folder.path().join("receipt"), receipt)?;
    std::fs::copy(log.join("log.vkey"), folder.path().join("log.vkey"))?;
    ensure!(verify(&["receipt", "receipt"], folder.path())?.status.success());
    Ok(())
}
