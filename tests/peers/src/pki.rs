//! Certificates: an authority, a server on this machine, any number of clients.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use tempfile::TempDir;
use time::OffsetDateTime;

/// A certificate and its key, PEM.
#[derive(Clone, Debug)]
pub struct CertificateFiles {
    /// The certificate.
    pub certificate: PathBuf,
    /// The key, PKCS#8.
    pub key: PathBuf,
}

/// An authority with its certificates, in files of a directory of its own. Every key is ECDSA
/// P-256: with an RSA key PyKMIP offers no cipher suite that rustls supports.
pub struct Pki {
    directory: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Pki {
    /// An authority with a server certificate for `localhost` and 127.0.0.1.
    ///
    /// # Panics
    /// If keys or files cannot be made.
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names are valid names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let directory = tempfile::tempdir().expect("a directory for certificates");
        // Two authorities have different names, as in practice, so a certificate of one is unknown
        // to the other.
        let name = format!("authority of {}", directory.path().display());
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, new_key()).expect("an authority signs itself");
        let pki = Self { directory, issuer };
        fs::write(pki.authority(), pki.issuer.pem()).expect("the authority's certificate is written");
        pki.sign("server", &["localhost", "127.0.0.1"], ExtendedKeyUsagePurpose::ServerAuth, 3650);
        pki
    }

    /// The authority's certificate.
    pub fn authority(&self) -> PathBuf {
        self.directory.path().join("authority.pem")
    }

    /// The server's certificate.
    pub fn server(&self) -> CertificateFiles {
        self.files("server")
    }

    /// A new certificate for a client with this common name, by which PyKMIP identifies its
    /// clients.
    pub fn client(&self, name: &str) -> CertificateFiles {
        self.sign(name, &[name], ExtendedKeyUsagePurpose::ClientAuth, 3650)
    }

    /// A client's certificate that expired yesterday.
    pub fn expired_client(&self, name: &str) -> CertificateFiles {
        self.sign(name, &[name], ExtendedKeyUsagePurpose::ClientAuth, -1)
    }

    fn files(&self, name: &str) -> CertificateFiles {
        let path = |ending| self.directory.path().join(format!("{name}.{ending}"));
        CertificateFiles { certificate: path("pem"), key: path("key") }
    }

    fn sign(
        &self,
        name: &str,
        names: &[&str],
        usage: ExtendedKeyUsagePurpose,
        days: i64,
    ) -> CertificateFiles {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("the names are valid");
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.not_before = OffsetDateTime::now_utc() - time::Duration::days(30);
        params.not_after = OffsetDateTime::now_utc() + time::Duration::days(days);
        let key = new_key();
        let certificate = params.signed_by(&key, &self.issuer).expect("the authority signs");
        let files = self.files(name);
        write_whole(&files.certificate, &certificate.pem());
        write_whole(&files.key, &key.serialize_pem());
        files
    }
}

impl Default for Pki {
    fn default() -> Self {
        Self::new()
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("a key is made")
}

/// Replaces a file atomically, as certificate rotation does.
fn write_whole(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).expect("a certificate or key is written");
    fs::rename(&new, path).expect("a certificate or key is put in place");
}
