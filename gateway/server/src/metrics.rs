//! Numbers for operators: OpenTelemetry's API, read as Prometheus text on demand. Nothing runs between two readings.
//!
//! Label values come from bounded sets: routes and status classes from this code, tenants from the configuration.

use crate::respond::RequestError;
use audit_log::{AuditLog, ReplayOutcome};
use engine_runtime::{Engine, StepError, SubmitError, Usage};
use opentelemetry::KeyValue;
use opentelemetry::metrics::{Counter, Gauge, Histogram, Meter, MeterProvider as _};
use opentelemetry_sdk::metrics::SdkMeterProvider;
use policies_domain::{Principal, TenantName};
use prometheus::{Encoder, Registry, TextEncoder};
use std::time::{Duration, Instant};

/// From one kernel of a fast machine to a long prompt on a slow one, in seconds.
const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Why a request found no place, as a label.
const QUEUES: [&str; 4] = ["tenant_queue_full", "queue_full", "waited_too_long", "tokenizer_queue_full"];

/// The instruments could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("the metrics could not be set up: {0}")]
pub struct StartMetricsError(#[from] opentelemetry_sdk::error::OTelSdkError);

pub(crate) struct Metrics {
    registry: Registry,
    /// Keeps the instruments that are read on demand.
    _provider: SdkMeterProvider,
    requests: Counter<u64>,
    request_seconds: Histogram<f64>,
    ttft_seconds: Histogram<f64>,
    itl_seconds: Histogram<f64>,
    prompt_tokens: Counter<u64>,
    cached_tokens: Counter<u64>,
    queue_refusals: Counter<u64>,
    completion_tokens: Counter<u64>,
    incidents: Counter<u64>,
    replays: Counter<u64>,
    replay_seconds: Counter<f64>,
    webhooks: WebhookMetrics,
    self_tests: SelfTestMetrics,
}

/// What self-tests count.
#[derive(Clone)]
pub(crate) struct SelfTestMetrics {
    tests: Counter<u64>,
    last: Gauge<f64>,
}

impl SelfTestMetrics {
    /// Numbers that nobody reads.
    #[cfg(test)]
    pub(crate) fn unread() -> Self {
        let meter = opentelemetry_sdk::metrics::SdkMeterProvider::default().meter("test");
        Self { tests: meter.u64_counter("tests").build(), last: meter.f64_gauge("last").build() }
    }

    /// One that was recorded, so long after 1970.
    pub(crate) fn count(&self, passed: bool, at: Duration) {
        self.add(passed, 1);
        self.last.record(at.as_secs_f64(), &[]);
    }

    fn add(&self, passed: bool, tests: u64) {
        self.tests.add(tests, &[KeyValue::new("outcome", if passed { "passed" } else { "failed" })]);
    }
}

/// What webhooks count, by the receiver's host.
#[derive(Clone)]
pub(crate) struct WebhookMetrics {
    deliveries: Counter<u64>,
    waiting: Gauge<u64>,
}

impl WebhookMetrics {
    pub(crate) fn delivered(&self, webhook: &str, arrived: bool) {
        let outcome = if arrived { "delivered" } else { "failed" };
        let webhook = KeyValue::new("webhook", webhook.to_owned());
        self.deliveries.add(1, &[webhook, KeyValue::new("outcome", outcome)]);
    }

    pub(crate) fn waiting(&self, webhook: &str, events: usize) {
        self.waiting.record(events as u64, &[KeyValue::new("webhook", webhook.to_owned())]);
    }
}

/// What replays count.
#[derive(Clone)]
pub(crate) struct ReplayMetrics {
    replays: Counter<u64>,
    seconds: Counter<f64>,
    incidents: Counter<u64>,
}

impl ReplayMetrics {
    pub(crate) fn count(&self, tenant: &TenantName, outcome: ReplayOutcome, cpu_us: u64) {
        let tenant = KeyValue::new("tenant", tenant.as_str().to_owned());
        self.seconds.add(cpu_us as f64 / 1e6, std::slice::from_ref(&tenant));
        self.replays.add(1, &[tenant, KeyValue::new("outcome", outcome.as_str())]);
    }

    pub(crate) fn incident(&self) {
        self.incidents.add(1, &[]);
    }
}

impl Metrics {
    /// For whoever delivers events.
    pub(crate) fn webhooks(&self) -> &WebhookMetrics {
        &self.webhooks
    }

    /// For whoever tries the detectors.
    pub(crate) fn self_tests(&self) -> SelfTestMetrics {
        self.self_tests.clone()
    }

    /// For whoever computes answers again.
    pub(crate) fn replays(&self) -> ReplayMetrics {
        let (replays, seconds) = (self.replays.clone(), self.replay_seconds.clone());
        ReplayMetrics { replays, seconds, incidents: self.incidents.clone() }
    }

    pub(crate) fn start(
        engine: &Engine,
        audit: &AuditLog,
        principals: &[Principal],
    ) -> Result<Self, StartMetricsError> {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .without_target_info()
            .scope_info_enabled(false)
            .without_units()
            .build()?;
        let provider = SdkMeterProvider::builder().with_reader(exporter).build();
        let meter = provider.meter("bulkhead");
        observe_engine(&meter, engine);
        observe_audit(&meter, audit);
        let seconds = |name: &'static str| meter.f64_histogram(name).with_boundaries(SECONDS.to_vec()).build();
        let metrics = Self {
            requests: meter
                .u64_counter("gateway_requests")
                .with_description("Requests by route and status class")
                .build(),
            request_seconds: seconds("gateway_request_seconds"),
            ttft_seconds: seconds("gateway_ttft_seconds"),
            itl_seconds: seconds("gateway_itl_seconds"),
            prompt_tokens: meter.u64_counter("gateway_prompt_tokens").build(),
            cached_tokens: meter
                .u64_counter("gateway_prompt_tokens_cached")
                .with_description("Prompt tokens that were found in the tenant's own prefix cache")
                .build(),
            queue_refusals: meter
                .u64_counter("gateway_queue_refusals")
                .with_description("Requests that found no place, by tenant and queue")
                .build(),
            completion_tokens: meter.u64_counter("gateway_completion_tokens").build(),
            incidents: meter
                .u64_counter("gateway_incidents")
                .with_description("Isolation faults that were found")
                .build(),
            replays: meter
                .u64_counter("gateway_replays")
                .with_description("Answers that were computed again, by tenant and outcome")
                .build(),
            replay_seconds: meter
                .f64_counter("gateway_replay_cpu_seconds")
                .with_description("Processor time of replays")
                .build(),
            webhooks: WebhookMetrics {
                deliveries: meter
                    .u64_counter("gateway_webhook_deliveries")
                    .with_description("Attempts to deliver an event, by receiver and outcome")
                    .build(),
                waiting: meter
                    .u64_gauge("gateway_webhook_events_waiting")
                    .with_description("Events that a receiver has not had yet")
                    .build(),
            },
            self_tests: SelfTestMetrics {
                tests: meter
                    .u64_counter("bulkhead_self_tests")
                    .with_description("Self-tests of the detectors that were recorded, by outcome")
                    .build(),
                last: meter
                    .f64_gauge("bulkhead_self_test_last_seconds")
                    .with_description("When the last one was, in seconds since 1970")
                    .build(),
            },
            registry,
            _provider: provider,
        };
        // Shown from the start: a counter that appears with its first incident cannot be watched for one.
        metrics.incidents.add(0, &[]);
        [true, false].into_iter().for_each(|passed| metrics.self_tests.add(passed, 0));
        for principal in principals {
            metrics.tokens(principal.name(), Usage::default());
            QUEUES.into_iter().for_each(|queue| metrics.refused_by(queue, principal.name(), 0));
        }
        Ok(metrics)
    }

    /// All numbers as Prometheus text.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        // A family that cannot be written is left out; writing to memory does not fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        text
    }

    pub(crate) fn request(&self, route: &'static str, status: u16, took: Duration) {
        let class = match status {
            200..=299 => "2xx",
            400..=498 => "4xx",
            499 => "gone",
            500..=599 => "5xx",
            _ => "other",
        };
        let labels = [KeyValue::new("route", route), KeyValue::new("status", class)];
        self.requests.add(1, &labels);
        self.request_seconds.record(took.as_secs_f64(), &labels);
    }

    pub(crate) fn incident(&self) {
        self.incidents.add(1, &[]);
    }

    /// Counts the request if a queue is why it has no answer.
    pub(crate) fn refused(&self, tenant: &TenantName, error: &RequestError) {
        let queue = match error {
            RequestError::Submit(SubmitError::TenantFull { .. }) => QUEUES[0],
            RequestError::Submit(SubmitError::Full { .. }) => QUEUES[1],
            RequestError::Step(StepError::Expired { .. }) => QUEUES[2],
            RequestError::TurnsTaken { .. } => QUEUES[3],
            _ => return,
        };
        self.refused_by(queue, tenant, 1);
    }

    fn refused_by(&self, queue: &'static str, tenant: &TenantName, requests: u64) {
        let tenant = KeyValue::new("tenant", tenant.as_str().to_owned());
        self.queue_refusals.add(requests, &[tenant, KeyValue::new("queue", queue)]);
    }

    fn tokens(&self, tenant: &TenantName, usage: Usage) {
        let labels = [KeyValue::new("tenant", tenant.as_str().to_owned())];
        self.prompt_tokens.add(usage.prompt_tokens as u64, &labels);
        self.cached_tokens.add(usage.cached_tokens as u64, &labels);
        self.completion_tokens.add(usage.completion_tokens as u64, &labels);
    }
}

fn observe_engine(meter: &Meter, engine: &Engine) {
    let gauge = |name: &'static str, read: fn(&engine_runtime::EngineStats) -> usize| {
        let engine = engine.clone();
        meter
            .u64_observable_gauge(name)
            .with_callback(move |observer| observer.observe(read(&engine.stats()) as u64, &[]))
            .build();
    };
    gauge("engine_sequences_running", |stats| stats.sequences_running);
    gauge("engine_sequences_waiting", |stats| stats.sequences_waiting);
    gauge("engine_worker_away", |stats| usize::from(stats.worker_away));
    gauge("kv_pages_total", |stats| stats.pages.total);
    gauge("kv_pages_free", |stats| stats.pages.free);
    gauge("kv_pages_inbound", |stats| stats.pages.inbound);
    gauge("kv_pages_open", |stats| stats.pages.open);
    gauge("kv_pages_sealed", |stats| stats.pages.sealed);
    gauge("kv_pages_shared", |stats| stats.pages.shared);
    gauge("kv_pages_outbound", |stats| stats.pages.outbound);
    gauge("kv_pages_draining", |stats| stats.pages.draining);
    gauge("kv_pages_quarantined", |stats| stats.pages.quarantined);
    let counter = |name: &'static str, read: fn(&engine_runtime::EngineStats) -> u64| {
        let engine = engine.clone();
        meter
            .u64_observable_counter(name)
            .with_callback(move |observer| observer.observe(read(&engine.stats()), &[]))
            .build();
    };
    counter("engine_tokens_prefilled", |stats| stats.tokens_prefilled_total);
    counter("engine_tokens_decoded", |stats| stats.tokens_decoded_total);
    counter("engine_tokens_guessed", |stats| stats.tokens_guessed_total);
    counter("engine_preemptions", |stats| stats.preemptions_total);
    counter("engine_swapped_in", |stats| stats.swapped_in_total);
    counter("engine_tokens_accepted", |stats| stats.tokens_accepted_total);
}

fn observe_audit(meter: &Meter, audit: &AuditLog) {
    let gauge = |name: &'static str, read: fn(&audit_log::LogHealth) -> u64| {
        let audit = audit.clone();
        meter
            .u64_observable_gauge(name)
            .with_callback(move |observer| observer.observe(read(&audit.health()), &[]))
            .build();
    };
    gauge("audit_tree_size", |health| health.size);
    gauge("audit_tree_size_published", |health| health.published);
    gauge("audit_entries_queued", |health| health.queued as u64);
    gauge("audit_failed", |health| u64::from(health.failed.is_some()));
    gauge("audit_tree_size_witnessed", |health| health.witnessed);
    gauge("audit_witnesses_away", |health| health.witnesses.iter().filter(|witness| witness.away).count() as u64);
    gauge("audit_witness_alarms", |health| {
        health.witnesses.iter().filter(|witness| witness.alarm.is_some()).count() as u64
    });
    gauge("audit_entries_indexed", |health| health.index.indexed);
    gauge("audit_auditor_lags", |health| u64::from(health.auditor_lags));
    observe_lags(meter, audit);
    gauge("audit_index_rebuilds", |health| health.index.rebuilds.into());
}

/// By the cosigner's name, which the configuration has.
fn observe_lags(meter: &Meter, audit: &AuditLog) {
    let labels = |witness: &audit_log::WitnessHealth| [KeyValue::new("cosigner", witness.name.to_string())];
    let log = audit.clone();
    meter
        .u64_observable_gauge("audit_cosigner_lag_entries")
        .with_description("Published entries that a cosigner has not cosigned in this run")
        .with_callback(move |observer| {
            log.health().witnesses.iter().for_each(|witness| observer.observe(witness.lag.entries, &labels(witness)));
        })
        .build();
    let log = audit.clone();
    meter
        .f64_observable_gauge("audit_cosigner_lag_seconds")
        .with_description("Time since the first publication that a cosigner has not cosigned")
        .with_callback(move |observer| {
            let seconds = |witness: &audit_log::WitnessHealth| witness.lag.behind_us as f64 / 1e6;
            log.health().witnesses.iter().for_each(|witness| observer.observe(seconds(witness), &labels(witness)));
        })
        .build();
}

/// Times one generating request. What it did not finish is counted when it is dropped, so that aborted work is billed.
pub(crate) struct Stopwatch<'a> {
    metrics: &'a Metrics,
    tenant: TenantName,
    accepted: Instant,
    last_token: Option<Instant>,
    usage: Usage,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(metrics: &'a Metrics, tenant: &TenantName, accepted: Instant) -> Self {
        Self { metrics, tenant: tenant.clone(), accepted, last_token: None, usage: Usage::default() }
    }

    /// A step has been sent. On a stream of constant shape it waits for its period: that wait is not timed.
    pub(crate) fn step(&mut self, tokens: u32, usage: Usage) {
        self.usage = usage;
        if tokens == 0 {
            return;
        }
        let now = Instant::now();
        let labels = [KeyValue::new("tenant", self.tenant.as_str().to_owned())];
        match self.last_token.replace(now) {
            // From the end of the request's head to the first token out.
            None => self.metrics.ttft_seconds.record((now - self.accepted).as_secs_f64(), &labels),
            Some(last) => self.metrics.itl_seconds.record((now - last).as_secs_f64(), &labels),
        }
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        self.metrics.tokens(&self.tenant, self.usage);
    }
}
