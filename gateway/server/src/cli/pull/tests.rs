//! Against a hub on this machine that does what hubs and the networks before them do.

use super::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub does with a file beside sending it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Plain,
    /// Redirects to another path, as to a content network.
    Redirect,
    /// Sends so many bytes of the first answer and hangs up.
    Cut(usize),
    /// Names the digest of something else.
    WrongDigest,
    /// Names something that is no digest.
    NoDigest,
    /// Answers with a status only.
    Status(u16),
}

struct Hub {
    address: String,
    /// Requests: the path and where the range begins.
    seen: Arc<Mutex<Vec<(String, u64)>>>,
    folder: tempfile::TempDir,
}

impl Hub {
    fn new(files: &[(&str, Vec<u8>, Manner)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let files: HashMap<String, (Vec<u8>, Manner)> =
            files.iter().map(|(name, bytes, manner)| ((*name).to_owned(), (bytes.clone(), *manner))).collect();
        let log = Arc::clone(&seen);
        // Ends with the process: it waits for connections until then.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                answer(stream.unwrap(), &files, &log);
            }
        });
        Self { address, seen, folder: tempfile::tempdir().unwrap() }
    }

    fn pull(&self, repository: &str, file: Option<&str>) -> Result<PathBuf> {
        let options = Options {
            repository: repository.to_owned(),
            file: file.map(str::to_owned),
            endpoint: Some(self.address.clone()),
            token: None,
            folder: self.folder.path().join("hub"),
        };
        Pull::new(&options, Duration::ZERO)?.run(file)
    }

    fn error(&self, repository: &str, file: Option<&str>) -> String {
        format!("{:#}", self.pull(repository, file).unwrap_err())
    }

    /// Where the requests for a path's content began; the request for its size asks for one byte.
    fn ranges(&self, path: &str) -> Vec<u64> {
        self.seen.lock().unwrap().iter().filter(|(seen, _)| seen == path).map(|(_, from)| *from).collect()
    }

    /// Files of any name that hold content, finished or not.
    fn blobs(&self) -> usize {
        let blobs = self.folder.path().join("hub/models--acme--tiny/blobs");
        let is_content = |entry: &fs::DirEntry| entry.path().extension().is_none_or(|extension| extension != "lock");
        fs::read_dir(blobs).map_or(0, |entries| entries.flatten().filter(is_content).count())
    }
}

/// One request, one answer, one connection.
fn answer(stream: TcpStream, files: &HashMap<String, (Vec<u8>, Manner)>, log: &Mutex<Vec<(String, u64)>>) {
    let mut reader = BufReader::new(&stream);
    let mut request = String::new();
    reader.read_line(&mut request).unwrap();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() <= 2 {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = value.trim().split_once('-').unwrap();
            range = Some((from.parse::<usize>().unwrap(), to.parse::<usize>().ok()));
        }
    }
    let host = stream.local_addr().unwrap();
    let mut stream = &stream;
    let mut send = |head: String, body: &[u8], bytes: usize| {
        let length = body.len();
        let _ = write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all(&body[..bytes.min(length)]);
    };
    if path.starts_with("/api/models/acme/tiny/revision/") {
        let names: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let info = serde_json::json!({"sha": COMMIT, "siblings": names}).to_string();
        return send("200 OK".to_owned(), info.as_bytes(), usize::MAX);
    }
    if path.starts_with("/api/models/acme/gated/") {
        return send("401 Unauthorized".to_owned(), b"", 0);
    }
    let name = path.strip_prefix(&format!("/acme/tiny/resolve/{COMMIT}/"));
    let Some((content, manner)) = name.or(path.strip_prefix("/cdn/")).and_then(|name| files.get(name)) else {
        return send("404 Not Found".to_owned(), b"", 0);
    };
    let digest = match manner {
        Manner::WrongDigest => "0".repeat(64),
        Manner::NoDigest => "../../../../escaped".to_owned(),
        _ if path.ends_with(".json") => {
            let git = [format!("blob {}\0", content.len()).as_bytes(), content].concat();
            hex::encode(Sha1::digest(git))
        }
        _ => hex::encode(Sha256::digest(content)),
    };
    let (from, to) = range.unwrap_or((0, None));
    let is_content = to.is_none();
    if is_content {
        log.lock().unwrap().push((path.clone(), from as u64));
    }
    let is_first = log.lock().unwrap().iter().filter(|(seen, _)| *seen == path).count() == 1;
    let headers = format!("x-repo-commit: {COMMIT}\r\nx-linked-etag: \"{digest}\"");
    match manner {
        Manner::Status(status) => return send(format!("{status} Refused\r\n{headers}"), b"", 0),
        Manner::Redirect if !path.starts_with("/cdn/") => {
            let location = format!("http://{host}/cdn/{}", name.unwrap());
            return send(format!("302 Found\r\nlocation: {location}\r\n{headers}"), b"", 0);
        }
        _ => {}
    }
    if from >= content.len() {
        return send("416 Range Not Satisfiable".to_owned(), b"", 0);
    }
    let end = to.map_or(content.len(), |to| (to + 1).min(content.len()));
    let head = format!("206 Partial Content\r\n{headers}\r\ncontent-range: bytes {from}-{}/{}", end - 1, content.len());
    let bytes = if let (Manner::Cut(bytes), true, true) = (manner, is_content, is_first) { *bytes } else { usize::MAX };
    send(head, &content[from..end], bytes);
}

fn content(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 % 251) as u8).collect()
}

const GGUF: &str = "tiny.Q8_0.gguf";

fn path_of(name: &str) -> String {
    format!("/acme/tiny/resolve/{COMMIT}/{name}")
}

#[test]
fn one_gguf_file_is_fetched_once() {
    let hub = Hub::new(&[(GGUF, content(100_000), Manner::Plain), ("README.md", b"#".to_vec(), Manner::Plain)]);
    let path = hub.pull("acme/tiny", None).unwrap();
    assert!(path.ends_with(format!("models--acme--tiny/snapshots/{COMMIT}/{GGUF}")));
    assert_eq!(fs::read(&path).unwrap(), content(100_000));
    assert_eq!(hub.pull("acme/tiny@v1.0", None).unwrap(), path);
    assert_eq!(hub.ranges(&path_of(GGUF)), [0], "the second time nothing is fetched");
}

#[test]
fn a_model_in_safetensors_is_a_folder() {
    let files = ["config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin", "onnx/model.onnx"];
    let files = files.map(|name| (name, content(1_000 + name.len()), Manner::Plain));
    let hub = Hub::new(&files);
    let folder = hub.pull("acme/tiny", None).unwrap();
    assert!(folder.is_dir() && folder.ends_with(COMMIT));
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), content(1_017));
}

#[test]
fn a_redirect_to_another_place_is_followed() {
    let hub = Hub::new(&[(GGUF, content(50_000), Manner::Redirect)]);
    assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), content(50_000));
    assert_eq!(hub.ranges(&format!("/cdn/{GGUF}")), [0]);
}

#[test]
fn a_cut_download_goes_on_where_it_was_cut() {
    let hub = Hub::new(&[(GGUF, content(300_000), Manner::Cut(120_000))]);
    assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), content(300_000));
    assert_eq!(hub.ranges(&path_of(GGUF)), [0, 120_000]);
}

#[test]
fn what_an_earlier_run_left_is_used_when_it_fits() {
    let bytes = content(5_000);
    let digest = hex::encode(Sha256::digest(&bytes));
    for (left, begins) in [(3_000, 3_000), (5_000, 0), (6_000, 0)] {
        let hub = Hub::new(&[(GGUF, bytes.clone(), Manner::Plain)]);
        let blobs = hub.folder.path().join("hub/models--acme--tiny/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{digest}.part")), content(left)).unwrap();
        assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), bytes);
        assert_eq!(hub.ranges(&path_of(GGUF)), [begins], "{left} bytes were there");
    }
}

#[test]
fn a_file_with_another_digest_is_removed_and_refused() {
    let hub = Hub::new(&[(GGUF, content(5_000), Manner::WrongDigest)]);
    let error = hub.error("acme/tiny", None);
    assert!(error.contains("is not what the hub says it is") && error.contains("its SHA-256 is"), "{error}");
    assert_eq!(hub.blobs(), 0);
    // A part of something else, too: what was fetched behind it does not make it right.
    let bytes = content(5_000);
    let digest = hex::encode(Sha256::digest(&bytes));
    let hub = Hub::new(&[(GGUF, bytes, Manner::Plain)]);
    let blobs = hub.folder.path().join("hub/models--acme--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{digest}.part")), vec![1; 1_000]).unwrap();
    assert!(hub.error("acme/tiny", None).contains("is not what the hub says it is"));
    assert!(hub.pull("acme/tiny", None).is_ok(), "the next run begins anew");
    let files = [("config.json", content(99), Manner::Plain), ("model.safetensors", content(9), Manner::WrongDigest)];
    assert!(Hub::new(&files).error("acme/tiny", None).contains("`model.safetensors` is not what"));
}

#[test]
fn a_file_without_a_digest_is_not_fetched_at_all() {
    let hub = Hub::new(&[(GGUF, content(5_000), Manner::NoDigest)]);
    let error = hub.error("acme/tiny", None);
    assert!(error.contains("the hub names no digest for `tiny.Q8_0.gguf`"), "{error}");
    assert!(hub.ranges(&path_of(GGUF)).is_empty() && !hub.folder.path().join("escaped").exists());
}

#[test]
fn refusals_say_what_to_do() {
    let hub = Hub::new(&[(GGUF, content(5_000), Manner::Status(403)), ("b.gguf", content(9), Manner::Status(500))]);
    let gated = hub.error("acme/gated", None);
    assert!(gated.contains("`acme/gated` is gated") && gated.contains("HF_TOKEN"), "{gated}");
    let missing = hub.error("acme/other@v2", None);
    assert_eq!(missing, "the hub has no `acme/other` (repository acme/other, revision v2)");
    assert!(hub.error("acme/tiny", Some(GGUF)).contains("`tiny.Q8_0.gguf` is gated"));
    let broken = hub.error("acme/tiny", Some("b.gguf"));
    assert!(broken.contains("gave up after 8 tries") && broken.contains("500"), "{broken}");
    assert!(hub.error("acme/tiny", Some("c.gguf")).contains("there is no file `c.gguf`"));
    let several = hub.error("acme/tiny", None);
    assert!(several.contains("choose one with --file NAME") && several.contains("\n  b.gguf"), "{several}");
    let hub = Hub::new(&[("model.onnx", content(9), Manner::Plain)]);
    assert!(hub.error("acme/tiny", None).contains("neither a GGUF file nor a model in safetensors"));
}

#[test]
fn names_that_are_none_are_refused_before_anything_is_asked() {
    let hub = Hub::new(&[]);
    for name in ["tiny", "", "a/b/c", "../tiny", "acme/..", "acme/ti ny", "acme/", "/tiny", "acme/t\u{e9}", "a/b?c"] {
        assert!(hub.error(name, None).contains("is not a repository's name"), "{name:?}");
    }
    for revision in ["", "..", "a/../b", "a b", "/a"] {
        let error = hub.error(&format!("acme/tiny@{revision}"), None);
        assert!(error.contains("is not a revision's name"), "{revision:?}: {error}");
    }
    assert!(hub.seen.lock().unwrap().is_empty());
    let files = choose(&["../up.gguf", "/etc/x.gguf", "a/.hidden.gguf"], None).unwrap_err().to_string();
    assert!(files.contains("neither a GGUF file"), "{files}");
}
