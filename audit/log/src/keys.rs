//! The log's keys: signing, pseudonyms, and one commitment key for each tenant and epoch.
//!
//! Destroying a commitment key makes that tenant's commitments of that epoch unopenable for the operator, while the
//! tree still verifies; clients keep the openings that their receipts hold. What was erased is neither read nor made again,
//! and destroyed wherever it is found. A key that is gone and was used, and that the log does not say to be erased, may only be
//! lost: it is not replaced. A secret is stored with a sum that binds it to its log and its file.

use crate::fault::{LogFault, OpenLogError, storage};
use crate::report_key;
use crate::rotation::{self, first_key, first_key_in};
use crate::signer::{CommandSigner, SignerPlace};
use crate::storage::{Storage, StoredFile};
use audit_provenance::{ActorRef, Field, KeyRotation, Openings, Salt, TenantRef};
use audit_tlog::{Checkpoint, CheckpointError, Hash, KeyChain, LogSigner, RotationStage, SignedRotation, VerifierKey};
use hkdf::Hkdf;
use hmac::{Hmac, Mac as _};
use policies_domain::{Digest, TenantName};
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zeroize::Zeroizing;

const SIGNING_KEY: &str = "keys/log.skey";
/// The key that takes its place, while both sign.
const NEXT_KEY: &str = "keys/log.next.skey";
const PSEUDONYM_KEY: &str = "keys/pseudonym.key";
const VERIFIER_KEY: &str = "log.vkey";
const KEYS: &str = "keys";
const TENANT_KEYS: &str = "keys/tenants";
const KEY_FILE_BYTES_MAX: usize = 1_024;
/// What an erased key is named with.
const ERASED_KEY: &[u8] = b"bulkhead/erased-key/v1\0";
/// Commitment keys kept in memory; beyond that they are read again.
const TENANT_KEYS_MAX: usize = 16_384;
/// An epoch is 180 days: erasing less than half a year at a time is not offered.
const EPOCH_US: u64 = 180 * 24 * 3_600 * 1_000_000;

/// What the index's key is derived with: no name of a tenant, which has no slash.
const INDEX_TAGS: &[u8] = b"bulkhead/index-tags/v1";
/// Stands before the names of persons, likewise.
const ACTOR: &str = "bulkhead/operator/";

type Secret = Zeroizing<[u8; 32]>;

/// What to do when a tenant's key is not there.
#[derive(Clone, Copy)]
enum Missing {
    /// There is no key, then.
    Leave,
    /// Nothing was ever committed to with it: make one.
    Make,
    /// The log has entries under it: it is lost.
    Refuse,
}

/// All keys of a log.
pub(crate) struct Keys {
    storage: Arc<dyn Storage>,
    /// The key that the log was begun with: the sums of secret files are bound to it.
    first: VerifierKey,
    signer: LogSigner,
    /// What lies there to take its place.
    next: Option<LogSigner>,
    /// Whether an entry names it, so that it signs, too.
    both: bool,
    /// Index of the entry that names the newest key: it has no word in a tree that does not have it. `None` for the first one.
    named_at: Option<u64>,
    pseudonym: Secret,
    tenants: Mutex<TenantKeys>,
}

/// The commitment keys that are in memory, each in one place, which is zeroed when the last request lets go of it.
#[derive(Default)]
struct TenantKeys {
    held: HashMap<(TenantName, u64), Arc<Secret>>,
    /// Of these no key is read or made.
    erased: HashSet<(TenantRef, u64)>,
    /// The names of all files that are there are on the disk.
    synced: bool,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys({})", self.signer.name())
    }
}

/// The epoch that a moment lies in.
pub(crate) fn epoch(wall_us: u64) -> u64 {
    wall_us / EPOCH_US
}

impl Keys {
    /// Reads the keys; makes those that are missing, but no signing key for a log that has entries.
    pub(crate) fn open(
        storage: Arc<dyn Storage>,
        origin: &str,
        place: &SignerPlace,
        log_exists: bool,
    ) -> Result<Self, OpenLogError> {
        sync_names(&*storage, KEYS)?;
        let signer = match place {
            SignerPlace::File => signer_in_file(&*storage, origin, log_exists)?,
            SignerPlace::Command(command) => CommandSigner::start(command, origin)?,
        };
        if signer.name() != origin {
            return Err(OpenLogError::Origin { held: signer.name().to_owned(), wanted: origin.to_owned() });
        }
        let log = signer.verifier_key();
        let published = storage.read(VERIFIER_KEY, KEY_FILE_BYTES_MAX).ok();
        let published = published.and_then(|line| VerifierKey::parse(std::str::from_utf8(&line).ok()?.trim_end()).ok());
        if let (SignerPlace::Command(command), Some(published)) = (place, published)
            && log_exists
            && published != log
        {
            let command = command.first().cloned().unwrap_or_default();
            return Err(OpenLogError::Signer {
                command,
                reason: format!("the log is signed by {published}, its key is {log}"),
            });
        }
        let first = if log_exists { first_key(&*storage)? } else { None };
        let first = first.unwrap_or_else(|| log.clone());
        let next = if *place == SignerPlace::File { read_signer(&*storage, NEXT_KEY, origin)? } else { None };
        let pseudonym = match read_secret(&*storage, &first, PSEUDONYM_KEY)? {
            Some(secret) => secret,
            None if log_exists => return Err(OpenLogError::KeyMissing { path: PSEUDONYM_KEY.to_owned() }),
            None => make_secret(&*storage, &first, PSEUDONYM_KEY)?,
        };
        // The line for strangers is derived; it is written again when it is not as it should be.
        let line = format!("{log}\n");
        if !storage.read(VERIFIER_KEY, KEY_FILE_BYTES_MAX).is_ok_and(|held| held == line.as_bytes()) {
            write_whole(&*storage, VERIFIER_KEY, line.as_bytes())?;
        }
        Ok(Self { storage, first, signer, next, both: false, named_at: None, pseudonym, tenants: Mutex::default() })
    }

    pub(crate) fn signer(&self) -> &LogSigner {
        &self.signer
    }

    /// The signed checkpoint: by the log's key and, while that is being changed, by the next one as well.
    pub(crate) fn sign(&self, checkpoint: &Checkpoint) -> Result<String, CheckpointError> {
        match self.next.as_ref().filter(|_| self.both) {
            Some(next) => checkpoint.sign_with(&[&self.signer, next]),
            None => checkpoint.sign(&self.signer),
        }
    }

    /// The key that must sign from here on: the next one as soon as an entry names it.
    pub(crate) fn newest(&self) -> &LogSigner {
        self.next.as_ref().filter(|_| self.both).unwrap_or(&self.signer)
    }

    /// The one key that may sign what has room for one signature, for a tree of `size` entries. `None` for a tree in which
    /// another key counts.
    pub(crate) fn signer_of(&self, size: u64) -> Option<&LogSigner> {
        match self.named_at {
            Some(named_at) if size <= named_at => Some(&self.signer).filter(|_| self.both),
            _ => Some(self.newest()),
        }
    }

    /// Compares the keys that are there with those that the entries name. What no entry names does not sign.
    pub(crate) fn settle(&mut self, named: &KeyChain) -> Result<(), OpenLogError> {
        let (held, next) = (self.signer.verifier_key(), self.next.as_ref().map(LogSigner::verifier_key));
        self.both = false;
        let last = named.last_rotation();
        self.named_at = last.map(|(_, window)| window.begin);
        if held == *named.current() {
            if let Some((former, window)) = last
                && window.finish.is_none()
            {
                return Err(OpenLogError::FormerKeyMissing { former: former.to_string() });
            }
            if next.is_some() {
                tracing::warn!(path = NEXT_KEY, "no entry names this key, so it signs nothing");
            }
            return Ok(());
        }
        let Some((_, window)) = last.filter(|(former, _)| **former == held) else {
            let (held, named) = (held.to_string(), named.current().to_string());
            return Err(OpenLogError::KeyNotNamed { held, named });
        };
        if next.as_ref() != Some(named.current()) {
            return Err(OpenLogError::KeyMissing { path: NEXT_KEY.to_owned() });
        }
        self.both = true;
        if window.finish.is_some() {
            // A crash came after the entry that says so.
            self.drop_former()?;
            self.both = false;
            if let Some(next) = self.next.take() {
                self.signer = next;
            }
        } else {
            tracing::info!(former = %held, next = %named.current(), "the log's key is being changed: both sign");
        }
        Ok(())
    }

    /// The word of both keys that the next one takes the other's place, behind these entries. From here on it signs, too.
    pub(crate) fn begin_rotation(&mut self, size: u64, root: Hash) -> Result<KeyRotation, OpenLogError> {
        let Some(next) = &self.next else { return Err(OpenLogError::KeyMissing { path: NEXT_KEY.to_owned() }) };
        if self.both {
            return Err(OpenLogError::RotationOpen { next: next.verifier_key().to_string() });
        }
        let rotation = self.rotation(RotationStage::Begin, next, size, root)?;
        (self.both, self.named_at) = (true, Some(size));
        Ok(rotation)
    }

    /// The word of both keys that the former one is dropped, behind these entries.
    pub(crate) fn finish_rotation(&self, size: u64, root: Hash) -> Result<KeyRotation, OpenLogError> {
        let next = self.next.as_ref().filter(|_| self.both).ok_or(OpenLogError::RotationNotBegun)?;
        self.rotation(RotationStage::Finish, next, size, root)
    }

    fn rotation(
        &self,
        stage: RotationStage,
        next: &LogSigner,
        size: u64,
        root: Hash,
    ) -> Result<KeyRotation, OpenLogError> {
        if size == 0 {
            return Err(OpenLogError::RotationEmpty);
        }
        let signed = SignedRotation::sign(stage, &self.signer, next, size, root);
        let signed = signed.map_err(|source| OpenLogError::NextKey { path: NEXT_KEY.to_owned(), source })?;
        Ok(rotation::body(&signed))
    }

    /// The log's word for the key that signs bundles, by the key that must sign.
    pub(crate) fn vouch(&self) -> Result<(), OpenLogError> {
        report_key::vouch(&*self.storage, self.newest())
    }

    /// Puts the next key in the place of the former one, whose file is overwritten. A crash leaves either; what is derived from
    /// the key is made anew by the next start.
    pub(crate) fn drop_former(&self) -> Result<(), OpenLogError> {
        let Some(next) = self.next.as_ref().filter(|_| self.both) else { return Ok(()) };
        // Still the former key's file when the name is the next one's.
        let former = self.storage.open(SIGNING_KEY).map_err(storage("open", SIGNING_KEY))?;
        self.storage.rename(NEXT_KEY, SIGNING_KEY).map_err(storage("rename", NEXT_KEY))?;
        self.storage.sync_folder(KEYS).map_err(storage("sync", KEYS))?;
        zero(&*former, SIGNING_KEY)?;
        Ok(write_whole(&*self.storage, VERIFIER_KEY, format!("{}\n", next.verifier_key()).as_bytes())?)
    }

    pub(crate) fn verifier_key(&self) -> VerifierKey {
        self.signer.verifier_key()
    }

    /// A tenant as entries name it: 16 bytes of an HMAC of its name.
    pub(crate) fn tenant_ref(&self, name: &TenantName) -> TenantRef {
        pseudonym_of(&self.pseudonym, name)
    }

    /// A person as entries name it: a keyed hash as well, of what is no tenant's name.
    pub(crate) fn actor_ref(&self, name: &TenantName) -> ActorRef {
        truncated(&hmac(&self.pseudonym, format!("{ACTOR}{name}").as_bytes()))
    }

    /// The key of the tags in the index: derived from one that the index's folder does not have.
    pub(crate) fn index_tags(&self) -> Secret {
        Zeroizing::new(hmac(&self.pseudonym, INDEX_TAGS))
    }

    /// The salts of one request; `None` when the key was destroyed, or never was.
    pub(crate) fn openings(
        &self,
        tenant: &TenantName,
        epoch: u64,
        request: &[u8; 16],
    ) -> Result<Option<Openings>, OpenLogError> {
        let key = self.tenant_key(tenant, epoch, Missing::Leave)?;
        Ok(key.map(|key| openings(&key, tenant, request)))
    }

    /// The salts of a new request. Makes the tenant's key for the epoch if this is its first request; that writes files.
    /// `used` says that the log has entries of the tenant and epoch, so that a key must be there. `None` when it was erased.
    pub(crate) fn new_openings(
        &self,
        tenant: &TenantName,
        epoch: u64,
        request: &[u8; 16],
        used: bool,
    ) -> Result<Option<Openings>, OpenLogError> {
        let key = self.tenant_key(tenant, epoch, if used { Missing::Refuse } else { Missing::Make })?;
        Ok(key.map(|key| openings(&key, tenant, request)))
    }

    /// Whether the tenant's key for the epoch is in memory, so that no file is touched.
    pub(crate) fn knows(&self, tenant: &TenantName, epoch: u64) -> bool {
        self.tenants().held.contains_key(&(tenant.clone(), epoch))
    }

    fn tenants(&self) -> MutexGuard<'_, TenantKeys> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tenant_key(
        &self,
        tenant: &TenantName,
        epoch: u64,
        missing: Missing,
    ) -> Result<Option<Arc<Secret>>, OpenLogError> {
        // Held while a key is made, so that two first requests do not make two.
        let mut tenants = self.tenants();
        if let Some(key) = tenants.held.get(&(tenant.clone(), epoch)) {
            return Ok(Some(Arc::clone(key)));
        }
        if tenants.erased.contains(&(self.tenant_ref(tenant), epoch)) {
            return Ok(None);
        }
        let path = tenant_key_path(tenant, epoch);
        let key = match (read_secret(&*self.storage, &self.first, &path)?, missing) {
            (Some(key), _) => {
                if !std::mem::replace(&mut tenants.synced, true) {
                    sync_names(&*self.storage, TENANT_KEYS).inspect_err(|_| tenants.synced = false)?;
                }
                key
            }
            (None, Missing::Leave) => return Ok(None),
            (None, Missing::Make) => {
                tenants.synced = false;
                let made = make_secret(&*self.storage, &self.first, &path)?;
                tenants.synced = true;
                made
            }
            (None, Missing::Refuse) => return Err(OpenLogError::TenantKeyLost { path }),
        };
        if tenants.held.len() >= TENANT_KEYS_MAX {
            tenants.held.clear();
        }
        let key = Arc::new(key);
        tenants.held.insert((tenant.clone(), epoch), Arc::clone(&key));
        Ok(Some(key))
    }

    /// Whether each stored commitment key is whole, but for those that are erased.
    pub(crate) fn check_tenant_keys(&self) -> Result<(), OpenLogError> {
        for file in self.tenant_files()? {
            if file.is_key && !self.tenants().erased.contains(&(file.tenant, file.epoch)) {
                read_secret(&*self.storage, &self.first, &file.path)?;
            }
        }
        Ok(())
    }

    /// Forgets keys for ever: from here on they are neither read nor made.
    pub(crate) fn forget(&self, erased: &[(TenantRef, u64)]) {
        let mut tenants = self.tenants();
        let is_erased = |name: &TenantName, epoch: u64| {
            erased.iter().any(|(_, of)| *of == epoch) && erased.contains(&(self.tenant_ref(name), epoch))
        };
        tenants.held.retain(|(name, epoch), _| !is_erased(name, *epoch));
        tenants.erased.extend(erased);
    }

    /// Destroys the files of forgotten keys, wherever they came from: overwritten, removed, and both on the device when this
    /// returns. Tells how many of each key there were.
    pub(crate) fn destroy_forgotten(&self) -> Result<BTreeMap<(TenantRef, u64), u64>, LogFault> {
        // Held meanwhile, so that nobody makes a key of which the folder was listed before.
        let tenants = self.tenants();
        let mut destroyed = BTreeMap::new();
        if tenants.erased.is_empty() {
            return Ok(destroyed);
        }
        for file in self.tenant_files()? {
            if tenants.erased.contains(&(file.tenant, file.epoch)) {
                overwrite(&*self.storage, &file.path)?;
                self.storage.remove(&file.path).map_err(storage("remove", &file.path))?;
                *destroyed.entry((file.tenant, file.epoch)).or_default() += 1;
            }
        }
        // Also when nothing was found: what a process removed that was killed may not be gone from the device.
        match self.storage.sync_folder(TENANT_KEYS) {
            Err(error) if error.kind() == io::ErrorKind::NotADirectory && destroyed.is_empty() => {}
            synced => synced.map_err(storage("sync", TENANT_KEYS))?,
        }
        Ok(destroyed)
    }

    /// What names a tenant's key of an epoch without telling anything of it. `None` when there is none, or none that is whole.
    pub(crate) fn key_name(&self, tenant: TenantRef, epoch: u64) -> Result<Option<Digest>, LogFault> {
        let is_it = |file: &TenantFile| file.is_key && (file.tenant, file.epoch) == (tenant, epoch);
        let Some(file) = self.tenant_files()?.into_iter().find(is_it) else { return Ok(None) };
        match read_secret(&*self.storage, &self.first, &file.path) {
            Ok(key) => Ok(key.map(|key| {
                Digest(Sha256::new().chain_update(ERASED_KEY).chain_update(key.as_slice()).finalize().into())
            })),
            Err(OpenLogError::Fault(fault)) => Err(fault),
            Err(_) => Ok(None),
        }
    }

    /// Whether a file of that key is there.
    pub(crate) fn has_key(&self, tenant: TenantRef, epoch: u64) -> Result<bool, LogFault> {
        let files = self.tenant_files()?;
        Ok(files.iter().any(|file| (file.tenant, file.epoch) == (tenant, epoch)))
    }

    /// What is stored of commitment keys, whole or not.
    fn tenant_files(&self) -> Result<Vec<TenantFile>, LogFault> {
        let names = self.storage.list(TENANT_KEYS).map_err(storage("list", TENANT_KEYS))?;
        let file = |name: &String| {
            let (tenant, rest) = name.split_once('.')?;
            let (epoch, rest) = rest.split_once('.')?;
            // What a crash left of writing one is as secret as the whole.
            let is_key = match rest {
                "key" => true,
                "key.new" => false,
                _ => return None,
            };
            let tenant = self.tenant_ref(&TenantName::parse(tenant).ok()?);
            Some(TenantFile { path: format!("{TENANT_KEYS}/{name}"), tenant, epoch: epoch.parse().ok()?, is_key })
        };
        Ok(names.iter().filter_map(file).collect())
    }
}

/// A file of a commitment key.
struct TenantFile {
    path: String,
    tenant: TenantRef,
    epoch: u64,
    /// Not what was left of writing one.
    is_key: bool,
}

/// Writes zeros over a file, down to the device. What a device keeps aside of what it held is beyond its files.
fn overwrite(store: &dyn Storage, path: &str) -> Result<(), LogFault> {
    zero(&*store.open(path).map_err(storage("open", path))?, path)
}

fn zero(file: &dyn StoredFile, path: &str) -> Result<(), LogFault> {
    let length = file.length().map_err(storage("measure", path))?;
    let zeros = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(KEY_FILE_BYTES_MAX)];
    file.write_at(0, &zeros).map_err(storage("overwrite", path))?;
    file.sync().map_err(storage("sync", path))
}

/// The key in the log's own folder; makes it when there is no log yet.
fn signer_in_file(storage: &dyn Storage, origin: &str, log_exists: bool) -> Result<LogSigner, OpenLogError> {
    match read_signer(storage, SIGNING_KEY, origin)? {
        Some(signer) => Ok(signer),
        None if log_exists => Err(OpenLogError::KeyMissing { path: SIGNING_KEY.to_owned() }),
        None => make_signer(storage, SIGNING_KEY, origin),
    }
}

/// The key that is to take the other's place; makes it if a rotation that was cut off has not left one.
pub(crate) fn prepare_next(storage: &dyn Storage, origin: &str) -> Result<(), OpenLogError> {
    match read_signer(storage, NEXT_KEY, origin)? {
        Some(_) => Ok(()),
        None => make_signer(storage, NEXT_KEY, origin).map(drop),
    }
}

fn read_signer(storage: &dyn Storage, path: &str, origin: &str) -> Result<Option<LogSigner>, OpenLogError> {
    let Some(line) = read_key(storage, path)? else { return Ok(None) };
    let signer = LogSigner::parse(line.trim_end_matches('\n'));
    let signer = signer.map_err(|source| OpenLogError::Key { path: path.to_owned(), source })?;
    if signer.name() != origin {
        return Err(OpenLogError::Origin { held: signer.name().to_owned(), wanted: origin.to_owned() });
    }
    Ok(Some(signer))
}

fn make_signer(storage: &dyn Storage, path: &str, origin: &str) -> Result<LogSigner, OpenLogError> {
    let signer = LogSigner::from_seed(origin, &*random()?);
    let signer = signer.map_err(|source| OpenLogError::Key { path: path.to_owned(), source })?;
    let secret = signer.secret_line().unwrap_or_default();
    let line = Zeroizing::new(format!("{}\n", secret.as_str()));
    write_whole(storage, path, line.as_bytes())?;
    Ok(signer)
}

/// A tenant's name has only letters, digits and hyphens, so it is a file name.
fn tenant_key_path(tenant: &TenantName, epoch: u64) -> String {
    format!("{TENANT_KEYS}/{tenant}.{epoch}.key")
}

fn openings(key: &Secret, tenant: &TenantName, request: &[u8; 16]) -> Openings {
    Openings {
        tenant_name: tenant.as_str().to_owned(),
        request: salt(key, request, Field::Request),
        tenant: salt(key, request, Field::Tenant),
        response: salt(key, request, Field::Response),
        chunks: salt(key, request, Field::Chunks),
        replay: Some(salt(key, request, Field::Replay)),
    }
}

/// HKDF-SHA-256 of the tenant's epoch key, with the request's id and the field's name as info.
fn salt(key: &Secret, request: &[u8; 16], field: Field) -> Salt {
    let mut salt = [0; 32];
    let expanded = Hkdf::<Sha256>::new(None, &**key).expand_multi_info(&[request, field.name().as_bytes()], &mut salt);
    debug_assert!(expanded.is_ok(), "32 bytes are a length that HKDF can give");
    salt
}

fn hmac(key: &[u8; 32], message: &[u8]) -> [u8; 32] {
    // `new` takes a key of the hash's block length, so nothing can fail here.
    let mut block = hmac::digest::generic_array::GenericArray::default();
    block.iter_mut().zip(key).for_each(|(to, from)| *to = *from);
    let mut mac = <Hmac<Sha256> as hmac::digest::KeyInit>::new(&block);
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// Random bytes for keys, ids and blinds.
pub(crate) fn random<const N: usize>() -> Result<Zeroizing<[u8; N]>, LogFault> {
    let mut bytes = Zeroizing::new([0; N]);
    getrandom::fill(bytes.as_mut_slice()).map_err(|_| LogFault::Random)?;
    Ok(bytes)
}

pub(crate) fn read_key(store: &dyn Storage, path: &str) -> Result<Option<Zeroizing<String>>, OpenLogError> {
    match store.read(path, KEY_FILE_BYTES_MAX) {
        Ok(bytes) => {
            let bytes = Zeroizing::new(bytes);
            let text = std::str::from_utf8(&bytes).map_err(|_| OpenLogError::KeyDamaged { path: path.to_owned() })?;
            Ok(Some(Zeroizing::new(text.to_owned())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(storage("read", path)(error).into()),
    }
}

/// A secret file is one line: the secret and its sum in hexadecimal, with a plus between.
fn read_secret(store: &dyn Storage, log: &VerifierKey, path: &str) -> Result<Option<Secret>, OpenLogError> {
    let Some(text) = read_key(store, path)? else { return Ok(None) };
    let damaged = || OpenLogError::KeyDamaged { path: path.to_owned() };
    parse_secret(&text, log, path).map(Some).ok_or_else(damaged)
}

fn parse_secret(text: &str, log: &VerifierKey, path: &str) -> Option<Secret> {
    let (digits, sum) = text.trim_end_matches('\n').split_once('+')?;
    let mut secret = Zeroizing::new([0; 32]);
    hex::decode_to_slice(digits, secret.as_mut_slice()).ok()?;
    (sum == secret_sum(log, path, &secret)).then_some(secret)
}

/// The tenants of a log by the references that its entries have, for whoever may read its key of pseudonyms. The folder is
/// only read, while a gateway may have it open.
pub struct TenantNames {
    pseudonym: Secret,
    names: BTreeMap<TenantRef, TenantName>,
}

impl std::fmt::Debug for TenantNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TenantNames({})", self.names.len())
    }
}

impl TenantNames {
    /// Reads a log's folder. `None` when its key of pseudonyms is not there, or cannot be read by whoever asks.
    #[must_use]
    pub fn read(dir: &Path) -> Option<Self> {
        let pseudonym = parse_secret(&read_text(dir, PSEUDONYM_KEY)?, &begun_with(dir)?, PSEUDONYM_KEY)?;
        let files = std::fs::read_dir(dir.join(TENANT_KEYS)).into_iter().flatten().flatten();
        let name = |file: std::fs::DirEntry| TenantName::parse(file.file_name().to_str()?.split('.').next()?).ok();
        let names = files.filter_map(name).map(|name| (pseudonym_of(&pseudonym, &name), name));
        Some(Self { names: names.collect(), pseudonym })
    }

    /// The reference that entries have for a tenant of this name.
    #[must_use]
    pub fn reference(&self, name: &TenantName) -> TenantRef {
        pseudonym_of(&self.pseudonym, name)
    }

    /// The tenant with that reference, if it has a key in the folder.
    #[must_use]
    pub fn name(&self, tenant: &TenantRef) -> Option<&TenantName> {
        self.names.get(tenant)
    }
}

/// The salt of a tenant's name in one request's commitment, for whoever may read the tenant's key. The folder is only read.
pub(crate) fn tenant_salt(dir: &Path, tenant: &TenantName, epoch: u64, request: &[u8; 16]) -> Option<Salt> {
    let path = tenant_key_path(tenant, epoch);
    let key = parse_secret(&read_text(dir, &path)?, &begun_with(dir)?, &path)?;
    Some(salt(&key, request, Field::Tenant))
}

/// The key that the sums of a log's secret files are bound to.
fn begun_with(dir: &Path) -> Option<VerifierKey> {
    let published = || VerifierKey::parse(read_text(dir, VERIFIER_KEY)?.trim_end_matches('\n')).ok();
    first_key_in(dir).or_else(published)
}

/// A small file of a log's folder; `None` when it is not there or is no regular file.
fn read_text(dir: &Path, path: &str) -> Option<Zeroizing<String>> {
    let (file, mut text) = (dir.join(path), Zeroizing::new(String::new()));
    // Opening a pipe would wait for its other end.
    file.metadata().ok().filter(std::fs::Metadata::is_file)?;
    std::fs::File::open(file).ok()?.take(KEY_FILE_BYTES_MAX as u64).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A tenant as entries name it: 16 bytes of an HMAC of its name.
fn pseudonym_of(pseudonym: &Secret, name: &TenantName) -> TenantRef {
    truncated(&hmac(pseudonym, name.as_str().as_bytes()))
}

fn truncated(mac: &[u8; 32]) -> [u8; 16] {
    let mut reference = [0; 16];
    reference.iter_mut().zip(mac).for_each(|(to, from)| *to = *from);
    reference
}

fn make_secret(store: &dyn Storage, log: &VerifierKey, path: &str) -> Result<Secret, LogFault> {
    let secret = random::<32>()?;
    let digits = Zeroizing::new(hex::encode(*secret));
    let text = Zeroizing::new(format!("{}+{}\n", digits.as_str(), secret_sum(log, path, &secret)));
    write_whole(store, path, text.as_bytes())?;
    Ok(secret)
}

/// The first 8 bytes of SHA-256 over a tag, the log's verifier key line, the file's path and the secret, with zero bytes
/// between: a flipped bit, another tenant's key and another log's key all have another sum.
fn secret_sum(log: &VerifierKey, path: &str, secret: &Secret) -> String {
    let mut hash = Sha256::new();
    hash.update(format!("bulkhead/key-file/v1\0{log}\0{path}\0"));
    hash.update(secret.as_slice());
    let mut sum = hex::encode(hash.finalize());
    sum.truncate(16);
    sum
}

/// A name that is found may be in memory alone, because the sync of its folder failed: then a loss of power takes it. So the folder
/// is synced before a key under such a name is used for anything that lasts.
fn sync_names(store: &dyn Storage, folder: &str) -> Result<(), LogFault> {
    match store.sync_folder(folder) {
        // Nothing is found there.
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(()),
        synced => synced.map_err(storage("sync", folder)),
    }
}

/// Writes a file so that a crash leaves all of it or none.
pub(crate) fn write_whole(store: &dyn Storage, path: &str, bytes: &[u8]) -> Result<(), LogFault> {
    let staged = format!("{path}.new");
    store.write(&staged, bytes).map_err(storage("write", &staged))?;
    store.rename(&staged, path).map_err(storage("rename", &staged))?;
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    store.sync_folder(folder).map_err(storage("sync", folder))
}
