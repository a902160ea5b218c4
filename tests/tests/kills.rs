//! A gateway that is killed again and again under load: no receipt that it ever handed out becomes unverifiable.
//!
//! `BULKHEAD_KILLS=1000 cargo test --release -p e2e --test kills -- --ignored --nocapture` does so many rounds and prints what it
//! saw as JSON.

use anyhow::{Context, Result, ensure};
use audit_verify::{Evidence, VerifierKey, check_consistency, check_log, check_receipt};
use e2e::{Client, Program, binary, chat, model_path, run};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const TENANTS: [&str; 2] = ["acme", "globex"];
/// Clients at a time, of each tenant.
const CLIENTS: usize = 2;

/// An answer with its receipt, as a client holds it.
struct Held {
    tenant: usize,
    id: String,
    request: String,
    response: Vec<u8>,
    receipt: String,
}

struct Setup {
    folder: tempfile::TempDir,
    keys: Vec<String>,
}

impl Setup {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data").display().to_string();
        let (mut keys, mut stanzas) = (Vec::new(), String::new());
        for tenant in TENANTS {
            let made = run(Command::new(binary("bulkhead")?).args(["key", "new", tenant, "--data-dir", &data]))?;
            let said = String::from_utf8(made.stderr)?;
            keys.push(said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned());
            stanzas += &String::from_utf8(made.stdout)?;
        }
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"smol\"\nweights_cache = {:?}\n\
             [engine]\nthreads = 2\npages = 512\n{stanzas}",
            model_path()?,
            binary("bulkhead")?.with_file_name("weights-cache"),
        );
        std::fs::write(folder.path().join("bulkhead.toml"), config)?;
        Ok(Self { folder, keys })
    }

    fn start(&self) -> Result<(Program, SocketAddr)> {
        let config = self.folder.path().join("bulkhead.toml").display().to_string();
        let mut gateway = Program::start(["serve", "--config", &config])?;
        let line = gateway.wait_for("listening on http://")?;
        Ok((gateway, line.rsplit_once("http://").context("no address")?.1.trim().parse()?))
    }

    fn client(&self, address: SocketAddr, tenant: usize) -> Client {
        Client::new(address, Some(&self.keys[tenant]))
    }

    fn log(&self) -> PathBuf {
        self.folder.path().join("data/log")
    }
}

/// What one client does until the gateway is gone: an answer, streamed or whole, and its receipt.
fn ask(client: &Client, tenant: usize, streamed: bool, stop: &AtomicBool, held: &Mutex<Vec<Held>>) {
    while !stop.load(Ordering::Acquire) {
        let request = chat("smol", "Name a river.", 6, streamed).to_string();
        let Ok(response) = client.post_bytes("/v1/chat/completions", request.as_bytes()) else { return };
        let Some(id) = response.header("x-isolation-id").map(str::to_owned).filter(|_| response.status == 200) else {
            continue;
        };
        // A stream that the end of the gateway cut off is no answer, and its receipt speaks of a crash.
        let whole = !streamed || response.body.ends_with(b"data: [DONE]\n\n");
        let Ok(receipt) = client.receipt(&id) else { return };
        if whole {
            let one = Held { tenant, id, request, response: response.body, receipt };
            held.lock().unwrap_or_else(PoisonError::into_inner).push(one);
        }
    }
}

fn check(held: &Held, receipt: &str, key: &VerifierKey) -> Result<u64> {
    let evidence = Evidence { request: Some(held.request.as_bytes()), response: Some(&held.response), witnesses: None };
    let report = check_receipt(receipt.as_bytes(), key, evidence).with_context(|| format!("request {}", held.id))?;
    Ok(report.checkpoint.size)
}

fn killed(rounds: u64) -> Result<()> {
    let setup = Setup::new()?;
    let held = Mutex::new(Vec::new());
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    for round in 0..rounds {
        let (mut gateway, address) = setup.start()?;
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for number in 0..TENANTS.len() * CLIENTS {
                let (client, tenant) = (setup.client(address, number % TENANTS.len()), number % TENANTS.len());
                let (stop, held) = (&stop, &held);
                scope.spawn(move || ask(&client, tenant, number < TENANTS.len(), stop, held));
            }
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            std::thread::sleep(Duration::from_millis(100 + random % 1_400));
            let killed = gateway.kill();
            stop.store(true, Ordering::Release);
            killed
        })?;
        if (round + 1) % 50 == 0 {
            eprintln!("{} of {rounds} kills, {} receipts", round + 1, held.lock().map_or(0, |held| held.len()));
        }
    }
    let held = held.into_inner().unwrap_or_else(PoisonError::into_inner);
    ensure!(held.len() as u64 >= rounds, "only {} receipts in {rounds} rounds", held.len());

    let (gateway, address) = setup.start()?;
    let key = VerifierKey::parse(std::fs::read_to_string(setup.log().join("log.vkey"))?.trim_end())?;
    // Receipts by the size of their checkpoints: the log of today continues each of those trees.
    let mut sizes: BTreeMap<u64, String> = BTreeMap::new();
    for one in &held {
        sizes.entry(check(one, &one.receipt, &key)?).or_insert_with(|| one.receipt.clone());
        check(one, &setup.client(address, one.tenant).receipt(&one.id)?, &key)?;
    }
    let client = setup.client(address, 0);
    for (size, receipt) in &sizes {
        let answer = client.get(&format!("/v1/isolation/proof/consistency?from={size}"))?;
        ensure!(answer.status == 200, "no proof from {size}: status {}", answer.status);
        check_consistency(receipt.as_bytes(), &answer.body, &key, None).with_context(|| format!("from size {size}"))?;
    }
    ensure!(!gateway.stop()?.contains("panicked"));
    let whole = whole_log(&setup.log(), &key)?;
    let met = json!({"kills": rounds, "receipts": held.len(), "checkpoints": sizes.len(), "entries": whole});
    // `cargo xtask soak kills` reads it.
    writeln!(std::io::stdout(), "{met}")?;
    Ok(())
}

/// The whole log is sound, and each request in it has its end.
fn whole_log(log: &Path, key: &VerifierKey) -> Result<u64> {
    let report = check_log(log, key, None, |_, _| ())?;
    ensure!(report.unsealed == 0, "{} requests without an end", report.unsealed);
    Ok(report.checkpoint.size)
}

#[test]
fn no_receipt_is_lost_when_the_gateway_is_killed_under_load() -> Result<()> {
    killed(3)
}

#[test]
#[ignore = "as many rounds as BULKHEAD_KILLS says; a thousand take the better part of an hour"]
fn no_receipt_is_lost_in_so_many_kills() -> Result<()> {
    killed(std::env::var("BULKHEAD_KILLS").context("BULKHEAD_KILLS says how many")?.parse()?)
}
