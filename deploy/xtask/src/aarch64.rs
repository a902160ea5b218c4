//! The engine on 64-bit ARM, from any machine: checked where rustup has the target, tested where an emulator is too.
//!
//! Nothing here is installed for `ci` but the target itself, and CI goes on where even that cannot be had.

use crate::phase::{command_line, execute};
use crate::setup::{cargo, command, model};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const TARGET: &str = "aarch64-unknown-linux-gnu";
/// The code that differs on the machine.
const KERNELS: [&str; 2] = ["-p", "engine-kernels"];
/// What computes with it. Its hash function is partly C, so that a cross compiler is needed.
const MODEL: [&str; 2] = ["-p", "engine-model"];
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";

/// Clippy for the target, with warnings denied; where the target cannot be installed, or there is no cross compiler, a
/// line that says so.
pub(crate) fn check(root: &Path) -> Result<()> {
    if let Err(error) = target(root) {
        eprintln!("skipped: {error:#}");
        return Ok(());
    }
    let mut clippy = cargo(root);
    clippy.arg("clippy").args(KERNELS);
    if program(LINKER).is_some() {
        clippy.args(MODEL);
    } else {
        eprintln!("skipped: engine-model, which needs `{LINKER}`");
    }
    clippy.args(["--all-targets", "--locked", "--target", TARGET, "--", "-D", "warnings"]);
    execute(&mut clippy)
}

/// The crates' tests under the emulator, or those that `filter` names; among them the one that compares the bits of the
/// default model's logits with those of every other machine.
pub(crate) fn test(root: &Path, filter: &[String]) -> Result<()> {
    target(root)?;
    model(root)?;
    let (linker, emulator) = (program(LINKER), program(EMULATOR));
    let (Some(linker), Some(emulator)) = (linker, emulator) else {
        bail!(
            "`{LINKER}` and `{EMULATOR}` are needed: \
             on Debian, apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        );
    };
    let mut tests = cargo(root);
    tests
        .arg("test")
        .args(KERNELS)
        .args(MODEL)
        .args(["--lib", "--test", "numerics", "--locked", "--target", TARGET, "--"]);
    tests.args(filter);
    // Linked statically, so that the emulator needs no libraries of the other machine; `max` has every instruction.
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", linker);
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", "-C target-feature=+crt-static");
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{} -cpu max", emulator.display()));
    execute(&mut tests)
}

/// The target's standard library, installed where it is missing.
fn target(root: &Path) -> Result<()> {
    let is_there = || -> Result<bool> {
        let output = command(root, "rustc").args(["--print", "sysroot"]).output().context("could not start rustc")?;
        let sysroot = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        Ok(sysroot.join("lib/rustlib").join(TARGET).join("lib").is_dir())
    };
    if is_there()? {
        return Ok(());
    }
    let mut install = command(root, "rustup");
    install.args(["target", "add", TARGET]).stdin(Stdio::null());
    let line = command_line(&install);
    let installed = install.status().is_ok_and(|status| status.success()) && is_there()?;
    if !installed {
        bail!("no standard library for {TARGET}; get it with: {line}");
    }
    Ok(())
}

/// Where a program is in the path.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_by_name_and_missing_ones_are_not() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!(program("there-is-no-such-program"), None);
    }
}
