//! A certificate of the API that an authority of the site has issued, beside its own one.
//!
//! The API's own certificate signs itself, and clients pin it: the commands on its machine,
//! sessions, and other machines by its fingerprint. It stays, and is shown to clients that ask for
//! no name, for `localhost` or for an address. Who asks for a name of the installed certificate is
//! shown that one.
//!
//! ```text
//! request.key     the key of a certificate that was requested
//! installed.pem   key and chain of the installed certificate, in one file: both change at once
//! ```

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use strongroom_types::hex;
use strongroom_types::unix_milliseconds_now;
use x509_parser::prelude::{GeneralName, ParsedExtension, X509Certificate};

/// The key of a request.
const REQUEST_KEY: &str = "request.key";
/// The installed certificate.
const INSTALLED: &str = "installed.pem";
/// The longest chain with its key, in bytes of PEM.
pub const CHAIN_BYTES_MAX: u64 = 64 * 1024;
/// The most certificates of a chain.
const CHAIN_MAX: usize = 8;
/// The most names of a request.
const NAMES_MAX: usize = 32;
/// The longest name in DNS, in bytes.
const NAME_BYTES_MAX: usize = 253;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file failed.
    #[error("{path}: {error}")]
    File {
        /// The path.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// Nothing was requested.
    #[error("no certificate was requested here; `strongroom certificate request NAME` makes a request")]
    NoRequest,
    /// A name is none that a certificate is served for.
    #[error(
        "'{0}' is no name in DNS; clients that go to an address or to localhost see the API's own certificate"
    )]
    Name(String),
    /// The certificate is refused.
    #[error("the certificate is refused: {0}")]
    Refused(String),
    /// No request can be made.
    #[error("no request can be made: {0}")]
    Request(String),
}

/// What is known of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// The names that it is for.
    pub names: Vec<String>,
    /// Who has issued it.
    pub issuer: String,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// SHA-256 of it, in lower-case hexadecimal.
    pub sha256: String,
}

/// The installed certificate.
pub struct Installed {
    /// The certificate, and those of its authorities.
    pub chain: Vec<CertificateDer<'static>>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
    /// What is known of it.
    pub description: Description,
}

/// The file of the installed certificate in the home of a control plane.
pub fn installed_file(control: &Path) -> PathBuf {
    control.join(INSTALLED)
}

/// Makes a key and a request for a certificate with these names. Returns the request as PEM. An
/// earlier request cannot be answered any more; what is installed stays.
///
/// # Errors
/// [`CertificateError`].
pub fn request(control: &Path, names: &[String]) -> Result<String, CertificateError> {
    if names.is_empty() || names.len() > NAMES_MAX {
        return Err(CertificateError::Request(format!("a certificate has 1 to {NAMES_MAX} names")));
    }
    if let Some(wrong) = names.iter().find(|name| !is_served(name)) {
        return Err(CertificateError::Name(wrong.clone()));
    }
    let failed = |error: rcgen::Error| CertificateError::Request(error.to_string());
    let mut parameters = CertificateParams::new(names).map_err(failed)?;
    // Authorities take the names from the extension; some refuse a subject without one.
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, names.first().map_or("", String::as_str));
    parameters.distinguished_name = subject;
    let key = KeyPair::generate().map_err(failed)?;
    let request = parameters.serialize_request(&key).map_err(failed)?.pem().map_err(failed)?;
    write(&control.join(REQUEST_KEY), key.serialize_pem().as_bytes())?;
    Ok(request)
}

/// Installs a certificate that was issued for the request: the certificate first, then those of its
/// authorities. It is served within seconds.
///
/// # Errors
/// [`CertificateError`]. Then what was installed stays.
pub fn install(control: &Path, chain: &[u8]) -> Result<Description, CertificateError> {
    let key = match strongroom_files::read(&control.join(REQUEST_KEY), CHAIN_BYTES_MAX) {
        Ok(key) => key,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(CertificateError::NoRequest),
        Err(error) => return Err(CertificateError::File { path: control.join(REQUEST_KEY), error }),
    };
    let mut whole = key;
    whole.push(b'\n');
    // What is not a certificate of the chain does not come into the file: a key among others.
    for certificate in certificates(chain)? {
        let block = pem::Pem::new("CERTIFICATE", certificate.to_vec());
        whole.extend_from_slice(pem::encode(&block).as_bytes());
    }
    let installed = read_whole(&whole)?;
    write(&installed_file(control), &whole)?;
    // The key is in the other file now. One that stays behind installs the same again.
    let _ = strongroom_files::remove(&control.join(REQUEST_KEY));
    Ok(installed.description)
}

/// Removes the installed certificate. Clients that ask for its names see the API's own one.
///
/// # Errors
/// [`CertificateError::File`].
pub fn remove(control: &Path) -> Result<bool, CertificateError> {
    let path = installed_file(control);
    strongroom_files::remove(&path).map_err(|error| CertificateError::File { path, error })
}

/// Reads the installed certificate, if there is one.
///
/// # Errors
/// [`CertificateError`].
pub fn installed(control: &Path) -> Result<Option<Installed>, CertificateError> {
    let path = installed_file(control);
    match strongroom_files::read(&path, CHAIN_BYTES_MAX) {
        Ok(whole) => read_whole(&whole).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(CertificateError::File { path, error }),
    }
}

/// Describes the first certificate of a PEM.
///
/// # Errors
/// [`CertificateError`].
pub fn describe(pem: &[u8]) -> Result<Description, CertificateError> {
    let all = certificates(pem)?;
    let first = all.first().ok_or_else(|| refused("there is none"))?;
    description(first)
}

fn refused(reason: impl Into<String>) -> CertificateError {
    CertificateError::Refused(reason.into())
}

fn write(path: &Path, content: &[u8]) -> Result<(), CertificateError> {
    strongroom_files::replace(path, content)
        .map_err(|error| CertificateError::File { path: path.to_owned(), error })
}

/// Whether clients can ask for this name, which they do with SNI: a name in DNS, and not
/// `localhost`; or for those beneath it, as in `*.example.com`.
fn is_served(name: &str) -> bool {
    let name = name.strip_prefix("*.").unwrap_or(name);
    let is_dns = matches!(ServerName::try_from(name), Ok(ServerName::DnsName(_)));
    is_dns && name.len() <= NAME_BYTES_MAX && name.contains('.') && !name.starts_with('.')
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let all = all.map_err(|error| refused(format!("it is no PEM: {error}")))?;
    if all.len() > CHAIN_MAX {
        return Err(refused(format!("a chain has at most {CHAIN_MAX} certificates")));
    }
    Ok(all)
}

/// Reads a key with its chain, and verifies that they belong together.
fn read_whole(whole: &[u8]) -> Result<Installed, CertificateError> {
    let chain = certificates(whole)?;
    let key = PrivateKeyDer::from_pem_slice(whole)
        .map_err(|error| refused(format!("its key cannot be read: {error}")))?;
    let (first, others) = chain.split_first().ok_or_else(|| refused("there is none in the file"))?;
    let description = description(first)?;
    expect_key(first, &key)?;
    if description.names.is_empty() {
        return Err(refused("it is for no name in DNS"));
    }
    let Some((last, between)) = others.split_last() else {
        let reason = "the certificates of its authorities are not with it: append them to the file, without which clients cannot verify it";
        return Err(refused(reason));
    };
    verify(first, between, last, &description.names)?;
    Ok(Installed { description, key, chain })
}

fn expect_key(certificate: &CertificateDer<'_>, key: &PrivateKeyDer<'_>) -> Result<(), CertificateError> {
    let key = KeyPair::try_from(key).map_err(|error| refused(format!("its key cannot be read: {error}")))?;
    let parsed = parse(certificate)?;
    if parsed.tbs_certificate.subject_pki.raw == key.subject_public_key_info().as_slice() {
        Ok(())
    } else {
        Err(refused("it is not for the key of the last request"))
    }
}

/// Verifies a chain as clients do, for each name, at this time.
fn verify(
    first: &CertificateDer<'_>,
    between: &[CertificateDer<'_>],
    last: &CertificateDer<'static>,
    names: &[String],
) -> Result<(), CertificateError> {
    let failed = |error: rustls::Error| refused(error.to_string());
    let mut roots = RootCertStore::empty();
    roots.add(last.clone()).map_err(failed)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| refused(error.to_string()))?;
    let now = UnixTime::since_unix_epoch(Duration::from_millis(unix_milliseconds_now()));
    for name in names {
        // A wildcard is verified by a name that it covers.
        let name = name.strip_prefix("*.").map_or_else(|| name.clone(), |rest| format!("any.{rest}"));
        let name =
            ServerName::try_from(name.as_str()).map_err(|_| CertificateError::Name(name.clone()))?.to_owned();
        verifier.verify_server_cert(first, between, &name, &[], now).map_err(failed)?;
    }
    Ok(())
}

fn parse<'der>(certificate: &'der CertificateDer<'_>) -> Result<X509Certificate<'der>, CertificateError> {
    match x509_parser::parse_x509_certificate(certificate) {
        Ok((_, parsed)) => Ok(parsed),
        Err(error) => Err(refused(format!("it cannot be read: {error}"))),
    }
}

fn description(certificate: &CertificateDer<'_>) -> Result<Description, CertificateError> {
    let parsed = parse(certificate)?;
    let mut names = Vec::new();
    for extension in parsed.extensions() {
        if let ParsedExtension::SubjectAlternativeName(alternative) = extension.parsed_extension() {
            for name in &alternative.general_names {
                if let GeneralName::DNSName(name) = name {
                    names.push(name.to_ascii_lowercase());
                }
            }
        }
    }
    Ok(Description {
        names,
        issuer: parsed.issuer().to_string(),
        expires_unix_seconds: u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0),
        sha256: hex::encode(digest::digest(&digest::SHA256, certificate).as_ref()),
    })
}
