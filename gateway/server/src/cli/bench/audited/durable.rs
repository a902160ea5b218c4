//! How many entries become durable in a second, and how long each waits for that.

use super::super::callers::Callers;
use super::super::spread::{Series, Spread, percentile};
use super::{Logs, open_entry, outcome};
use crate::cli::machine;
use anyhow::{Result, ensure};
use audit_log::AuditLog;
use policies_domain::{
    Binding, Completion, ConnectionId, Epoch, FinishReason, Generation, Layer, PageId, PageRead, PageTrace, Permit,
    SealKey, Step,
};
use serde_json::{Value as Json, json};
use std::sync::Arc;
use std::time::Instant;

/// Requests that write at once: no more entries than that can wait for one commit.
const WRITERS: [usize; 2] = [256, 1_024];
/// Entries of one repetition.
const ENTRIES: usize = 65_536;
/// Pages that an answer has read.
const PAGES: u32 = 8;
/// An opened entry and a sealed one.
pub(super) const OF_A_REQUEST: usize = 2;

pub(super) async fn measure(logs: &Logs) -> Result<Json> {
    let mut result = json!({"entries": ENTRIES, "pages_read": PAGES});
    // A file system that has just removed thousands of files is slow to make new ones: all of them go at the end.
    let mut folders = Vec::new();
    for writers in WRITERS {
        let (mut speed, mut cpu, mut median, mut tail) = (Series::new(), Series::new(), Series::new(), Series::new());
        // The first repetition warms caches and is not counted.
        for repetition in 0..=logs.repetitions {
            let (folder, log) = logs.open()?;
            let (cpu_before, begun) = (machine::cpu_seconds(), Instant::now());
            let waits = write(&log, &logs.callers, writers).await?;
            let (took, used) = (begun.elapsed().as_secs_f64(), machine::cpu_seconds() - cpu_before);
            log.shutdown();
            folders.push(folder);
            ensure!(waits.len() == ENTRIES, "entries are missing");
            if repetition > 0 {
                speed.push(ENTRIES as f64 / took);
                cpu.push(used * 1e6 / ENTRIES as f64);
                median.push(percentile(&waits, 0.5)?);
                tail.push(percentile(&waits, 0.99)?);
            }
        }
        result[format!("writers_{writers}")] = json!({
            "entries_per_second": Spread::of(&speed)?,
            "cpu_us_per_entry": Spread::of(&cpu)?,
            "wait_p50_ms": Spread::of(&median)?,
            "wait_p99_ms": Spread::of(&tail)?,
        });
    }
    Ok(result)
}

/// How long each entry waited until it was durable, in milliseconds.
async fn write(log: &AuditLog, callers: &Arc<Callers>, writers: usize) -> Result<Vec<f64>> {
    let requests = ENTRIES / OF_A_REQUEST / writers;
    let writing: Vec<_> = (0..writers)
        .map(|writer| {
            let (log, callers) = (log.clone(), Arc::clone(callers));
            tokio::spawn(async move { write_requests(&log, &callers, writer, requests).await })
        })
        .collect();
    let mut waits = Vec::with_capacity(ENTRIES);
    for written in writing {
        waits.extend(written.await??);
    }
    Ok(waits)
}

/// One after the other.
pub(super) async fn write_requests(
    log: &AuditLog,
    callers: &Callers,
    writer: usize,
    requests: usize,
) -> Result<Vec<f64>> {
    let mut waits = Vec::with_capacity(requests * OF_A_REQUEST);
    for _ in 0..requests {
        let permit = callers.permit(writer % callers.count())?;
        let begun = Instant::now();
        let mut entry = open_entry(log, &permit).await?;
        waits.push(begun.elapsed().as_secs_f64() * 1e3);
        let released = entry.check(step(&permit)).map_err(|_| anyhow::anyhow!("the step was refused"))?;
        entry.sent(br#"{"content": "text"}"#, &released);
        let begun = Instant::now();
        entry.seal(outcome(16, 1)).await?;
        waits.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(waits)
}

/// A whole answer in one step.
fn step(permit: &Permit) -> Step {
    let page = |page| PageRead { page: PageId(page), generation: Generation(1), label: permit.label(), shared: false };
    let finish = Some(FinishReason::Length);
    let sealer = SealKey::from_bytes([1; 32]).sealer(Layer::Text, Binding::of(permit, ConnectionId(1)));
    Step {
        request: permit.request(),
        index: 0,
        trace: PageTrace { kept: 0, pages: (0..PAGES).map(page).collect() },
        restarted: false,
        tokens: 1,
        text: Completion::new("text".into()),
        finish,
        seal: sealer.seal(Epoch(1), 0, b"text", finish),
    }
}
