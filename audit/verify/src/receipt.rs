//! One receipt, from the signature down to the last byte of the response. Each check has a name; the first that fails
//! is the refusal.

use crate::response::{PayloadError, payloads};
use crate::rotation::LogKeys;
use crate::witnesses::{WitnessRefusal, Witnessed, Witnesses};
use audit_provenance::{
    Body, ChunkChain, Commitment, DecodeError, Disclosure, Entry, Field, Opened, Openings, PageClass, PageCounts, Salt,
    SealReason, Sealing, TenantLink, Trace,
};
use audit_tlog::{
    Checkpoint, CheckpointError, CoseError, CoseReceipt, Hash, KeyChain, ProofError, TlogProof, TreeError, VerifierKey,
    check_inclusion, leaf_hash,
};
use policies_domain::Digest;
use std::collections::HashSet;

/// What the holder of a receipt has beside it.
#[derive(Clone, Copy, Default)]
pub struct Evidence<'a> {
    /// The request body as it was sent.
    pub request: Option<&'a [u8]>,
    /// The response as it was received: server-sent events or a JSON body.
    pub response: Option<&'a [u8]>,
    /// Who must have cosigned the checkpoint.
    pub witnesses: Option<&'a Witnesses>,
}

impl std::fmt::Debug for Evidence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (request, response) = (self.request.map(<[u8]>::len), self.response.map(<[u8]>::len));
        f.debug_struct("Evidence").field("request", &request).field("response", &response).finish_non_exhaustive()
    }
}

/// What a genuine receipt says.
#[derive(Debug, Clone)]
pub struct ReceiptReport {
    /// The checkpoint that the entries were proven under.
    pub checkpoint: Checkpoint,
    /// Which of the given keys have signed it.
    pub signed_by: Vec<VerifierKey>,
    /// Those of the asked witnesses that have cosigned it.
    pub witnessed: Vec<Witnessed>,
    /// Index of the sealed entry.
    pub index: u64,
    /// Bytes of the sealed entry.
    pub entry: Vec<u8>,
    /// The tenant's reference and the sealed entry's number among its entries.
    pub tenant: TenantLink,
    /// The tenant's name, when the receipt opens its commitment.
    pub tenant_name: Option<String>,
    /// When the request was recorded, in microseconds since 1970.
    pub opened_us: u64,
    /// When the response was sealed.
    pub sealed_us: u64,
    /// The opened entry.
    pub opened: Opened,
    /// The sealed entry.
    pub sealed: Sealing,
    /// The trace, when the receipt holds it.
    pub trace: Option<Trace>,
    /// The salt of the replay digest, when the receipt holds it.
    pub replay_salt: Option<Salt>,
    /// Names of the checks that passed, in order.
    pub passed: Vec<&'static str>,
    /// What could not be checked. A change there is not noticed.
    pub unchecked: Vec<Unchecked>,
}

/// A part of a receipt that says nothing without something that was not at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unchecked {
    /// The tenant's name: the receipt holds no salts.
    Tenant,
    /// Which pages were read: the receipt holds no trace. The entry's counts are all there is.
    Trace,
    /// The commitment of the request, and the salt that opens it: no request body was given.
    Request,
    /// The commitment of the response, and the salt that opens it: no response was given.
    Response,
    /// The chunk chain, and its salt: it takes the response and the trace.
    Chunks,
    /// The commitment of the replay digest, and its salt: it takes the model.
    Replay,
    /// The opened entry's own place in the log: a COSE receipt proves the sealed entry's, which names it by its leaf hash.
    Opened,
}

/// What a replay digest says of a receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayAnswer {
    /// It is the one that was sealed.
    Same,
    /// It is not.
    Different,
    /// The response was sealed without one.
    NotSealed,
    /// The receipt does not hold the salt.
    NoSalt,
}

impl ReceiptReport {
    /// Compares a replay digest with the one that was sealed.
    #[must_use]
    pub fn replayed(&self, digest: &Digest) -> ReplayAnswer {
        match (self.sealed.replay, &self.replay_salt) {
            (None, _) => ReplayAnswer::NotSealed,
            (Some(_), None) => ReplayAnswer::NoSalt,
            (Some(held), Some(salt)) if Commitment::of(Field::Replay, salt, &digest.0) == held => ReplayAnswer::Same,
            _ => ReplayAnswer::Different,
        }
    }
}

impl Unchecked {
    /// The part's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Trace => "trace",
            Self::Request => "request",
            Self::Response => "response",
            Self::Chunks => "chunks",
            Self::Replay => "replay",
            Self::Opened => "opened",
        }
    }
}

/// Why a receipt is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiptRefusal {
    /// Not a proof file.
    #[error("{0}")]
    Format(#[from] ProofError),
    /// Not a COSE receipt, or not signed by the key for this entry.
    #[error("{0}")]
    Cose(#[from] CoseError),
    /// Not signed by the key.
    #[error("{0}")]
    Signature(#[from] CheckpointError),
    /// Witnesses were asked for, and a receipt of this form has no place for their cosignatures.
    #[error("a COSE receipt holds no cosignatures: ask for the receipt as text to check witnesses")]
    NoCosignatures,
    /// Not cosigned by enough of the witnesses.
    #[error("{0}")]
    Witnesses(#[from] WitnessRefusal),
    /// The receipt discloses nothing.
    #[error("the receipt has no extra line, so there is no entry to check")]
    NoDisclosure,
    /// What it discloses is malformed.
    #[error("{0}")]
    Disclosure(DecodeError),
    /// An entry is not in the log.
    #[error("the {entry} entry: {source}")]
    Inclusion {
        /// Which.
        entry: &'static str,
        /// What is wrong.
        source: TreeError,
    },
    /// An entry is malformed.
    #[error("the {entry} entry: {source}")]
    Entry {
        /// Which.
        entry: &'static str,
        /// What is wrong.
        source: DecodeError,
    },
    /// An entry is of another kind.
    #[error("the {entry} entry is of another kind")]
    Kind {
        /// Which.
        entry: &'static str,
    },
    /// The entries do not belong together.
    #[error("the sealed entry does not belong to the opened one: {field} differs")]
    Pairing {
        /// What differs.
        field: &'static str,
    },
    /// The tenant's name does not open its commitment.
    #[error("the tenant's name does not open its commitment")]
    TenantName,
    /// The trace is not the one that was sealed, or contradicts the entry.
    #[error("the trace {contradiction}")]
    Trace {
        /// How.
        contradiction: &'static str,
    },
    /// The trace is malformed.
    #[error("the trace: {0}")]
    TraceForm(DecodeError),
    /// A page of another tenant was read, and the response was not stopped.
    #[error("{foreign} foreign pages were read and the response was not stopped")]
    Pages {
        /// How many.
        foreign: u64,
    },
    /// The request is not the one of the receipt.
    #[error("the request body is not the one that was recorded")]
    Request,
    /// The response is not the one of the receipt.
    #[error("the response is not the one that was sealed: {part} differs")]
    Response {
        /// What differs.
        part: &'static str,
    },
    /// The response could not be read.
    #[error("{0}")]
    ResponseForm(#[from] PayloadError),
    /// The receipt has no salts, so content cannot be compared.
    #[error("the receipt holds no salts, so the {content} cannot be compared")]
    NoOpenings {
        /// What cannot.
        content: &'static str,
    },
    /// A crash took the knowledge of what was sent.
    #[error("the response ended in a crash of the log, so what was sent is not recorded")]
    Crashed,
}

impl ReceiptRefusal {
    /// The name of the check that failed.
    #[must_use]
    pub fn check(&self) -> &'static str {
        match self {
            Self::Format(_) => "format",
            Self::Cose(CoseError::TooLong { .. } | CoseError::Form) => "format",
            Self::Cose(CoseError::Proof(_)) => "inclusion",
            Self::Cose(_) | Self::Signature(_) => "signature",
            Self::Witnesses(_) | Self::NoCosignatures => "witnesses",
            Self::NoDisclosure | Self::Disclosure(_) => "disclosure",
            Self::Inclusion { .. } => "inclusion",
            Self::Entry { .. } | Self::Kind { .. } => "entry",
            Self::Pairing { .. } => "pairing",
            Self::TenantName => "tenant",
            Self::Trace { .. } | Self::TraceForm(_) => "trace",
            Self::Pages { .. } => "pages",
            Self::Request | Self::NoOpenings { content: "request" } => "request",
            Self::Response { .. } | Self::ResponseForm(_) | Self::NoOpenings { .. } | Self::Crashed => "response",
        }
    }
}

/// What a receipt's signature and proofs show, before it is looked at what the entries say.
struct Proven {
    checkpoint: Checkpoint,
    /// Which keys have signed it, of those that are believed.
    signed_by: Vec<VerifierKey>,
    witnessed: Vec<Witnessed>,
    index: u64,
    disclosure: Disclosure,
    /// What a COSE receipt says that it is about.
    subject: Option<String>,
    passed: Vec<&'static str>,
}

/// The sealed entry is in the log, and so is the opened one.
fn prove_text(receipt: &[u8], keys: &KeyChain, witnesses: Option<&Witnesses>) -> Result<Proven, ReceiptRefusal> {
    let proof = TlogProof::parse(receipt)?;
    let mut passed = vec!["format"];
    let checkpoint = keys.open(proof.checkpoint.as_bytes())?;
    passed.push("signature");
    let witnessed = match witnesses {
        Some(witnesses) => {
            let witnessed = witnesses.check(&checkpoint, proof.checkpoint.as_bytes())?;
            passed.push("witnesses");
            witnessed
        }
        None => Vec::new(),
    };
    let disclosure = disclosed(proof.extra.as_deref())?;
    let included = |entry, bytes: &[u8], index, hashes: &[Hash]| {
        check_inclusion(hashes, checkpoint.size, checkpoint.root, index, leaf_hash(bytes))
            .map_err(|source| ReceiptRefusal::Inclusion { entry, source })
    };
    included("sealed", &disclosure.sealed, proof.index, &proof.hashes)?;
    let opened_proof: Vec<Hash> = disclosure.opened_proof.iter().map(|hash| Hash(*hash)).collect();
    included("opened", &disclosure.opened, disclosure.opened_index, &opened_proof)?;
    passed.push("inclusion");
    let signed_by = keys.signers(proof.checkpoint.as_bytes());
    Ok(Proven { checkpoint, signed_by, witnessed, index: proof.index, disclosure, subject: None, passed })
}

/// The sealed entry is in the log. The signature is over the root hash that its proof leads to, so both are shown at once.
fn prove_cose(receipt: &[u8], keys: &KeyChain, witnesses: Option<&Witnesses>) -> Result<Proven, ReceiptRefusal> {
    let mut found = None;
    let (receipt, checkpoint, key) = CoseReceipt::open_in(receipt, keys, |receipt| {
        let disclosure = disclosed(receipt.extra.as_deref())?;
        if !disclosure.opened_proof.is_empty() {
            return Err(ReceiptRefusal::Cose(CoseError::Form));
        }
        let leaf = leaf_hash(&disclosure.sealed);
        found = Some(disclosure);
        Ok(leaf)
    })?;
    if witnesses.is_some() {
        return Err(ReceiptRefusal::NoCosignatures);
    }
    let disclosure = found.ok_or(ReceiptRefusal::NoDisclosure)?;
    let (index, subject) = (receipt.index, Some(receipt.subject));
    let passed = vec!["format", "signature", "inclusion"];
    let signed_by = vec![key];
    Ok(Proven { checkpoint, signed_by, witnessed: Vec::new(), index, disclosure, subject, passed })
}

fn disclosed(extra: Option<&[u8]>) -> Result<Disclosure, ReceiptRefusal> {
    Disclosure::decode(extra.ok_or(ReceiptRefusal::NoDisclosure)?).map_err(ReceiptRefusal::Disclosure)
}

/// Checks a receipt under a log's key, or under any of those that are believed: text as C2SP tlog-proof has it, or COSE as RFC 9942
/// does.
///
/// # Errors
/// The first check that fails.
pub fn check_receipt(
    receipt: &[u8],
    keys: &(impl LogKeys + ?Sized),
    evidence: Evidence<'_>,
) -> Result<ReceiptReport, ReceiptRefusal> {
    let prove = if CoseReceipt::is_meant(receipt) { prove_cose } else { prove_text };
    let Proven { checkpoint, signed_by, witnessed, index, disclosure, subject, mut passed } =
        prove(receipt, &keys.chain(), evidence.witnesses)?;

    let decode = |entry, bytes: &[u8]| Entry::decode(bytes).map_err(|source| ReceiptRefusal::Entry { entry, source });
    let (sealed_entry, opened_entry) = (decode("sealed", &disclosure.sealed)?, decode("opened", &disclosure.opened)?);
    let Body::Sealed(sealed) = &sealed_entry.body else { return Err(ReceiptRefusal::Kind { entry: "sealed" }) };
    let Body::Opened(opened) = &opened_entry.body else { return Err(ReceiptRefusal::Kind { entry: "opened" }) };
    let tenant = check_pair(index, &sealed_entry, sealed, &opened_entry, &disclosure)?;
    if subject.as_ref().is_some_and(|subject| *subject != sealed.request.to_string()) {
        return Err(ReceiptRefusal::Pairing { field: "the subject" });
    }
    passed.push("pairing");

    if let Some(openings) = &disclosure.openings {
        let name = openings.tenant_name.as_bytes();
        if Commitment::of(Field::Tenant, &openings.tenant, name) != opened.tenant_name {
            return Err(ReceiptRefusal::TenantName);
        }
        if openings.replay.is_some() && sealed.replay.is_none() {
            return Err(ReceiptRefusal::Pairing { field: "the replay digest" });
        }
        passed.push("tenant");
    }
    let trace = disclosure.trace.as_deref().map(|trace| check_trace(trace, sealed)).transpose()?;
    if trace.is_some() {
        passed.push("trace");
    }
    if sealed.pages.foreign > 0 && sealed.reason != SealReason::Isolation {
        return Err(ReceiptRefusal::Pages { foreign: sealed.pages.foreign });
    }
    // Without a trace the entry's own counts are all that there is to look at.
    passed.push(if trace.is_some() { "pages" } else { "page counts" });

    if let Some(body) = evidence.request {
        let openings = disclosure.openings.as_ref().ok_or(ReceiptRefusal::NoOpenings { content: "request" })?;
        if Commitment::of(Field::Request, &openings.request, body) != opened.request {
            return Err(ReceiptRefusal::Request);
        }
        passed.push("request");
    }
    if let Some(response) = evidence.response {
        let openings = disclosure.openings.as_ref().ok_or(ReceiptRefusal::NoOpenings { content: "response" })?;
        check_response(response, openings, opened, sealed, trace.as_ref())?;
        passed.push("response");
    }

    let missing = [
        (Unchecked::Tenant, disclosure.openings.is_none()),
        (Unchecked::Trace, trace.is_none()),
        (Unchecked::Request, evidence.request.is_none()),
        (Unchecked::Response, evidence.response.is_none()),
        (Unchecked::Chunks, evidence.response.is_none() || trace.is_none()),
        (Unchecked::Replay, sealed.replay.is_some()),
        (Unchecked::Opened, subject.is_some()),
    ];
    let unchecked = missing.into_iter().filter(|(_, missing)| *missing).map(|(part, _)| part).collect();

    Ok(ReceiptReport {
        checkpoint,
        signed_by,
        witnessed,
        index,
        tenant,
        replay_salt: disclosure.openings.as_ref().and_then(|openings| openings.replay),
        tenant_name: disclosure.openings.map(|openings| openings.tenant_name),
        opened_us: opened_entry.head.wall_us,
        sealed_us: sealed_entry.head.wall_us,
        opened: opened.clone(),
        sealed: sealed.clone(),
        entry: disclosure.sealed,
        trace,
        passed,
        unchecked,
    })
}

fn check_pair(
    index: u64,
    sealed_entry: &Entry,
    sealed: &Sealing,
    opened_entry: &Entry,
    disclosure: &Disclosure,
) -> Result<TenantLink, ReceiptRefusal> {
    let differs = |field| ReceiptRefusal::Pairing { field };
    if sealed.request.bytes() != opened_entry.head.uuid {
        return Err(differs("the request"));
    }
    if sealed.opened_index != disclosure.opened_index || disclosure.opened_index >= index {
        return Err(differs("the index"));
    }
    let opened_leaf = Digest(leaf_hash(&disclosure.opened).0);
    if sealed.opened_leaf != opened_leaf {
        return Err(differs("the leaf hash"));
    }
    let (Some(tenant), Some(before)) = (sealed_entry.head.tenant, opened_entry.head.tenant) else {
        return Err(differs("the tenant"));
    };
    if tenant.tenant != before.tenant {
        return Err(differs("the tenant"));
    }
    // Numbers count up; directly after the opened entry its leaf hash is the link.
    let follows = tenant.number > before.number;
    let linked = tenant.number != before.number.saturating_add(1) || tenant.previous == opened_leaf;
    if follows && linked { Ok(tenant) } else { Err(differs("the tenant's number")) }
}

/// Checks a trace against the entry that has its digest.
///
/// # Errors
/// [`ReceiptRefusal::Trace`], [`ReceiptRefusal::TraceForm`].
pub fn check_trace(bytes: &[u8], sealed: &Sealing) -> Result<Trace, ReceiptRefusal> {
    let contradicts = |contradiction| ReceiptRefusal::Trace { contradiction };
    if sealed.trace != Some(Trace::root(bytes)) {
        return Err(contradicts("is not the one that was sealed"));
    }
    let trace = Trace::decode(bytes).map_err(ReceiptRefusal::TraceForm)?;
    let mut seen = HashSet::new();
    let mut pages = PageCounts::default();
    for run in &trace.pages {
        // The step that a violation stopped was read and is not counted.
        let steps = sealed.steps.saturating_add(u64::from(sealed.reason == SealReason::Isolation));
        if u64::from(run.last_step) >= steps {
            return Err(contradicts("has pages of steps that the entry does not count"));
        }
        if !seen.insert((run.page, run.generation, run.class)) {
            continue;
        }
        match run.class {
            PageClass::Own => pages.own += 1,
            PageClass::Public => pages.public += 1,
            PageClass::Nobody | PageClass::Other => pages.foreign += 1,
        }
    }
    if pages != sealed.pages {
        return Err(contradicts("has other page counts than the entry"));
    }
    let chunks: u64 = trace.chunks.iter().map(|run| u64::from(run.chunks)).sum();
    if chunks == sealed.chunks { Ok(trace) } else { Err(contradicts("has another number of chunks than the entry")) }
}

fn check_response(
    response: &[u8],
    openings: &Openings,
    opened: &Opened,
    sealed: &Sealing,
    trace: Option<&Trace>,
) -> Result<(), ReceiptRefusal> {
    let (Some(wanted), Some(head)) = (sealed.response, sealed.chain) else { return Err(ReceiptRefusal::Crashed) };
    let mut payloads = payloads(response)?;
    // A response that was broken off ends with the server's error, which is not the model's and is in no chain.
    let broken_off = !matches!(sealed.reason, SealReason::Stop | SealReason::Length);
    if broken_off
        && Some(payloads.len() as u64) == sealed.chunks.checked_add(1)
        && payloads.last().is_some_and(|last| is_error(last))
    {
        payloads.pop();
    }
    if payloads.len() as u64 != sealed.chunks {
        return Err(ReceiptRefusal::Response { part: "the number of payloads" });
    }
    let mut commitment = Commitment::new(Field::Response, &openings.response);
    payloads.iter().for_each(|payload| commitment.update(payload));
    if commitment.finish() != wanted {
        return Err(ReceiptRefusal::Response { part: "the text" });
    }
    let Some(trace) = trace else { return Ok(()) };
    let mut chain = ChunkChain::new(&openings.chunks, &opened.request);
    // INVARIANT: the decoder refused runs whose steps do not fit 32 bits.
    let steps = trace.chunks.iter().flat_map(|run| {
        (0..run.chunks).map(|chunk| {
            let first = run.first_step + chunk * run.stride;
            (first, first + run.span)
        })
    });
    for (payload, (first, last)) in payloads.iter().zip(steps) {
        chain.push(payload, first, last);
    }
    if chain.head() == head { Ok(()) } else { Err(ReceiptRefusal::Response { part: "the chunk chain" }) }
}

/// A JSON object with the one member `error`.
fn is_error(payload: &[u8]) -> bool {
    let object: Option<serde_json::Map<String, serde_json::Value>> = serde_json::from_slice(payload).ok();
    object.is_some_and(|object| object.len() == 1 && object.contains_key("error"))
}
