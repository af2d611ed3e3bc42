//! Certificates and keys of clients, as PEM files.

use std::io;
use std::path::{Path, PathBuf};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use strongroom_files::FileError;
use strongroom_keyserver::authority::signing_request::signing_request;
use strongroom_keyserver::authority::{PrivateKey, claimed_identity};
use strongroom_keyserver::state::make_directories;
use strongroom_kmip::client::PEM_FILE_BYTES_MAX;
use strongroom_memory::secret::SecretBytes;
use time::OffsetDateTime;
use zeroize::{Zeroize, Zeroizing};

use crate::error::CliError;

/// The files of one client.
#[derive(Clone, Debug)]
pub struct ClientFiles {
    /// The authorities that it trusts.
    pub ca: PathBuf,
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its private key, which only its owner can read.
    pub key: PathBuf,
}

/// A key without a certificate.
pub struct NewKey {
    pkcs8: SecretBytes,
    /// The signing request for its certificate, PEM.
    pub signing_request: String,
}

impl NewKey {
    /// Makes a P-256 key.
    pub fn generate() -> Result<Self, CliError> {
        let (key, pkcs8) = PrivateKey::generate()?;
        Ok(Self { signing_request: signing_request(&key)?, pkcs8 })
    }
}

impl ClientFiles {
    /// The files of a directory.
    pub fn in_directory(directory: &Path) -> Self {
        let file = |name| directory.join(name);
        Self { ca: file("ca.pem"), certificate: file("cert.pem"), key: file("key.pem") }
    }

    /// Whether all of them exist.
    pub fn are_there(&self) -> bool {
        [&self.ca, &self.certificate, &self.key].into_iter().all(|path| path.is_file())
    }

    /// Writes them in an order in which a crash always leaves a certificate and its key: the new
    /// key is written before its certificate, and replaces the old key afterwards.
    /// [`settle`](Self::settle) completes an interrupted write.
    pub fn write(&self, key: &NewKey, certificate: &str, authorities: &str) -> Result<(), CliError> {
        self.write_observed(key, certificate, authorities, &mut || Ok(()))
    }

    /// As [`write`](Self::write); `before` is called before each step, and its error stops there,
    /// as a crash would.
    fn write_observed(
        &self,
        key: &NewKey,
        certificate: &str,
        authorities: &str,
        before: &mut dyn FnMut() -> Result<(), CliError>,
    ) -> Result<(), CliError> {
        make_directories(strongroom_files::directory_of(&self.key))?;
        before()?;
        write_whole(&self.ca, authorities.as_bytes())?;
        before()?;
        write_whole(&self.next_key(), private_pem(&key.pkcs8).as_bytes())?;
        before()?;
        write_whole(&self.certificate, certificate.as_bytes())?;
        before()?;
        self.take_next_key()
    }

    /// Writes the files of a certificate whose key is elsewhere.
    pub fn write_without_key(&self, certificate: &str, authorities: &str) -> Result<(), CliError> {
        make_directories(strongroom_files::directory_of(&self.certificate))?;
        write_whole(&self.ca, authorities.as_bytes())?;
        write_whole(&self.certificate, certificate.as_bytes())
    }

    /// Installs the new key of a writer that was killed, if its certificate was written.
    pub fn settle(&self) -> Result<(), CliError> {
        let next = self.next_key();
        if !next.try_exists().unwrap_or_default() || !self.certificate.is_file() {
            return Ok(());
        }
        let key = PrivateKeyDer::from_pem_slice(&read_pem(&next)?).ok();
        let key = key.and_then(|key| aws_lc_rs::sign::any_supported_type(&key).ok());
        let belongs = match key {
            Some(key) => CertifiedKey::new(vec![self.read_certificate()?], key).keys_match().is_ok(),
            None => false,
        };
        // A key that does not belong may be that of another process, which is about to write its
        // certificate.
        if belongs { self.take_next_key() } else { Ok(()) }
    }

    fn next_key(&self) -> PathBuf {
        self.key.with_extension("next.pem")
    }

    fn take_next_key(&self) -> Result<(), CliError> {
        let failed = |error| CliError::File(FileError { action: "write", path: self.key.clone(), error });
        match std::fs::rename(self.next_key(), &self.key) {
            // Another reader may have settled it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound && self.key.is_file() => Ok(()),
            renamed => renamed.map_err(failed),
        }?;
        strongroom_files::sync_directory(strongroom_files::directory_of(&self.key)).map_err(failed)
    }
}

impl ClientFiles {
    /// The certificate itself.
    pub fn read_certificate(&self) -> Result<CertificateDer<'static>, CliError> {
        let all = read_certificates(&self.certificate)?;
        all.into_iter().next().ok_or_else(|| no_certificate(&self.certificate))
    }

    /// The time at which the certificate expires.
    pub fn not_after(&self) -> Result<OffsetDateTime, CliError> {
        let identity = claimed_identity(&self.read_certificate()?);
        identity.map(|identity| identity.not_after).ok_or_else(|| no_certificate(&self.certificate))
    }

    /// The PKCS#8 of a key file that this program wrote.
    pub fn read_key(&self) -> Result<SecretBytes, CliError> {
        self.settle()?;
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

/// The certificates in a PEM file; at least one.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CliError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read_pem(path)?).collect();
    all.ok().filter(|all| !all.is_empty()).ok_or_else(|| no_certificate(path))
}

fn no_certificate(path: &Path) -> CliError {
    CliError::Usage(format!("{} holds no certificate", path.display()))
}

/// The content of a PEM file, which may be a private key.
pub fn read_pem(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let failed = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    strongroom_files::read(path, PEM_FILE_BYTES_MAX).map(Zeroizing::new).map_err(failed)
}

/// A PKCS#8 document as PEM (RFC 7468). The program's allocator wipes the encoder's buffers.
fn private_pem(pkcs8: &SecretBytes) -> Zeroizing<String> {
    let document = pem::Pem::new("PRIVATE KEY", pkcs8.expose());
    Zeroizing::new(pem::encode_config(
        &document,
        pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF),
    ))
}

/// Writes a file atomically and durably, with access only for its owner.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), CliError> {
    strongroom_files::replace(path, content)
        .map_err(|error| CliError::File(FileError { action: "write", path: path.to_owned(), error }))
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

    /// A self-signed certificate for a key.
    fn certificate(key: &NewKey) -> String {
        let pair = rcgen::KeyPair::try_from(key.pkcs8.expose()).unwrap();
        rcgen::CertificateParams::new(vec!["host".to_owned()]).unwrap().self_signed(&pair).unwrap().pem()
    }

    /// Whether the installed key belongs to the certificate.
    fn belong_together(files: &ClientFiles) -> bool {
        let key = PrivateKeyDer::from_pem_file(&files.key).unwrap();
        let key = aws_lc_rs::sign::any_supported_type(&key).unwrap();
        CertifiedKey::new(vec![files.read_certificate().unwrap()], key).keys_match().is_ok()
    }

    #[test]
    fn a_renewal_killed_in_any_step_leaves_a_certificate_and_its_key() {
        let [old, new] = [(); 2].map(|()| NewKey::generate().unwrap());
        let [old_certificate, new_certificate] = [&old, &new].map(certificate);
        let (mut steps, mut renewed) = (0, 0);
        loop {
            let home = tempfile::tempdir().unwrap();
            let files = ClientFiles::in_directory(home.path());
            files.write(&old, &old_certificate, "authorities").unwrap();
            let mut left = steps;
            let mut killed = || match left {
                0 => Err(CliError::Interrupted),
                _ => {
                    left -= 1;
                    Ok(())
                }
            };
            let is_done = files.write_observed(&new, &new_certificate, "authorities", &mut killed).is_ok();
            files.read_key().unwrap();
            assert!(belong_together(&files), "killed in step {steps}");
            renewed += u32::from(std::fs::read_to_string(&files.certificate).unwrap() == new_certificate);
            // A second call completes it, and leaves no other files.
            files.write(&new, &new_certificate, "authorities").unwrap();
            assert!(belong_together(&files) && std::fs::read_dir(home.path()).unwrap().count() == 3);
            if is_done {
                break;
            }
            steps += 1;
        }
        assert_eq!((steps, renewed), (4, 2));
    }
}
