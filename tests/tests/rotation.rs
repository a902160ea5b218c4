//! The key of a gateway's log is changed with the program's own commands, and a tenant that knows only the former one checks its
//! receipts all the same.

use anyhow::{Context, Result, ensure};
use audit_tlog::{Checkpoint, LogSigner, TlogProof};
use e2e::{Client, Program, binary, chat, model_path, run};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

struct Site {
    folder: TempDir,
    key: String,
}

impl Site {
    fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let data = folder.path().join("data").display().to_string();
        let cache = binary("bulkhead")?.with_file_name("weights-cache");
        let made = run(Command::new(binary("bulkhead")?).args(["key", "new", "acme", "--data-dir", &data]))?;
        let said = String::from_utf8(made.stderr)?;
        let key = said.lines().find(|line| !line.starts_with('#')).context("no key")?.trim().to_owned();
        let config = format!(
            "listen = \"127.0.0.1:0\"\ndata_dir = \"data\"\nmodel = {:?}\nserved_name = \"smol\"\nweights_cache = {cache:?}\n\
             [engine]\nthreads = 2\npages = 256\n{}",
            model_path()?,
            String::from_utf8(made.stdout)?,
        );
        std::fs::write(folder.path().join("bulkhead.toml"), config)?;
        Ok(Self { folder, key })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn serve(&self) -> Result<(Program, Client)> {
        let mut gateway = Program::start(["serve", "--config", &self.path("bulkhead.toml").display().to_string()])?;
        let line = gateway.wait_for("listening on http://")?;
        let address = line.rsplit_once("http://").context("no address")?.1.trim().parse()?;
        Ok((gateway, Client::new(address, Some(&self.key))))
    }

    /// `bulkhead audit rotate`: whether it was done, and what it said.
    fn rotate(&self, more: &[&str]) -> Result<(bool, String)> {
        let config = self.path("bulkhead.toml").display().to_string();
        let mut command = Command::new(binary("bulkhead")?);
        let output = command.args(["audit", "rotate", "--config", &config]).args(more).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(said)?))
    }

    /// Whether `bulkhead-verify` takes it, and what it says.
    fn verify(&self, arguments: &[&str]) -> Result<(bool, String)> {
        let output =
            Command::new(binary("bulkhead-verify")?).args(arguments).current_dir(self.folder.path()).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((output.status.success(), String::from_utf8(said)?))
    }

    /// A bundle of all that the tenant has asked.
    fn bundle(&self, name: &str) -> Result<()> {
        let (dir, bundle) = (self.path("data/log").display().to_string(), self.path(name).display().to_string());
        let mut report = Command::new(binary("bulkhead")?);
        report.args(["audit", "report", "--log", &dir, "--tenant", "acme", "--from", "0", "--to", "4000000000"]);
        run(report.args(["--output", &bundle])).map(drop)
    }

    /// Puts another checkpoint under a text receipt: of the same tree, signed by a key that somebody has.
    fn sign_again(&self, receipt: &str, name: &str, signer: &LogSigner) -> Result<()> {
        let mut proof = TlogProof::parse(&std::fs::read(self.path(receipt))?)?;
        let (text, _) = proof.checkpoint.split_once("\n\n").context("no checkpoint")?;
        proof.checkpoint = Checkpoint::from_text(format!("{text}\n").as_bytes())?.sign(signer)?;
        Ok(std::fs::write(self.path(name), proof.encode())?)
    }

    /// Asks something; the receipt lies in a file of that name then.
    fn receipt(&self, client: &Client, name: &str) -> Result<()> {
        let (_, id) = client.ask(&chat("smol", "Say one word.", 2, false))?;
        Ok(std::fs::write(self.path(name), client.receipt(&id)?)?)
    }
}

#[test]
fn a_gateway_goes_on_while_its_log_changes_its_key() -> Result<()> {
    let site = Site::new()?;
    let (done, said) = site.rotate(&[])?;
    ensure!(!done && said.contains("there is no log"), "{said}");
    let (gateway, client) = site.serve()?;
    std::fs::write(site.path("former.vkey"), client.get("/v1/isolation/key")?.body)?;
    site.receipt(&client, "before")?;
    let stolen = std::fs::read_to_string(site.path("data/log/keys/log.skey"))?;
    let stolen = LogSigner::parse(stolen.trim_end())?;
    ensure!(client.get("/v1/isolation/rotations/1")?.status == 404);
    let (done, said) = site.rotate(&[])?;
    ensure!(!done && said.contains("in use by another writer"), "while the gateway runs: {said}");
    gateway.stop()?;

    let (done, said) = site.rotate(&["--json"])?;
    ensure!(done, "{said}");
    let rotated: Value = serde_json::from_str(&said)?;
    let next = rotated["next"].as_str().context("no key")?.to_owned();
    let former = std::fs::read_to_string(site.path("former.vkey"))?;
    ensure!(rotated["former"] == former.trim() && rotated["both_sign"] == true, "{said}");
    std::fs::write(site.path("next.vkey"), &next)?;

    let (gateway, client) = site.serve()?;
    site.receipt(&client, "during")?;
    std::fs::write(site.path("rotation"), client.get("/v1/isolation/rotations/1")?.body)?;
    for path in ["2", "0", "01", "", "x"] {
        ensure!(client.get(&format!("/v1/isolation/rotations/{path}"))?.status == 404, "{path}");
    }
    gateway.stop()?;
    for key in ["former.vkey", "next.vkey"] {
        let (genuine, said) = site.verify(&["receipt", "during", "--key", key])?;
        ensure!(genuine, "while both sign, {key}: {said}");
    }
    let following = ["--key", "former.vkey", "--rotation", "rotation"];
    site.sign_again("during", "during-forged", &stolen)?;
    let (genuine, said) = site.verify(&[&["receipt", "during-forged"][..], &following].concat())?;
    ensure!(!genuine && said.contains("not signed by the key that the log has at this size"), "{said}");
    // Evidence that is made meanwhile has the word of the key that goes on.
    site.bundle("during.tar")?;
    let (genuine, said) = site.verify(&[&["bundle", "during.tar"][..], &following].concat())?;
    ensure!(genuine, "{said}");

    let (done, said) = site.rotate(&["--finish"])?;
    ensure!(done && said.contains(&format!("the log's key is {next}")), "{said}");
    let (done, said) = site.rotate(&["--finish"])?;
    ensure!(!done && said.contains("or it is finished"), "{said}");
    let (gateway, client) = site.serve()?;
    std::fs::write(site.path("finish"), client.get("/v1/isolation/rotations/2")?.body)?;
    ensure!(client.get("/v1/isolation/key")?.text()?.trim() == next);
    site.receipt(&client, "after")?;
    gateway.stop()?;
    let (genuine, said) = site.verify(&["receipt", "after", "--key", "former.vkey"])?;
    ensure!(!genuine && said.contains("not signed by the expected key"), "{said}");
    let signed = format!("signed with {next}, which entry {} names", rotated["entry"]);
    let (genuine, said) = site.verify(&["receipt", "after", "--key", "former.vkey", "--rotation", "rotation"])?;
    ensure!(genuine && said.contains(&signed), "{said}");
    // Whoever has stolen the former key signs the very tree that the log has, and is not believed.
    site.sign_again("after", "forged", &stolen)?;
    let (genuine, said) = site.verify(&["receipt", "forged", "--key", "former.vkey"])?;
    ensure!(genuine, "who knows no rotation cannot know: {said}");
    let finished = ["--key", "former.vkey", "--rotation", "rotation", "--rotation", "finish"];
    for known in [&following[..], &finished] {
        let (genuine, said) = site.verify(&[&["receipt", "forged"][..], known].concat())?;
        ensure!(!genuine && said.contains("not signed by the key that the log has at this size"), "{said}");
        let (genuine, said) = site.verify(&[&["receipt", "after"][..], known].concat())?;
        ensure!(genuine && said.contains(&signed), "{said}");
    }
    let (genuine, said) = site.verify(&["receipt", "forged", "--key", "next.vkey"])?;
    ensure!(!genuine, "{said}");
    let (genuine, said) = site.verify(&["receipt", "before", "--key", "former.vkey", "--rotation", "rotation"])?;
    ensure!(genuine && said.contains("the given key"), "{said}");
    let (sound, said) = site.verify(&["log", "data/log", "--key", "former.vkey"])?;
    ensure!(sound && said.contains(&signed) && said.contains("2 key_rotation"), "{said}");

    // Evidence that is made now holds under the former key, by the same entry.
    site.bundle("acme.tar")?;
    let (genuine, said) = site.verify(&["bundle", "acme.tar", "--key", "former.vkey"])?;
    ensure!(!genuine, "{said}");
    let (genuine, said) = site.verify(&["bundle", "acme.tar", "--key", "former.vkey", "--rotation", "rotation"])?;
    ensure!(genuine && said.contains(&signed), "{said}");
    Ok(())
}
