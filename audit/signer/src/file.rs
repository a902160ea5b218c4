//! A key in a file, for a signer on another account than the gateway's.

use crate::conversation::Key;
use anyhow::{Context as _, Result, ensure};
use audit_tlog::{LogSigner, VerifierKey};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use zeroize::Zeroizing;

/// Longest key file that is read.
const FILE_BYTES_MAX: u64 = 1_024;

pub(crate) struct KeyFile(LogSigner);

impl KeyFile {
    /// Makes a key for this origin and the file that holds it, which must not be there.
    pub(crate) fn make(path: &Path, origin: &str) -> Result<Self> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(seed.as_mut_slice()).map_err(|_| anyhow::anyhow!("the system has no random bytes"))?;
        let key = Self(LogSigner::from_seed(origin, &seed)?);
        let line = key.0.secret_line().context("a key of its own has a secret")?;
        let shown = path.display();
        let open = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = open.with_context(|| format!("cannot make `{shown}`"))?;
        let written =
            file.write_all(line.as_bytes()).and_then(|()| file.write_all(b"\n")).and_then(|()| file.sync_all());
        written.with_context(|| format!("cannot write `{shown}`"))?;
        Ok(key)
    }

    /// Reads what [`KeyFile::make`] wrote, or a gateway's `keys/log.skey`.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let line = read_secret(path)?;
        LogSigner::parse(line.trim_end()).map(Self).with_context(|| format!("`{}`", path.display()))
    }

    #[cfg(test)]
    pub(crate) fn from_seed(origin: &str, seed: &[u8; 32]) -> Result<Self> {
        Ok(Self(LogSigner::from_seed(origin, seed)?))
    }

    pub(crate) fn public(&self) -> VerifierKey {
        self.0.verifier_key()
    }
}

impl Key for KeyFile {
    fn verifier_key(&self, origin: &str) -> Result<VerifierKey> {
        ensure!(self.0.name() == origin, "the key is for `{}`", self.0.name());
        Ok(self.public())
    }

    fn sign(&self, message: &[u8]) -> Result<[u8; 64]> {
        Ok(self.0.sign_bytes(message)?)
    }
}

/// A secret file's text. It must be nobody's but its owner's.
pub(crate) fn read_secret(path: &Path) -> Result<Zeroizing<String>> {
    let shown = path.display();
    let kind = path.metadata().with_context(|| format!("cannot read `{shown}`"))?;
    ensure!(kind.is_file(), "cannot read `{shown}`: not a regular file");
    ensure!(kind.permissions().mode() & 0o077 == 0, "`{shown}` is not its owner's alone: chmod 600 {shown}");
    let mut text = Zeroizing::new(String::new());
    let file = File::open(path).with_context(|| format!("cannot read `{shown}`"))?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(|| format!("cannot read `{shown}`"))?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "`{shown}` is too long");
    Ok(text)
}
