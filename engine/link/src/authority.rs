//! Makes the certificates of an engine's processes, for those who have no authority of their own.

use crate::identity::IdentityFiles;
use crate::role::Role;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A file exists already or cannot be written. Nothing that exists is ever replaced.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A certificate could not be made.
    #[error("a certificate could not be made: {0}")]
    Certificate(#[from] rcgen::Error),
}

/// An authority for one engine: it signs one certificate for each part, and then its key is gone.
#[derive(Debug)]
pub struct Authority;

impl Authority {
    /// Writes the authority's certificate, and certificate and key of each part, into a folder that only this user can
    /// enter; the folder is made when it is not there. The authority's own key is not kept: who needs another certificate
    /// makes a new set.
    ///
    /// Gives the paths of what was written.
    ///
    /// # Errors
    /// [`AuthorityError`]; some files may exist then.
    pub fn write(folder: &Path) -> Result<Vec<PathBuf>, AuthorityError> {
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| AuthorityError::File { path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(at(folder))?;
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "Bulkhead engine");
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key)?;
        let issuer = Issuer::new(params, key);
        let mut files = Vec::new();
        for role in Role::ALL {
            let IdentityFiles { certificate: path, key: key_path, .. } = IdentityFiles::in_folder(folder, role);
            let key = KeyPair::generate()?;
            let mut params = CertificateParams::new([role.certificate_name().to_owned()])?;
            params.distinguished_name.push(DnType::CommonName, format!("Bulkhead {role} worker"));
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            files.push((path, params.signed_by(&key, &issuer)?.pem()));
            files.push((key_path, key.serialize_pem()));
        }
        // Last, because it is what makes the set whole.
        files.push((IdentityFiles::in_folder(folder, Role::Prefill).authority, certificate.pem()));
        for (path, pem) in &files {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(at(path))?;
            file.write_all(pem.as_bytes()).map_err(at(path))?;
        }
        Ok(files.into_iter().map(|(path, _)| path).collect())
    }
}
