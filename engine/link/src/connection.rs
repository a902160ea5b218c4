//! How two processes come together: listening, connecting, and the handshake in which each shows its certificate.

use crate::address::Address;
use crate::frame::{self, Frame, NoFrame, PING};
use crate::identity::{self, Identity};
use crate::link::{Link, LinkTerms, Opened};
use crate::role::Role;
use rustls::CommonState;
use std::fs::{self, Permissions};
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

/// From the first byte of a connection to the end of its handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);
/// To reach a TCP address.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// What the exporter of TLS is asked for: see [`Link::secret`].
const SECRET_LABEL: &[u8] = b"EXPORTER-bulkhead-link-secret";

/// Anything that TLS can go over.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Socket for T {}

/// Why two processes did not come together.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The system does not give what is needed to wait for a socket.
    #[error("a link needs a thread and a way to wait for sockets: {0}")]
    Runtime(io::Error),
    /// There is something at the path of a Unix socket.
    #[error("{}: {reason}", path.display())]
    Taken {
        /// Where.
        path: PathBuf,
        /// What is there.
        reason: &'static str,
    },
    /// Nobody listens there, or it cannot be listened there.
    #[error("{address}: {source}")]
    Socket {
        /// Where.
        address: Address,
        /// What the system says.
        source: io::Error,
    },
    /// The handshake failed, on either side: no certificate, one of another authority, no TLS at all.
    #[error("the handshake failed: {0}")]
    Handshake(io::Error),
    /// Somebody's certificate is not one of the other's authority.
    #[error("the certificates are not of one authority: both processes need a set that was made together")]
    OtherAuthority,
    /// The handshake took too long.
    #[error("the handshake took more than {} s", HANDSHAKE_LIMIT.as_secs())]
    Slow,
    /// Its certificate is of the right authority and of the wrong part of the engine.
    #[error("the peer is no {wanted} worker")]
    OtherRole {
        /// What it had to be.
        wanted: Role,
    },
    /// It does not speak this version of the link.
    #[error("the peer speaks another protocol")]
    OtherProtocol,
}

/// Waits for peers at an address.
#[derive(Debug)]
pub struct Listener {
    socket: Waiting,
    address: Address,
    identity: Identity,
    terms: LinkTerms,
}

#[derive(Debug)]
enum Waiting {
    Unix(UnixListener),
    Tcp(TcpListener),
}

#[derive(Debug)]
enum Connected {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Listener {
    /// Begins to listen. A Unix socket is only for this user; one that a process left behind is replaced.
    ///
    /// # Errors
    /// [`ConnectError::Socket`], [`ConnectError::Taken`].
    pub fn bind(address: &Address, identity: &Identity, terms: LinkTerms) -> Result<Self, ConnectError> {
        let error = |source| ConnectError::Socket { address: address.clone(), source };
        let (socket, address) = match address {
            Address::Unix(path) => {
                remove_abandoned(path)?;
                let socket = UnixListener::bind(path).map_err(error)?;
                fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(error)?;
                (Waiting::Unix(socket), address.clone())
            }
            Address::Tcp { host, port } => {
                let socket = TcpListener::bind((host.as_str(), *port)).map_err(error)?;
                let bound = socket.local_addr().map_err(error)?;
                (Waiting::Tcp(socket), Address::Tcp { host: bound.ip().to_string(), port: bound.port() })
            }
        };
        Ok(Self { socket, address, identity: identity.clone(), terms })
    }

    /// Where it listens: with the port that the system chose, where any was asked for.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Waits for the next connection. Nothing is known of who it is, and nothing was read from it.
    ///
    /// # Errors
    /// [`ConnectError::Socket`]; the listener can be asked again.
    pub fn accept(&self) -> Result<Incoming, ConnectError> {
        let error = |source| ConnectError::Socket { address: self.address.clone(), source };
        let connected = match &self.socket {
            Waiting::Unix(socket) => Connected::Unix(socket.accept().map_err(error)?.0),
            Waiting::Tcp(socket) => Connected::Tcp(socket.accept().map_err(error)?.0),
        };
        Ok(Incoming { connected, identity: self.identity.clone(), terms: self.terms })
    }
}

impl Listener {
    /// Removes a Unix socket from the file system: nobody finds it any more. For a process that ends while it is listened
    /// at; a listener that is dropped does it itself.
    pub fn withdraw(&self) {
        if let Address::Unix(path) = &self.address {
            // It may be gone already.
            let _gone = fs::remove_file(path);
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.withdraw();
    }
}

/// Somebody who has connected and not yet shown who it is.
#[derive(Debug)]
pub struct Incoming {
    connected: Connected,
    identity: Identity,
    terms: LinkTerms,
}

/// Ends a connection from another thread.
#[derive(Debug)]
pub struct Closer(Connected);

impl Closer {
    /// Whatever is going on on it fails.
    pub fn close(&self) {
        // It may have ended already.
        let _closed = match &self.0 {
            Connected::Unix(stream) => stream.shutdown(Shutdown::Both),
            Connected::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

impl Incoming {
    /// For whoever does not want to wait for its handshake to end.
    ///
    /// # Errors
    /// When the system has no descriptor for it.
    pub fn closer(&self) -> io::Result<Closer> {
        Ok(Closer(match &self.connected {
            Connected::Unix(stream) => Connected::Unix(stream.try_clone()?),
            Connected::Tcp(stream) => Connected::Tcp(stream.try_clone()?),
        }))
    }

    /// Lets it show its certificate. Takes as long as the peer likes, up to a limit: for a thread that may wait.
    ///
    /// # Errors
    /// [`ConnectError`]; the connection is closed.
    pub fn shake_hands(self) -> Result<Link, ConnectError> {
        let Self { connected, identity, terms } = self;
        let (runtime, wanted) = (runtime()?, identity.role().peer());
        let opened = runtime.block_on(within_limit(async {
            let socket = connected.into_socket().map_err(ConnectError::Runtime)?;
            let acceptor = TlsAcceptor::from(identity.server);
            let mut stream = acceptor.accept(socket).await.map_err(|source| refused(source, wanted))?;
            let session = stream.get_ref().1;
            let checked = check(session, wanted);
            let secret = exported(|output| session.export_keying_material(output, SECRET_LABEL, None))?;
            checked?;
            // Only now does the other end know that it is welcome.
            let welcome = Frame { kind: PING, bytes: Vec::new() };
            frame::write(&mut stream, &welcome).await.map_err(ConnectError::Handshake)?;
            stream.flush().await.map_err(ConnectError::Handshake)?;
            Ok(Opened { stream: TlsStream::Server(stream), peer: wanted, secret })
        }))?;
        Link::start(runtime, opened, terms)
    }
}

/// Connects to a peer that listens.
///
/// # Errors
/// [`ConnectError`].
pub fn connect(address: &Address, identity: &Identity, terms: LinkTerms) -> Result<Link, ConnectError> {
    let error = |source| ConnectError::Socket { address: address.clone(), source };
    let wanted = identity.role().peer();
    let connected = match address {
        Address::Unix(_) => None,
        Address::Tcp { host, port } => Some(Connected::Tcp(connect_tcp(host, *port).map_err(error)?)),
    };
    let runtime = runtime()?;
    let opened = runtime.block_on(within_limit(async {
        let socket: Box<dyn Socket> = match (connected, address) {
            (Some(connected), _) => connected.into_socket().map_err(ConnectError::Runtime)?,
            // Not the standard library's, which waits for ever when nobody accepts.
            (None, Address::Unix(path)) => Box::new(tokio::net::UnixStream::connect(path).await.map_err(error)?),
            (None, Address::Tcp { .. }) => return Err(error(io::ErrorKind::NotFound.into())),
        };
        let name = wanted.server_name().ok_or(ConnectError::OtherRole { wanted })?;
        let connector = TlsConnector::from(identity.client.clone());
        let mut stream = connector.connect(name, socket).await.map_err(|source| refused(source, wanted))?;
        let session = stream.get_ref().1;
        check(session, wanted)?;
        let secret = exported(|output| session.export_keying_material(output, SECRET_LABEL, None))?;
        match frame::read(&mut stream, 0).await {
            Ok(Frame { kind: PING, .. }) => Ok(Opened { stream: TlsStream::Client(stream), peer: wanted, secret }),
            Ok(_) | Err(NoFrame::TooLong { .. }) => Err(ConnectError::OtherProtocol),
            Err(NoFrame::End) => Err(ConnectError::Handshake(io::ErrorKind::UnexpectedEof.into())),
            Err(NoFrame::Io(source)) => Err(refused(source, wanted)),
        }
    }))?;
    Link::start(runtime, opened, terms)
}

/// The first of a host's addresses that answers.
fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_LIMIT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Connected {
    /// Within a runtime.
    fn into_socket(self) -> io::Result<Box<dyn Socket>> {
        match self {
            Self::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Box::new(tokio::net::UnixStream::from_std(stream)?))
            }
            Self::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                Ok(Box::new(tokio::net::TcpStream::from_std(stream)?))
            }
        }
    }
}

/// What TLS has not compared: which part of the engine the peer is, and what it speaks.
fn check(session: &CommonState, wanted: Role) -> Result<(), ConnectError> {
    if !identity::speaks(session.alpn_protocol()) {
        return Err(ConnectError::OtherProtocol);
    }
    let certificate = session.peer_certificates().and_then(<[_]>::first);
    if !certificate.is_some_and(|certificate| identity::is_of(certificate, wanted)) {
        return Err(ConnectError::OtherRole { wanted });
    }
    Ok(())
}

/// A certificate of the right authority with another name is told apart from all else.
fn refused(error: io::Error, wanted: Role) -> ConnectError {
    use rustls::{AlertDescription, CertificateError, Error};
    let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    match tls {
        Some(Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => ConnectError::OtherRole { wanted },
        Some(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature))
        | Some(Error::AlertReceived(
            AlertDescription::UnknownCA | AlertDescription::DecryptError | AlertDescription::BadCertificate,
        )) => ConnectError::OtherAuthority,
        _ => ConnectError::Handshake(error),
    }
}

fn exported(export: impl FnOnce([u8; 32]) -> Result<[u8; 32], rustls::Error>) -> Result<[u8; 32], ConnectError> {
    export([0; 32]).map_err(|error| ConnectError::Handshake(io::Error::other(error)))
}

async fn within_limit<T>(handshake: impl Future<Output = Result<T, ConnectError>>) -> Result<T, ConnectError> {
    tokio::time::timeout(HANDSHAKE_LIMIT, handshake).await.unwrap_or(Err(ConnectError::Slow))
}

fn runtime() -> Result<Runtime, ConnectError> {
    Builder::new_current_thread().enable_io().enable_time().build().map_err(ConnectError::Runtime)
}

/// Removes a socket that nobody listens at; anything else at the path stays.
fn remove_abandoned(path: &Path) -> Result<(), ConnectError> {
    let taken = |reason| ConnectError::Taken { path: path.to_owned(), reason };
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(taken("there is something that is not a socket"));
    }
    // It answers, or has more to do than it can.
    let knock = || Ok::<_, ConnectError>(runtime()?.block_on(tokio::net::UnixStream::connect(path)).map(drop));
    // On a thread of its own: whoever calls may be within a runtime.
    let answer = std::thread::scope(|scope| scope.spawn(knock).join());
    if !matches!(answer, Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::ConnectionRefused) {
        return Err(taken("another process listens there"));
    }
    fs::remove_file(path).map_err(|_| taken("an abandoned socket that cannot be removed"))
}
