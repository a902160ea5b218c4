//! Who this process is towards its peer, and whom it believes.

use crate::role::Role;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, RootCertStore, ServerConfig, version::TLS13};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What both ends say that they speak; another version is another word.
const PROTOCOL: &[u8] = b"bulkhead-link/1";

/// The files of an identity, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityFiles {
    /// This process's certificate, with those between it and the authority's behind it.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authority's certificate: whose peers are believed.
    pub authority: PathBuf,
}

impl IdentityFiles {
    /// The names that [`Authority`](crate::Authority) gives them in a folder.
    #[must_use]
    pub fn in_folder(folder: &Path, role: Role) -> Self {
        Self {
            certificate: folder.join(format!("{role}.pem")),
            key: folder.join(format!("{role}.key")),
            authority: folder.join("authority.pem"),
        }
    }
}

/// Why there is no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or has none of what it should have.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        source: pem::Error,
    },
    /// A file has no certificate.
    #[error("{}: no certificate in it", path.display())]
    NoCertificate {
        /// Which one.
        path: PathBuf,
    },
    /// The certificate says another part of the engine, or none.
    #[error("{}: not a certificate of a {role} worker", path.display())]
    OtherRole {
        /// Which file.
        path: PathBuf,
        /// What it was to be.
        role: Role,
    },
    /// Certificates and key do not fit together, or are none that TLS can use.
    #[error("certificates and key are of no use together: {0}")]
    Tls(#[from] rustls::Error),
    /// The authority's certificate is none that others can be checked with.
    #[error("the authority's certificate is of no use: {0}")]
    Verifier(#[from] VerifierBuilderError),
}

/// Certificates and key of this process, ready for both ends of a connection. Its `Debug` does not show the key.
#[derive(Clone)]
pub struct Identity {
    role: Role,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

impl Identity {
    /// Reads the files of a process that is this part of the engine.
    ///
    /// # Errors
    /// [`IdentityError`].
    pub fn load(role: Role, files: &IdentityFiles) -> Result<Self, IdentityError> {
        let chain = certificates(&files.certificate)?;
        if !chain.first().is_some_and(|certificate| is_of(certificate, role)) {
            return Err(IdentityError::OtherRole { path: files.certificate.clone(), role });
        }
        let key = PrivateKeyDer::from_pem_file(&files.key)
            .map_err(|source| IdentityError::File { path: files.key.clone(), source })?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.authority)? {
            roots.add(certificate)?;
        }
        let (roots, provider) = (Arc::new(roots), Arc::new(ring::default_provider()));
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build()?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), key.clone_key())?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Every connection shows its certificate: there are few, and they stay.
        server.send_tls13_tickets = 0;
        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build()?;
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, key)?;
        client.alpn_protocols = vec![PROTOCOL.to_vec()];
        client.resumption = rustls::client::Resumption::disabled();
        Ok(Self { role, server: Arc::new(server), client: Arc::new(client) })
    }

    /// Which part of the engine this process is.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({})", self.role)
    }
}

/// The certificate names this part of the engine. Whether to believe it is another question.
pub(crate) fn is_of(certificate: &CertificateDer<'_>, role: Role) -> bool {
    let (Ok(certificate), Some(name)) = (webpki::EndEntityCert::try_from(certificate), role.server_name()) else {
        return false;
    };
    certificate.verify_is_valid_for_subject_name(&name).is_ok()
}

/// Whether the other end chose to speak what we speak.
pub(crate) fn speaks(chosen: Option<&[u8]>) -> bool {
    chosen == Some(PROTOCOL)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let error = |source| IdentityError::File { path: path.to_owned(), source };
    let found: Vec<_> = CertificateDer::pem_file_iter(path).map_err(error)?.collect::<Result<_, _>>().map_err(error)?;
    if found.is_empty() { Err(IdentityError::NoCertificate { path: path.to_owned() }) } else { Ok(found) }
}
