//! Two ends on one machine: who is let in, what arrives, and how it ends.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

const TERMS: LinkTerms = LinkTerms { frame_bytes_max: 1 << 20, frames_max: 4 };

struct World {
    folder: TempDir,
}

impl World {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        Authority::write(&folder.path().join("keys")).unwrap();
        Self { folder }
    }

    fn files(&self, role: Role) -> IdentityFiles {
        IdentityFiles::in_folder(&self.folder.path().join("keys"), role)
    }

    fn identity(&self, role: Role) -> Identity {
        Identity::load(role, &self.files(role)).unwrap()
    }

    fn unix(&self) -> Address {
        Address::Unix(self.folder.path().join("link.sock"))
    }

    fn addresses(&self) -> [Address; 2] {
        [self.unix(), "tcp:127.0.0.1:0".parse().unwrap()]
    }
}

type Ends = [Result<Link, ConnectError>; 2];

/// What the listening end, as this role, and the connecting end come to.
fn meet(address: &Address, listening: &Identity, connecting: &Identity, terms: LinkTerms) -> Ends {
    let listener = Listener::bind(address, listening, terms).unwrap();
    let address = listener.address().clone();
    let (connecting, listener) = (connecting.clone(), &listener);
    std::thread::scope(|scope| {
        let there = scope.spawn(move || connect(&address, &connecting, terms));
        let here = listener.accept().and_then(Incoming::shake_hands);
        [here, there.join().unwrap()]
    })
}

fn ends(address: &Address, world: &World, terms: LinkTerms) -> [Link; 2] {
    meet(address, &world.identity(Role::Prefill), &world.identity(Role::Decode), terms).map(Result::unwrap)
}

fn frame(kind: u8, bytes: &[u8]) -> Frame {
    Frame { kind, bytes: bytes.to_vec() }
}

#[test]
fn frames_arrive_whole_in_order_and_both_ways_until_the_farewell() {
    let world = World::new();
    for address in world.addresses() {
        let [here, there] = ends(&address, &world, TERMS);
        assert_eq!((here.peer(), there.peer()), (Role::Decode, Role::Prefill));
        assert!(here.secret() == there.secret() && here.secret() != [0; 32], "both know the secret");
        let ((to_there, mut from_there), (to_here, mut from_here)) = (here.split(), there.split());
        let sent: Vec<Frame> = (1..40).map(|n| frame(n, &vec![n; 1 << (n % 20)])).collect();
        let again = sent.clone();
        let sending = std::thread::spawn(move || again.into_iter().all(|frame| to_there.send(frame)));
        for wanted in &sent {
            assert!(to_here.send(frame(wanted.kind, b"seen")), "{address}");
            assert_eq!(from_here.receive().as_ref(), Ok(wanted), "{address}");
            assert_eq!(from_there.receive(), Ok(frame(wanted.kind, b"seen")), "{address}");
        }
        assert!(sending.join().unwrap());
        // That end's sender is gone; this end may still speak.
        assert_eq!(from_here.receive(), Err(LinkEnd::Closed), "{address}");
        assert_eq!(from_here.receive(), Err(LinkEnd::Closed), "and it stays so");
    }
}

#[tokio::test]
async fn a_socket_that_was_left_behind_is_replaced_and_one_that_is_in_use_is_not() {
    let world = World::new();
    let Address::Unix(path) = world.unix() else { unreachable!() };
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "as when a process was killed");
    let listener = Listener::bind(&world.unix(), &world.identity(Role::Prefill), TERMS).unwrap();
    let second = Listener::bind(&world.unix(), &world.identity(Role::Prefill), TERMS);
    assert!(matches!(second, Err(ConnectError::Taken { .. })), "{second:?}");
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn what_is_due_at_once_is_not_waited_for_for_ever() {
    let world = World::new();
    let [here, there] = ends(&world.unix(), &world, TERMS);
    let (mut from_there, to_here) = (here.split().1, there.split().0);
    let limit = Duration::from_millis(30);
    assert_eq!(from_there.receive_within(limit), Err(LinkEnd::Failed(LinkError::Silent)), "pings do not count");
    let frame = Frame { kind: 3, bytes: vec![1] };
    assert!(to_here.send(frame.clone()));
    assert_eq!(from_there.receive_within(Duration::from_secs(60)), Ok(frame));
    drop(to_here);
    assert_eq!(from_there.receive_within(Duration::from_secs(60)), Err(LinkEnd::Closed));
}

#[test]
fn connections_of_the_same_two_have_secrets_of_their_own() {
    let world = World::new();
    let secrets = [0, 1].map(|_| ends(&world.unix(), &world, TERMS)[0].secret());
    assert_ne!(secrets[0], secrets[1]);
}

#[test]
fn only_the_other_part_of_the_same_engine_is_let_in() {
    let (world, other) = (World::new(), World::new());
    for address in world.addresses() {
        let [here, there] = meet(&address, &world.identity(Role::Prefill), &other.identity(Role::Decode), TERMS);
        assert!(matches!(here, Err(ConnectError::OtherAuthority)), "another authority: {here:?}");
        assert!(matches!(there, Err(ConnectError::OtherAuthority)), "another authority: {there:?}");
        let [here, there] = meet(&address, &world.identity(Role::Prefill), &world.identity(Role::Prefill), TERMS);
        assert!(here.is_err(), "two of one kind: {here:?}");
        assert!(matches!(there, Err(ConnectError::OtherRole { wanted: Role::Decode })), "two of one kind: {there:?}");
    }
}

#[test]
fn a_client_of_the_wrong_part_is_refused_by_the_one_that_listens_too() {
    let world = World::new();
    // It would accept anybody of the authority: only the listening end's check is left.
    let mut connecting = world.identity(Role::Decode);
    connecting.client = world.identity(Role::Prefill).client;
    let [here, there] = meet(&world.unix(), &world.identity(Role::Prefill), &connecting, TERMS);
    assert!(matches!(here, Err(ConnectError::OtherRole { wanted: Role::Decode })), "{here:?}");
    assert!(matches!(there, Err(ConnectError::Handshake(_))), "{there:?}");
}

#[test]
fn a_peer_without_a_certificate_is_refused() {
    let world = World::new();
    let mut roots = rustls::RootCertStore::empty();
    let pem = std::fs::read(world.files(Role::Prefill).authority).unwrap();
    roots.add(rustls::pki_types::pem::PemObject::from_pem_slice(&pem).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let mut client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"bulkhead-link/1".to_vec()];
    let mut connecting = world.identity(Role::Decode);
    connecting.client = std::sync::Arc::new(client);
    let [here, there] = meet(&world.unix(), &world.identity(Role::Prefill), &connecting, TERMS);
    assert!(matches!(here, Err(ConnectError::Handshake(_))), "{here:?}");
    assert!(matches!(there, Err(ConnectError::Handshake(_))), "{there:?}");
}

#[test]
fn one_that_speaks_no_tls_or_another_protocol_is_refused() {
    let world = World::new();
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap(), &world.identity(Role::Prefill), TERMS).unwrap();
    let Address::Tcp { host, port } = listener.address().clone() else { panic!("{listener:?}") };
    let mut plain = TcpStream::connect((host, port)).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let refused = listener.accept().and_then(Incoming::shake_hands);
    assert!(matches!(refused, Err(ConnectError::Handshake(_))), "{refused:?}");
    let mut connecting = world.identity(Role::Decode);
    let mut client = (*connecting.client).clone();
    client.alpn_protocols = Vec::new();
    connecting.client = std::sync::Arc::new(client);
    let [here, there] = meet(&world.unix(), &world.identity(Role::Prefill), &connecting, TERMS);
    assert!(matches!(here, Err(ConnectError::OtherProtocol)), "{here:?}");
    assert!(matches!(there, Err(ConnectError::OtherProtocol)), "{there:?}");
    // A server that is none.
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", plain.local_addr().unwrap()).parse().unwrap();
    let serving = std::thread::spawn(move || plain.accept().unwrap().0.write_all(b"SSH-2.0-x\r\n"));
    let refused = connect(&address, &world.identity(Role::Decode), TERMS);
    assert!(matches!(refused, Err(ConnectError::Handshake(_))), "{refused:?}");
    serving.join().unwrap().unwrap();
}

#[test]
fn a_frame_beyond_the_terms_is_neither_sent_nor_taken() {
    let world = World::new();
    let small = LinkTerms { frame_bytes_max: 100, ..TERMS };
    let listener = Listener::bind(&world.unix(), &world.identity(Role::Prefill), small).unwrap();
    let generous = world.identity(Role::Decode);
    let (there, here) = std::thread::scope(|scope| {
        let there = scope.spawn(|| connect(&world.unix(), &generous, TERMS).unwrap());
        let here = listener.accept().unwrap().shake_hands().unwrap();
        (there.join().unwrap(), here)
    });
    let ((to_here, mut from_here), (to_there, mut from_there)) = (there.split(), here.split());
    assert!(!to_there.send(frame(1, &[0; 101])) && !to_there.send(frame(0, b"")), "not as the terms say");
    assert!(to_there.send(frame(1, &[0; 100])) && to_here.send(frame(1, &[0; 100])));
    assert_eq!(from_here.receive(), Ok(frame(1, &[0; 100])));
    assert_eq!(from_there.receive(), Ok(frame(1, &[0; 100])));
    assert!(to_here.send(frame(1, &[0; 101])));
    let too_long = LinkError::TooLong { bytes: 101, bytes_max: 100 };
    assert_eq!(from_there.receive(), Err(LinkEnd::Failed(too_long)));
    assert!(matches!(from_here.receive(), Err(LinkEnd::Failed(LinkError::Broken(_)))), "it was cut off");
}

#[test]
fn a_cut_connection_is_not_taken_for_a_farewell() {
    let world = World::new();
    let listener = Listener::bind(&"tcp:127.0.0.1:0".parse().unwrap(), &world.identity(Role::Prefill), TERMS).unwrap();
    let Address::Tcp { host, port } = listener.address().clone() else { panic!("{listener:?}") };
    // Passes on what is said in the handshake and after it, until it is told to cut.
    let between = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", between.local_addr().unwrap()).parse().unwrap();
    let passing = std::thread::spawn(move || {
        let (near, far) = (between.accept().unwrap().0, TcpStream::connect((host, port)).unwrap());
        let pass = |mut from: TcpStream, mut to: TcpStream| {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = from.read(&mut buffer) {
                    if to.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
            })
        };
        let threads = [
            pass(near.try_clone().unwrap(), far.try_clone().unwrap()),
            pass(far.try_clone().unwrap(), near.try_clone().unwrap()),
        ];
        (near, far, threads)
    });
    let decode = world.identity(Role::Decode);
    let (there, here) = std::thread::scope(|scope| {
        let there = scope.spawn(|| connect(&address, &decode, TERMS).unwrap());
        let here = listener.accept().unwrap().shake_hands().unwrap();
        (there.join().unwrap(), here)
    });
    let ((to_here, mut from_here), (_to_there, mut from_there)) = (there.split(), here.split());
    assert!(to_here.send(frame(3, b"before")));
    assert_eq!(from_there.receive(), Ok(frame(3, b"before")));
    let (near, far, threads) = passing.join().unwrap();
    near.shutdown(std::net::Shutdown::Both).unwrap();
    far.shutdown(std::net::Shutdown::Both).unwrap();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    for from in [&mut from_here, &mut from_there] {
        let end = from.receive();
        assert!(matches!(end, Err(LinkEnd::Failed(LinkError::Broken(_)))), "{end:?}");
    }
}

#[test]
fn a_socket_is_for_this_user_and_only_an_abandoned_one_is_replaced() {
    let world = World::new();
    let identity = world.identity(Role::Prefill);
    let Address::Unix(path) = world.unix() else { panic!() };
    let bind = || Listener::bind(&world.unix(), &identity, TERMS);
    let listener = bind().unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(bind(), Err(ConnectError::Taken { reason: "another process listens there", .. })));
    drop(listener);
    assert!(!path.exists(), "it is removed with its listener");
    // As a process leaves it that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    drop(bind().unwrap());
    std::fs::write(&path, b"somebody's file").unwrap();
    assert!(matches!(bind(), Err(ConnectError::Taken { reason: "there is something that is not a socket", .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's file");
    let nobody = Address::Unix(world.folder.path().join("nobody.sock"));
    let refused = connect(&nobody, &world.identity(Role::Decode), TERMS);
    assert!(matches!(refused, Err(ConnectError::Socket { .. })), "{refused:?}");
}

#[test]
fn keys_are_for_this_user_and_nothing_that_exists_is_replaced() {
    let folder = TempDir::new().unwrap();
    let keys = folder.path().join("a/keys");
    let written = Authority::write(&keys).unwrap();
    assert_eq!(written.len(), 5);
    for path in &written {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
    }
    assert_eq!(std::fs::metadata(&keys).unwrap().permissions().mode() & 0o777, 0o700);
    let before = std::fs::read(&written[0]).unwrap();
    let error = Authority::write(&keys).unwrap_err().to_string();
    assert!(error.contains("prefill.pem"), "{error}");
    assert_eq!(std::fs::read(&written[0]).unwrap(), before);
}

#[test]
fn files_that_are_no_identity_are_named() {
    let world = World::new();
    let (files, strange) = (world.files(Role::Prefill), world.folder.path().join("strange.pem"));
    let load = |files: &IdentityFiles| Identity::load(Role::Prefill, files).unwrap_err();
    let at = |path: &Path| path.to_owned();
    for (text, says) in [("", "no certificate"), ("-----BEGIN CERTIFICATE-----\n", "strange.pem")] {
        std::fs::write(&strange, text).unwrap();
        for files in [
            IdentityFiles { certificate: at(&strange), ..files.clone() },
            IdentityFiles { authority: at(&strange), ..files.clone() },
        ] {
            let error = load(&files).to_string();
            assert!(error.contains(says) && error.contains("strange.pem"), "{error}");
        }
        let error = load(&IdentityFiles { key: at(&strange), ..files.clone() }).to_string();
        assert!(error.contains("strange.pem"), "{error}");
    }
    let other = world.files(Role::Decode);
    let swapped = IdentityFiles { certificate: at(&other.certificate), ..files.clone() };
    assert!(matches!(load(&swapped), IdentityError::OtherRole { role: Role::Prefill, .. }));
    let no_pair = IdentityFiles { key: at(&other.key), ..files.clone() };
    assert!(matches!(load(&no_pair), IdentityError::Tls(_)));
    let missing = IdentityFiles { key: at(&world.folder.path().join("none.key")), ..files };
    assert!(load(&missing).to_string().contains("none.key"));
    let shown = format!("{:?}", world.identity(Role::Prefill));
    assert_eq!(shown, "Identity(prefill)");
}
