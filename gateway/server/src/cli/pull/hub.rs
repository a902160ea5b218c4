//! Asks a hub, and whoever it sends us on to.
//!
//! The user's token goes to the hub's own address (scheme, host and port) and nowhere else: redirects are followed here,
//! one by one, and from the first that leads elsewhere on it stays behind for good. An answer that is none of a hub, is
//! longer than it said, or leads from https to http is refused.

use anyhow::{Context, Result, bail};
use http::header::{ACCEPT_ENCODING, AUTHORIZATION, CONTENT_RANGE, LOCATION, RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;
use ureq::{Agent, Body};
use url::Url;

/// Hugging Face's, when no other is named.
const ENDPOINT: &str = "https://huggingface.co";
/// A hub redirects once or twice: to a repository's new name, and to a content network.
const REDIRECTS_MAX: usize = 10;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Between two pieces of a body.
const PIECE_TIMEOUT: Duration = Duration::from_secs(60);
/// Most bytes of what a hub says about a repository; a list of 100,000 files has about 10 MB.
const DESCRIPTION_BYTES_MAX: u64 = 32 << 20;
/// Most bytes of a file: what Hugging Face itself accepts.
const FILE_BYTES_MAX: u64 = 500_000_000_000;
const COMMIT: &str = "x-repo-commit";
/// Of a file that the hub keeps elsewhere, and of any other one.
const ETAGS: [&str; 2] = ["x-linked-etag", "etag"];

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum AskHubError {
    /// Nothing came.
    #[error("{0}")]
    Request(#[from] ureq::Error),
    /// An answer that is an error.
    #[error("the answer has status {0}")]
    Status(StatusCode),
    /// A redirect that is not followed.
    #[error("the hub redirects {0}")]
    Redirect(&'static str),
    /// Not what a hub says.
    #[error("the answer is not one of a hub: {0}")]
    Answer(&'static str),
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Read(io::Error),
    /// The disk does not take it.
    #[error("it cannot be written: {0}")]
    Write(io::Error),
    /// More than was announced.
    #[error("more comes than the {bytes} bytes that were announced; what came was removed")]
    TooLong { bytes: u64 },
}

impl AskHubError {
    /// Whether asking again may help.
    pub(super) fn may_pass(&self) -> bool {
        match self {
            Self::Request(error) => matches!(
                error,
                ureq::Error::Io(_)
                    | ureq::Error::Timeout(_)
                    | ureq::Error::HostNotFound
                    | ureq::Error::ConnectionFailed
                    | ureq::Error::BodyStalled
            ),
            Self::Status(status) => {
                status.is_server_error()
                    || [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_MANY_REQUESTS].contains(status)
            }
            Self::Read(_) => true,
            Self::Redirect(_) | Self::Answer(_) | Self::Write(_) | Self::TooLong { .. } => false,
        }
    }
}

/// A hub's address, and what this user is known by there.
pub(super) struct Hub {
    agent: Agent,
    endpoint: Url,
    authorization: Option<HeaderValue>,
}

/// What a hub says about a file without sending it.
pub(super) struct Announcement {
    pub(super) commit: String,
    pub(super) etag: String,
    pub(super) bytes: u64,
}

/// A successful answer.
struct Answer {
    response: Response<Body>,
    /// What the hub said before it sent us to another place.
    own_headers: HeaderMap,
}

impl Hub {
    pub(super) fn new(endpoint: Option<&str>, token: Option<&str>) -> Result<Self> {
        let endpoint = address(endpoint.unwrap_or(ENDPOINT))?;
        let authorization = token.map(|token| {
            // The reason would repeat the token.
            let value = HeaderValue::from_str(&format!("Bearer {token}")).ok();
            value.context("the token in HF_TOKEN holds characters that no token has")
        });
        let mut authorization = authorization.transpose()?;
        authorization.iter_mut().for_each(|value| value.set_sensitive(true));
        let agent = Agent::config_builder()
            .max_redirects(0)
            .http_status_as_error(false)
            .user_agent(concat!("bulkhead/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_TIMEOUT))
            .timeout_recv_response(Some(ANSWER_TIMEOUT))
            .timeout_per_read(Some(PIECE_TIMEOUT))
            .build()
            .into();
        Ok(Self { agent, endpoint, authorization })
    }

    /// What there is at a path of the hub's API.
    pub(super) fn describe<T: serde::de::DeserializeOwned>(&self, path: &str) -> Result<T, AskHubError> {
        let mut body = self.get(path, None)?.response.into_body().into_reader().take(DESCRIPTION_BYTES_MAX + 1);
        let mut text = Vec::new();
        body.read_to_end(&mut text).map_err(AskHubError::Read)?;
        if text.len() as u64 > DESCRIPTION_BYTES_MAX {
            return Err(AskHubError::Answer("it is longer than any description"));
        }
        serde_json::from_slice(&text).map_err(|_| AskHubError::Answer("it does not describe a repository"))
    }

    /// Asks for a file's first byte, which says how many there are.
    pub(super) fn announcement(&self, path: &str) -> Result<Announcement, AskHubError> {
        let answer = self.get(path, Some("bytes=0-0"))?;
        let text = |name: &str| answer.own_headers.get(name).and_then(|value| value.to_str().ok());
        let etag = ETAGS.into_iter().find_map(text).ok_or(AskHubError::Answer("it names no digest"))?;
        let commit = text(COMMIT).ok_or(AskHubError::Answer("it names no commit"))?;
        let (_, bytes) = content_range(&answer.response)?;
        if bytes > FILE_BYTES_MAX {
            return Err(AskHubError::Answer("the file is larger than any that a hub has"));
        }
        Ok(Announcement { commit: commit.to_owned(), etag: etag.replace('"', ""), bytes })
    }

    /// Fetches what `part` does not have of a file. No byte beyond the announced ones is written, and a part that such
    /// bytes followed is removed.
    pub(super) fn download(
        &self,
        path: &str,
        part: &Path,
        bytes: u64,
        mut arrived: impl FnMut(u64),
    ) -> Result<(), AskHubError> {
        let mut file = OpenOptions::new().append(true).create(true).open(part).map_err(AskHubError::Write)?;
        let mut there = file.metadata().map_err(AskHubError::Write)?.len();
        let response = self.get(path, Some(&format!("bytes={there}-")))?.response;
        if response.status() == StatusCode::OK {
            // All of it is sent, whatever part was asked for.
            file.set_len(0).map_err(AskHubError::Write)?;
            there = 0;
        } else if content_range(&response)? != (there, bytes) {
            return Err(AskHubError::Answer("it is not the part of the file that was asked for"));
        }
        arrived(there);
        let mut body = response.into_body().into_reader();
        let mut buffer = vec![0; 1 << 16];
        loop {
            let piece = match body.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => buffer.get(..read).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(AskHubError::Read(error)),
            };
            if piece.len() as u64 > bytes - there {
                drop(file);
                std::fs::remove_file(part).map_err(AskHubError::Write)?;
                return Err(AskHubError::TooLong { bytes });
            }
            file.write_all(piece).map_err(AskHubError::Write)?;
            there += piece.len() as u64;
            arrived(there);
        }
        if there < bytes {
            return Err(AskHubError::Read(io::ErrorKind::UnexpectedEof.into()));
        }
        sync(&file)
    }

    /// Asks, and follows redirects.
    fn get(&self, path: &str, range: Option<&str>) -> Result<Answer, AskHubError> {
        let no_place = |_| AskHubError::Redirect("to what is no address");
        let mut url = Url::parse(&format!("{}/{path}", self.endpoint.as_str().trim_end_matches('/')))
            .map_err(|_| AskHubError::Answer("a name in it cannot be asked for"))?;
        let mut authorization = self.authorization.as_ref();
        let mut own_headers = None;
        for _ in 0..=REDIRECTS_MAX {
            if url.origin() != self.endpoint.origin() {
                authorization = None;
            }
            let mut request = self.agent.get(url.as_str()).header(ACCEPT_ENCODING, "identity");
            if let Some(authorization) = authorization {
                request = request.header(AUTHORIZATION, authorization);
            }
            if let Some(range) = range {
                request = request.header(RANGE, range);
            }
            let response = request.call()?;
            let status = response.status();
            if !status.is_redirection() {
                return match status.is_success() {
                    true => {
                        let own_headers = own_headers.unwrap_or_else(|| response.headers().clone());
                        Ok(Answer { response, own_headers })
                    }
                    false => Err(AskHubError::Status(status)),
                };
            }
            let place = response.headers().get(LOCATION).and_then(|place| place.to_str().ok());
            let place = place.ok_or(AskHubError::Redirect("without saying where to"))?;
            // To another name of the same thing, or away to where its content lies.
            let is_elsewhere = Url::parse(place).is_ok();
            let next = url.join(place).map_err(no_place)?;
            match (url.scheme(), next.scheme()) {
                ("https", "http") => return Err(AskHubError::Redirect("from https to http")),
                (_, "https" | "http") => {}
                _ => return Err(AskHubError::Redirect("to what is not on the web")),
            }
            if (is_elsewhere || next.origin() != url.origin()) && own_headers.is_none() {
                own_headers = Some(response.headers().clone());
            }
            url = next;
        }
        Err(AskHubError::Redirect("in a circle"))
    }
}

/// A hub's address: scheme, host, port and perhaps a path.
fn address(text: &str) -> Result<Url> {
    let Ok(url) = Url::parse(text) else { bail!("`{text}` is not a hub's address, such as {ENDPOINT}") };
    if !url.username().is_empty() || url.password().is_some() {
        bail!("the hub's address holds a user's name or password; give a token in HF_TOKEN");
    }
    if !["https", "http"].contains(&url.scheme()) {
        bail!("`{text}` is not a hub's address: it begins with https://");
    }
    if url.query().is_some() || url.fragment().is_some() {
        bail!("`{text}` is not a hub's address: nothing follows its path");
    }
    Ok(url)
}

/// Where a part begins, and how many bytes the whole has.
fn content_range(response: &Response<Body>) -> Result<(u64, u64), AskHubError> {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let numbers = range.and_then(|range| {
        let (part, bytes) = range.strip_prefix("bytes ")?.split_once('/')?;
        Some((part.split_once('-')?.0.parse().ok()?, bytes.parse().ok()?))
    });
    numbers.ok_or(AskHubError::Answer("it does not say how large the file is"))
}

/// On disk before it gets its name: after a power cut the name stands for all of it or for nothing.
fn sync(file: &File) -> Result<(), AskHubError> {
    file.sync_all().map_err(AskHubError::Write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_addresses() {
        for text in ["https://hub.example", "http://127.0.0.1:8080/", "https://mirror.example/models", "http://[::1]:9"]
        {
            assert!(address(text).is_ok(), "{text}");
        }
        for text in ["http://exa mple", "http://", "https://a:b", "hub.example", "", "http://a:99999", "http://[::1"] {
            let error = address(text).unwrap_err().to_string();
            assert!(error.contains("is not a hub's address, such as https://"), "{text}: {error}");
        }
        for text in ["ftp://hub.example", "file:///etc", "hub.example:80"] {
            assert!(address(text).unwrap_err().to_string().contains("it begins with https://"), "{text}");
        }
        for text in ["https://a/?x=1", "https://a/#x"] {
            assert!(address(text).unwrap_err().to_string().contains("nothing follows its path"), "{text}");
        }
        for text in ["https://user:hidden@hub.example", "https://hidden@hub.example"] {
            let error = address(text).unwrap_err().to_string();
            assert!(error.contains("give a token in HF_TOKEN") && !error.contains("hidden"), "{error}");
        }
    }

    #[test]
    fn a_token_that_is_none_is_not_repeated() {
        let Err(error) = Hub::new(None, Some("hf_hidden\nx")) else { panic!("a line break in a header") };
        assert_eq!(error.to_string(), "the token in HF_TOKEN holds characters that no token has");
    }
}
