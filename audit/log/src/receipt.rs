//! Receipts: a request's two entries, proven under the published checkpoint, with what opens their commitments. All of
//! it is read back from the published files and checked on the way, as a stranger would. There are two forms of one receipt.

use crate::index::{LookupError, RequestRecord, TraceAt};
use crate::log::{Shared, lock};
use crate::publish::Published;
use crate::storage::Storage;
use audit_provenance::{Body, Commitment, Disclosure, DisclosureVersion, Entry, Field, Opened, Openings, Sealing};
use audit_tlog::{CoseError, CoseReceipt, TileFiles, TilePath, TiledTree, TlogProof, TreeReadError};
use policies_domain::{Principal, RequestId};
use std::io;
use std::sync::{Arc, PoisonError};

/// When a receipt that is not published yet is worth another try.
pub(crate) const RETRY_AFTER_MS: u64 = 250;
/// A reader that lost its partial tiles to a newer publication takes the newer one, this often at most.
pub(crate) const TRIES_MAX: usize = 4;

/// Why there is no receipt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptError {
    /// No such request of this tenant. Another tenant's request looks the same.
    #[error("no such request")]
    NotFound,
    /// The response is not sealed, or its checkpoint not published.
    #[error("not published yet, retry in {retry_after_ms} ms")]
    NotYet {
        /// When it is worth another try.
        retry_after_ms: u64,
    },
    /// The log's key is with another program, which signs checkpoints alone: there is the receipt as text.
    #[error("this log's key signs checkpoints alone: ask for the receipt as text/plain")]
    OnlyText,
    /// What is stored does not verify, or could not be read.
    #[error("the stored log does not verify: {reason}")]
    Damaged {
        /// What did not.
        reason: Arc<str>,
    },
}

/// The published tiles.
pub(crate) struct Tiles<'a>(pub(crate) &'a dyn Storage);

impl TileFiles for Tiles<'_> {
    fn read_tile(&self, path: &TilePath, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.0.read(&path.to_string(), bytes_max)
    }
}

/// The receipt as C2SP tlog-proof writes it.
pub(crate) fn text(shared: &Shared, principal: &Principal, request: RequestId) -> Result<String, ReceiptError> {
    make(shared, principal, request, |of| {
        let disclosure = Disclosure { opened_proof: of.path(of.record.opened)?, ..of.disclosure()? };
        let proof = TlogProof {
            extra: Some(disclosure.encode()),
            index: of.sealed,
            hashes: of.tree.prove_inclusion(of.sealed)?,
            checkpoint: of.published.note.clone(),
        };
        Ok(proof.encode())
    })
}

/// The receipt as RFC 9942 has it. It proves the sealed entry alone, which names the opened one by its hash: a reader who wants
/// both proofs, or cosignatures, takes the text.
pub(crate) fn cose(shared: &Shared, principal: &Principal, request: RequestId) -> Result<Vec<u8>, ReceiptError> {
    if !shared.keys.signer().is_here() {
        return Err(ReceiptError::OnlyText);
    }
    make(shared, principal, request, |of| {
        // What witnesses have cosigned may be older than the log's key: then it is the published tree.
        let signer = shared.keys.signer_of(of.published.size).ok_or(Failure::Key)?;
        let receipt = CoseReceipt {
            origin: signer.name().to_owned(),
            subject: request.to_string(),
            size: of.published.size,
            index: of.sealed,
            hashes: of.tree.prove_inclusion(of.sealed)?,
            extra: Some(of.disclosure()?.encode()),
        };
        Ok(receipt.sign(of.published.root, signer)?)
    })
}

/// What a receipt is made of.
struct Sources<'a> {
    shared: &'a Shared,
    principal: &'a Principal,
    request: RequestId,
    record: &'a RequestRecord,
    /// Index of the sealed entry.
    sealed: u64,
    published: &'a Published,
    tree: TiledTree<'a, Tiles<'a>>,
}

fn make<R>(
    shared: &Shared,
    principal: &Principal,
    request: RequestId,
    write: impl Fn(&Sources<'_>) -> Result<R, Failure>,
) -> Result<R, ReceiptError> {
    let tenant = shared.keys.tenant_ref(principal.name());
    let record = shared.index.request(request).map_err(|LookupError::Damaged { reason }| {
        tracing::error!(%reason, "a request cannot be looked up");
        ReceiptError::Damaged { reason }
    })?;
    let record = record.filter(|record| record.tenant == tenant);
    let record = record.ok_or(ReceiptError::NotFound)?;
    let not_yet = ReceiptError::NotYet { retry_after_ms: RETRY_AFTER_MS };
    let sealed = record.sealed.ok_or(not_yet.clone())?;
    let files = Tiles(&*shared.storage);
    let written = |published: &Published| {
        let tree = TiledTree::new(published.size, published.root, &files);
        write(&Sources { shared, principal, request, record: &record, sealed, published, tree })
    };
    // Under what witnesses have cosigned, if the entry is old enough. Its partial tiles may be gone when it is not the newest
    // any more; then the newest has to do.
    let witnessed = shared.witnessed.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(witnessed) = witnessed.filter(|witnessed| sealed < witnessed.size)
        && let Ok(receipt) = written(&witnessed)
    {
        return Ok(receipt);
    }
    let mut tries = 0;
    loop {
        let published = Arc::clone(&shared.published.read().unwrap_or_else(PoisonError::into_inner));
        if sealed >= published.size {
            return Err(not_yet);
        }
        tries += 1;
        match written(&published) {
            Err(Failure::Tree(TreeReadError::Storage { source, .. }))
                if source.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => {}
            Err(failure) => {
                tracing::error!(%failure, "a receipt cannot be made");
                return Err(ReceiptError::Damaged { reason: Arc::from(failure.to_string()) });
            }
            Ok(receipt) => return Ok(receipt),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Tree(#[from] TreeReadError),
    #[error("entry {index} is not the one that the index says")]
    Index { index: u64 },
    #[error("the log's key does not count for so old a tree")]
    Key,
    #[error(transparent)]
    Cose(#[from] CoseError),
    #[error(transparent)]
    Keys(#[from] crate::OpenLogError),
}

impl Sources<'_> {
    /// An entry's inclusion proof.
    fn path(&self, index: u64) -> Result<Vec<[u8; 32]>, Failure> {
        Ok(self.tree.prove_inclusion(index)?.iter().map(|hash| hash.0).collect())
    }

    /// The entries and what opens them, without the opened entry's proof.
    fn disclosure(&self) -> Result<Disclosure, Failure> {
        let (keys, record) = (&self.shared.keys, self.record);
        let (opened, sealed) = (self.tree.entry(record.opened)?, self.tree.entry(self.sealed)?);
        // The index only says where to look; the entries themselves say whose they are.
        let commitments = match Entry::decode(&opened) {
            Ok(Entry { head, body: Body::Opened(body) })
                if head.uuid == self.request.bytes()
                    && head.tenant.is_some_and(|link| link.tenant == record.tenant) =>
            {
                body
            }
            _ => return Err(Failure::Index { index: record.opened }),
        };
        let sealing = match Entry::decode(&sealed) {
            Ok(Entry { body: Body::Sealed(sealing), .. }) if sealing.request == self.request => sealing,
            _ => return Err(Failure::Index { index: self.sealed }),
        };
        let openings = keys.openings(self.principal.name(), commitments.epoch, &self.request.bytes())?;
        let openings = openings.filter(|openings| opens(openings, &commitments, record.opened));
        // A salt that opens nothing of the entry is not shown.
        let openings = openings
            .map(|openings| Openings { replay: openings.replay.filter(|_| sealing.replay.is_some()), ..openings });
        Ok(Disclosure {
            version: DisclosureVersion::CURRENT,
            opened,
            sealed,
            opened_index: record.opened,
            opened_proof: Vec::new(),
            openings,
            trace: stored_trace(self.shared, record, self.sealed, &sealing),
        })
    }
}

/// Whether the salts are those of the entry. A key made after the entry's was destroyed opens nothing of it.
pub(crate) fn opens(openings: &Openings, opened: &Opened, index: u64) -> bool {
    let right = Commitment::of(Field::Tenant, &openings.tenant, openings.tenant_name.as_bytes()) == opened.tenant_name;
    if !right {
        tracing::warn!(index, "the tenant's key is not the one of this entry: its receipt opens nothing");
    }
    right
}

/// The trace, if it is still there and is the one that the sealed entry speaks of.
fn stored_trace(shared: &Shared, record: &RequestRecord, sealed_index: u64, sealing: &Sealing) -> Option<Vec<u8>> {
    let wanted = sealing.trace?;
    if record.trace == TraceAt::Nowhere || sealed_index < lock(&shared.keeping).pruned_before() {
        return None;
    }
    let trace = shared.index.trace(sealed_index, wanted, record.trace);
    if trace.is_none() {
        tracing::error!(index = sealed_index, "the stored trace is not the one that the log speaks of");
    }
    trace
}
