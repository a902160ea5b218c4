//! A tenant's own entries as the gateway shows them, page by page: is each one in the signed log, and is none missing? A page's
//! proofs are under one checkpoint, and each page's checkpoint continues the one before.

use crate::receipt::{Evidence, ReceiptRefusal, ReceiptReport, check_receipt};
use crate::rotation::LogKeys;
use crate::witnesses::{WitnessRefusal, Witnessed, Witnesses};
use audit_provenance::{Body, Commitment, DecodeError, Entry, Field, TenantRef};
use audit_tlog::{
    Checkpoint, CheckpointError, Hash, KeyChain, TlogProof, TreeError, VerifierKey, check_consistency, check_inclusion,
    leaf_hash,
};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use policies_domain::Digest;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Longest page that is read. The gateway puts 128 entries into one.
pub const MINE_BYTES_MAX: usize = 4 << 20;
/// Entries of a page that are read.
const ENTRIES_MAX: usize = 1_024;

const OBJECT: &str = "isolation.own_entries";

/// What pages show.
#[derive(Debug, Clone)]
pub struct MineReport {
    /// The newest checkpoint, which continues all others.
    pub checkpoint: Checkpoint,
    /// Those of the asked witnesses that have cosigned it.
    pub witnessed: Vec<Witnessed>,
    /// The tenant as its entries name it.
    pub tenant: TenantRef,
    /// The tenant's name, when an entry's commitment of it was opened.
    pub tenant_name: Option<String>,
    /// Number of the first entry, and the number after the last.
    pub numbers: (u64, u64),
    /// Entries of each kind, by name.
    pub kinds: BTreeMap<&'static str, u64>,
    /// Responses by how they ended.
    pub reasons: BTreeMap<&'static str, u64>,
    /// Entries that are shown by their hash alone.
    pub withheld: u64,
    /// Whether the last one is: no later entry says that it has its number.
    pub last_withheld: bool,
    /// Pages read by these responses: own, public, foreign.
    pub pages: [u64; 3],
    /// First and last time, in microseconds since 1970.
    pub wall_us: Option<(u64, u64)>,
    /// Number of the receipt's entry that the first entry continues.
    pub after: Option<u64>,
    /// Number of the later receipt's entry, which is among these.
    pub receipt: Option<u64>,
    /// Whether the last page says that there is more.
    pub more: bool,
    /// Which of the given keys have signed the checkpoint.
    pub signed_by: Vec<VerifierKey>,
}

/// Why pages are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MineRefusal {
    /// Not a page.
    #[error("page {page} is not a page of own entries: {what}")]
    Form {
        /// Which, from 1 in the order of their numbers.
        page: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The checkpoint is not one of this log.
    #[error("page {page}: {source}")]
    Signature {
        /// Which page.
        page: usize,
        /// What is wrong.
        source: CheckpointError,
    },
    /// Not cosigned by enough of the witnesses.
    #[error("{0}")]
    Witnesses(#[from] WitnessRefusal),
    /// A page's checkpoint does not continue the one before.
    #[error("page {page} does not show that its checkpoint continues the one before: {what}")]
    History {
        /// Which page.
        page: usize,
        /// What is wrong.
        what: HistoryFault,
    },
    /// The log's key has signed two trees of one size.
    #[error("the log's key has signed two trees of {size} entries: it has two histories, and these files prove it")]
    Forked {
        /// The size.
        size: u64,
    },
    /// An entry is not in the log.
    #[error("entry {number}: {source}")]
    Inclusion {
        /// The tenant's number of it.
        number: u64,
        /// What is wrong.
        source: TreeError,
    },
    /// An entry is malformed.
    #[error("entry {number}: {source}")]
    Entry {
        /// The tenant's number of it.
        number: u64,
        /// What is wrong.
        source: DecodeError,
    },
    /// An entry is somebody else's, or nobody's.
    #[error("entry {number} is not the tenant's")]
    Tenant {
        /// The tenant's number of it.
        number: u64,
    },
    /// Numbers have a gap, or begin where nothing was asked for.
    #[error("entry {number} is missing: number {found} stands in its place")]
    Gap {
        /// The one that belongs there.
        number: u64,
        /// The one that stands there.
        found: u64,
    },
    /// An entry does not name the one before it.
    #[error("entry {number} does not continue entry {}: the chain has another one there", number.saturating_sub(1))]
    Chain {
        /// Its number.
        number: u64,
    },
    /// The commitment of the tenant's name is opened by another name.
    #[error("entry {number}: the tenant's name does not open its commitment")]
    TenantName {
        /// The tenant's number of it.
        number: u64,
    },
    /// A receipt is not genuine.
    #[error("the receipt: {0}")]
    Receipt(Box<ReceiptRefusal>),
    /// A receipt is another tenant's.
    #[error("the receipt is another tenant's")]
    ReceiptTenant,
    /// The entries end before one that the same log has.
    #[error(
        "the tail is cut: the receipt's entry has number {number} and stood in the log already, and the pages end before number {end}"
    )]
    Tail {
        /// The receipt's.
        number: u64,
        /// The number after the last one shown.
        end: u64,
    },
    /// The pages say themselves that they are not all.
    #[error("the receipt's entry has number {number}, and these pages end before number {end}: ask for the next ones")]
    More {
        /// The receipt's.
        number: u64,
        /// The number after the last one shown.
        end: u64,
    },
    /// The receipt is younger than the pages.
    #[error("the receipt's entry is younger than the checkpoint of the pages: ask for them again")]
    Younger,
    /// The receipt's entry is not the one with its number, or comes before all of them.
    #[error("the receipt's entry with number {number} is not the one that the pages have: the tenant has two chains")]
    ReceiptEntry {
        /// Its number.
        number: u64,
    },
    /// The receipt's entry lies before the first one shown.
    #[error("the receipt's entry has number {number}, and the pages begin with number {from}")]
    Before {
        /// The receipt's.
        number: u64,
        /// The first one shown.
        from: u64,
    },
}

/// What is wrong with the step from one checkpoint to the next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryFault {
    /// The newer page has the older checkpoint.
    #[error("it is older")]
    Older,
    /// There is no proof, or one from another size.
    #[error("it has no proof from {held} entries on; ask with `held={held}`")]
    NoProof {
        /// The size of the checkpoint before.
        held: u64,
    },
    /// The proof is wrong.
    #[error("{0}")]
    Proof(TreeError),
}

impl MineRefusal {
    /// The name of the check that failed.
    #[must_use]
    pub fn check(&self) -> &'static str {
        match self {
            Self::Form { .. } => "form",
            Self::Signature { .. } => "signature",
            Self::Witnesses(_) => "witnesses",
            Self::History { .. } => "consistency",
            Self::Forked { .. } => "fork",
            Self::Inclusion { .. } => "inclusion",
            Self::Entry { .. } => "entry",
            Self::Tenant { .. } | Self::TenantName { .. } => "tenant",
            Self::Gap { .. } => "numbers",
            Self::Chain { .. } => "chain",
            Self::Receipt(_) | Self::ReceiptTenant | Self::Before { .. } => "receipt",
            Self::Tail { .. } | Self::More { .. } | Self::Younger | Self::ReceiptEntry { .. } => "tail",
        }
    }
}

/// What the tenant holds from before and from after.
#[derive(Debug, Clone, Copy, Default)]
pub struct Held<'a> {
    /// A receipt: the pages begin right behind its entry, and not with the first of all.
    pub after: Option<&'a [u8]>,
    /// A receipt whose entry must be among these.
    pub receipt: Option<&'a [u8]>,
    /// Who must have cosigned the newest checkpoint.
    pub witnesses: Option<&'a Witnesses>,
}

/// Checks pages of own entries, in whatever order they are given: that they are all of the tenant's entries from its first, or
/// from a receipt's, to the last one shown.
///
/// # Errors
/// The first check that fails.
pub fn check_mine(
    pages: &[Vec<u8>],
    keys: &(impl LogKeys + ?Sized),
    held: Held<'_>,
) -> Result<MineReport, MineRefusal> {
    let chain = keys.chain();
    let keys = &*chain;
    let mut parsed = Vec::with_capacity(pages.len());
    for (place, page) in pages.iter().enumerate() {
        parsed.push(Page::parse(page).map_err(|what| MineRefusal::Form { page: place + 1, what })?);
    }
    // One without entries says no more than that its checkpoint came before.
    parsed.sort_by_key(|page| (page.from, page.entries.len()));
    let first = parsed.first().ok_or(MineRefusal::Form { page: 1, what: "there is none" })?;
    let mut walk = Walk::begin(first, keys, held.after)?;
    for (place, page) in parsed.iter().enumerate() {
        walk.page(place + 1, page, keys)?;
    }
    let (newest, note) = walk.newest.clone().ok_or(MineRefusal::Form { page: 1, what: "there is none" })?;
    let witnessed = held.witnesses.map(|witnesses| witnesses.check(&newest, note.as_bytes())).transpose()?;
    let more = parsed.last().is_some_and(|page| page.more);
    let receipt = held.receipt.map(|receipt| walk.find(receipt, &newest, keys, more)).transpose()?;
    Ok(MineReport {
        signed_by: keys.signers(note.as_bytes()),
        checkpoint: newest,
        witnessed: witnessed.unwrap_or_default(),
        tenant: walk.tenant,
        tenant_name: walk.opened_name.then(|| first.tenant.clone()),
        numbers: (walk.from, walk.next),
        kinds: walk.kinds,
        reasons: walk.reasons,
        withheld: walk.withheld,
        last_withheld: walk.last_withheld,
        pages: walk.pages,
        wall_us: walk.wall_us,
        after: walk.after,
        receipt,
        more,
    })
}

/// One page as it stands in a file. Nothing is verified yet.
struct Page {
    tenant: String,
    tenant_ref: TenantRef,
    from: u64,
    checkpoint: String,
    held: Option<(u64, Vec<Hash>)>,
    entries: Vec<Shown>,
    more: bool,
}

/// One entry as it stands there.
struct Shown {
    index: u64,
    entry: Given,
    tenant_salt: Option<[u8; 32]>,
    proof: Vec<Hash>,
}

enum Given {
    Bytes(Vec<u8>),
    /// It names somebody else.
    Leaf(Hash),
}

impl Page {
    fn parse(page: &[u8]) -> Result<Self, &'static str> {
        let page: Value = serde_json::from_slice(page).map_err(|_| "it is not JSON")?;
        let page = page.as_object().ok_or("it is not an object")?;
        if text(page, "object")? != OBJECT || number(page, "version")? != 1 {
            return Err("it is of another kind or version");
        }
        let mut tenant_ref = [0; 16];
        hex::decode_to_slice(text(page, "tenant_ref")?, &mut tenant_ref).map_err(|_| "`tenant_ref` is no reference")?;
        let held = match page.get("held").and_then(Value::as_object) {
            Some(held) => Some((number(held, "size")?, hashes(held)?)),
            None => None,
        };
        let entries = page.get("entries").and_then(Value::as_array).ok_or("`entries` is no list")?;
        if entries.len() > ENTRIES_MAX {
            return Err("it has too many entries");
        }
        Ok(Self {
            tenant: text(page, "tenant")?.to_owned(),
            tenant_ref,
            from: number(page, "from")?,
            checkpoint: text(page, "checkpoint")?.to_owned(),
            held,
            entries: entries.iter().map(Shown::parse).collect::<Result<_, _>>()?,
            more: page.get("next").is_some_and(Value::is_string),
        })
    }
}

impl Shown {
    fn parse(shown: &Value) -> Result<Self, &'static str> {
        let shown = shown.as_object().ok_or("an entry is no object")?;
        let bytes = |name| {
            let text = shown.get(name).map(|value| value.as_str().ok_or("a string is missing")).transpose()?;
            text.map(|text| BASE64_STANDARD.decode(text).map_err(|_| "something is not base64")).transpose()
        };
        let entry = match (bytes("entry")?, bytes("leaf")?) {
            (Some(entry), None) => Given::Bytes(entry),
            (None, Some(leaf)) => Given::Leaf(Hash(leaf.try_into().map_err(|_| "a leaf is no hash")?)),
            _ => return Err("an entry has not either bytes or a leaf hash"),
        };
        let tenant_salt = bytes("tenant_salt")?.map(|salt| salt.try_into().map_err(|_| "a salt has another length"));
        Ok(Self { index: number(shown, "index")?, entry, tenant_salt: tenant_salt.transpose()?, proof: hashes(shown)? })
    }
}

fn text<'a>(object: &'a Map<String, Value>, name: &str) -> Result<&'a str, &'static str> {
    object.get(name).and_then(Value::as_str).ok_or("a string is missing")
}

fn number(object: &Map<String, Value>, name: &str) -> Result<u64, &'static str> {
    object.get(name).and_then(Value::as_u64).ok_or("a number is missing")
}

fn hashes(object: &Map<String, Value>) -> Result<Vec<Hash>, &'static str> {
    let proof = object.get("proof").and_then(Value::as_array).ok_or("`proof` is no list")?;
    let hash = |hash: &Value| hash.as_str().and_then(|text| Hash::parse_hash(text).ok());
    proof.iter().map(|value| hash(value).ok_or("`proof` has something that is no hash")).collect()
}

/// The walk along a tenant's chain.
struct Walk {
    tenant: TenantRef,
    tenant_name: String,
    from: u64,
    /// The number that comes next, and the leaf hash that it must name.
    next: u64,
    previous: Digest,
    /// Index of the last entry, in a tree in which all of them come later.
    last_index: Option<u64>,
    newest: Option<(Checkpoint, String)>,
    after: Option<u64>,
    leaves: Vec<Digest>,
    opened_name: bool,
    kinds: BTreeMap<&'static str, u64>,
    reasons: BTreeMap<&'static str, u64>,
    withheld: u64,
    last_withheld: bool,
    pages: [u64; 3],
    wall_us: Option<(u64, u64)>,
}

impl Walk {
    /// From the tenant's first entry, or from behind a receipt's.
    fn begin(first: &Page, keys: &KeyChain, after: Option<&[u8]>) -> Result<Self, MineRefusal> {
        let mut walk = Self {
            tenant: first.tenant_ref,
            tenant_name: first.tenant.clone(),
            from: 0,
            next: 0,
            previous: Digest([0; 32]),
            last_index: None,
            newest: None,
            after: None,
            leaves: Vec::new(),
            opened_name: false,
            kinds: BTreeMap::new(),
            reasons: BTreeMap::new(),
            withheld: 0,
            last_withheld: false,
            pages: [0; 3],
            wall_us: None,
        };
        if let Some(receipt) = after {
            let report = checked(receipt, keys)?;
            if report.tenant.tenant != walk.tenant {
                return Err(MineRefusal::ReceiptTenant);
            }
            let number = report.tenant.number;
            walk.after = Some(number);
            walk.from = number.saturating_add(1);
            walk.next = walk.from;
            walk.previous = Digest(leaf_hash(&report.entry).0);
            walk.last_index = Some(report.index);
            // One in COSE has no note, and so none that witnesses have signed.
            let note = TlogProof::parse(receipt).map(|proof| proof.checkpoint).unwrap_or_default();
            walk.newest = Some((report.checkpoint, note));
        }
        Ok(walk)
    }

    fn page(&mut self, place: usize, page: &Page, keys: &KeyChain) -> Result<(), MineRefusal> {
        let signature = |source| MineRefusal::Signature { page: place, source };
        let checkpoint = keys.open(page.checkpoint.as_bytes()).map_err(signature)?;
        self.continues(place, page, &checkpoint)?;
        if (page.tenant_ref, &page.tenant) != (self.tenant, &self.tenant_name) {
            return Err(MineRefusal::Tenant { number: page.from });
        }
        if page.from != self.next {
            return Err(MineRefusal::Gap { number: self.next, found: page.from });
        }
        for shown in &page.entries {
            self.entry(shown, &checkpoint)?;
        }
        self.newest = Some((checkpoint, page.checkpoint.clone()));
        Ok(())
    }

    /// One history: each checkpoint continues the one before.
    fn continues(&self, place: usize, page: &Page, checkpoint: &Checkpoint) -> Result<(), MineRefusal> {
        let Some((before, _)) = &self.newest else { return Ok(()) };
        let fault = |what| Err(MineRefusal::History { page: place, what });
        if checkpoint.size < before.size {
            return fault(HistoryFault::Older);
        }
        if checkpoint.size == before.size {
            let same = checkpoint.root == before.root;
            return if same { Ok(()) } else { Err(MineRefusal::Forked { size: before.size }) };
        }
        match &page.held {
            Some((size, proof)) if *size == before.size => {
                check_consistency(proof, checkpoint.size, checkpoint.root, before.size, before.root)
                    .or_else(|source| fault(HistoryFault::Proof(source)))
            }
            _ => fault(HistoryFault::NoProof { held: before.size }),
        }
    }

    fn entry(&mut self, shown: &Shown, checkpoint: &Checkpoint) -> Result<(), MineRefusal> {
        let number = self.next;
        let leaf = match &shown.entry {
            Given::Bytes(bytes) => leaf_hash(bytes),
            Given::Leaf(leaf) => *leaf,
        };
        check_inclusion(&shown.proof, checkpoint.size, checkpoint.root, shown.index, leaf)
            .map_err(|source| MineRefusal::Inclusion { number, source })?;
        // What comes later in the chain comes later in the log.
        if self.last_index.is_some_and(|last| shown.index <= last) {
            return Err(MineRefusal::Chain { number });
        }
        self.last_withheld = matches!(shown.entry, Given::Leaf(_));
        match &shown.entry {
            Given::Bytes(bytes) => self.decoded(number, bytes, shown.tenant_salt.as_ref())?,
            // Its number and whom it follows are not seen; the next entry's are.
            Given::Leaf(_) => self.withheld += 1,
        }
        self.last_index = Some(shown.index);
        self.previous = Digest(leaf.0);
        self.leaves.push(self.previous);
        self.next = number.saturating_add(1);
        Ok(())
    }

    fn decoded(&mut self, number: u64, bytes: &[u8], salt: Option<&[u8; 32]>) -> Result<(), MineRefusal> {
        let entry = Entry::decode(bytes).map_err(|source| MineRefusal::Entry { number, source })?;
        let link = entry.head.tenant.filter(|link| link.tenant == self.tenant);
        let link = link.ok_or(MineRefusal::Tenant { number })?;
        if link.number != number {
            return Err(MineRefusal::Gap { number, found: link.number });
        }
        if link.previous != self.previous {
            return Err(MineRefusal::Chain { number });
        }
        match (&entry.body, salt) {
            (Body::Opened(opened), Some(salt)) => {
                if Commitment::of(Field::Tenant, salt, self.tenant_name.as_bytes()) != opened.tenant_name {
                    return Err(MineRefusal::TenantName { number });
                }
                self.opened_name = true;
            }
            (_, Some(_)) => return Err(MineRefusal::TenantName { number }),
            (_, None) => {}
        }
        if let Body::Sealed(sealed) = &entry.body {
            *self.reasons.entry(sealed.reason.as_str()).or_default() += 1;
            let read = [sealed.pages.own, sealed.pages.public, sealed.pages.foreign];
            self.pages.iter_mut().zip(read).for_each(|(sum, read)| *sum = sum.saturating_add(read));
        }
        *self.kinds.entry(entry.body.name()).or_default() += 1;
        let now = entry.head.wall_us;
        let (first, last) = self.wall_us.unwrap_or((now, now));
        self.wall_us = Some((first.min(now), last.max(now)));
        Ok(())
    }

    /// A later receipt's entry must be among these.
    fn find(&self, receipt: &[u8], newest: &Checkpoint, keys: &KeyChain, more: bool) -> Result<u64, MineRefusal> {
        let report = checked(receipt, keys)?;
        if report.tenant.tenant != self.tenant {
            return Err(MineRefusal::ReceiptTenant);
        }
        if report.checkpoint.size == newest.size && report.checkpoint.root != newest.root {
            return Err(MineRefusal::Forked { size: newest.size });
        }
        let (number, end) = (report.tenant.number, self.next);
        if number < self.from {
            return Err(MineRefusal::Before { number, from: self.from });
        }
        if number >= end {
            // Of the two entries that the receipt proves, one is enough that was there and comes behind the last one shown.
            let behind = |index: u64| index < newest.size && self.last_index.is_none_or(|last| index > last);
            let stood = behind(report.index) || behind(report.sealed.opened_index);
            return Err(match (more, stood) {
                (true, _) => MineRefusal::More { number, end },
                (false, true) => MineRefusal::Tail { number, end },
                (false, false) => MineRefusal::Younger,
            });
        }
        let place = usize::try_from(number - self.from).unwrap_or(usize::MAX);
        let same = self.leaves.get(place) == Some(&Digest(leaf_hash(&report.entry).0));
        if same { Ok(number) } else { Err(MineRefusal::ReceiptEntry { number }) }
    }
}

fn checked(receipt: &[u8], keys: &KeyChain) -> Result<ReceiptReport, MineRefusal> {
    check_receipt(receipt, keys, Evidence::default()).map_err(|refusal| MineRefusal::Receipt(Box::new(refusal)))
}
