//! What stands between the sequencer and the publisher: committed batches, and what witnesses say of them.

use crate::clock::Clock;
use crate::cosign::Cosigned;
use crate::log::lock;
use crate::sequence::{BATCH_MAX, Commit};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Entries that may be committed and not published before the sequencer waits for the publisher.
const BACKLOG_MAX: usize = 4 * BATCH_MAX;
/// A checkpoint is published at most this long after a commit without sealed entries.
const PUBLISH_PERIOD_US: u64 = 1_000_000;
/// Between two publications the disk belongs to the commits for this long.
const PUBLISH_GAP_US: u64 = 100_000;

/// What the publisher does next.
pub(crate) enum Due {
    Commits(Vec<Commit>),
    Cosigned(Cosigned),
}

/// Committed batches, and what witnesses say, on their way to the publisher.
#[derive(Default)]
pub(crate) struct Mailbox {
    state: Mutex<Post>,
    changed: Condvar,
}

#[derive(Default)]
struct Post {
    commits: Vec<Commit>,
    entries: usize,
    /// The newest cosignatures; they hold the earlier ones of their checkpoint.
    cosigned: Option<Cosigned>,
    /// A sealed entry is among them: somebody will ask for a receipt.
    urgent: bool,
    closed: bool,
}

impl Mailbox {
    /// Waits while too much is not published: a publisher that cannot follow slows the commits down.
    pub(crate) fn put(&self, commit: Commit) {
        let full = |post: &mut Post| post.entries >= BACKLOG_MAX && !post.closed;
        let mut post = self.changed.wait_while(lock(&self.state), full).unwrap_or_else(PoisonError::into_inner);
        post.entries += commit.entries.len();
        post.urgent |= commit.entries.iter().any(|placed| placed.trace.is_some());
        post.commits.push(commit);
        self.changed.notify_all();
    }

    /// Never waits: what a witness says is not in the way of anybody.
    pub(crate) fn put_cosigned(&self, cosigned: Cosigned) {
        let mut post = lock(&self.state);
        // A quorum that the publisher has not seen yet is worth more than the beginning of the next round.
        if cosigned.quorum || post.cosigned.as_ref().is_none_or(|waiting| !waiting.quorum) {
            post.cosigned = Some(cosigned);
            self.changed.notify_all();
        }
    }

    /// Cosignatures, or all batches that are due; `None` when the mailbox is closed and empty.
    pub(crate) fn take(&self, clock: &dyn Clock, last_us: u64) -> Option<Due> {
        let nothing = |post: &mut Post| post.commits.is_empty() && post.cosigned.is_none() && !post.closed;
        let mut post = self.changed.wait_while(lock(&self.state), nothing).unwrap_or_else(PoisonError::into_inner);
        let first_us = clock.mono_us();
        while !post.closed && post.cosigned.is_none() && post.entries < BACKLOG_MAX / 2 {
            let due_us = if post.urgent { last_us + PUBLISH_GAP_US } else { first_us + PUBLISH_PERIOD_US };
            let wait_us = due_us.saturating_sub(clock.mono_us());
            if wait_us == 0 {
                break;
            }
            let wait = Duration::from_micros(wait_us);
            post = self.changed.wait_timeout(post, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(cosigned) = post.cosigned.take() {
            return Some(Due::Cosigned(cosigned));
        }
        post.entries = 0;
        post.urgent = false;
        let commits = std::mem::take(&mut post.commits);
        self.changed.notify_all();
        if commits.is_empty() { None } else { Some(Due::Commits(commits)) }
    }

    pub(crate) fn close(&self) {
        lock(&self.state).closed = true;
        self.changed.notify_all();
    }
}
