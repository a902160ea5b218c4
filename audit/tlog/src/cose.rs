//! COSE Receipts (RFC 9942): an entry's place in a log as one COSE_Sign1, whose payload, the tree's root hash, is detached.
//!
//! What is signed begins as no note does, so a key that signs both says nothing with the one that the other could be taken for.
//! RFC 9942 leaves the size of the tree unsigned, and a root hash alone does not fix it: here it is among the claims.

use crate::proof::EXTRA_BYTES_MAX;
use crate::tree::{PROOF_HASHES_MAX, TREE_SIZE_MAX, TreeError, inclusion_root};
use crate::{Checkpoint, KeyChain, LogSigner, VerifierKey};
use coset::cbor::value::Value;
use coset::{Algorithm, CoseSign1, CoseSign1Builder, Header, Label, TaggedCborSerializable as _, cbor, iana};
use tlog_tiles::Hash;

/// Longest COSE receipt that is read.
pub const COSE_RECEIPT_BYTES_MAX: usize = EXTRA_BYTES_MAX + 8 * 1024;
/// Of a COSE_Sign1, tagged (RFC 9052).
const TAG: u8 = 0xd2;
/// Longest origin or subject that is read, in bytes.
const CLAIM_BYTES_MAX: usize = 512;

/// Header parameters: claims (RFC 9597), kind of the verifiable data structure and its proofs (RFC 9942).
const CWT_CLAIMS: i64 = 15;
const VDS: i64 = 395;
const VDP: i64 = 396;
const RFC9162_SHA256: i64 = 1;
const INCLUSION_PROOFS: i64 = -1;
const ISSUER: i64 = 1;
const SUBJECT: i64 = 2;
/// For private use, among the claims: entries in the tree.
const TREE_SIZE: i64 = -65_537;
/// For private use, among the header parameters that are not signed: data of the application.
const EXTRA: i64 = -65_537;

/// What a COSE receipt says. It says so once [`CoseReceipt::open`] has verified it.
#[derive(Debug, Clone, PartialEq)]
pub struct CoseReceipt {
    /// The log's name: the claim `iss`.
    pub origin: String,
    /// What the entry is about: the claim `sub`.
    pub subject: String,
    /// Entries in the tree.
    pub size: u64,
    /// The entry's index.
    pub index: u64,
    /// The inclusion proof, from the leaf's sibling upwards.
    pub hashes: Vec<Hash>,
    /// Data of the application. Not signed.
    pub extra: Option<Vec<u8>>,
}

/// A COSE receipt is not one, or not one of this log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CoseError {
    /// Longer than [`COSE_RECEIPT_BYTES_MAX`].
    #[error("the receipt has {length} bytes, at most {COSE_RECEIPT_BYTES_MAX} are read")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// Not a COSE receipt of RFC 9942 in the one form that is written here.
    #[error("not a COSE receipt as this log writes them")]
    Form,
    /// The proof has no root hash: a position outside the tree, or hashes too many or too few.
    #[error("{0}")]
    Proof(#[from] TreeError),
    /// Not signed by the expected key, for another log, or for another entry.
    #[error("the receipt is not signed by the expected key for this entry")]
    Signature,
    /// Signed by another key than the expected one, as the receipt itself says.
    #[error(
        "the receipt is signed by another key than the expected one: a log whose key was changed proves that by its rotation"
    )]
    OtherKey,
    /// Signed by a key that the log had, or was to have, and not by the one that counts for a tree of this size.
    #[error("the receipt, of a tree of {size} entries, is not signed by the key that the log has at this size")]
    KeyOfAnotherSize {
        /// Entries in the tree.
        size: u64,
    },
    /// The key has another name than the log.
    #[error("the receipt's log is not the key's name")]
    Origin,
    /// The key is with another program, which signs checkpoints alone.
    #[error("the log's key is with another program, which signs checkpoints alone")]
    Elsewhere,
    /// The key could not sign.
    #[error("the receipt could not be signed")]
    Sign,
}

impl CoseReceipt {
    /// Whether bytes are meant to be one: they begin with its tag, which no text does.
    #[must_use]
    pub fn is_meant(bytes: &[u8]) -> bool {
        bytes.first() == Some(&TAG)
    }

    /// The bytes. `root` is that of the tree of `self.size` entries.
    ///
    /// # Errors
    /// [`CoseError::Origin`], [`CoseError::Elsewhere`], [`CoseError::Sign`].
    pub fn sign(&self, root: Hash, signer: &LogSigner) -> Result<Vec<u8>, CoseError> {
        if self.origin != signer.name() {
            return Err(CoseError::Origin);
        }
        if !signer.is_here() {
            return Err(CoseError::Elsewhere);
        }
        let signed = CoseSign1Builder::new()
            .protected(self.protected(&signer.verifier_key()))
            .unprotected(self.unprotected()?)
            .try_create_detached_signature(&root.0, &[], |bytes| signer.sign_bytes(bytes).map(Vec::from))
            .map_err(|_| CoseError::Sign)?;
        signed.build().to_tagged_vec().map_err(|_| CoseError::Form)
    }

    /// Reads the bytes and verifies that `key` signed them for the entry whose leaf hash is `leaf`. `leaf` gets what was read,
    /// which is not verified yet, since the entry may lie in its extra data.
    ///
    /// # Errors
    /// [`CoseError`], or what `leaf` returns.
    pub fn open<E: From<CoseError>>(
        bytes: &[u8],
        key: &VerifierKey,
        leaf: impl FnOnce(&Self) -> Result<Hash, E>,
    ) -> Result<(Self, Checkpoint), E> {
        let (receipt, signed) = Self::parse(bytes)?;
        if receipt.origin != key.name() {
            return Err(CoseError::Origin.into());
        }
        // Written again it is the same: each byte was looked at.
        let again = CoseSign1Builder::new()
            .protected(receipt.protected(key))
            .unprotected(receipt.unprotected()?)
            .signature(signed.signature.clone())
            .build();
        let key_id = |signed: &CoseSign1| signed.protected.header.key_id.clone();
        if key_id(&again) != key_id(&signed) {
            return Err(CoseError::OtherKey.into());
        }
        if again.to_tagged_vec().ok().as_deref() != Some(bytes) {
            return Err(CoseError::Form.into());
        }
        let leaf = leaf(&receipt)?;
        let root = inclusion_root(&receipt.hashes, receipt.size, receipt.index, leaf).map_err(CoseError::Proof)?;
        let verified = signed.verify_detached_signature(&root.0, &[], |signature, bytes| {
            if key.verifies(bytes, signature) { Ok(()) } else { Err(CoseError::Signature) }
        });
        verified?;
        let checkpoint = Checkpoint { origin: receipt.origin.clone(), size: receipt.size, root };
        Ok((receipt, checkpoint))
    }

    /// The same under the keys of a log that changed its key: the one that counts for the receipt's size must have signed it, and
    /// is given back.
    ///
    /// # Errors
    /// [`CoseError`], or what `leaf` returns.
    pub fn open_in<E: From<CoseError>>(
        bytes: &[u8],
        keys: &KeyChain,
        leaf: impl FnOnce(&Self) -> Result<Hash, E>,
    ) -> Result<(Self, Checkpoint, VerifierKey), E> {
        let (receipt, signed) = Self::parse(bytes)?;
        let is_named = |key: &&VerifierKey| signed.protected.header.key_id == key.id().to_be_bytes();
        let key = keys.keys().find(is_named).ok_or(CoseError::OtherKey)?;
        let (opened, checkpoint) = Self::open(bytes, key, leaf)?;
        // It has one signature, so of two keys that sign it takes the one that goes on.
        if keys.key_at(receipt.size) != key {
            return Err(CoseError::KeyOfAnotherSize { size: receipt.size }.into());
        }
        Ok((opened, checkpoint, key.clone()))
    }

    fn parse(bytes: &[u8]) -> Result<(Self, CoseSign1), CoseError> {
        if bytes.len() > COSE_RECEIPT_BYTES_MAX {
            return Err(CoseError::TooLong { length: bytes.len() });
        }
        let signed = CoseSign1::from_tagged_slice(bytes).map_err(|_| CoseError::Form)?;
        let receipt = Self::read(&signed).ok_or(CoseError::Form)?;
        Ok((receipt, signed))
    }

    /// Only the values: [`CoseReceipt::open`] writes them again and compares, so what is passed over here is not passed over.
    fn read(signed: &CoseSign1) -> Option<Self> {
        let claims = parameter(&signed.protected.header, CWT_CLAIMS)?.as_map()?;
        let text = |key| member(claims, key)?.as_text().filter(|text| text.len() <= CLAIM_BYTES_MAX).map(str::to_owned);
        let proofs = member(parameter(&signed.unprotected, VDP)?.as_map()?, INCLUSION_PROOFS)?.as_array()?;
        let [proof] = proofs.as_slice() else { return None };
        let proof: Value = cbor::de::from_reader(proof.as_bytes()?.as_slice()).ok()?;
        let [size, index, path] = proof.as_array()?.as_slice() else { return None };
        let size = uint(size).filter(|size| *size <= TREE_SIZE_MAX)?;
        let path = path.as_array().filter(|path| path.len() <= PROOF_HASHES_MAX)?;
        let hash = |value: &Value| Some(Hash(value.as_bytes()?.as_slice().try_into().ok()?));
        let extra = match parameter(&signed.unprotected, EXTRA) {
            Some(extra) => Some(extra.as_bytes().filter(|extra| extra.len() <= EXTRA_BYTES_MAX)?.clone()),
            None => None,
        };
        Some(Self {
            origin: text(ISSUER)?,
            subject: text(SUBJECT)?,
            size,
            index: uint(index)?,
            hashes: path.iter().map(hash).collect::<Option<_>>()?,
            extra,
        })
    }

    fn protected(&self, key: &VerifierKey) -> Header {
        let claims = vec![
            (Value::from(ISSUER), Value::from(self.origin.as_str())),
            (Value::from(SUBJECT), Value::from(self.subject.as_str())),
            (Value::from(TREE_SIZE), Value::from(self.size)),
        ];
        Header {
            alg: Some(Algorithm::Assigned(iana::Algorithm::EdDSA)),
            key_id: key.id().to_be_bytes().to_vec(),
            rest: vec![(Label::Int(CWT_CLAIMS), Value::Map(claims)), (Label::Int(VDS), Value::from(RFC9162_SHA256))],
            ..Header::default()
        }
    }

    fn unprotected(&self) -> Result<Header, CoseError> {
        let path = self.hashes.iter().map(|hash| Value::Bytes(hash.0.to_vec())).collect();
        let proof = Value::Array(vec![Value::from(self.size), Value::from(self.index), Value::Array(path)]);
        let mut bytes = Vec::new();
        cbor::ser::into_writer(&proof, &mut bytes).map_err(|_| CoseError::Form)?;
        let proofs = Value::Map(vec![(Value::from(INCLUSION_PROOFS), Value::Array(vec![Value::Bytes(bytes)]))]);
        let extra = self.extra.clone().map(|extra| (Label::Int(EXTRA), Value::Bytes(extra)));
        let rest = [(Label::Int(VDP), proofs)].into_iter().chain(extra).collect();
        Ok(Header { rest, ..Header::default() })
    }
}

fn parameter(header: &Header, label: i64) -> Option<&Value> {
    header.rest.iter().find(|(found, _)| *found == Label::Int(label)).map(|(_, value)| value)
}

fn member(map: &[(Value, Value)], key: i64) -> Option<&Value> {
    map.iter().find(|(found, _)| *found == Value::from(key)).map(|(_, value)| value)
}

fn uint(value: &Value) -> Option<u64> {
    u64::try_from(value.as_integer()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{leaf_hash, node_hash};
    use crate::{RotationStage, SignedRotation};
    use proptest::prelude::*;

    fn signer() -> LogSigner {
        LogSigner::from_seed("example.com/log", &[9; 32]).unwrap()
    }

    /// The second of three entries.
    fn receipt() -> (CoseReceipt, Hash) {
        let leaves = [b"a", b"b", b"c"].map(|entry| leaf_hash(entry));
        let root = node_hash(node_hash(leaves[0], leaves[1]), leaves[2]);
        let receipt = CoseReceipt {
            origin: "example.com/log".into(),
            subject: "entry b".into(),
            size: 3,
            index: 1,
            hashes: vec![leaves[0], leaves[2]],
            extra: Some(b"extra".to_vec()),
        };
        (receipt, root)
    }

    fn open(bytes: &[u8], entry: &[u8]) -> Result<(CoseReceipt, Checkpoint), CoseError> {
        CoseReceipt::open(bytes, &signer().verifier_key(), |_| Ok(leaf_hash(entry)))
    }

    #[test]
    fn what_is_signed_opens_and_no_changed_bit_of_it_does() {
        let (receipt, root) = receipt();
        let bytes = receipt.sign(root, &signer()).unwrap();
        assert!(CoseReceipt::is_meant(&bytes));
        let checkpoint = Checkpoint { origin: "example.com/log".into(), size: 3, root };
        assert_eq!(open(&bytes, b"b"), Ok((receipt, checkpoint)));
        let extra = bytes.windows(5).position(|window| window == b"extra").unwrap();
        for bit in (0..bytes.len() * 8).filter(|bit| !(extra..extra + 5).contains(&(bit / 8))) {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&changed, b"b").is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(open(&bytes[..length], b"b").is_err(), "cut to {length}");
        }
        assert_eq!(open(&[&bytes[..], b"\0"].concat(), b"b"), Err(CoseError::Form));
    }

    #[test]
    fn another_entry_key_place_or_size_is_refused() {
        let (receipt, root) = receipt();
        let bytes = receipt.sign(root, &signer()).unwrap();
        assert_eq!(open(&bytes, b"c"), Err(CoseError::Signature));
        let other = LogSigner::from_seed("example.com/log", &[8; 32]).unwrap();
        let by = |key: &VerifierKey| CoseReceipt::open::<CoseError>(&bytes, key, |_| Ok(leaf_hash(b"b"))).unwrap_err();
        assert_eq!(by(&other.verifier_key()), CoseError::OtherKey);
        let elsewhere = LogSigner::from_seed("example.com/2", &[9; 32]).unwrap();
        assert_eq!(by(&elsewhere.verifier_key()), CoseError::Origin);
        assert_eq!(receipt.sign(root, &elsewhere), Err(CoseError::Origin));
        // The tree of four whose last two entries hash to `c`'s place has the same root: only the claim tells them apart.
        let four = CoseReceipt { size: 4, ..receipt.clone() };
        let signature = CoseSign1::from_tagged_slice(&bytes).unwrap().signature;
        let key = signer().verifier_key();
        let header = |of: &CoseReceipt| CoseSign1Builder::new().protected(of.protected(&key));
        let forged = header(&four).unprotected(four.unprotected().unwrap()).signature(signature.clone()).build();
        assert_eq!(open(&forged.to_tagged_vec().unwrap(), b"b"), Err(CoseError::Signature));
        let split = header(&receipt).unprotected(four.unprotected().unwrap()).signature(signature).build();
        assert_eq!(open(&split.to_tagged_vec().unwrap(), b"b"), Err(CoseError::Form));
    }

    #[test]
    fn of_a_log_that_changed_its_key_the_one_of_the_receipt_s_size_counts() {
        let (receipt, root) = receipt();
        let next = LogSigner::from_seed("example.com/log", &[8; 32]).unwrap();
        let stranger = LogSigner::from_seed("example.com/log", &[7; 32]).unwrap();
        for (size, right, wrong) in [(2, &next, &signer()), (3, &signer(), &next)] {
            let stage = RotationStage::Begin;
            let rotation = SignedRotation::sign(stage, &signer(), &next, size, leaf_hash(b"before")).unwrap();
            let mut keys = KeyChain::new(signer().verifier_key());
            keys.follow(&rotation).unwrap();
            let open = |by: &LogSigner| {
                let bytes = receipt.sign(root, by).unwrap();
                CoseReceipt::open_in::<CoseError>(&bytes, &keys, |_| Ok(leaf_hash(b"b"))).map(|(_, _, key)| key)
            };
            assert_eq!(open(right), Ok(right.verifier_key()));
            assert_eq!(open(wrong), Err(CoseError::KeyOfAnotherSize { size: 3 }));
            assert_eq!(open(&stranger), Err(CoseError::OtherKey));
        }
    }

    /// A program that signs checkpoints alone would end its conversation over another message.
    #[test]
    fn a_key_that_is_elsewhere_is_not_asked() {
        struct Never;
        impl crate::ExternalSigner for Never {
            fn sign(&self, _: &[u8]) -> std::io::Result<[u8; 64]> {
                panic!("it was asked")
            }
        }
        let elsewhere = LogSigner::elsewhere(signer().verifier_key(), Box::new(Never));
        let (receipt, root) = receipt();
        assert_eq!(receipt.sign(root, &elsewhere), Err(CoseError::Elsewhere));
    }

    #[test]
    fn a_signed_receipt_is_never_a_checkpoint() {
        let (receipt, root) = receipt();
        let bytes = receipt.sign(root, &signer()).unwrap();
        let signed = CoseSign1::from_tagged_slice(&bytes).unwrap();
        let message = signed.tbs_detached_data(&root.0, &[]);
        assert!(signer().verifier_key().verifies(&message, &signed.signature));
        assert!(std::str::from_utf8(&message).is_err() && Checkpoint::from_text(&message).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused(mut bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            bytes[0] = TAG;
            prop_assert!(open(&bytes, b"b").is_err());
        }
    }
}
