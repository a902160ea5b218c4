//! Holding and erasing on a running gateway, with the program's own commands: a hold forbids, two persons erase, receipts that
//! clients have stay good, and a key that comes back from a backup is of no use.

use anyhow::{Context, Result, ensure};
use e2e::{Client, Program, binary, chat, model_path, run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

struct Site {
    folder: TempDir,
    /// Of acme, globex, ada and ben.
    keys: Vec<String>,
}

impl Site {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data").display().to_string();
        let cache = binary("bulkhead")?.with_file_name("weights-cache");
        let mut config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"smol\"\nweights_cache = {cache:?}\n\
             [engine]\nthreads = 2\npages = 256\n[audit]\nretention_days = 30\n",
            model_path()?,
        );
        let mut keys = Vec::new();
        for (name, operator) in [("acme", false), ("globex", false), ("ada", true), ("ben", true)] {
            let mut make = Command::new(binary("bulkhead")?);
            make.args(["key", "new", name, "--data-dir", &data]).args(operator.then_some("--operator"));
            let made = run(&mut make)?;
            let said = String::from_utf8(made.stderr)?;
            keys.push(said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned());
            config += &String::from_utf8(made.stdout)?;
        }
        std::fs::write(folder.path().join("bulkhead.toml"), config)?;
        Ok(Self { folder, keys })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self) -> Result<(Program, String)> {
        let mut gateway = Program::start(["serve", "--config", &self.path("bulkhead.toml").display().to_string()])?;
        let line = gateway.wait_for("listening on http://")?;
        let address = line.rsplit_once("http://").context("no address")?.1.trim().to_owned();
        Ok((gateway, address))
    }

    fn client(&self, address: &str, who: usize) -> Result<Client> {
        Ok(Client::new(address.parse()?, Some(&self.keys[who])))
    }

    /// An operator's command: whether it was done, and what it said.
    fn audit(&self, address: &str, who: usize, arguments: &[&str]) -> Result<(bool, String)> {
        let mut command = Command::new(binary("bulkhead")?);
        command.arg("audit").args(arguments).args(["--address", &format!("http://{address}")]);
        let output = command.env("BULKHEAD_OPERATOR_KEY", &self.keys[who]).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(said)?))
    }

    /// What the verifier says of a receipt.
    fn verified(&self, receipt: &str) -> Result<Value> {
        std::fs::write(self.path("receipt"), receipt)?;
        let mut verify = Command::new(binary("bulkhead-verify")?);
        verify.arg("receipt").arg(self.path("receipt")).arg("--json").arg("--key").arg(self.path("data/log/log.vkey"));
        Ok(serde_json::from_slice(&run(&mut verify)?.stdout)?)
    }
}

/// Files of a tenant's keys.
fn key_files(site: &Site, tenant: &str) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for file in std::fs::read_dir(site.path("data/log/keys/tenants"))? {
        let path = file?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with(&format!("{tenant}.")) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn expect((done, said): (bool, String), wanted: bool, words: &str) -> Result<String> {
    ensure!(done == wanted && said.contains(words), "{done} instead of {wanted} `{words}`: {said}");
    Ok(said)
}

fn put_back(backup: &[u8], place: &Path) -> Result<()> {
    Ok(std::fs::write(place, backup)?)
}

const ADA: usize = 2;
const BEN: usize = 3;

#[test]
fn what_is_held_stays_and_what_two_persons_erase_is_gone_for_ever() -> Result<()> {
    let site = Site::new()?;
    let (gateway, at) = site.serve()?;
    let (acme, globex) = (site.client(&at, 0)?, site.client(&at, 1)?);
    let asked = |client: &Client| Ok::<_, anyhow::Error>(client.ask(&chat("smol", "Name a river.", 4, false))?.1);
    let (of_acme, of_globex) = (asked(&acme)?, asked(&globex)?);
    let held_by_acme = acme.receipt(&of_acme)?;
    ensure!(site.verified(&held_by_acme)?["tenant"] == "acme");
    let key = key_files(&site, "acme")?.first().context("acme has no key")?.clone();
    let backup = std::fs::read(&key)?;

    // A hold forbids it, and takes two persons to end.
    let erase = ["erase", "--tenant", "acme", "--basis", "request"];
    let hold = ["hold", "--tenant", "acme", "--reason", "litigation", "--json"];
    let said = expect(site.audit(&at, ADA, &hold)?, true, "hold")?;
    let hold: Value = serde_json::from_str(said.trim())?;
    let hold = hold["hold"].as_str().context("no id")?.to_owned();
    expect(site.audit(&at, ADA, &["holds"])?, true, &format!("{hold}  acme: litigation"))?;
    for who in [ADA, BEN] {
        expect(site.audit(&at, who, &erase)?, false, &format!("{hold} forbids it"))?;
    }
    expect(site.audit(&at, ADA, &["release", &hold])?, true, "proposed")?;
    expect(site.audit(&at, ADA, &["release", &hold])?, false, "second person")?;
    expect(site.audit(&at, BEN, &["release", &hold])?, true, "released, entry ")?;
    expect(site.audit(&at, ADA, &["holds"])?, true, "nothing is held")?;
    expect(site.audit(&at, ADA, &["release", &hold])?, false, "(404)")?;

    // Two persons who say the same; no tenant's key is a person's.
    expect(site.audit(&at, 0, &erase)?, false, "(401)")?;
    expect(site.audit(&at, ADA, &erase)?, true, "proposed: the keys of the epochs [")?;
    expect(site.audit(&at, ADA, &erase)?, false, "second person")?;
    let other = ["erase", "--tenant", "acme", "--basis", "order"];
    expect(site.audit(&at, BEN, &other)?, true, "proposed")?;
    ensure!(key.is_file(), "one person has erased it");
    expect(site.audit(&at, ADA, &other)?, true, ": erased, entry ")?;
    ensure!(key_files(&site, "acme")?.is_empty(), "the key is still there");
    expect(site.audit(&at, BEN, &erase)?, true, ": was erased before, as entry ")?;
    expect(site.audit(&at, BEN, &["erase", "--tenant", "initech", "--basis", "request"])?, false, "(404)")?;

    // The record stays, the client's own receipt opens it, and nobody else's is hurt.
    ensure!(site.verified(&acme.receipt(&of_acme)?)?["tenant"].is_null());
    ensure!(site.verified(&held_by_acme)?["tenant"] == "acme");
    ensure!(site.verified(&globex.receipt(&of_globex)?)?["tenant"] == "globex");
    let next = asked(&acme)?;
    ensure!(site.verified(&acme.receipt(&next)?)?["tenant"] == "acme", "its next answers have another key");
    expect(site.audit(&at, ADA, &["erase", "--tenant", "acme", "--list"])?, true, "erased (order), entry ")?;

    // A backup brings nothing back, while it runs or at a start.
    put_back(&backup, &key)?;
    ensure!(site.verified(&acme.receipt(&of_acme)?)?["tenant"].is_null());
    gateway.stop()?;
    let (gateway, at) = site.serve()?;
    ensure!(!key.exists(), "an erased key stayed where it was put");
    let acme = site.client(&at, 0)?;
    ensure!(site.verified(&acme.receipt(&of_acme)?)?["tenant"].is_null());
    ensure!(site.verified(&acme.receipt(&next)?)?["tenant"] == "acme");
    gateway.stop()?;
    let checked = run(Command::new(binary("bulkhead-verify")?).arg("log").arg(site.path("data/log")).arg("--json"))?;
    let report: Value = serde_json::from_slice(&checked.stdout)?;
    ensure!(
        (&report["erasures"], &report["erasures_not_done"], &report["holds"]) == (&json!(1), &json!(0), &json!(0)),
        "{report}"
    );
    ensure!(report["entries"]["erased"] == 2 && report["entries"]["release"] == 1, "{report}");
    Ok(())
}
