//! Logs as a dishonest operator would make them: any entries, rightly hashed and rightly signed.
#![allow(dead_code, reason = "each test file uses its part")]

use audit_provenance::{
    Body, ChunkChain, ChunkRuns, Commitment, Coverage, Disclosure, DisclosureVersion, Entry, EntryVersion, Field,
    Handover, Head, Incident, IncidentClass, KeyRotation, KeyRotationStage, Opened, Openings, PageClass, PageCounts,
    PageRun, SealReason, Sealing, TenantLink, TenantRef, Trace,
};
use audit_tlog::{
    Checkpoint, Edge, Hash, LogSigner, RotationStage, SignedRotation, TILE_WIDTH, TileFiles, TilePath, TiledTree,
    TlogProof, encode_bundle, leaf_hash,
};
use policies_domain::{Digest, Generation, PageId, RequestId};
use std::collections::HashMap;
use std::io;
use std::path::Path;

pub(crate) const ORIGIN: &str = "forged.example/isolation";
pub(crate) const START_US: u64 = 1_796_000_000_000_000;
pub(crate) const ACME: TenantRef = [0xac; 16];
pub(crate) const GLOBEX: TenantRef = [0x61; 16];

pub(crate) fn signer() -> LogSigner {
    LogSigner::from_seed(ORIGIN, &[42; 32]).unwrap()
}

pub(crate) struct Forge {
    pub(crate) entries: Vec<Vec<u8>>,
    /// Of the entries that come next.
    pub(crate) version: EntryVersion,
    /// So much later are the entries that come next.
    pub(crate) later_us: u64,
    heads: HashMap<TenantRef, (u64, Digest)>,
}

pub(crate) fn openings() -> Openings {
    let tenant_name = "acme".into();
    Openings {
        tenant_name,
        request: [21; 32],
        tenant: [22; 32],
        response: [23; 32],
        chunks: [24; 32],
        replay: Some([25; 32]),
    }
}

impl Forge {
    pub(crate) fn new() -> Self {
        Self::of_version(EntryVersion::CURRENT)
    }

    pub(crate) fn of_version(version: EntryVersion) -> Self {
        let mut forge = Self { entries: Vec::new(), version, later_us: 0, heads: HashMap::new() };
        forge.add(None, genesis_of(version));
        forge
    }

    /// Adds an entry where its tenant's chain continues; gives back its index and leaf hash.
    pub(crate) fn add(&mut self, tenant: Option<TenantRef>, body: Body) -> (u64, Digest) {
        let link = tenant.map(|tenant| {
            let (number, previous) = self.heads.get(&tenant).copied().unwrap_or((0, Digest([0; 32])));
            TenantLink { tenant, number, previous }
        });
        self.add_linked(link, body)
    }

    /// Adds an entry with any link.
    pub(crate) fn add_linked(&mut self, tenant: Option<TenantLink>, body: Body) -> (u64, Digest) {
        let index = self.entries.len() as u64;
        let uuid = match &body {
            Body::Opened(opened) => [opened.request[0]; 16],
            _ => [0xee; 16],
        };
        let (wall_us, mono_us) = (START_US + self.later_us + index * 1_000, index * 1_000);
        let head =
            Head { version: self.version, uuid, blind: [index as u8; 32], boot: [3; 16], wall_us, mono_us, tenant };
        let bytes = Entry { head, body }.encode();
        let leaf = Digest(leaf_hash(&bytes).0);
        if let Some(link) = tenant {
            self.heads.insert(link.tenant, (link.number + 1, leaf));
        }
        self.entries.push(bytes);
        (index, leaf)
    }

    /// What two keys say of each other behind the entries that there are.
    pub(crate) fn rotation(&self, stage: KeyRotationStage, from: &LogSigner, to: &LogSigner) -> KeyRotation {
        let Checkpoint { size, root, .. } = self.files().1;
        let signed = match stage {
            KeyRotationStage::Begin => SignedRotation::sign(RotationStage::Begin, from, to, size, root),
            KeyRotationStage::Finish => SignedRotation::sign(RotationStage::Finish, from, to, size, root),
        };
        let SignedRotation { previous, next, by_previous, by_next, .. } = signed.unwrap();
        let (previous, next, root) = (previous.to_string(), next.to_string(), Digest(root.0));
        KeyRotation { stage, previous, next, size, root, by_previous, by_next }
    }

    /// The beginning of a rotation; its index.
    pub(crate) fn begin(&mut self, from: &LogSigner, to: &LogSigner) -> u64 {
        self.add(None, Body::KeyRotation(self.rotation(KeyRotationStage::Begin, from, to))).0
    }

    /// Its end.
    pub(crate) fn finish(&mut self, from: &LogSigner, to: &LogSigner) -> u64 {
        self.add(None, Body::KeyRotation(self.rotation(KeyRotationStage::Finish, from, to))).0
    }

    /// Writes all files of the log, with a checkpoint that these keys have signed.
    pub(crate) fn write_signed(&self, dir: &Path, signers: &[&LogSigner]) {
        self.write(dir);
        std::fs::write(dir.join("checkpoint"), self.files().1.sign_with(signers).unwrap()).unwrap();
    }

    /// A request and its ordinary end.
    pub(crate) fn answer(&mut self, tenant: TenantRef, request: u8) {
        let at = self.add(Some(tenant), opened(request));
        self.add(Some(tenant), sealed(request, at, |_| {}));
    }

    /// Writes all files of the log.
    pub(crate) fn write(&self, dir: &Path) {
        let (files, checkpoint) = self.files();
        for (path, bytes) in &files.0 {
            let path = dir.join(path.to_string());
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        std::fs::write(dir.join("checkpoint"), checkpoint.sign(&signer()).unwrap()).unwrap();
    }

    pub(crate) fn files(&self) -> (Files, Checkpoint) {
        let (mut files, mut edge, mut bundle) = (HashMap::new(), Edge::new(), Vec::new());
        let bytes = |hashes: &[Hash]| hashes.iter().flat_map(|hash| hash.0).collect::<Vec<u8>>();
        for entry in &self.entries {
            encode_bundle(&mut bundle, entry).unwrap();
            for tile in edge.push(leaf_hash(entry)) {
                let path = TilePath { level: Some(tile.level), number: tile.number, width: TILE_WIDTH };
                files.insert(path, bytes(&tile.hashes));
                if tile.level == 0 {
                    files.insert(TilePath { level: None, ..path }, std::mem::take(&mut bundle));
                }
            }
        }
        for (level, number, hashes) in edge.partial_tiles() {
            let path = TilePath { level: Some(level), number, width: hashes.len() };
            files.insert(path, bytes(hashes));
            if level == 0 {
                files.insert(TilePath { level: None, ..path }, bundle.clone());
            }
        }
        let checkpoint = Checkpoint { origin: ORIGIN.into(), size: edge.size(), root: edge.root() };
        (Files(files), checkpoint)
    }

    /// The log as it was with so many entries.
    pub(crate) fn prefix(&self, size: usize) -> Self {
        Self {
            entries: self.entries[..size].to_vec(),
            version: self.version,
            later_us: self.later_us,
            heads: HashMap::new(),
        }
    }

    /// A receipt for any two entries.
    pub(crate) fn receipt(&self, opened: u64, sealed: u64, trace: &Trace) -> TlogProof {
        let (files, checkpoint) = self.files();
        let tree = TiledTree::new(checkpoint.size, checkpoint.root, &files);
        let disclosure = Disclosure {
            version: DisclosureVersion::CURRENT,
            sealed: tree.entry(sealed).unwrap(),
            opened: tree.entry(opened).unwrap(),
            opened_index: opened,
            opened_proof: tree.prove_inclusion(opened).unwrap().iter().map(|hash| hash.0).collect(),
            openings: Some(openings()),
            trace: Some(trace.encode()),
        };
        TlogProof {
            extra: Some(disclosure.encode()),
            index: sealed,
            hashes: tree.prove_inclusion(sealed).unwrap(),
            checkpoint: checkpoint.sign(&signer()).unwrap(),
        }
    }
}

pub(crate) struct Files(HashMap<TilePath, Vec<u8>>);

impl TileFiles for Files {
    fn read_tile(&self, path: &TilePath, _bytes_max: usize) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or(io::ErrorKind::NotFound.into())
    }
}

pub(crate) fn genesis() -> Body {
    genesis_of(EntryVersion::CURRENT)
}

fn genesis_of(version: EntryVersion) -> Body {
    Body::Genesis {
        origin: ORIGIN.into(),
        schema: Some(version.schema_digest()),
        previous_checkpoint: None,
        verifier_key: signer().verifier_key().to_string(),
    }
}

pub(crate) fn opened(request: u8) -> Body {
    Body::Opened(opened_body(request))
}

/// The first byte of the request's commitment is also what its id is made of.
pub(crate) fn opened_body(request: u8) -> Opened {
    Opened {
        epoch: 115,
        request: [request; 32],
        tenant_name: Commitment::of(Field::Tenant, &openings().tenant, b"acme"),
        rules: Digest([6; 32]),
        determining: Digest([7; 32]),
        model: Digest([8; 32]),
        fingerprint: Some(Digest([10; 32])),
        build: Digest([9; 32]),
        stream: true,
    }
}

/// What an answer of three payloads, from two own pages, reads and sends.
pub(crate) fn trace() -> Trace {
    let page = |page, first_step| PageRun {
        page: PageId(page),
        generation: Generation(1),
        class: PageClass::Own,
        first_step,
        last_step: 2,
    };
    let mut runs = ChunkRuns::default();
    (0..3).for_each(|step| runs.push(step, step));
    Trace { pages: vec![page(4, 0), page(5, 1)], chunks: runs.into_runs() }
}

pub(crate) const PAYLOADS: [&str; 3] = ["{\"content\":\"a\"}", "{\"content\":\"b\"}", "{\"content\":\"c\"}"];

/// The end of such an answer, with a lie.
pub(crate) fn sealed(request: u8, opened: (u64, Digest), lie: impl FnOnce(&mut Sealing)) -> Body {
    let mut response = Commitment::new(Field::Response, &openings().response);
    let mut chain = ChunkChain::new(&openings().chunks, &[request; 32]);
    for (step, payload) in (0..).zip(PAYLOADS) {
        response.update(payload.as_bytes());
        chain.push(payload.as_bytes(), step, step);
    }
    let mut sealing = Sealing {
        request: RequestId::from_bytes([request; 16]),
        opened_index: opened.0,
        opened_leaf: opened.1,
        reason: SealReason::Stop,
        response: Some(response.finish()),
        chain: Some(chain.head()),
        chunks: 3,
        steps: 3,
        prompt_tokens: 10,
        completion_tokens: 3,
        pages: PageCounts { own: 2, public: 0, foreign: 0 },
        trace: Some(Trace::root(&trace().encode())),
        queued_us: 1,
        prefill_us: 2,
        decode_us: 3,
        coverage: Coverage { label_gate: true, kernel_tags: true, handover: Handover::None },
        replay: Some(Commitment::of(Field::Replay, &[25; 32], &[26; 32])),
    };
    lie(&mut sealing);
    Body::Sealed(sealing)
}

pub(crate) fn incident(request: u8, opened: (u64, Digest)) -> Body {
    Body::Incident(Incident {
        incident: [0x1c; 16],
        class: IncidentClass::ForeignPage,
        bytes_released: 0,
        step: Some(0),
        page: Some(4),
        generation: Some(1),
        request: RequestId::from_bytes([request; 16]),
        opened_index: opened.0,
        opened_leaf: opened.1,
        victim: None,
    })
}
