//! `bulkhead audit incidents`: what a running gateway knows of incidents, and what persons decide about them. The gateway alone
//! writes to the log; an operator asks it over HTTP, with a key of its own.

use super::operator::Gateway;
use super::{moment, ocsf};
use crate::cli::say;
use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// The largest piece of evidence whose digest is taken.
const EVIDENCE_BYTES_MAX: u64 = 1 << 30;

// Which incidents, and what to do. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
pub(crate) struct IncidentsArguments {
    /// Where the gateway listens
    #[arg(long, default_value = "http://127.0.0.1:8080", global = true)]
    address: String,
    /// As JSON
    #[arg(long, global = true)]
    json: bool,
    /// As OCSF findings, one JSON object a line: a Detection Finding for each incident, an Incident Finding for where it stands
    #[arg(long)]
    ocsf: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show one incident with all its entries
    Show {
        /// Its id
        id: String,
    },
    /// Say that somebody has looked at it
    Triage {
        /// Its id
        id: String,
        /// What was looked at; its digest goes to the log
        #[arg(long, value_name = "FILE")]
        evidence: Option<PathBuf>,
    },
    /// Say that whoever is concerned was told
    Notify {
        /// Its id
        id: String,
        /// What they were told; its digest goes to the log
        #[arg(long, value_name = "FILE")]
        notice: Option<PathBuf>,
    },
    /// Close it: the first person proposes, another one confirms with the same evidence
    Resolve {
        /// Its id
        id: String,
        /// What was looked at; its digest goes to the log
        #[arg(long, value_name = "FILE")]
        evidence: PathBuf,
        /// It was none
        #[arg(long)]
        false_positive: bool,
    },
    /// Open it again
    Reopen {
        /// Its id
        id: String,
        /// What was looked at; its digest goes to the log
        #[arg(long, value_name = "FILE")]
        evidence: Option<PathBuf>,
    },
}

/// Asks the gateway, and prints what it says.
pub(crate) async fn run(arguments: IncidentsArguments) -> Result<()> {
    if arguments.ocsf && arguments.command.is_some() {
        bail!("`--ocsf` prints all incidents: it goes with no command");
    }
    let gateway = Gateway::of(&arguments.address)?;
    let (id, body) = match arguments.command {
        None => {
            let list = gateway.ask("GET", "/v1/operator/incidents", None).await?.1;
            return list_incidents(&list, arguments.json, arguments.ocsf);
        }
        Some(Command::Show { id }) => (id, None),
        Some(Command::Triage { id, evidence }) => (id, Some(decision("triaged", evidence.as_deref(), None)?)),
        Some(Command::Notify { id, notice }) => (id, Some(decision("notified", None, notice.as_deref())?)),
        Some(Command::Resolve { id, evidence, false_positive }) => {
            let state = if false_positive { "false_positive" } else { "resolved" };
            (id, Some(decision(state, Some(&evidence), None)?))
        }
        Some(Command::Reopen { id, evidence }) => (id, Some(decision("reopened", evidence.as_deref(), None)?)),
    };
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        bail!("`{id}` is no incident's id");
    }
    let path = format!("/v1/operator/incidents/{id}");
    let method = if body.is_some() { "POST" } else { "GET" };
    let (status, answer) = gateway.ask(method, &path, body).await?;
    let text = match (arguments.json, status) {
        (true, _) => answer.to_string(),
        (false, 202) => "proposed: it is written when another operator says the same of the same evidence".to_owned(),
        (false, 201) => {
            format!(
                "{}, entry {} of the audit log",
                word(&answer, "state"),
                answer.get("entry").unwrap_or(&Value::Null)
            )
        }
        (false, _) => incident_words(&answer),
    };
    Ok(say(text.trim_end())?)
}

fn decision(state: &str, evidence: Option<&Path>, notice: Option<&Path>) -> Result<Value> {
    let evidence = evidence.map(file_digest).transpose()?;
    let notice = notice.map(file_digest).transpose()?;
    Ok(json!({"state": state, "evidence": evidence, "notice": notice}))
}

fn file_digest(path: &Path) -> Result<String> {
    let shown = || format!("`{}` cannot be read", path.display());
    if !path.metadata().with_context(shown)?.is_file() {
        bail!("`{}` is no regular file", path.display());
    }
    let mut hash = Sha256::new();
    let mut file = std::fs::File::open(path).with_context(shown)?.take(EVIDENCE_BYTES_MAX + 1);
    if std::io::copy(&mut file, &mut hash).with_context(shown)? > EVIDENCE_BYTES_MAX {
        bail!("`{}` is longer than {EVIDENCE_BYTES_MAX} bytes", path.display());
    }
    Ok(hex::encode(hash.finalize()))
}

fn word<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or("-")
}

fn list_incidents(list: &Value, json: bool, ocsf: bool) -> Result<()> {
    let incidents = list.get("data").and_then(Value::as_array).context("the gateway gave no list")?;
    if ocsf {
        for incident in incidents {
            for finding in ocsf::findings(incident) {
                say(finding)?;
            }
        }
        return Ok(());
    }
    if json {
        return Ok(say(list)?);
    }
    if incidents.is_empty() {
        return Ok(say("no incidents")?);
    }
    let mut text =
        format!("{:32}  {:24}  {:14}  {:8}  {:16}  bytes out\n", "incident", "detected", "state", "severity", "class");
    for incident in incidents {
        let _ = writeln!(
            text,
            "{:32}  {}  {:14}  {:8}  {:16}  {}",
            word(incident, "id"),
            moment::utc(incident.get("detected_us").and_then(Value::as_u64).unwrap_or_default()),
            word(incident, "state"),
            word(incident, "severity"),
            word(incident, "class"),
            incident.get("bytes_released").unwrap_or(&Value::Null),
        );
    }
    Ok(say(text.trim_end())?)
}

fn incident_words(incident: &Value) -> String {
    let mut text = String::new();
    if let Some(fields) = incident.as_object() {
        for (name, value) in fields.iter().filter(|(name, value)| *name != "moves" && !value.is_null()) {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let _ = writeln!(text, "{:16} {value}", name.replace('_', " "));
        }
    }
    for moved in incident.get("moves").and_then(Value::as_array).into_iter().flatten() {
        let at = moment::utc(moved.get("at_us").and_then(Value::as_u64).unwrap_or_default());
        let who = match (word(moved, "actor"), word(moved, "second")) {
            ("-", _) => "the program".to_owned(),
            (actor, "-") => actor.to_owned(),
            (actor, second) => format!("{actor} and {second}"),
        };
        let _ = writeln!(
            text,
            "{at}  {} by {who}, entry {}",
            word(moved, "state"),
            moved.get("entry").unwrap_or(&Value::Null)
        );
    }
    text
}
