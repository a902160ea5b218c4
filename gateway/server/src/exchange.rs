//! One HTTP request and its response. Pingora's HTTP layer is known in this file and nowhere else.
//!
//! What it adds to the library: strict framing, bounds on head, body, idle time and slow readers, `100 Continue`, and
//! a watch for clients that leave; and the last look at what a model wrote: it is taken sealed ([`Parcel`]), for this
//! request on this connection and in order, or not at all. A client that closes its sending side counts as gone: HTTP cannot tell that from
//! a client that closed everything, and work for nobody costs other tenants their turn.

use crate::framing::{self, FramingError};
use crate::respond;
use crate::seats::Seat;
use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use pingora::apps::{HttpPersistentSettings, HttpServerApp, HttpServerOptions, ReusedHttpStream, ServerApp};
use pingora::http::ResponseHeader;
use pingora::listeners::tls::Acceptor;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::protocols::l4::stream::Stream as L4Stream;
use policies_domain::{ConnectionId, Credential, RequestId, Seal, SealError, Verifier};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// Bytes of a refused body that are read and thrown away, so that the client can read the refusal.
const LINGER_BYTES_MAX: usize = 16 << 20;
/// How long that may take.
const LINGER: Duration = Duration::from_secs(1);

/// Pingora's word for a connection that is kept without a timer of its own.
const KEEP: Option<u64> = Some(0);

/// What one connection may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// From the connection to the end of its first request head.
    pub head_timeout: Duration,
    /// From the end of a response to the end of the next request head on the same connection.
    pub idle_timeout: Duration,
    /// From the end of the head to the end of the body.
    pub body_timeout: Duration,
    /// How long a response may wait for its client: one write, and all of them beyond what the send rate allows.
    pub write_timeout: Duration,
    /// The slowest client that is served to the end, in bytes a second over the whole response.
    pub send_bytes_per_second_min: u64,
}

/// A response header: name and value.
pub(crate) type Header = (&'static str, String);

/// Whoever answers requests.
pub(crate) trait Site: Send + Sync + 'static {
    /// Answers one request whose head is well-formed. What it leaves unanswered is cut.
    fn answer(self: &Arc<Self>, http: &mut Exchange) -> impl Future<Output = ()> + Send;
}

/// A whole response that holds nothing of a model: errors, lists, receipts.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) headers: Vec<Header>,
    pub(crate) body: Bytes,
    /// The rest of the request is not worth reading, or the server wants the connection back.
    pub(crate) close: bool,
}

impl Answer {
    pub(crate) fn new(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self { status, content_type, headers: Vec::new(), body: body.into(), close: false }
    }
}

/// Encoded text of a model, framing included, with the seal of whoever encoded it.
pub(crate) struct Parcel {
    pub(crate) bytes: Bytes,
    pub(crate) seal: Seal,
}

/// The client left, or reads too slowly to be worth its pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the client left")]
pub(crate) struct Gone;

/// A request body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the request body is larger than {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("bodies with a Content-Encoding are not read")]
    Encoded,
    #[error("the request body did not arrive in time")]
    TimedOut,
    #[error("the request body is not framed as its head says")]
    Malformed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Nothing,
    Head,
    Everything,
    /// A write failed or was cut; nothing more may be written.
    Broken,
}

/// A request whose head has been read and checked, and the response to it.
pub(crate) struct Exchange {
    session: ServerSession,
    limits: ConnectionLimits,
    from_loopback: bool,
    accepted: Instant,
    sent: Sent,
    status: Option<u16>,
    bytes_sent: u64,
    waited: Duration,
    connection: ConnectionId,
    record: Option<RequestId>,
    /// Lets text of the recorded request pass; there is none before.
    parcels: Option<Verifier>,
    /// What has passed and not left.
    loaded: Option<Bytes>,
    /// See [`Exchange::second_opinion_is`].
    second_opinion_outstanding: bool,
    /// When each piece of the body was written, and its length.
    #[cfg(test)]
    pub(crate) writes: Vec<(tokio::time::Instant, usize)>,
}

impl Exchange {
    pub(crate) fn method(&self) -> &str {
        self.session.req_header().method.as_str()
    }

    /// Without the query.
    pub(crate) fn path(&self) -> &str {
        self.session.req_header().uri.path()
    }

    /// What follows the path's question mark.
    pub(crate) fn query(&self) -> Option<&str> {
        self.session.req_header().uri.query()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.session.get_header(name).and_then(|value| value.to_str().ok())
    }

    /// The token of `Authorization: Bearer`.
    pub(crate) fn credential(&self) -> Option<Credential> {
        let (scheme, token) = self.header("authorization")?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| Credential::new(token.trim_ascii().to_owned()))
    }

    /// Does the peer sit on this machine?
    pub(crate) fn is_from_loopback(&self) -> bool {
        self.from_loopback
    }

    /// When the head had been read.
    pub(crate) fn accepted(&self) -> Instant {
        self.accepted
    }

    /// The status that was sent.
    pub(crate) fn status(&self) -> Option<u16> {
        self.status
    }

    /// Reads the whole body, after saying `100 Continue` to a client that waits for it.
    ///
    /// # Errors
    /// [`BodyError`]; whatever it is, the connection ends with the answer.
    pub(crate) async fn body(&mut self, bytes_max: usize) -> Result<Bytes, BodyError> {
        if self.session.get_header("content-encoding").is_some() {
            return Err(BodyError::Encoded);
        }
        let announced = self.header("content-length").and_then(|length| length.parse::<usize>().ok());
        if announced.is_some_and(|length| length > bytes_max) {
            return Err(BodyError::TooLarge { bytes_max });
        }
        if self.header("expect").is_some_and(|expect| expect.eq_ignore_ascii_case("100-continue")) {
            let said = timeout(self.limits.write_timeout, self.session.write_continue_response()).await;
            said.map_err(|_| BodyError::TimedOut)?.map_err(|_| BodyError::Malformed)?;
        }
        let session = &mut self.session;
        let collect = async move {
            let mut body = BytesMut::new();
            while let Some(part) = session.read_request_body().await.map_err(|_| BodyError::Malformed)? {
                if body.len() + part.len() > bytes_max {
                    return Err(BodyError::TooLarge { bytes_max });
                }
                body.extend_from_slice(&part);
            }
            Ok(body.freeze())
        };
        timeout(self.limits.body_timeout, collect).await.unwrap_or(Err(BodyError::TimedOut))
    }

    /// Returns when the client leaves, within a millisecond. Only after the whole body has been read. A client that
    /// sends more before it has its answer (the next request, or a stray empty line) hides its leaving behind that: it
    /// is noticed at the next write.
    ///
    /// # Cancel safety
    /// Safe: a byte that is read belongs to the next request and is kept for it.
    async fn gone(&mut self) {
        let _ = self.session.read_body_or_idle(true).await;
    }

    /// Runs `work` and drops it as soon as the client leaves.
    ///
    /// # Errors
    /// [`Gone`]. Work that is finished wins over a client that left at the same moment.
    pub(crate) async fn while_connected<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Gone> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            () = self.gone() => Err(Gone),
        }
    }

    /// Where the answer goes.
    pub(crate) fn connection(&self) -> ConnectionId {
        self.connection
    }

    /// The request is in the audit log: whatever is sent from now on says where, and text of a model is sent when
    /// `parcels` lets it pass.
    pub(crate) fn on_record(&mut self, request: RequestId, parcels: Verifier) {
        self.record = Some(request);
        self.parcels = Some(parcels);
    }

    /// Whether an auditor's opinion of the log is outstanding where the tenant is to be told so.
    pub(crate) fn second_opinion_is(&mut self, outstanding: bool) {
        self.second_opinion_outstanding = outstanding;
    }

    /// See [`Exchange::second_opinion_is`].
    pub(crate) fn second_opinion_outstanding(&self) -> bool {
        self.second_opinion_outstanding
    }

    /// The request's name in the audit log, once it has an entry.
    pub(crate) fn record(&self) -> Option<RequestId> {
        self.record
    }

    /// Nothing of a response has left yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.sent == Sent::Nothing
    }

    /// Sends a whole response. Does nothing when one has begun already.
    pub(crate) async fn answer(&mut self, answer: Answer) -> Result<(), Gone> {
        if !self.is_unanswered() {
            return Ok(());
        }
        if answer.close {
            self.session.set_keepalive(None);
        }
        let mut headers = answer.headers;
        headers.push(("content-type", answer.content_type.to_owned()));
        self.whole(answer.status, headers, answer.body).await
    }

    /// Takes a parcel and keeps it: what [`Exchange::send_loaded`] and [`Exchange::send_loaded_whole`] write is what was
    /// verified here, and nobody else has had it since.
    ///
    /// # Errors
    /// That of the verifier; nothing of it is ever written, and no later parcel is taken.
    pub(crate) fn load(&mut self, parcel: Parcel) -> Result<(), SealError> {
        let Some(parcels) = &mut self.parcels else {
            let origin = parcel.seal.origin();
            return Err(SealError::Foreign { index: origin.index, held: origin.binding });
        };
        self.loaded = None;
        parcels.verify(&parcel.seal, &parcel.bytes, None)?;
        self.loaded = Some(parcel.bytes);
        Ok(())
    }

    /// Sends what was loaded as a piece, at once.
    pub(crate) async fn send_loaded(&mut self) -> Result<(), Gone> {
        let loaded = self.loaded.take().ok_or(Gone)?;
        self.write(loaded, false).await
    }

    /// Sends head and body, which is what was loaded.
    pub(crate) async fn send_loaded_whole(&mut self, status: u16, headers: Vec<Header>) -> Result<(), Gone> {
        let loaded = self.loaded.take().ok_or(Gone)?;
        self.whole(status, headers, loaded).await
    }

    /// Sends head and body.
    async fn whole(&mut self, status: u16, mut headers: Vec<Header>, body: Bytes) -> Result<(), Gone> {
        headers.push(("content-length", body.len().to_string()));
        self.write_head(status, headers).await?;
        self.write(body, true).await
    }

    /// Sends the head of a response whose body follows in pieces.
    pub(crate) async fn begin(&mut self, status: u16, mut headers: Vec<Header>) -> Result<(), Gone> {
        if !self.session.is_http2() {
            headers.push(("transfer-encoding", "chunked".to_owned()));
        }
        self.write_head(status, headers).await
    }

    /// Sends one piece that holds nothing of a model, at once. An empty piece sends nothing.
    pub(crate) async fn notice(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.write(bytes, false).await
    }

    /// Sends the last piece, which holds nothing of a model, and ends the response.
    pub(crate) async fn end(&mut self, bytes: Bytes) -> Result<(), Gone> {
        self.write(bytes, true).await
    }

    async fn write_head(&mut self, status: u16, mut headers: Vec<Header>) -> Result<(), Gone> {
        if let Some(request) = self.record {
            headers.push(("x-isolation-id", request.to_string()));
            // Enforced is the gate, always; the parameter speaks of who reads the log behind it.
            let mode = if self.second_opinion_outstanding { "enforce; auditor=outstanding" } else { "enforce" };
            headers.push(("x-isolation-mode", mode.to_owned()));
            headers.push(("link", format!("</v1/isolation/receipts/{request}>; rel=\"isolation-receipt\"")));
        }
        let head = response_head(status, headers).ok_or(Gone)?;
        self.status = Some(status);
        self.timed(Sent::Head, 0, async |session| session.write_response_header(head).await.map_err(|_| Gone)).await
    }

    async fn write(&mut self, bytes: Bytes, end: bool) -> Result<(), Gone> {
        let after = if end { Sent::Everything } else { Sent::Head };
        let length = bytes.len() as u64;
        #[cfg(test)]
        self.writes.push((tokio::time::Instant::now(), bytes.len()));
        self.timed(after, length, async |session| session.write_response_body(bytes, end).await.map_err(|_| Gone)).await
    }

    /// Runs one write within what the client has left of its patience. A write that was cut leaves the response
    /// unusable, so it stays [`Sent::Broken`] unless it ends well.
    async fn timed(
        &mut self,
        after: Sent,
        length: u64,
        write: impl AsyncFnOnce(&mut ServerSession) -> Result<(), Gone>,
    ) -> Result<(), Gone> {
        if self.sent == Sent::Broken {
            return Err(Gone);
        }
        self.sent = Sent::Broken;
        self.bytes_sent += length;
        // One write may wait so long, and all together no longer than the slowest client needs.
        let time_for = |bytes| Duration::from_secs(bytes / self.limits.send_bytes_per_second_min.max(1));
        let of_all = (self.limits.write_timeout + time_for(self.bytes_sent)).saturating_sub(self.waited);
        let patience = of_all.min(self.limits.write_timeout + time_for(length));
        let begun = Instant::now();
        timeout(patience, write(&mut self.session)).await.unwrap_or(Err(Gone))?;
        self.waited += begun.elapsed();
        self.sent = after;
        Ok(())
    }

    /// Ends the exchange; the connection comes back when it can serve another request.
    async fn finish(mut self) -> Option<ReusedHttpStream> {
        if self.sent != Sent::Everything {
            // Cut, so that the client cannot take it for a whole response.
            self.session.shutdown().await;
            return None;
        }
        if !self.session.is_body_done() {
            self.linger().await;
            return None;
        }
        let mut settings = HttpPersistentSettings::for_session(&self.session);
        settings.set_user_context(Box::new(Kept));
        let stream = self.session.finish().await.ok().flatten()?;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }

    /// Closing while the client still sends would reset the connection (on HTTP/2 the stream) and could destroy the
    /// answer on its way.
    async fn linger(&mut self) {
        // An HTTP/2 stream ended with its answer.
        if !self.session.is_http2() {
            self.session.shutdown().await;
        }
        let session = &mut self.session;
        let discard = async move {
            let mut left = LINGER_BYTES_MAX;
            while let Ok(Some(part)) = session.read_request_body().await {
                match left.checked_sub(part.len()) {
                    Some(rest) => left = rest,
                    None => break,
                }
            }
        };
        let _ = timeout(LINGER, discard).await;
    }
}

fn response_head(status: u16, headers: Vec<Header>) -> Option<Box<ResponseHeader>> {
    let mut head = ResponseHeader::build(status, Some(8)).ok()?;
    for (name, value) in headers {
        head.append_header(name, value).ok()?;
    }
    Some(Box::new(head))
}

/// Marks a connection that has served a request before.
struct Kept;

struct App<S> {
    site: Arc<S>,
    seat: Arc<Seat>,
    limits: ConnectionLimits,
    from_loopback: bool,
    options: HttpServerOptions,
}

impl<S: Site> App<S> {
    async fn read_head(&self, session: &mut ServerSession) -> Result<bool, FramingError> {
        match session.read_request().await {
            Ok(true) if session.is_http2() => {
                let credentials = session.req_header().headers.get_all("authorization").iter().count();
                if credentials > 1 { Err(FramingError::TwoCredentials) } else { Ok(true) }
            }
            Ok(true) => framing::check_head(&session.to_h1_raw()).map(|()| true),
            Ok(false) => Ok(false),
            Err(error) if *error.etype() == pingora::ErrorType::InvalidHTTPHeader => Err(head_error(&error)),
            Err(_) => Ok(false),
        }
    }
}

/// What was wrong with a head. The library has one kind of error for all of it, and its text can hold the raw head,
/// credentials included: it is compared with the library's own words and never repeated.
fn head_error(error: &pingora::Error) -> FramingError {
    let cause = error.cause.as_ref().map(ToString::to_string);
    if cause.as_deref() == Some("too many headers") {
        return FramingError::TooManyHeaders;
    }
    let text = error.context.as_ref().map_or("", |context| context.as_str());
    match text {
        "multiple Host header fields" => FramingError::Host,
        "Host header differs from request-target authority" | "Host header differs from URI authority" => {
            FramingError::HostMismatch
        }
        _ if text.starts_with("Request header larger than ") => FramingError::HeadTooLong,
        _ if text.strip_prefix("invalid uri ").is_some_and(|target| target.len() > framing::TARGET_BYTES_MAX) => {
            FramingError::TargetTooLong
        }
        _ => FramingError::Malformed,
    }
}

#[async_trait]
impl<S: Site> HttpServerApp for App<S> {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &watch::Receiver<bool>,
    ) -> Option<ReusedHttpStream> {
        let kept = session.take_connection_user_context().is_some();
        let patience = if kept { self.limits.idle_timeout } else { self.limits.head_timeout };
        // The library's own timers keep a thread awake a hundred times a second: all bounds here are tokio's.
        session.set_keepalive(KEEP);
        session.set_read_timeout(None);
        // What arrives before the answer has left is read after it, as the next request.
        session.set_pipelining_enabled(true);
        let mut drain = shutdown.clone();
        let head = tokio::select! {
            biased;
            head = timeout(patience, self.read_head(&mut session)) => head.unwrap_or(Ok(false)),
            () = turned_on(&mut drain) => return None,
        };
        if head == Ok(false) {
            return None;
        }
        // Held to the end of the response; `None` when the place went to another connection just now.
        let _busy = self.seat.begin()?;
        let mut http = Exchange {
            session,
            limits: self.limits,
            from_loopback: self.from_loopback,
            accepted: Instant::now(),
            sent: Sent::Nothing,
            status: None,
            bytes_sent: 0,
            waited: Duration::ZERO,
            connection: self.seat.connection(),
            record: None,
            parcels: None,
            loaded: None,
            second_opinion_outstanding: false,
            #[cfg(test)]
            writes: Vec::new(),
        };
        if let Err(error) = head {
            let _ = http.answer(respond::refusal(&error.into()).into_answer()).await;
            if http.session.is_http2() {
                http.finish().await;
            } else {
                // The body's length is not known: there is nothing to wait for.
                http.session.shutdown().await;
            }
            return None;
        }
        let may_stay = !*shutdown.borrow() && http.session.req_header().version != http::Version::HTTP_10;
        http.session.set_keepalive(KEEP.filter(|_| may_stay));
        self.site.answer(&mut http).await;
        http.finish().await
    }

    fn server_options(&self) -> Option<&HttpServerOptions> {
        Some(&self.options)
    }
}

/// Returns when the watched value is true, or can never become so.
pub(crate) async fn turned_on(watched: &mut watch::Receiver<bool>) {
    let _ = watched.wait_for(|on| *on).await;
}

/// Where connections come in: what they are met with, and by whom.
pub(crate) struct Entrance<S> {
    site: Arc<S>,
    limits: ConnectionLimits,
    /// Plain HTTP/1 when there is none.
    tls: Option<Acceptor>,
}

impl<S: Site> Entrance<S> {
    pub(crate) fn new(site: Arc<S>, limits: ConnectionLimits, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        Self { site, limits, tls: tls.map(Acceptor::from_server_config) }
    }

    /// Serves one connection to its end. `shutdown` turning true ends it after the response in progress; the seat given
    /// away ends it at once.
    pub(crate) async fn converse(self: Arc<Self>, socket: TcpStream, seat: Arc<Seat>, shutdown: watch::Receiver<bool>) {
        tokio::select! {
            biased;
            () = seat.given_away() => {}
            () = self.serve(socket, seat.clone(), shutdown) => {}
        }
    }

    async fn serve(&self, socket: TcpStream, seat: Arc<Seat>, shutdown: watch::Receiver<bool>) {
        let _ = socket.set_nodelay(true);
        let from_loopback = socket.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_loopback());
        let socket = L4Stream::from(socket);
        let stream: Stream = match &self.tls {
            None => Box::new(socket),
            Some(acceptor) => match timeout(self.limits.head_timeout, acceptor.tls_handshake(socket)).await {
                Ok(Ok(stream)) => Box::new(stream),
                Ok(Err(_)) | Err(_) => return,
            },
        };
        // Cleartext HTTP/2 stays off: looking for it waits for bytes that may never come.
        let mut options = HttpServerOptions::default();
        options.h2_idle_timeout = Some(self.limits.idle_timeout);
        let app = Arc::new(App { site: self.site.clone(), seat, limits: self.limits, from_loopback, options });
        app.process_new(stream, &shutdown).await;
    }
}

#[cfg(test)]
impl Exchange {
    /// A request for nothing in particular that came over a connection on this machine, and the client's end of it.
    pub(crate) async fn over_loopback(seat: &Seat) -> (Self, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, _) = listener.accept().await.unwrap();
        let head = b"POST / HTTP/1.1\r\nhost: test\r\ncontent-length: 0\r\n\r\n";
        tokio::io::AsyncWriteExt::write_all(&mut client, head).await.unwrap();
        let mut session = ServerSession::new_http1(Box::new(L4Stream::from(socket)));
        assert!(session.read_request().await.unwrap());
        let minute = Duration::from_secs(60);
        let limits = ConnectionLimits {
            head_timeout: minute,
            idle_timeout: minute,
            body_timeout: minute,
            write_timeout: minute,
            send_bytes_per_second_min: 1,
        };
        let http = Self {
            session,
            limits,
            from_loopback: true,
            accepted: Instant::now(),
            sent: Sent::Nothing,
            status: None,
            bytes_sent: 0,
            waited: Duration::ZERO,
            connection: seat.connection(),
            record: None,
            parcels: None,
            loaded: None,
            second_opinion_outstanding: false,
            #[cfg(test)]
            writes: Vec::new(),
        };
        (http, client)
    }
}
