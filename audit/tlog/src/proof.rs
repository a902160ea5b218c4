//! `c2sp.org/tlog-proof@v1`: an entry's place in a log as one text file.

use crate::checkpoint::CHECKPOINT_BYTES_MAX;
use crate::tree::PROOF_HASHES_MAX;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use tlog_tiles::Hash;

const HEADER: &str = "c2sp.org/tlog-proof@v1";
/// Bytes of extra data that are read.
pub const EXTRA_BYTES_MAX: usize = 512 * 1024;
/// Longest proof file that is read.
pub const PROOF_BYTES_MAX: usize = EXTRA_BYTES_MAX / 3 * 4 + CHECKPOINT_BYTES_MAX + 8 * 1024;

/// A proof as it stands in the file. Nothing is verified yet.
#[derive(Debug, Clone, PartialEq)]
pub struct TlogProof {
    /// Data of the application. Not authenticated by the format.
    pub extra: Option<Vec<u8>>,
    /// The entry's index.
    pub index: u64,
    /// The inclusion proof, from the leaf's sibling upwards.
    pub hashes: Vec<Hash>,
    /// The checkpoint, a signed note, as it stands in the file.
    pub checkpoint: String,
}

/// Text is not a proof file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    /// Longer than [`PROOF_BYTES_MAX`].
    #[error("the proof has {length} bytes, at most {PROOF_BYTES_MAX} are read")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// Not UTF-8.
    #[error("the proof is not text")]
    Text,
    /// The first line is another.
    #[error("the first line is not `{HEADER}`")]
    Header,
    /// The extra line is not base64 in its one form.
    #[error("the extra line is not base64")]
    Extra,
    /// The index line is missing or not a decimal number in its one form.
    #[error("the index line is missing or malformed")]
    Index,
    /// A proof line is not the base64 of a hash, or there are more than [`PROOF_HASHES_MAX`].
    #[error("line {line} is not the hash of an inclusion proof")]
    Hash {
        /// The line's number from 1.
        line: usize,
    },
    /// There is no empty line and checkpoint after the hashes.
    #[error("the checkpoint is missing")]
    Checkpoint,
}

impl TlogProof {
    /// Writes the file.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = format!("{HEADER}\n");
        if let Some(extra) = &self.extra {
            text.push_str("extra ");
            text.push_str(&BASE64_STANDARD.encode(extra));
            text.push('\n');
        }
        text.push_str(&format!("index {}\n", self.index));
        for hash in &self.hashes {
            text.push_str(&format!("{hash}\n"));
        }
        text.push('\n');
        text.push_str(&self.checkpoint);
        text
    }

    /// Reads the file. The checkpoint is taken as it is: [`crate::Checkpoint::open`] reads it.
    ///
    /// # Errors
    /// [`ProofError`].
    pub fn parse(text: &[u8]) -> Result<Self, ProofError> {
        if text.len() > PROOF_BYTES_MAX {
            return Err(ProofError::TooLong { length: text.len() });
        }
        let text = std::str::from_utf8(text).map_err(|_| ProofError::Text)?;
        let (header, mut rest) = text.split_once('\n').ok_or(ProofError::Header)?;
        if header != HEADER {
            return Err(ProofError::Header);
        }
        let mut line_number = 2;
        let mut extra = None;
        if let Some(after) = rest.strip_prefix("extra ") {
            let (line, after) = after.split_once('\n').ok_or(ProofError::Extra)?;
            extra = Some(BASE64_STANDARD.decode(line).map_err(|_| ProofError::Extra)?);
            rest = after;
            line_number += 1;
        }
        let (line, mut rest) = rest.split_once('\n').ok_or(ProofError::Index)?;
        let digits = line.strip_prefix("index ").ok_or(ProofError::Index)?;
        let index: u64 = digits.parse().map_err(|_| ProofError::Index)?;
        if index.to_string() != digits {
            return Err(ProofError::Index);
        }
        let mut hashes = Vec::new();
        loop {
            line_number += 1;
            let (line, after) = rest.split_once('\n').ok_or(ProofError::Checkpoint)?;
            rest = after;
            if line.is_empty() {
                break;
            }
            let hash = Hash::parse_hash(line).map_err(|_| ProofError::Hash { line: line_number })?;
            if hashes.len() == PROOF_HASHES_MAX {
                return Err(ProofError::Hash { line: line_number });
            }
            hashes.push(hash);
        }
        if rest.is_empty() {
            return Err(ProofError::Checkpoint);
        }
        Ok(Self { extra, index, hashes, checkpoint: rest.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn proof() -> TlogProof {
        TlogProof {
            extra: Some(b"extra data".to_vec()),
            index: 5,
            hashes: vec![crate::leaf_hash(b"1"), crate::leaf_hash(b"2")],
            checkpoint: "example.com/log\n10\nroot\n\nsignatures\n".into(),
        }
    }

    #[test]
    fn the_file_has_the_lines_of_the_specification() {
        let hash = |text: &[u8]| crate::leaf_hash(text).to_string();
        let wanted = format!(
            "c2sp.org/tlog-proof@v1\nextra ZXh0cmEgZGF0YQ==\nindex 5\n{}\n{}\n\nexample.com/log\n10\nroot\n\nsignatures\n",
            hash(b"1"),
            hash(b"2")
        );
        assert_eq!(proof().encode(), wanted);
        let bare = TlogProof { extra: None, index: 0, hashes: vec![], checkpoint: "c\n".into() };
        assert_eq!(bare.encode(), "c2sp.org/tlog-proof@v1\nindex 0\n\nc\n");
        assert_eq!(TlogProof::parse(bare.encode().as_bytes()), Ok(bare));
        assert_eq!(TlogProof::parse(wanted.as_bytes()), Ok(proof()));
    }

    #[test]
    fn every_other_form_is_refused() {
        let text = proof().encode();
        let parse = |text: &str| TlogProof::parse(text.as_bytes()).unwrap_err();
        assert_eq!(parse(&text.replace("@v1", "@v2")), ProofError::Header);
        assert_eq!(parse(&text.replace("\nindex", "\r\nindex")), ProofError::Extra);
        assert_eq!(parse(&text.replace("extra ZXh0cmEgZGF0YQ==", "extra ZXh0cmEgZGF0YQ")), ProofError::Extra);
        assert_eq!(parse(&text.replace("extra ZXh0cmEgZGF0YQ==", "extra ZXh0cmEgZGF0YR==")), ProofError::Extra);
        for index in ["05", "+5", "-5", "5 ", "", "18446744073709551616", "0x5"] {
            assert_eq!(parse(&text.replace("index 5", &format!("index {index}"))), ProofError::Index, "{index}");
        }
        assert_eq!(parse(&text.replace("index 5\n", "")), ProofError::Index);
        let hash = crate::leaf_hash(b"1").to_string();
        assert_eq!(parse(&text.replace(&hash, &hash[..43])), ProofError::Hash { line: 4 });
        assert_eq!(parse(&text.replace(&hash, &format!(" {hash}"))), ProofError::Hash { line: 4 });
        let many = format!("{hash}\n").repeat(65);
        assert_eq!(parse(&format!("{HEADER}\nindex 0\n{many}\nc\n")), ProofError::Hash { line: 67 });
        assert_eq!(parse(&format!("{HEADER}\nindex 0\n")), ProofError::Checkpoint);
        assert_eq!(parse(&format!("{HEADER}\nindex 0\n\n")), ProofError::Checkpoint);
        assert_eq!(TlogProof::parse(&[0xff, 0xfe]), Err(ProofError::Text));
        let long = vec![b'a'; PROOF_BYTES_MAX + 1];
        assert_eq!(TlogProof::parse(&long), Err(ProofError::TooLong { length: PROOF_BYTES_MAX + 1 }));
    }

    proptest! {
        #[test]
        fn anything_that_is_read_is_written_back_the_same(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..250) {
            let _ = TlogProof::parse(&bytes);
            let mut text = proof().encode().into_bytes();
            text.splice(cut.min(text.len())..cut.min(text.len()), bytes);
            if let Ok(proof) = TlogProof::parse(&text) {
                prop_assert_eq!(proof.encode().into_bytes(), text);
            }
        }
    }
}
