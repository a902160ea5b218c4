//! The prefixes of one domain.

use super::key::{DomainKey, NodeKey};
use super::{PageTokens, PrefixCacheCounts};
use crate::page::SharedPage;
use policies_domain::Label;
use std::collections::{BTreeMap, BTreeSet};

/// Nodes by key. One without children in this tree is a leaf, and only leaves are evicted: what is left is a tree.
pub(super) struct Tree {
    key: DomainKey,
    nodes: BTreeMap<NodeKey, Node>,
    /// By when they were used last.
    leaves: BTreeSet<(u64, NodeKey)>,
    pub(super) counts: PrefixCacheCounts,
}

struct Node {
    /// In this tree, or the end of a prefix that is everybody's, or the root.
    parent: NodeKey,
    tokens: PageTokens,
    page: SharedPage,
    used: u64,
    children: BTreeSet<NodeKey>,
}

/// What there is under a key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Node,
    Nothing,
    /// Other tokens, or the same behind others.
    Collision,
    /// A page that may not be held any more.
    Unfit,
}

impl Tree {
    pub(super) fn new(key: DomainKey) -> Self {
        Self { key, nodes: BTreeMap::new(), leaves: BTreeSet::new(), counts: PrefixCacheCounts::default() }
    }

    pub(super) fn key_of(&self, parent: NodeKey, tokens: &PageTokens) -> NodeKey {
        self.key.node(parent, tokens)
    }

    pub(super) fn pages(&self) -> usize {
        self.nodes.len()
    }

    pub(super) fn holds(&self, key: NodeKey) -> bool {
        self.nodes.contains_key(&key)
    }

    /// Is the page under this key the one of these tokens behind that parent, and may `label` hold it? The parent was
    /// compared before, so with it everything before this page is.
    pub(super) fn find(
        &self,
        key: NodeKey,
        parent: NodeKey,
        tokens: &PageTokens,
        label: Label,
        compares: bool,
    ) -> Found {
        match self.nodes.get(&key) {
            None => Found::Nothing,
            Some(node) if compares && (node.parent != parent || node.tokens != *tokens) => Found::Collision,
            Some(node) if !node.page.fits(label) => Found::Unfit,
            Some(_) => Found::Node,
        }
    }

    /// The node is the most recently used one.
    pub(super) fn use_node(&mut self, key: NodeKey, now: u64) -> Option<&SharedPage> {
        let node = self.nodes.get_mut(&key)?;
        if self.leaves.remove(&(node.used, key)) {
            self.leaves.insert((now, key));
        }
        node.used = now;
        Some(&node.page)
    }

    /// A new leaf. The key is nobody's yet.
    pub(super) fn insert(&mut self, key: NodeKey, parent: NodeKey, tokens: PageTokens, page: SharedPage, now: u64) {
        if let Some(above) = self.nodes.get_mut(&parent) {
            above.children.insert(key);
            self.leaves.remove(&(above.used, parent));
        }
        self.nodes.insert(key, Node { parent, tokens, page, used: now, children: BTreeSet::new() });
        self.leaves.insert((now, key));
    }

    /// Lets go of the least recently used leaf. `true`: its page comes back, nobody else holds it.
    pub(super) fn evict(&mut self) -> Option<bool> {
        let (_, key) = self.leaves.pop_first()?;
        let node = self.nodes.remove(&key)?;
        self.unlink(key, node.parent);
        self.counts.evictions += 1;
        Some(node.page.only_kept())
    }

    /// Evicts until no more than this many pages are left.
    pub(super) fn shrink(&mut self, pages_max: usize) {
        while self.pages() > pages_max && self.evict().is_some() {}
    }

    /// Lets go of a node and of everything behind it.
    pub(super) fn withdraw(&mut self, key: NodeKey) {
        if let Some(node) = self.nodes.get(&key) {
            self.unlink(key, node.parent);
        }
        let mut behind = vec![key];
        while let Some(key) = behind.pop() {
            let Some(node) = self.nodes.remove(&key) else { continue };
            self.leaves.remove(&(node.used, key));
            behind.extend(node.children);
            self.counts.withdrawn += 1;
        }
    }

    /// As if the one key were the other.
    #[cfg(test)]
    pub(super) fn move_node(&mut self, from: NodeKey, to: NodeKey) {
        let node = self.nodes.remove(&from).unwrap();
        self.leaves.remove(&(node.used, from));
        self.leaves.insert((node.used, to));
        self.nodes.insert(to, node);
    }

    pub(super) fn clear(&mut self) -> usize {
        self.leaves.clear();
        std::mem::take(&mut self.nodes).len()
    }

    /// The parent has a child less, and is a leaf when that was its last one.
    fn unlink(&mut self, key: NodeKey, parent: NodeKey) {
        let Some(above) = self.nodes.get_mut(&parent) else { return };
        let was_child = above.children.remove(&key);
        if was_child && above.children.is_empty() {
            self.leaves.insert((above.used, parent));
        }
    }
}
