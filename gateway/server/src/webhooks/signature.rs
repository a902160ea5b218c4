//! Signatures as Standard Webhooks (standardwebhooks.com, version 1.0.0) has them: HMAC-SHA256 over id, time and body.

use super::StartWebhookError;
use crate::bounded_file;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use hmac::{Hmac, Mac as _};
use sha2::Sha256;
use std::io;
use std::path::Path;
use zeroize::Zeroizing;

const PREFIX: &str = "whsec_";
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;
const FILE_BYTES_MAX: u64 = 256;

/// What a receiver knows, too.
pub(super) struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    pub(super) fn read(path: &Path) -> Result<Self, StartWebhookError> {
        let wrong = || StartWebhookError::Secret { path: path.to_owned() };
        let text = bounded_file::read_text(path, FILE_BYTES_MAX).map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::FileTooLarge => wrong(),
            _ => StartWebhookError::ReadSecret { path: path.to_owned(), source },
        })?;
        Self::parse(Zeroizing::new(text).trim_end()).ok_or_else(wrong)
    }

    fn parse(text: &str) -> Option<Self> {
        let bytes = Zeroizing::new(BASE64_STANDARD.decode(text.strip_prefix(PREFIX)?).ok()?);
        BYTES.contains(&bytes.len()).then_some(Self(bytes))
    }

    /// The header's value.
    pub(super) fn sign(&self, id: &str, seconds: u64, body: &str) -> String {
        // Any length is a key of HMAC's.
        let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        mac.update(format!("{id}.{seconds}.").as_bytes());
        mac.update(body.as_bytes());
        format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification's reference libraries.
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let secret = Secret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = secret.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_in_one_form_and_no_error_repeats_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let short = BASE64_STANDARD.encode([7; 23]);
        for wrong in ["", "whsec_", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", &format!("whsec_{short}"), &"w".repeat(300)] {
            std::fs::write(&path, wrong).unwrap();
            let error = Secret::read(&path).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("is not `whsec_`") && (wrong.len() < 9 || !error.contains(wrong)), "{error}");
        }
        std::fs::write(&path, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").unwrap();
        assert!(Secret::read(&path).is_ok());
        assert!(matches!(Secret::read(&folder.path().join("none")), Err(StartWebhookError::ReadSecret { .. })));
    }
}
