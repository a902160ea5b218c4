//! The witness on the network: HTTP/1.1, two paths, everything bounded. TLS belongs to a proxy in front; nothing that is
//! asked or answered is secret.

use crate::witness::{Answer, Witness};
use audit_tlog::{ADD_CHECKPOINT_BYTES_MAX, CosignerKey, TLOG_SIZE};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

const TEXT: &str = "text/plain; charset=utf-8";
/// A request's head has a path and a few fields.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;
/// After this long without descriptors for a connection it is tried again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a witness spends on whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at the same time. More wait to be accepted.
    pub connections_max: usize,
    /// For the head of a request, and between two of them.
    pub head_timeout: Duration,
    /// For a request's body.
    pub body_timeout: Duration,
    /// After this long a connection ends with the request that is in progress.
    pub connection_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // A log has one; this is room for many logs behind one proxy.
            connections_max: 256,
            head_timeout: Duration::from_secs(15),
            body_timeout: Duration::from_secs(10),
            connection_time_max: Duration::from_secs(300),
        }
    }
}

/// Answers until `stop`; then requests in progress end. `unix_seconds` is the time that is signed.
pub async fn serve(
    listener: TcpListener,
    witness: Arc<Witness>,
    limits: Limits,
    unix_seconds: fn() -> u64,
    stop: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        // The place first: a connection that has none waits in the system's queue, and costs nothing here.
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = accept(&listener, &places) => accepted,
            _ended = connections.join_next(), if !connections.is_empty() => continue,
        };
        let Some((stream, place)) = accepted else { continue };
        let witness = Arc::clone(&witness);
        connections.spawn(async move {
            converse(stream, witness, limits, unix_seconds).await;
            drop(place);
        });
    }
    drop(listener);
    let rest = async { while connections.join_next().await.is_some() {} };
    // Whoever is answered now has sent its request; idle connections are cut with the runtime.
    let _idle = timeout(Duration::from_millis(500), rest).await;
}

/// Listens there and answers until an interrupt or a request to end. `said` is told the witness's key and the address, once it
/// listens. Signs the time of the system's clock.
///
/// # Errors
/// The address cannot be listened on, or signals cannot be waited for.
pub async fn serve_until_signal(
    listen: SocketAddr,
    witness: Witness,
    said: impl FnOnce(CosignerKey, SocketAddr),
) -> io::Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let listener = TcpListener::bind(listen).await?;
    said(witness.verifier_key(), listener.local_addr()?);
    let stop = async {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    };
    serve(listener, Arc::new(witness), Limits::default(), unix_seconds, stop).await;
    Ok(())
}

/// Seconds since 1970; 0, which is never signed, on a clock that is before that.
fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> Option<(TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    // INVARIANT: the semaphore is never closed.
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, place)),
        Err(error) => {
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(ACCEPT_PAUSE).await;
            None
        }
    }
}

/// One connection, from its first request to its last.
async fn converse(stream: TcpStream, witness: Arc<Witness>, limits: Limits, unix_seconds: fn() -> u64) {
    let service = service_fn(move |request| {
        let witness = Arc::clone(&witness);
        async move { Ok::<_, Infallible>(answer(request, witness, limits, unix_seconds).await) }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .half_close(false);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    // A client that does not read its answers ends here, too.
    if timeout(limits.connection_time_max, connection.as_mut()).await.is_err() {
        connection.as_mut().graceful_shutdown();
        let _cut = timeout(limits.head_timeout + limits.body_timeout, connection).await;
    }
}

async fn answer(
    request: Request<Incoming>,
    witness: Arc<Witness>,
    limits: Limits,
    unix_seconds: fn() -> u64,
) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let path = head.uri.path();
    if path != "/add-checkpoint" {
        return match (&head.method, path.strip_prefix('/').and_then(|path| path.strip_suffix("/checkpoint"))) {
            (&Method::GET | &Method::HEAD, Some(origin_hash)) => {
                let origin_hash = origin_hash.to_owned();
                // It waits for whoever adds one, and so for the device.
                match tokio::task::spawn_blocking(move || witness.checkpoint(&origin_hash)).await {
                    Ok(Some(note)) => text(StatusCode::OK, note),
                    Ok(None) => text(StatusCode::NOT_FOUND, "no checkpoint of this log was seen\n"),
                    Err(_) => text(StatusCode::INTERNAL_SERVER_ERROR, "the witness cannot answer\n"),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "nothing is here\n"),
        };
    }
    if head.method != Method::POST {
        let mut refused = text(StatusCode::METHOD_NOT_ALLOWED, "a checkpoint is added with POST\n");
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return refused;
    }
    let body = match timeout(limits.body_timeout, Limited::new(body, ADD_CHECKPOINT_BYTES_MAX).collect()).await {
        Err(_) => return text(StatusCode::REQUEST_TIMEOUT, "the request took too long\n"),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return text(StatusCode::PAYLOAD_TOO_LARGE, "longer than any checkpoint\n");
        }
        Ok(Err(_)) => return text(StatusCode::BAD_REQUEST, "the request broke off\n"),
        Ok(Ok(body)) => body.to_bytes(),
    };
    // It waits for the device.
    let added = tokio::task::spawn_blocking(move || witness.add_checkpoint(&body, unix_seconds())).await;
    match added.unwrap_or(Answer::Failed) {
        Answer::Cosigned(line) => text(StatusCode::OK, line),
        Answer::Malformed(reason) => text(StatusCode::BAD_REQUEST, format!("{reason}\n")),
        Answer::NotSigned => text(StatusCode::FORBIDDEN, "not signed by the log's key\n"),
        Answer::UnknownLog => text(StatusCode::NOT_FOUND, "not a log that is followed here\n"),
        Answer::OtherSize(size) => {
            let mut conflict = text(StatusCode::CONFLICT, format!("{size}\n"));
            conflict.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TLOG_SIZE));
            conflict
        }
        Answer::Inconsistent(reason) => text(StatusCode::UNPROCESSABLE_ENTITY, format!("{reason}\n")),
        Answer::Refused(reason) => text(StatusCode::UNPROCESSABLE_ENTITY, format!("audit: {reason}\n")),
        Answer::Failed => text(StatusCode::INTERNAL_SERVER_ERROR, "the witness cannot sign\n"),
    }
}

fn text(status: StatusCode, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    response
}
