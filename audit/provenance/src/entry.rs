//! Entries of the log, as bytes. `entry.cddl` beside this file is the format; its digest is in the first entry.

use crate::cbor::{DecodeError, Reader, Writer};
use crate::fault::{EngineFault, Incident};
use crate::gate::PageCounts;
use crate::incident_state::IncidentState;
use crate::isolation_audit::IsolationAudit;
use crate::keeping::{Erased, Erasure, Hold, Prune, Release};
use crate::key_rotation::KeyRotation;
use crate::lag::CosignerLag;
use crate::replay::Replay;
use crate::self_test::SelfTest;
use policies_domain::{Digest, RequestId};
use sha2::{Digest as _, Sha256};

/// The format in the concise data definition language (RFC 8610).
pub const SCHEMA: &str = include_str!("entry.cddl");
/// Longest entry.
pub const ENTRY_BYTES_MAX: usize = 4_096;
/// Longest origin and verifier key line of a genesis entry.
const TEXT_BYTES_MAX: usize = 512;

/// The format that an entry is written in. All are read; only [`EntryVersion::CURRENT`] is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryVersion {
    /// Without the model's fingerprint and without [`Body::Fault`] and [`Body::Audit`].
    V1 = 1,
    /// Without [`Sealing::replay`], [`Body::Replay`], [`Body::IncidentState`] and incidents of a replay.
    V2 = 2,
    /// Without what is said of keeping and destroying: [`Body::Erasure`] and the four after it.
    V3 = 3,
    /// Without [`Body::KeyRotation`], [`Body::Lag`] and [`Body::SelfTest`].
    V4 = 4,
    /// As `entry.cddl` has it.
    V5 = 5,
}

impl EntryVersion {
    /// The one that is written.
    pub const CURRENT: Self = Self::V5;

    fn from_number(number: u64) -> Option<Self> {
        [Self::V1, Self::V2, Self::V3, Self::V4, Self::V5].into_iter().find(|version| *version as u64 == number)
    }

    /// Digest of the format's text, as the genesis entry of a log in this version holds it.
    #[must_use]
    pub fn schema_digest(self) -> Digest {
        match self {
            Self::V1 => Digest(SCHEMA_V1),
            Self::V2 => Digest(SCHEMA_V2),
            Self::V3 => Digest(SCHEMA_V3),
            Self::V4 => Digest(SCHEMA_V4),
            Self::V5 => Digest(Sha256::digest(SCHEMA).into()),
        }
    }

    /// Whether a log in this version may have begun under that text: its last, or an earlier one with fewer classes of
    /// incidents or without audits, whose entries are entries of the last.
    #[must_use]
    pub fn knows_schema(self, digest: Digest) -> bool {
        digest == self.schema_digest()
            || self == Self::V2 && SCHEMAS_V2.iter().any(|earlier| Digest(*earlier) == digest)
    }
}

/// SHA-256 of the text of version 1: eb261863..., the last that held `version: 1`.
const SCHEMA_V1: [u8; 32] = [
    0xeb, 0x26, 0x18, 0x63, 0x66, 0xbc, 0x5e, 0x3c, 0xd1, 0x4f, 0xce, 0xc0, 0x2b, 0xd7, 0x63, 0x03, 0x07, 0x77, 0x14,
    0x04, 0x2e, 0x85, 0x46, 0x60, 0x16, 0x13, 0x65, 0x3a, 0x8c, 0x5c, 0x85, 0x3c,
];

/// SHA-256 of the last text of version 2: 502eb164...
const SCHEMA_V2: [u8; 32] = [
    0x50, 0x2e, 0xb1, 0x64, 0xc9, 0x15, 0x19, 0x93, 0xc8, 0xb2, 0xc1, 0x1a, 0xf1, 0x97, 0xd0, 0x4d, 0xec, 0x87, 0x05,
    0x58, 0xe4, 0x8e, 0xae, 0xd8, 0x54, 0x36, 0x16, 0xbf, 0xc8, 0x41, 0xf1, 0xe7,
];

/// SHA-256 of the text of version 3: 5b118aed...
const SCHEMA_V3: [u8; 32] = [
    0x5b, 0x11, 0x8a, 0xed, 0x2b, 0xbf, 0x52, 0xc3, 0xdc, 0x34, 0x3f, 0x96, 0x82, 0x09, 0xd2, 0xc3, 0x70, 0x3a, 0xb5,
    0xf4, 0x18, 0x6b, 0x26, 0xba, 0x65, 0x56, 0x05, 0xb9, 0x70, 0x09, 0x8b, 0xda,
];

/// SHA-256 of the text of version 4: 7eb85dd0...
const SCHEMA_V4: [u8; 32] = [
    0x7e, 0xb8, 0x5d, 0xd0, 0x52, 0x9d, 0xca, 0xb2, 0x89, 0x10, 0x9e, 0x2d, 0x37, 0xeb, 0x81, 0x6f, 0x2f, 0x30, 0x14,
    0xe0, 0x40, 0xde, 0x55, 0xf4, 0x89, 0x91, 0x07, 0x5a, 0x31, 0xed, 0x0b, 0xec,
];

/// SHA-256 of the earlier texts of version 2: with six classes of incidents (07f0b331...), seven (a74d6dce...) and eight
/// (dbc0c2ff...), with how pages were handed over (85abd94d...), with twelve classes (58c455f5...), and the last one without
/// audits (7ebca315...).
const SCHEMAS_V2: [[u8; 32]; 6] = [
    [
        0x07, 0xf0, 0xb3, 0x31, 0xcc, 0x36, 0xad, 0xc8, 0x52, 0xc1, 0x24, 0xf0, 0xaa, 0xea, 0x52, 0x1d, 0xd3, 0xbe,
        0x89, 0xbd, 0x11, 0x97, 0x57, 0x0a, 0x0e, 0xbf, 0x24, 0xb4, 0xfb, 0xd6, 0xad, 0xd5,
    ],
    [
        0xa7, 0x4d, 0x6d, 0xce, 0x58, 0xb9, 0xbc, 0xe2, 0xb8, 0xac, 0x7e, 0x64, 0x19, 0x02, 0x29, 0xdf, 0xee, 0xcd,
        0x90, 0x51, 0x21, 0x36, 0xba, 0x85, 0x90, 0x77, 0x9b, 0xde, 0x3b, 0xfd, 0xd4, 0xdb,
    ],
    [
        0xdb, 0xc0, 0xc2, 0xff, 0x4f, 0x48, 0x1b, 0x40, 0x40, 0x90, 0x11, 0x28, 0x2e, 0x85, 0x6f, 0x5b, 0x32, 0x7e,
        0x89, 0x74, 0x8d, 0xc3, 0xf0, 0xf6, 0xd8, 0xf0, 0x55, 0xf4, 0xd5, 0x59, 0x4c, 0xbc,
    ],
    [
        0x85, 0xab, 0xd9, 0x4d, 0x97, 0xe9, 0xd0, 0x1d, 0xc1, 0x8a, 0x0e, 0x5d, 0xe1, 0x17, 0xc9, 0xf5, 0x90, 0x91,
        0x0d, 0xf6, 0x6e, 0xcc, 0xad, 0x3c, 0x86, 0x1d, 0xa4, 0x43, 0x37, 0x78, 0x80, 0xa0,
    ],
    [
        0x58, 0xc4, 0x55, 0xf5, 0xc3, 0xc5, 0xd1, 0xd6, 0xc1, 0x5d, 0x6c, 0xc6, 0x79, 0xf1, 0xb9, 0x02, 0xd9, 0x3f,
        0xff, 0x49, 0x01, 0x2a, 0x9c, 0x9d, 0x30, 0x6c, 0x02, 0x1a, 0x36, 0xa4, 0x35, 0x37,
    ],
    [
        0x7e, 0xbc, 0xa3, 0x15, 0x4b, 0xe8, 0xc7, 0x11, 0xb9, 0x49, 0xa1, 0x15, 0xaf, 0xa8, 0x7e, 0x60, 0x29, 0x90,
        0x83, 0x07, 0x07, 0xb5, 0x6f, 0x98, 0xf5, 0x60, 0x72, 0x57, 0x9a, 0xc8, 0xc2, 0x79,
    ],
];

/// A tenant as the log names it: a keyed hash of its name. Who holds the key can map it back.
pub type TenantRef = [u8; 16];

/// One entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What every entry has.
    pub head: Head,
    /// What its kind has.
    pub body: Body,
}

/// What every entry has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The format that the entry is written in.
    pub version: EntryVersion,
    /// The entry's id; the request's id for an opened entry.
    pub uuid: [u8; 16],
    /// Fresh random bytes: a leaf hash tells nothing of its entry.
    pub blind: [u8; 32],
    /// The run of the program that wrote it.
    pub boot: [u8; 16],
    /// Microseconds since 1970.
    pub wall_us: u64,
    /// Microseconds since the log was opened.
    pub mono_us: u64,
    /// The tenant whose chain the entry continues.
    pub tenant: Option<TenantLink>,
}

/// An entry's place among its tenant's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLink {
    /// Whose.
    pub tenant: TenantRef,
    /// Counts from 0 without a gap.
    pub number: u64,
    /// Leaf hash of the tenant's previous entry; zeros for the first.
    pub previous: Digest,
}

/// What an entry says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// The first entry of a log.
    Genesis {
        /// The log's name.
        origin: String,
        /// [`EntryVersion::schema_digest`] of the entry's version.
        schema: Option<Digest>,
        /// Digest of the last checkpoint of the log that this one continues.
        previous_checkpoint: Option<Digest>,
        /// The verifier key line of the log's first key.
        verifier_key: String,
    },
    /// A request, before anything is sent.
    Opened(Opened),
    /// The end of a response.
    Sealed(Sealing),
    /// An isolation fault.
    Incident(Incident),
    /// The engine failed a request without an isolation fault.
    Fault(EngineFault),
    /// What a probe says of the isolation between tenants.
    Audit(IsolationAudit),
    /// A response that was computed again.
    Replay(Replay),
    /// What became of an incident.
    IncidentState(IncidentState),
    /// A commitment key is destroyed.
    Erasure(Erasure),
    /// A commitment key was destroyed.
    Erased(Erased),
    /// Something is not to be destroyed.
    Hold(Hold),
    /// A hold ends.
    Release(Release),
    /// Old traces are dropped.
    Prune(Prune),
    /// The log's key is followed by another one: the window in which both sign begins or ends.
    KeyRotation(KeyRotation),
    /// An auditor or a witness has fallen behind.
    Lag(CosignerLag),
    /// The gateway tried its own detectors.
    SelfTest(SelfTest),
    /// What a start had to discard.
    Recovered {
        /// Whole entries that were never acknowledged.
        entries_discarded: u64,
        /// Bytes of them and of torn ones.
        bytes_discarded: u64,
    },
    /// An idle log lives.
    Heartbeat,
}

/// What is known when a request is accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// Epoch of the tenant's commitment key.
    pub epoch: u64,
    /// Commitment of the request body.
    pub request: [u8; 32],
    /// Commitment of the tenant's name.
    pub tenant_name: [u8; 32],
    /// Digest of the rule set in force.
    pub rules: Digest,
    /// Digest of the names of the rules that decided: see [`determining_digest`].
    pub determining: Digest,
    /// Digest of the model file.
    pub model: Digest,
    /// Digest of all that decides the answer's bits; `None` in entries of version 1 and in no others.
    pub fingerprint: Option<Digest>,
    /// Digest of the program that computes and serves.
    pub build: Digest,
    /// Whether the response is a stream.
    pub stream: bool,
}

/// Why a response ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SealReason {
    /// The model ended its turn or a stop string was met.
    Stop = 0,
    /// The token limit was reached.
    Length = 1,
    /// The client went away, or the gateway gave up on it.
    Aborted = 2,
    /// The engine failed.
    Error = 3,
    /// An isolation fault stopped it.
    Isolation = 4,
    /// The log's process ended before the response did; written at the next start.
    Crash = 5,
}

impl SealReason {
    const ALL: [Self; 6] = [Self::Stop, Self::Length, Self::Aborted, Self::Error, Self::Isolation, Self::Crash];

    /// The word for people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Aborted => "aborted",
            Self::Error => "error",
            Self::Isolation => "isolation",
            Self::Crash => "crash",
        }
    }
}

/// What is known when a response ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealing {
    /// The request.
    pub request: RequestId,
    /// Index of its opened entry.
    pub opened_index: u64,
    /// Leaf hash of its opened entry.
    pub opened_leaf: Digest,
    /// Why it ended.
    pub reason: SealReason,
    /// Commitment of the payloads sent; `None` after a crash.
    pub response: Option<[u8; 32]>,
    /// Head of the chunk chain; `None` after a crash.
    pub chain: Option<[u8; 32]>,
    /// Payloads sent.
    pub chunks: u64,
    /// Engine steps that passed the gate.
    pub steps: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens sampled.
    pub completion_tokens: u64,
    /// Distinct pages read.
    pub pages: PageCounts,
    /// Digest of the trace; `None` after a crash.
    pub trace: Option<Digest>,
    /// Time in the queue, in microseconds.
    pub queued_us: u64,
    /// Time in prefill, in microseconds.
    pub prefill_us: u64,
    /// Time in decode, in microseconds.
    pub decode_us: u64,
    /// Which checks were on.
    pub coverage: Coverage,
    /// Commitment of the replay digest, where one was made; `None` in entries of versions 1 and 2.
    pub replay: Option<[u8; 32]>,
}

/// Which checks a response went through.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Every step's pages were compared with the request's label before its text was sent.
    pub label_gate: bool,
    /// The kernels compared page tags while reading.
    pub kernel_tags: bool,
    /// How the prompt's pages came to who went on with them.
    pub handover: Handover,
}

/// How the pages of a prompt come from the group that computes it to the one that goes on with it. Whatever is handed over
/// is sealed before, and compared with what was ordered and sealed before its first token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Handover {
    /// One group does both.
    #[default]
    None = 0,
    /// They stay where they are and get another owner.
    Relabel = 1,
    /// They are copied from one pool to another.
    Copy = 2,
    /// They come from another process, over a link.
    Staged = 3,
}

impl Handover {
    const ALL: [Self; 4] = [Self::None, Self::Relabel, Self::Copy, Self::Staged];

    /// As reports name it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Relabel => "relabel",
            Self::Copy => "copy",
            Self::Staged => "staged",
        }
    }
}

impl Coverage {
    fn bits(self) -> u64 {
        u64::from(self.label_gate) | u64::from(self.kernel_tags) << 1 | (self.handover as u64) << 2
    }

    fn from_bits(bits: u64) -> Option<Self> {
        let handover = *Handover::ALL.get(usize::try_from(bits >> 2).ok()?)?;
        Some(Self { label_gate: bits & 1 != 0, kernel_tags: bits & 2 != 0, handover })
    }
}

/// Digest of the names of determining rules: SHA-256 over each name's length in 32 bits, big-endian, and its bytes.
#[must_use]
pub fn determining_digest<'a>(names: impl IntoIterator<Item = &'a str>) -> Digest {
    let mut hash = Sha256::new();
    for name in names {
        #[expect(clippy::cast_possible_truncation, reason = "a rule's name is far below 4 GiB")]
        hash.update((name.len() as u32).to_be_bytes());
        hash.update(name);
    }
    Digest(hash.finalize().into())
}

const HEAD_FIELDS: u64 = 10;

impl Body {
    fn kind(&self) -> u64 {
        match self {
            Self::Genesis { .. } => 0,
            Self::Opened(_) => 1,
            Self::Sealed(_) => 2,
            Self::Incident(_) => 5,
            Self::Fault(_) => 6,
            Self::Audit(_) => 7,
            Self::Recovered { .. } => 8,
            Self::Replay(_) => 9,
            Self::IncidentState(_) => 10,
            Self::Heartbeat => 11,
            Self::Erasure(_) => 12,
            Self::Erased(_) => 13,
            Self::Hold(_) => 14,
            Self::Release(_) => 15,
            Self::Prune(_) => 16,
            Self::KeyRotation(_) => 17,
            Self::Lag(_) => 18,
            Self::SelfTest(_) => 19,
        }
    }

    /// The kind's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Genesis { .. } => "genesis",
            Self::Opened(_) => "opened",
            Self::Sealed(_) => "sealed",
            Self::Incident(_) => "incident",
            Self::Fault(_) => "fault",
            Self::Audit(_) => "audit",
            Self::Recovered { .. } => "recovered",
            Self::Replay(_) => "replay",
            Self::IncidentState(_) => "incident_state",
            Self::Heartbeat => "heartbeat",
            Self::Erasure(_) => "erasure",
            Self::Erased(_) => "erased",
            Self::Hold(_) => "hold",
            Self::Release(_) => "release",
            Self::Prune(_) => "prune",
            Self::KeyRotation(_) => "key_rotation",
            Self::Lag(_) => "lag",
            Self::SelfTest(_) => "self_test",
        }
    }

    fn fields(&self, version: EntryVersion) -> u64 {
        match self {
            Self::Genesis { .. } => 4,
            Self::Opened(opened) => 9 + u64::from(opened.fingerprint.is_some()),
            Self::Sealed(_) => 18 + u64::from(version >= EntryVersion::V3),
            Self::Incident(_) => 16,
            Self::Fault(_) | Self::Audit(_) => 6,
            Self::Recovered { .. } | Self::Release(_) | Self::Prune(_) => 3,
            Self::Erased(_) => 4,
            Self::Erasure(_) | Self::Hold(_) => 5,
            Self::KeyRotation(_) | Self::Lag(_) => 7,
            Self::SelfTest(_) => 2,
            Self::Replay(_) => 8,
            Self::IncidentState(_) => 9,
            Self::Heartbeat => 0,
        }
    }

    fn encode(&self, version: EntryVersion, writer: &mut Writer) {
        let digest = |digest: &Option<Digest>| digest.map(|digest| digest.0);
        match self {
            Self::Genesis { origin, schema, previous_checkpoint, verifier_key } => {
                writer.text(origin).bytes_or_null(digest(schema).as_ref().map(<[u8; 32]>::as_slice));
                writer.bytes_or_null(digest(previous_checkpoint).as_ref().map(<[u8; 32]>::as_slice));
                writer.text(verifier_key);
            }
            Self::Opened(opened) => {
                writer.uint(opened.epoch).bytes(&opened.request).bytes(&opened.tenant_name);
                writer.bytes(&opened.rules.0).bytes(&opened.determining.0);
                writer.bytes(&opened.model.0);
                if let Some(fingerprint) = &opened.fingerprint {
                    writer.bytes(&fingerprint.0);
                }
                writer.bytes(&opened.build.0).uint(opened.stream.into()).uint(0);
            }
            Self::Sealed(sealed) => {
                writer.bytes(&sealed.request.bytes()).uint(sealed.opened_index).bytes(&sealed.opened_leaf.0);
                writer.uint(sealed.reason as u64);
                writer.bytes_or_null(sealed.response.as_ref().map(<[u8; 32]>::as_slice));
                writer.bytes_or_null(sealed.chain.as_ref().map(<[u8; 32]>::as_slice));
                writer.uint(sealed.chunks).uint(sealed.steps);
                writer.uint(sealed.prompt_tokens).uint(sealed.completion_tokens);
                writer.uint(sealed.pages.own).uint(sealed.pages.public).uint(sealed.pages.foreign);
                writer.bytes_or_null(digest(&sealed.trace).as_ref().map(<[u8; 32]>::as_slice));
                writer.uint(sealed.queued_us).uint(sealed.prefill_us).uint(sealed.decode_us);
                writer.uint(sealed.coverage.bits());
                if version >= EntryVersion::V3 {
                    writer.bytes_or_null(sealed.replay.as_ref().map(<[u8; 32]>::as_slice));
                }
            }
            Self::Incident(incident) => incident.encode(writer),
            Self::Fault(fault) => fault.encode(writer),
            Self::Audit(audit) => audit.encode(writer),
            Self::Replay(replay) => replay.encode(writer),
            Self::IncidentState(state) => state.encode(writer),
            Self::Erasure(erasure) => erasure.encode(writer),
            Self::Erased(erased) => erased.encode(writer),
            Self::Hold(hold) => hold.encode(writer),
            Self::Release(release) => release.encode(writer),
            Self::Prune(prune) => prune.encode(writer),
            Self::KeyRotation(rotation) => rotation.encode(writer),
            Self::Lag(lag) => lag.encode(writer),
            Self::SelfTest(test) => test.encode(writer),
            Self::Recovered { entries_discarded, bytes_discarded } => {
                writer.uint(0).uint(*entries_discarded).uint(*bytes_discarded);
            }
            Self::Heartbeat => {}
        }
    }

    fn decode(version: EntryVersion, kind: u64, reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            0 => Self::Genesis {
                origin: short_text(reader, "origin")?,
                schema: digest_or_null(reader, "schema")?,
                previous_checkpoint: digest_or_null(reader, "previous checkpoint")?,
                verifier_key: short_text(reader, "verifier key")?,
            },
            1 => Self::Opened(decode_opened(version, reader)?),
            2 => Self::Sealed(decode_sealed(version, reader)?),
            5 => Self::Incident(Incident::decode(version, reader)?),
            6 if version >= EntryVersion::V2 => Self::Fault(EngineFault::decode(reader)?),
            7 if version >= EntryVersion::V2 => Self::Audit(IsolationAudit::decode(reader)?),
            8 => {
                exactly(reader, 0, "code")?;
                Self::Recovered { entries_discarded: reader.uint()?, bytes_discarded: reader.uint()? }
            }
            9 if version >= EntryVersion::V3 => Self::Replay(Replay::decode(reader)?),
            10 if version >= EntryVersion::V3 => Self::IncidentState(IncidentState::decode(reader)?),
            11 => Self::Heartbeat,
            12 if version >= EntryVersion::V4 => Self::Erasure(Erasure::decode(reader)?),
            13 if version >= EntryVersion::V4 => Self::Erased(Erased::decode(reader)?),
            14 if version >= EntryVersion::V4 => Self::Hold(Hold::decode(reader)?),
            15 if version >= EntryVersion::V4 => Self::Release(Release::decode(reader)?),
            16 if version >= EntryVersion::V4 => Self::Prune(Prune::decode(reader)?),
            17 if version >= EntryVersion::V5 => Self::KeyRotation(KeyRotation::decode(reader)?),
            18 if version >= EntryVersion::V5 => Self::Lag(CosignerLag::decode(reader)?),
            19 if version >= EntryVersion::V5 => Self::SelfTest(SelfTest::decode(reader)?),
            kind => return Err(DecodeError::Kind { kind }),
        })
    }
}

fn decode_opened(version: EntryVersion, reader: &mut Reader<'_>) -> Result<Opened, DecodeError> {
    let opened = Opened {
        epoch: reader.uint()?,
        request: reader.fixed("request")?,
        tenant_name: reader.fixed("tenant name")?,
        rules: Digest(reader.fixed("rules")?),
        determining: Digest(reader.fixed("determining")?),
        model: Digest(reader.fixed("model")?),
        fingerprint: match version {
            EntryVersion::V1 => None,
            _ => Some(Digest(reader.fixed("fingerprint")?)),
        },
        build: Digest(reader.fixed("build")?),
        stream: yes_or_no(reader, "stream")?,
    };
    exactly(reader, 0, "mode")?;
    Ok(opened)
}

fn decode_sealed(version: EntryVersion, reader: &mut Reader<'_>) -> Result<Sealing, DecodeError> {
    Ok(Sealing {
        request: RequestId::from_bytes(reader.fixed("request id")?),
        opened_index: reader.uint()?,
        opened_leaf: Digest(reader.fixed("opened leaf")?),
        reason: numbered(&SealReason::ALL, reader.uint()?, "reason")?,
        response: digest_or_null(reader, "response")?.map(|digest| digest.0),
        chain: digest_or_null(reader, "chain")?.map(|digest| digest.0),
        chunks: reader.uint()?,
        steps: reader.uint()?,
        prompt_tokens: reader.uint()?,
        completion_tokens: reader.uint()?,
        pages: PageCounts { own: reader.uint()?, public: reader.uint()?, foreign: reader.uint()? },
        trace: digest_or_null(reader, "trace")?,
        queued_us: reader.uint()?,
        prefill_us: reader.uint()?,
        decode_us: reader.uint()?,
        coverage: Coverage::from_bits(reader.uint()?).ok_or(DecodeError::Range { field: "coverage" })?,
        replay: match version {
            EntryVersion::V1 | EntryVersion::V2 => None,
            _ => digest_or_null(reader, "replay")?.map(|digest| digest.0),
        },
    })
}

impl Entry {
    /// The entry's bytes. They are what is hashed and stored, and never made a second time.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        let head = &self.head;
        writer.array(HEAD_FIELDS + self.body.fields(head.version)).uint(head.version as u64).uint(self.body.kind());
        writer.bytes(&head.uuid).bytes(&head.blind).bytes(&head.boot).uint(head.wall_us).uint(head.mono_us);
        match &head.tenant {
            Some(link) => writer.bytes(&link.tenant).uint(link.number).bytes(&link.previous.0),
            None => writer.null().uint(0).bytes(&[0; 32]),
        };
        self.body.encode(head.version, &mut writer);
        writer.finish()
    }

    /// Reads an entry's bytes.
    ///
    /// # Errors
    /// [`DecodeError`] for anything that [`Entry::encode`] would not have written.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        if bytes.len() > ENTRY_BYTES_MAX {
            return Err(DecodeError::TooLong { length: bytes.len(), length_max: ENTRY_BYTES_MAX });
        }
        let mut reader = Reader::new(bytes);
        let fields = reader.array()?;
        let version = reader.uint()?;
        let version = EntryVersion::from_number(version).ok_or(DecodeError::Version { version })?;
        let kind = reader.uint()?;
        let (uuid, blind, boot) = (reader.fixed("uuid")?, reader.fixed("blind")?, reader.fixed("boot")?);
        let (wall_us, mono_us) = (reader.uint()?, reader.uint()?);
        let tenant: Option<TenantRef> = if reader.null() { None } else { Some(reader.fixed("tenant")?) };
        let (number, previous) = (reader.uint()?, Digest(reader.fixed("tenant previous")?));
        if tenant.is_none() && (number, previous) != (0, Digest([0; 32])) {
            return Err(DecodeError::Range { field: "tenant number" });
        }
        let tenant = tenant.map(|tenant| TenantLink { tenant, number, previous });
        let body = Body::decode(version, kind, &mut reader)?;
        reader.end()?;
        if fields != HEAD_FIELDS + body.fields(version) {
            return Err(DecodeError::Range { field: "number of fields" });
        }
        Ok(Self { head: Head { version, uuid, blind, boot, wall_us, mono_us, tenant }, body })
    }
}

pub(crate) fn exactly(reader: &mut Reader<'_>, number: u64, field: &'static str) -> Result<(), DecodeError> {
    if reader.uint()? == number { Ok(()) } else { Err(DecodeError::Range { field }) }
}

/// 0 for no and 1 for yes.
pub(crate) fn yes_or_no(reader: &mut Reader<'_>, field: &'static str) -> Result<bool, DecodeError> {
    numbered(&[false, true], reader.uint()?, field)
}

pub(crate) fn numbered<T: Copy>(all: &[T], number: u64, field: &'static str) -> Result<T, DecodeError> {
    usize::try_from(number).ok().and_then(|number| all.get(number)).copied().ok_or(DecodeError::Range { field })
}

fn digest_or_null(reader: &mut Reader<'_>, field: &'static str) -> Result<Option<Digest>, DecodeError> {
    if reader.null() { Ok(None) } else { reader.fixed(field).map(Digest).map(Some) }
}

pub(crate) fn short_text(reader: &mut Reader<'_>, field: &'static str) -> Result<String, DecodeError> {
    let text = reader.text()?;
    if text.len() > TEXT_BYTES_MAX { Err(DecodeError::Range { field }) } else { Ok(text.to_owned()) }
}
