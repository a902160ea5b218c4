//! What is asked: the bodies of `POST /v1/chat/completions` and `POST /v1/completions`, every bound checked.
//!
//! A field that this gateway does not honour is refused by name, unless the value given is what happens anyway
//! (`n: 1`, `tools: []`): a client must never believe in an effect that it does not get.

use crate::config::StreamShape;
use crate::json::{Fields, ParseRequestError, read_object};
use engine_model::{ChatMessage, MESSAGES_MAX};
use engine_runtime::{PromptInput, Sampling};
use policies_authz::Facts;
use policies_domain::RequestId;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Stop strings in one request.
const STOP_STRINGS_MAX: usize = 16;
/// Length of one stop string. The engine holds back that much text at most.
const STOP_STRING_BYTES_MAX: usize = 256;
/// Length of `user`, which is accepted and not used.
const USER_BYTES_MAX: usize = 512;
/// No model has a longer context; the true limit is the model's.
const TOKENS_MAX: i64 = 1 << 30;

/// Which of the two generating routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Text,
}

/// One checked request.
pub(crate) struct Generate {
    /// As the client wrote it; compared with the served name.
    pub(crate) model: String,
    pub(crate) prompt: PromptInput,
    pub(crate) sampling: Sampling,
    pub(crate) stream: bool,
    /// A last chunk with the token counts was asked for.
    pub(crate) include_usage: bool,
}

/// The seed of a request that gives none: the beginning of SHA-256 over a tag and the request's id. The id is drawn for each
/// request and is in its receipt, so whoever holds that can sample again.
pub(crate) fn seed_of(request: RequestId) -> u64 {
    let mut hash = Sha256::new();
    hash.update("bulkhead seed v1");
    hash.update(request.bytes());
    let digest: [u8; 32] = hash.finalize().into();
    digest.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

impl Generate {
    /// # Errors
    /// [`ParseRequestError`] for the first thing that is wrong.
    pub(crate) fn parse(api: Api, body: &[u8], seed: u64, shape: StreamShape) -> Result<Self, ParseRequestError> {
        let mut fields = read_object(body)?;
        refuse_unsupported(&mut fields, api)?;
        let model = fields.string("model")?.ok_or_else(|| missing("model"))?;
        let prompt = match api {
            Api::Chat => PromptInput::Chat(messages(&mut fields)?),
            Api::Text => PromptInput::Text(prompt(&mut fields)?),
        };
        let sampling = sampling(&mut fields, api, seed)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = stream_options(&mut fields, stream, shape)?;
        if fields.string("user")?.is_some_and(|user| user.len() > USER_BYTES_MAX) {
            return Err(ParseRequestError::TooLong { param: "user".into(), bytes_max: USER_BYTES_MAX });
        }
        fields.finish()?;
        Ok(Self { model, prompt, sampling, stream, include_usage })
    }

    /// What the rules look at.
    pub(crate) fn facts(&self) -> Facts {
        Facts { completion_tokens_max: self.sampling.max_tokens.map(|tokens| tokens as u64) }
    }
}

fn missing(param: &str) -> ParseRequestError {
    ParseRequestError::Missing { param: param.to_owned() }
}

fn messages(fields: &mut Fields) -> Result<Vec<ChatMessage>, ParseRequestError> {
    let Value::Array(values) = fields.require("messages")? else {
        return Err(ParseRequestError::Type { param: "messages".into(), wanted: "an array" });
    };
    if values.is_empty() {
        return Err(ParseRequestError::Empty { param: "messages".into() });
    }
    if values.len() > MESSAGES_MAX {
        return Err(ParseRequestError::TooMany { param: "messages".into(), entries_max: MESSAGES_MAX });
    }
    values.into_iter().enumerate().map(|(index, value)| message(value, format!("messages[{index}]"))).collect()
}

fn message(value: Value, path: String) -> Result<ChatMessage, ParseRequestError> {
    let mut fields = Fields::of(value, path)?;
    let role = fields.string("role")?.ok_or_else(|| missing(&fields.path("role")))?;
    let role = match role.as_str() {
        "system" | "developer" => "system",
        "user" => "user",
        "assistant" => "assistant",
        "tool" => "tool",
        _ => {
            let allowed = "`system`, `developer`, `user`, `assistant`, `tool`";
            return Err(ParseRequestError::NotOneOf { param: fields.path("role"), allowed });
        }
    };
    for name in ["tool_calls", "function_call", "audio", "refusal", "name"] {
        let given = fields.take(name).is_some_and(|value| !is_empty(&value));
        if given {
            let reason = "this server reads the role and the text of a message only";
            return Err(ParseRequestError::Unsupported { param: fields.path(name), reason });
        }
    }
    // Clients send their last answer back as they got it.
    if role == "tool" {
        fields.string("tool_call_id")?;
    }
    let content = match fields.take("content") {
        Some(content) => text_of(content, fields.path("content"))?,
        // Nothing was said: an answer of no text, which clients send back as they got it.
        None if role == "assistant" => String::new(),
        None => return Err(missing(&fields.path("content"))),
    };
    fields.finish()?;
    Ok(ChatMessage { role: role.to_owned(), content })
}

fn text_of(content: Value, path: String) -> Result<String, ParseRequestError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) if parts.is_empty() => Err(ParseRequestError::Empty { param: path }),
        Value::Array(parts) => {
            let texts: Result<Vec<_>, _> = parts
                .into_iter()
                .enumerate()
                .map(|(index, part)| text_part(part, format!("{path}[{index}]")))
                .collect();
            Ok(texts?.join("\n"))
        }
        _ => Err(ParseRequestError::Type { param: path, wanted: "a string or an array of text parts" }),
    }
}

fn text_part(part: Value, path: String) -> Result<String, ParseRequestError> {
    let mut fields = Fields::of(part, path)?;
    let kind = fields.string("type")?.ok_or_else(|| missing(&fields.path("type")))?;
    if kind != "text" {
        let reason = "the only supported part is `text`";
        return Err(ParseRequestError::Unsupported { param: fields.path("type"), reason });
    }
    let text = fields.string("text")?.ok_or_else(|| missing(&fields.path("text")))?;
    fields.finish()?;
    Ok(text)
}

fn prompt(fields: &mut Fields) -> Result<String, ParseRequestError> {
    let wanted = || ParseRequestError::Type { param: "prompt".into(), wanted: "a string or an array of one string" };
    match fields.require("prompt")? {
        Value::String(text) => Ok(text),
        Value::Array(mut texts) => match (texts.pop(), texts.is_empty()) {
            (None, _) => Err(ParseRequestError::Empty { param: "prompt".into() }),
            (Some(_), false) => Err(ParseRequestError::TooMany { param: "prompt".into(), entries_max: 1 }),
            (Some(Value::String(text)), true) => Ok(text),
            (Some(_), true) => Err(wanted()),
        },
        _ => Err(wanted()),
    }
}

fn sampling(fields: &mut Fields, api: Api, seed: u64) -> Result<Sampling, ParseRequestError> {
    let off = Sampling::default();
    let number = |fields: &mut Fields, name: &str, range, default: f32| {
        fields.number(name, range).map(|value| value.map_or(default, |value| value as f32))
    };
    Ok(Sampling {
        max_tokens: completion_tokens_max(fields, api)?,
        temperature: number(fields, "temperature", 0.0..=2.0, off.temperature)?,
        top_p: number(fields, "top_p", 0.0..=1.0, off.top_p)?,
        top_k: fields.integer("top_k", 0..=i64::from(i32::MAX))?.map_or(off.top_k, |value| value as usize),
        min_p: number(fields, "min_p", 0.0..=1.0, off.min_p)?,
        // Two's complement: negative seeds are seeds as well.
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map_or(seed, |value| value as u64),
        repetition_penalty: number(fields, "repetition_penalty", 0.01..=2.0, off.repetition_penalty)?,
        presence_penalty: number(fields, "presence_penalty", -2.0..=2.0, off.presence_penalty)?,
        frequency_penalty: number(fields, "frequency_penalty", -2.0..=2.0, off.frequency_penalty)?,
        stop: stop(fields)?,
        digests: off.digests,
    })
}

fn completion_tokens_max(fields: &mut Fields, api: Api) -> Result<Option<usize>, ParseRequestError> {
    let old = fields.integer("max_tokens", 1..=TOKENS_MAX)?;
    let new = if api == Api::Chat { fields.integer("max_completion_tokens", 1..=TOKENS_MAX)? } else { None };
    if let (Some(old), Some(new)) = (old, new)
        && old != new
    {
        return Err(ParseRequestError::Contradiction { param: "max_tokens".into(), other: "max_completion_tokens" });
    }
    Ok(new.or(old).map(|tokens| tokens as usize))
}

fn stop(fields: &mut Fields) -> Result<Vec<String>, ParseRequestError> {
    let values = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(values)) if values.len() > STOP_STRINGS_MAX => {
            return Err(ParseRequestError::TooMany { param: "stop".into(), entries_max: STOP_STRINGS_MAX });
        }
        Some(Value::Array(values)) => values,
        Some(value) => vec![value],
    };
    let text = |value| match value {
        Value::String(text) if text.is_empty() => Err(ParseRequestError::Empty { param: "stop".into() }),
        Value::String(text) if text.len() > STOP_STRING_BYTES_MAX => {
            Err(ParseRequestError::TooLong { param: "stop".into(), bytes_max: STOP_STRING_BYTES_MAX })
        }
        Value::String(text) => Ok(text),
        _ => Err(ParseRequestError::Type { param: "stop".into(), wanted: "a string or an array of strings" }),
    };
    values.into_iter().map(text).collect()
}

fn stream_options(fields: &mut Fields, stream: bool, shape: StreamShape) -> Result<bool, ParseRequestError> {
    let Some(options) = fields.take("stream_options") else { return Ok(false) };
    if !stream {
        return Err(ParseRequestError::Contradiction { param: "stream_options".into(), other: "stream" });
    }
    let mut options = Fields::of(options, "stream_options".to_owned())?;
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    // Padding against traffic analysis: whether there is any, the operator says for each tenant.
    let reason = match (options.boolean("include_obfuscation")?, shape) {
        (Some(true), StreamShape::AsItComes) => Some("chunks are not padded"),
        (Some(false), StreamShape::ConstantShape) => Some("all chunks of this tenant are padded"),
        (None, _) | (Some(true), StreamShape::ConstantShape) | (Some(false), StreamShape::AsItComes) => None,
    };
    if let Some(reason) = reason {
        return Err(ParseRequestError::Unsupported { param: options.path("include_obfuscation"), reason });
    }
    options.finish()?;
    Ok(include_usage)
}

/// A field of the OpenAI API that is known and not honoured.
struct Unhonoured {
    name: &'static str,
    reason: &'static str,
    /// Values that ask for what happens anyway.
    harmless: fn(&Value) -> bool,
}

const NOT_HERE: &str = "this server does not offer it";
const TOOLS: &str = "tools are not offered";
const SALT: &str = "cache isolation follows the tenant's key and cannot be chosen by a client";

const UNHONOURED: &[Unhonoured] = &[
    Unhonoured { name: "n", reason: "only 1 is possible", harmless: is_one },
    Unhonoured { name: "best_of", reason: "only 1 is possible", harmless: is_one },
    Unhonoured { name: "tools", reason: TOOLS, harmless: is_empty },
    Unhonoured { name: "functions", reason: TOOLS, harmless: is_empty },
    Unhonoured { name: "tool_choice", reason: TOOLS, harmless: needs_no_tool },
    Unhonoured { name: "function_call", reason: TOOLS, harmless: needs_no_tool },
    Unhonoured { name: "parallel_tool_calls", reason: TOOLS, harmless: is_boolean },
    Unhonoured { name: "logprobs", reason: "log probabilities are not offered", harmless: is_false },
    Unhonoured { name: "top_logprobs", reason: "log probabilities are not offered", harmless: is_zero },
    Unhonoured { name: "logit_bias", reason: NOT_HERE, harmless: is_empty },
    Unhonoured { name: "response_format", reason: "the only format is text", harmless: is_text_format },
    Unhonoured { name: "echo", reason: NOT_HERE, harmless: is_false },
    Unhonoured { name: "suffix", reason: NOT_HERE, harmless: is_empty },
    Unhonoured { name: "store", reason: "responses are not stored", harmless: is_false },
    Unhonoured { name: "metadata", reason: NOT_HERE, harmless: is_empty },
    Unhonoured { name: "audio", reason: "the only modality is text", harmless: never },
    Unhonoured { name: "modalities", reason: "the only modality is text", harmless: is_text_modality },
    Unhonoured { name: "prediction", reason: NOT_HERE, harmless: never },
    Unhonoured { name: "reasoning_effort", reason: NOT_HERE, harmless: never },
    Unhonoured { name: "verbosity", reason: NOT_HERE, harmless: never },
    Unhonoured { name: "service_tier", reason: NOT_HERE, harmless: is_auto_word },
    Unhonoured { name: "web_search_options", reason: NOT_HERE, harmless: never },
    Unhonoured { name: "prompt_cache_key", reason: SALT, harmless: never },
    Unhonoured { name: "cache_salt", reason: SALT, harmless: never },
];

fn refuse_unsupported(fields: &mut Fields, api: Api) -> Result<(), ParseRequestError> {
    for field in UNHONOURED {
        let given = fields.take(field.name);
        if given.is_some_and(|value| !(field.harmless)(&value)) {
            return Err(ParseRequestError::Unsupported { param: field.name.to_owned(), reason: field.reason });
        }
    }
    let other = if api == Api::Chat { "prompt" } else { "messages" };
    match fields.take(other) {
        Some(_) => {
            Err(ParseRequestError::Unsupported { param: other.to_owned(), reason: "it belongs to another route" })
        }
        None => Ok(()),
    }
}

fn is_one(value: &Value) -> bool {
    value.as_f64() == Some(1.0)
}

fn is_zero(value: &Value) -> bool {
    value.as_f64() == Some(0.0)
}

fn is_false(value: &Value) -> bool {
    value.as_bool() == Some(false)
}

fn is_boolean(value: &Value) -> bool {
    value.is_boolean()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Of no tools, the model calls none by itself either.
fn needs_no_tool(value: &Value) -> bool {
    value == "none" || value == "auto"
}

fn is_auto_word(value: &Value) -> bool {
    value == "auto" || value == "default"
}

fn is_text_format(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| fields.len() == 1 && fields.get("type").is_some_and(|kind| kind == "text"))
}

fn is_text_modality(value: &Value) -> bool {
    value.as_array().is_some_and(|values| values.len() == 1 && values.iter().all(|value| value == "text"))
}

fn never(_: &Value) -> bool {
    false
}
