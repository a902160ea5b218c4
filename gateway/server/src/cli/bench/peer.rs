//! The other engine: `llama-cpp-python` in a process of its own, told over its standard input what to time.

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Loads the model, says what it is, then answers each line with seconds and its settings.
const SCRIPT: &str = include_str!("peer_llama_cpp.py");

/// A running peer.
pub(super) struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    facts: Facts,
}

/// What the peer says of itself.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Facts {
    pub(super) version: String,
    /// Kind of model and of weights.
    pub(super) weights: String,
    /// The instructions that it was compiled for.
    pub(super) system: String,
    /// Its repacked weights run in passes of several tokens on this machine.
    pub(super) batches_repacked: bool,
}

/// Whether a Python has the peer's package: asked before anything is measured.
pub(super) fn check(python: &Path) -> Result<()> {
    let mut import = Command::new(python);
    import.args(["-c", "import llama_cpp"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let status = import.status().with_context(|| format!("`{}` cannot be started", python.display()))?;
    if status.success() { Ok(()) } else { Err(missing(python)) }
}

fn missing(python: &Path) -> anyhow::Error {
    let python = python.display();
    anyhow::anyhow!(
        "llama-cpp-python does not run in `{python}` (install it there: {python} -m pip install llama-cpp-python)"
    )
}

impl Peer {
    pub(super) fn start(python: &Path, model: &Path, threads: usize) -> Result<Self> {
        let mut child = Command::new(python)
            .args(["-c", SCRIPT])
            .arg(model)
            .arg(threads.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("`{}` cannot be started", python.display()))?;
        let commands = child.stdin.take().context("the peer has no input")?;
        let mut answers = BufReader::new(child.stdout.take().context("the peer has no output")?);
        let first = read_line(&mut answers).map_err(|error| error.context(missing(python)))?;
        match serde_json::from_str(&first) {
            Ok(facts) => Ok(Self { child, commands, answers, facts }),
            Err(_) => bail!("the peer's first line is `{first}`"),
        }
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Time to compute a prompt, and the settings used.
    pub(super) fn prefill(&mut self, prompt: &[u32]) -> Result<(Duration, String)> {
        self.time(&format!("prefill {}", words(prompt)))
    }

    /// Time of `steps` in which `batch` sequences decode a token each, after a prompt that does not count.
    pub(super) fn decode(&mut self, batch: usize, steps: usize, prompt: &[u32]) -> Result<(Duration, String)> {
        self.time(&format!("decode {batch} {steps} {}", words(prompt)))
    }

    fn time(&mut self, command: &str) -> Result<(Duration, String)> {
        writeln!(self.commands, "{command}").context("the peer has ended")?;
        let answer = read_line(&mut self.answers)?;
        let (seconds, settings) = answer.split_once(' ').unwrap_or((&answer, ""));
        let seconds: f64 = seconds.parse().with_context(|| format!("the peer answered `{answer}`"))?;
        let time = Duration::try_from_secs_f64(seconds).context("the peer's time is impossible")?;
        if time.is_zero() {
            bail!("the peer's time is impossible");
        }
        Ok((time, settings.to_owned()))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends by itself when its input does; this does not wait for it to finish its work.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn words(tokens: &[u32]) -> String {
    tokens.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}

fn read_line(answers: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if answers.read_line(&mut line)? == 0 {
        bail!("the peer has ended");
    }
    Ok(line.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A stand-in for Python that runs these shell lines.
    fn start(lines: &str) -> Result<Peer> {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("python");
        std::fs::write(&python, format!("#!/bin/sh\n{lines}\n")).unwrap();
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).unwrap();
        Peer::start(&python, Path::new("model.gguf"), 2)
    }

    const FACTS: &str = r#"echo '{"version":"1.2.3","weights":"Q4","system":"CPU","batches_repacked":true}'"#;

    #[test]
    fn a_peer_is_told_tokens_and_answers_seconds_and_settings() {
        let mut peer = start(&format!(
            "{FACTS}; read a b c; [ \"$a $b $c\" = 'prefill 5 7' ] && echo '0.5 fast, loud'\n\
             read a b c d; [ \"$a $b $c $d\" = 'decode 2 9 5' ] && echo 0.25"
        ))
        .unwrap();
        assert_eq!((peer.facts().version.as_str(), peer.facts().weights.as_str()), ("1.2.3", "Q4"));
        assert_eq!(peer.prefill(&[5, 7]).unwrap(), (Duration::from_millis(500), "fast, loud".to_owned()));
        assert_eq!(peer.decode(2, 9, &[5]).unwrap(), (Duration::from_millis(250), String::new()));
    }

    #[test]
    fn a_peer_that_is_missing_fails_or_talks_nonsense_is_an_error() {
        assert!(format!("{:#}", start("exit 1").err().unwrap()).contains("pip install llama-cpp-python"));
        assert!(Peer::start(Path::new("there-is-no-python"), Path::new("m"), 1).is_err());
        assert!(start("echo 1.2.3").err().unwrap().to_string().contains("first line is `1.2.3`"));
        let mut peer =
            start(&format!("{FACTS}; read a; echo soon; read a; echo -1; read a; echo 0; read a; exit 0")).unwrap();
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("`soon`"));
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("impossible"));
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("impossible"), "no time at all");
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("has ended"));
    }
}
