//! A gateway and its witness, each a process: cosigned receipts, a witness that is killed, folders that were rolled back or
//! forked.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Program, binary, chat, model_path, run};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for a cosignature on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

struct Site {
    folder: TempDir,
    key: String,
    tenants: String,
    witness_key: String,
}

impl Site {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data").display().to_string();
        let made = run(Command::new(binary("bulkhead")?).args(["key", "new", "acme", "--data-dir", &data]))?;
        let said = String::from_utf8(made.stderr)?;
        let key = said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned();
        let witness = folder.path().join("witness").display().to_string();
        let make = ["key", "witness.example/w1", "--data-dir", &witness];
        let witness_key = String::from_utf8(run(Command::new(binary("bulkhead-witness")?).args(make))?.stdout)?;
        let witness_key = witness_key.trim().to_owned();
        Ok(Self { folder, key, tenants: String::from_utf8(made.stdout)?, witness_key })
    }

    /// Another key: of a tenant, or of an operator with `--operator`.
    fn key_of(&mut self, arguments: &[&str]) -> Result<String> {
        let data = self.path("data").display().to_string();
        let mut command = Command::new(binary("bulkhead")?);
        let made = run(command.args(["key", "new"]).args(arguments).args(["--data-dir", &data]))?;
        let said = String::from_utf8(made.stderr)?;
        self.tenants += &String::from_utf8(made.stdout)?;
        Ok(said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned())
    }

    /// Makes an auditor of the site's log, which begins with that, and starts it.
    fn auditor(&mut self) -> Result<(Program, String)> {
        let (gateway, _) = self.serve("")?;
        gateway.stop()?;
        let (log, data) = (self.path("data/log").display().to_string(), self.path("auditor").display().to_string());
        let key = self.path("data/log/log.vkey").display().to_string();
        let make = ["key", "auditor.example/a1", "--data-dir", &data];
        let made = run(Command::new(binary("bulkhead-auditor")?).args(make))?;
        self.witness_key = String::from_utf8(made.stdout)?.trim().to_owned();
        let feeds = self.path("data/feeds").display().to_string();
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", &data, "--log", &log, "--key", &key];
        let serve = serve.into_iter().chain(["--feeds", &feeds]);
        let mut auditor = Program::start_named("bulkhead-auditor", serve)?;
        let at = address(&mut auditor)?;
        Ok((auditor, at))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self, audit: &str) -> Result<Program> {
        let cache = binary("bulkhead")?.with_file_name("weights-cache");
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"smol\"\nweights_cache = {cache:?}\n\
             [engine]\nthreads = 2\npages = 256\n{audit}\n{}",
            model_path()?,
            self.tenants,
        );
        std::fs::write(self.path("bulkhead.toml"), config)?;
        Program::start(["serve", "--config", &self.path("bulkhead.toml").display().to_string()])
    }

    fn serve(&self, audit: &str) -> Result<(Program, Client)> {
        let mut gateway = self.start(audit)?;
        let address = address(&mut gateway)?;
        Ok((gateway, Client::new(address.parse()?, Some(&self.key))))
    }

    fn witness(&self, listen: &str) -> Result<(Program, String)> {
        let (data, logs) = (self.path("witness").display().to_string(), self.path("logs").display().to_string());
        let arguments = ["serve", "--listen", listen, "--data-dir", &data, "--logs", &logs];
        let mut witness = Program::start_named("bulkhead-witness", arguments)?;
        let address = address(&mut witness)?;
        Ok((witness, address))
    }

    fn audit(&self, witness: &str, more: &str) -> String {
        let place = format!("{{ url = \"http://{witness}\", verifier_key = \"{}\" }}", self.witness_key);
        format!("[audit]\nwitnesses = [{place}]\n{more}")
    }

    /// An answer's receipt, as soon as the verifier takes it as witnessed.
    fn witnessed(&self, acme: &Client) -> Result<()> {
        let (_, id) = acme.ask(&chat("smol", "Name a river.", 4, false))?;
        let until = Instant::now() + LIMIT;
        loop {
            std::fs::write(self.path("receipt"), acme.receipt(&id)?)?;
            let mut verify = Command::new(binary("bulkhead-verify")?);
            verify.arg("receipt").arg(self.path("receipt")).arg("--key").arg(self.path("data/log/log.vkey"));
            let output = verify.args(["--witness", &self.witness_key]).output()?;
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            if output.status.success() {
                let name = self.witness_key.split('+').next().context("no name")?;
                ensure!(said.contains(&format!("{name} (")), "{said}");
                return Ok(());
            }
            ensure!(said.contains("check       witnesses"), "{said}");
            ensure!(Instant::now() < until, "no cosignature came: {said}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Puts a copy of a folder in the place of the data folder.
    fn restore(&self, from: &str) -> Result<()> {
        std::fs::remove_dir_all(self.path("data"))?;
        copy(&self.path(from), &self.path("data"))
    }
}

fn address(program: &mut Program) -> Result<String> {
    let line = program.wait_for("listening on http://")?;
    Ok(line.rsplit_once("http://").context("no address")?.1.trim().to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    run(Command::new("cp").arg("-a").arg(from).arg(to)).map(drop)
}

#[test]
fn an_auditor_reads_what_the_gateway_writes_and_cosigns_it() -> Result<()> {
    let mut site = Site::new()?;
    let (_auditor, at) = site.auditor()?;
    let (log, key) =
        (site.path("data/log").display().to_string(), site.path("data/log/log.vkey").display().to_string());
    let (gateway, acme) = site.serve(&site.audit(&at, "witness_quorum_at_start = true"))?;
    for stream in [false, true] {
        let asked = chat("smol", "Count to ten.", 30, stream).to_string();
        ensure!(acme.post_bytes("/v1/chat/completions", asked.as_bytes())?.status == 200);
    }
    site.witnessed(&acme)?;
    let metrics = String::from_utf8(acme.get("/metrics")?.body)?;
    ensure!(metrics.contains("audit_witness_alarms 0"), "{metrics}");
    gateway.stop()?;
    let checked = run(Command::new(binary("bulkhead-auditor")?).args(["check", "--log", &log, "--key", &key]))?;
    let said = String::from_utf8(checked.stdout)?;
    ensure!(
        said.starts_with("no objection: ") && said.contains(" 3 responses, 0 of them stopped, 0 without"),
        "{said}"
    );
    Ok(())
}

/// A gateway whose auditor is stopped and goes on.
struct Audited {
    address: String,
    acme: Client,
    globex: Client,
    initech: Client,
    ada: String,
}

impl Audited {
    fn incidents(&self, arguments: &[&str]) -> Result<String> {
        let address = format!("http://{}", self.address);
        let mut command = Command::new(binary("bulkhead")?);
        command.args(["audit", "incidents", "--address", &address]).args(arguments);
        Ok(String::from_utf8(run(command.env("BULKHEAD_OPERATOR_KEY", &self.ada))?.stdout)?)
    }

    /// Lags that the log speaks of, by where they stand.
    fn lags(&self, state: &str) -> Result<Vec<Value>> {
        let list: Value = serde_json::from_str(&self.incidents(&["--json"])?)?;
        let all = list["data"].as_array().context("no list")?;
        ensure!(all.iter().all(|incident| incident["class"] == "auditor_lag"), "{list}");
        Ok(all.iter().filter(|incident| incident["state"] == state).cloned().collect())
    }

    /// Status and mode of an answer, and its body.
    fn ask(&self, who: &Client, stream: bool) -> Result<(u16, Option<String>, String)> {
        let asked = chat("smol", "Name a river.", 2, stream).to_string();
        let answer = who.post_bytes("/v1/chat/completions", asked.as_bytes())?;
        let mode = answer.header("x-isolation-mode").map(str::to_owned);
        if answer.status == 503 {
            ensure!(answer.header("retry-after").is_some(), "it does not say when to come back");
        }
        Ok((answer.status, mode, answer.text()?))
    }

    /// While the auditor is away.
    fn without_a_second_opinion(&self) -> Result<()> {
        let (status, _, text) = self.ask(&self.acme, true)?;
        ensure!(status == 503 && text.contains("auditor_lags"), "{status} {text}");
        for stream in [false, true] {
            let (status, mode, text) = self.ask(&self.globex, stream)?;
            ensure!((status, mode.as_deref()) == (200, Some("enforce; auditor=outstanding")), "{mode:?} {text}");
            ensure!(!stream || text.contains("\"auditor\":\"outstanding\""), "{text}");
        }
        let (status, mode, text) = self.ask(&self.initech, true)?;
        ensure!(
            (status, mode.as_deref()) == (200, Some("enforce")) && !text.contains("outstanding"),
            "{mode:?} {text}"
        );
        Ok(())
    }
}

fn until(what: &str, so: impl Fn() -> Result<bool>) -> Result<()> {
    let limit = Instant::now() + LIMIT;
    while !so()? {
        ensure!(Instant::now() < limit, "it never came to that: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

#[test]
fn an_auditor_that_falls_behind_is_an_incident_and_stops_who_enforces_its_opinion() -> Result<()> {
    let mut site = Site::new()?;
    let (globex, initech) = (site.key_of(&["globex"])?, site.key_of(&["initech"])?);
    let ada = site.key_of(&["ada", "--operator"])?;
    let (auditor, at) = site.auditor()?;
    let place = format!("{{ url = \"http://{at}\", verifier_key = \"{}\", auditor = true }}", site.witness_key);
    let terms = |name: &str, opinion: &str| format!("[scheduler.tenants.{name}]\nsecond_opinion = \"{opinion}\"\n");
    let (acmes, globexs) = (terms("acme", "enforce"), terms("globex", "fence"));
    let audit = format!("[audit]\nwitnesses = [{place}]\ncosigner_lag_seconds = 5\n{acmes}{globexs}");
    let mut gateway = site.start(&audit)?;
    let address = address(&mut gateway)?;
    let client = |key: &str| Ok::<_, anyhow::Error>(Client::new(address.parse()?, Some(key)));
    let (acme, globex, initech) = (client(&site.key)?, client(&globex)?, client(&initech)?);
    let gate = Audited { acme, globex, initech, ada, address: address.clone() };

    let served = |who: &Client| Ok::<_, anyhow::Error>(gate.ask(who, false)?.0 == 200);
    until("acme is answered", || served(&gate.acme))?;
    auditor.signal("STOP")?;
    // What is published from here on has no second opinion.
    until("acme is refused", || Ok(!served(&gate.acme)?))?;
    gate.without_a_second_opinion()?;
    until("the log says so", || Ok(!gate.lags("detected")?.is_empty()))?;
    let detected = gate.lags("detected")?;
    let [lag] = &detected[..] else { anyhow::bail!("one lag is one incident: {detected:?}") };
    ensure!(lag["cosigner"] == "auditor.example/a1" && lag["severity"] == "high", "{lag}");
    ensure!(lag["limit_us"] == 5_000_000 && lag["behind_us"].as_u64() > Some(5_000_000), "{lag}");
    ensure!(gate.incidents(&[])?.contains("auditor_lag"));
    let metrics = String::from_utf8(gate.acme.get("/metrics")?.body)?;
    for line in ["audit_auditor_lags 1", "audit_cosigner_lag_seconds{cosigner=\"auditor.example/a1\"}"] {
        ensure!(metrics.contains(line), "no `{line}` in\n{metrics}");
    }

    auditor.signal("CONT")?;
    until("acme is answered again", || served(&gate.acme))?;
    until("the log says so, too", || Ok(gate.lags("detected")?.is_empty()))?;
    let id = lag["id"].as_str().context("no id")?;
    let shown: Value = serde_json::from_str(&gate.incidents(&["show", id, "--json"])?)?;
    ensure!(shown["state"] == "contained" && shown["moves"][0]["actor"].is_null(), "{shown}");
    // What comes of it is for persons to say.
    gate.incidents(&["triage", id])?;
    ensure!(gate.lags("triaged")?.len() == 1);
    gateway.stop()?;
    let (log, key) = (site.path("data/log"), site.path("data/log/log.vkey"));
    run(Command::new(binary("bulkhead-verify")?).arg("log").arg(&log))?;
    run(Command::new(binary("bulkhead-auditor")?).arg("check").arg("--log").arg(log).arg("--key").arg(key))?;
    Ok(())
}

#[test]
fn a_rollback_or_a_fork_of_the_data_folder_does_not_start_against_a_witness() -> Result<()> {
    let site = Site::new()?;
    // The first start makes the log's key, which the witness needs.
    let (gateway, _) = site.serve("")?;
    gateway.stop()?;
    std::fs::copy(site.path("data/log/log.vkey"), site.path("logs"))?;
    copy(&site.path("data"), &site.path("old"))?;

    let (mut witness, at) = site.witness("127.0.0.1:0")?;
    let audit = site.audit(&at, "witness_quorum_at_start = true");
    let (gateway, acme) = site.serve(&audit)?;
    site.witnessed(&acme)?;

    // A witness that is killed holds nobody up, and is asked again when it is back.
    witness.kill()?;
    acme.ask(&chat("smol", "Name a lake.", 4, false))?;
    let ready = acme.get("/readyz")?;
    let state: Value = serde_json::from_slice(&ready.body)?;
    ensure!(ready.status == 200 && state["witnesses"] == true && state["audit_log"] == true, "{state}");
    let (witness, _) = site.witness(&at)?;
    site.witnessed(&acme)?;
    let metrics = String::from_utf8(acme.get("/metrics")?.body)?;
    for line in ["audit_witnesses_away 0", "audit_witness_alarms 0"] {
        ensure!(metrics.contains(line), "no `{line}` in\n{metrics}");
    }
    gateway.stop()?;
    copy(&site.path("data"), &site.path("newest"))?;
    let mut verify = Command::new(binary("bulkhead-verify")?);
    let said = run(verify.arg("log").arg(site.path("data/log")).args(["--witness", &site.witness_key]))?;
    ensure!(String::from_utf8_lossy(&said.stdout).contains("witness.example/w1 ("));

    // The whole folder of before: nothing in it contradicts anything else.
    site.restore("old")?;
    let mut refused = site.start(&audit)?;
    refused.wait_for("the folder was rolled back")?;

    // The same folder, continued where the witness could not see it, until it is larger.
    let (gateway, acme) = site.serve("")?;
    for _ in 0..20 {
        acme.ask(&chat("smol", "Name a hill.", 1, false))?;
    }
    gateway.stop()?;
    let mut refused = site.start(&audit)?;
    refused.wait_for("the log was forked")?;

    // The newest folder goes on; without the witness it does not, because the configuration says so, and would otherwise.
    site.restore("newest")?;
    let (gateway, _) = site.serve(&audit)?;
    gateway.stop()?;
    witness.stop()?;
    let mut refused = site.start(&audit)?;
    refused.wait_for("0 witnesses have confirmed")?;
    let (gateway, _) = site.serve(&site.audit(&at, ""))?;
    gateway.stop()?;
    Ok(())
}
