//! A tenant's own entries, in the order of its chain, all proven under one published checkpoint: numbers without a gap, each
//! entry with the leaf hash of the one before, show the tenant that nothing of its own is missing. What an entry says of
//! somebody else stays out: such an entry is shown by its leaf hash alone, which the chain and the proof still hold.

use crate::index::LookupError;
use crate::log::{AuditLog, Shared};
use crate::publish::Published;
use crate::receipt::{RETRY_AFTER_MS, TRIES_MAX, Tiles, opens};
use audit_provenance::{Body, Entry, Incident, IncidentState, Salt, TenantRef};
use audit_tlog::{Hash, TiledTree, TreeReadError, leaf_hash};
use policies_domain::{Principal, TenantName};
use std::io;
use std::sync::{Arc, PoisonError};

/// Entries that one answer holds: about 200 KB of text in a log of a million entries.
pub const OWN_ENTRIES_MAX: u64 = 128;

/// Which entries a tenant asks for, by its own numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnEntriesQuery {
    /// The first.
    pub from: u64,
    /// The one after the last; all that there are without it.
    pub to: Option<u64>,
    /// Size of a checkpoint that the tenant holds; the answer shows that the log continues it.
    pub held: Option<u64>,
}

/// Some of a tenant's entries, and what proves them.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnEntries {
    /// The tenant as its entries name it.
    pub tenant: TenantRef,
    /// Its name.
    pub tenant_name: TenantName,
    /// Number of the first entry here.
    pub from: u64,
    /// The checkpoint that all proofs are under, a signed note.
    pub checkpoint: String,
    /// The size that was held, and the proof that the checkpoint continues it.
    pub held: Option<(u64, Vec<Hash>)>,
    /// The entries; fewer than were asked for when there are more than [`OWN_ENTRIES_MAX`], or when the rest is not published.
    pub entries: Vec<OwnEntry>,
    /// What to ask for next, from and to; `None` when that was all.
    pub next: Option<(u64, u64)>,
}

/// One entry of a tenant.
#[derive(Clone, PartialEq)]
pub struct OwnEntry {
    /// Its place in the log.
    pub index: u64,
    /// Its leaf hash.
    pub leaf: Hash,
    /// Its bytes, as they are stored; `None` when they name somebody else.
    pub bytes: Option<Vec<u8>>,
    /// The inclusion proof, from the leaf's sibling upwards.
    pub proof: Vec<Hash>,
    /// Of an opened entry, what opens its commitment of the tenant's name; `None` when the key was destroyed.
    pub tenant_salt: Option<Salt>,
}

impl std::fmt::Debug for OwnEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnEntry").field("index", &self.index).field("leaf", &self.leaf).finish_non_exhaustive()
    }
}

/// Why there are none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OwnEntriesError {
    /// Whoever asks so knows of entries that the log does not have.
    #[error("the log has {entries} entries of this tenant, from number {from} on were asked for")]
    Ahead {
        /// What was asked for.
        from: u64,
        /// What there is.
        entries: u64,
    },
    /// Nobody can hold a checkpoint of that size, unless this log was rolled back or is another one.
    #[error("the log has published {published} entries, a checkpoint of {held} is said to be held")]
    HeldAhead {
        /// What is held.
        held: u64,
        /// What there is.
        published: u64,
    },
    /// The first of them is not under a published checkpoint.
    #[error("not published yet, retry in {retry_after_ms} ms")]
    NotYet {
        /// When it is worth another try.
        retry_after_ms: u64,
    },
    /// What is stored does not verify, or could not be read.
    #[error("the stored log does not verify: {reason}")]
    Damaged {
        /// What did not.
        reason: Arc<str>,
    },
}

impl From<LookupError> for OwnEntriesError {
    fn from(LookupError::Damaged { reason }: LookupError) -> Self {
        Self::Damaged { reason }
    }
}

impl AuditLog {
    /// A principal's own entries. Reads files: call it where blocking is allowed.
    ///
    /// # Errors
    /// [`OwnEntriesError`].
    pub fn own_entries(&self, principal: &Principal, query: OwnEntriesQuery) -> Result<OwnEntries, OwnEntriesError> {
        own_entries(&self.shared, principal, query)
    }
}

fn own_entries(shared: &Shared, principal: &Principal, query: OwnEntriesQuery) -> Result<OwnEntries, OwnEntriesError> {
    let tenant = shared.keys.tenant_ref(principal.name());
    let entries = shared.index.entries_of(tenant);
    if query.from > entries {
        return Err(OwnEntriesError::Ahead { from: query.from, entries });
    }
    let to = query.to.unwrap_or(entries).min(entries);
    let wanted = to.saturating_sub(query.from).min(OWN_ENTRIES_MAX);
    let indices = shared.index.tenant_entries(tenant, query.from, wanted)?;
    let asked = Asked { shared, principal, tenant, from: query.from, to, held: query.held };
    // Under what witnesses have cosigned, if all of it is old enough. Its partial tiles may be gone when it is not the newest
    // any more; then the newest has to do.
    let witnessed = shared.witnessed.read().unwrap_or_else(PoisonError::into_inner).clone();
    if let (Some(witnessed), Some(last)) = (witnessed, indices.last())
        && *last < witnessed.size
        && query.held.is_none_or(|held| held <= witnessed.size)
        && let Ok(own) = asked.prove(&indices, &witnessed)
    {
        return Ok(own);
    }
    let mut tries = 0;
    loop {
        let published = Arc::clone(&shared.published.read().unwrap_or_else(PoisonError::into_inner));
        if let Some(held) = query.held.filter(|held| *held > published.size) {
            return Err(OwnEntriesError::HeldAhead { held, published: published.size });
        }
        let covered = indices.partition_point(|index| *index < published.size);
        let covered = indices.get(..covered).unwrap_or_default();
        if covered.is_empty() && !indices.is_empty() {
            return Err(OwnEntriesError::NotYet { retry_after_ms: RETRY_AFTER_MS });
        }
        tries += 1;
        match asked.prove(covered, &published) {
            Err(Failure::Tree(TreeReadError::Storage { source, .. }))
                if source.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => {}
            Err(failure) => {
                tracing::error!(%failure, "a tenant's own entries cannot be shown");
                return Err(OwnEntriesError::Damaged { reason: Arc::from(failure.to_string()) });
            }
            Ok(own) => return Ok(own),
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Tree(#[from] TreeReadError),
    #[error("entry {index} is not the one of the tenant that the index says")]
    Index { index: u64 },
    #[error(transparent)]
    Keys(#[from] crate::OpenLogError),
}

/// What is asked, with bounds that the log has.
struct Asked<'a> {
    shared: &'a Shared,
    principal: &'a Principal,
    tenant: TenantRef,
    from: u64,
    to: u64,
    held: Option<u64>,
}

impl Asked<'_> {
    fn prove(&self, indices: &[u64], published: &Published) -> Result<OwnEntries, Failure> {
        let files = Tiles(&*self.shared.storage);
        let tree = TiledTree::new(published.size, published.root, &files);
        let mut entries = Vec::with_capacity(indices.len());
        for (number, index) in (self.from..).zip(indices.iter().copied()) {
            let bytes = tree.entry(index)?;
            entries.push(self.entry(number, index, bytes, tree.prove_inclusion(index)?)?);
        }
        let consistency = |held: u64| match held {
            // Every tree begins with the empty one, and with itself.
            0 => Ok(Vec::new()),
            held if held == published.size => Ok(Vec::new()),
            held => tree.prove_consistency(held),
        };
        let held = self.held.map(|held| Ok::<_, Failure>((held, consistency(held)?))).transpose()?;
        let end = self.from + entries.len() as u64;
        Ok(OwnEntries {
            tenant: self.tenant,
            tenant_name: self.principal.name().clone(),
            from: self.from,
            checkpoint: published.note.clone(),
            held,
            entries,
            next: (end < self.to).then_some((end, self.to)),
        })
    }

    fn entry(&self, number: u64, index: u64, bytes: Vec<u8>, proof: Vec<Hash>) -> Result<OwnEntry, Failure> {
        // INVARIANT: the index only says where to look; the entries themselves say whose they are.
        let entry = Entry::decode(&bytes)
            .ok()
            .filter(|entry| entry.head.tenant.is_some_and(|link| (link.tenant, link.number) == (self.tenant, number)));
        let entry = entry.ok_or(Failure::Index { index })?;
        let tenant_salt = match &entry.body {
            Body::Opened(opened) => {
                let openings = self.shared.keys.openings(self.principal.name(), opened.epoch, &entry.head.uuid)?;
                openings.filter(|openings| opens(openings, opened, index)).map(|openings| openings.tenant)
            }
            _ => None,
        };
        let leaf = leaf_hash(&bytes);
        Ok(OwnEntry { index, leaf, bytes: shows(&entry.body).then_some(bytes), proof, tenant_salt })
    }
}

/// Whether its tenant may see all that an entry says. A recipient is not told whose page it was or which, and neither side
/// who looks after the incident: its own view of incidents has the rest.
fn shows(body: &Body) -> bool {
    match body {
        Body::Opened(_) | Body::Sealed(_) | Body::Fault(_) | Body::Audit(_) | Body::Replay(_) | Body::Erased(_) => true,
        Body::Incident(Incident { victim, page, generation, .. }) => {
            victim.is_none() && page.is_none() && generation.is_none()
        }
        Body::IncidentState(IncidentState { actor, second, evidence, notice, .. }) => {
            actor.is_none() && second.is_none() && evidence.is_none() && notice.is_none()
        }
        // They say who asked for it, and a hold perhaps what nobody is to know. That a key is gone is said by itself.
        Body::Erasure(_) | Body::Hold(_) | Body::Release(_) => false,
        // These have no tenant.
        Body::Prune(_) | Body::KeyRotation(_) | Body::Lag(_) | Body::SelfTest(_) => false,
        Body::Genesis { .. } | Body::Recovered { .. } | Body::Heartbeat => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Storage as _;
    use crate::story::memory::MemoryDisk;
    use crate::story::{START_US, facts, open, outcome, permit, principal, published, step};
    use audit_tlog::{Checkpoint, VerifierKey, check_consistency, check_inclusion};
    use policies_domain::{Digest, Label};

    const ALL: OwnEntriesQuery = OwnEntriesQuery { from: 0, to: None, held: None };

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Answers of acme and of globex in turn, two entries each.
    async fn answers(log: &AuditLog, requests: std::ops::Range<u8>) {
        for request in requests {
            let who = if request % 2 == 0 { principal(1, "acme") } else { principal(2, "globex") };
            let permit = permit(&who, request);
            let mut entry = log.open_request(&permit, facts()).await.unwrap();
            let released = entry.check(step(&permit, 0, permit.label())).unwrap();
            entry.sent(b"payload", &released);
            entry.seal(outcome()).await.unwrap();
        }
        published(log);
    }

    /// What anybody checks: the checkpoint, each proof, and that numbers and chain have no gap.
    fn check(log: &AuditLog, own: &OwnEntries, mut previous: Digest) -> (Checkpoint, Digest) {
        let key = VerifierKey::parse(&log.verifier_key()).unwrap();
        let checkpoint = Checkpoint::open(own.checkpoint.as_bytes(), &key).unwrap();
        for (number, entry) in (own.from..).zip(&own.entries) {
            check_inclusion(&entry.proof, checkpoint.size, checkpoint.root, entry.index, entry.leaf).unwrap();
            if let Some(bytes) = &entry.bytes {
                assert_eq!(leaf_hash(bytes), entry.leaf);
                let link = Entry::decode(bytes).unwrap().head.tenant.unwrap();
                assert_eq!((link.tenant, link.number, link.previous), (own.tenant, number, previous));
            }
            previous = Digest(entry.leaf.0);
        }
        (checkpoint, previous)
    }

    #[test]
    fn a_tenant_sees_its_own_entries_and_no_other() {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        runtime().block_on(answers(&log, 0..7));
        let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
        let (first, second) = (log.own_entries(&acme, ALL).unwrap(), log.own_entries(&globex, ALL).unwrap());
        assert_eq!((first.entries.len(), second.entries.len()), (8, 6));
        for own in [&first, &second] {
            check(&log, own, Digest([0; 32]));
            assert!(own.next.is_none());
            assert!(own.entries.iter().all(|entry| entry.bytes.is_some()));
        }
        let places = |own: &OwnEntries| own.entries.iter().map(|entry| entry.index).collect::<Vec<_>>();
        assert!(places(&first).iter().all(|index| !places(&second).contains(index)));
        // A tenant is its name: the number that a process gives it is not looked at.
        assert_eq!(log.own_entries(&principal(9, "acme"), ALL).unwrap().entries, first.entries);
        let nobody = log.own_entries(&principal(1, "initech"), ALL).unwrap();
        assert!(nobody.entries.is_empty() && nobody.next.is_none());
        // The salt of the name, and only where there is a name to open.
        let salts: Vec<bool> = first.entries.iter().map(|entry| entry.tenant_salt.is_some()).collect();
        assert_eq!(salts, [true, false].repeat(4));
    }

    #[test]
    fn an_entry_of_somebody_else_is_not_shown_whatever_the_index_says() {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        runtime().block_on(answers(&log, 0..4));
        let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
        let foreign = log.own_entries(&globex, ALL).unwrap().entries.first().unwrap().index;
        let own = log.own_entries(&acme, ALL).unwrap().entries.first().unwrap().index;
        let published = Arc::clone(&log.shared.published.read().unwrap());
        let tenant = log.shared.keys.tenant_ref(acme.name());
        let asked = |from| Asked { shared: &log.shared, principal: &acme, tenant, from, to: 4, held: None };
        assert!(asked(0).prove(&[own], &published).is_ok());
        assert!(matches!(asked(0).prove(&[foreign], &published), Err(Failure::Index { .. })), "another tenant's");
        assert!(matches!(asked(1).prove(&[own], &published), Err(Failure::Index { .. })), "under another number");
        assert!(matches!(asked(0).prove(&[0], &published), Err(Failure::Index { .. })), "nobody's");
    }

    #[test]
    fn no_more_is_shown_than_was_asked_for_and_the_rest_is_named() {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        runtime().block_on(answers(&log, 0..251));
        let acme = principal(1, "acme");
        let ask = |from, to, held| log.own_entries(&acme, OwnEntriesQuery { from, to, held });
        let some = ask(3, Some(5), None).unwrap();
        assert_eq!((some.from, some.entries.len(), some.next), (3, 2, None));
        assert_eq!(ask(252, None, None).unwrap().entries, [], "behind the last");
        assert_eq!(ask(253, None, None), Err(OwnEntriesError::Ahead { from: 253, entries: 252 }));
        assert_eq!(ask(5, Some(3), None).unwrap().entries, []);
        let (held, published) = (9_999, log.health().published);
        assert_eq!(ask(0, None, Some(held)), Err(OwnEntriesError::HeldAhead { held, published }));

        let (mut query, mut previous, mut seen, mut held) = (ALL, Digest([0; 32]), 0, None::<Checkpoint>);
        loop {
            let page = log.own_entries(&acme, query).unwrap();
            assert!(page.entries.len() as u64 <= OWN_ENTRIES_MAX);
            let (checkpoint, last) = check(&log, &page, previous);
            if let Some(held) = &held {
                let (size, proof) = page.held.as_ref().unwrap();
                assert!(*size == held.size && held.size < checkpoint.size);
                check_consistency(proof, checkpoint.size, checkpoint.root, held.size, held.root).unwrap();
            }
            seen += page.entries.len() as u64;
            previous = last;
            let Some((from, to)) = page.next else { break };
            assert_eq!((from, to), (seen, 252), "an end that does not move while it is walked to");
            query = OwnEntriesQuery { from, to: Some(to), held: Some(checkpoint.size) };
            held = Some(checkpoint);
            // The log goes on meanwhile.
            runtime().block_on(answers(&log, 251..253));
        }
        assert_eq!(seen, 252);
    }

    #[test]
    fn what_is_not_published_comes_later() {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        let acme = principal(1, "acme");
        runtime().block_on(answers(&log, 0..1));
        let before = Arc::clone(&log.shared.published.read().unwrap());
        runtime().block_on(answers(&log, 2..3));
        // As if the second answer had only been committed.
        *log.shared.published.write().unwrap() = before;
        let ask = |from| log.own_entries(&acme, OwnEntriesQuery { from, to: None, held: None });
        let page = ask(0).unwrap();
        assert_eq!((page.entries.len(), page.next), (2, Some((2, 4))));
        assert_eq!(ask(2), Err(OwnEntriesError::NotYet { retry_after_ms: RETRY_AFTER_MS }));
    }

    #[test]
    fn what_names_somebody_else_is_shown_by_its_hash_alone() {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        let (acme, globex) = (principal(1, "acme"), principal(2, "globex"));
        runtime().block_on(async {
            // The log has heard of globex, so that the incident names it.
            answers(&log, 1..2).await;
            let permit = permit(&acme, 2);
            let mut entry = log.open_request(&permit, facts()).await.unwrap();
            entry.check(step(&permit, 0, Label::of(globex.tenant()))).unwrap_err();
            entry.refuse().await.unwrap();
            published(&log);
        });
        let own = log.own_entries(&acme, ALL).unwrap();
        check(&log, &own, Digest([0; 32]));
        let shown: Vec<bool> = own.entries.iter().map(|entry| entry.bytes.is_some()).collect();
        let victim = log.shared.keys.tenant_ref(globex.name());
        let names = |bytes: &[u8]| bytes.windows(victim.len()).any(|window| window == victim);
        assert!(shown.contains(&false), "the incident is among them: {shown:?}");
        assert!(own.entries.iter().flat_map(|entry| &entry.bytes).all(|bytes| !names(bytes)));
        // The victim's own chain has nothing of it.
        assert_eq!(log.own_entries(&globex, ALL).unwrap().entries.len(), 2);
    }

    #[test]
    fn a_destroyed_key_takes_the_salts_and_nothing_else() {
        let disk = MemoryDisk::default();
        let log = open(&disk, START_US).unwrap();
        runtime().block_on(answers(&log, 0..1));
        log.shutdown();
        drop(log);
        let keys: Vec<String> = disk.paths().into_iter().filter(|path| path.starts_with("keys/tenants/acme")).collect();
        keys.iter().for_each(|path| disk.remove(path).unwrap());
        assert_eq!(keys.len(), 1);
        let log = open(&disk, START_US + 1_000_000_000).unwrap();
        published(&log);
        let own = log.own_entries(&principal(1, "acme"), ALL).unwrap();
        check(&log, &own, Digest([0; 32]));
        assert!(own.entries.len() == 2 && own.entries.iter().all(|entry| entry.tenant_salt.is_none()));
    }
}
