//! Whoever is configured is told of incidents: each entry about one is an event (CloudEvents 1.0, JSON) with a signature
//! (Standard Webhooks), sent in the order of the log.
//!
//! The log is the queue: what is to be sent is what its entries say, and a file remembers how far each receiver is. So a
//! receiver that is away for a week misses nothing, and nothing grows meanwhile. An event may come twice, with the same id.

mod cursor;
mod event;
mod signature;

use crate::config::WebhookPlace;
use crate::metrics::WebhookMetrics;
use audit_log::{AuditLog, IncidentEntry};
use cursor::Cursor;
use signature::Secret;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ureq::Agent;
use url::Url;

/// Between two looks at a log in which nothing happens.
const LOOK: Duration = Duration::from_secs(1);
/// Until a connection stands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For a whole delivery.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
/// After a delivery that failed; twice as long after the next one.
const RETRY_MIN: Duration = Duration::from_secs(1);
/// As long as that, at most.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// Entries that are looked for at once.
const ENTRIES_MAX: usize = 1_024;

/// Why a webhook cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StartWebhookError {
    /// The secret's file.
    #[error("the webhook's secret `{}` cannot be read: {source}", path.display())]
    ReadSecret {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// What is in it.
    #[error("the webhook's secret `{}` is not `whsec_` and the base64 of 24 to 64 bytes", path.display())]
    Secret {
        /// The file.
        path: PathBuf,
    },
    /// The file that remembers what was delivered.
    #[error("`{}`, which remembers what a webhook has had, cannot be used: {source}", path.display())]
    Cursor {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// What is in it is no entry of this log.
    #[error(
        "`{}` does not say which of the log's {entries} entries a webhook is to have next: write its number there, or remove \
         the file and begin with the next incident",
        path.display()
    )]
    CursorContent {
        /// The file.
        path: PathBuf,
        /// That there are.
        entries: u64,
    },
}

/// The threads that deliver.
#[derive(Default)]
pub(crate) struct Webhooks {
    stopping: Arc<Stopping>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Tells the threads to end.
#[derive(Default)]
struct Stopping {
    stop: Mutex<bool>,
    told: Condvar,
}

impl Stopping {
    /// `true`: it is time to end.
    fn wait(&self, time: Duration) -> bool {
        let stop = self.stop.lock().unwrap_or_else(PoisonError::into_inner);
        *self.told.wait_timeout_while(stop, time, |stop| !*stop).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Webhooks {
    /// Begins to deliver to all of them. A receiver that is new has what happens from now on.
    pub(crate) fn start(
        places: &[WebhookPlace],
        data_dir: &Path,
        origin: &str,
        log: &AuditLog,
        metrics: &WebhookMetrics,
    ) -> Result<Self, StartWebhookError> {
        let webhooks = Self::default();
        // All of them are looked at before the first one is told anything.
        let receivers: Result<Vec<Receiver>, _> = places
            .iter()
            .map(|place| {
                let secret = Secret::read(&place.secret_file)?;
                let cursor = Cursor::open(data_dir, &place.url, log.health().size)?;
                let name = place.url.host_str().unwrap_or_default().to_owned();
                Ok(Receiver {
                    agent: agent(),
                    url: place.url.clone(),
                    secret,
                    cursor,
                    name,
                    origin: origin.to_owned(),
                    log: log.clone(),
                    metrics: metrics.clone(),
                    fails: false,
                })
            })
            .collect();
        for receiver in receivers? {
            let path = receiver.cursor.path().to_owned();
            let stopping = webhooks.stopping.clone();
            let thread = std::thread::Builder::new().name("bulkhead-webhook".into());
            let thread = thread.spawn(move || receiver.run(&stopping));
            let thread = thread.map_err(|source| StartWebhookError::Cursor { path, source })?;
            webhooks.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(webhooks)
    }

    /// Ends the threads. What was not delivered is, after the next start.
    pub(crate) fn stop(&self) {
        *self.stopping.stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.stopping.told.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a webhook's thread failed");
            }
        }
    }
}

impl Drop for Webhooks {
    fn drop(&mut self) {
        self.stop();
    }
}

fn agent() -> Agent {
    Agent::config_builder()
        // Whoever redirects is not the receiver that was configured.
        .max_redirects(0)
        .max_redirects_will_error(false)
        .http_status_as_error(false)
        .proxy(None)
        .user_agent(concat!("bulkhead/", env!("CARGO_PKG_VERSION")))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_global(Some(DELIVERY_TIMEOUT))
        .build()
        .into()
}

/// One who is told.
struct Receiver {
    agent: Agent,
    url: Url,
    secret: Secret,
    cursor: Cursor,
    /// Its host, for people and metrics: the rest of an address may be a secret.
    name: String,
    origin: String,
    log: AuditLog,
    metrics: WebhookMetrics,
    /// The last delivery failed: said once, not every time.
    fails: bool,
}

/// Why an event did not arrive, in words of this program.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error("it cannot be reached")]
    Unreachable,
    #[error("it answered {0}")]
    Status(u16),
    #[error("the log cannot be read")]
    Log,
    #[error("what was delivered cannot be remembered: {0}")]
    Cursor(io::Error),
}

impl Receiver {
    fn run(mut self, stopping: &Stopping) {
        let mut pause = RETRY_MIN;
        loop {
            let waiting = self.log.incident_entries_from(self.cursor.next(), ENTRIES_MAX);
            self.metrics.waiting(&self.name, waiting.len());
            let wait = match waiting.first().map(|entry| self.deliver(*entry)) {
                None => LOOK,
                Some(Ok(())) => {
                    if std::mem::take(&mut self.fails) {
                        tracing::info!(webhook = %self.name, "events are delivered again");
                    }
                    self.metrics.delivered(&self.name, true);
                    pause = RETRY_MIN;
                    Duration::ZERO
                }
                Some(Err(error)) => {
                    if !std::mem::replace(&mut self.fails, true) {
                        tracing::warn!(webhook = %self.name, %error, "an event was not delivered, and is tried again");
                    }
                    self.metrics.delivered(&self.name, false);
                    let wait = pause;
                    pause = longer(pause);
                    wait
                }
            };
            if stopping.wait(wait) {
                return;
            }
        }
    }

    /// Delivered is what the receiver answered with success.
    fn deliver(&mut self, entry: IncidentEntry) -> Result<(), DeliveryError> {
        let report = self.log.incident_report(entry.incident).map_err(|_| DeliveryError::Log)?;
        let report = report.ok_or(DeliveryError::Log)?;
        let id = entry.leaf.to_string();
        let body = event::encode(&self.origin, &report, entry).ok_or(DeliveryError::Log)?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let signature = self.secret.sign(&id, seconds, &body);
        let sent = self
            .agent
            .post(self.url.as_str())
            .content_type("application/cloudevents+json; charset=utf-8")
            .header("webhook-id", &id)
            .header("webhook-timestamp", seconds.to_string())
            .header("webhook-signature", signature)
            .send(&body);
        // An answer's own words go into no line of a log.
        let status = sent.map_err(|_| DeliveryError::Unreachable)?.status();
        if !status.is_success() {
            return Err(DeliveryError::Status(status.as_u16()));
        }
        self.cursor.advance(entry.index + 1).map_err(DeliveryError::Cursor)
    }
}

fn longer(pause: Duration) -> Duration {
    (pause * 2).min(RETRY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_have_an_end() {
        let pauses: Vec<u64> = std::iter::successors(Some(RETRY_MIN), |pause| Some(longer(*pause)))
            .map(|pause| pause.as_secs())
            .take(11)
            .collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }
}
