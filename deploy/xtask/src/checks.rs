//! `test` and `ci`: the phases in their order, and the line of numbers that closes them.

use crate::phase::{Phases, execute};
use crate::{aarch64, architecture, setup};
use anyhow::{Context, Result, bail};
use std::path::Path;

/// Everything that CI checks.
pub(crate) fn ci(root: &Path) -> Result<()> {
    let mut phases = Phases::default();
    phases.run("format", || execute(setup::cargo(root).args(["fmt", "--all", "--check"])))?;
    phases.run("architecture", || architecture(root))?;
    phases.run("licences", || {
        setup::deny(root)?;
        // Advisories need a database from elsewhere: `cargo audit` is for whoever has it.
        execute(setup::cargo(root).args(["deny", "--locked", "check", "licenses", "bans", "sources"]))
    })?;
    phases.run("clippy", || {
        let clippy = ["clippy", "--workspace", "--features", setup::TESTED_FEATURES, "--all-targets", "--locked"];
        execute(setup::cargo(root).args(clippy).args(["--", "-D", "warnings"]))
    })?;
    phases.run("cuda", || {
        execute(setup::cargo(root).args(["check", "-p", "engine-cuda", "--features", "cuda", "--locked"]))
    })?;
    phases.run("aarch64", || aarch64::check(root))?;
    phases.run("docs", || {
        execute(setup::cargo(root).env("RUSTDOCFLAGS", "-D warnings").args([
            "doc",
            "--workspace",
            "--no-deps",
            "--locked",
        ]))
    })?;
    run_tests(root, &mut phases, &[])
}

/// Every test, or those that `filter` names.
pub(crate) fn test(root: &Path, filter: &[String]) -> Result<()> {
    run_tests(root, &mut Phases::default(), filter)
}

fn run_tests(root: &Path, phases: &mut Phases, filter: &[String]) -> Result<()> {
    let chosen = filter.iter().any(|word| word == "-p" || word == "--package" || word.starts_with("--package="));
    phases.run("set-up", || {
        setup::nextest(root)?;
        setup::python_clients(root)?;
        setup::foreign_tools()
    })?;
    if !chosen || filter.iter().any(|word| word.ends_with("e2e")) {
        phases.run("build", || setup::programs(root))?;
    }
    phases.run("model", || setup::model(root))?;
    if filter.is_empty() {
        phases.run("doctests", || execute(setup::cargo(root).args(["test", "--workspace", "--doc", "--locked"])))?;
    }
    let report = setup::target(root).join("nextest/default/junit.xml");
    // An old report must not be taken for this run's.
    if report.exists() {
        std::fs::remove_file(&report).context("the last run's report cannot be removed")?;
    }
    let result = phases.run("tests", || {
        let mut nextest = setup::cargo(root);
        nextest.args(["nextest", "run", "--locked"]);
        if !chosen {
            nextest.args(["--workspace", "--features", setup::TESTED_FEATURES]);
        }
        execute(nextest.args(filter))
    });
    phases.print();
    if let Ok(report) = std::fs::read_to_string(&report) {
        println!("{}", counts(&report).context("the test report has no counts")?);
    }
    result
}

/// Compares the workspace with the rules and fails with every finding.
pub(crate) fn architecture(root: &Path) -> Result<()> {
    let findings = architecture::check(&architecture::Workspace::read(root)?);
    for finding in &findings {
        eprintln!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        number => bail!("{number} findings against the architecture"),
    }
}

/// `N passed, N failed, N skipped` from the head of a JUnit report.
fn counts(report: &str) -> Option<String> {
    let head = report.split_once("<testsuites ")?.1.split_once('>')?.0;
    let number =
        |name: &str| -> Option<usize> { head.split_once(&format!("{name}=\""))?.1.split_once('"')?.0.parse().ok() };
    let (tests, failed, skipped) = (number("tests")?, number("failures")? + number("errors")?, number("skipped")?);
    Some(format!("{} passed, {failed} failed, {skipped} skipped", tests.checked_sub(failed + skipped)?))
}

/// In a folder of its own: the program with the defects is not to be found where the one that serves is.
pub(crate) fn selftest(root: &Path, arguments: &[String]) -> Result<()> {
    let target = setup::target(root).join("selftest");
    execute(
        setup::cargo(root)
            .args(["run", "--quiet", "--release", "--locked", "-p", "gateway-server", "--features", "selftest"])
            .arg("--target-dir")
            .arg(target)
            .args(["--", "selftest"])
            .args(arguments),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_the_head_of_a_report() {
        let report = |head: &str| format!("<?xml version=\"1.0\"?>\n<testsuites {head}>\n<testsuite tests=\"9\">");
        assert_eq!(
            counts(&report(r#"name="nextest-run" tests="12" skipped="1" failures="2" errors="1""#)).as_deref(),
            Some("8 passed, 3 failed, 1 skipped")
        );
        assert_eq!(counts(&report(r#"tests="1" skipped="0" failures="2" errors="0""#)), None);
        assert_eq!(counts(&report(r#"tests="many" skipped="0" failures="0" errors="0""#)), None);
        assert_eq!(counts("nothing of the kind"), None);
    }
}
