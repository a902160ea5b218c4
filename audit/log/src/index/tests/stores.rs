//! Stores by themselves, and stores that lie, panic, hang, are full or are somebody else's.

use super::super::store::{RECORDS_MAX, Record, Store, StoreFault};
use super::*;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A store that must not be written to.
pub(super) struct ReadOnly<S>(pub(super) S);

impl<S: Store> Store for ReadOnly<S> {
    fn insert(&mut self, _: &[Record]) -> Result<(), StoreFault> {
        panic!("it was written to");
    }
    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        self.0.value(key)
    }
    fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
        self.0.range(from, to, records_max)
    }
    fn flush(&mut self) -> Result<(), StoreFault> {
        self.0.flush()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The one suite that every store goes through, against a model.
    #[test]
    fn both_stores_give_the_same_answers(
        records in prop::collection::vec((prop::collection::vec(0u8..4, 1..5), prop::collection::vec(any::<u8>(), 0..40)), 0..120),
        questions in prop::collection::vec((prop::collection::vec(0u8..5, 0..5), prop::collection::vec(0u8..5, 0..5), 0usize..20), 1..40),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("index");
        let mut memory = MemoryStore::default();
        let mut disk = DiskStore::open(&dir).unwrap();
        let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
        for (key, value) in records {
            // No record changes.
            let value = model.entry(key.clone()).or_insert(value).clone();
            memory.insert(&[(key.clone(), value.clone())]).unwrap();
            disk.insert(&[(key, value)]).unwrap();
        }
        for reopened in [false, true] {
            if reopened {
                disk.flush().unwrap();
                drop(disk);
                disk = DiskStore::open(&dir).unwrap();
            }
            for (from, to, most) in &questions {
                let value = model.get(from).cloned();
                prop_assert_eq!(memory.value(from).unwrap(), value.clone());
                prop_assert_eq!(disk.value(from).unwrap(), value);
                let range: Vec<Record> = if from < to {
                    model.range(from.clone()..to.clone()).take(*most).map(|(key, value)| (key.clone(), value.clone())).collect()
                } else {
                    Vec::new()
                };
                prop_assert_eq!(memory.range(from, to, *most).unwrap(), range.clone());
                prop_assert_eq!(disk.range(from, to, *most).unwrap(), range);
            }
        }
    }
}

/// A store that tells the truth about itself and lies about the rest, now and then.
struct Liar {
    held: MemoryStore,
    random: AtomicU64,
    /// One answer in so many is a lie.
    one_in: u64,
}

impl Liar {
    fn draw(&self, below: u64) -> u64 {
        let mut random = self.random.load(Ordering::Relaxed);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        self.random.store(random, Ordering::Relaxed);
        (random >> 11) % below
    }

    /// Some record that is there.
    fn other(&self) -> Option<Record> {
        let all = self.held.range(&[1], &[6], RECORDS_MAX).unwrap();
        let drawn = usize::try_from(self.draw(all.len().max(1) as u64)).unwrap();
        all.get(drawn).cloned()
    }
}

impl Store for Liar {
    fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
        self.held.insert(records)
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        if self.draw(self.one_in) > 0 {
            return self.held.value(key);
        }
        Ok(match self.draw(4) {
            0 => None,
            1 => Some(vec![3; 5]),
            2 => Some(u64::MAX.to_be_bytes().to_vec()),
            _ => self.other().map(|(_, value)| value),
        })
    }

    fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
        let mut records = self.held.range(from, to, records_max)?;
        if from.first() == Some(&0) || self.draw(self.one_in) > 0 {
            return Ok(records);
        }
        let drawn = usize::try_from(self.draw(records.len().max(1) as u64)).unwrap();
        match self.draw(5) {
            0 => records.clear(),
            1 if !records.is_empty() => drop(records.remove(drawn)),
            2 => records.extend(self.other()),
            3 if !records.is_empty() => {
                if let Some((_, value)) = self.other() {
                    records[drawn].1 = value;
                }
            }
            _ => records.reverse(),
        }
        Ok(records)
    }

    fn flush(&mut self) -> Result<(), StoreFault> {
        Ok(())
    }
}

#[test]
fn a_store_that_lies_at_random_makes_it_slower_and_never_wrong() {
    let (disk, model) = history();
    let mut caught = 0;
    for seed in 1..=10u64 {
        let one_in = 1 + seed % 7 * 9;
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let liar = move || {
            Ok(Box::new(Liar { held: MemoryStore::default(), random: AtomicU64::new(random), one_in })
                as Box<dyn Store>)
        };
        let lookup = lookup(&disk, keeper(liar));
        ready(&lookup);
        check(&lookup, &model, 13).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        caught += lookup.health().rebuilds;
        lookup.end();
    }
    assert!(caught > 10, "only {caught} stores were caught");
}

/// What happens to one kind of record.
#[derive(Clone, Copy)]
enum Lie {
    Missing,
    Swapped,
}

struct LiesAbout(MemoryStore, u8, Lie);

impl Store for LiesAbout {
    fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
        self.0.insert(records)
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        if key.first() != Some(&self.1) {
            return self.0.value(key);
        }
        match self.2 {
            Lie::Missing => Ok(None),
            Lie::Swapped => Ok(self.0.range(&[self.1], &[self.1 + 1], 1)?.pop().map(|(_, value)| value)),
        }
    }

    fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
        let mut records = self.0.range(from, to, records_max)?;
        if from.first() == Some(&self.1) {
            match self.2 {
                Lie::Missing => records.truncate(records.len() / 2),
                Lie::Swapped => {
                    let values: Vec<_> = records.iter().rev().map(|(_, value)| value.clone()).collect();
                    records.iter_mut().zip(values).for_each(|((_, held), value)| *held = value);
                }
            }
        }
        Ok(records)
    }

    fn flush(&mut self) -> Result<(), StoreFault> {
        Ok(())
    }
}

#[test]
fn a_lie_about_any_kind_of_record_is_noticed_and_the_index_is_made_anew() {
    let (disk, model) = history();
    for prefix in 1..=5 {
        for lie in [Lie::Missing, Lie::Swapped] {
            let first = AtomicBool::new(true);
            let stores = keeper(move || {
                let store = MemoryStore::default();
                // The second one is honest.
                let lies = first.swap(false, Ordering::Relaxed);
                Ok(if lies { Box::new(LiesAbout(store, prefix, lie)) } else { Box::new(store) as Box<dyn Store> })
            });
            let lookup = lookup(&disk, stores);
            ready(&lookup);
            check(&lookup, &model, 7).unwrap();
            ready(&lookup);
            let health = lookup.health();
            // Incidents that are said in another order are the same incidents.
            let swapped_among_themselves = prefix == 4 && matches!(lie, Lie::Swapped);
            assert_eq!(health.rebuilds, u32::from(!swapped_among_themselves), "records {prefix}: {health:?}");
            check(&lookup, &model, 7).unwrap();
            lookup.end();
        }
    }
}

#[test]
fn a_store_that_panics_anywhere_takes_nothing_along() {
    struct Panics(MemoryStore, Arc<AtomicU64>);
    impl Panics {
        fn count(&self) {
            let left = self.1.fetch_sub(1, Ordering::Relaxed);
            assert!(left != 0, "as planned");
        }
    }
    impl Store for Panics {
        fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
            self.count();
            self.0.insert(records)
        }
        fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
            self.count();
            self.0.value(key)
        }
        fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
            self.count();
            self.0.range(from, to, records_max)
        }
        fn flush(&mut self) -> Result<(), StoreFault> {
            self.count();
            self.0.flush()
        }
    }
    impl Drop for Panics {
        fn drop(&mut self) {
            assert!(self.1.load(Ordering::Relaxed) < u64::MAX / 2, "a destructor that panics, too");
        }
    }
    let (disk, model) = history();
    for calls in 0..40 {
        let left = Arc::new(AtomicU64::new(calls));
        let lookup = lookup(&disk, keeper(move || Ok(Box::new(Panics(MemoryStore::default(), Arc::clone(&left))))));
        check(&lookup, &model, 29).unwrap();
        lookup.end();
    }
}

#[test]
fn a_store_that_hangs_is_left_alone() {
    struct Hangs(MemoryStore, Arc<AtomicBool>);
    impl Store for Hangs {
        fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
            self.0.insert(records)
        }
        fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
            while self.1.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(1));
            }
            self.0.value(key)
        }
        fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
            self.0.range(from, to, records_max)
        }
        fn flush(&mut self) -> Result<(), StoreFault> {
            Ok(())
        }
    }
    let (disk, model) = history();
    let hangs = Arc::new(AtomicBool::new(true));
    let held = Arc::clone(&hangs);
    let lookup = lookup(&disk, keeper(move || Ok(Box::new(Hangs(MemoryStore::default(), Arc::clone(&held))))));
    ready(&lookup);
    check(&lookup, &model, 7).unwrap();
    hangs.store(false, Ordering::Relaxed);
    check(&lookup, &model, 1).unwrap();
    assert_eq!(lookup.health().rebuilds, 0, "slow is not wrong");
    lookup.end();
}

#[test]
fn a_full_disk_stops_the_index_and_nothing_else() {
    struct Full(MemoryStore, u32);
    impl Store for Full {
        fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
            self.1 -= 1;
            if self.1 == 0 {
                self.1 = 1;
                return Err(StoreFault::Behind("little space is left on the disk".to_owned()));
            }
            self.0.insert(records)
        }
        fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
            self.0.value(key)
        }
        fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
            self.0.range(from, to, records_max)
        }
        fn flush(&mut self) -> Result<(), StoreFault> {
            Ok(())
        }
    }
    let (disk, model) = history();
    for inserts in 1..9 {
        let lookup = lookup(&disk, keeper(move || Ok(Box::new(Full(MemoryStore::default(), inserts)))));
        while lookup.health().trouble.is_none() && !lookup.health().is_ready() {
            std::thread::yield_now();
        }
        check(&lookup, &model, 3).unwrap();
        assert_eq!(lookup.health().rebuilds, 0);
        lookup.end();
    }
}

#[test]
fn the_index_of_another_log_or_of_a_later_one_is_made_anew() {
    let (disk, model) = history();
    let folder = tempfile::tempdir().unwrap();
    // Another log with the same name, and one that is longer.
    let other = MemoryDisk::default();
    let log = open(&other, START_US, IndexStore::Memory);
    write(&log, 0..REQUESTS, &mut Vec::new());
    log.shutdown();
    let longer = disk.copy();
    let log = open(&longer, later(3), IndexStore::Memory);
    write(&log, REQUESTS..2 * REQUESTS, &mut Vec::new());
    log.shutdown();
    for (name, of) in [("other", other), ("longer", longer)] {
        let dir = folder.path().join(name);
        let first = lookup(&of, sled_store(&dir));
        ready(&first);
        first.end();
        let second = lookup(&disk, sled_store(&dir));
        while second.health().rebuilds == 0 || !second.health().is_ready() {
            std::thread::yield_now();
        }
        check(&second, &model, 1).unwrap();
        assert_eq!(second.health().rebuilds, 1, "{name}");
        assert!(second.health().trouble.unwrap().contains("does not belong to this log"), "{name}");
        assert!(folder.path().join(format!("{name}.aside")).is_dir(), "{name} is kept to be looked at");
        second.end();
    }
}
