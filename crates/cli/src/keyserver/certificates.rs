//! Certificates and keys of clients, as PEM files.

use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use strongroom_keyserver::authority::PrivateKey;
use strongroom_keyserver::authority::signing_request::signing_request;
use strongroom_kmip::client::PEM_FILE_BYTES_MAX;
use strongroom_memory::secret::SecretBytes;
use zeroize::{Zeroize, Zeroizing};

use super::directory::make_directories;
use crate::error::CliError;

/// Where one client's files are.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// The authorities that it trusts.
    pub ca: PathBuf,
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its private key, which only its owner can read.
    pub key: PathBuf,
}

/// A key that has no certificate yet.
pub struct NewKey {
    pkcs8: SecretBytes,
    /// Asks for its certificate, PEM.
    pub signing_request: String,
}

impl NewKey {
    /// Makes one, of P-256.
    pub fn generate() -> Result<Self, CliError> {
        let (key, pkcs8) = PrivateKey::generate()?;
        Ok(Self { signing_request: signing_request(&key)?, pkcs8 })
    }
}

impl ClientFiles {
    /// Those of a directory.
    pub fn in_directory(directory: &Path) -> Self {
        let file = |name| directory.join(name);
        Self { ca: file("ca.pem"), certificate: file("cert.pem"), key: file("key.pem") }
    }

    /// Whether they are there.
    pub fn are_there(&self) -> bool {
        [&self.ca, &self.certificate, &self.key].into_iter().all(|path| path.is_file())
    }

    /// Writes them. The key is the first, so that there is no certificate whose key was lost.
    pub fn write(&self, key: &NewKey, certificate: &str, authorities: &str) -> Result<(), CliError> {
        if let Some(directory) = self.key.parent() {
            make_directories(directory)?;
        }
        write_whole(&self.key, private_pem(&key.pkcs8).as_bytes())?;
        write_whole(&self.certificate, certificate.as_bytes())?;
        write_whole(&self.ca, authorities.as_bytes())
    }
}

impl ClientFiles {
    /// The certificate itself.
    pub fn read_certificate(&self) -> Result<CertificateDer<'static>, CliError> {
        let all = read_certificates(&self.certificate)?;
        all.into_iter().next().ok_or_else(|| no_certificate(&self.certificate))
    }

    /// The PKCS#8 of a key file that this program wrote.
    pub fn read_key(&self) -> Result<SecretBytes, CliError> {
        let content = read_pem(&self.key)?;
        let none = || CliError::Usage(format!("{} holds no private key in PKCS#8", self.key.display()));
        let text = std::str::from_utf8(&content).map_err(|_| none())?;
        let document = pem::parse(text).map_err(|_| none())?;
        if document.tag() != "PRIVATE KEY" {
            return Err(none());
        }
        let mut bytes = document.into_contents();
        let key = SecretBytes::from_slice_and_wipe(&mut bytes);
        bytes.zeroize();
        Ok(key?)
    }
}

/// The certificates in a PEM file: one at least.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_pem(path)?).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or_else(|| no_certificate(path))
}

fn no_certificate(path: &Path) -> CliError {
    CliError::Usage(format!("{} holds no certificate", path.display()))
}

/// What is in a PEM file, which may be a private key.
pub fn read_pem(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let failed = |error| CliError::File { action: "read", path: path.to_owned(), error };
    strongroom_files::read(path, PEM_FILE_BYTES_MAX).map(Zeroizing::new).map_err(failed)
}

/// A PKCS#8 document as PEM (RFC 7468). What the encoder leaves behind, the program's allocator wipes.
fn private_pem(pkcs8: &SecretBytes) -> Zeroizing<String> {
    let document = pem::Pem::new("PRIVATE KEY", pkcs8.expose());
    Zeroizing::new(pem::encode_config(
        &document,
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    ))
}

/// Puts a file in its place, whole and durable, for its owner alone.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), CliError> {
    strongroom_files::replace(path, content).map_err(|error| CliError::File {
        action: "write",
        path: path.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_there_for_its_owner_alone() {
        use std::os::unix::fs::PermissionsExt;
        let home = tempfile::tempdir().unwrap();
        let files = ClientFiles::in_directory(&home.path().join("a/b"));
        assert!(!files.are_there());
        let key = NewKey::generate().unwrap();
        files.write(&key, "certificate", "authorities").unwrap();
        assert!(files.are_there());
        let mode = std::fs::metadata(&files.key).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let text = std::fs::read_to_string(&files.key).unwrap();
        assert_eq!(pem::parse(text).unwrap().contents(), key.pkcs8.expose());
    }
}
