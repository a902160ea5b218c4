//! A key in a security module, reached through its PKCS#11 library. The secret never leaves it.

use crate::conversation::Key;
use crate::file::read_secret;
use anyhow::{Context as _, Result, bail, ensure};
use audit_tlog::VerifierKey;
use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::mechanism::Mechanism;
use cryptoki::mechanism::eddsa::{EddsaParams, EddsaSignatureScheme};
use cryptoki::object::{Attribute, AttributeType, KeyType, ObjectClass, ObjectHandle};
use cryptoki::session::{Session, UserType};
use cryptoki::types::AuthPin;
use std::path::Path;

/// Which key of which module.
pub(crate) struct Place<'a> {
    pub(crate) module: &'a Path,
    pub(crate) token: &'a str,
    pub(crate) label: &'a str,
    pub(crate) pin_file: &'a Path,
}

pub(crate) struct ModuleKey {
    session: Session,
    secret: ObjectHandle,
    public: [u8; 32],
}

impl ModuleKey {
    pub(crate) fn open(place: &Place<'_>) -> Result<Self> {
        let Place { module, token, label, pin_file } = place;
        let pin = read_secret(pin_file)?;
        let library = Pkcs11::new(module).with_context(|| format!("cannot load `{}`", module.display()))?;
        library.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK))?;
        let mut slots = Vec::new();
        for slot in library.get_slots_with_token()? {
            if library.get_token_info(slot)?.label() == *token {
                slots.push(slot);
            }
        }
        let [slot] = slots[..] else { bail!("{} tokens are called `{token}`, one is needed", slots.len()) };
        let session = library.open_ro_session(slot)?;
        session
            .login(UserType::User, Some(&AuthPin::new(pin.trim_end().into())))
            .context("the token takes no login")?;
        let secret = one(&session, ObjectClass::PRIVATE_KEY, label)?;
        let of_public = one(&session, ObjectClass::PUBLIC_KEY, label)?;
        let attributes = session.get_attributes(of_public, &[AttributeType::EcPoint])?;
        let point = attributes.into_iter().find_map(|attribute| match attribute {
            Attribute::EcPoint(point) => Some(point),
            _ => None,
        });
        let public = key_of(&point.context("the module does not say the public key")?)?;
        Ok(Self { session, secret, public })
    }

    pub(crate) fn public(&self, origin: &str) -> Result<VerifierKey> {
        Ok(VerifierKey::from_bytes(origin, &self.public)?)
    }
}

/// The key pair's half with this label.
fn one(session: &Session, class: ObjectClass, label: &str) -> Result<ObjectHandle> {
    let wanted =
        [Attribute::Class(class), Attribute::KeyType(KeyType::EC_EDWARDS), Attribute::Label(label.as_bytes().to_vec())];
    let found = session.find_objects(&wanted)?;
    let [object] = found[..] else {
        let half = if class == ObjectClass::PRIVATE_KEY { "private" } else { "public" };
        bail!("the token has {} {half} Ed25519 keys called `{label}`, one is needed", found.len())
    };
    Ok(object)
}

/// A point is 32 bytes, which most modules wrap as an OCTET STRING of DER.
fn key_of(point: &[u8]) -> Result<[u8; 32]> {
    let raw = match point {
        [0x04, 0x20, rest @ ..] => rest,
        raw => raw,
    };
    ensure!(raw.len() == 32, "the module's key is not an Ed25519 key");
    Ok(raw.try_into()?)
}

impl Key for ModuleKey {
    fn verifier_key(&self, origin: &str) -> Result<VerifierKey> {
        self.public(origin)
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64]> {
        let mechanism = Mechanism::Eddsa(EddsaParams::new(EddsaSignatureScheme::Ed25519));
        let signature = self.session.sign(&mechanism, self.secret, message).context("the module does not sign")?;
        signature.try_into().map_err(|_| anyhow::anyhow!("the module's answer is no Ed25519 signature"))
    }
}
