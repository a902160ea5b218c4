//! Bad files, bad folders, a busy port, a full disk: each has its own clear message, and nobody else suffers.

use anyhow::{Context, Result, ensure};
use e2e::{Demo, binary, chat, model_path, run};
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What `bulkhead` says when it refuses to start.
fn refusal(arguments: &[&str]) -> Result<String> {
    let output = Command::new(binary("bulkhead")?).args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(!output.status.success(), "{arguments:?} succeeded: {said}");
    ensure!(!said.contains("panicked"), "{arguments:?} panicked: {said}");
    ensure!(output.status.code() == Some(1), "{arguments:?} ended with {}: {said}", output.status);
    Ok(said)
}

/// The real model with `change` done to its first bytes.
fn damaged(folder: &Path, name: &str, length: u64, change: impl FnOnce(&mut Vec<u8>)) -> Result<PathBuf> {
    let mut head = Vec::new();
    // Metadata and tensor list of the default model end well before this.
    std::fs::File::open(model_path()?)?.take(4 << 20).read_to_end(&mut head)?;
    change(&mut head);
    let path = folder.join(name);
    let mut file = std::fs::File::create(&path)?;
    file.write_all(&head)?;
    // The rest is a hole: the reader must refuse before it matters.
    file.seek(SeekFrom::Start(length.saturating_sub(1)))?;
    file.write_all(&[0])?;
    file.set_len(length)?;
    Ok(path)
}

/// Every place of `from` becomes `to`, which is as long.
fn replace(bytes: &mut [u8], from: &[u8], to: &[u8]) {
    for place in 0..bytes.len() - from.len() {
        if bytes[place..].starts_with(from) {
            bytes[place..place + to.len()].copy_from_slice(to);
        }
    }
}

#[test]
fn damaged_models_are_refused_by_name_of_the_damage() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let full = std::fs::metadata(model_path()?)?.len();
    let huge = u64::MAX.to_le_bytes();
    let cases: Vec<(&str, PathBuf, &[&str])> = vec![
        ("truncated", damaged(folder.path(), "truncated", 5 << 20, |_| ())?, &["tensor", "file"]),
        ("cut in its head", damaged(folder.path(), "head", 1000, |head| head.truncate(1000))?, &["tensors", "272"]),
        ("magic", damaged(folder.path(), "magic", full, |head| head[0] = b'X')?, &["GGUF"]),
        ("version", damaged(folder.path(), "version", full, |head| head[4] = 77)?, &["version", "77"]),
        ("tensor count", damaged(folder.path(), "tensors", full, |h| h[8..16].copy_from_slice(&huge))?, &["tensor"]),
        ("key count", damaged(folder.path(), "keys", full, |h| h[16..24].copy_from_slice(&huge))?, &["key"]),
        (
            "missing tensor",
            damaged(folder.path(), "missing", full, |h| replace(h, b"blk.7.attn_k.weight", b"blk.7.attn_X.weight"))?,
            &["blk.7.attn_X.weight"],
        ),
        ("architecture", damaged(folder.path(), "architecture", full, |h| replace(h, b"llama", b"lambd"))?, &["lambd"]),
    ];
    for (what, path, words) in cases {
        let path = path.to_str().context("not UTF-8")?;
        let said = refusal(&["demo", "--json", "--listen", "127.0.0.1:0", "--model", path])?;
        let lower = said.to_lowercase();
        ensure!(words.iter().all(|word| lower.contains(&word.to_lowercase())), "{what}: {said}");
        ensure!(said.len() < 2000, "{what}: too much text: {said}");
    }
    let said = refusal(&["demo", "--model", "/nowhere/at/all.gguf", "--listen", "127.0.0.1:0"])?;
    ensure!(said.contains("/nowhere/at/all.gguf"), "{said}");
    Ok(())
}

#[test]
fn a_busy_port_and_a_folder_that_cannot_be_written_are_named() -> Result<()> {
    let model = model_path()?;
    let model = model.to_str().context("not UTF-8")?;
    let busy = TcpListener::bind("127.0.0.1:0")?;
    let address = busy.local_addr()?.to_string();
    let port = busy.local_addr()?.port().to_string();
    let said = refusal(&["demo", "--json", "--model", model, "--listen", &address])?;
    ensure!(said.contains(&port) && said.contains("--listen"), "{said}");
    // Root may write to any folder, but nobody makes a folder below a file.
    let file = tempfile::NamedTempFile::new()?;
    let below = file.path().join("data");
    let below = below.to_str().context("not UTF-8")?;
    let said = refusal(&["demo", "--json", "--model", model, "--listen", "127.0.0.1:0", "--data-dir", below])?;
    ensure!(said.contains(below), "{said}");
    Ok(())
}

/// Unmounts when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with the reason printed, where mounting is not allowed.
    fn mount(bytes: u32) -> Result<Option<Self>> {
        let folder = tempfile::tempdir()?;
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(folder.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Ok(Some(Self(folder))),
            Ok(output) => {
                eprintln!("skipped: cannot mount a small disk: {}", String::from_utf8_lossy(&output.stderr).trim());
                Ok(None)
            }
            Err(error) => {
                eprintln!("skipped: no `mount`: {error}");
                Ok(None)
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the demo may still hold its log open for a moment.
        let _still_busy = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_means_503_and_not_a_byte_of_an_answer() -> Result<()> {
    let Some(disk) = SmallDisk::mount(2 << 20)? else { return Ok(()) };
    let data = disk.0.path().join("data");
    let demo = Demo::start_in(&data, &[])?;
    let acme = demo.client(0)?;
    let body = chat(&demo.model, "Say hello.", 4, false);
    acme.ask(&body)?;
    // Fill what is left.
    let ballast = disk.0.path().join("ballast");
    let full = std::fs::File::create(&ballast)?.write_all(&vec![0; 4 << 20]);
    ensure!(full.is_err(), "the disk is larger than it was made");
    let mut refused = None;
    // Room left in the log's last block may still take some entries.
    for _ in 0..200 {
        let response = acme.post("/v1/chat/completions", &body)?;
        if response.status != 200 {
            refused = Some(response);
            break;
        }
    }
    let refused = refused.context("a full disk was never noticed")?;
    ensure!(refused.status == 503, "status {}", refused.status);
    ensure!(refused.json()?["error"]["code"] == "audit_log_unavailable", "{:?}", refused.text());
    ensure!(refused.header("retry-after").is_some());
    ensure!(!refused.text()?.contains("choices"), "a part of an answer left");
    ensure!(acme.get("/readyz")?.status == 503, "a gateway that cannot answer is not ready");
    ensure!(acme.get("/healthz")?.status == 200, "it is alive");
    Ok(())
}

#[test]
fn a_client_that_floods_bad_requests_hurts_nobody() -> Result<()> {
    let demo = Demo::start()?;
    let (acme, globex) = (demo.client(0)?, demo.client(1)?);
    let (expected, _) = globex.ask(&chat(&demo.model, "Name a colour.", 8, false))?;
    let long = "word ".repeat(2 << 20);
    let bodies: Vec<(Vec<u8>, u16)> = vec![
        (b"{".to_vec(), 400),
        (b"\xff\xfe".to_vec(), 400),
        (chat(&demo.model, &long, 4, false).to_string().into_bytes(), 413),
        (chat(&demo.model, &"word ".repeat(100_000), 4, false).to_string().into_bytes(), 400),
        ("[".repeat(100_000).into_bytes(), 400),
        (chat("no-such-model", "x", 4, false).to_string().into_bytes(), 404),
    ];
    for (body, status) in bodies {
        let response = acme.post_bytes("/v1/chat/completions", &body)?;
        ensure!(response.status == status, "{} bytes: {} {}", body.len(), response.status, response.text()?);
        ensure!(response.json()?["error"]["code"].is_string());
        let (said, _) = globex.ask(&chat(&demo.model, "Name a colour.", 8, false))?;
        ensure!(said == expected, "another tenant's answer changed");
    }
    let said = demo.stop()?;
    ensure!(!said.contains("panicked"), "{said}");
    Ok(())
}

#[test]
fn the_unsupported_command_line_says_what_is_supported() -> Result<()> {
    let help = run(Command::new(binary("bulkhead")?).arg("--help"))?;
    let help = String::from_utf8(help.stdout)?;
    for command in ["demo", "serve", "chat", "model", "bench", "key", "doctor"] {
        ensure!(help.contains(command), "`--help` does not name `{command}`");
    }
    Ok(())
}
