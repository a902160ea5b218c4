//! What a witness is asked: the body of `add-checkpoint`, as C2SP tlog-witness writes it.

use crate::checkpoint::CHECKPOINT_BYTES_MAX;
use tlog_tiles::Hash;

/// Hashes of a consistency proof that a witness reads.
pub const CONSISTENCY_HASHES_MAX: usize = 63;
/// Longest body of `add-checkpoint` that is read: a checkpoint, and room for the proof before it.
pub const ADD_CHECKPOINT_BYTES_MAX: usize = CHECKPOINT_BYTES_MAX + 4 * 1024;
/// Content type of the answer that gives the size of the latest checkpoint that a witness has cosigned.
pub const TLOG_SIZE: &str = "text/x.tlog.size";

/// A checkpoint, and the proof that it continues an older one. Nothing is verified yet.
#[derive(Debug, Clone, PartialEq)]
pub struct AddCheckpoint {
    /// Size of the tree that the witness is believed to have seen last.
    pub old_size: u64,
    /// The consistency proof from there.
    pub proof: Vec<Hash>,
    /// The signed note, as it stands in the body.
    pub checkpoint: String,
}

/// Text is no body of `add-checkpoint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AddCheckpointError {
    /// Longer than [`ADD_CHECKPOINT_BYTES_MAX`].
    #[error("the request has {length} bytes, at most {ADD_CHECKPOINT_BYTES_MAX} are read")]
    TooLong {
        /// Bytes given.
        length: usize,
    },
    /// Not UTF-8.
    #[error("the request is not text")]
    Text,
    /// The first line is not `old` and a decimal number in its one form.
    #[error("the first line is not the old size")]
    OldSize,
    /// A line is not the base64 of a hash, or there are more than [`CONSISTENCY_HASHES_MAX`].
    #[error("line {line} is not the hash of a consistency proof")]
    Hash {
        /// The line's number from 1.
        line: usize,
    },
    /// There is no empty line and checkpoint after the hashes.
    #[error("the checkpoint is missing")]
    Checkpoint,
}

impl AddCheckpoint {
    /// Writes the body.
    #[must_use]
    pub fn encode(&self) -> String {
        let mut text = format!("old {}\n", self.old_size);
        for hash in &self.proof {
            text.push_str(&format!("{hash}\n"));
        }
        text.push('\n');
        text.push_str(&self.checkpoint);
        text
    }

    /// Reads the body. The checkpoint is taken as it is: [`crate::Checkpoint::open`] reads it.
    ///
    /// # Errors
    /// [`AddCheckpointError`].
    pub fn parse(text: &[u8]) -> Result<Self, AddCheckpointError> {
        if text.len() > ADD_CHECKPOINT_BYTES_MAX {
            return Err(AddCheckpointError::TooLong { length: text.len() });
        }
        let text = std::str::from_utf8(text).map_err(|_| AddCheckpointError::Text)?;
        let (line, mut rest) = text.split_once('\n').ok_or(AddCheckpointError::OldSize)?;
        let old_size = line.strip_prefix("old ").and_then(parse_size).ok_or(AddCheckpointError::OldSize)?;
        let mut proof = Vec::new();
        loop {
            let number = proof.len() + 2;
            let (line, after) = rest.split_once('\n').ok_or(AddCheckpointError::Checkpoint)?;
            rest = after;
            if line.is_empty() {
                break;
            }
            let hash = Hash::parse_hash(line).map_err(|_| AddCheckpointError::Hash { line: number })?;
            if proof.len() == CONSISTENCY_HASHES_MAX || hash.to_string() != line {
                return Err(AddCheckpointError::Hash { line: number });
            }
            proof.push(hash);
        }
        if rest.is_empty() {
            return Err(AddCheckpointError::Checkpoint);
        }
        Ok(Self { old_size, proof, checkpoint: rest.to_owned() })
    }

    /// The size in an answer of the type [`TLOG_SIZE`].
    #[must_use]
    pub fn parse_size_answer(body: &[u8]) -> Option<u64> {
        parse_size(std::str::from_utf8(body).ok()?.strip_suffix('\n')?)
    }
}

/// A size in its one decimal form.
fn parse_size(digits: &str) -> Option<u64> {
    let size: u64 = digits.parse().ok()?;
    (size.to_string() == digits).then_some(size)
}

/// The first line of a note: whose log it claims to be.
#[must_use]
pub fn origin_of(note: &str) -> Option<&str> {
    note.split_once('\n').map(|(origin, _)| origin).filter(|origin| !origin.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of the specification.
    const EXAMPLE: &str = "old 20852014
PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=
jrJZDmY8Y7SyJE0MWLpLozkIVMSMZcD5kvuKxPC3swk=
5+pKlUdi2LeF/BcMHBn+Ku6yhPGNCswZZD1X/6QgPd8=
/6WVhPs2CwSsb5rYBH5cjHV/wSmA79abXAwhXw3Kj/0=

example.com/behind-the-sofa
20852163
CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=

— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=
";

    #[test]
    fn the_example_of_the_specification_is_read_and_written() {
        let request = AddCheckpoint::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!((request.old_size, request.proof.len()), (20_852_014, 4));
        assert_eq!(origin_of(&request.checkpoint), Some("example.com/behind-the-sofa"));
        assert_eq!(request.encode(), EXAMPLE);
        let first = AddCheckpoint { old_size: 0, proof: Vec::new(), checkpoint: "c\n".into() };
        assert_eq!(first.encode(), "old 0\n\nc\n");
        assert_eq!(AddCheckpoint::parse(b"old 0\n\nc\n"), Ok(first));
    }

    #[test]
    fn other_forms_are_refused() {
        let hash = "PlRNCrwHpqhGrupue0L7gxbjbMiKA9temvuZZDDpkaw=";
        for (text, error) in [
            (String::new(), AddCheckpointError::OldSize),
            ("old 1".into(), AddCheckpointError::OldSize),
            ("old 01\n\nc\n".into(), AddCheckpointError::OldSize),
            ("old +1\n\nc\n".into(), AddCheckpointError::OldSize),
            ("old -1\n\nc\n".into(), AddCheckpointError::OldSize),
            ("old \n\nc\n".into(), AddCheckpointError::OldSize),
            ("old  1\n\nc\n".into(), AddCheckpointError::OldSize),
            ("1\n\nc\n".into(), AddCheckpointError::OldSize),
            ("old 18446744073709551616\n\nc\n".into(), AddCheckpointError::OldSize),
            (format!("old 1\n{hash}\n"), AddCheckpointError::Checkpoint),
            (format!("old 1\n{hash}\n\n"), AddCheckpointError::Checkpoint),
            ("old 1\n".into(), AddCheckpointError::Checkpoint),
            (format!("old 1\n{hash} \n\nc\n"), AddCheckpointError::Hash { line: 2 }),
            (format!("old 1\n{hash}\n{}\n\nc\n", &hash[1..]), AddCheckpointError::Hash { line: 3 }),
            (format!("old 1\n{}\nc\n", format!("{hash}\n").repeat(64)), AddCheckpointError::Hash { line: 65 }),
        ] {
            assert_eq!(AddCheckpoint::parse(text.as_bytes()), Err(error), "{text:?}");
        }
        let most = format!("old 1\n{}\nc\n", format!("{hash}\n").repeat(63));
        assert_eq!(AddCheckpoint::parse(most.as_bytes()).unwrap().proof.len(), 63);
        assert_eq!(AddCheckpoint::parse(b"old 1\n\xff\n"), Err(AddCheckpointError::Text));
        let long = vec![b'a'; ADD_CHECKPOINT_BYTES_MAX + 1];
        assert!(matches!(AddCheckpoint::parse(&long), Err(AddCheckpointError::TooLong { .. })));
    }

    #[test]
    fn a_size_has_one_form() {
        assert_eq!(AddCheckpoint::parse_size_answer(b"0\n"), Some(0));
        assert_eq!(AddCheckpoint::parse_size_answer(b"20852163\n"), Some(20_852_163));
        for body in [&b""[..], b"\n", b"1", b"1\n\n", b"01\n", b"+1\n", b" 1\n", b"1 \n", b"\xff\n", b"one\n"] {
            assert_eq!(AddCheckpoint::parse_size_answer(body), None, "{body:?}");
        }
    }
}
