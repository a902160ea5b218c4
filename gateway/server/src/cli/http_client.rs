//! A small HTTP/1.1 client for a gateway on this machine: `chat` and the demo's self-request use it.
//!
//! One request per connection, whole bodies and server-sent events. It refuses `https` (no TLS here), redirects and
//! anything beyond its bounds.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// Long enough for a gateway on this machine.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A status line or header line.
const LINE_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 128;
/// A whole body, or one event of a stream.
const BODY_BYTES_MAX: usize = 8 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// The address is not `http://HOST[:PORT]`.
    #[error("`{0}` is not an address of the form http://HOST:PORT")]
    Address(String),
    /// TLS is not spoken here.
    #[error("https is not supported by this client: use the gateway's http address, or a client such as curl")]
    Tls,
    /// It would end the header.
    #[error("the key holds a line break")]
    Key,
    /// Nobody listens, or not in time.
    #[error("no gateway answers at {address}: {reason}")]
    Connect { address: String, reason: String },
    /// The connection broke.
    #[error("the connection to the gateway broke")]
    Broken(#[source] std::io::Error),
    /// What came is not HTTP/1.1 as this client knows it.
    #[error("the answer is not HTTP as expected: {0}")]
    Protocol(&'static str),
    /// Longer than this client reads.
    #[error("the answer is longer than this client reads")]
    TooLong,
}

impl From<std::io::Error> for RequestError {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error)
    }
}

/// Where a gateway listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    authority: String,
}

impl Address {
    /// Reads `http://HOST[:PORT]`, or the same without `http://`.
    pub(crate) fn parse(text: &str) -> Result<Self, RequestError> {
        if text.starts_with("https://") {
            return Err(RequestError::Tls);
        }
        let authority = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
        let host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if authority.is_empty() || !authority.chars().all(host) {
            return Err(RequestError::Address(text.to_owned()));
        }
        let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Ok(Self { authority: if has_port { authority.to_owned() } else { format!("{authority}:80") } })
    }

    /// Of a listener in this process.
    pub(crate) fn of(address: SocketAddr) -> Self {
        Self { authority: address.to_string() }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.authority)
    }
}

/// What to ask.
pub(crate) struct Request<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// Sent as `Authorization: Bearer`.
    pub(crate) key: Option<&'a str>,
    /// JSON.
    pub(crate) body: Option<String>,
}

/// A response whose body has not been read yet.
pub(crate) struct Response {
    pub(crate) status: u16,
    headers: Vec<(String, String)>,
    connection: BufReader<TcpStream>,
    framing: Framing,
    /// Body bytes that are no whole line yet.
    pending: Vec<u8>,
    /// Body bytes in the lines that were taken.
    lines_bytes: u64,
}

enum Framing {
    /// Bytes left.
    Length(u64),
    Chunked,
    Close,
    Ended,
}

/// Sends a request and reads the head of its response.
///
/// # Cancel safety
/// Dropping it closes the connection, which the gateway takes for the caller having gone.
pub(crate) async fn send(address: &Address, request: Request<'_>) -> Result<Response, RequestError> {
    let refused = |reason: String| RequestError::Connect { address: address.to_string(), reason };
    let connect = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&address.authority));
    let mut stream = match connect.await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return Err(refused(error.to_string())),
        Err(_) => return Err(refused(format!("no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
    };
    stream.set_nodelay(true)?;
    let mut text = format!("{} {} HTTP/1.1\r\nhost: {}\r\n", request.method, request.path, address.authority);
    if let Some(key) = request.key {
        if key.contains(['\r', '\n']) {
            return Err(RequestError::Key);
        }
        text.push_str(&format!("authorization: Bearer {key}\r\n"));
    }
    match &request.body {
        Some(body) => {
            text.push_str(&format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len()));
            text.push_str(body);
        }
        None => text.push_str("\r\n"),
    }
    stream.write_all(text.as_bytes()).await?;
    Response::read_head(BufReader::new(stream)).await
}

impl Response {
    async fn read_head(mut connection: BufReader<TcpStream>) -> Result<Self, RequestError> {
        let status = read_line(&mut connection).await?;
        let status = status
            .strip_prefix("HTTP/1.1 ")
            .or_else(|| status.strip_prefix("HTTP/1.0 "))
            .and_then(|rest| rest.get(..3)?.parse::<u16>().ok())
            .ok_or(RequestError::Protocol("no status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = read_line(&mut connection).await?;
            if line.is_empty() {
                break;
            }
            let (name, value) = line.split_once(':').ok_or(RequestError::Protocol("a header without a colon"))?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
            if headers.len() > HEADERS_MAX {
                return Err(RequestError::TooLong);
            }
        }
        let header = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
        let framing = match (header("transfer-encoding"), header("content-length")) {
            (Some(coding), _) if coding.eq_ignore_ascii_case("chunked") => Framing::Chunked,
            (Some(_), _) => return Err(RequestError::Protocol("an unknown transfer encoding")),
            (None, Some(length)) => Framing::Length(
                length.parse().map_err(|_| RequestError::Protocol("a content length that is no number"))?,
            ),
            (None, None) => Framing::Close,
        };
        Ok(Self { status, headers, connection, framing, pending: Vec::new(), lines_bytes: 0 })
    }

    /// The value of a header, by its lower-case name.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }

    /// The whole body.
    pub(crate) async fn body(mut self) -> Result<Vec<u8>, RequestError> {
        while self.read_more().await? {
            if self.pending.len() > BODY_BYTES_MAX {
                return Err(RequestError::TooLong);
            }
        }
        Ok(self.pending)
    }

    /// The `data` of the next server-sent event, lines joined; `None` at the end. Comments and other fields are skipped.
    pub(crate) async fn event(&mut self) -> Result<Option<String>, RequestError> {
        let mut data: Option<String> = None;
        loop {
            let Some(line) = self.body_line().await? else { return Ok(None) };
            if line.is_empty() {
                // An event without data is none.
                if data.is_some() {
                    return Ok(data);
                }
            } else if let Some(value) = line.strip_prefix("data:") {
                let value = value.strip_prefix(' ').unwrap_or(value);
                match &mut data {
                    Some(text) => {
                        text.push('\n');
                        text.push_str(value);
                    }
                    None => data = Some(value.to_owned()),
                }
                if data.as_ref().is_some_and(|data| data.len() > BODY_BYTES_MAX) {
                    return Err(RequestError::TooLong);
                }
            }
        }
    }

    /// How long the stream is up to the end of the last event, comments and other fields included.
    pub(crate) fn events_bytes(&self) -> u64 {
        self.lines_bytes
    }

    async fn body_line(&mut self) -> Result<Option<String>, RequestError> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.pending.iter().skip(searched).position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.pending.drain(..=searched + at).collect();
                self.lines_bytes += line.len() as u64;
                let line = String::from_utf8(line).map_err(|_| RequestError::Protocol("text that is not UTF-8"))?;
                return Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()));
            }
            searched = self.pending.len();
            if searched > BODY_BYTES_MAX {
                return Err(RequestError::TooLong);
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// Appends some bytes of the body to `pending`; `false` at its end.
    async fn read_more(&mut self) -> Result<bool, RequestError> {
        match self.framing {
            Framing::Ended => Ok(false),
            Framing::Close => Ok(self.connection.read_buf(&mut self.pending).await? > 0),
            Framing::Length(left) => {
                let read = (&mut self.connection).take(left.min(1 << 16)).read_buf(&mut self.pending).await?;
                if left > 0 && read == 0 {
                    return Err(cut());
                }
                self.framing = if left == read as u64 { Framing::Ended } else { Framing::Length(left - read as u64) };
                Ok(read > 0)
            }
            Framing::Chunked => {
                let line = read_line(&mut self.connection).await?;
                let size = line.split(';').next().unwrap_or_default().trim();
                let size =
                    u64::from_str_radix(size, 16).map_err(|_| RequestError::Protocol("a chunk without a size"))?;
                if size == 0 {
                    // Trailers are not used.
                    while !read_line(&mut self.connection).await?.is_empty() {}
                    self.framing = Framing::Ended;
                    return Ok(false);
                }
                if size > BODY_BYTES_MAX as u64 {
                    return Err(RequestError::TooLong);
                }
                if (&mut self.connection).take(size).read_to_end(&mut self.pending).await? as u64 != size {
                    return Err(cut());
                }
                match read_line(&mut self.connection).await?.as_str() {
                    "" => Ok(true),
                    _ => Err(RequestError::Protocol("a chunk longer than its size")),
                }
            }
        }
    }
}

fn cut() -> RequestError {
    RequestError::Broken(std::io::ErrorKind::UnexpectedEof.into())
}

/// One line without its end; an error when the connection ends first.
async fn read_line(connection: &mut BufReader<TcpStream>) -> Result<String, RequestError> {
    let mut line = Vec::new();
    connection.take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await?;
    match line.pop() {
        Some(b'\n') => {}
        _ if line.len() + 1 >= LINE_BYTES_MAX => return Err(RequestError::TooLong),
        _ => return Err(cut()),
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| RequestError::Protocol("a line that is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    /// Answers one request with these bytes and closes; gives back what was asked.
    async fn answered(answer: &'static str) -> (Result<Response, RequestError>, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = Address::of(listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = vec![0; 4096];
            let read = stream.read(&mut asked).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            String::from_utf8(asked[..read].to_vec()).unwrap()
        });
        let request = Request { method: "POST", path: "/p", key: Some("bk_1"), body: Some("{}".into()) };
        let response = send(&address, request).await;
        (response, server.await.unwrap())
    }

    async fn body(answer: &'static str) -> Result<String, RequestError> {
        Ok(String::from_utf8(answered(answer).await.0?.body().await?).unwrap())
    }

    async fn events(answer: &'static str) -> Result<Vec<String>, RequestError> {
        let mut response = answered(answer).await.0?;
        let mut events = Vec::new();
        while let Some(event) = response.event().await? {
            events.push(event);
        }
        Ok(events)
    }

    #[test]
    fn addresses_are_read_and_https_is_refused() {
        let address = |text| Address::parse(text).map(|address| address.to_string());
        assert_eq!(address("http://127.0.0.1:8080/").unwrap(), "http://127.0.0.1:8080");
        assert_eq!(address("localhost:1234").unwrap(), "http://localhost:1234");
        assert_eq!(address("http://[::1]:9").unwrap(), "http://[::1]:9");
        assert_eq!(address("localhost").unwrap(), "http://localhost:80");
        assert!(matches!(address("https://localhost"), Err(RequestError::Tls)));
        for text in ["", "http://", "a b", "http://a/b", "ftp://a", "a\r\nb"] {
            assert!(matches!(address(text), Err(RequestError::Address(_))), "{text}");
        }
    }

    #[tokio::test]
    async fn a_request_says_what_is_needed_and_nothing_else() {
        let (response, asked) = answered("HTTP/1.1 200 OK\r\nX-Isolation-Id: 7\r\ncontent-length: 0\r\n\r\n").await;
        let (head, sent) = asked.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /p HTTP/1.1\r\nhost: 127.0.0.1:"), "{head}");
        assert!(head.contains("authorization: Bearer bk_1") && head.ends_with("content-length: 2"), "{head}");
        assert_eq!(sent, "{}");
        let response = response.unwrap();
        assert_eq!((response.status, response.header("x-isolation-id")), (200, Some("7")));
    }

    #[tokio::test]
    async fn bodies_are_read_in_every_framing() {
        assert_eq!(body("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcdef").await.unwrap(), "abc");
        assert_eq!(body("HTTP/1.1 200 OK\r\n\r\nto the end").await.unwrap(), "to the end");
        let chunked =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=1\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(body(chunked).await.unwrap(), "abc0123456789");
    }

    #[tokio::test]
    async fn events_are_told_apart_whatever_the_chunks() {
        let stream = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                      9\r\n: alive\n\n\r\n7\r\ndata: a\r\n3\r\nb\n\n\r\n12\r\nevent: x\ndata:c\nda\r\nb\r\nta: d\n\ndata\r\n0\r\n\r\n";
        assert_eq!(events(stream).await.unwrap(), ["ab", "c\nd"]);
    }

    #[tokio::test]
    async fn a_cut_answer_is_an_error_and_no_short_answer() {
        for answer in [
            "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\ncontent-",
            "",
        ] {
            assert!(matches!(body(answer).await, Err(RequestError::Broken(_))), "{answer}");
        }
    }

    #[tokio::test]
    async fn what_is_not_http_is_refused() {
        for answer in [
            "SSH-2.0\r\n\r\n",
            "HTTP/2 200\r\n\r\n",
            "HTTP/1.1 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        ] {
            assert!(matches!(body(answer).await, Err(RequestError::Protocol(_))), "{answer}");
        }
    }

    #[tokio::test]
    async fn an_answer_beyond_the_bounds_is_refused() {
        let line = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(LINE_BYTES_MAX)).leak();
        assert!(matches!(body(line).await, Err(RequestError::TooLong)));
        let headers = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(HEADERS_MAX + 1)).leak();
        assert!(matches!(body(headers).await, Err(RequestError::TooLong)));
        assert!(matches!(
            body("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffff\r\n").await,
            Err(RequestError::TooLong)
        ));
    }

    #[tokio::test]
    async fn a_port_where_nobody_listens_is_named() {
        let address = Address::of(TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap());
        let request = Request { method: "GET", path: "/", key: None, body: None };
        let Err(error) = send(&address, request).await else { panic!("nobody listens there") };
        assert!(error.to_string().starts_with(&format!("no gateway answers at {address}")), "{error}");
    }
}
