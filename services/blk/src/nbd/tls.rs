//! TLS of a server: its certificate, and which clients it serves.

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{RootCertStore, ServerConfig};
use std::sync::{Arc, PoisonError, RwLock};

/// Contents of the files, in PEM.
#[derive(Debug, Clone, Copy)]
pub struct Pems<'a> {
    /// The server's certificate, and those of authorities between it and the clients' root.
    pub certificate: &'a [u8],
    /// Its private key.
    pub key: &'a [u8],
    /// Authorities of the clients, each of which then needs a certificate.
    pub client_ca: Option<&'a [u8]>,
}

/// Why certificates are refused.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The server's own certificate.
    #[error("the certificate is unusable: {0}")]
    Certificate(String),
    /// The server's private key.
    #[error("the private key is unusable: {0}")]
    Key(String),
    /// The key and the certificate do not belong together.
    #[error("the private key is not that of the certificate")]
    Mismatch,
    /// The authorities of clients.
    #[error("the certificates of the clients' authorities are unusable: {0}")]
    ClientCa(String),
}

/// TLS of a server. New connections use what was set last; open ones stay as they are.
#[derive(Debug)]
pub struct Tls {
    config: RwLock<Arc<ServerConfig>>,
    /// Clients without TLS are refused.
    required: bool,
}

impl Tls {
    /// TLS 1.3 with these certificates. If it is not `required`, clients without TLS are served too.
    ///
    /// # Errors
    /// The certificates are malformed, or do not match.
    pub fn new(pems: &Pems<'_>, required: bool) -> Result<Self, TlsError> {
        Ok(Self {
            config: RwLock::new(Arc::new(config(pems)?)),
            required,
        })
    }

    /// Replaces the certificates for new connections.
    ///
    /// # Errors
    /// As [`Tls::new`]. The certificates are unchanged then.
    pub fn replace(&self, pems: &Pems<'_>) -> Result<(), TlsError> {
        let config = Arc::new(config(pems)?);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
        Ok(())
    }

    pub(super) fn is_required(&self) -> bool {
        self.required
    }

    pub(super) fn config(&self) -> Arc<ServerConfig> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config)
    }
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| error.to_string())?;
    if all.is_empty() {
        return Err("it has no CERTIFICATE in PEM".to_owned());
    }
    Ok(all)
}

fn config(pems: &Pems<'_>) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(default_provider());
    let chain = certificates(pems.certificate).map_err(TlsError::Certificate)?;
    let key = PrivateKeyDer::from_pem_slice(pems.key)
        .map_err(|error| TlsError::Key(error.to_string()))?;
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| TlsError::Certificate(error.to_string()))?;
    let builder = match pems.client_ca {
        None => builder.with_no_client_auth(),
        Some(pem) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(pem).map_err(TlsError::ClientCa)? {
                let added = roots.add(certificate);
                added.map_err(|error| TlsError::ClientCa(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build();
            builder.with_client_cert_verifier(
                verifier.map_err(|error| TlsError::ClientCa(error.to_string()))?,
            )
        }
    };
    let done = builder.with_single_cert(chain, key);
    let mut config = done.map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => TlsError::Mismatch,
        rustls::Error::InvalidCertificate(error) => TlsError::Certificate(error.to_string()),
        error => TlsError::Key(error.to_string()),
    })?;
    // A resumed session would skip the check of the client's certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
