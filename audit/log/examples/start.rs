//! What a start costs: `start DIR sled|memory` opens a log that `append` wrote, waits for its index, and closes it. Prints
//! milliseconds to the open log and to the whole index, and the largest memory.
#![expect(clippy::print_stdout, reason = "a command line program")]
#![expect(clippy::unwrap_used, reason = "an example that may end at the first error")]

use audit_log::{AuditConfig, AuditLog, IndexStore};
use std::time::{Duration, Instant};

/// The process's largest resident memory so far, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, store] = arguments.as_slice() else {
        println!("usage: start DIR sled|memory");
        return;
    };
    let index = match store.as_str() {
        "sled" => IndexStore::Sled(std::path::Path::new(dir).join("index")),
        _ => IndexStore::Memory,
    };
    let start = Instant::now();
    let log = AuditLog::open(AuditConfig { index, ..AuditConfig::new(dir, "append.example") }).unwrap();
    let (opened, peak) = (start.elapsed(), peak_mib());
    while !log.health().index.is_ready() {
        std::thread::sleep(Duration::from_millis(5));
    }
    println!(
        "{} entries: open after {} ms with {peak} MiB at most, index of {} after {} ms with {} MiB, {} rebuilds",
        log.health().size,
        opened.as_millis(),
        log.health().index.indexed,
        start.elapsed().as_millis(),
        peak_mib(),
        log.health().index.rebuilds,
    );
    log.shutdown();
}
