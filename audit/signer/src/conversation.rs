//! What is said between a log and its signer: a line there, a line back.

use anyhow::{Context as _, Result, bail, ensure};
use audit_tlog::{Checkpoint, VerifierKey};
use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::io::{BufRead, Read as _, Write};

/// First word of a conversation: the version of what is said.
const GREETING: &str = "bulkhead-signer/1";
/// Longest line that is read. A checkpoint is three short lines.
const LINE_BYTES_MAX: u64 = 4_096;

/// Whatever has the secret.
pub(crate) trait Key {
    /// The public half, under this name.
    fn verifier_key(&self, origin: &str) -> Result<VerifierKey>;

    /// An Ed25519 signature.
    fn sign(&self, message: &[u8]) -> Result<[u8; 64]>;
}

/// Answers until the input ends. Signs checkpoints of the one log that it was greeted for, and only one history of it: no tree
/// that is smaller than one that was signed, and no two of one size.
pub(crate) fn converse(key: &impl Key, mut from: impl BufRead, mut to: impl Write) -> Result<()> {
    let Some(greeting) = next_line(&mut from)? else { return Ok(()) };
    let verifier = greeted(key, &greeting);
    answer(&mut to, verifier.as_ref().map(ToString::to_string))?;
    let Ok(verifier) = verifier else { return Ok(()) };
    let mut last: Option<Checkpoint> = None;
    while let Some(line) = next_line(&mut from)? {
        let signed = sign(key, verifier.name(), &line, &mut last);
        answer(&mut to, signed.as_ref().map(|signature| BASE64_STANDARD.encode(signature)))?;
    }
    Ok(())
}

fn greeted(key: &impl Key, greeting: &str) -> Result<VerifierKey> {
    let origin = greeting.strip_prefix(GREETING).and_then(|rest| rest.strip_prefix(' '));
    key.verifier_key(origin.context("another version of the conversation is spoken here: bulkhead-signer/1")?)
}

fn sign(key: &impl Key, origin: &str, line: &str, last: &mut Option<Checkpoint>) -> Result<[u8; 64]> {
    let encoded = line.strip_prefix("sign ").context("not a question that is known here")?;
    let message = BASE64_STANDARD.decode(encoded).context("not base64")?;
    let checkpoint = Checkpoint::from_text(&message)?;
    ensure!(checkpoint.origin == origin, "a checkpoint of another log");
    if let Some(last) = last {
        ensure!(checkpoint.size >= last.size, "a smaller tree was asked for than one that was signed");
        ensure!(checkpoint.size > last.size || checkpoint.root == last.root, "another tree of a size that was signed");
    }
    let signature = key.sign(&message)?;
    *last = Some(checkpoint);
    Ok(signature)
}

fn answer(to: &mut impl Write, said: Result<String, &anyhow::Error>) -> Result<()> {
    let line = said.unwrap_or_else(|error| format!("error {}", format!("{error:#}").replace('\n', " ")));
    writeln!(to, "{line}")?;
    Ok(to.flush()?)
}

/// `None` at the end.
fn next_line(from: &mut impl BufRead) -> Result<Option<String>> {
    let mut line = String::new();
    from.take(LINE_BYTES_MAX).read_line(&mut line)?;
    match line.strip_suffix('\n') {
        Some(line) => Ok(Some(line.to_owned())),
        None if line.is_empty() => Ok(None),
        None => bail!("a line is too long or cut off"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::KeyFile;
    use audit_tlog::Hash;

    fn text(origin: &str, size: u64, root: u8) -> String {
        format!("{origin}\n{size}\n{}\n", Hash([root; 32]))
    }

    fn said(lines: &[String]) -> Vec<String> {
        let key = KeyFile::from_seed("log.example", &[3; 32]).unwrap();
        let mut answers = Vec::new();
        converse(&key, lines.concat().as_bytes(), &mut answers).unwrap();
        String::from_utf8(answers).unwrap().lines().map(str::to_owned).collect()
    }

    fn ask(text: &str) -> String {
        format!("sign {}\n", BASE64_STANDARD.encode(text))
    }

    #[test]
    fn one_history_of_one_log_is_signed_and_nothing_else() {
        let hello = "bulkhead-signer/1 log.example\n".to_owned();
        let answers = said(&[
            hello,
            ask(&text("log.example", 3, 1)),
            ask(&text("log.example", 3, 1)),
            ask(&text("log.example", 5, 2)),
            ask(&text("log.example", 3, 1)),
            ask(&text("log.example", 5, 9)),
            ask(&text("other.example", 6, 1)),
            ask("what else might be signed\n"),
            "sign what?\n".to_owned(),
            "show\n".to_owned(),
            ask(&text("log.example", 5, 2)),
        ]);
        let key = VerifierKey::parse(&answers[0]).unwrap();
        assert_eq!(key.name(), "log.example");
        let signs = |answer: &str, text: &str| {
            let signature = BASE64_STANDARD.decode(answer).unwrap_or_default();
            key.verifies(text.as_bytes(), &signature)
        };
        assert!(signs(&answers[1], &text("log.example", 3, 1)) && answers[1] == answers[2]);
        assert!(signs(&answers[3], &text("log.example", 5, 2)) && answers[3] == answers[10]);
        let refused = [
            "error a smaller tree was asked for than one that was signed",
            "error another tree of a size that was signed",
            "error a checkpoint of another log",
            "error the checkpoint is not exactly origin, size and root hash",
            "error not base64",
            "error not a question that is known here",
        ];
        for (answer, wanted) in answers[4..10].iter().zip(refused) {
            assert!(answer.starts_with(wanted), "{answer}");
        }
    }

    #[test]
    fn strangers_get_no_further_than_the_greeting() {
        for greeting in ["hello\n", "bulkhead-signer/2 log.example\n", "bulkhead-signer/1 other.example\n"] {
            let answers = said(&[greeting.to_owned(), ask(&text("log.example", 1, 1))]);
            assert!(answers.len() == 1 && answers[0].starts_with("error "), "{answers:?}");
        }
        assert!(said(&[]).is_empty());
        let key = KeyFile::from_seed("log.example", &[3; 32]).unwrap();
        let long = format!("bulkhead-signer/1 {}", "x".repeat(10_000));
        assert!(converse(&key, long.as_bytes(), &mut Vec::new()).is_err());
    }
}
