//! Against a hub on this machine that does what hubs and the networks before them do.

use super::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

const TOKEN: &str = "hf_hidden";
/// Nothing on this machine listens there but the tests' other host.
const OTHER_HOST: &str = "127.0.0.2";
/// What an endless body ends with at last, bytes.
const ENDLESS_BYTES: usize = 64 << 20;

/// What the hub does with a file beside sending it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Plain,
    /// Redirects to another path, as to a content network.
    Redirect,
    /// Redirects to another host.
    Elsewhere,
    /// Redirects to itself.
    Circle,
    /// Redirects to this.
    To(&'static str),
    /// Sends so many bytes of the first answer and hangs up.
    Cut(usize),
    /// Goes on behind the end.
    Endless,
    /// Sends all of it, whatever part was asked for.
    Whole,
    /// Says that it has so many bytes.
    Claims(u64),
    /// Names the digest of something else.
    WrongDigest,
    /// Names something that is no digest.
    NoDigest,
    /// Answers with a status only.
    Status(u16),
}

/// A request.
struct Seen {
    host: String,
    path: String,
    /// Where the range begins, of a request for content; the request for its size asks for one byte.
    from: Option<u64>,
    has_token: bool,
}

struct TestHub {
    address: String,
    seen: Arc<Mutex<Vec<Seen>>>,
    folder: tempfile::TempDir,
}

type Files = HashMap<String, (Vec<u8>, Manner)>;

impl TestHub {
    fn new(files: &[(&str, Vec<u8>, Manner)]) -> Self {
        let files: Files =
            files.iter().map(|(name, bytes, manner)| ((*name).to_owned(), (bytes.clone(), *manner))).collect();
        let (files, seen) = (Arc::new(files), Arc::new(Mutex::new(Vec::new())));
        let other = listen(OTHER_HOST, &files, &seen, String::new());
        let address = listen("127.0.0.1", &files, &seen, other);
        Self { address, seen, folder: tempfile::tempdir().unwrap() }
    }

    fn options(&self, repository: &str) -> Options {
        Options {
            repository: repository.to_owned(),
            file: None,
            endpoint: Some(self.address.clone()),
            token: Some(TOKEN.to_owned()),
            folder: self.folder.path().join("hub"),
        }
    }

    fn pull(&self, repository: &str, file: Option<&str>) -> Result<PathBuf> {
        Pull::new(&self.options(repository), Duration::ZERO)?.run(file)
    }

    fn error(&self, repository: &str, file: Option<&str>) -> String {
        format!("{:#}", self.pull(repository, file).unwrap_err())
    }

    /// Where the requests for a path's content began.
    fn ranges(&self, path: &str) -> Vec<u64> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path == path).filter_map(|seen| seen.from).collect()
    }

    /// Requests for a path, whatever for.
    fn requests(&self, path: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.path == path).count()
    }

    /// Files of any name that hold content, finished or not.
    fn blobs(&self) -> usize {
        let blobs = self.folder.path().join("hub/models--acme--tiny/blobs");
        let is_content = |entry: &fs::DirEntry| entry.path().extension().is_none_or(|extension| extension != "lock");
        fs::read_dir(blobs).map_or(0, |entries| entries.flatten().filter(is_content).count())
    }
}

/// Answers at an address of this machine until the process ends; the address. `other` is where redirects lead.
fn listen(host: &str, files: &Arc<Files>, seen: &Arc<Mutex<Vec<Seen>>>, other: String) -> String {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (files, seen) = (Arc::clone(files), Arc::clone(seen));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            answer(stream.unwrap(), &files, &seen, &other);
        }
    });
    address
}

/// One request, one answer, one connection.
fn answer(stream: TcpStream, files: &Files, log: &Mutex<Vec<Seen>>, other: &str) {
    let mut reader = BufReader::new(&stream);
    let mut request = String::new();
    reader.read_line(&mut request).unwrap();
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut range = None;
    let mut has_token = false;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap() <= 2 {
            break;
        }
        has_token |= line.contains(TOKEN);
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = value.trim().split_once('-').unwrap();
            range = Some((from.parse::<usize>().unwrap(), to.parse::<usize>().ok()));
        }
    }
    let host = stream.local_addr().unwrap();
    let (from, to) = range.unwrap_or((0, None));
    let is_content = range.is_some() && to.is_none();
    let is_first = {
        let from = is_content.then_some(from as u64);
        let mut log = log.lock().unwrap();
        log.push(Seen { host: host.ip().to_string(), path: path.clone(), from, has_token });
        log.iter().filter(|seen| seen.path == path && seen.from.is_some()).count() == 1
    };
    let mut stream = &stream;
    let mut send = |head: String, body: &[u8], bytes: usize| {
        let length = body.len();
        let framing = match head.contains("transfer-encoding") {
            true => String::new(),
            false => format!("content-length: {length}\r\n"),
        };
        let _ = write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\n{framing}\r\n");
        let _ = stream.write_all(&body[..bytes.min(length)]);
    };
    if path.starts_with("/api/models/acme/tiny/revision/") {
        let names: Vec<_> = files.keys().map(|name| serde_json::json!({"rfilename": name})).collect();
        let info = serde_json::json!({"sha": COMMIT, "siblings": names}).to_string();
        return send("200 OK".to_owned(), info.as_bytes(), usize::MAX);
    }
    if path.starts_with("/api/models/acme/page/") {
        return send("200 OK".to_owned(), b"<html>Welcome</html>", usize::MAX);
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
    let headers = format!("x-repo-commit: {COMMIT}\r\nx-linked-etag: \"{digest}\"");
    match manner {
        Manner::Status(status) => return send(format!("{status} Refused\r\n{headers}"), b"", 0),
        Manner::Redirect | Manner::Elsewhere | Manner::Circle | Manner::To(_) if !path.starts_with("/cdn/") => {
            let location = match manner {
                Manner::Redirect => format!("http://{host}/cdn/{}", name.unwrap()),
                Manner::Elsewhere => format!("{other}/cdn/{}", name.unwrap()),
                Manner::To(place) => (*place).to_owned(),
                _ => path.clone(),
            };
            return send(format!("302 Found\r\nlocation: {location}\r\n{headers}"), b"", 0);
        }
        Manner::Whole if is_content => return send(format!("200 OK\r\n{headers}"), content, usize::MAX),
        _ => {}
    }
    if from >= content.len() {
        return send("416 Range Not Satisfiable".to_owned(), b"", 0);
    }
    let end = to.map_or(content.len(), |to| (to + 1).min(content.len()));
    let size = if let Manner::Claims(bytes) = manner { *bytes } else { content.len() as u64 };
    let head = format!("206 Partial Content\r\n{headers}\r\ncontent-range: bytes {from}-{}/{size}", end - 1);
    if *manner == Manner::Endless && is_content {
        let body: Vec<u8> = [b"10000\r\n".as_slice(), &[7; 1 << 16], b"\r\n"].concat();
        let body = body.repeat(ENDLESS_BYTES >> 16);
        return send(format!("{head}\r\ntransfer-encoding: chunked"), &body, usize::MAX);
    }
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
    let hub = TestHub::new(&[(GGUF, content(100_000), Manner::Plain), ("README.md", b"#".to_vec(), Manner::Plain)]);
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
    let hub = TestHub::new(&files);
    let folder = hub.pull("acme/tiny", None).unwrap();
    assert!(folder.is_dir() && folder.ends_with(COMMIT));
    let mut names: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort_unstable();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), content(1_017));
}

#[test]
fn a_redirect_to_another_place_is_followed() {
    let hub = TestHub::new(&[(GGUF, content(50_000), Manner::Redirect)]);
    assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), content(50_000));
    assert_eq!(hub.ranges(&format!("/cdn/{GGUF}")), [0]);
}

#[test]
fn a_cut_download_goes_on_where_it_was_cut() {
    let hub = TestHub::new(&[(GGUF, content(300_000), Manner::Cut(120_000))]);
    assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), content(300_000));
    assert_eq!(hub.ranges(&path_of(GGUF)), [0, 120_000]);
}

#[test]
fn what_an_earlier_run_left_is_used_when_it_fits() {
    let bytes = content(5_000);
    let digest = hex::encode(Sha256::digest(&bytes));
    for (left, begins) in [(3_000, 3_000), (5_000, 0), (6_000, 0)] {
        let hub = TestHub::new(&[(GGUF, bytes.clone(), Manner::Plain)]);
        let blobs = hub.folder.path().join("hub/models--acme--tiny/blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{digest}.part")), content(left)).unwrap();
        assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), bytes);
        assert_eq!(hub.ranges(&path_of(GGUF)), [begins], "{left} bytes were there");
    }
}

#[test]
fn a_file_with_another_digest_is_removed_and_refused() {
    let hub = TestHub::new(&[(GGUF, content(5_000), Manner::WrongDigest)]);
    let error = hub.error("acme/tiny", None);
    assert!(error.contains("is not what the hub says it is") && error.contains("its SHA-256 is"), "{error}");
    assert_eq!(hub.blobs(), 0);
    // A part of something else, too: what was fetched behind it does not make it right.
    let bytes = content(5_000);
    let digest = hex::encode(Sha256::digest(&bytes));
    let hub = TestHub::new(&[(GGUF, bytes, Manner::Plain)]);
    let blobs = hub.folder.path().join("hub/models--acme--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{digest}.part")), vec![1; 1_000]).unwrap();
    assert!(hub.error("acme/tiny", None).contains("is not what the hub says it is"));
    assert!(hub.pull("acme/tiny", None).is_ok(), "the next run begins anew");
    let files = [("config.json", content(99), Manner::Plain), ("model.safetensors", content(9), Manner::WrongDigest)];
    assert!(TestHub::new(&files).error("acme/tiny", None).contains("`model.safetensors` is not what"));
}

#[test]
fn a_file_without_a_digest_is_not_fetched_at_all() {
    let hub = TestHub::new(&[(GGUF, content(5_000), Manner::NoDigest)]);
    let error = hub.error("acme/tiny", None);
    assert!(error.contains("the hub names no digest for `tiny.Q8_0.gguf`"), "{error}");
    assert!(hub.ranges(&path_of(GGUF)).is_empty() && !hub.folder.path().join("escaped").exists());
}

#[test]
fn refusals_say_what_to_do() {
    let hub = TestHub::new(&[(GGUF, content(5_000), Manner::Status(403)), ("b.gguf", content(9), Manner::Status(500))]);
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
    let hub = TestHub::new(&[("model.onnx", content(9), Manner::Plain)]);
    assert!(hub.error("acme/tiny", None).contains("neither a GGUF file nor a model in safetensors"));
}

#[test]
fn names_that_are_none_are_refused_before_anything_is_asked() {
    let hub = TestHub::new(&[]);
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

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_else() {
    let files = [(GGUF, content(50_000), Manner::Elsewhere), ("b.gguf", content(9), Manner::Redirect)];
    let hub = TestHub::new(&files);
    assert_eq!(fs::read(hub.pull("acme/tiny", Some(GGUF)).unwrap()).unwrap(), content(50_000));
    assert_eq!(hub.ranges(&format!("/cdn/{GGUF}")), [0], "the content came from the other host");
    hub.pull("acme/tiny", Some("b.gguf")).unwrap();
    let seen = hub.seen.lock().unwrap();
    assert!(seen.iter().any(|seen| seen.host == OTHER_HOST));
    for Seen { host, path, has_token, .. } in seen.iter() {
        assert_eq!(*has_token, host != OTHER_HOST, "{host} {path}");
    }
}

#[test]
fn a_hub_on_another_port_is_another_hub() {
    // What answers there gets a request without the token, whoever it is.
    let other = TestHub::new(&[(GGUF, content(900), Manner::Plain)]);
    let place: &'static str = format!("{}{}", other.address, path_of(GGUF)).leak();
    let hub = TestHub::new(&[(GGUF, content(900), Manner::To(place))]);
    hub.pull("acme/tiny", None).unwrap();
    let seen = other.seen.lock().unwrap();
    assert!(seen.len() == 2 && seen.iter().all(|seen| !seen.has_token));
}

#[test]
fn redirects_that_lead_nowhere_are_refused_at_once() {
    for (manner, wanted) in [
        (Manner::Circle, "the hub redirects in a circle"),
        (Manner::To("file:///etc/passwd"), "the hub redirects to what is not on the web"),
        (Manner::To("http://exa mple"), "the hub redirects to what is no address"),
    ] {
        let hub = TestHub::new(&[(GGUF, content(9), manner)]);
        let error = hub.error("acme/tiny", None);
        assert!(error.contains(wanted) && !error.contains("tries"), "{error}");
        assert!(hub.requests(&path_of(GGUF)) <= 11, "{}", hub.requests(&path_of(GGUF)));
    }
}

#[test]
fn a_body_beyond_its_announced_end_is_cut_and_removed() {
    let hub = TestHub::new(&[(GGUF, content(4_000), Manner::Endless)]);
    let error = hub.error("acme/tiny", None);
    assert_eq!(error, format!("`{GGUF}`: more comes than the 4000 bytes that were announced; what came was removed"));
    assert_eq!((hub.blobs(), hub.ranges(&path_of(GGUF)).len()), (0, 1));
}

#[test]
fn a_file_larger_than_any_is_not_fetched_at_all() {
    for bytes in [500_000_000_001, u64::MAX] {
        let hub = TestHub::new(&[(GGUF, content(4_000), Manner::Claims(bytes))]);
        let error = hub.error("acme/tiny", None);
        assert!(error.contains("larger than any that a hub has"), "{error}");
        assert!(hub.blobs() == 0 && hub.ranges(&path_of(GGUF)).is_empty());
    }
}

#[test]
fn a_hub_that_ignores_ranges_sends_all_of_it_again() {
    let bytes = content(5_000);
    let hub = TestHub::new(&[(GGUF, bytes.clone(), Manner::Whole)]);
    let blobs = hub.folder.path().join("hub/models--acme--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", hex::encode(Sha256::digest(&bytes)))), content(3_000)).unwrap();
    assert_eq!(fs::read(hub.pull("acme/tiny", None).unwrap()).unwrap(), bytes);
}

#[test]
fn what_will_not_change_is_asked_for_once() {
    let hub = TestHub::new(&[(GGUF, content(9), Manner::Status(400))]);
    let page = hub.error("acme/page", None);
    assert_eq!(page, "`acme/page`: the answer is not one of a hub: it does not describe a repository");
    assert_eq!(hub.requests("/api/models/acme/page/revision/main"), 1);
    assert_eq!(hub.error("acme/tiny", None), "the hub refused `tiny.Q8_0.gguf` with status 400");
    assert_eq!(hub.requests(&path_of(GGUF)), 1);
    let options = Options { endpoint: Some("http://exa mple".to_owned()), ..hub.options("acme/tiny") };
    let Err(error) = Pull::new(&options, Duration::ZERO) else { panic!("no such address") };
    assert!(error.to_string().contains("`http://exa mple` is not a hub's address"), "{error}");
}

#[test]
fn a_long_list_of_files_is_cut_with_a_count() {
    let names: Vec<String> = (0..20_000).map(|number| format!("{number:05}.gguf")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let error = choose(&names, None).unwrap_err().to_string();
    assert_eq!(error.lines().count(), 1 + NAMES_SHOWN_MAX + 1);
    assert!(error.contains("there are 20000 GGUF files") && error.ends_with("\n  and 19980 more"), "{error}");
    let error = choose(&names[..NAMES_SHOWN_MAX], None).unwrap_err().to_string();
    assert!(error.ends_with("\n  00019.gguf"), "{error}");
}

#[test]
fn two_that_fetch_one_file_do_not_write_into_each_other() {
    let bytes = content(5_000);
    let hub = TestHub::new(&[(GGUF, bytes.clone(), Manner::Plain)]);
    let blobs = hub.folder.path().join("hub/models--acme--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    let lock = File::create(blobs.join(format!("{}.lock", hex::encode(Sha256::digest(&bytes))))).unwrap();
    lock.lock().unwrap();
    assert_eq!(hub.error("acme/tiny", None), "`tiny.Q8_0.gguf` is being fetched already");
    drop(lock);
    hub.pull("acme/tiny", None).unwrap();
}
