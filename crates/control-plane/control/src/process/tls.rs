//! The API's own certificate: self-signed, and pinned by its fingerprint, which the CLI reads from
//! `api.crt`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use strongroom_types::hex;
use time::OffsetDateTime;

use crate::engine::Certificate;

/// The certificate, PEM.
const CERTIFICATE: &str = "api.crt";
/// Its key, PEM, readable only by its owner.
const KEY: &str = "api.key";
/// The lifetime of a certificate: two years. An alarm is raised 30 days before its expiry.
const LIFETIME: Duration = Duration::from_secs(2 * 365 * 86_400);
/// How far its start is backdated, because other machines' clocks may be slow.
const BACKDATED: Duration = Duration::from_secs(3600);

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file failed.
    #[error("{path}: {error}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The content of the files is invalid.
    #[error(
        "the API's certificate in {path} cannot be used: {reason}; remove api.crt and api.key to have a new one made"
    )]
    Unusable {
        /// The path.
        path: PathBuf,
        /// The error.
        reason: String,
    },
}

/// The API's certificate and key.
pub struct ApiTls {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    expires_unix_seconds: u64,
}

impl ApiTls {
    /// Reads both from the state directory. Creates them if they do not exist, for these names
    /// beside the loopback's.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn open(directory: &Path, names: &[String]) -> Result<Self, TlsError> {
        let (certificate_path, key_path) = (directory.join(CERTIFICATE), directory.join(KEY));
        let missing = |path: &PathBuf| !path.exists();
        if missing(&certificate_path) || missing(&key_path) {
            make(&certificate_path, &key_path, names)?;
        }
        let unusable = |reason: String| TlsError::Unusable { path: certificate_path.clone(), reason };
        let certificate = read(&certificate_path)?;
        let key = read(&key_path)?;
        let certificate = pem::parse(certificate).map_err(|error| unusable(error.to_string()))?;
        let certificate = CertificateDer::from(certificate.into_contents());
        let key = pem::parse(key).map_err(|error| unusable(error.to_string()))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.into_contents()));
        let (_, parsed) =
            x509_parser::parse_x509_certificate(&certificate).map_err(|error| unusable(error.to_string()))?;
        let expires_unix_seconds = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| unusable(error.to_string()))?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .map_err(|error| unusable(error.to_string()))?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { config: Arc::new(config), certificate, expires_unix_seconds })
    }

    /// The configuration for the server.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// SHA-256 of the certificate, in lower-case hexadecimal.
    pub fn fingerprint(&self) -> String {
        hex::encode(digest::digest(&digest::SHA256, &self.certificate).as_ref())
    }

    /// The certificate, for the alarm about its expiry.
    pub fn certificate(&self) -> Certificate {
        Certificate { expires_unix_seconds: self.expires_unix_seconds }
    }
}

/// Writes the key first: a certificate without its key would be replaced.
fn make(certificate_path: &Path, key_path: &Path, names: &[String]) -> Result<(), TlsError> {
    let unusable = |error: rcgen::Error| TlsError::Unusable {
        path: certificate_path.to_owned(),
        reason: error.to_string(),
    };
    let mut all = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    all.extend(names.iter().filter(|name| !all.contains(name)).cloned().collect::<Vec<_>>());
    let mut params = CertificateParams::new(all).map_err(unusable)?;
    params.distinguished_name.push(DnType::CommonName, "Strongroom API");
    params.not_before = OffsetDateTime::now_utc() - BACKDATED;
    params.not_after = OffsetDateTime::now_utc() + LIFETIME;
    let key = KeyPair::generate().map_err(unusable)?;
    let certificate = params.self_signed(&key).map_err(unusable)?;
    let written = |path: &Path, content: &str| {
        strongroom_files::replace(path, content.as_bytes())
            .map_err(|error| TlsError::File { path: path.to_owned(), error })
    };
    written(key_path, &key.serialize_pem())?;
    written(certificate_path, &certificate.pem())
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::File { path: path.to_owned(), error })
}
