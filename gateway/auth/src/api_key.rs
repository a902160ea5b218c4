//! The form of a key: `bk_`, 43 base62 digits of 256 random bits, 6 base62 digits of a checksum.
//!
//! The prefix and the checksum let a scanner recognise a leaked key without asking us, and let the gateway refuse a
//! mistyped one before any secret is touched. They prove nothing: only the comparison in [`crate::KeyRing`] does.

use std::fmt;
use zeroize::{Zeroize, Zeroizing};

const PREFIX: &str = "bk_";
const RANDOM_BYTES: usize = 32;
/// 62^43 is the first power of 62 above 2^256.
const RANDOM_DIGITS: usize = 43;
/// 62^6 is the first power of 62 above 2^32.
const CHECKSUM_DIGITS: usize = 6;
const KEY_BYTES: usize = PREFIX.len() + RANDOM_DIGITS + CHECKSUM_DIGITS;
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// An API key in clear. Wiped when dropped; its `Debug` shows nothing.
#[derive(Clone)]
pub struct ApiKey(Zeroizing<String>);

/// A new key could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MintKeyError {
    /// The operating system gave no random bytes.
    #[error("no random bytes for a new key: {0}")]
    Entropy(getrandom::Error),
}

/// Text that is not a key of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseKeyError {
    /// Another prefix, another length, or a character outside `0-9A-Za-z`.
    #[error("not of the form `bk_` and 49 letters and digits")]
    Form,
    /// The form is right and the last six digits do not fit the rest: mistyped or cut.
    #[error("the checksum does not fit: mistyped or damaged")]
    Checksum,
}

impl ApiKey {
    /// Makes a key from 256 bits of the operating system's generator.
    ///
    /// # Errors
    /// [`MintKeyError::Entropy`] when the operating system has none to give.
    pub fn mint() -> Result<Self, MintKeyError> {
        let mut random = Zeroizing::new([0u8; RANDOM_BYTES]);
        getrandom::fill(random.as_mut_slice()).map_err(MintKeyError::Entropy)?;
        Ok(Self::from_random(&random))
    }

    fn from_random(random: &[u8; RANDOM_BYTES]) -> Self {
        let mut text = Zeroizing::new(String::with_capacity(KEY_BYTES));
        text.push_str(PREFIX);
        push_base62(&mut text, *random, RANDOM_DIGITS);
        let checksum = checksum(&text);
        push_base62(&mut text, checksum, CHECKSUM_DIGITS);
        Self(text)
    }

    /// Reads a key that a client or an operator typed.
    ///
    /// # Errors
    /// [`ParseKeyError`], which never repeats the text.
    pub fn parse(text: &str) -> Result<Self, ParseKeyError> {
        let digits = text.strip_prefix(PREFIX).ok_or(ParseKeyError::Form)?;
        if text.len() != KEY_BYTES || !digits.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(ParseKeyError::Form);
        }
        let (body, given) = text.split_at(KEY_BYTES - CHECKSUM_DIGITS);
        let mut wanted = String::with_capacity(CHECKSUM_DIGITS);
        push_base62(&mut wanted, checksum(body), CHECKSUM_DIGITS);
        if given != wanted {
            return Err(ParseKeyError::Checksum);
        }
        Ok(Self(Zeroizing::new(text.to_owned())))
    }

    /// The key in clear: for the one who is to use it, once, and for the hash.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(bk_…)")
    }
}

/// The first 32 bits of BLAKE3 over prefix and random digits. Anybody can compute it; it catches typing, not forgery.
fn checksum(body: &str) -> [u8; 4] {
    let [a, b, c, d, ..] = *blake3::hash(body.as_bytes()).as_bytes();
    [a, b, c, d]
}

/// Appends a big-endian number as `digits` base62 digits, most significant first.
fn push_base62<const BYTES: usize>(text: &mut String, mut number: [u8; BYTES], digits: usize) {
    let mut reversed = Zeroizing::new([0u8; RANDOM_DIGITS]);
    for digit in reversed.iter_mut().take(digits) {
        let mut remainder = 0u32;
        for byte in &mut number {
            let value = remainder << 8 | u32::from(*byte);
            // INVARIANT: remainder < 62, so value < 62 * 256 and the quotient fits a byte.
            *byte = (value / 62) as u8;
            remainder = value % 62;
        }
        *digit = DIGITS.get(remainder as usize).copied().unwrap_or(b'0');
    }
    number.zeroize();
    text.extend(reversed.iter().take(digits).rev().map(|digit| char::from(*digit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_in_base_62() {
        let written = |number: [u8; 4]| {
            let mut text = String::new();
            push_base62(&mut text, number, CHECKSUM_DIGITS);
            text
        };
        assert_eq!(written([0, 0, 0, 0]), "000000");
        assert_eq!(written([0, 0, 0, 61]), "00000z");
        assert_eq!(written([0, 0, 0, 62]), "000010");
        // 4294967295 = 4*62^5 + 42*62^4 + 41*62^3 + 15*62^2 + 12*62 + 3
        assert_eq!(written([0xff; 4]), "4gfFC3");
        // The largest random number needs all 43 digits and no 44th.
        let key = ApiKey::from_random(&[0xff; RANDOM_BYTES]);
        assert_ne!(key.reveal().as_bytes()[PREFIX.len()], b'0');
    }

    #[test]
    fn minted_keys_are_read_back_and_differ() {
        let (a, b) = (ApiKey::mint().unwrap(), ApiKey::mint().unwrap());
        assert_eq!(a.reveal().len(), KEY_BYTES);
        assert_ne!(a.reveal(), b.reveal());
        assert_eq!(ApiKey::parse(a.reveal()).unwrap().reveal(), a.reveal());
    }

    #[test]
    fn other_forms_are_refused_without_repeating_the_text() {
        let key = ApiKey::mint().unwrap();
        let text = key.reveal();
        let forms = [
            String::new(),
            "bk_".to_owned(),
            "sk-proj-123".to_owned(),
            text[..text.len() - 1].to_owned(),
            format!("{text}0"),
            format!(" {text}"),
            text.replace("bk_", "BK_"),
            format!("bk_{}", "é".repeat(20) + "012345678"),
            format!("bk_{}-{}", &text[3..20], &text[21..]),
        ];
        for form in forms {
            let error = ApiKey::parse(&form).unwrap_err();
            assert_eq!(error, ParseKeyError::Form, "{form}");
        }
    }

    #[test]
    fn every_mistyped_digit_is_noticed() {
        let key = ApiKey::mint().unwrap();
        for position in PREFIX.len()..KEY_BYTES {
            let mut bytes = key.reveal().as_bytes().to_vec();
            bytes[position] = if bytes[position] == b'x' { b'y' } else { b'x' };
            let mistyped = String::from_utf8(bytes).unwrap();
            assert_eq!(ApiKey::parse(&mistyped).unwrap_err(), ParseKeyError::Checksum, "digit {position}");
        }
    }

    #[test]
    fn debug_shows_nothing_of_the_key() {
        let key = ApiKey::mint().unwrap();
        assert!(!format!("{key:?}").contains(&key.reveal()[3..7]));
    }
}
