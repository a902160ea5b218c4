//! The program as it is started from a shell: closed pipes, missing files, and input that is no text.
#![allow(clippy::unwrap_used, reason = "a failed step fails its test")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn bulkhead(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead"));
    command.args(arguments).env_remove("BULKHEAD_API_KEY").stdin(Stdio::null());
    command
}

/// A pipe that nobody reads.
fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Exit code and stderr.
fn ended(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// A gateway that lists one model to one client, and answers nothing else.
fn one_model() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = stream.read(&mut [0; 4096]).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 24\r\n\r\n{\"data\":[{\"id\":\"smol\"}]}").unwrap();
    });
    address
}

#[test]
fn a_reader_that_has_left_ends_a_command_quietly() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().to_str().unwrap();
    let gateway = one_model();
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["bench", "engine", "--help"],
        &["doctor"],
        &["key", "new", "acme", "--data-dir", data_dir],
        &["chat", "--address", &gateway, "--key", "bk_1"],
    ] {
        let output = bulkhead(arguments).stdout(closed_pipe()).output().unwrap();
        let (code, said) = ended(&output);
        assert_eq!(code, Some(0), "{arguments:?}: {said}");
        assert!(!said.contains("panicked") && !said.contains("error"), "{arguments:?}: {said}");
    }
}

#[test]
fn nobody_reading_the_messages_changes_no_exit_code() {
    let table = [(&["serve", "--config", "/nonexistent/bulkhead.toml"][..], 1), (&["doctor"], 0), (&["serve"], 2)];
    for (arguments, code) in table {
        let status = bulkhead(arguments).stdout(Stdio::null()).stderr(closed_pipe()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}

#[test]
fn a_key_that_cannot_be_shown_is_not_put_into_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["key", "new", "acme", "--data-dir", folder.path().to_str().unwrap()];
    let output = bulkhead(&arguments).stderr(closed_pipe()).output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
}

#[test]
fn a_fresh_installation_is_told_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("bulkhead.toml");
    let serve = |config: &Path| ended(&bulkhead(&["serve", "--config", config.to_str().unwrap()]).output().unwrap());
    let (code, said) = serve(&config);
    assert_eq!(code, Some(1));
    assert!(said.contains("deploy/bulkhead.toml") && said.contains(config.to_str().unwrap()), "{said}");
    std::fs::write(&config, "data_dir = \"data\"\nmodel = \"models/m.gguf\"\n").unwrap();
    let (code, said) = serve(&config);
    assert_eq!(code, Some(1));
    assert!(said.contains("models/m.gguf") && said.contains("bulkhead model fetch"), "{said}");
}

/// Version 3, no tensors, one key: an architecture that the engine does not run.
fn foreign_gguf() -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &1u64.to_le_bytes()].concat();
    [head, text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("rwkv"), vec![0; 64]].concat()
}

#[test]
fn inspecting_a_model_that_does_not_run_is_seen_by_a_script() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("foreign.gguf");
    std::fs::write(&file, foreign_gguf()).unwrap();
    for (form, wanted) in
        [(&[][..], "runs            no: architecture `rwkv`"), (&["--json"], "\"refusal\":\"architecture")]
    {
        let arguments = [&["model", "inspect", file.to_str().unwrap()], form].concat();
        let output = bulkhead(&arguments).output().unwrap();
        let shown = String::from_utf8(output.stdout.clone()).unwrap();
        assert!(shown.contains(wanted), "{shown}");
        assert_eq!(ended(&output), (Some(1), "error: the engine does not run this model\n".to_owned()));
    }
}

#[test]
fn input_that_is_no_text_is_said_to_be_so() {
    let gateway = one_model();
    let mut chat = bulkhead(&["chat", "--address", &gateway, "--key", "bk_1"]);
    let mut chat = chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    chat.stdin.take().unwrap().write_all(b"caf\xe9\n").unwrap();
    let (code, said) = ended(&chat.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("input") && said.contains("UTF-8"), "{said}");
}
