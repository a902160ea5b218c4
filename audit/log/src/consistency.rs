//! What shows a holder of an older checkpoint that this log has only grown since.

use crate::log::Shared;
use crate::publish::Published;
use crate::receipt::{TRIES_MAX, Tiles};
use audit_tlog::{AddCheckpoint, TiledTree, TreeReadError};
use std::io;
use std::sync::{Arc, PoisonError};

/// Why there is no proof.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConsistencyError {
    /// Nobody can hold a checkpoint of that size, unless this log was rolled back or is another one.
    #[error("the log has published {published} entries, {from} were asked about")]
    Ahead {
        /// What was asked about.
        from: u64,
        /// What there is.
        published: u64,
    },
    /// What is stored does not verify, or could not be read.
    #[error("the stored log does not verify: {reason}")]
    Damaged {
        /// What did not.
        reason: Arc<str>,
    },
}

/// The newest checkpoint and the proof that it continues the tree of `from` entries, as witnesses are given it.
pub(crate) fn consistency(shared: &Shared, from: u64) -> Result<String, ConsistencyError> {
    let mut tries = 0;
    loop {
        let published = Arc::clone(&shared.published.read().unwrap_or_else(PoisonError::into_inner));
        if from > published.size {
            return Err(ConsistencyError::Ahead { from, published: published.size });
        }
        tries += 1;
        match prove(shared, &published, from) {
            // A newer publication has replaced its partial tiles.
            Err(TreeReadError::Storage { source, .. })
                if source.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => {}
            Err(error) => {
                tracing::error!(%error, "a consistency proof cannot be made");
                return Err(ConsistencyError::Damaged { reason: Arc::from(error.to_string()) });
            }
            Ok(proof) => {
                let checkpoint = published.note.clone();
                return Ok(AddCheckpoint { old_size: from, proof, checkpoint }.encode());
            }
        }
    }
}

fn prove(shared: &Shared, published: &Published, from: u64) -> Result<Vec<audit_tlog::Hash>, TreeReadError> {
    // Every tree begins with the empty one, and with itself.
    if from == 0 || from == published.size {
        return Ok(Vec::new());
    }
    TiledTree::new(published.size, published.root, &Tiles(&*shared.storage)).prove_consistency(from)
}
