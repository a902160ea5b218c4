//! The published failures that the product is held against, each once, and where it is re-created.
//!
//! The names are those of the fault switches and the tests. What concerns a part that is not built yet says which one, so
//! that it is not forgotten when that part comes.

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Class {
    /// A place goes to a new owner while somebody still writes or reads under the old one.
    Life,
    /// Content is used that is not finished, or was never made.
    Ready,
    /// Two requests address the same memory.
    Alias,
    /// Old content can still be read after a place has rightly changed hands.
    Scrub,
    /// The key of a cache does not tell inputs or tenants apart.
    Key,
    /// A handoff meets the wrong request.
    Handoff,
    /// State of a row of the batch is taken from another row.
    Row,
    /// Speculation reads or publishes the wrong state.
    Spec,
    /// K and V of other weights.
    Adapt,
    /// Output reaches another request's stream.
    Deliv,
    /// Request and reply are out of step on a connection.
    Conn,
    /// A stored answer is served to another tenant.
    Rcache,
    /// Somebody acts for the wrong tenant.
    Auth,
    /// Nothing leaks but time.
    Side,
    /// Logs and traces carry content, or name the wrong request.
    Tele,
}

impl Class {
    /// As tables and JSON name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Life => "LIFE",
            Self::Ready => "READY",
            Self::Alias => "ALIAS",
            Self::Scrub => "SCRUB",
            Self::Key => "KEY",
            Self::Handoff => "HANDOFF",
            Self::Row => "ROW",
            Self::Spec => "SPEC",
            Self::Adapt => "ADAPT",
            Self::Deliv => "DELIV",
            Self::Conn => "CONN",
            Self::Rcache => "RCACHE",
            Self::Auth => "AUTH",
            Self::Side => "SIDE",
            Self::Tele => "TELE",
        }
    }
}

/// Where a failure is re-created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In this file, by tests whose names begin with the failure's name.
    Recreated {
        /// From the root of the sources.
        file: &'static str,
    },
    /// It concerns what does not exist yet.
    Pending {
        /// What has to come first.
        until: &'static str,
    },
}

/// One published failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its name everywhere.
    pub slug: &'static str,
    /// Its class.
    pub class: Class,
    /// Where it is.
    pub standing: Standing,
}

const fn recreated(class: Class, slug: &'static str, file: &'static str) -> Failure {
    Failure { slug, class, standing: Standing::Recreated { file } }
}

const fn pending(class: Class, slug: &'static str, until: &'static str) -> Failure {
    Failure { slug, class, standing: Standing::Pending { until } }
}

const LEDGER: &str = "engine/kv/src/catalogue.rs";
const PREFIXES: &str = "engine/kv/src/prefix_cache/catalogue.rs";
const ROWS: &str = "engine/runtime/src/executor/rows.rs";
const DELIVERY: &str = "gateway/server/src/serve/catalogue.rs";
const WORKER: &str = "engine/runtime/src/remote/tests/streams.rs";
const RIG: &str = "tests/rig/src/tests.rs";
const PROTOCOL: &str = "engine/handoff/src/model_check/catalogue.rs";

/// All of them.
pub const FAILURES: [Failure; 40] = [
    recreated(Class::Life, "decode-page-reuse-before-writer-done", LEDGER),
    recreated(Class::Life, "next-step-writes-after-free", LEDGER),
    recreated(Class::Life, "stale-reference-read-fails-open", PROTOCOL),
    pending(Class::Ready, "index-read-skips-load-wait", "pages are loaded from a slower tier"),
    recreated(Class::Ready, "aborted-prefill-still-decoded", PROTOCOL),
    pending(Class::Ready, "tier-round-trip-unverified", "pages are loaded from a slower tier"),
    recreated(Class::Alias, "free-list-duplicate", LEDGER),
    recreated(Class::Alias, "padding-index-minus-one", LEDGER),
    pending(Class::Alias, "id-times-size-collision", "pages of several sizes share a pool"),
    recreated(Class::Scrub, "recurrent-state-not-zeroed", LEDGER),
    recreated(Class::Scrub, "stale-sentinel-false-alarm", RIG),
    pending(Class::Scrub, "leftover-accelerator-memory", "kernels run on a device"),
    recreated(Class::Key, "weak-block-hash", PREFIXES),
    pending(Class::Key, "media-identity-truncated", "requests carry media"),
    pending(Class::Key, "salt-dropped-at-outer-tier", "prefixes are cached in a slower tier"),
    recreated(Class::Handoff, "metadata-slot-race", PROTOCOL),
    recreated(Class::Handoff, "rendezvous-id-not-unique", PROTOCOL),
    recreated(Class::Handoff, "stale-peer-after-restart", PROTOCOL),
    recreated(Class::Row, "recycled-row-keeps-mask", ROWS),
    recreated(Class::Row, "mask-rows-misaligned", ROWS),
    recreated(Class::Row, "index-wraps-to-neighbour", ROWS),
    recreated(Class::Spec, "neighbour-rows-in-stride", ROWS),
    pending(Class::Spec, "two-layouts-of-live-state", "tokens are drafted"),
    pending(Class::Adapt, "hot-load-evicts-live-adapter", "models have adapters"),
    pending(Class::Adapt, "cache-keyed-by-adapter-name", "models have adapters"),
    pending(Class::Adapt, "weights-changed-cache-kept", "weights change while the engine runs"),
    recreated(Class::Deliv, "abort-hits-successor", DELIVERY),
    recreated(Class::Deliv, "shared-parser-or-event-hub", ROWS),
    recreated(Class::Deliv, "cross-talk-without-evidence", DELIVERY),
    recreated(Class::Conn, "cancelled-command-desync", WORKER),
    pending(Class::Conn, "request-boundary-disagreement", "the gateway forwards HTTP requests to another server"),
    pending(Class::Rcache, "path-only-cache-key", "the gateway stores responses"),
    pending(Class::Rcache, "response-cache-without-tenant", "the gateway stores responses"),
    pending(Class::Auth, "truncated-credential-key", "credentials are cached"),
    pending(Class::Auth, "tenant-header-appended", "the gateway forwards HTTP requests to another server"),
    pending(Class::Auth, "stored-object-by-bare-id", "the gateway stores objects"),
    recreated(Class::Side, "prefix-hit-timing", PREFIXES),
    pending(Class::Side, "batch-coupled-routing", "a model routes tokens to experts"),
    pending(Class::Tele, "cached-identity-carries-request-state", "credentials are cached"),
    recreated(Class::Tele, "retry-record-dumps-payload", WORKER),
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::path::Path;

    #[test]
    fn each_published_failure_stands_here_once() {
        let mut slugs: Vec<&str> = FAILURES.iter().map(|failure| failure.slug).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), 40);
        let mut classes = BTreeMap::new();
        for failure in FAILURES {
            *classes.entry(failure.class.name()).or_insert(0) += 1;
        }
        let two = ["SPEC", "CONN", "RCACHE", "SIDE", "TELE"];
        assert!(classes.iter().all(|(class, count)| *count == if two.contains(class) { 2 } else { 3 }), "{classes:?}");
        assert_eq!(classes.len(), 15);
    }

    #[test]
    fn what_is_said_to_be_re_created_is_a_test() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for Failure { slug, standing, .. } in FAILURES {
            let name = slug.replace('-', "_");
            match standing {
                Standing::Recreated { file } => {
                    let source = std::fs::read_to_string(root.join(file)).unwrap();
                    let is_test = source.contains(&format!("#[test]\nfn {name}"))
                        || source.contains(&format!("#[tokio::test]\nasync fn {name}"));
                    assert!(is_test, "{slug} is no test of {file}");
                }
                Standing::Pending { until } => assert!(!until.is_empty()),
            }
        }
    }

    #[test]
    fn what_is_pending_is_not_re_created_somewhere() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut folders = ["audit", "engine", "gateway", "policies", "tests"].map(|name| root.join(name)).to_vec();
        let mut sources = String::new();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    sources += &std::fs::read_to_string(path).unwrap();
                }
            }
        }
        for Failure { slug, standing, .. } in FAILURES {
            if let Standing::Pending { .. } = standing {
                let test = format!("fn {}()", slug.replace('-', "_"));
                assert!(!sources.contains(&test), "{slug} has a test: it is not pending any more");
            }
        }
    }
}
