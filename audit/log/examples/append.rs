//! Writes a log as fast as it goes: `append DIR TASKS REQUESTS [--tell]`. TASKS write REQUESTS requests each, one after the
//! other. Prints entries per second; with `--tell` instead every acknowledged entry, at once, for the crash test.
#![expect(clippy::print_stdout, reason = "a command line program")]
#![expect(clippy::unwrap_used, reason = "an example that may end at the first error")]

use audit_log::{AuditConfig, AuditLog, IndexStore, Outcome, RequestFacts, SealReason};
use policies_domain::{
    Binding, Completion, ConnectionId, Digest, Epoch, FinishReason, Generation, Layer, ModelName, PageId, PageRead,
    PageTrace, Permit, PolicyDecision, Principal, RequestId, SealKey, Step, TenantId, TenantName,
};
use std::io::Write as _;
use std::time::Instant;

fn permit(task: u32, run: u64, number: u64) -> Permit {
    let name = TenantName::parse(&format!("tenant-{}", task % 4)).unwrap();
    let principal = Principal::authenticated(TenantId::new(task % 4 + 1).unwrap(), name);
    let decision = PolicyDecision { rules: Digest([0; 32]), determining: vec!["tenants-may-generate".into()] };
    let request = (u128::from(run) << 64 | u128::from(task) << 32 | u128::from(number)).to_be_bytes();
    Permit::granted_by_authz(principal, RequestId::from_bytes(request), ModelName::parse("m").unwrap(), decision)
}

fn step(permit: &Permit) -> Step {
    let page = |page| PageRead { page: PageId(page), generation: Generation(1), label: permit.label(), shared: false };
    let finish = Some(FinishReason::Stop);
    let sealer = SealKey::from_bytes([1; 32]).sealer(Layer::Text, Binding::of(permit, ConnectionId(1)));
    Step {
        request: permit.request(),
        index: 0,
        trace: PageTrace { kept: 0, pages: (0..8).map(page).collect() },
        restarted: false,
        tokens: 1,
        text: Completion::new("text".into()),
        finish,
        seal: sealer.seal(Epoch(1), 0, b"text", finish),
    }
}

fn tell(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // The reader went away: it has what it wanted.
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        std::process::exit(0);
    }
}

async fn write(log: AuditLog, task: u32, run: u64, requests: u64, told: bool) {
    for number in 0..requests {
        let permit = permit(task, run, number);
        let facts = RequestFacts {
            body: b"{\"prompt\":\"yes\"}",
            model: Digest([1; 32]),
            fingerprint: Digest([3; 32]),
            stream: true,
        };
        let mut entry = log.open_request(&permit, facts).await.unwrap();
        if told {
            tell(format_args!("opened {} {}", permit.principal().name(), permit.request()));
        }
        let released = entry.check(step(&permit)).unwrap();
        entry.sent(b"{\"content\":\"text\"}", &released);
        let reason = SealReason::Stop;
        let outcome = Outcome {
            reason,
            prompt_tokens: 9,
            completion_tokens: 1,
            queued_us: 1,
            prefill_us: 2,
            decode_us: 3,
            replay: None,
        };
        let sealed = entry.seal(outcome).await.unwrap();
        if told {
            tell(format_args!("sealed {} {} {}", permit.principal().name(), permit.request(), sealed.index));
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, tasks, requests, rest @ ..] = arguments.as_slice() else {
        println!("usage: append DIR TASKS REQUESTS [--tell]");
        return;
    };
    let (tasks, requests): (u32, u64) = (tasks.parse().unwrap(), requests.parse().unwrap());
    let told = rest.first().is_some_and(|flag| flag == "--tell");
    let index = IndexStore::Sled(std::path::Path::new(dir).join("index"));
    let log = AuditLog::open(AuditConfig { index, ..AuditConfig::new(dir, "append.example") }).unwrap();
    let (start, before) = (Instant::now(), log.health().size);
    let running: Vec<_> =
        (0..tasks).map(|task| tokio::spawn(write(log.clone(), task, before, requests, told))).collect();
    for task in running {
        task.await.unwrap();
    }
    let (entries, committed) = (log.health().size - before, start.elapsed().as_secs_f64());
    log.shutdown();
    let published = start.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rates = (entries as f64 / committed, entries as f64 / published);
    if !told {
        println!("{entries} entries, {:.0}/s durable, {:.0}/s published", rates.0, rates.1);
    }
}
