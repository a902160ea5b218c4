//! The one place where an error becomes a response: status, stable code, whose fault, whether to come back.
//!
//! The shape is the OpenAI API's: `{"error": {"message", "type", "param", "code"}}`. Codes are part of the interface
//! and do not change. Nothing here repeats a credential, a prompt or another tenant's existence.

use crate::exchange::{Answer, BodyError, Gone};
use crate::framing::FramingError;
use crate::json::ParseRequestError;
use audit_log::{
    AppendError, ConsistencyError, IncidentId, KeepingError, Leg, LookupError, OwnEntriesError, ReceiptError,
};
use engine_model::{ChatTemplateError, RenderError};
use engine_runtime::{StepError, SubmitError, TokenizeError};
use gateway_auth::AuthError;
use policies_authz::Denied;
use policies_domain::SealError;
use serde::Serialize;

/// What clients that are told to come back without a better number wait, in milliseconds.
const RETRY_AFTER_MS: u64 = 1000;

/// Everything that can keep a request from its answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    #[error(transparent)]
    Framing(#[from] FramingError),
    #[error("there is nothing at this path")]
    UnknownPath,
    #[error("this path answers {allow} only")]
    Method { allow: &'static str },
    #[error(transparent)]
    Auth(#[from] AuthError),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Parse(#[from] ParseRequestError),
    #[error("the model does not exist")]
    UnknownModel,
    #[error(transparent)]
    Denied(#[from] Denied),
    #[error("{error}")]
    Tokenize { error: TokenizeError, param: &'static str },
    /// The queue for tokenizing is the tenant's own.
    #[error("{waiting} prompts of this tenant wait to be tokenized already")]
    TurnsTaken { waiting: usize },
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Step(#[from] StepError),
    /// A step read what this tenant may not see, or a kernel found a foreign page. Nothing of that step was sent.
    #[error("an isolation fault stopped this response")]
    Isolation { incident: Option<IncidentId> },
    /// A piece of the answer was not made for this request, or not as the next one. It was not sent.
    #[error("an isolation fault stopped this response")]
    Seal { leg: Leg, error: SealError },
    /// An answer that leaves when it was computed again, and was not.
    #[error("the answer could not be computed again in time, and leaves only then")]
    NotReplayed,
    /// Nobody reads along, and this tenant is answered only while somebody does.
    #[error("the auditor of this log has fallen behind, and this tenant is answered only while it has not")]
    AuditorLags { retry_after_ms: u64 },
    /// What a detector would find is not found now.
    #[error("a detector of this gateway failed its self-test, and nobody is answered before one has passed")]
    DetectorFailed { retry_after_ms: u64 },
    /// No entry, no answer.
    #[error(transparent)]
    Append(#[from] AppendError),
    #[error(transparent)]
    Receipt(#[from] ReceiptError),
    #[error(transparent)]
    Consistency(#[from] ConsistencyError),
    #[error("`?from=` takes the size of the checkpoint that you hold, a whole number")]
    ConsistencyFrom,
    #[error(transparent)]
    OwnEntries(#[from] OwnEntriesError),
    #[error(
        "`from` and `to` take your entries' numbers, `from` the lesser one, and `held` the size of a checkpoint: whole numbers"
    )]
    OwnEntriesQuery,
    #[error("another answer with entries of this tenant is being made")]
    OwnEntriesBusy { retry_after_ms: u64 },
    #[error("the operator named this tenant as no probe (`[audit] probes`), so it records no audits")]
    NoProbe,
    #[error("this takes a second person: another operator has to say the same")]
    SecondPerson,
    #[error("too much waits for a second person already")]
    TooManyProposals,
    #[error(transparent)]
    Lookup(#[from] LookupError),
    #[error("this tenant recorded an audit a moment ago")]
    AuditTooSoon { retry_after_ms: u64 },
    /// A defect of ours: a task that ended without its result, a step out of place.
    #[error("the gateway failed")]
    Internal,
    /// The operating system has no random bytes.
    #[error("the system gave no random bytes")]
    Entropy,
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Caller,
    Overload,
    Isolation,
    Internal,
}

/// An error as it is sent.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: u16,
    pub(crate) code: &'static str,
    pub(crate) fault: Fault,
    kind: &'static str,
    message: String,
    param: Option<String>,
    retry_after_ms: Option<u64>,
    headers: Vec<(&'static str, String)>,
    close: bool,
}

impl Refusal {
    fn caller(status: u16, code: &'static str, message: String) -> Self {
        Self {
            status,
            code,
            fault: Fault::Caller,
            kind: "invalid_request_error",
            message,
            param: None,
            retry_after_ms: None,
            headers: Vec::new(),
            close: false,
        }
    }

    fn overload(status: u16, code: &'static str, message: String, retry_after_ms: u64) -> Self {
        let kind = if status == 429 { "rate_limit_error" } else { "overloaded_error" };
        let retry_after_ms = Some(retry_after_ms);
        Self { fault: Fault::Overload, kind, retry_after_ms, ..Self::caller(status, code, message) }
    }

    fn internal(status: u16, code: &'static str, message: String) -> Self {
        Self { fault: Fault::Internal, kind: "server_error", ..Self::caller(status, code, message) }
    }

    fn at(self, param: &str) -> Self {
        Self { param: Some(param.to_owned()), ..self }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    /// The rest of the request was not read.
    fn closing(self) -> Self {
        Self { close: true, ..self }
    }

    /// The JSON of it, for a response of its own or for the end of a stream.
    pub(crate) fn json(&self) -> Vec<u8> {
        let Self { message, kind, param, code, .. } = self;
        let error = ErrorObject { message, kind, param: param.as_deref(), code };
        // INVARIANT: strings always serialize.
        serde_json::to_vec(&ErrorBody { error }).unwrap_or_default()
    }

    pub(crate) fn into_answer(self) -> Answer {
        let mut answer = Answer::new(self.status, "application/json", self.json());
        answer.headers = self.headers;
        if let Some(wait) = self.retry_after_ms {
            answer.headers.push(("retry-after", wait.div_ceil(1000).max(1).to_string()));
        }
        if self.fault == Fault::Isolation {
            // The official client repeats a request after any 5xx unless it is told not to.
            answer.headers.push(("x-should-retry", "false".to_owned()));
        }
        answer.close = self.close;
        answer
    }
}

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorObject<'a>,
}

#[derive(Serialize)]
struct ErrorObject<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    param: Option<&'a str>,
    code: &'a str,
}

/// What to send for an error. Exhaustive: a new error does not compile until it has a status and a code.
pub(crate) fn refusal(error: &RequestError) -> Refusal {
    let message = sentence(error);
    match error {
        RequestError::Framing(error) => framing(*error, message).closing(),
        RequestError::UnknownPath => Refusal::caller(404, "unknown_path", message),
        RequestError::Method { allow } => Refusal::caller(405, "method_not_allowed", message).with("allow", allow),
        RequestError::Auth(error) => auth(*error, message),
        RequestError::Body(BodyError::Encoded) => {
            Refusal::caller(415, "unsupported_content_encoding", message).closing()
        }
        RequestError::Body(BodyError::TooLarge { .. }) => Refusal::caller(413, "body_too_large", message).closing(),
        RequestError::Body(BodyError::TimedOut) => Refusal::caller(408, "body_timeout", message).closing(),
        RequestError::Body(BodyError::Malformed) => Refusal::caller(400, "invalid_framing", message).closing(),
        RequestError::Parse(error) => parse(error, message),
        RequestError::UnknownModel => Refusal::caller(404, "model_not_found", message).at("model"),
        RequestError::Denied(error) => denied(error, message),
        RequestError::Tokenize { error, param } => tokenize(error, message).at(param),
        RequestError::TurnsTaken { .. } => Refusal::overload(503, "tokenizer_overloaded", message, RETRY_AFTER_MS),
        RequestError::Submit(SubmitError::Full { retry_after_ms }) => {
            Refusal::overload(503, "engine_overloaded", message, *retry_after_ms)
        }
        RequestError::Submit(SubmitError::TenantFull { retry_after_ms }) => {
            Refusal::overload(429, "rate_limit_exceeded", message, *retry_after_ms)
        }
        RequestError::AuditorLags { retry_after_ms } => {
            Refusal::overload(503, "auditor_lags", message, *retry_after_ms)
        }
        RequestError::DetectorFailed { retry_after_ms } => {
            Refusal { retry_after_ms: Some(*retry_after_ms), ..Refusal::internal(503, "self_test_failed", message) }
        }
        RequestError::NotReplayed => Refusal::overload(503, "replay_overloaded", message, RETRY_AFTER_MS),
        RequestError::Step(StepError::Expired { retry_after_ms }) => {
            Refusal::overload(503, "queue_wait_exceeded", message, *retry_after_ms)
        }
        RequestError::Step(StepError::PoolExhausted) => {
            Refusal::overload(503, "engine_overloaded", message, RETRY_AFTER_MS)
        }
        RequestError::Step(StepError::WorkerAway) => {
            Refusal { retry_after_ms: Some(RETRY_AFTER_MS), ..Refusal::internal(503, "worker_unavailable", message) }
        }
        RequestError::Submit(SubmitError::TooLong { .. }) => {
            Refusal::caller(400, "context_length_exceeded", message).at("max_tokens")
        }
        RequestError::Submit(SubmitError::PermitMismatch) => isolation(message, None),
        RequestError::Submit(SubmitError::Stopped) | RequestError::Step(StepError::Stopped) => {
            Refusal { retry_after_ms: Some(RETRY_AFTER_MS), ..Refusal::internal(503, "engine_stopped", message) }
        }
        RequestError::Step(
            StepError::PageFault { .. } | StepError::ReadSet | StepError::Handoff { .. } | StepError::RowBinding,
        ) => isolation(message, None),
        // The same request computes the same bits: coming back does not help.
        RequestError::Step(StepError::NotANumber) => {
            Refusal::internal(500, "output_not_a_number", message).with("x-should-retry", "false")
        }
        RequestError::Step(StepError::Internal) => Refusal::internal(500, "engine_failed", message),
        RequestError::Isolation { incident } => isolation(message, *incident),
        RequestError::Seal { .. } => isolation(message, None),
        RequestError::Append(AppendError::Busy { retry_after_ms }) => {
            Refusal::overload(503, "audit_log_busy", message, *retry_after_ms)
        }
        RequestError::Append(AppendError::Failed { .. } | AppendError::Key { .. } | AppendError::Closed) => {
            // Why it failed names files: that is the operator's to know.
            let message = "The audit log is not available, so nothing can be answered.".to_owned();
            let refusal = Refusal::internal(503, "audit_log_unavailable", message);
            Refusal { retry_after_ms: Some(RETRY_AFTER_MS), ..refusal }
        }
        RequestError::Receipt(ReceiptError::NotFound) => Refusal::caller(404, "receipt_not_found", message),
        RequestError::Receipt(ReceiptError::NotYet { retry_after_ms }) => {
            // Not an error: the receipt is on its way. The shape is the same so that a client can read it.
            let refusal = Refusal::overload(202, "receipt_not_published", message, *retry_after_ms);
            Refusal { kind: "not_published", ..refusal }
        }
        RequestError::Receipt(ReceiptError::OnlyText) => Refusal::caller(406, "receipt_form_not_available", message),
        RequestError::Receipt(ReceiptError::Damaged { .. }) => {
            Refusal::internal(500, "receipt_damaged", "The stored log does not verify.".to_owned())
        }
        // Whoever holds a checkpoint that this log does not reach has found something out.
        RequestError::Consistency(ConsistencyError::Ahead { .. }) => Refusal::caller(409, "log_is_shorter", message),
        RequestError::Consistency(ConsistencyError::Damaged { .. }) => {
            Refusal::internal(500, "log_damaged", "The stored log does not verify.".to_owned())
        }
        RequestError::ConsistencyFrom | RequestError::OwnEntriesQuery => Refusal::caller(400, "invalid_query", message),
        RequestError::OwnEntries(error) => own_entries(error, message),
        RequestError::OwnEntriesBusy { retry_after_ms } => {
            Refusal::overload(429, "own_entries_busy", message, *retry_after_ms)
        }
        RequestError::SecondPerson => Refusal::caller(409, "second_person_needed", message),
        RequestError::TooManyProposals => Refusal::overload(429, "too_many_proposals", message, RETRY_AFTER_MS),
        RequestError::Append(AppendError::NoIncident) => Refusal::caller(404, "incident_not_found", message),
        RequestError::Append(AppendError::IncidentMove(_)) => Refusal::caller(409, "incident_move_forbidden", message),
        RequestError::Append(AppendError::NothingKept) => Refusal::caller(404, "tenant_not_in_log", message),
        RequestError::Append(AppendError::Keeping(error)) => kept(*error, message),
        RequestError::Lookup(LookupError::Damaged { .. }) => {
            Refusal::internal(500, "log_damaged", "The stored log does not verify.".to_owned())
        }
        RequestError::NoProbe => {
            Refusal { kind: "permission_error", ..Refusal::caller(403, "no_probe", message) }.closing()
        }
        RequestError::AuditTooSoon { retry_after_ms } => {
            Refusal::overload(429, "audit_too_soon", message, *retry_after_ms).closing()
        }
        RequestError::Internal | RequestError::Append(AppendError::NoViolation | AppendError::SelfTest) => {
            Refusal::internal(500, "internal_error", message)
        }
        RequestError::Entropy => Refusal::internal(500, "no_entropy", message),
        // Nobody is there to read it; the status is for the metrics.
        RequestError::Gone(Gone) => Refusal::caller(499, "client_gone", message).closing(),
    }
}

fn own_entries(error: &OwnEntriesError, message: String) -> Refusal {
    match error {
        // Whoever knows of more than this log has found something out.
        OwnEntriesError::Ahead { .. } | OwnEntriesError::HeldAhead { .. } => {
            Refusal::caller(409, "log_is_shorter", message)
        }
        OwnEntriesError::NotYet { retry_after_ms } => {
            // Not an error, as with a receipt that is on its way.
            let refusal = Refusal::overload(202, "entries_not_published", message, *retry_after_ms);
            Refusal { kind: "not_published", ..refusal }
        }
        OwnEntriesError::Damaged { .. } => {
            Refusal::internal(500, "log_damaged", "The stored log does not verify.".to_owned())
        }
    }
}

fn kept(error: KeepingError, message: String) -> Refusal {
    match error {
        KeepingError::Held { .. } => Refusal::caller(409, "held", message),
        KeepingError::ErasedKey { .. } => Refusal::caller(409, "erased", message),
        KeepingError::SecondPerson => Refusal::caller(409, "second_person_needed", message),
        KeepingError::NoHold => Refusal::caller(404, "hold_not_found", message),
        KeepingError::HoldTime => Refusal::caller(400, "invalid_hold", message),
        KeepingError::HoldTwice | KeepingError::NoErasure { .. } | KeepingError::NoTenant | KeepingError::Prune => {
            Refusal::internal(500, "internal_error", message)
        }
    }
}

fn isolation(message: String, incident: Option<IncidentId>) -> Refusal {
    let message = match incident {
        Some(incident) => format!("{message} Nothing that it could have exposed was sent. Incident {incident}."),
        None => format!("{message} Nothing that it could have exposed was sent."),
    };
    Refusal { fault: Fault::Isolation, kind: "isolation_error", ..Refusal::caller(500, "isolation_fault", message) }
}

fn framing(error: FramingError, message: String) -> Refusal {
    let (status, code) = match error {
        FramingError::TwoCredentials => (400, "several_credentials"),
        FramingError::TargetTooLong => (414, "uri_too_long"),
        FramingError::TooManyHeaders | FramingError::HeadTooLong => (431, "head_too_large"),
        FramingError::Malformed
        | FramingError::LineEnd
        | FramingError::Host
        | FramingError::HostMismatch
        | FramingError::TwoLengths
        | FramingError::ContentLength
        | FramingError::TransferEncoding => (400, "invalid_framing"),
    };
    Refusal::caller(status, code, message)
}

fn auth(error: AuthError, message: String) -> Refusal {
    let message = match error {
        AuthError::Missing => "Give an API key: `Authorization: Bearer bk_...`.".to_owned(),
        AuthError::Malformed(_) | AuthError::Unknown => message,
    };
    Refusal::caller(401, "invalid_api_key", message).with("www-authenticate", "Bearer").closing()
}

fn denied(error: &Denied, message: String) -> Refusal {
    match error {
        Denied::NoRule | Denied::Forbidden { .. } => {
            // Which rule forbade it is in the operator's log, not in the answer.
            let message = "This tenant may not use this model.".to_owned();
            Refusal { kind: "permission_error", ..Refusal::caller(403, "permission_denied", message) }
        }
        Denied::TooManyTokens { .. } => {
            Refusal { kind: "permission_error", ..Refusal::caller(403, "token_limit_exceeded", message) }
                .at("max_tokens")
        }
    }
}

fn tokenize(error: &TokenizeError, message: String) -> Refusal {
    // Why the template does not take a conversation is said without a word of it.
    let message = if let TokenizeError::Template(reason) = error { sentence(reason) } else { message };
    let code = match error {
        TokenizeError::TooLong { .. } => "context_length_exceeded",
        TokenizeError::Empty => "empty_prompt",
        TokenizeError::NoChatTemplate => "no_chat_template",
        TokenizeError::Template(ChatTemplateError::Render(RenderError::Unavailable)) => {
            let refusal = Refusal::internal(503, "chat_template_unavailable", message);
            return Refusal { retry_after_ms: Some(RETRY_AFTER_MS), ..refusal };
        }
        TokenizeError::Template(_) => "invalid_conversation",
        TokenizeError::UnknownToken { .. } => "unknown_token",
        TokenizeError::Tokenizer(_) => "prompt_not_tokenized",
    };
    Refusal::caller(400, code, message)
}

fn parse(error: &ParseRequestError, message: String) -> Refusal {
    let (code, param) = match error {
        ParseRequestError::Utf8 { .. } => ("invalid_utf8", None),
        ParseRequestError::NoBody | ParseRequestError::Json { .. } => ("invalid_json", None),
        ParseRequestError::TooDeep => ("json_too_deep", None),
        ParseRequestError::TooManyValues => ("json_too_large", None),
        ParseRequestError::NotAnObject => ("invalid_type", None),
        ParseRequestError::Duplicate { param } => ("duplicate_parameter", Some(param)),
        ParseRequestError::Missing { param } => ("missing_required_parameter", Some(param)),
        ParseRequestError::Type { param, .. } => ("invalid_type", Some(param)),
        ParseRequestError::Unknown { param } => ("unknown_parameter", Some(param)),
        ParseRequestError::Unsupported { param, .. } => ("unsupported_parameter", Some(param)),
        ParseRequestError::TooSmall { param, .. } => ("below_min_value", Some(param)),
        ParseRequestError::TooLarge { param, .. } => ("above_max_value", Some(param)),
        ParseRequestError::TooLong { param, .. } => ("string_above_max_length", Some(param)),
        ParseRequestError::TooMany { param, .. } => ("array_above_max_length", Some(param)),
        ParseRequestError::Empty { param } => ("empty_value", Some(param)),
        ParseRequestError::NotOneOf { param, .. } => ("invalid_value", Some(param)),
        ParseRequestError::Contradiction { param, .. } => ("contradicting_parameters", Some(param)),
    };
    Refusal { param: param.cloned(), ..Refusal::caller(400, code, message) }
}

/// Errors read as fragments of a line; a client gets a sentence.
fn sentence(error: &impl std::error::Error) -> String {
    let text = error.to_string();
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_ascii_uppercase());
    first.into_iter().chain(characters).chain(['.']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn sent(error: RequestError) -> (u16, Value, Vec<(&'static str, String)>) {
        let answer = refusal(&error).into_answer();
        (answer.status, serde_json::from_slice(&answer.body).unwrap(), answer.headers)
    }

    #[test]
    fn an_error_has_the_shape_of_the_openai_api() {
        let error = ParseRequestError::Type { param: "messages[0].role".into(), wanted: "a string" };
        let (status, body, headers) = sent(error.into());
        assert_eq!(status, 400);
        assert_eq!(
            body,
            json!({"error": {
                "message": "`messages[0].role` must be a string.",
                "type": "invalid_request_error",
                "param": "messages[0].role",
                "code": "invalid_type",
            }})
        );
        assert_eq!(headers, []);
    }

    #[test]
    fn overload_says_when_to_come_back() {
        let (status, body, headers) = sent(SubmitError::Full { retry_after_ms: 1500 }.into());
        assert_eq!((status, &body["error"]["code"]), (503, &json!("engine_overloaded")));
        assert_eq!(headers, [("retry-after", "2".to_owned())]);
        // The tenant's own queue: others are not refused, and the OpenAI API has a word for it.
        let (status, body, headers) = sent(SubmitError::TenantFull { retry_after_ms: 2001 }.into());
        assert_eq!((status, &body["error"]["code"]), (429, &json!("rate_limit_exceeded")));
        assert_eq!(
            (&body["error"]["type"], headers),
            (&json!("rate_limit_error"), vec![("retry-after", "3".to_owned())])
        );
        let (status, body, headers) = sent(StepError::Expired { retry_after_ms: 1 }.into());
        assert_eq!((status, &body["error"]["code"]), (503, &json!("queue_wait_exceeded")));
        assert_eq!(
            (&body["error"]["type"], headers),
            (&json!("overloaded_error"), vec![("retry-after", "1".to_owned())])
        );
        let (status, body, headers) = sent(RequestError::TurnsTaken { waiting: 3 });
        assert_eq!((status, &body["error"]["code"]), (503, &json!("tokenizer_overloaded")));
        assert_eq!(headers, [("retry-after", "1".to_owned())]);
        let (status, _, headers) = sent(AppendError::Busy { retry_after_ms: 0 }.into());
        assert_eq!((status, headers), (503, vec![("retry-after", "1".to_owned())]));
    }

    #[test]
    fn a_bad_key_is_answered_alike_whatever_is_wrong_with_it() {
        for error in [AuthError::Missing, AuthError::Unknown] {
            let (status, body, headers) = sent(error.into());
            assert_eq!((status, &body["error"]["code"]), (401, &json!("invalid_api_key")));
            assert!(headers.contains(&("www-authenticate", "Bearer".to_owned())));
        }
    }

    #[test]
    fn a_template_that_cannot_be_rendered_is_the_conversations_fault_or_the_gateways() {
        let error = |error: RenderError| {
            let error = TokenizeError::Template(error.into());
            let (status, body, headers) = sent(RequestError::Tokenize { error, param: "messages" });
            (status, body["error"]["code"].as_str().unwrap().to_owned(), !headers.is_empty())
        };
        assert_eq!(error(RenderError::TooMuchWork), (400, "invalid_conversation".to_owned(), false));
        assert_eq!(error(RenderError::Unavailable), (503, "chat_template_unavailable".to_owned(), true));
    }

    #[test]
    fn operators_details_stay_inside() {
        let failed = AppendError::Failed { reason: "/srv/log/tile: no space left".into() };
        assert!(!sent(failed.into()).1.to_string().contains("/srv"));
        let damaged = ReceiptError::Damaged { reason: "/srv/log/tile: bad hash".into() };
        assert!(!sent(damaged.into()).1.to_string().contains("/srv"));
        let forbidden = Denied::Forbidden { rule: "competitors-of-acme".into() };
        assert!(!sent(forbidden.into()).1.to_string().contains("acme"));
    }

    #[test]
    fn output_that_is_no_number_is_an_error_of_its_own_and_not_to_be_repeated() {
        let (status, body, headers) = sent(StepError::NotANumber.into());
        assert_eq!((status, &body["error"]["code"]), (500, &json!("output_not_a_number")));
        assert_eq!(body["error"]["type"], "server_error");
        assert!(headers.contains(&("x-should-retry", "false".to_owned())));
    }

    #[test]
    fn an_isolation_fault_is_no_warning_and_not_to_be_repeated() {
        let incident = IncidentId([7; 16]);
        let (status, body, headers) = sent(RequestError::Isolation { incident: Some(incident) });
        assert_eq!((status, &body["error"]["code"]), (500, &json!("isolation_fault")));
        assert!(body["error"]["message"].as_str().unwrap().contains(&incident.to_string()));
        assert!(headers.contains(&("x-should-retry", "false".to_owned())));
        let fault = StepError::PageFault { page: policies_domain::PageId(3), layer: 0 };
        assert_eq!(sent(fault.into()).1["error"]["code"], "isolation_fault");
        assert_eq!(sent(StepError::ReadSet.into()).1["error"]["code"], "isolation_fault");
        assert_eq!(sent(StepError::RowBinding.into()).1["error"]["code"], "isolation_fault");
        let refused = StepError::Handoff { check: engine_runtime::Check::V7 };
        assert_eq!(sent(refused.into()).1["error"]["code"], "isolation_fault");
        assert_eq!(sent(SubmitError::PermitMismatch.into()).1["error"]["code"], "isolation_fault");
    }
}
