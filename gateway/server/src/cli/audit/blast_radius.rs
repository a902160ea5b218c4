//! `bulkhead audit blast-radius`: which responses can something suspect have touched? Reads the log's folder, while a gateway
//! may write to it.

use super::moment;
use crate::cli::machine;
use crate::cli::serve::read_config;
use crate::cli::{note, say};
use anyhow::{Context, Result, bail};
use audit_log::{
    BlastRadius, BlastRadiusQuery, HOPS_MAX, LISTED_MAX, Listed, PageClass, SHOWN_MAX, Suspect, TenantNames, TenantRef,
    Touched, Unknown, blast_radius,
};
use clap::{ArgGroup, Args};
use gateway_server::Gateway;
use indicatif::{ProgressBar, ProgressStyle};
use policies_domain::{Digest, Generation, PageId, RequestId, TenantName};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::path::PathBuf;

/// Rows, and shared pages, that a person is shown; all of them are in the JSON.
const ROWS_SHOWN: usize = 40;

// What is suspect, and where the log is. (Its help is the command's.)
#[derive(Clone, Debug, Args)]
#[command(group = ArgGroup::new("suspect").required(true).args(["page", "from", "tenant", "build", "request"]))]
#[command(group = ArgGroup::new("place").required(true).args(["log", "config"]))]
pub(crate) struct BlastRadiusArguments {
    /// The log's folder
    #[arg(long, value_name = "DIR")]
    log: Option<PathBuf>,
    /// The gateway's configuration, whose data folder holds the log
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A page of the KV pool
    #[arg(long, value_name = "N")]
    page: Option<u32>,
    /// One life of the page; all of them when not given
    #[arg(long, value_name = "G", requires = "page", conflicts_with_all = ["from", "tenant", "build", "request"])]
    generation: Option<u32>,
    /// Whatever was served from this moment on: 2026-12-01T01:02:03Z, or seconds since 1970
    #[arg(long, value_name = "T", requires = "to", value_parser = moment::parse)]
    from: Option<u64>,
    /// ...up to this one
    #[arg(long, value_name = "T", requires = "from", value_parser = moment::parse)]
    to: Option<u64>,
    /// All that a tenant had: its name, or the reference that entries have for it
    #[arg(long, value_name = "NAME|REFERENCE")]
    tenant: Option<String>,
    /// Whatever this build of the program served: its digest as entries have it
    #[arg(long, value_name = "DIGEST", value_parser = digest)]
    build: Option<Digest>,
    /// One request
    #[arg(long, value_name = "ID", value_parser = request)]
    request: Option<RequestId>,
    /// Also follow the pages of whoever read a suspect page, and so on
    #[arg(long)]
    transitive: bool,
    /// Also follow pages that an operator declared everybody's, to which no request writes
    #[arg(long)]
    through_public: bool,
    /// Threads that read
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
    /// As JSON, with every row
    #[arg(long)]
    json: bool,
}

fn digest(text: &str) -> Result<Digest, &'static str> {
    let mut bytes = [0; 32];
    hex::decode_to_slice(text, &mut bytes).map_err(|_| "64 hexadecimal digits are needed")?;
    Ok(Digest(bytes))
}

fn request(text: &str) -> Result<RequestId, &'static str> {
    RequestId::parse(text).ok_or("no request's id")
}

/// Reads, and prints the answer.
pub(crate) fn run(arguments: &BlastRadiusArguments) -> Result<()> {
    let dir = match (&arguments.log, &arguments.config) {
        (Some(dir), _) => dir.clone(),
        (None, Some(config)) => Gateway::log_dir(&read_config(config)?.data_dir),
        (None, None) => bail!("the log's folder or a configuration is needed"),
    };
    let names = TenantNames::read(&dir);
    let threads = arguments.threads.map_or_else(machine::cores, usize::from);
    let (transitive, through_public) = (arguments.transitive, arguments.through_public);
    let query = BlastRadiusQuery { suspect: suspect(arguments, names.as_ref())?, transitive, through_public, threads };
    let (bar, lines) = (bar(), !std::io::stderr().is_terminal());
    let mut part = "";
    let answer = blast_radius(&dir, &query, |what, done, of| {
        if part != what {
            part = what;
            if lines && of > LONG_SEGMENTS {
                note(format_args!("{what}: {of} segments"));
            }
            bar.set_message(what);
            bar.reset();
            bar.set_length(of);
        }
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let answer = answer.with_context(|| format!("the log in `{}` gives no answer", dir.display()))?;
    is_known(&query.suspect, &answer)?;
    let text = if arguments.json {
        to_json(&answer, &query, names.as_ref()).to_string()
    } else {
        table(&answer, &query, names.as_ref())
    };
    Ok(say(text.trim_end())?)
}

/// Whoever asks about something that the log has nothing of is not to read that nothing was touched.
fn is_known(suspect: &Suspect, answer: &BlastRadius) -> Result<()> {
    if answer.suspects_count > 0 {
        return Ok(());
    }
    match suspect {
        Suspect::Tenant(_) => bail!("the log has no request of that tenant"),
        Suspect::Build(_) => bail!("the log has no request that was served by that build"),
        Suspect::Request(_) => bail!("the log has no such request"),
        Suspect::Page { .. } | Suspect::Time { .. } => Ok(()),
    }
}

/// Half a gigabyte of entries: whoever sees no bar is told what takes so long.
const LONG_SEGMENTS: u64 = 32;

fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg:28} {bar:32} {pos}/{len} segments, {eta} left");
    ProgressBar::new(1).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn suspect(arguments: &BlastRadiusArguments, names: Option<&TenantNames>) -> Result<Suspect> {
    if let Some(page) = arguments.page {
        return Ok(Suspect::Page { page: PageId(page), generation: arguments.generation.map(Generation) });
    }
    if let (Some(first_us), Some(last_us)) = (arguments.from, arguments.to) {
        if last_us < first_us {
            bail!("`--to` is before `--from`");
        }
        return Ok(Suspect::Time { first_us, last_us });
    }
    if let Some(build) = arguments.build {
        return Ok(Suspect::Build(build));
    }
    if let Some(request) = arguments.request {
        return Ok(Suspect::Request(request));
    }
    let tenant = arguments.tenant.as_deref().context("nothing is suspect")?;
    let mut reference: TenantRef = [0; 16];
    if tenant.len() == 32 && hex::decode_to_slice(tenant, &mut reference).is_ok() {
        return Ok(Suspect::Tenant(reference));
    }
    let name = TenantName::parse(tenant).with_context(|| format!("`{tenant}` is no tenant's name or reference"))?;
    let names = names.context("names need the log's `keys/pseudonym.key`: give the reference that entries have")?;
    Ok(Suspect::Tenant(names.reference(&name)))
}

fn class(class: PageClass) -> &'static str {
    match class {
        PageClass::Nobody => "nobody",
        PageClass::Public => "public",
        PageClass::Own => "own",
        PageClass::Other => "other",
    }
}

fn name_of(tenant: &TenantRef, names: Option<&TenantNames>) -> String {
    names.and_then(|names| names.name(tenant)).map_or_else(|| hex::encode(tenant), ToString::to_string)
}

fn suspect_json(suspect: &Suspect) -> Value {
    match suspect {
        Suspect::Page { page, generation } => json!({"page": page.0, "generation": generation.map(|life| life.0)}),
        Suspect::Time { first_us, last_us } => {
            json!({"from": moment::utc(*first_us), "to": moment::utc(*last_us)})
        }
        Suspect::Tenant(tenant) => json!({"tenant": hex::encode(tenant)}),
        Suspect::Build(build) => json!({"build": build.to_string()}),
        Suspect::Request(request) => json!({"request": request.to_string()}),
    }
}

fn listed(listed: &Listed) -> Value {
    json!({"count": listed.count, "entries": listed.first})
}

fn to_json(answer: &BlastRadius, query: &BlastRadiusQuery, names: Option<&TenantNames>) -> Value {
    let row = |row: &Touched| {
        let page = |run: &audit_log::PageRun| {
            json!({
                "page": run.page.0, "generation": run.generation.0, "class": class(run.class),
                "first_step": run.first_step, "last_step": run.last_step,
            })
        };
        json!({
            "entry": row.index, "leaf": row.leaf.to_string(), "request": row.request.to_string(),
            "opened_entry": row.opened_index, "tenant": hex::encode(row.tenant),
            "tenant_name": names.and_then(|names| names.name(&row.tenant)).map(ToString::to_string),
            "sealed": moment::utc(row.sealed_us), "reason": row.reason.as_str(), "direct": row.direct,
            "payloads": row.payloads, "completion_tokens": row.completion_tokens, "bytes_released": row.bytes_released,
            "pages": row.pages.iter().map(page).collect::<Vec<_>>(), "pages_count": row.pages_count,
        })
    };
    let life = |life: &audit_log::SharedLife| {
        json!({
            "page": life.page.0, "generation": life.generation.0, "readers_count": life.readers_count,
            "readers": life.readers, "tenants": life.tenants.iter().map(hex::encode).collect::<Vec<_>>(),
        })
    };
    let unknown = &answer.unknown;
    json!({
        "suspect": suspect_json(&query.suspect), "transitive": query.transitive, "through_public": query.through_public,
        "log": {
            "origin": answer.checkpoint.origin, "size": answer.checkpoint.size,
            "root": hex::encode(answer.checkpoint.root.0), "traces": answer.read.1,
        },
        "responses": answer.rows.len() as u64 + answer.rows_left_out, "direct": answer.direct_count,
        "tenants": answer.tenants.iter().map(hex::encode).collect::<Vec<_>>(),
        "hops": answer.hops, "followed_to_the_end": answer.followed_to_the_end || !query.transitive,
        "unknown": {
            "crashed": listed(&unknown.crashed), "trace_gone": listed(&unknown.trace_gone),
            "trace_changed": listed(&unknown.trace_changed), "in_flight": listed(&unknown.in_flight),
            "suspects_without_pages": unknown.suspects_without_pages, "public_pages_not_followed": unknown.public_pages,
        },
        "rows": answer.rows.iter().map(row).collect::<Vec<_>>(), "rows_left_out": answer.rows_left_out,
        "shared_pages": answer.lives.iter().map(life).collect::<Vec<_>>(),
    })
}

fn table(answer: &BlastRadius, query: &BlastRadiusQuery, names: Option<&TenantNames>) -> String {
    let mut text = String::new();
    let total = answer.rows.len() as u64 + answer.rows_left_out;
    let (tenants, direct) = (answer.tenants.len(), answer.direct_count);
    let Unknown { crashed, trace_gone, trace_changed, .. } = &answer.unknown;
    // What cannot be judged may have been touched, too.
    let least = if crashed.count + trace_gone.count + trace_changed.count > 0 { "at least " } else { "" };
    let _ = writeln!(
        text,
        "{least}{total} responses of {tenants} tenants could have been touched: {direct} suspect themselves, {} through pages",
        total - direct
    );
    let _ = writeln!(
        text,
        "all {} entries were hashed and have the root of the signed checkpoint of {}; {} traces were read\n",
        answer.read.0, answer.checkpoint.origin, answer.read.1
    );
    if total > 0 {
        let _ = writeln!(
            text,
            "{:>10}  {:16}  {:24}  {:20}  {:9}  {:7}  {:>9}  pages",
            "entry", "leaf", "sealed", "tenant", "end", "how", "bytes out"
        );
    }
    for row in answer.rows.iter().take(ROWS_SHOWN) {
        let mut tenant = name_of(&row.tenant, names);
        tenant.truncate(20);
        let mut leaf = row.leaf.to_string();
        leaf.truncate(16);
        let pages: Vec<String> = row
            .pages
            .iter()
            .take(3)
            .map(|run| format!("{}/{} {}", run.page.0, run.generation.0, class(run.class)))
            .collect();
        let more = row.pages_count.saturating_sub(3);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let bytes = row.bytes_released.map_or_else(|| "?".to_owned(), |bytes| bytes.to_string());
        let _ = writeln!(
            text,
            "{:>10}  {leaf}  {}  {tenant:20}  {:9}  {:7}  {bytes:>9}  {}{more}",
            row.index,
            moment::utc(row.sealed_us),
            row.reason.as_str(),
            if row.direct { "suspect" } else { "page" },
            pages.join(", "),
        );
    }
    if total > ROWS_SHOWN as u64 {
        let _ = writeln!(text, "... and {} more: --json has them", total - ROWS_SHOWN as u64);
    }
    shared_pages(&mut text, answer, names);
    completeness(&mut text, answer, query);
    text
}

fn shared_pages(text: &mut String, answer: &BlastRadius, names: Option<&TenantNames>) {
    if answer.lives.is_empty() {
        return;
    }
    let _ = writeln!(text, "\nSuspect lives of pages that responses have in common:");
    // Those that more than one tenant read come first: nothing else says as much.
    let mut lives: Vec<_> = answer.lives.iter().collect();
    lives.sort_by_key(|life| (std::cmp::Reverse(life.tenants.len()), std::cmp::Reverse(life.readers_count)));
    for life in lives.iter().take(ROWS_SHOWN) {
        let tenants: Vec<String> = life.tenants.iter().map(|tenant| name_of(tenant, names)).collect();
        let readers: Vec<String> = life.readers.iter().take(6).map(ToString::to_string).collect();
        let more = if life.readers_count > 6 { ", ..." } else { "" };
        let _ = writeln!(
            text,
            "  page {} life {}: {} responses ({}{more}) of {}{}",
            life.page.0,
            life.generation.0,
            life.readers_count,
            readers.join(", "),
            tenants.join(", "),
            if tenants.len() == SHOWN_MAX { " and perhaps others" } else { "" },
        );
    }
    if lives.len() > ROWS_SHOWN {
        let _ = writeln!(text, "  ... and {} more: --json has them", lives.len() - ROWS_SHOWN);
    }
}

/// What the log does not say is as much a part of the answer as what it says.
fn completeness(text: &mut String, answer: &BlastRadius, query: &BlastRadiusQuery) {
    let unknown = &answer.unknown;
    let _ = writeln!(text, "\nNot known:");
    let mut said = false;
    let mut say = |count: u64, what: &str| {
        if count > 0 {
            said = true;
            let _ = writeln!(text, "  {count} {what}");
        }
    };
    say(unknown.trace_gone.count, "responses whose trace is gone: which pages they read is not known");
    say(
        unknown.trace_changed.count,
        "responses beside which another trace lies than the log commits to: something changed it",
    );
    say(unknown.crashed.count, "responses that ended in a crash: what they read and sent is not known");
    say(unknown.in_flight.count, "requests that have not ended under this checkpoint: ask again later");
    say(
        unknown.suspects_without_pages,
        "suspect responses whose pages are not known: what they shared is not in the answer",
    );
    say(
        unknown.public_pages,
        "pages of everybody's that suspect responses read and that were not followed (--through-public)",
    );
    if query.transitive && !answer.followed_to_the_end {
        say(u64::from(HOPS_MAX), "times suspicion was followed through pages, and there is more");
    }
    if !said {
        let _ = writeln!(text, "  nothing: every response has its trace, and every request has ended");
    }
    if unknown.trace_gone.count > LISTED_MAX as u64 {
        let _ = writeln!(text, "  (--json names {LISTED_MAX} of a kind)");
    }
    if !query.transitive && !answer.lives.is_empty() {
        let _ = writeln!(text, "  pages were followed once; --transitive follows them to the end");
    }
}
