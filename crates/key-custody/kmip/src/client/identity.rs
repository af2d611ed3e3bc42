//! The client's certificate and its trusted authorities: PEM files, reread when they change.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use zeroize::Zeroizing;

/// Most bytes of a PEM file; a bundle of all public authorities has a quarter of that.
pub const PEM_FILE_BYTES_MAX: u64 = 1 << 20;

/// The files of mutual TLS. Only their paths are kept; each new connection uses their current
/// content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TlsFiles {
    /// Certificates of the authorities that a server's certificate may come from.
    pub authority: PathBuf,
    /// Our certificate, and those that lead to its root.
    pub certificate: PathBuf,
    /// Its private key: PKCS#8, PKCS#1 or SEC 1.
    pub key: PathBuf,
}

/// Why the files cannot be used.
#[derive(Debug, Error)]
pub enum TlsFilesError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file has the wrong content.
    #[error("{path} holds no {wanted} in PEM: {reason}")]
    Content {
        /// The path.
        path: PathBuf,
        /// The expected content.
        wanted: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// Certificate and key do not belong together, or cannot be used.
    #[error("the certificate {certificate} cannot be used with the key {key}: {reason}")]
    Pair {
        /// The certificate.
        certificate: PathBuf,
        /// The key.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Metadata that changes when a file is replaced or written.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    length_bytes: u64,
    changed: (i64, i64),
}

/// The files and their content as last read.
pub(super) struct Identity {
    files: TlsFiles,
    read: Mutex<Loaded>,
}

struct Loaded {
    stamps: [Option<Stamp>; 3],
    config: Arc<ClientConfig>,
}

impl TlsFiles {
    /// Reads the files to check that they can be used.
    ///
    /// # Errors
    /// [`TlsFilesError`], which names the file.
    pub fn check(&self) -> Result<(), TlsFilesError> {
        self.load().map(|_| ())
    }

    fn paths(&self) -> [&Path; 3] {
        [&self.authority, &self.certificate, &self.key]
    }

    fn stamps(&self) -> [Option<Stamp>; 3] {
        self.paths().map(|path| {
            let metadata = fs::metadata(path).ok()?;
            Some(Stamp {
                device: metadata.dev(),
                inode: metadata.ino(),
                length_bytes: metadata.len(),
                changed: (metadata.ctime(), metadata.ctime_nsec()),
            })
        })
    }

    fn load(&self) -> Result<Arc<ClientConfig>, TlsFilesError> {
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority)? {
            roots.add(certificate).map_err(|error| TlsFilesError::Content {
                path: self.authority.clone(),
                wanted: "certificate of an authority",
                reason: error.to_string(),
            })?;
        }
        let key_pem = read(&self.key)?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem).map_err(|error| TlsFilesError::Content {
            path: self.key.clone(),
            wanted: "private key",
            reason: of_pem(&error),
        })?;
        let pair = |error: rustls::Error| TlsFilesError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            reason: error.to_string(),
        };
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(pair)?
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates(&self.certificate)?, key)
            .map_err(pair)?;
        // Every connection shows its certificate: a resumed session would outlive the certificate's
        // replacement.
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }
}

impl Identity {
    pub(super) fn new(files: TlsFiles) -> Result<Self, TlsFilesError> {
        let stamps = files.stamps();
        let config = files.load()?;
        Ok(Self { files, read: Mutex::new(Loaded { stamps, config }) })
    }

    /// The files' current configuration. If they cannot be used, as during their replacement, the
    /// previous content stays in use.
    pub(super) fn current(&self) -> Arc<ClientConfig> {
        let stamps = self.files.stamps();
        let mut read = self.read.lock();
        if read.stamps != stamps {
            match self.files.load() {
                Ok(config) => {
                    tracing::info!(certificate = %self.files.certificate.display(), "TLS files were read again");
                    read.config = config;
                    read.stamps = stamps;
                }
                Err(error) => tracing::warn!(%error, "the TLS files in use before stay in use"),
            }
        }
        Arc::clone(&read.config)
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsFilesError> {
    let content =
        |reason: String| TlsFilesError::Content { path: path.to_owned(), wanted: "certificate", reason };
    let pem = read(path)?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<_, _>>()
        .map_err(|error| content(of_pem(&error)))?;
    if all.is_empty() { Err(content("there is none in it".to_owned())) } else { Ok(all) }
}

fn read(path: &Path) -> Result<Zeroizing<Vec<u8>>, TlsFilesError> {
    let unreadable = |source| TlsFilesError::Unreadable { path: path.to_owned(), source };
    let file = File::open(path).map_err(unreadable)?;
    let length_bytes = file.metadata().map_err(unreadable)?.len();
    if length_bytes > PEM_FILE_BYTES_MAX {
        let reason = format!("{length_bytes} bytes are more than the {PEM_FILE_BYTES_MAX} that are read");
        return Err(TlsFilesError::Content { path: path.to_owned(), wanted: "text", reason });
    }
    // One byte more than the file has, so that reading to its end never grows the buffer.
    let capacity = usize::try_from(length_bytes).unwrap_or_default() + 1;
    let mut content = Zeroizing::new(Vec::with_capacity(capacity));
    file.take(length_bytes).read_to_end(&mut content).map_err(unreadable)?;
    Ok(content)
}

fn of_pem(error: &rustls::pki_types::pem::Error) -> String {
    use rustls::pki_types::pem::Error;
    match error {
        Error::NoItemsFound => "there is none in it".to_owned(),
        // The parser's other errors quote the file, which may hold a key.
        _ => "it is damaged".to_owned(),
    }
}
