//! Strict checks on a request's head, before anything in it is believed.
//!
//! The HTTP library accepts several heads that another server on the way may read differently (two kinds of length,
//! bare line feeds, no host), and removes one of two contradicting headers before we see them. Those are looked for in
//! the raw bytes and refused.

/// The longest request target that the HTTP library takes.
pub(crate) const TARGET_BYTES_MAX: usize = 65_534;
/// The HTTP library's bound on header lines.
const HEADERS_MAX: usize = 256;
/// The HTTP library's bound on a head.
const HEAD_BYTES_MAX: usize = 1_048_575;

/// A head that two servers could read in two ways, or that names two callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FramingError {
    #[error("the request head is not well-formed HTTP")]
    Malformed,
    #[error("a line of the request head does not end with carriage return and line feed")]
    LineEnd,
    #[error("an HTTP/1.1 request needs exactly one Host header")]
    Host,
    #[error("the Host header names another host than the request target")]
    HostMismatch,
    #[error("the request target is longer than {TARGET_BYTES_MAX} bytes")]
    TargetTooLong,
    #[error("the request head has more than {HEADERS_MAX} header lines")]
    TooManyHeaders,
    #[error("the request head is longer than {HEAD_BYTES_MAX} bytes")]
    HeadTooLong,
    #[error("the request has both Content-Length and Transfer-Encoding")]
    TwoLengths,
    #[error("the request has an unusable Content-Length")]
    ContentLength,
    #[error("the only supported Transfer-Encoding is `chunked`, once")]
    TransferEncoding,
    #[error("the request has more than one Authorization header")]
    TwoCredentials,
}

/// Checks the raw head of an HTTP/1 request, request line and final empty line included.
pub(crate) fn check_head(head: &[u8]) -> Result<(), FramingError> {
    let mut lines = head.split(|byte| *byte == b'\n');
    // The head ends with CR LF CR LF, so the split leaves one empty piece at the end.
    if lines.next_back() != Some(&[]) {
        return Err(FramingError::LineEnd);
    }
    let mut seen = Seen::default();
    let mut request_line = None;
    for line in lines {
        let line = line.strip_suffix(b"\r").ok_or(FramingError::LineEnd)?;
        if line.contains(&b'\r') {
            return Err(FramingError::LineEnd);
        }
        match request_line {
            // Empty lines before a request are ignored (RFC 9112, section 2.2): some clients end a body with one.
            None if line.is_empty() => {}
            None => request_line = Some(line),
            Some(_) if line.is_empty() => break,
            Some(_) => seen.header(line)?,
        }
    }
    let http_1_1 = request_line.ok_or(FramingError::Malformed)?.ends_with(b" HTTP/1.1");
    seen.judge(http_1_1)
}

#[derive(Default)]
struct Seen {
    hosts: usize,
    content_lengths: usize,
    transfer_encodings: usize,
    credentials: usize,
}

impl Seen {
    fn header(&mut self, line: &[u8]) -> Result<(), FramingError> {
        let colon = line.iter().position(|byte| *byte == b':').ok_or(FramingError::Malformed)?;
        let (name, value) = line.split_at(colon);
        let value = value.get(1..).unwrap_or_default().trim_ascii();
        if name.eq_ignore_ascii_case(b"host") {
            self.hosts += 1;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.content_lengths += 1;
            // 18 digits are more than any body; longer ones are meant to overflow somebody's integer.
            if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
                return Err(FramingError::ContentLength);
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.transfer_encodings += 1;
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(FramingError::TransferEncoding);
            }
        } else if name.eq_ignore_ascii_case(b"authorization") {
            self.credentials += 1;
        }
        Ok(())
    }

    fn judge(&self, http_1_1: bool) -> Result<(), FramingError> {
        if self.hosts > 1 || (http_1_1 && self.hosts == 0) {
            Err(FramingError::Host)
        } else if self.content_lengths > 0 && self.transfer_encodings > 0 {
            Err(FramingError::TwoLengths)
        } else if self.content_lengths > 1 {
            Err(FramingError::ContentLength)
        } else if self.transfer_encodings > 1 || (self.transfer_encodings > 0 && !http_1_1) {
            Err(FramingError::TransferEncoding)
        } else if self.credentials > 1 {
            Err(FramingError::TwoCredentials)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &str) -> Result<(), FramingError> {
        check_head(format!("POST /v1/completions HTTP/1.1\r\n{headers}\r\n").as_bytes())
    }

    #[test]
    fn ordinary_heads_pass() {
        assert_eq!(check("Host: a\r\nContent-Length: 12\r\nAuthorization: Bearer x\r\n"), Ok(()));
        assert_eq!(check("host: a\r\ntransfer-encoding: Chunked\r\n"), Ok(()));
        assert_eq!(check("host: a\r\nx-empty:\r\nx-colon: a:b\r\n"), Ok(()));
        assert_eq!(check_head(b"GET /healthz HTTP/1.0\r\n\r\n"), Ok(()));
        assert_eq!(check_head(b"\r\n\r\nGET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"), Ok(()));
    }

    #[test]
    fn heads_that_can_be_read_in_two_ways_are_refused() {
        let table = [
            ("", FramingError::Host),
            ("host: a\r\nhost: a\r\n", FramingError::Host),
            ("host: a\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n", FramingError::TwoLengths),
            ("host: a\r\ncontent-length: 3\r\ncontent-length: 3\r\n", FramingError::ContentLength),
            ("host: a\r\ncontent-length: 3, 3\r\n", FramingError::ContentLength),
            ("host: a\r\ncontent-length: +3\r\n", FramingError::ContentLength),
            ("host: a\r\ncontent-length: -1\r\n", FramingError::ContentLength),
            ("host: a\r\ncontent-length: 0x10\r\n", FramingError::ContentLength),
            ("host: a\r\ncontent-length:\r\n", FramingError::ContentLength),
            ("host: a\r\ncontent-length: 18446744073709551617\r\n", FramingError::ContentLength),
            ("host: a\r\ntransfer-encoding: identity, chunked\r\n", FramingError::TransferEncoding),
            ("host: a\r\ntransfer-encoding: chunked, chunked\r\n", FramingError::TransferEncoding),
            ("host: a\r\ntransfer-encoding: gzip\r\n", FramingError::TransferEncoding),
            ("host: a\r\ntransfer-encoding: \x0bchunked\r\n", FramingError::TransferEncoding),
            ("host: a\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n", FramingError::TransferEncoding),
            ("host: a\r\nauthorization: Bearer x\r\nAuthorization: Bearer y\r\n", FramingError::TwoCredentials),
            ("host: a\r\nauthorization: Bearer x\r\nAUTHORIZATION: Bearer x\r\n", FramingError::TwoCredentials),
            ("host: a\r\nno colon here\r\n", FramingError::Malformed),
            ("host: a\nx: b\r\n", FramingError::LineEnd),
            ("host: a\r\nx: b\rc\r\n", FramingError::LineEnd),
        ];
        for (headers, error) in table {
            assert_eq!(check(headers), Err(error), "{headers:?}");
        }
    }

    #[test]
    fn heads_without_an_end_are_refused() {
        assert_eq!(check_head(b""), Err(FramingError::Malformed));
        assert_eq!(check_head(b"\r\n\r\n"), Err(FramingError::Malformed));
        assert_eq!(check_head(b"\nGET / HTTP/1.1\r\nhost: a\r\n\r\n"), Err(FramingError::LineEnd));
        assert_eq!(check_head(b"\r\nGET / HTTP/1.1\r\n\r\n"), Err(FramingError::Host), "no line hides the version");
        assert_eq!(check_head(b"GET / HTTP/1.1\nhost: a\n\n"), Err(FramingError::LineEnd));
        assert_eq!(check_head(b"GET / HTTP/1.1\r\nhost: a"), Err(FramingError::LineEnd));
        assert_eq!(
            check_head(b"GET / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n"),
            Err(FramingError::TransferEncoding)
        );
    }
}
