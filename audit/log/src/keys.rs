//! The log's keys: signing, pseudonyms, and one commitment key for each tenant and epoch.
//!
//! Destroying a commitment key makes that tenant's commitments of that epoch unopenable for the operator, while the
//! tree still verifies; clients keep the openings that their receipts hold. What was erased is neither read nor made again,
//! and destroyed wherever it is found. A key that is gone and was used, and that the log does not say to be erased, may only be
//! lost: it is not replaced. A secret is stored with a sum that binds it to its log and its file.

use crate::fault::{LogFault, OpenLogError, storage};
use crate::report_key;
use crate::signer::{CommandSigner, SignerPlace};
use crate::storage::Storage;
use audit_provenance::{ActorRef, Field, Openings, Salt, TenantRef};
use audit_tlog::{LogSigner, VerifierKey};
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
    signer: LogSigner,
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
        let pseudonym = match read_secret(&*storage, &log, PSEUDONYM_KEY)? {
            Some(secret) => secret,
            None if log_exists => return Err(OpenLogError::KeyMissing { path: PSEUDONYM_KEY.to_owned() }),
            None => make_secret(&*storage, &log, PSEUDONYM_KEY)?,
        };
        // The line for strangers is derived; it is written again when it is not as it should be.
        let line = format!("{log}\n");
        if !storage.read(VERIFIER_KEY, KEY_FILE_BYTES_MAX).is_ok_and(|held| held == line.as_bytes()) {
            write_whole(&*storage, VERIFIER_KEY, line.as_bytes())?;
        }
        report_key::vouch(&*storage, &signer)?;
        Ok(Self { storage, signer, pseudonym, tenants: Mutex::default() })
    }

    pub(crate) fn signer(&self) -> &LogSigner {
        &self.signer
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
        let (path, log) = (tenant_key_path(tenant, epoch), self.signer.verifier_key());
        let key = match (read_secret(&*self.storage, &log, &path)?, missing) {
            (Some(key), _) => {
                if !std::mem::replace(&mut tenants.synced, true) {
                    sync_names(&*self.storage, TENANT_KEYS).inspect_err(|_| tenants.synced = false)?;
                }
                key
            }
            (None, Missing::Leave) => return Ok(None),
            (None, Missing::Make) => {
                tenants.synced = false;
                let made = make_secret(&*self.storage, &log, &path)?;
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
        let log = self.signer.verifier_key();
        for file in self.tenant_files()? {
            if file.is_key && !self.tenants().erased.contains(&(file.tenant, file.epoch)) {
                read_secret(&*self.storage, &log, &file.path)?;
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
        let log = self.signer.verifier_key();
        let is_it = |file: &TenantFile| file.is_key && (file.tenant, file.epoch) == (tenant, epoch);
        let Some(file) = self.tenant_files()?.into_iter().find(is_it) else { return Ok(None) };
        match read_secret(&*self.storage, &log, &file.path) {
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
    let file = store.open(path).map_err(storage("open", path))?;
    let length = file.length().map_err(storage("measure", path))?;
    let zeros = vec![0; usize::try_from(length).unwrap_or(usize::MAX).min(KEY_FILE_BYTES_MAX)];
    file.write_at(0, &zeros).map_err(storage("overwrite", path))?;
    file.sync().map_err(storage("sync", path))
}

/// The key in the log's own folder; makes it when there is no log yet.
fn signer_in_file(storage: &dyn Storage, origin: &str, log_exists: bool) -> Result<LogSigner, OpenLogError> {
    let key_error = |source| OpenLogError::Key { path: SIGNING_KEY.to_owned(), source };
    match read_key(storage, SIGNING_KEY)? {
        Some(line) => LogSigner::parse(line.trim_end_matches('\n')).map_err(key_error),
        None if log_exists => Err(OpenLogError::KeyMissing { path: SIGNING_KEY.to_owned() }),
        None => {
            let seed = random()?;
            let signer = LogSigner::from_seed(origin, &seed).map_err(key_error)?;
            let secret = signer.secret_line().unwrap_or_default();
            let line = Zeroizing::new(format!("{}\n", secret.as_str()));
            write_whole(storage, SIGNING_KEY, line.as_bytes())?;
            Ok(signer)
        }
    }
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
        let log = VerifierKey::parse(read_text(dir, VERIFIER_KEY)?.trim_end_matches('\n')).ok()?;
        let pseudonym = parse_secret(&read_text(dir, PSEUDONYM_KEY)?, &log, PSEUDONYM_KEY)?;
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
    let log = VerifierKey::parse(read_text(dir, VERIFIER_KEY)?.trim_end_matches('\n')).ok()?;
    let path = tenant_key_path(tenant, epoch);
    let key = parse_secret(&read_text(dir, &path)?, &log, &path)?;
    Some(salt(&key, request, Field::Tenant))
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
