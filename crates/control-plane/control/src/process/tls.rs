//! The certificates that the API is served with: its own one, self-signed, and pinned by its
//! fingerprint, which the CLI reads from `api.crt`; and one of an authority, if it is installed
//! ([`certificate`]), for who asks for its names.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ::aws_lc_rs::digest;
use parking_lot::RwLock;
use rcgen::{CertificateParams, DnType, KeyPair};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use strongroom_types::hex;
use time::OffsetDateTime;

use crate::certificate::{self, CertificateError, Installed};
use crate::client_key::AnyKey;
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

/// The API's certificates and keys.
pub struct ApiTls {
    config: Arc<ServerConfig>,
    certificate: CertificateDer<'static>,
    expires_unix_seconds: u64,
    directory: PathBuf,
    by_name: Arc<ByName>,
    client_keys: Arc<AnyKey>,
    /// The file of the installed certificate as it was when it was last read.
    read: parking_lot::Mutex<Option<FileState>>,
}

/// What tells one file from another that has its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileState {
    inode: u64,
    changed: (i64, i64),
}

/// Which certificate a client is shown: by the name that it asks for.
struct ByName {
    own: Arc<CertifiedKey>,
    installed: RwLock<Option<Served>>,
}

struct Served {
    names: Vec<String>,
    expires_unix_seconds: u64,
    key: Arc<CertifiedKey>,
}

impl Served {
    fn of(installed: Installed) -> Result<Self, CertificateError> {
        let Installed { chain, key, description } = installed;
        let key = CertifiedKey::from_der(chain, key, &aws_lc_rs::default_provider())
            .map_err(|error| CertificateError::Refused(error.to_string()))?;
        let (names, expires_unix_seconds) = (description.names, description.expires_unix_seconds);
        Ok(Self { names, expires_unix_seconds, key: Arc::new(key) })
    }

    fn is_for(&self, asked: &str) -> bool {
        let asked = asked.to_ascii_lowercase();
        let beneath = asked.split_once('.').map(|(_, rest)| rest);
        self.names.iter().any(|name| match name.strip_prefix("*.") {
            Some(rest) => beneath == Some(rest),
            None => *name == asked,
        })
    }
}

impl std::fmt::Debug for ByName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ByName")
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let installed = self.installed.read();
        let fits =
            installed.as_ref().filter(|served| client.server_name().is_some_and(|name| served.is_for(name)));
        Some(Arc::clone(fits.map_or(&self.own, |served| &served.key)))
    }
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
        let provider = Arc::new(aws_lc_rs::default_provider());
        let own = CertifiedKey::from_der(vec![certificate.clone()], key, &provider)
            .map_err(|error| unusable(error.to_string()))?;
        let by_name = Arc::new(ByName { own: Arc::new(own), installed: RwLock::default() });
        let client_keys = AnyKey::new();
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
            .map_err(|error| unusable(error.to_string()))?
            .with_client_cert_verifier(Arc::clone(&client_keys) as _)
            .with_cert_resolver(Arc::clone(&by_name) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A browser's connection to a guest is handed over with its traffic keys
        // (`server/relay.rs`), to what knows AES-256-GCM alone. That is the first of the provider's
        // ciphers.
        config.ignore_client_order = true;
        config.enable_secret_extraction = true;
        let tls = Self {
            config: Arc::new(config),
            certificate,
            expires_unix_seconds,
            directory: directory.to_owned(),
            by_name,
            client_keys,
            read: parking_lot::Mutex::default(),
        };
        tls.follow();
        Ok(tls)
    }

    /// Reads the installed certificate again if its file is another one. Connections go on as they
    /// are. One that cannot be used leaves what is served as it is. Returns whether something was
    /// read.
    pub fn follow(&self) -> bool {
        let now = file_state(&certificate::installed_file(&self.directory));
        let mut read = self.read.lock();
        if *read == now {
            return false;
        }
        *read = now;
        match certificate::installed(&self.directory).and_then(|found| found.map(Served::of).transpose()) {
            Ok(served) => {
                let names = served.as_ref().map_or_else(String::new, |served| served.names.join(", "));
                tracing::info!(names, "the installed certificate of the API was read");
                *self.by_name.installed.write() = served;
            }
            Err(error) => tracing::error!(%error, "the installed certificate of the API cannot be used"),
        }
        true
    }

    /// Asks clients for certificates whenever `asks` says that there are keys to know.
    pub fn ask_for_keys_when(&self, asks: impl Fn() -> bool + Send + Sync + 'static) {
        self.client_keys.ask_when(asks);
    }

    /// The configuration for the server.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// SHA-256 of the certificate, in lower-case hexadecimal.
    pub fn fingerprint(&self) -> String {
        hex::encode(digest::digest(&digest::SHA256, &self.certificate).as_ref())
    }

    /// The certificates, for the alarms about their expiry.
    pub fn certificates(&self) -> Vec<Certificate> {
        let own = Certificate {
            name: "api".to_owned(),
            expires_unix_seconds: self.expires_unix_seconds,
            next_step: "remove control/api.crt and control/api.key and restart; clients then pin the new fingerprint",
        };
        let installed = self.by_name.installed.read();
        let installed = installed.as_ref().map(|served| Certificate {
            name: format!("api {}", served.names.join(" ")),
            expires_unix_seconds: served.expires_unix_seconds,
            next_step: "`strongroom certificate request` makes a request for another one",
        });
        std::iter::once(own).chain(installed).collect()
    }
}

fn file_state(path: &Path) -> Option<FileState> {
    let found = fs::metadata(path).ok()?;
    Some(FileState { inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()) })
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
