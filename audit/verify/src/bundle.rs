//! An evidence bundle, from its archive down to the last byte of its pages. Nothing in it is believed: entries are proven under
//! the log's checkpoint, and figures and pages are made of them again.

mod story;

use crate::rotation::LogKeys;
use crate::witnesses::{WitnessRefusal, Witnessed, Witnesses};
use audit_evidence::{
    CERTIFICATE, CHECKPOINT, ContainerError, Content, ENTRIES, EntriesError, Evidence as Made, Facts, Files,
    ManifestError, NAMES, Placed, ProvenEntry, RENDERING, STATEMENT, Span, Statement, StatementError, certified,
    check_manifest, decode_entries, documents, facts,
};
use audit_provenance::{Body, Commitment, DecodeError, Entry, EntryVersion, Field, IncidentMoveError, Salt, TenantRef};
use audit_tlog::{Checkpoint, CheckpointError, KeyChain, TreeError, VerifierKey, check_inclusion};
use policies_domain::{Digest, TenantName};

/// What the holder of a bundle has beside it.
#[derive(Debug, Clone, Copy, Default)]
pub struct BundleEvidence<'a> {
    /// The report key, when it comes from elsewhere than from the log's word in the bundle.
    pub report_key: Option<&'a VerifierKey>,
    /// Who must have cosigned the checkpoint.
    pub witnesses: Option<&'a Witnesses>,
}

/// What a genuine bundle says.
#[derive(Debug, Clone)]
pub struct BundleReport {
    /// The checkpoint that the entries were proven under.
    pub checkpoint: Checkpoint,
    /// Those of the asked witnesses that have cosigned it.
    pub witnessed: Vec<Witnessed>,
    /// What the operator says.
    pub statement: Statement,
    /// The figures, made of the entries.
    pub facts: Facts,
    /// The key that signed the manifest.
    pub report_key: VerifierKey,
    /// Names of the checks that passed, in order.
    pub passed: Vec<&'static str>,
    /// What the bundle cannot show.
    pub unchecked: Vec<BundleUnchecked>,
    /// Which of the given keys have signed the checkpoint.
    pub signed_by: Vec<VerifierKey>,
}

/// A part of a bundle that is the operator's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BundleUnchecked {
    /// That no later entry of the tenant belongs to the time: they reach to its last one under the checkpoint.
    End,
    /// That the reference is the tenant's: no commitment of its name can be opened.
    Name,
    /// What is said of chains of others: incidents with pages of this tenant, and audits by probes; and of entries of
    /// nobody: how often the gateway tried its own detectors.
    Stated,
    /// The figures and pages: another version of the program made them.
    Report,
    /// That everybody is shown the same log: no witness was asked for.
    Witnesses,
}

/// Why a bundle is refused.
#[derive(Debug, thiserror::Error)]
pub enum BundleRefusal {
    /// Not the archive of a bundle.
    #[error("{0}")]
    Container(#[from] ContainerError),
    /// A file is not there.
    #[error("`{name}` is missing")]
    Missing {
        /// Which.
        name: &'static str,
    },
    /// The manifest, or the word for its key.
    #[error("{0}")]
    Manifest(#[from] ManifestError),
    /// Nobody vouches for the key of the manifest.
    #[error("the bundle holds no word of the log for its report key: give the key, from where you trust it")]
    NoReportKey,
    /// A former key of the log vouches for the key of the manifest.
    #[error("the word for the bundle's key is of a key that the log, of {size} entries, does not have any more")]
    FormerVoucher {
        /// Entries under the checkpoint.
        size: u64,
    },
    /// The checkpoint is malformed or not signed by the key.
    #[error("{0}")]
    Signature(#[from] CheckpointError),
    /// Not cosigned by enough of the witnesses.
    #[error("{0}")]
    Witnesses(#[from] WitnessRefusal),
    /// The statement is malformed.
    #[error("`{STATEMENT}`: {0}")]
    Statement(#[from] StatementError),
    /// The statement contradicts itself or the entries.
    #[error("`{STATEMENT}`: {field} is not as it has to be")]
    Stated {
        /// What.
        field: &'static str,
    },
    /// The file of entries is malformed.
    #[error("`{ENTRIES}`: {0}")]
    Entries(#[from] EntriesError),
    /// An entry is not in the log.
    #[error("entry {index} is not proven: {source}")]
    Inclusion {
        /// Its index.
        index: u64,
        /// What is wrong.
        source: TreeError,
    },
    /// An entry is malformed.
    #[error("entry {index}: {source}")]
    Entry {
        /// Its index.
        index: u64,
        /// What is wrong.
        source: DecodeError,
    },
    /// Entries do not stand in the log's order, or an older format follows a newer one.
    #[error("entry {index} is out of order")]
    Order {
        /// Its index.
        index: u64,
    },
    /// An entry of another tenant.
    #[error("entry {index} is not of this tenant")]
    Tenant {
        /// Its index.
        index: u64,
    },
    /// An entry of the tenant is missing.
    #[error("entry {index} is number {number} of the tenant, expected was {wanted}")]
    Number {
        /// Its index.
        index: u64,
        /// The number found.
        number: u64,
        /// The number due.
        wanted: u64,
    },
    /// An entry does not name the tenant's previous one.
    #[error("entry {index} does not name the tenant's previous entry")]
    Link {
        /// Its index.
        index: u64,
    },
    /// The entries are not those of the time.
    #[error("{0}")]
    Time(&'static str),
    /// The name does not open the commitment.
    #[error("the tenant's name does not open the commitment of entry {index}")]
    Name {
        /// The opened entry.
        index: u64,
    },
    /// A sealed, fault, incident or replay entry does not belong to the request that it names.
    #[error("entry {index} does not belong to the request that it names")]
    Pairing {
        /// Its index.
        index: u64,
    },
    /// A page of another tenant was read, and the response was not stopped.
    #[error("entry {index}: {foreign} foreign pages were read and the response was not stopped")]
    Pages {
        /// Its index.
        index: u64,
        /// How many.
        foreign: u64,
    },
    /// The end of a response and its incidents, faults or replay do not agree.
    #[error("entry {index}: the end of the response and its {what} do not agree")]
    Ends {
        /// Its index.
        index: u64,
        /// What does not.
        what: &'static str,
    },
    /// An incident moves where it may not.
    #[error("entry {index}: {source}")]
    IncidentMove {
        /// Its index.
        index: u64,
        /// Why not.
        source: IncidentMoveError,
    },
    /// A file does not follow from the entries and the statement.
    #[error("`{name}` does not follow from the entries")]
    Report {
        /// Which.
        name: &'static str,
    },
}

impl BundleRefusal {
    /// The name of the check that failed.
    #[must_use]
    pub fn check(&self) -> &'static str {
        match self {
            Self::Container(_) => "archive",
            Self::Missing { .. } => "files",
            Self::Manifest(_) | Self::NoReportKey | Self::FormerVoucher { .. } => "manifest",
            Self::Signature(_) => "checkpoint",
            Self::Witnesses(_) => "witnesses",
            Self::Statement(_) | Self::Stated { .. } => "statement",
            Self::Entries(_) | Self::Entry { .. } => "entries",
            Self::Inclusion { .. } => "inclusion",
            Self::Order { .. } | Self::Tenant { .. } | Self::Number { .. } | Self::Link { .. } => "chain",
            Self::Time(_) => "time",
            Self::Name { .. } => "name",
            Self::Pairing { .. } | Self::Pages { .. } | Self::Ends { .. } | Self::IncidentMove { .. } => "story",
            Self::Report { .. } => "report",
        }
    }
}

/// Checks a bundle under the log's key, or under any of those that are believed. `progress` is told how many entries are proven,
/// and of how many.
///
/// # Errors
/// The first check that fails.
pub fn check_bundle(
    bundle: &[u8],
    keys: &(impl LogKeys + ?Sized),
    beside: BundleEvidence<'_>,
    mut progress: impl FnMut(u64, u64),
) -> Result<BundleReport, BundleRefusal> {
    let chain = keys.chain();
    let keys = &*chain;
    let origin = keys.first().name();
    let files = Files::from_archive(bundle)?;
    for name in NAMES.into_iter().filter(|name| *name != CERTIFICATE) {
        file(&files, name)?;
    }
    let mut passed = vec!["archive", "files"];

    let (report_key, voucher) = match (beside.report_key, files.get(CERTIFICATE)) {
        (Some(given), _) => (given.clone(), None),
        (None, Some(certificate)) => certified_by(certificate, keys).map(|(key, voucher)| (key, Some(voucher)))?,
        (None, None) => return Err(BundleRefusal::NoReportKey),
    };
    check_manifest(origin, &files, &report_key)?;
    passed.push("manifest");

    let note = file(&files, CHECKPOINT)?;
    let checkpoint = keys.open(note)?;
    passed.push("checkpoint");
    // A key that was dropped vouches for nobody any more; a later one than the checkpoint's does.
    let later = keys.since(keys.key_at(checkpoint.size));
    if voucher.is_some_and(|voucher| !later.is_some_and(|later| later.has(voucher))) {
        return Err(BundleRefusal::FormerVoucher { size: checkpoint.size });
    }
    let witnessed = match beside.witnesses {
        Some(witnesses) => {
            let witnessed = witnesses.check(&checkpoint, note)?;
            passed.push("witnesses");
            witnessed
        }
        None => Vec::new(),
    };

    let statement = Statement::decode(file(&files, STATEMENT)?)?;
    let tenant = check_statement(&statement)?;
    passed.push("statement");
    let seen = prove(&decode_entries(file(&files, ENTRIES)?)?, &checkpoint, &mut progress)?;
    passed.extend(["entries", "inclusion"]);
    check_chain(&seen, tenant)?;
    passed.push("chain");
    let span = check_time(seen, &statement)?;
    passed.push("time");
    let named = check_name(&span, &statement)?;
    passed.extend(named.then_some("name"));
    story::check(&span, &statement)?;
    passed.push("story");

    let facts = facts(&span, &statement.withheld);
    let cosigned_by = cosigners(note, origin);
    let made = Made { statement: &statement, checkpoint: &checkpoint, cosigned_by: &cosigned_by, facts: &facts };
    let known = statement.rendering == RENDERING;
    if known {
        for (name, bytes) in documents(&made) {
            // INVARIANT: no byte of a report is there that the entries and the statement do not give.
            if file(&files, name)? != bytes {
                return Err(BundleRefusal::Report { name });
            }
        }
        passed.push("report");
    }
    let unchecked = [
        (BundleUnchecked::End, !span.end_is_closed),
        (BundleUnchecked::Name, !named),
        (BundleUnchecked::Stated, true),
        (BundleUnchecked::Report, !known),
        (BundleUnchecked::Witnesses, beside.witnesses.is_none()),
    ];
    let unchecked = unchecked.into_iter().filter(|(_, is)| *is).map(|(part, _)| part).collect();
    let signed_by = keys.signers(note);
    Ok(BundleReport { checkpoint, signed_by, witnessed, statement, facts, report_key, passed, unchecked })
}

/// The report key that one of the log's keys vouches for, and which one.
fn certified_by<'a>(certificate: &[u8], keys: &'a KeyChain) -> Result<(VerifierKey, &'a VerifierKey), BundleRefusal> {
    let mut refusal = BundleRefusal::NoReportKey;
    for key in keys.keys() {
        match certified(certificate, key) {
            Ok(report_key) => return Ok((report_key, key)),
            Err(error) => refusal = error.into(),
        }
    }
    Err(refusal)
}

fn file<'a>(files: &'a Files, name: &'static str) -> Result<&'a [u8], BundleRefusal> {
    files.get(name).ok_or(BundleRefusal::Missing { name })
}

/// Whose signature lines a checkpoint has beside its log's, as they say.
#[must_use]
pub fn cosigners(note: &[u8], origin: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(note);
    let names = text.lines().filter_map(|line| line.strip_prefix("— ")?.split(' ').next());
    names.filter(|name| *name != origin).map(str::to_owned).collect()
}

/// What can be seen of it alone; gives the tenant's reference.
fn check_statement(statement: &Statement) -> Result<TenantRef, BundleRefusal> {
    let wrong = |field| BundleRefusal::Stated { field };
    let mut tenant: TenantRef = [0; 16];
    let exact =
        hex::decode_to_slice(&statement.reference, &mut tenant).is_ok() && hex::encode(tenant) == statement.reference;
    if !exact {
        return Err(wrong("the reference"));
    }
    TenantName::parse(&statement.tenant).map_err(|_| wrong("the tenant's name"))?;
    if statement.from_us > statement.to_us {
        return Err(wrong("the time"));
    }
    let in_time = |at: &u64| (statement.from_us..=statement.to_us).contains(at);
    let incidents = statement
        .as_victim
        .iter()
        .all(|incident| in_time(&incident.detected_us) && incident.detected_us <= incident.updated_us);
    if !incidents || !statement.side_channels.iter().all(|audit| in_time(&audit.at_us)) {
        return Err(wrong("a time in it"));
    }
    let time_us = statement.to_us - statement.from_us;
    if statement.self_tests.is_some_and(|tests| !tests.is_possible(time_us)) {
        return Err(wrong("what it says of self-tests"));
    }
    Ok(tenant)
}

/// An entry of the bundle: where it is, and what is shown of it.
struct Seen {
    index: u64,
    leaf: Digest,
    entry: Option<Entry>,
}

impl Seen {
    fn wall_us(&self) -> Option<u64> {
        self.entry.as_ref().map(|entry| entry.head.wall_us)
    }
}

fn prove(
    proven: &[ProvenEntry],
    checkpoint: &Checkpoint,
    progress: &mut impl FnMut(u64, u64),
) -> Result<Vec<Seen>, BundleRefusal> {
    let (mut seen, of) = (Vec::with_capacity(proven.len()), proven.len() as u64);
    for one in proven {
        let (index, leaf) = (one.index, one.leaf());
        check_inclusion(&one.hashes(), checkpoint.size, checkpoint.root, index, leaf)
            .map_err(|source| BundleRefusal::Inclusion { index, source })?;
        let entry = match &one.content {
            Content::Entry(bytes) => {
                Some(Entry::decode(bytes).map_err(|source| BundleRefusal::Entry { index, source })?)
            }
            Content::Withheld(_) => None,
        };
        seen.push(Seen { index, leaf: Digest(leaf.0), entry });
        progress(seen.len() as u64, of);
    }
    Ok(seen)
}

/// They are the tenant's, in the log's order, and none between is missing. One that is withheld has its place by what the one
/// after it says.
fn check_chain(seen: &[Seen], tenant: TenantRef) -> Result<(), BundleRefusal> {
    let (mut version, mut before): (_, Option<u64>) = (EntryVersion::V1, None);
    let mut due: Option<(u64, Digest)> = None;
    for Seen { index, leaf, entry } in seen {
        let index = *index;
        if before.is_some_and(|before| before >= index) {
            return Err(BundleRefusal::Order { index });
        }
        before = Some(index);
        let Some(entry) = entry else {
            // INVARIANT: what begins or ends the list is given: otherwise nobody could tell whose it is.
            let (number, _) = due.ok_or(BundleRefusal::Tenant { index })?;
            due = Some((number.saturating_add(1), *leaf));
            continue;
        };
        if entry.head.version < version {
            return Err(BundleRefusal::Order { index });
        }
        version = entry.head.version;
        let link = entry.head.tenant.filter(|link| link.tenant == tenant).ok_or(BundleRefusal::Tenant { index })?;
        if let Some((wanted, previous)) = due {
            if link.number != wanted {
                return Err(BundleRefusal::Number { index, number: link.number, wanted });
            }
            if link.previous != previous {
                return Err(BundleRefusal::Link { index });
            }
        } else if (link.number == 0) != (link.previous == Digest([0; 32])) {
            return Err(BundleRefusal::Link { index });
        }
        due = Some((link.number.saturating_add(1), *leaf));
    }
    match seen.last() {
        Some(Seen { index, entry: None, .. }) => Err(BundleRefusal::Tenant { index: *index }),
        _ => Ok(()),
    }
}

/// They are those of the time: the one before it and the one after it show that there are no others.
fn check_time(mut seen: Vec<Seen>, statement: &Statement) -> Result<Span, BundleRefusal> {
    let earlier = seen.first().and_then(Seen::wall_us).is_some_and(|first| first < statement.from_us);
    if earlier {
        seen.remove(0);
    }
    let end_is_closed = seen.last().and_then(Seen::wall_us).is_some_and(|last| last > statement.to_us);
    if end_is_closed {
        seen.pop();
    }
    let mut span = Span { entries: Vec::new(), withheld: Vec::new(), begin_is_closed: true, end_is_closed };
    for Seen { index, leaf, entry } in seen {
        match entry {
            Some(entry) => span.entries.push(Placed { index, leaf, entry }),
            None => span.withheld.push((index, leaf)),
        }
    }
    let (Some(first), Some(last)) = (span.entries.first(), span.entries.last()) else {
        return Err(BundleRefusal::Time("the bundle holds no entry of the time"));
    };
    if first.entry.head.wall_us < statement.from_us || last.entry.head.wall_us > statement.to_us {
        return Err(BundleRefusal::Time(
            "the bundle holds more entries outside of the time than the one before and the one after",
        ));
    }
    let is_first = first.entry.head.tenant.is_some_and(|link| link.number == 0);
    if !earlier && !is_first {
        return Err(BundleRefusal::Time(
            "the entry before the time is missing, so earlier ones of the time may be, too",
        ));
    }
    // Each that is withheld is spoken of, and nothing else is.
    let spoken: Vec<u64> = statement.withheld.iter().map(|incident| incident.entry).collect();
    let withheld: Vec<u64> = span.withheld.iter().map(|(index, _)| *index).collect();
    if spoken == withheld { Ok(span) } else { Err(BundleRefusal::Stated { field: "what is withheld" }) }
}

/// Whether the name is shown to be the tenant's.
fn check_name(span: &Span, statement: &Statement) -> Result<bool, BundleRefusal> {
    let Some(name) = &statement.name else { return Ok(false) };
    let index = name.entry;
    let mut salt: Salt = [0; 32];
    hex::decode_to_slice(&name.salt, &mut salt).map_err(|_| BundleRefusal::Name { index })?;
    let opened = span.entries.iter().find(|one| one.index == index).map(|one| &one.entry.body);
    match opened {
        Some(Body::Opened(opened))
            if Commitment::of(Field::Tenant, &salt, statement.tenant.as_bytes()) == opened.tenant_name =>
        {
            Ok(true)
        }
        _ => Err(BundleRefusal::Name { index }),
    }
}
