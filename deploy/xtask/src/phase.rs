//! One step of a longer run: a name, a command, how long it took.

use anyhow::{Context, Result, bail};
use std::process::Command;
use std::time::{Duration, Instant};

/// What ran so far, for the table at the end.
#[derive(Default)]
pub(crate) struct Phases {
    done: Vec<(&'static str, Duration)>,
}

impl Phases {
    /// Runs `work` under a headline and records its time.
    pub(crate) fn run<T>(&mut self, name: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("== {name}");
        let start = Instant::now();
        let result = work().with_context(|| format!("phase `{name}` failed"));
        let took = start.elapsed();
        eprintln!("== {name}: {} after {}", if result.is_ok() { "ok" } else { "FAILED" }, seconds(took));
        self.done.push((name, took));
        result
    }

    /// The table of phases and times.
    pub(crate) fn print(&self) {
        for (name, took) in &self.done {
            eprintln!("{name:<16} {:>9}", seconds(*took));
        }
        let total = self.done.iter().map(|(_, took)| *took).sum();
        eprintln!("{:<16} {:>9}", "total", seconds(total));
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

/// Runs a command with the terminal's own input and output; an error names what to type to repeat it.
pub(crate) fn execute(command: &mut Command) -> Result<()> {
    let line = command_line(command);
    eprintln!("$ {line}");
    let status = command.status().with_context(|| format!("could not start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` ended with {status}");
    }
    Ok(())
}

/// The command as one would type it.
pub(crate) fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| {
            let word = word.to_string_lossy();
            if word.is_empty() || word.contains(|c: char| c.is_whitespace() || "()&|$*'\"".contains(c)) {
                format!("'{}'", word.replace('\'', r"'\''"))
            } else {
                word.into_owned()
            }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_an_error_that_names_it() {
        let error = execute(Command::new("sh").args(["-c", "exit 3"])).unwrap_err().to_string();
        assert!(error.contains("sh -c 'exit 3'") && error.contains('3'), "{error}");
        let error = execute(&mut Command::new("there-is-no-such-program")).unwrap_err().to_string();
        assert!(error.contains("could not start `there-is-no-such-program`"), "{error}");
    }

    #[test]
    fn a_failing_phase_is_named_and_still_timed() {
        let mut phases = Phases::default();
        let error = phases.run("docs", || -> Result<()> { bail!("broken link") }).unwrap_err();
        assert_eq!(format!("{error:#}"), "phase `docs` failed: broken link");
        assert_eq!(phases.done.len(), 1);
    }
}
