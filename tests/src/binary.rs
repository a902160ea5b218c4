//! Where the built programs and the model lie.

use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A program of this workspace, built beside the running test.
///
/// # Errors
/// When it was not built: `./x test` builds it.
pub fn binary(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe().context("the test does not know its own path")?;
    // target/<profile>/deps/<test> -> target/<profile>/<name>
    let profile = test.parent().and_then(Path::parent).context("the test lies in no target folder")?;
    let path = profile.join(name);
    ensure!(path.is_file(), "{} is not built; `./x test` builds it", path.display());
    Ok(path)
}

/// The root of the repository.
#[must_use]
pub fn repository() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    tests.parent().unwrap_or(tests).to_path_buf()
}

/// The default model's file.
///
/// # Errors
/// When it is not there: `./x test` fetches it.
pub fn model_path() -> Result<PathBuf> {
    let path = match std::env::var_os("BULKHEAD_TEST_MODEL") {
        Some(path) => PathBuf::from(path),
        None => {
            let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
            let data = std::env::var_os("XDG_DATA_HOME").map_or_else(|| home.join(".local/share"), PathBuf::from);
            data.join("bulkhead/models/SmolLM2-135M-Instruct.Q4_1.gguf")
        }
    };
    ensure!(path.is_file(), "{} is not there; `./x test` fetches the model", path.display());
    Ok(path)
}

/// Runs a program to its end.
///
/// # Errors
/// With its output when it cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("cannot start {:?}", command.get_program()))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{:?} ended with {}\n{out}\n{err}", command.get_program(), output.status);
    }
    Ok(output)
}
