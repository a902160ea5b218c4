//! Who made a bundle, and of what: the list of its files under the signature of a key of its own, which the log's key vouches
//! for once. So a bundle can be made beside a running gateway, by somebody who cannot sign a checkpoint.

use crate::container::{Files, MANIFEST};
use audit_provenance::{REPORT_KEY_PURPOSE, report_key_name, report_key_text};
use audit_tlog::{LogSigner, SignedTextError, VerifierKey, open_text, sign_text};
use sha2::{Digest as _, Sha256};

const PURPOSE: &str = "bulkhead evidence bundle v1";

/// What is wrong with a manifest or with the word for its key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Not signed by the key, or not as it has to be.
    #[error("the manifest: {0}")]
    Manifest(SignedTextError),
    /// The log's key does not vouch for the key.
    #[error("the certificate of the report key: {0}")]
    Certificate(SignedTextError),
    /// It is of another log, or names no key of this one.
    #[error("the certificate of the report key is of another log")]
    Origin,
    /// The manifest has other lines than the files make.
    #[error("`{name}` is not the file that the manifest names")]
    File {
        /// The first that differs.
        name: String,
    },
    /// It has files that the bundle has not, or the other way round.
    #[error("the manifest names other files than there are")]
    Files,
}

/// The report key that a log vouches for.
///
/// # Errors
/// [`ManifestError::Certificate`], [`ManifestError::Origin`].
pub fn certified(certificate: &[u8], log: &VerifierKey) -> Result<VerifierKey, ManifestError> {
    let text = open_text(REPORT_KEY_PURPOSE, certificate, log).map_err(ManifestError::Certificate)?;
    let line = text.lines().nth(2).unwrap_or_default();
    let key = VerifierKey::parse(line).map_err(|_| ManifestError::Origin)?;
    // INVARIANT: the log's word is for a report key of this log and of no other, in one form.
    let exact = text == report_key_text(log.name(), line) && key.name() == report_key_name(log.name());
    if exact { Ok(key) } else { Err(ManifestError::Origin) }
}

/// The lines of all files but the manifest itself.
fn text(origin: &str, files: &Files) -> String {
    let mut text = format!("{PURPOSE}\n{origin}\n");
    for (name, bytes) in files.iter().filter(|(name, _)| *name != MANIFEST) {
        text.push_str(&format!("{} {} {name}\n", hex::encode(Sha256::digest(bytes)), bytes.len()));
    }
    text
}

/// Signs the files that are there.
///
/// # Errors
/// [`ManifestError::Manifest`].
pub fn sign_manifest(origin: &str, files: &Files, signer: &LogSigner) -> Result<String, ManifestError> {
    sign_text(PURPOSE, &text(origin, files), signer).map_err(ManifestError::Manifest)
}

/// Checks the manifest of a bundle: its signature, and that it names exactly the files that are there.
///
/// # Errors
/// [`ManifestError::Manifest`], [`ManifestError::File`], [`ManifestError::Files`].
pub fn check_manifest(origin: &str, files: &Files, key: &VerifierKey) -> Result<(), ManifestError> {
    let note = files.get(MANIFEST).ok_or(ManifestError::Files)?;
    let signed = open_text(PURPOSE, note, key).map_err(ManifestError::Manifest)?;
    let wanted = text(origin, files);
    if signed == wanted {
        return Ok(());
    }
    let name = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
    let differs = signed.lines().zip(wanted.lines()).skip(2).find(|(signed, there)| signed != there);
    match differs {
        Some((signed, there)) if name(signed) == name(there) => Err(ManifestError::File { name: name(there) }),
        _ => Err(ManifestError::Files),
    }
}
