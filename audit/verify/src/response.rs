//! Payloads of a response as a client saw it: the data of its server-sent events, or its whole body.

use std::borrow::Cow;

/// Longest response that is read.
pub const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// A saved response could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// Longer than [`RESPONSE_BYTES_MAX`].
    #[error("the response has {length} bytes, at most {RESPONSE_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        length: usize,
    },
    /// Neither a JSON body nor a stream of server-sent events.
    #[error("the response is neither a JSON body nor server-sent events")]
    Form,
}

/// The payloads, in order: framing, comments, `[DONE]` and events named `isolation` are not among them.
///
/// # Errors
/// [`PayloadError`].
pub fn payloads(response: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, PayloadError> {
    if response.len() > RESPONSE_BYTES_MAX {
        return Err(PayloadError::TooLong { length: response.len() });
    }
    match response.trim_ascii_start().first() {
        // A newline that a shell or an editor added is not the server's.
        Some(b'{') => Ok(vec![Cow::Borrowed(response.trim_ascii_end())]),
        None => Ok(Vec::new()),
        Some(_) => events(response),
    }
}

/// Server-sent events (WHATWG HTML section 9.2.6), as far as payloads need it.
fn events(response: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, PayloadError> {
    let mut payloads = Vec::new();
    let mut data: Option<Cow<'_, [u8]>> = None;
    let mut isolation = false;
    for line in response.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            if let Some(data) = data.take()
                && !isolation
                && *data != *b"[DONE]"
            {
                payloads.push(data);
            }
            isolation = false;
            continue;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let (field, value) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => match &mut data {
                Some(data) => {
                    data.to_mut().push(b'\n');
                    data.to_mut().extend_from_slice(value);
                }
                None => data = Some(Cow::Borrowed(value)),
            },
            b"event" => isolation = value == b"isolation",
            b"" | b"id" | b"retry" => {}
            _ => return Err(PayloadError::Form),
        }
    }
    // An event that its empty line does not end was cut off: a client does not act on it.
    Ok(payloads)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(response: &str) -> Vec<String> {
        let payloads = payloads(response.as_bytes()).unwrap();
        payloads.iter().map(|payload| String::from_utf8(payload.to_vec()).unwrap()).collect()
    }

    #[test]
    fn events_without_their_framing() {
        let stream = ": keep-alive\n\ndata: {\"a\":1}\n\ndata:{\"b\":2}\r\n\r\nevent: isolation\ndata: {\"chain\":0}\n\n\
                      data: one\ndata: two\n\ndata: [DONE]\n\n";
        assert_eq!(read(stream), ["{\"a\":1}", "{\"b\":2}", "one\ntwo"]);
        assert_eq!(read("data: whole\n\ndata: cut"), ["whole"]);
        assert_eq!(read(""), Vec::<String>::new());
    }

    #[test]
    fn a_body_is_one_payload() {
        assert_eq!(read("{\"a\": \"b\\n\"}\n"), ["{\"a\": \"b\\n\"}"]);
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(payloads(b"HTTP/1.1 200 OK\r\n"), Err(PayloadError::Form));
        assert_eq!(payloads(b"<html>"), Err(PayloadError::Form));
    }
}
