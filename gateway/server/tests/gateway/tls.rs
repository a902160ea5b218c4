//! TLS as `curl` sees it. Certificates are made for the test by the `openssl` program.

use crate::world::{World, start};
use gateway_server::TlsFiles;
use std::path::Path;
use std::process::Command;

/// A root, a server and a client below it, and a stranger that signed itself.
const CERTIFICATES: &str = "
    ca() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=$1 -keyout $1.key -out $1.pem; }
    leaf() {
        openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=$1 -keyout $1.key -out $1.csr &&
        printf '%s\\n' 'basicConstraints=CA:FALSE' \"subjectAltName=$2\" > $1.ext &&
        openssl x509 -req -in $1.csr -CA root.pem -CAkey root.key -CAcreateserial -days 2 -extfile $1.ext -out $1.pem
    }
    set -e; ca root; ca stranger; leaf server IP:127.0.0.1; leaf client DNS:client";

fn make_certificates(folder: &Path) {
    let made = Command::new("sh").args(["-c", CERTIFICATES]).current_dir(folder).output().expect("no shell");
    assert!(made.status.success(), "the openssl program is needed: {}", String::from_utf8_lossy(&made.stderr));
}

/// HTTP version and status as `curl` reports them; `None` when there was no response.
fn curl(world: &World, folder: &Path, path: &str, options: &[&str]) -> Option<String> {
    let url = format!("https://{}{path}", world.address());
    let mut command = Command::new("curl");
    command.current_dir(folder).args([
        "-sS",
        "-o",
        "body",
        "-w",
        "%{http_version} %{response_code}",
        "--max-time",
        "60",
    ]);
    let output = command.args(options).arg(url).output().expect("the curl program is needed");
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_serves_http_1_and_2_to_clients_that_know_the_root() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let file = |name: &str| folder.path().join(name);
    let tls = TlsFiles { certificate: file("server.pem"), private_key: file("server.key"), client_authorities: None };
    let world = start(|config| config.tls = Some(tls)).await;
    let get = |options: &[&str]| curl(&world, folder.path(), "/healthz", options);
    assert_eq!(get(&["--cacert", "root.pem", "--http1.1"]).as_deref(), Some("1.1 200"));
    assert_eq!(get(&["--cacert", "root.pem", "--http2"]).as_deref(), Some("2 200"));
    assert_eq!(get(&["--cacert", "root.pem", "--http2", "--tls-max", "1.2"]).as_deref(), Some("2 200"));
    assert_eq!(get(&["--cacert", "stranger.pem"]), None);
    assert_eq!(get(&["--cacert", "root.pem", "--tls-max", "1.1"]), None);

    // A stream over HTTP/2.
    let key = format!("authorization: Bearer {}", world.acme);
    let body = r#"{"model":"smol","prompt":"Once","max_tokens":4,"stream":true}"#;
    let options = ["--cacert", "root.pem", "--http2", "-H", &key, "-d", body];
    assert_eq!(curl(&world, folder.path(), "/v1/completions", &options).as_deref(), Some("2 200"));
    assert!(std::fs::read_to_string(file("body")).unwrap().ends_with("data: [DONE]\n\n"));
    let options = ["--cacert", "root.pem", "--http2", "-H", &key, "-H", &key, "-d", body];
    assert_eq!(curl(&world, folder.path(), "/v1/completions", &options).as_deref(), Some("2 400"));
    // A refusal reaches a client whose body nobody reads.
    std::fs::write(file("large"), "x".repeat(300_000)).unwrap();
    let options = ["--cacert", "root.pem", "--http2", "-H", "authorization: Bearer x", "-d", "@large"];
    assert_eq!(curl(&world, folder.path(), "/v1/completions", &options).as_deref(), Some("2 401"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_a_certificate_of_the_authority_gets_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    make_certificates(folder.path());
    let file = |name: &str| folder.path().join(name);
    let tls = TlsFiles {
        certificate: file("server.pem"),
        private_key: file("server.key"),
        client_authorities: Some(file("root.pem")),
    };
    let world = start(|config| config.tls = Some(tls)).await;
    let get = |options: &[&str]| {
        let options = [&["--cacert", "root.pem"], options].concat();
        curl(&world, folder.path(), "/healthz", &options)
    };
    assert_eq!(get(&["--cert", "client.pem", "--key", "client.key"]).as_deref(), Some("2 200"));
    assert_eq!(get(&[]), None);
    assert_eq!(get(&["--cert", "stranger.pem", "--key", "stranger.key"]), None);
}
