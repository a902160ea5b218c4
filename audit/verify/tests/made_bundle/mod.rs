//! Bundles of a real log, made of their parts, so that each part can be another one.
#![allow(dead_code, reason = "each test file uses its part")]

use audit_evidence::{
    CERTIFICATE, CHECKPOINT, Content, ENTRIES, Evidence, FORMAT, Files, MANIFEST, NameOpening, Placed, ProvenEntry,
    RENDERING, STATEMENT, Span, StatedSelfTests, Statement, VictimIncident, WithheldIncident, documents,
    encode_entries, facts, sign_manifest,
};
use audit_log::{EvidenceQuery, ReportKey, TenantNames, gather_evidence};
use audit_provenance::Entry;
use audit_tlog::{Checkpoint, LogSigner, VerifierKey};
use audit_verify::cosigners;
use policies_domain::{Digest, TenantName};
use std::path::Path;

/// All parts of a bundle.
pub(crate) struct Parts {
    pub(crate) key: VerifierKey,
    pub(crate) note: Vec<u8>,
    pub(crate) statement: Statement,
    pub(crate) entries: Vec<ProvenEntry>,
    pub(crate) report_key: LogSigner,
    pub(crate) certificate: Option<Vec<u8>>,
}

pub(crate) fn parts(dir: &Path, tenant: &str, from_us: u64, to_us: u64) -> Parts {
    let name = TenantName::parse(tenant).unwrap();
    let reference = TenantNames::read(dir).unwrap().reference(&name);
    let time_us = from_us..=to_us;
    let query = EvidenceQuery { tenant: reference, name, time_us, entries_max: 10_000, threads: 1 };
    let gathered = gather_evidence(dir, &query, |_, _, _| {}).unwrap();
    let ReportKey { signer, certificate } = ReportKey::read(dir).unwrap();
    let victim =
        |(at, incident, stage, updated): &(u64, audit_log::Incident, audit_log::IncidentStage, u64)| VictimIncident {
            id: hex::encode(incident.incident),
            class: incident.class.as_str().to_owned(),
            severity: incident.severity_name().to_owned(),
            state: stage.as_str().to_owned(),
            detected_us: *at,
            updated_us: *updated,
            bytes_released: incident.bytes_released,
            page: incident.page,
            generation: incident.generation,
        };
    let withheld = |(entry, at, incident): &(u64, u64, audit_log::Incident)| WithheldIncident {
        entry: *entry,
        id: hex::encode(incident.incident),
        class: incident.class.as_str().to_owned(),
        severity: incident.severity_name().to_owned(),
        detected_us: *at,
        request: incident.request.to_string(),
        bytes_released: incident.bytes_released,
    };
    let proven = |proven: &audit_log::Proven| ProvenEntry {
        index: proven.index,
        content: proven.entry.clone().map_or(Content::Withheld(proven.leaf.0), Content::Entry),
        proof: proven.proof.iter().map(|hash| hash.0).collect(),
    };
    Parts {
        key: VerifierKey::parse(std::fs::read_to_string(dir.join("log.vkey")).unwrap().trim_end()).unwrap(),
        statement: Statement {
            format: FORMAT,
            rendering: RENDERING,
            program: "test".to_owned(),
            made_us: 1_796_000_000_000_000,
            tenant: tenant.to_owned(),
            reference: hex::encode(reference),
            from_us,
            to_us,
            name: gathered.name.map(|(entry, salt)| NameOpening { entry, salt: hex::encode(salt) }),
            withheld: gathered.withheld.iter().map(withheld).collect(),
            as_victim: gathered.as_victim.iter().map(victim).collect(),
            side_channels: Vec::new(),
            self_tests: Some(StatedSelfTests { tests: 3, failed: 1, longest_gap_us: 1 }),
        },
        entries: gathered.entries.iter().map(proven).collect(),
        note: gathered.note,
        report_key: signer,
        certificate,
    }
}

impl Parts {
    /// The files, with the reports that honest code makes of these parts, as far as they can be read.
    pub(crate) fn files(&self) -> Files {
        let mut files = Files::default();
        files.put(STATEMENT, self.statement.encode().unwrap());
        files.put(CHECKPOINT, self.note.clone());
        files.put(ENTRIES, encode_entries(&self.entries).unwrap());
        if let Some(certificate) = &self.certificate {
            files.put(CERTIFICATE, certificate.clone());
        }
        let placed = self.entries.iter().filter_map(|proven| {
            let Content::Entry(bytes) = &proven.content else { return None };
            let entry = Entry::decode(bytes).ok()?;
            Some(Placed { index: proven.index, leaf: Digest(proven.leaf().0), entry })
        });
        let withheld = self.entries.iter().filter(|proven| matches!(proven.content, Content::Withheld(_)));
        let withheld = withheld.map(|proven| (proven.index, Digest(proven.leaf().0))).collect();
        let (from_us, to_us) = (self.statement.from_us, self.statement.to_us);
        let all: Vec<Placed> = placed.collect();
        let end_is_closed = all.last().is_some_and(|last| last.entry.head.wall_us > to_us);
        let entries: Vec<_> =
            all.into_iter().filter(|placed| (from_us..=to_us).contains(&placed.entry.head.wall_us)).collect();
        let span = Span { entries, withheld, begin_is_closed: true, end_is_closed };
        let facts = facts(&span, &self.statement.withheld);
        let checkpoint = Checkpoint::open(&self.note, &self.key);
        let root = audit_tlog::leaf_hash(b"none");
        let checkpoint = checkpoint.unwrap_or(Checkpoint { origin: String::new(), size: 0, root });
        let cosigned_by = cosigners(&self.note, self.key.name());
        let evidence =
            Evidence { statement: &self.statement, checkpoint: &checkpoint, cosigned_by: &cosigned_by, facts: &facts };
        for (name, bytes) in documents(&evidence) {
            files.put(name, bytes);
        }
        files
    }

    /// Signed as the operator signs.
    pub(crate) fn sealed(&self, mut files: Files) -> Vec<u8> {
        let manifest = sign_manifest(self.key.name(), &files, &self.report_key).unwrap();
        files.put(MANIFEST, manifest.into_bytes());
        files.to_archive().unwrap()
    }

    pub(crate) fn bundle(&self) -> Vec<u8> {
        self.sealed(self.files())
    }
}
