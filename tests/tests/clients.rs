//! Real clients: the official Python package, a COSE library, and the README's lines as they are written.

use anyhow::{Result, ensure};
use e2e::{Demo, binary, repository, run};
use std::process::Command;

fn python(script: &str) -> Result<()> {
    let demo = Demo::start()?;
    let interpreter = repository().join(".venv/bin/python");
    ensure!(interpreter.is_file(), "{} is missing; `./x test` makes it", interpreter.display());
    let output = run(Command::new(interpreter)
        .arg(repository().join("tests/clients").join(script))
        .env("BULKHEAD_URL", format!("http://{}", demo.address))
        .env("BULKHEAD_KEY_ACME", &demo.tenants[0].key)
        .env("BULKHEAD_KEY_GLOBEX", &demo.tenants[1].key)
        .env("BULKHEAD_VERIFY", binary("bulkhead-verify")?)
        .env("BULKHEAD_PROGRAM", binary("bulkhead")?))?;
    eprint!("{}", String::from_utf8_lossy(&output.stdout));
    let said = demo.stop()?;
    ensure!(!said.contains("panicked"), "the gateway panicked: {said}");
    Ok(())
}

#[test]
fn the_official_client_gets_its_answers() -> Result<()> {
    python("openai_answers.py")
}

#[test]
fn the_official_client_gets_its_errors() -> Result<()> {
    python("openai_errors.py")
}

#[test]
fn a_published_cose_library_verifies_a_receipt() -> Result<()> {
    python("cose_receipt.py")
}

#[test]
fn the_readme_s_lines_work_as_written() -> Result<()> {
    python("readme_lines.py")
}
