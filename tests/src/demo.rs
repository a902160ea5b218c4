//! One `bulkhead demo --json` as a child process.

use crate::{Client, binary, model_path};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

/// A tenant of the demo.
#[derive(Debug, Clone)]
pub struct Tenant {
    /// Its name.
    pub id: String,
    /// Its API key.
    pub key: String,
}

/// A running demo with a data folder of its own; killed when dropped.
#[derive(Debug)]
pub struct Demo {
    child: Child,
    stderr: Option<JoinHandle<String>>,
    /// Where it listens.
    pub address: SocketAddr,
    /// Its audit log.
    pub log_dir: PathBuf,
    /// The served model's name.
    pub model: String,
    /// `acme`, `globex`.
    pub tenants: Vec<Tenant>,
    /// Its own data folder, when it was given none.
    _directory: Option<tempfile::TempDir>,
}

impl Demo {
    /// Starts a demo on a free port, with a data folder of its own.
    ///
    /// # Errors
    /// With what it said when it did not become ready.
    pub fn start() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut demo = Self::start_in(directory.path(), &[])?;
        demo._directory = Some(directory);
        Ok(demo)
    }

    /// The same with its data in `data`, which stays, and more environment variables.
    ///
    /// # Errors
    /// With what it said when it did not become ready.
    pub fn start_in(data: &Path, environment: &[(&str, &str)]) -> Result<Self> {
        // Beside the program, for all tests: nothing of theirs goes into the user's own cache.
        let cache = binary("bulkhead")?.with_file_name("weights-cache");
        Self::start_all(data, environment, &cache)
    }

    /// Starts a demo whose repacked weights are kept in `cache`.
    ///
    /// # Errors
    /// With what it said when it did not become ready.
    pub fn start_with_cache(cache: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let mut demo = Self::start_all(directory.path(), &[], cache)?;
        demo._directory = Some(directory);
        Ok(demo)
    }

    fn start_all(data: &Path, environment: &[(&str, &str)], cache: &Path) -> Result<Self> {
        let mut command = Command::new(binary("bulkhead")?);
        command.args(["demo", "--json", "--listen", "127.0.0.1:0", "--model"]).arg(model_path()?);
        command.arg("--weights-cache").arg(cache);
        command.arg("--data-dir").arg(data).envs(environment.iter().copied());
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut pipe = child.stderr.take().context("no stderr")?;
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            // A demo that writes something other than text shows in what is missing.
            let _partial = pipe.read_to_string(&mut text);
            text
        });
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no stdout")?).read_line(&mut line)?;
        if line.is_empty() {
            let status = child.wait()?;
            anyhow::bail!("the demo ended with {status}: {}", stderr.join().unwrap_or_default());
        }
        let ready: Value = serde_json::from_str(&line).with_context(|| format!("not JSON: {line}"))?;
        let text = |value: &Value| value.as_str().map(str::to_string).context("not a string");
        let address = text(&ready["address"])?;
        let tenants = ready["tenants"].as_array().context("no tenants")?.iter();
        let tenants = tenants.map(|t| Ok(Tenant { id: text(&t["id"])?, key: text(&t["key"])? }));
        Ok(Self {
            address: address.trim_start_matches("http://").trim_end_matches('/').parse().context("no address")?,
            log_dir: text(&ready["log_dir"])?.into(),
            model: text(&ready["model"])?,
            tenants: tenants.collect::<Result<_>>()?,
            child,
            stderr: Some(stderr),
            _directory: None,
        })
    }

    /// A client with the key of the tenant at `place`.
    ///
    /// # Errors
    /// When there is no such tenant.
    pub fn client(&self, place: usize) -> Result<Client> {
        let tenant = self.tenants.get(place).context("no such tenant")?;
        Ok(Client::new(self.address, Some(&tenant.key)))
    }

    /// The demo's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Asks it to end, waits for that, and returns what it wrote to stderr.
    ///
    /// # Errors
    /// When it ends in any other way than success.
    pub fn stop(mut self) -> Result<String> {
        crate::run(Command::new("kill").args(["-TERM", &self.child.id().to_string()]))?;
        let status = self.child.wait()?;
        let stderr = self.stderr.take().and_then(|reader| reader.join().ok()).unwrap_or_default();
        ensure!(status.success(), "the demo ended with {status}: {stderr}");
        Ok(stderr)
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Already gone after `stop`.
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}
