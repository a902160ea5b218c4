//! A gateway whose prompts are computed by another process.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Demo, Program, binary, chat, model_path, run};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

const MODEL: &str = "test-model";

/// A configuration, certificates and one tenant's key, in a folder.
struct Site {
    folder: tempfile::TempDir,
    key: String,
    role: String,
}

impl Site {
    fn new() -> Result<Self> {
        Self::with("prefill")
    }

    fn with(role: &str) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let bulkhead = || Ok::<_, anyhow::Error>(Command::new(binary("bulkhead")?));
        run(bulkhead()?.args(["key", "worker"]).arg(folder.path().join("certificates")))?;
        let made = run(bulkhead()?.args(["key", "new", "acme", "--data-dir"]).arg(folder.path().join("data")))?;
        let said = String::from_utf8(made.stderr)?;
        let key = said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned();
        let site = Self { folder, key, role: role.to_owned() };
        for (name, engine) in [("bulkhead.toml", ""), ("other.toml", "kv = \"f32\"\n")] {
            let cache = binary("bulkhead")?.with_file_name("weights-cache");
            let config = format!(
                "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"{MODEL}\"\nweights_cache = \
                 {:?}\n[engine]\nthreads = 2\npages = 1024\n{engine}[worker]\nrole = {role:?}\naddress = \
                 \"unix:{}\"\ncertificates = \"certificates\"\n{}",
                model_path()?,
                cache,
                site.path("worker.sock").display(),
                String::from_utf8(made.stdout.clone())?,
            );
            std::fs::write(site.path(name), config)?;
        }
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn worker(&self, config: &str) -> Result<Program> {
        let config = self.path(config).display().to_string();
        let mut worker = Program::start(["worker", "--role", &self.role, "--config", &config])?;
        worker.wait_for("waiting for a gateway at")?;
        Ok(worker)
    }

    fn gateway(&self) -> Result<(Program, Client)> {
        let mut gateway = Program::start(["serve", "--config", &self.path("bulkhead.toml").display().to_string()])?;
        let line = gateway.wait_for("listening on http://")?;
        let address: SocketAddr = line.rsplit_once("http://").context("no address")?.1.trim().parse()?;
        Ok((gateway, Client::new(address, Some(&self.key))))
    }
}

fn wait_until_ready(client: &Client) -> Result<()> {
    let started = Instant::now();
    while client.get("/readyz")?.status != 200 {
        ensure!(started.elapsed() < Duration::from_secs(60), "it does not become ready");
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn prompt(number: usize) -> String {
    format!("{} What is {number} and {number}?", "The quick brown fox jumps over the lazy dog. ".repeat(20 + number))
}

#[test]
fn a_worker_s_prompts_give_the_answers_of_one_process_and_the_record_says_who_had_them() -> Result<()> {
    answers_are_the_same(&Site::with("prefill")?)
}

#[test]
fn what_a_worker_decodes_are_the_answers_of_one_process_and_the_record_says_who_had_them() -> Result<()> {
    answers_are_the_same(&Site::with("decode")?)
}

fn answers_are_the_same(site: &Site) -> Result<()> {
    let demo = Demo::start()?;
    let ask = |client: &Client, model: &str| {
        (0..4).map(|number| client.ask(&chat(model, &prompt(number), 12, false))).collect::<Result<Vec<_>>>()
    };
    let alone: Vec<String> = ask(&demo.client(0)?, &demo.model)?.into_iter().map(|(text, _)| text).collect();
    demo.stop()?;
    let (gateway, client) = site.gateway()?;
    // Nobody is there yet: that is said, and who asks is told so after a while.
    let ready = client.get("/readyz")?;
    ensure!(ready.status == 503 && ready.json()?["workers"] == false, "{}", ready.text()?);
    let metric = |client: &Client| {
        let text = client.get("/metrics")?.text()?;
        let line = text.lines().find(|line| line.contains("engine_worker_away") && !line.starts_with('#'));
        line.map(str::to_owned).context("no metric for it")
    };
    ensure!(metric(&client)?.ends_with(" 1"), "{}", metric(&client)?);
    let refused = client.post("/v1/chat/completions", &chat(MODEL, "Hello", 4, false))?;
    ensure!(refused.status == 503 && refused.json()?["error"]["code"] == "worker_unavailable", "{}", refused.text()?);
    ensure!(refused.header("retry-after").is_some());
    let mut worker = site.worker("bulkhead.toml")?;
    wait_until_ready(&client)?;
    ensure!(metric(&client)?.ends_with(" 0"), "{}", metric(&client)?);
    let answers = ask(&client, MODEL)?;
    let texts: Vec<&String> = answers.iter().map(|(text, _)| text).collect();
    ensure!(texts == alone.iter().collect::<Vec<_>>(), "{texts:?}\n{alone:?}");
    std::fs::write(site.path("receipt"), client.receipt(&answers[0].1)?)?;
    std::fs::write(site.path("log.vkey"), client.get("/v1/isolation/key")?.body)?;
    let verified =
        run(Command::new(binary("bulkhead-verify")?).args(["receipt", "receipt"]).current_dir(site.folder.path()))?;
    let shown = String::from_utf8(verified.stdout)?;
    ensure!(shown.contains("pages from another process"), "{shown}");
    ensure!(!gateway.stop()?.contains("panicked"));
    worker.wait_for("the gateway is gone")?;
    ensure!(!worker.stop()?.contains("panicked"));
    ensure!(!site.path("worker.sock").exists(), "the socket is left behind");
    Ok(())
}

#[test]
fn a_worker_that_is_killed_costs_time_and_no_answer() -> Result<()> {
    let site = Site::new()?;
    let mut worker = site.worker("bulkhead.toml")?;
    let (gateway, client) = site.gateway()?;
    wait_until_ready(&client)?;
    let body = |number| chat(MODEL, &prompt(number), 24, false);
    let alone = (0..6).map(|number| Ok(client.ask(&body(number))?.0)).collect::<Result<Vec<_>>>()?;
    for round in 0..2 {
        let again = std::thread::scope(|scope| {
            let ask = |number| Ok::<_, anyhow::Error>(client.ask(&body(number))?.0);
            let asking: Vec<_> = (0..6).map(|number| scope.spawn(move || ask(number))).collect();
            // In the middle of six prompts.
            std::thread::sleep(Duration::from_millis(150 + 200 * round));
            worker.kill()?;
            worker = site.worker("bulkhead.toml")?;
            let panicked = |_| anyhow::anyhow!("a client panicked");
            asking.into_iter().map(|asked| asked.join().map_err(panicked)?).collect::<Result<Vec<String>>>()
        })?;
        ensure!(again == alone, "{again:?}\n{alone:?}");
    }
    let said = gateway.stop()?;
    ensure!(said.contains("the link to the worker ended") && !said.contains("panicked"), "{said}");
    Ok(())
}

#[test]
fn a_worker_that_decodes_and_is_killed_ends_what_was_begun_and_the_rest_goes_on() -> Result<()> {
    let site = Site::with("decode")?;
    let mut worker = site.worker("bulkhead.toml")?;
    let (gateway, client) = site.gateway()?;
    wait_until_ready(&client)?;
    let (_, mut events) = client.stream("/v1/chat/completions", &chat(MODEL, &prompt(1), 900, true))?;
    let begun = events.by_ref().take(5).collect::<Result<Vec<_>>>()?;
    ensure!(begun.len() == 5);
    worker.kill()?;
    // It has said something that cannot be taken back: its client is told.
    let rest = events.map_while(Result::ok).map(|event| event.data).collect::<Vec<_>>().join("\n");
    ensure!(rest.contains("worker_unavailable") && !rest.contains("[DONE]"), "{rest}");
    // Who asks now waits for the next one.
    let body = chat(MODEL, &prompt(2), 8, false);
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| client.ask(&body));
        std::thread::sleep(Duration::from_millis(300));
        worker = site.worker("bulkhead.toml")?;
        asking.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
    })?;
    ensure!(asked.0 == client.ask(&body)?.0);
    ensure!(!gateway.stop()?.contains("panicked"));
    ensure!(!worker.stop()?.contains("panicked"));
    Ok(())
}

#[test]
fn a_worker_with_other_numbers_or_for_another_gateway_is_not_used() -> Result<()> {
    let site = Site::new()?;
    let (mut gateway, client) = site.gateway()?;
    let key = site.path("certificates/prefill.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644))?;
    let mut worker =
        Program::start(["worker", "--role", "prefill", "--config", &site.path("other.toml").display().to_string()])?;
    worker.wait_for("others on this machine can read the private key")?;
    worker.wait_for("waiting for a gateway at")?;
    gateway.wait_for("its model, or `engine.kv`, is not the same")?;
    worker.wait_for("a gateway was not served")?;
    ensure!(client.get("/readyz")?.status == 503);
    worker.kill()?;
    let mut worker = site.worker("bulkhead.toml")?;
    wait_until_ready(&client)?;
    // The same certificates, and another process.
    let config =
        std::fs::read_to_string(site.path("bulkhead.toml"))?.replace("data_dir = \"data\"", "data_dir = \"d2\"");
    std::fs::write(site.path("second.toml"), config)?;
    let mut second = Program::start(["serve", "--config", &site.path("second.toml").display().to_string()])?;
    second.wait_for("it works for another gateway")?;
    worker.wait_for("a second gateway")?;
    ensure!(client.ask(&chat(MODEL, "Hello", 4, false)).is_ok());
    Ok(())
}
