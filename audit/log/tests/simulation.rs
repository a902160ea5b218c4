//! Lives of a log on a disk that fails, stops and loses what was not synced, each drawn from a seed: whatever was told is in the
//! log that the last start finds.
//!
//! `BULKHEAD_SEEDS=FROM..TO cargo test --release -p audit-log --test simulation -- --ignored --nocapture` goes through so many seeds
//! on all cores and prints what it met as JSON.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod story;

use audit_log::AuditLog;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use story::memory::{Kind, MemoryDisk};
use story::{START_US, Told, check_told, facts, open, outcome, permit, principal, published, step};

/// Between two starts, so that the clock of a later one is later.
const LIFE_US: u64 = 100_000_000_000;
/// Starts that may fail one after the other, each in the middle of what the one before had left.
const STARTS_MAX: u64 = 3;

/// xorshift64*, seeded by splitmix64: neighbouring seeds have nothing in common.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

#[derive(Default)]
struct Met {
    lives: u64,
    starts_that_failed: u64,
    logs_that_failed: u64,
    power_losses: u64,
    told: u64,
    /// Calls that failed, by their first word and how.
    faults: BTreeMap<String, u64>,
}

impl Met {
    fn add(&mut self, other: Self) {
        self.lives += other.lives;
        self.starts_that_failed += other.starts_that_failed;
        self.logs_that_failed += other.logs_that_failed;
        self.power_losses += other.power_losses;
        self.told += other.told;
        for (name, count) in other.faults {
            *self.faults.entry(name).or_default() += count;
        }
    }
}

/// What was told in one process: requests, some sealed, some dropped, some open when it ends.
async fn live(log: &AuditLog, random: &mut Random, next_request: &mut u8, told: &mut Vec<Told>) {
    let mut open_requests = Vec::new();
    for _ in 0..1 + random.below(5) {
        let number = 1 + random.below(3) as u32;
        let who = principal(number, ["acme", "globex", "initech"][number as usize - 1]);
        let request = *next_request;
        *next_request += 1;
        let permit = permit(&who, request);
        let Ok(mut entry) = log.open_request(&permit, facts()).await else { return };
        told.push(Told { who: who.clone(), request, sealed: None });
        let place = told.len() - 1;
        match random.below(5) {
            0 => drop(entry),
            1 => open_requests.push(entry),
            _ => {
                let released = entry.check(step(&permit, 0, permit.label())).unwrap();
                entry.sent(b"payload", &released);
                match entry.seal(outcome()).await {
                    Ok(sealed) => told[place].sealed = Some(sealed.index),
                    Err(_) => return,
                }
            }
        }
        if random.below(3) == 0 {
            published(log);
        }
    }
    if random.below(2) == 0 {
        log.shutdown();
    }
}

async fn lives(seed: u64) -> Met {
    let mut random = Random::new(seed);
    let (disk, mut told, mut met) = (MemoryDisk::default(), Vec::new(), Met::default());
    let (mut next_request, mut starts, mut committed) = (1, 0, 0);
    for _ in 0..1 + random.below(3) {
        met.lives += 1;
        let mut failed_starts = 0;
        let log = loop {
            starts += 1;
            arm(&disk, &mut random, if failed_starts < STARTS_MAX { 2 } else { 0 });
            match open(&disk, START_US + starts * LIFE_US) {
                Ok(log) => break log,
                Err(error) => {
                    assert!(failed_starts < STARTS_MAX, "seed {seed}: {error}");
                    (failed_starts, met.starts_that_failed) = (failed_starts + 1, met.starts_that_failed + 1);
                    end(&disk, &mut random, &mut met);
                }
            }
        };
        arm(&disk, &mut random, 3);
        live(&log, &mut random, &mut next_request, &mut told).await;
        let health = log.health();
        met.logs_that_failed += u64::from(health.failed.is_some());
        committed = health.size.max(committed);
        drop(log);
        end(&disk, &mut random, &mut met);
    }
    disk.heal();
    let log = open(&disk, START_US + (starts + 1) * LIFE_US).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    assert!(log.health().size >= committed, "seed {seed}: entries that were committed are gone");
    check_told(&log, &told);
    // And it goes on.
    let who = principal(1, "acme");
    let entry = log.open_request(&permit(&who, 255), facts()).await.unwrap();
    let sealed = Some(entry.seal(outcome()).await.unwrap().index);
    log.shutdown();
    check_told(&log, &[Told { who, request: 255, sealed }]);
    met.told = told.len() as u64 + 1;
    met
}

/// Lets a call soon fail, or the disk stop, in so many of four cases.
fn arm(disk: &MemoryDisk, random: &mut Random, of_four: u64) {
    disk.heal();
    if random.below(4) >= of_four {
        return;
    }
    let call = random.below(90) as usize;
    match random.below(5) {
        0 => disk.fill_at(call),
        1 => disk.stop_at(call),
        kind => disk.fail_at(call, [Kind::NotPersisted, Kind::Persisted, Kind::Half][kind as usize - 2]),
    }
}

/// The process is gone, and so may be what was not synced. A disk that stopped has lost power.
fn end(disk: &MemoryDisk, random: &mut Random, met: &mut Met) {
    let stopped = disk.has_stopped();
    if let Some(failed) = disk.heal() {
        let how = if stopped { "stop" } else { "fault" };
        *met.faults.entry(format!("{how} {}", failed.split(' ').next().unwrap_or_default())).or_default() += 1;
    }
    if stopped || random.below(2) == 0 {
        met.power_losses += 1;
        disk.crash(random.next());
    }
}

fn seeds(range: std::ops::Range<u64>, threads: usize) -> Met {
    let (next, all) = (AtomicU64::new(range.start), Mutex::new(Met::default()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= range.end {
                        return;
                    }
                    let met = runtime.block_on(lives(seed));
                    all.lock().unwrap().add(met);
                    if seed % 10_000 == 9_999 {
                        eprintln!("seed {seed}");
                    }
                }
            });
        }
    });
    all.into_inner().unwrap()
}

#[test]
fn whatever_a_disk_does_what_was_told_is_there() {
    let met = seeds(0..400, 1);
    for call in ["open", "write", "rename", "sync", "read"] {
        assert!(met.faults.keys().any(|fault| fault.ends_with(call)), "no `{call}` ever failed: {:?}", met.faults);
    }
    assert!(met.starts_that_failed > 20 && met.logs_that_failed > 20 && met.power_losses > 100 && met.told > 500);
}

#[test]
#[ignore = "as many seeds as BULKHEAD_SEEDS says; a million take hours"]
fn whatever_a_disk_does_over_so_many_seeds() {
    let range = std::env::var("BULKHEAD_SEEDS").expect("BULKHEAD_SEEDS says which: FROM..TO");
    let (from, to) = range.split_once("..").expect("FROM..TO");
    let range = from.parse().unwrap()..to.parse().unwrap();
    let count = range.end - range.start;
    let met = seeds(range, std::thread::available_parallelism().map_or(1, usize::from));
    let faults: Vec<String> = met.faults.iter().map(|(name, count)| format!("\"{name}\": {count}")).collect();
    println!(
        "{{\"seeds\": {count}, \"lives\": {}, \"starts_that_failed\": {}, \"logs_that_failed\": {}, \"power_losses\": {}, \
         \"told\": {}, \"faults\": {{{}}}}}",
        met.lives,
        met.starts_that_failed,
        met.logs_that_failed,
        met.power_losses,
        met.told,
        faults.join(", ")
    );
}
