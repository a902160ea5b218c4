//! The way to the log's witnesses: HTTP, bounded in time and in what is read. What they answer is judged by `audit-log`.

use crate::config::WitnessSettings;
use audit_log::{WITNESS_ANSWER_BYTES_MAX, Witness, WitnessAnswer, WitnessPolicy, WitnessTransport};
use std::io::{self, Read as _};
use std::sync::Arc;
use std::time::Duration;
use ureq::Agent;
use url::Url;

/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For the whole request. A witness writes to its disk before it answers; the start waits for this a few times at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// The configured witnesses as the log knows them.
pub(crate) fn policy(settings: &WitnessSettings) -> WitnessPolicy {
    let agent: Agent = Agent::config_builder()
        // Whoever redirects is not the witness that was configured.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent(concat!("bulkhead/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(Some(REQUEST_TIMEOUT))
        .build()
        .into();
    let witness = |place: &crate::config::WitnessPlace| Witness {
        key: place.key.clone(),
        transport: Arc::new(Http { agent: agent.clone(), url: place.url.clone() }),
        role: place.role,
    };
    WitnessPolicy {
        witnesses: settings.places.iter().map(witness).collect(),
        quorum: settings.quorum,
        quorum_at_start: settings.quorum_at_start,
        lag_max: settings.lag_max,
    }
}

struct Http {
    agent: Agent,
    url: Url,
}

impl WitnessTransport for Http {
    fn add_checkpoint(&self, body: &str) -> io::Result<WitnessAnswer> {
        let request = self.agent.post(self.url.as_str()).content_type("text/plain; charset=utf-8");
        let answer = request.send(body).map_err(reason)?;
        let status = answer.status().as_u16();
        let mut body = Vec::new();
        // One byte more than is read tells that there was more.
        answer.into_body().into_reader().take(WITNESS_ANSWER_BYTES_MAX as u64 + 1).read_to_end(&mut body)?;
        Ok(WitnessAnswer { status, body })
    }
}

/// In words of this program: an answer's own words go into no line of a log.
fn reason(error: ureq::Error) -> io::Error {
    match error {
        ureq::Error::Io(error) => error,
        ureq::Error::Timeout(_) => io::ErrorKind::TimedOut.into(),
        ureq::Error::HostNotFound => io::Error::other("its host is not known"),
        ureq::Error::ConnectionFailed => io::ErrorKind::ConnectionRefused.into(),
        _ => io::Error::other("its answer is not HTTP as expected, or its certificate is not trusted"),
    }
}
