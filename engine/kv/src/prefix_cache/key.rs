//! The keys of nodes: a chain of keyed hashes, under a key for each domain that nobody outside can compute.

use super::{PageTokens, PrefixCacheConfig};
use policies_domain::Label;
use std::fmt;

/// Tells this use of the boot secret from every other one.
const CONTEXT: &str = "bulkhead 2026-11-30 prefix cache: key of an isolation domain";

/// What the keys of all domains are derived from.
#[derive(Clone, Copy)]
pub(super) struct BootKey(PrefixCacheConfig);

/// The key under which a domain's nodes are hashed.
#[derive(Clone, Copy)]
pub(super) struct DomainKey {
    key: [u8; 32],
    /// Eight bits of the hash count: a planted fault.
    toy: bool,
}

/// Stands for all the tokens up to the end of one page, in one domain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeKey([u8; 32]);

impl BootKey {
    pub(super) fn new(config: PrefixCacheConfig) -> Self {
        Self(config)
    }

    /// All fields have a fixed width: no two contexts are written alike.
    pub(super) fn of_domain(&self, domain: Label, toy: bool) -> DomainKey {
        let PrefixCacheConfig { boot_secret, fingerprint, adapter_generation } = self.0;
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(&boot_secret);
        hasher.update(&domain.bits().to_le_bytes());
        hasher.update(&fingerprint);
        hasher.update(&adapter_generation.to_le_bytes());
        DomainKey { key: hasher.finalize().into(), toy }
    }
}

impl DomainKey {
    pub(super) fn node(&self, parent: NodeKey, tokens: &PageTokens) -> NodeKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(&parent.0);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        let mut key: [u8; 32] = hasher.finalize().into();
        if self.toy {
            key[1..].fill(0);
        }
        NodeKey(key)
    }
}

impl NodeKey {
    /// Before the first page.
    pub(super) const ROOT: Self = Self([0; 32]);
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeKey")
    }
}
