//! Which key stands for which tenant.

use crate::{ApiKey, KeyHash, KeySecret, ParseKeyError};
use policies_domain::{Credential, Principal, TenantId, TenantName};
use std::collections::BTreeMap;
use subtle::{Choice, ConditionallySelectable};

/// One line of the configuration: a tenant and the hash of one of its keys.
#[derive(Clone, Debug)]
pub struct TenantKey {
    /// Whose key it is.
    pub tenant: TenantName,
    /// The stored form of the key.
    pub hash: KeyHash,
}

/// All keys that this gateway accepts.
///
/// Tenants are numbered from 1 in the order in which their names first appear.
pub struct KeyRing {
    secret: KeySecret,
    hashes: Vec<KeyHash>,
    principals: Vec<Principal>,
}

/// A ring could not be made from the given keys.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum BuildKeyRingError {
    /// More than [`KeyRing::KEYS_MAX`].
    #[error("{keys} keys, at most {keys_max} are supported", keys_max = KeyRing::KEYS_MAX)]
    TooMany {
        /// Keys given.
        keys: usize,
    },
    /// One hash stands for two tenants, so a request could be taken for either.
    #[error("tenants `{first}` and `{second}` have the same key")]
    Shared {
        /// The first of the two.
        first: TenantName,
        /// The second.
        second: TenantName,
    },
}

/// Why a credential was not accepted. None of them says anything about other tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// The request has no credential.
    #[error("no API key given")]
    Missing,
    /// What was given cannot be a key of ours: no comparison was made.
    #[error("not an API key: {0}")]
    Malformed(ParseKeyError),
    /// A well-formed key that nobody here has.
    #[error("unknown API key")]
    Unknown,
}

impl KeyRing {
    /// Every request is compared with every key: 4,096 comparisons of 32 bytes take about 50 microseconds.
    pub const KEYS_MAX: usize = 4096;

    /// Builds the ring. A tenant may have several keys (rotation).
    ///
    /// # Errors
    /// [`BuildKeyRingError`] when there are too many keys, or two tenants share one.
    pub fn new(secret: KeySecret, keys: &[TenantKey]) -> Result<Self, BuildKeyRingError> {
        let too_many = || BuildKeyRingError::TooMany { keys: keys.len() };
        if keys.len() > Self::KEYS_MAX {
            return Err(too_many());
        }
        let numbers = Self::numbers(keys);
        let mut principals = Vec::with_capacity(keys.len());
        for (position, key) in keys.iter().enumerate() {
            let twin = keys.iter().take(position).find(|other| bool::from(other.hash.same_as(&key.hash)));
            if let Some(twin) = twin.filter(|twin| twin.tenant != key.tenant) {
                return Err(BuildKeyRingError::Shared { first: twin.tenant.clone(), second: key.tenant.clone() });
            }
            let number = *numbers.get(&key.tenant).ok_or_else(too_many)?;
            principals.push(Principal::authenticated(number, key.tenant.clone()));
        }
        Ok(Self { secret, hashes: keys.iter().map(|key| key.hash).collect(), principals })
    }

    /// Everyone who has a key, and the number that labels carry: the same in every process that is given the same keys in
    /// the same order.
    #[must_use]
    pub fn numbers(keys: &[TenantKey]) -> BTreeMap<&TenantName, TenantId> {
        let mut numbers = BTreeMap::new();
        for key in keys {
            // Beyond `KEYS_MAX` no ring is made, and far below that every number is one of a tenant.
            let Some(next) = u32::try_from(numbers.len() + 1).ok().and_then(TenantId::new) else { break };
            numbers.entry(&key.tenant).or_insert(next);
        }
        numbers
    }

    /// Who presents this credential?
    ///
    /// The time taken depends on the number of keys alone, not on which of them fits or how much of one fits.
    ///
    /// # Errors
    /// [`AuthError`]; a caller answers all three alike but for the words.
    pub fn authenticate(&self, credential: Option<&Credential>) -> Result<Principal, AuthError> {
        let credential = credential.ok_or(AuthError::Missing)?;
        let key = ApiKey::parse(credential.reveal()).map_err(AuthError::Malformed)?;
        let presented = self.secret.hash(&key);
        let (mut found, mut position) = (Choice::from(0), u32::MAX);
        for (index, hash) in self.hashes.iter().enumerate() {
            let same = hash.same_as(&presented);
            // INVARIANT: there are at most `KEYS_MAX` keys, so the index fits.
            position.conditional_assign(&(index as u32), same);
            found |= same;
        }
        let principal = self.principals.get(position as usize);
        principal.filter(|_| bool::from(found)).cloned().ok_or(AuthError::Unknown)
    }

    /// Whether some key is in both rings, which must have been hashed with the same secret: then it would stand for two.
    #[must_use]
    pub fn shares_a_key(&self, other: &Self) -> bool {
        let mut found = Choice::from(0);
        for hash in &self.hashes {
            for twin in &other.hashes {
                found |= hash.same_as(twin);
            }
        }
        found.into()
    }

    /// Everyone who has a key, each once, by number.
    #[must_use]
    pub fn principals(&self) -> Vec<Principal> {
        let mut principals = self.principals.clone();
        principals.sort_by_key(Principal::tenant);
        principals.dedup();
        principals
    }
}

impl std::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyRing({} keys)", self.hashes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> TenantName {
        TenantName::parse(name).unwrap()
    }

    fn presented(key: &ApiKey) -> Credential {
        Credential::new(key.reveal().to_owned())
    }

    fn ring(of: &[(&str, &ApiKey)]) -> KeyRing {
        let secret = KeySecret::of(3);
        let keys: Vec<_> =
            of.iter().map(|(name, key)| TenantKey { tenant: tenant(name), hash: secret.hash(key) }).collect();
        KeyRing::new(secret, &keys).unwrap()
    }

    #[test]
    fn each_key_stands_for_its_own_tenant() {
        let keys: Vec<_> = (0..3).map(|_| ApiKey::mint().unwrap()).collect();
        let ring = ring(&[("acme", &keys[0]), ("globex", &keys[1]), ("acme", &keys[2])]);
        let who = |key| ring.authenticate(Some(&presented(key))).unwrap();
        assert_eq!((who(&keys[0]).name().as_str(), who(&keys[0]).tenant().number()), ("acme", 1));
        assert_eq!((who(&keys[1]).name().as_str(), who(&keys[1]).tenant().number()), ("globex", 2));
        assert_eq!(who(&keys[2]), who(&keys[0]), "a second key of the same tenant");
        assert_eq!(ring.principals().len(), 2);
    }

    #[test]
    fn a_tenant_s_number_is_the_place_of_its_first_key_and_the_ring_s() {
        let secret = KeySecret::of(3);
        let keys = ["globex", "acme", "globex", "initech"].map(|name| {
            let hash = secret.hash(&ApiKey::mint().unwrap());
            TenantKey { tenant: tenant(name), hash }
        });
        let numbers = |keys: &[TenantKey]| -> Vec<(String, u32)> {
            let numbers = KeyRing::numbers(keys);
            numbers.into_iter().map(|(name, number)| (name.to_string(), number.number())).collect()
        };
        let wanted = [("acme", 2), ("globex", 1), ("initech", 3)].map(|(name, number)| (name.to_owned(), number));
        assert_eq!(numbers(&keys), wanted);
        let ring = KeyRing::new(secret, &keys).unwrap();
        for principal in ring.principals() {
            assert_eq!(KeyRing::numbers(&keys).get(principal.name()), Some(&principal.tenant()));
        }
        // Another order of the same keys gives other numbers: two processes have to be given the same one.
        assert_ne!(numbers(&[keys[1].clone(), keys[0].clone()]), numbers(&keys[..2]));
        assert!(numbers(&[]).is_empty());
    }

    #[test]
    fn nobody_else_gets_in() {
        let (acme, stranger) = (ApiKey::mint().unwrap(), ApiKey::mint().unwrap());
        let ring_of_acme = ring(&[("acme", &acme)]);
        let refused = |credential: &Credential| ring_of_acme.authenticate(Some(credential)).unwrap_err();
        assert_eq!(ring_of_acme.authenticate(None).unwrap_err(), AuthError::Missing);
        assert_eq!(refused(&presented(&stranger)), AuthError::Unknown);
        assert_eq!(refused(&Credential::new(String::new())), AuthError::Malformed(ParseKeyError::Form));
        // The stored hash is no credential, nor is a key with a space or a different last digit.
        let hash = KeySecret::of(3).hash(&acme).to_string();
        assert_eq!(refused(&Credential::new(hash)), AuthError::Malformed(ParseKeyError::Form));
        assert_eq!(refused(&Credential::new(format!("{} ", acme.reveal()))), AuthError::Malformed(ParseKeyError::Form));
        let mut mistyped = acme.reveal().to_owned();
        let last = mistyped.pop().unwrap();
        mistyped.push(if last == 'a' { 'b' } else { 'a' });
        assert_eq!(refused(&Credential::new(mistyped)), AuthError::Malformed(ParseKeyError::Checksum));
        assert_eq!(ring(&[]).authenticate(Some(&presented(&acme))).unwrap_err(), AuthError::Unknown);
    }

    #[test]
    fn the_same_key_under_another_secret_is_unknown() {
        let key = ApiKey::mint().unwrap();
        let stored = TenantKey { tenant: tenant("acme"), hash: KeySecret::of(1).hash(&key) };
        let ring = KeyRing::new(KeySecret::of(2), &[stored]).unwrap();
        assert_eq!(ring.authenticate(Some(&presented(&key))).unwrap_err(), AuthError::Unknown);
    }

    #[test]
    fn a_key_that_two_tenants_share_is_refused() {
        let (secret, key) = (KeySecret::of(3), ApiKey::mint().unwrap());
        let keys = ["acme", "globex"].map(|name| TenantKey { tenant: tenant(name), hash: secret.hash(&key) });
        let error = KeyRing::new(secret, &keys).unwrap_err();
        assert_eq!(error, BuildKeyRingError::Shared { first: tenant("acme"), second: tenant("globex") });
    }

    #[test]
    fn a_key_in_two_rings_is_noticed() {
        let keys: Vec<_> = (0..3).map(|_| ApiKey::mint().unwrap()).collect();
        let tenants = ring(&[("acme", &keys[0]), ("globex", &keys[1])]);
        assert!(!tenants.shares_a_key(&ring(&[("ada", &keys[2])])));
        assert!(tenants.shares_a_key(&ring(&[("ada", &keys[2]), ("ben", &keys[1])])));
    }

    #[test]
    fn the_number_of_keys_is_bounded() {
        let secret = KeySecret::of(3);
        let hash = secret.hash(&ApiKey::mint().unwrap());
        let keys = vec![TenantKey { tenant: tenant("acme"), hash }; KeyRing::KEYS_MAX + 1];
        assert_eq!(KeyRing::new(secret, &keys).unwrap_err(), BuildKeyRingError::TooMany { keys: 4097 });
    }

    #[test]
    fn debug_shows_no_key_and_no_hash() {
        let key = ApiKey::mint().unwrap();
        let ring = ring(&[("acme", &key)]);
        assert_eq!(format!("{ring:?}"), "KeyRing(1 keys)");
    }
}
