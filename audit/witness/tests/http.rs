//! The witness on the network: statuses, content types and bounds; and as the program that a customer runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod made_log;

use audit_tlog::CosignerKey;
use audit_witness::{Limits, Witness, make_key, serve};
use made_log::MadeLog;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

struct Served {
    _folder: TempDir,
    runtime: Option<tokio::runtime::Runtime>,
    address: SocketAddr,
}

impl Served {
    fn start(log: &MadeLog, limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        make_key(folder.path(), "witness.example/w1").unwrap();
        let witness = Arc::new(Witness::open(folder.path(), vec![log.key()]).unwrap());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(serve(listener, witness, limits, || 1_790_000_000, std::future::pending()));
        Self { _folder: folder, runtime: Some(runtime), address }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

/// Sends a request on a connection of its own; the status, the head and the body.
fn ask(address: SocketAddr, request: &[u8]) -> (u16, String, String) {
    let mut stream = connect(address);
    stream.write_all(request).unwrap();
    let mut answer = String::new();
    // A server that refuses before it has read everything resets the connection after its answer.
    let _reset = stream.read_to_string(&mut answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
    (status, head.to_ascii_lowercase(), body.to_owned())
}

fn post(address: SocketAddr, body: &str) -> (u16, String, String) {
    let length = body.len();
    let head =
        format!("POST /add-checkpoint HTTP/1.1\r\nhost: w\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    ask(address, (head + body).as_bytes())
}

fn get(address: SocketAddr, path: &str) -> (u16, String, String) {
    ask(address, format!("GET {path} HTTP/1.1\r\nhost: w\r\nconnection: close\r\n\r\n").as_bytes())
}

#[test]
fn every_answer_has_the_status_of_the_specification() {
    let (log, other) = (MadeLog::new("", 300), MadeLog::new("other", 2));
    let served = Served::start(&log, Limits::default());
    let at = served.address;
    let (status, head, body) = post(at, &log.request(0, 5));
    assert_eq!(status, 200, "{body}");
    assert!(head.contains("content-type: text/plain") && body.starts_with("— witness.example/w1 "), "{head}{body}");
    let (status, head, body) = post(at, &log.request(0, 6));
    assert_eq!((status, body.as_str()), (409, "5\n"));
    assert!(head.contains("content-type: text/x.tlog.size\r\n") || head.ends_with("text/x.tlog.size"), "{head}");
    assert_eq!(post(at, &other.request(5, 5)).0, 422);
    assert_eq!(post(at, &other.request(5, 9)).0, 422);
    assert_eq!(post(at, &log.request(5, 9).replace("log.example", "log.elsewhere")).0, 404);
    assert_eq!(post(at, &log.request(5, 9).replacen("\n9\n", "\n8\n", 1)).0, 403);
    assert_eq!(post(at, "old 5\n").0, 400);
    assert_eq!(post(at, &log.request(5, 9)).0, 200);

    let (status, head, _) = get(at, "/add-checkpoint");
    assert!(status == 405 && head.contains("allow: post"), "{head}");
    for path in ["/", "/checkpoint", "/add-checkpoint/", "//checkpoint", "/0123/checkpoint", "/../logs"] {
        assert_eq!(get(at, path).0, 404, "{path}");
    }
    let hash = "f0b4d1b8d9e7c1a2"; // Not the hash of an origin.
    assert_eq!(get(at, &format!("/{hash}/checkpoint")).0, 404);
    let hash = origin_hash(&log);
    let (status, _, note) = get(at, &format!("/{hash}/checkpoint"));
    assert!(status == 200 && note.starts_with(&log.note(9)) && note.contains("\n— witness.example/w1 "), "{note}");
}

/// `sha256sum` says it, too: the test does not take the program's word for where a checkpoint is served.
fn origin_hash(log: &MadeLog) -> String {
    let mut child = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(log.checkpoint(0).origin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

#[test]
fn what_one_client_may_take_is_bounded() {
    let log = MadeLog::new("", 300);
    let limits = Limits {
        connections_max: 4,
        head_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        connection_time_max: Duration::from_secs(2),
    };
    let served = Served::start(&log, limits);
    let at = served.address;
    assert_eq!(post(at, &"a".repeat(200_000)).0, 413);
    let endless = "POST /add-checkpoint HTTP/1.1\r\nhost: w\r\ntransfer-encoding: chunked\r\n\r\n";
    assert_eq!(ask(at, format!("{endless}{}", "ffff\r\n".to_owned() + &"a".repeat(65_535) + "\r\n").as_bytes()).0, 408);
    assert_eq!(ask(at, format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "a".repeat(40_000)).as_bytes()).0, 431);
    // A body that stops coming is given up.
    let stalled = "POST /add-checkpoint HTTP/1.1\r\nhost: w\r\ncontent-length: 100\r\n\r\nold 0\n";
    assert_eq!(ask(at, stalled.as_bytes()).0, 408);
    // Clients that say nothing hold every place, and lose it: each read ends because the server closes.
    let silent: Vec<TcpStream> = (0..12).map(|_| connect(at)).collect();
    assert_eq!(post(at, &log.request(0, 5)).0, 200);
    for mut stream in silent {
        let mut rest = Vec::new();
        let _reset = stream.read_to_end(&mut rest);
    }
    // One that asks without end is cut, too, and nobody else waits for it for ever.
    let mut busy = connect(at);
    let mut answers = 0;
    while busy.write_all(b"GET /x HTTP/1.1\r\nhost: w\r\n\r\n").is_ok() {
        let mut piece = [0; 4_096];
        match busy.read(&mut piece) {
            Ok(0) | Err(_) => break,
            Ok(_) => answers += 1,
        }
    }
    assert!(answers > 0, "the first of them are answered");
    assert_eq!(post(at, &log.request(5, 6)).0, 200);
}

/// The program; killed when dropped.
struct Program(Child, SocketAddr, CosignerKey);

impl Drop for Program {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn start(folder: &Path) -> Program {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bulkhead-witness"));
    command.args(["serve", "--listen", "127.0.0.1:0", "--data-dir", "witness", "--logs", "logs"]);
    let mut child = command.current_dir(folder).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = |prefix: &str| lines.by_ref().find_map(|line| Some(line.strip_prefix(prefix)?.to_owned())).unwrap();
    let key = CosignerKey::parse(&said("witness ")).unwrap();
    let address = said("listening on http://").parse().unwrap();
    Program(child, address, key)
}

#[test]
fn a_killed_witness_comes_back_with_its_memory() {
    let log = MadeLog::new("", 300);
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let program = env!("CARGO_BIN_EXE_bulkhead-witness");
        let output = Command::new(program).args(arguments).current_dir(folder.path()).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (status, line, errors) = run(&["key", "witness.example/w1", "--data-dir", "witness"]);
    assert_eq!(status, 0, "{errors}");
    let key = CosignerKey::parse(line.trim_end()).unwrap();
    assert_eq!(run(&["key", "witness.example/w1", "--data-dir", "witness"]).1, line, "the key is made once");
    std::fs::write(folder.path().join("logs"), format!("# Logs.\n\n{} # ours\n", log.key())).unwrap();

    let mut size = 0;
    for _ in 0..3 {
        let mut program = start(folder.path());
        assert_eq!(program.2, key);
        for _ in 0..5 {
            let (status, _, body) = post(program.1, &log.request(size, size + 7));
            assert_eq!(status, 200, "{body}");
            size += 7;
            assert!(key.find(&log.checkpoint(size), body.as_bytes()).unwrap().is_some());
        }
        let serve = ["serve", "--listen", "127.0.0.1:0", "--data-dir", "witness", "--logs", "logs"];
        let (status, _, errors) = run(&serve);
        assert!(status == 2 && errors.contains("in use by another witness"), "{errors}");
        program.0.kill().unwrap();
        program.0.wait().unwrap();
    }
    let mut program = start(folder.path());
    assert_eq!(post(program.1, &log.request(0, 300)).2, format!("{size}\n"));
    // A polite end is a success.
    assert!(Command::new("kill").args(["-TERM", &program.0.id().to_string()]).status().unwrap().success());
    assert!(program.0.wait().unwrap().success());

    std::fs::write(folder.path().join("bad"), "nonsense\n").unwrap();
    let (status, _, errors) = run(&["serve", "--data-dir", "witness", "--logs", "bad"]);
    assert!(status == 2 && errors.contains("`bad`, line 1"), "{errors}");
    let (status, _, errors) = run(&["serve", "--data-dir", "nowhere", "--logs", "logs"]);
    assert!(status == 2 && errors.contains("`bulkhead-witness key` makes one"), "{errors}");
}
