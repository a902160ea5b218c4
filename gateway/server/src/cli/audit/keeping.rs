//! `bulkhead audit erase`, `hold`, `release`, `holds`: what a running gateway destroys, and what it must not. The gateway alone
//! writes to the log and has the keys in memory; operators ask it over HTTP, each with a key of their own.

use super::moment;
use super::operator::Gateway;
use crate::cli::say;
use anyhow::{Context, Result, bail};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use std::fmt::Write as _;

// Where the gateway is, and how it answers.
#[derive(Clone, Debug, Args)]
struct Asked {
    /// Where the gateway listens
    #[arg(long, default_value = "http://127.0.0.1:8080")]
    address: String,
    /// As JSON
    #[arg(long)]
    json: bool,
}

// Whose keys, and why. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct EraseArguments {
    /// Whose keys
    #[arg(long, value_name = "NAME")]
    tenant: String,
    /// The key of this epoch; all keys of the tenant when neither this nor `--before` is given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOMENT_MAX), conflicts_with = "before")]
    epoch: Option<u64>,
    /// The keys whose last request was before this moment: 2026-12-01, 2026-12-01T01:02:03Z, or seconds since 1970
    #[arg(long, value_name = "T", value_parser = moment::parse)]
    before: Option<u64>,
    /// Why
    #[arg(long, value_enum, required_unless_present = "list")]
    basis: Option<Basis>,
    /// Only show which keys there are, and which were erased
    #[arg(long, conflicts_with_all = ["epoch", "before", "basis"])]
    list: bool,
    #[command(flatten)]
    asked: Asked,
}

/// The gateway reads no larger number.
const MOMENT_MAX: u64 = i64::MAX as u64;

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Basis {
    /// The tenant, or whom its data is of, asked for it
    Request,
    /// The contract has ended
    ContractEnd,
    /// The time for which it was to be kept is over
    Retention,
    /// A court or an authority ordered it
    Order,
    /// The key was lost, or is known to somebody
    KeyLost,
    /// Something else
    Other,
}

// What is held, and why. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct HoldArguments {
    /// Whose; everybody's when not given
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// From this moment on: 2026-12-01, 2026-12-01T01:02:03Z, or seconds since 1970; from the beginning when not given
    #[arg(long, value_name = "T", value_parser = moment::parse)]
    from: Option<u64>,
    /// Up to this one; what comes is held, too, when not given
    #[arg(long, value_name = "T", value_parser = moment::parse)]
    to: Option<u64>,
    /// Why
    #[arg(long, value_enum)]
    reason: Reason,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Reason {
    /// A dispute before a court, or one that is expected
    Litigation,
    /// An authority asks
    Inquiry,
    /// A security incident is looked into
    Incident,
    /// Something else
    Other,
}

// Which hold. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct ReleaseArguments {
    /// The hold's id
    id: String,
    #[command(flatten)]
    asked: Asked,
}

// Of which gateway. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct HoldsArguments {
    #[command(flatten)]
    asked: Asked,
}

pub(crate) async fn erase(arguments: EraseArguments) -> Result<()> {
    let EraseArguments { tenant, epoch, before, basis, list, asked } = arguments;
    if tenant.is_empty()
        || !tenant.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    {
        bail!("`{tenant}` is no tenant's name");
    }
    let gateway = Gateway::of(&asked.address)?;
    if list {
        let answer = gateway.ask("GET", &format!("/v1/operator/erasures/{tenant}"), None).await?.1;
        return if asked.json { Ok(say(answer)?) } else { Ok(say(keys_words(&answer)?.trim_end())?) };
    }
    let basis = basis.map(|basis| name(&basis));
    let body = json!({"tenant": tenant, "epoch": epoch, "before_us": before, "basis": basis});
    let (status, answer) = gateway.ask("POST", "/v1/operator/erasures", Some(body)).await?;
    if asked.json {
        return Ok(say(answer)?);
    }
    let mut text = String::new();
    match status {
        202 => {
            let epochs = answer.get("epochs").map(Value::to_string).unwrap_or_default();
            let _ = writeln!(
                text,
                "proposed: the keys of the epochs {epochs} are erased when another operator says the same"
            );
        }
        _ => {
            for erased in list_of(&answer, "erased") {
                let _ = writeln!(text, "epoch {}: erased, entry {} of the audit log", erased["epoch"], erased["entry"]);
            }
        }
    }
    for erased in list_of(&answer, "already") {
        let _ = writeln!(text, "epoch {}: was erased before, as entry {} says", erased["epoch"], erased["entry"]);
    }
    Ok(say(text.trim_end())?)
}

pub(crate) async fn hold(arguments: HoldArguments) -> Result<()> {
    let HoldArguments { tenant, from, to, reason, asked } = arguments;
    let body = json!({"tenant": tenant, "from_us": from, "to_us": to, "reason": name(&reason)});
    let answer = Gateway::of(&asked.address)?.ask("POST", "/v1/operator/holds", Some(body)).await?.1;
    if asked.json {
        return Ok(say(answer)?);
    }
    Ok(say(format_args!("hold {}, entry {} of the audit log", word(&answer, "hold"), answer["entry"]))?)
}

pub(crate) async fn release(arguments: ReleaseArguments) -> Result<()> {
    let ReleaseArguments { id, asked } = arguments;
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("`{id}` is no hold's id");
    }
    let gateway = Gateway::of(&asked.address)?;
    let body = json!({"state": "released"});
    let (status, answer) = gateway.ask("POST", &format!("/v1/operator/holds/{id}"), Some(body)).await?;
    match (asked.json, status) {
        (true, _) => Ok(say(answer)?),
        (false, 202) => Ok(say("proposed: it ends when another operator says the same")?),
        (false, _) => Ok(say(format_args!("released, entry {} of the audit log", answer["entry"]))?),
    }
}

pub(crate) async fn holds(arguments: HoldsArguments) -> Result<()> {
    let HoldsArguments { asked } = arguments;
    let answer = Gateway::of(&asked.address)?.ask("GET", "/v1/operator/holds", None).await?.1;
    if asked.json {
        return Ok(say(answer)?);
    }
    let mut text = String::new();
    for hold in list_of(&answer, "data") {
        let whose = hold.get("tenant").and_then(Value::as_str).unwrap_or("everybody");
        let (id, reason, actor) = (word(hold, "hold"), word(hold, "reason"), word(hold, "actor"));
        let until = hold.get("to_us").and_then(Value::as_u64).map_or_else(|| "on".to_owned(), moment::utc);
        let from = moment::utc(hold.get("from_us").and_then(Value::as_u64).unwrap_or_default());
        let _ = writeln!(text, "{id}  {whose}: {reason}, from {from} {until}, by {actor}, entry {}", hold["entry"]);
    }
    Ok(say(if text.is_empty() { "nothing is held" } else { text.trim_end() })?)
}

fn keys_words(answer: &Value) -> Result<String> {
    let mut text = String::new();
    let time =
        |key: &Value, name: &str| key.get(name).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), moment::utc);
    for key in answer.get("data").and_then(Value::as_array).context("the gateway gave no list")? {
        let erased = key.get("erased").filter(|erased| !erased.is_null());
        let state = erased.map_or_else(
            || "in use or kept".to_owned(),
            |erased| format!("erased ({}), entry {}", word(erased, "basis"), erased["entry"]),
        );
        let (first, last) = (time(key, "first_us"), time(key, "last_us"));
        let _ = writeln!(text, "epoch {}: requests from {first} to {last}, {state}", key["epoch"]);
    }
    Ok(text)
}

/// As the gateway names it.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().replace('-', "_")).unwrap_or_default()
}

fn list_of<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_array).into_iter().flatten()
}

fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("-")
}
