//! TLS of the listener: certificate and key from files, TLS 1.2 and 1.3, HTTP/2 by ALPN, client certificates on demand.
//!
//! A client certificate decides who may connect. Which tenant asks is said by the API key alone.

use crate::bounded_file;
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use rustls::server::WebPkiClientVerifier;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A chain has a few certificates; all authorities that browsers know take a twentieth of this.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Where the listener's certificate lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// PEM: the certificate, then those between it and the root.
    pub certificate: PathBuf,
    /// PEM: its private key.
    pub private_key: PathBuf,
    /// PEM: the authorities whose clients may connect; everybody may when `None`.
    pub client_authorities: Option<PathBuf>,
}

/// The listener's TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoadTlsError {
    /// A file is missing, unreadable, or holds nothing of the kind.
    #[error("TLS file `{}`: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: pem::Error,
    },
    /// Certificate and key do not belong together, or cannot be used.
    #[error("certificate `{}` cannot be used: {source}", path.display())]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The client authorities cannot be used.
    #[error("client authorities `{}` cannot be used: {reason}", path.display())]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Reads and checks everything. The provider is named, so that no process-wide default is needed.
pub(crate) fn load(files: &TlsFiles) -> Result<Arc<ServerConfig>, LoadTlsError> {
    let unusable = |source| LoadTlsError::Certificate { path: files.certificate.clone(), source };
    let certificates = read_certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.private_key)?)
        .map_err(|source| LoadTlsError::File { path: files.private_key.clone(), source })?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(client_verifier(path)?),
    };
    let mut config = builder.with_single_cert(certificates, key).map_err(unusable)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn client_verifier(path: &Path) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, LoadTlsError> {
    let unusable = |reason: String| LoadTlsError::Authorities { path: path.to_owned(), reason };
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
        .build()
        .map_err(|error| unusable(error.to_string()))
}

fn read(path: &Path) -> Result<Vec<u8>, LoadTlsError> {
    let bytes = bounded_file::read(path, FILE_BYTES_MAX);
    bytes.map_err(|error| LoadTlsError::File { path: path.to_owned(), source: pem::Error::Io(error) })
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, LoadTlsError> {
    let failed = |source| LoadTlsError::File { path: path.to_owned(), source };
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&read(path)?).collect::<Result<_, _>>().map_err(failed)?;
    if certificates.is_empty() { Err(failed(pem::Error::NoItemsFound)) } else { Ok(certificates) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_certificates_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let empty = file("empty.pem", "");
        let broken = file("broken.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let missing = folder.path().join("missing.pem");
        let device = PathBuf::from("/dev/zero");
        for certificate in [&empty, &missing, &broken, &device] {
            let files =
                TlsFiles { certificate: certificate.clone(), private_key: missing.clone(), client_authorities: None };
            let error = load(&files).unwrap_err().to_string();
            let named = if certificate == &broken { &missing } else { certificate };
            assert!(error.contains(&named.display().to_string()), "{error}");
        }
    }
}
