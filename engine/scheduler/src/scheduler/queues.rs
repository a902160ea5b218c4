//! The requests of one tenant, in the orders that are asked for.

use super::Key;
use std::cmp::Reverse;
use std::collections::BTreeSet;

#[derive(Debug, Default, PartialEq)]
pub(super) struct Queues {
    by_age: BTreeSet<Key>,
    /// Those with the longest cached prefix first, the oldest of equals.
    by_prefix: BTreeSet<(Reverse<usize>, Key)>,
    /// Those with a slot whose prompt is not computed, the oldest first.
    pub(super) prefilling: BTreeSet<Key>,
    /// Those with a slot: whoever gave way often first, the youngest of those that did least last.
    pub(super) running: BTreeSet<(Reverse<u32>, Key)>,
}

impl Queues {
    pub(super) fn wait(&mut self, key: Key, cached_tokens: usize) {
        self.by_age.insert(key);
        self.by_prefix.insert((Reverse(cached_tokens), key));
    }

    pub(super) fn wait_no_more(&mut self, key: Key, cached_tokens: usize) {
        self.by_age.remove(&key);
        self.by_prefix.remove(&(Reverse(cached_tokens), key));
    }

    pub(super) fn waits(&self) -> bool {
        !self.by_age.is_empty()
    }

    pub(super) fn oldest(&self) -> Option<Key> {
        self.by_age.first().copied()
    }

    pub(super) fn longest_prefix_first(&self) -> impl Iterator<Item = Key> {
        self.by_prefix.iter().map(|(_, key)| *key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty() && self.running.is_empty()
    }
}
