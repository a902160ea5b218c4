//! What the report says, once, for the page and for paper alike.

use crate::chart::{
    Bar, Chart, Column, Lifeline, Spread, Tone, duration, lifelines, over_time, percent, shares, spreads,
};
use crate::controls::{CONTROLS, Finding};
use crate::facts::{Facts, IncidentFacts, Part, Quantiles, Used};
use crate::moment::rfc3339;
use crate::{Evidence, REPORT_JSON, StatedSelfTests, Statement, VERIFIER};

/// Incidents in a plot; the table has more.
const LIVES_MAX: usize = 20;

/// A piece of the report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Block {
    Heading(&'static str),
    Text(String),
    /// The few figures that say most: what, and how many, and whether that is good.
    Headline(Vec<(String, &'static str, Tone)>),
    /// Columns with their share of the width, and rows.
    Table {
        head: Vec<(&'static str, u8)>,
        rows: Vec<Vec<String>>,
    },
    Plot(Chart),
    Code(String),
}

/// The report.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    pub(crate) title: String,
    pub(crate) subtitle: String,
    pub(crate) footer: String,
    pub(crate) blocks: Vec<Block>,
}

/// To the second: no report needs more.
fn utc(wall_us: u64) -> String {
    let text = rfc3339(wall_us);
    format!("{} {}Z", text.get(..10).unwrap_or_default(), text.get(11..19).unwrap_or_default())
}

fn text(words: impl Into<String>) -> Block {
    Block::Text(words.into())
}

pub(crate) fn document(evidence: &Evidence<'_>) -> Document {
    let Evidence { statement, checkpoint, facts, .. } = evidence;
    let mut blocks = headline(facts);
    blocks.extend(scope(evidence));
    blocks.extend(completeness(evidence));
    blocks.extend(responses(facts));
    blocks.extend(coverage(facts));
    blocks.extend(latency(facts));
    blocks.extend(incidents(evidence));
    blocks.extend(replays(facts));
    blocks.extend(self_tests(evidence.statement));
    blocks.extend(side_channels(evidence));
    blocks.extend(in_force(facts));
    blocks.extend(controls(facts));
    blocks.extend(limits(evidence));
    blocks.extend(how_to_check(evidence));
    Document {
        title: format!("Isolation evidence: {}", statement.tenant),
        subtitle: format!("{} to {}", utc(statement.from_us), utc(statement.to_us)),
        footer: format!("{}, checkpoint of {} entries", checkpoint.origin, checkpoint.size),
        blocks,
    }
}

fn headline(facts: &Facts) -> Vec<Block> {
    let pages = &facts.pages;
    let bad_if = |bad: bool| if bad { Tone::Bad } else { Tone::Good };
    let gate = percent(facts.coverage.label_gate, facts.responses.sealed);
    let open = facts.incidents_open;
    vec![Block::Headline(vec![
        (facts.responses.sealed.to_string(), "responses", Tone::Ink),
        (pages.foreign.to_string(), "foreign pages read", bad_if(pages.foreign > 0)),
        (pages.released_after_foreign.to_string(), "of them released", bad_if(pages.released_after_foreign > 0)),
        (
            gate,
            "through the label gate",
            if facts.coverage.label_gate < facts.responses.sealed { Tone::Warn } else { Tone::Good },
        ),
        (open.to_string(), "incidents open", if open > 0 { Tone::Warn } else { Tone::Good }),
        (facts.replays.different.to_string(), "replays that differ", bad_if(facts.replays.different > 0)),
    ])]
}

fn scope(evidence: &Evidence<'_>) -> Vec<Block> {
    let Evidence { statement, checkpoint, cosigned_by, .. } = evidence;
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let mut rows = vec![
        row("Tenant", format!("{} (reference {})", statement.tenant, statement.reference)),
        row("Time", format!("{} to {}, both included", rfc3339(statement.from_us), rfc3339(statement.to_us))),
        row("Log", format!("{}, {} entries", checkpoint.origin, checkpoint.size)),
        row("Root hash", hex::encode(checkpoint.root.0)),
        row("Made", format!("{} by {}", utc(statement.made_us), statement.program)),
    ];
    let cosigned = if cosigned_by.is_empty() { "nobody".to_owned() } else { cosigned_by.join(", ") };
    rows.push(row("Cosigned by", cosigned));
    vec![Block::Heading("Scope"), Block::Table { head: vec![("", 20), ("", 80)], rows }]
}

fn completeness(evidence: &Evidence<'_>) -> Vec<Block> {
    let facts = evidence.facts;
    let complete = &facts.completeness;
    let begin = if complete.begin_is_closed {
        "the entry before them is shown to be older, or there is none"
    } else {
        "where they begin is not shown"
    };
    let end = if complete.end_is_closed {
        "the entry after them is shown to be newer"
    } else {
        "they reach to the tenant's last entry under this checkpoint, so that there is no later one is the operator's word: a \
         later receipt or bundle of the tenant shows it"
    };
    let dense = format!(
        "The bundle holds {} entries of this tenant, numbers {} to {} without a gap. Each is proven to be in the log under the one \
         checkpoint, and each names the one before it. At the begin, {begin}; at the end, {end}.",
        complete.entries, complete.first_number, complete.last_number,
    );
    let withheld = if complete.withheld == 0 {
        String::new()
    } else {
        format!(
            " {} of them are withheld, since they name another tenant: their leaf hashes stand in the chain, and what is said of them below \
             is the operator's word.",
            complete.withheld,
        )
    };
    let opened = match &evidence.statement.name {
        Some(name) => format!("That the reference is the tenant's is shown by entry {}, whose commitment the name opens.", name.entry),
        None => "That the reference is the tenant's is the operator's word: no commitment of the name can be opened any more.".to_owned(),
    };
    let kinds: Vec<String> =
        facts.kinds.iter().map(|(kind, count)| format!("{count} {}", kind.replace('_', " "))).collect();
    vec![
        Block::Heading("Completeness"),
        text(format!("{dense}{withheld}")),
        text(opened),
        text(format!("By kind: {}.", kinds.join(", "))),
    ]
}

fn responses(facts: &Facts) -> Vec<Block> {
    let responses = &facts.responses;
    let column = |part: &Part| Column {
        parts: vec![(part.answered, Tone::Plain), (part.broken_off, Tone::Warn), (part.stopped, Tone::Bad)],
    };
    let columns: Vec<_> = facts.parts.iter().map(column).collect();
    let (first, last) = (utc(facts.completeness.first_us), utc(facts.completeness.last_us));
    let legend = [("answered", Tone::Plain), ("broken off", Tone::Warn), ("stopped by an isolation fault", Tone::Bad)];
    let tone = |end: &str| match end {
        "stop" | "length" => Tone::Plain,
        "isolation" => Tone::Bad,
        _ => Tone::Warn,
    };
    let ends: Vec<_> = responses.ends.iter().map(|(end, count)| Bar::new(*end, *count, tone(end))).collect();
    let opened = format!(
        "{} requests were opened and {} responses ended in this time; {} of them had been opened before it, and {} had not ended by \
         its end. {} prompt tokens, {} completion tokens, {} payloads.",
        responses.opened,
        responses.sealed,
        responses.opened_before,
        responses.not_sealed,
        responses.prompt_tokens,
        responses.completion_tokens,
        responses.payloads,
    );
    let mut blocks = vec![
        Block::Heading("Responses"),
        text(opened),
        Block::Plot(over_time("Responses over time", &columns, (&first, &last), &legend)),
    ];
    if !ends.is_empty() {
        blocks.push(Block::Plot(shares("How responses ended", &ends, responses.sealed)));
    }
    for (class, count) in &facts.faults {
        blocks.push(text(format!(
            "Ended by a failure of the engine that is no isolation fault: {count} {}.",
            class.replace('_', " ")
        )));
    }
    blocks
}

fn coverage(facts: &Facts) -> Vec<Block> {
    let (coverage, of) = (&facts.coverage, facts.responses.sealed);
    let mut bars = vec![
        Bar::new("label gate", coverage.label_gate, Tone::Good),
        Bar::new("page tags in the kernels", coverage.kernel_tags, Tone::Good),
        Bar::new("trace of pages sealed", coverage.trace, Tone::Good),
        Bar::new("replay digest sealed", coverage.replay_digest, Tone::Plain),
    ];
    for (how, count) in &coverage.handover {
        let label = if *how == "none" { "no handoff".to_owned() } else { format!("sealed handoff: {how}") };
        bars.push(Bar::new(label, *count, Tone::Plain));
    }
    let pages = &facts.pages;
    let read = format!(
        "Responses read {} pages of the tenant's own, {} of everybody's and {} of others. {}",
        pages.own,
        pages.public,
        pages.foreign,
        if pages.foreign == 0 {
            "No page of another tenant was read."
        } else {
            "Each response that read one of another was stopped, and is an incident below."
        },
    );
    vec![
        Block::Heading("Isolation and coverage"),
        text(read),
        Block::Plot(shares("Checks that responses went through", &bars, of)),
    ]
}

fn latency(facts: &Facts) -> Vec<Block> {
    let latency = &facts.latency;
    if latency.queued.count == 0 {
        return vec![Block::Heading("Latency"), text("No response came to its end in this time.")];
    }
    let spread = |label, of: &Quantiles| Spread { label, times_us: [of.p50_us, of.p90_us, of.p99_us, of.max_us] };
    let all =
        [spread("queue", &latency.queued), spread("prefill", &latency.prefill), spread("decode", &latency.decode)];
    vec![
        Block::Heading("Latency"),
        text(format!("Of {} responses that came to their end: p50 / p90 / p99 / longest.", latency.queued.count)),
        Block::Plot(spreads("Time in the queue, in prefill and in decode", &all)),
    ]
}

fn incidents(evidence: &Evidence<'_>) -> Vec<Block> {
    let (facts, stated) = (evidence.facts, &evidence.statement.as_victim);
    let mut blocks = vec![Block::Heading("Incidents")];
    if facts.incidents.is_empty() {
        blocks.push(text(
            "No request of this tenant met an isolation fault in this time, and none of its incidents moved.",
        ));
    } else {
        let closed = |incident: &IncidentFacts| matches!(incident.state, "resolved" | "false_positive");
        let life = |incident: &IncidentFacts| {
            let mut moments: Vec<_> = incident.detected_us.iter().map(|at| (*at, Tone::Bad)).collect();
            moments.extend(incident.moves.iter().map(|moved| {
                (moved.at_us, if matches!(moved.state, "resolved" | "false_positive") { Tone::Good } else { Tone::Ink })
            }));
            let class = incident.class.as_deref().unwrap_or("detected before").replace('_', " ");
            let label = format!("{} {class}", incident.id.get(..8).unwrap_or_default());
            Lifeline { label, moments, end: incident.state.replace('_', " "), is_open: !closed(incident) }
        };
        let lives: Vec<_> = facts.incidents.iter().take(LIVES_MAX).map(life).collect();
        let (from, to) = (facts.completeness.first_us, facts.completeness.last_us);
        blocks.push(Block::Plot(lifelines(
            "Incidents from detection to their end",
            &lives,
            from,
            to,
            (&utc(from), &utc(to)),
        )));
        let row = |incident: &IncidentFacts| {
            let moves: Vec<String> = incident
                .moves
                .iter()
                .map(|moved| {
                    let who = match moved.persons {
                        0 => "program",
                        1 => "one person",
                        _ => "two persons",
                    };
                    format!("{} ({who})", moved.state.replace('_', " "))
                })
                .collect();
            vec![
                incident.id.clone(),
                incident.class.as_deref().unwrap_or("-").replace('_', " "),
                incident.severity.clone().unwrap_or_else(|| "-".to_owned()),
                incident.bytes_released.map_or("-".to_owned(), |bytes| bytes.to_string()),
                incident.detected_us.map_or("before".to_owned(), utc),
                moves.join(", "),
            ]
        };
        let head =
            vec![("incident", 24), ("class", 14), ("severity", 10), ("bytes out", 10), ("detected", 17), ("then", 25)];
        blocks.push(Block::Table { head, rows: facts.incidents.iter().map(row).collect() });
        if facts.incidents_left_out > 0 {
            blocks.push(text(format!("{} more are in the entries and not in this list.", facts.incidents_left_out)));
        }
    }
    if stated.is_empty() {
        blocks.push(text("The operator states that no page of this tenant met an isolation fault in a request of another tenant in this time."));
        return blocks;
    }
    blocks.push(text("The operator states of incidents in chains of others, in which it was a page of this tenant (their entries are not this tenant's to see):"));
    let row = |incident: &crate::VictimIncident| {
        vec![
            incident.id.clone(),
            incident.class.replace('_', " "),
            incident.severity.clone(),
            incident.bytes_released.to_string(),
            utc(incident.detected_us),
            incident.state.replace('_', " "),
        ]
    };
    let head =
        vec![("incident", 24), ("class", 14), ("severity", 10), ("bytes out", 10), ("detected", 17), ("stands at", 25)];
    blocks.push(Block::Table { head, rows: stated.iter().map(row).collect() });
    blocks
}

fn replays(facts: &Facts) -> Vec<Block> {
    let replays = &facts.replays;
    let all = replays.same + replays.different + replays.not_done;
    let mut blocks = vec![Block::Heading("Replays")];
    if all == 0 {
        blocks.push(text("No response of this time was computed again: the tenant's rate is 0, or none was due."));
        return blocks;
    }
    blocks.push(text(format!(
        "{all} of {} responses were due to be computed again, alone, and compared bit for bit, {} of them before any of the answer \
         left. {} tokens, {} of processor time.",
        facts.responses.sealed, replays.before_release, replays.tokens, duration(replays.cpu_us),
    )));
    let bars = [
        Bar::new("the same bits", replays.same, Tone::Good),
        Bar::new("different", replays.different, Tone::Bad),
        Bar::new("due and not done", replays.not_done, Tone::Warn),
    ];
    blocks.push(Block::Plot(shares("What came of it", &bars, all)));
    let columns: Vec<_> = facts.parts.iter().map(|part| Column { parts: vec![(part.replayed, Tone::Good)] }).collect();
    let (first, last) = (utc(facts.completeness.first_us), utc(facts.completeness.last_us));
    blocks.push(Block::Plot(over_time(
        "Replays over time: the detector was alive",
        &columns,
        (&first, &last),
        &[("the same bits", Tone::Good)],
    )));
    blocks
}

/// Entries of nobody are not in a bundle: it is the operator's word.
fn self_tests(statement: &Statement) -> Vec<Block> {
    let said = match statement.self_tests {
        None => "The operator does not say how often the gateway tried its own detectors in this time.".to_owned(),
        Some(StatedSelfTests { tests: 0, .. }) => {
            "The operator states that the gateway did not try its own detectors in this time.".to_owned()
        }
        Some(StatedSelfTests { tests, failed, longest_gap_us }) => format!(
            "The operator states that the gateway tried its own detectors {tests} times in this time, each with a control and a \
             fault, that {failed} of these self-tests failed, and that there were at most {} from one to the next.",
            duration(longest_gap_us),
        ),
    };
    vec![Block::Heading("Self-tests"), text(said)]
}

/// -1000 log10 of a probability, as people write it.
fn strength(strength: u64) -> String {
    format!("1e-{}.{}", strength / 1_000, strength % 1_000 / 100)
}

fn side_channels(evidence: &Evidence<'_>) -> Vec<Block> {
    let (own, stated) = (&evidence.facts.audits, &evidence.statement.side_channels);
    let head =
        || vec![("when", 20), ("verdict", 14), ("arms", 8), ("power", 12), ("strongest", 12), ("result, SHA-256", 34)];
    let short = |digest: &str| digest.get(..32).unwrap_or(digest).to_owned();
    let mut blocks = vec![Block::Heading("Side channels between tenants")];
    if !own.is_empty() {
        blocks.push(text("This tenant is a probe, and said that it measured:"));
        let row = |audit: &crate::AuditFacts| {
            vec![
                utc(audit.at_us),
                audit.verdict.replace('_', " "),
                audit.arms.to_string(),
                strength(audit.power),
                strength(audit.strongest),
                short(&audit.result),
            ]
        };
        blocks.push(Block::Table { head: head(), rows: own.iter().map(row).collect() });
    }
    if stated.is_empty() {
        blocks.push(text("The operator states no audit by a probe in this time: timing between tenants was not measured, or is not told."));
        return blocks;
    }
    blocks.push(text("The operator states of audits by probes, which stand in their chains:"));
    let row = |audit: &crate::StatedAudit| {
        vec![
            utc(audit.at_us),
            audit.verdict.replace('_', " "),
            audit.arms.to_string(),
            strength(audit.power),
            strength(audit.strongest),
            short(&audit.result),
        ]
    };
    blocks.push(Block::Table { head: head(), rows: stated.iter().map(row).collect() });
    blocks
}

fn in_force(facts: &Facts) -> Vec<Block> {
    let force = &facts.in_force;
    let mut rows = Vec::new();
    for (what, list) in [
        ("model", &force.models),
        ("fingerprint", &force.fingerprints),
        ("program", &force.builds),
        ("rules", &force.rules),
    ] {
        let row = |used: &Used| {
            vec![what.to_owned(), used.digest.clone(), used.requests.to_string(), utc(used.first_us), utc(used.last_us)]
        };
        rows.extend(list.iter().map(row));
    }
    let epochs: Vec<String> = force.epochs.iter().map(ToString::to_string).collect();
    let mut blocks = vec![Block::Heading("In force")];
    if !rows.is_empty() {
        blocks.push(Block::Table {
            head: vec![("what", 12), ("SHA-256", 42), ("requests", 10), ("first", 18), ("last", 18)],
            rows,
        });
    }
    blocks.push(text(format!(
        "The program ran {} times in this time; requests were committed to with the tenant's keys of the epochs {}.",
        force.runs,
        if epochs.is_empty() { "-".to_owned() } else { epochs.join(", ") },
    )));
    blocks
}

fn controls(facts: &Facts) -> Vec<Block> {
    let row = |control: &crate::Control| {
        let finding = control.judge(facts);
        vec![
            format!("{} {}", control.framework, control.number),
            control.asks.to_owned(),
            finding.words().to_owned(),
            control.shown_by.to_owned(),
            control.query.to_owned(),
            control.tests.join(", "),
        ]
    };
    let not_met: Vec<String> = CONTROLS
        .iter()
        .filter(|control| control.judge(facts) == Finding::NotMet)
        .map(|control| format!("{} {}", control.framework, control.number))
        .collect();
    let summary = if not_met.is_empty() {
        "No control is contradicted by the entries of this time.".to_owned()
    } else {
        format!("Contradicted, or not ended, by the entries of this time: {}.", not_met.join(", "))
    };
    vec![
        Block::Heading("Controls"),
        text(summary),
        text(
            "What the entries show of controls that auditors ask about, with a query to type beside the unpacked bundle and a test of the program's suite. It is evidence for somebody's judgement and no certificate.",
        ),
        Block::Table {
            head: vec![
                ("control", 11),
                ("asks for", 18),
                ("finding", 11),
                ("shown by", 22),
                ("query", 19),
                ("test", 19),
            ],
            rows: CONTROLS.iter().map(row).collect(),
        },
    ]
}

fn limits(evidence: &Evidence<'_>) -> Vec<Block> {
    let witnesses = if evidence.cosigned_by.is_empty() {
        "Nobody has cosigned the checkpoint: that the operator shows everybody the same log is its word."
    } else {
        "Cosignatures count as far as one believes those witnesses: give their keys to the verifier."
    };
    vec![
        Block::Heading("Limits"),
        text(witnesses),
        text(
            "Entries hold commitments and no content. They say what the program did that wrote them; that it is the program whose digest they name takes other evidence.",
        ),
        text(
            "The number of all entries of the log is visible, and with it how busy the service was. What of the above is called the operator's statement is signed by it, and not shown by the log.",
        ),
    ]
}

fn how_to_check(evidence: &Evidence<'_>) -> Vec<Block> {
    let origin = &evidence.checkpoint.origin;
    vec![
        Block::Heading("How to check this"),
        text(format!(
            "Get the verifier key of {origin} from where you trust it, not from this bundle. Both commands check offline that all of the above follows from entries that the log signed; the first one makes every figure and page anew and compares them byte for byte."
        )),
        Block::Code(format!("bulkhead-verify bundle BUNDLE --key KEY\npython3 {VERIFIER} KEY BUNDLE")),
        text(format!(
            "The same figures for machines are in {REPORT_JSON}; oscal.json has them as OSCAL assessment results."
        )),
    ]
}
