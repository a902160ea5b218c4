//! The other engine: `llama-cpp-python` in a process of its own, told over its standard input what to time.

use super::Spread;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Loads the model, says its version, then answers each line with seconds.
const SCRIPT: &str = include_str!("peer_llama_cpp.py");

/// A running peer.
pub(super) struct Peer {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    version: String,
}

/// What the peer reached, and the engine in relation to it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    name: &'static str,
    version: String,
    prefill: Vec<Row>,
    decode: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// Prompt tokens of a prefill, sequences of a decode.
    size: usize,
    tokens_per_second: Spread,
    /// The engine's median through the peer's.
    engine_ratio: f64,
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
        let answers = BufReader::new(child.stdout.take().context("the peer has no output")?);
        let mut peer = Self { child, commands, answers, version: String::new() };
        peer.version = peer.answer().with_context(|| {
            format!(
                "llama-cpp-python does not run in `{0}` (install it there: {0} -m pip install llama-cpp-python)",
                python.display()
            )
        })?;
        Ok(peer)
    }

    pub(super) fn report(&self) -> Report {
        Report { name: "llama-cpp-python", version: self.version.clone(), prefill: Vec::new(), decode: Vec::new() }
    }

    /// Time to compute a prompt.
    pub(super) fn prefill(&mut self, prompt: &[u32]) -> Result<Duration> {
        self.time(&format!("prefill {}", words(prompt)))
    }

    /// Time to decode `tokens` after a prompt, which does not count.
    pub(super) fn decode(&mut self, prompt: &[u32], tokens: usize) -> Result<Duration> {
        self.time(&format!("decode {tokens} {}", words(prompt)))
    }

    fn time(&mut self, command: &str) -> Result<Duration> {
        writeln!(self.commands, "{command}").context("the peer has ended")?;
        let answer = self.answer()?;
        let seconds: f64 = answer.parse().with_context(|| format!("the peer answered `{answer}`"))?;
        Duration::try_from_secs_f64(seconds).context("the peer's time is impossible")
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the peer has ended");
        }
        Ok(line.trim().to_owned())
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

impl Report {
    pub(super) fn add_prefill(&mut self, size: usize, tokens_per_second: Spread, engine: Spread) {
        self.prefill.push(Row { size, tokens_per_second, engine_ratio: engine.median / tokens_per_second.median });
    }

    pub(super) fn add_decode(&mut self, size: usize, tokens_per_second: Spread, engine: Spread) {
        self.decode.push(Row { size, tokens_per_second, engine_ratio: engine.median / tokens_per_second.median });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}, in turn with the engine:", self.name, self.version)?;
        for Row { size, tokens_per_second, engine_ratio } in &self.prefill {
            writeln!(
                f,
                "prefill {size:>4} tokens   {tokens_per_second} tokens/s; the engine reaches {engine_ratio:.2} of it"
            )?;
        }
        for Row { size, tokens_per_second, engine_ratio } in &self.decode {
            writeln!(
                f,
                "decode batch {size:>3}      {tokens_per_second} tokens/s; the engine reaches {engine_ratio:.2} of it"
            )?;
        }
        Ok(())
    }
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

    #[test]
    fn a_peer_is_told_tokens_and_answers_seconds() {
        let mut peer =
            start("echo 1.2.3; read a b c; [ \"$a $b $c\" = 'prefill 5 7' ] && echo 0.5; read a; echo 0.25").unwrap();
        assert_eq!(peer.report().version, "1.2.3");
        assert_eq!(peer.prefill(&[5, 7]).unwrap(), Duration::from_millis(500));
        assert_eq!(peer.decode(&[5], 9).unwrap(), Duration::from_millis(250));
    }

    #[test]
    fn a_peer_that_is_missing_fails_or_talks_nonsense_is_an_error() {
        assert!(format!("{:#}", start("exit 1").err().unwrap()).contains("pip install llama-cpp-python"));
        assert!(Peer::start(Path::new("there-is-no-python"), Path::new("m"), 1).is_err());
        let mut peer = start("echo 1; read a; echo soon; read a; echo -1; read a; exit 0").unwrap();
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("`soon`"));
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("impossible"));
        assert!(peer.prefill(&[1]).unwrap_err().to_string().contains("has ended"));
    }
}
