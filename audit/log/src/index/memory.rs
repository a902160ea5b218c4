//! A store in memory: a B-tree that goes with the process.

use super::store::{Record, Store, StoreFault};
use std::collections::BTreeMap;

/// B-tree.
#[derive(Debug, Default)]
pub(crate) struct MemoryStore(BTreeMap<Box<[u8]>, Box<[u8]>>);

impl Store for MemoryStore {
    fn insert(&mut self, records: &[Record]) -> Result<(), StoreFault> {
        for (key, value) in records {
            self.0.insert(key.as_slice().into(), value.as_slice().into());
        }
        Ok(())
    }

    fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreFault> {
        Ok(self.0.get(key).map(|value| value.to_vec()))
    }

    fn range(&self, from: &[u8], to: &[u8], records_max: usize) -> Result<Vec<Record>, StoreFault> {
        if from >= to {
            return Ok(Vec::new());
        }
        let records = self.0.range::<[u8], _>((std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)));
        Ok(records.take(records_max).map(|(key, value)| (key.to_vec(), value.to_vec())).collect())
    }

    fn flush(&mut self) -> Result<(), StoreFault> {
        Ok(())
    }
}
