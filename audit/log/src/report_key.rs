//! The key that signs evidence bundles. It is no key of the log: who holds it signs no checkpoint. The log's one writer makes it
//! at a start and vouches for it, so that a bundle can be made later by reading the folder alone.

use crate::fault::{OpenLogError, storage};
use crate::keys::{random, read_key, write_whole};
use crate::storage::Storage;
use audit_provenance::{REPORT_KEY_PURPOSE, report_key_name, report_key_text};
use audit_tlog::{LogSigner, SIGNED_TEXT_BYTES_MAX, open_text, sign_text};
use std::io::Read as _;
use std::path::Path;
use zeroize::Zeroizing;

pub(crate) const REPORT_KEY: &str = "keys/report.skey";
const CERTIFICATE: &str = "report.certificate";
const KEY_FILE_BYTES_MAX: u64 = 1_024;

/// Makes the key if there is none, and the log's word for it if that is not as it should be. A log whose key is in another
/// program signs checkpoints there and nothing else: its report key is told to auditors by the operator.
pub(crate) fn vouch(store: &dyn Storage, log: &LogSigner) -> Result<(), OpenLogError> {
    let name = report_key_name(log.name());
    let key_error = |source| OpenLogError::Key { path: REPORT_KEY.to_owned(), source };
    let report = match read_key(store, REPORT_KEY)? {
        Some(line) => LogSigner::parse(line.trim_end_matches('\n')).map_err(key_error)?,
        None => {
            let report = LogSigner::from_seed(&name, &*random()?).map_err(key_error)?;
            let secret = report.secret_line().unwrap_or_default();
            write_whole(store, REPORT_KEY, Zeroizing::new(format!("{}\n", secret.as_str())).as_bytes())?;
            report
        }
    };
    if report.name() != name {
        return Err(OpenLogError::Origin { held: report.name().to_owned(), wanted: name });
    }
    if !log.is_here() {
        return Ok(());
    }
    let text = report_key_text(log.name(), &report.verifier_key().to_string());
    let held = store.read(CERTIFICATE, SIGNED_TEXT_BYTES_MAX).ok();
    let held = held.and_then(|note| open_text(REPORT_KEY_PURPOSE, &note, &log.verifier_key()).ok());
    if held.as_deref() != Some(text.as_str()) {
        let note = sign_text(REPORT_KEY_PURPOSE, &text, log);
        let note = note.map_err(|error| storage("sign", CERTIFICATE)(std::io::Error::other(error)))?;
        write_whole(store, CERTIFICATE, note.as_bytes())?;
    }
    Ok(())
}

/// The key that signs bundles, and the log's word for it where there is one, from a log's folder, which is only read.
pub struct ReportKey {
    /// Signs manifests.
    pub signer: LogSigner,
    /// The log's word for it.
    pub certificate: Option<Vec<u8>>,
}

impl std::fmt::Debug for ReportKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReportKey({})", self.signer.name())
    }
}

impl ReportKey {
    /// `None` when the folder has none, or whoever asks cannot read it.
    #[must_use]
    pub fn read(dir: &Path) -> Option<Self> {
        let file = |path: &str, bytes_max: u64| {
            let path = dir.join(path);
            // Opening a pipe would wait for its other end.
            path.metadata().ok().filter(std::fs::Metadata::is_file)?;
            let mut bytes = Zeroizing::new(Vec::new());
            std::fs::File::open(path).ok()?.take(bytes_max).read_to_end(&mut bytes).ok()?;
            Some(bytes)
        };
        let line = file(REPORT_KEY, KEY_FILE_BYTES_MAX)?;
        let signer = LogSigner::parse(std::str::from_utf8(&line).ok()?.trim_end_matches('\n')).ok()?;
        let certificate = file(CERTIFICATE, SIGNED_TEXT_BYTES_MAX as u64).map(|bytes| bytes.to_vec());
        Some(Self { signer, certificate })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::FolderStorage;

    fn log(seed: u8) -> LogSigner {
        LogSigner::from_seed("example.com/log", &[seed; 32]).unwrap()
    }

    #[test]
    fn a_log_vouches_for_its_report_key_once_and_again_when_the_word_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FolderStorage::open(folder.path()).unwrap();
        assert!(ReportKey::read(folder.path()).is_none());
        vouch(&storage, &log(1)).unwrap();
        let first = ReportKey::read(folder.path()).unwrap();
        let word = first.certificate.clone().unwrap();
        let text = open_text(REPORT_KEY_PURPOSE, &word, &log(1).verifier_key()).unwrap();
        assert_eq!(text, report_key_text("example.com/log", &first.signer.verifier_key().to_string()));
        let path = folder.path().join(CERTIFICATE);
        let at = path.metadata().unwrap().modified().unwrap();
        vouch(&storage, &log(1)).unwrap();
        assert_eq!(path.metadata().unwrap().modified().unwrap(), at, "nothing was to be written");
        for damage in [&b""[..], b"nonsense", &word[..40]] {
            std::fs::write(&path, damage).unwrap();
            vouch(&storage, &log(1)).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), word);
        }
        // Another key of the log: its word, for the same report key.
        vouch(&storage, &log(2)).unwrap();
        let again = ReportKey::read(folder.path()).unwrap();
        assert_eq!(again.signer.verifier_key(), first.signer.verifier_key());
        assert!(open_text(REPORT_KEY_PURPOSE, &again.certificate.unwrap(), &log(2).verifier_key()).is_ok());
    }

    #[test]
    fn a_report_key_that_is_damaged_or_of_another_log_refuses_the_start() {
        let folder = tempfile::tempdir().unwrap();
        let storage = FolderStorage::open(folder.path()).unwrap();
        vouch(&storage, &log(1)).unwrap();
        let other = LogSigner::from_seed("example.com/other", &[1; 32]).unwrap();
        assert!(matches!(vouch(&storage, &other), Err(OpenLogError::Origin { .. })));
        std::fs::write(folder.path().join(REPORT_KEY), "PRIVATE+KEY+nonsense").unwrap();
        assert!(matches!(vouch(&storage, &log(1)), Err(OpenLogError::Key { .. })));
        assert!(ReportKey::read(folder.path()).is_none());
    }
}
