//! Certificates made for one test.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose, SanType,
};
use tempfile::TempDir;

pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    pub directory: TempDir,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let authority = Self { issuer, directory };
        authority.issue("server", &[SanType::DnsName("localhost".try_into().unwrap())]);
        authority
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Makes a directory `name` with `ca-cert.pem`, and a certificate and its key as
    /// `{client,server}-{cert,key}.pem`.
    pub fn issue(&self, name: &str, alternative_names: &[SanType]) -> PathBuf {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = alternative_names.to_vec();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let role = if name == "server" { "server" } else { "client" };
        params.extended_key_usages = vec![match role {
            "server" => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let directory = self.path(name);
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("ca-cert.pem"), self.issuer.pem()).unwrap();
        fs::write(directory.join(format!("{role}-cert.pem")), certificate.pem()).unwrap();
        fs::write(directory.join(format!("{role}-key.pem")), key.serialize_pem()).unwrap();
        directory
    }

    /// The fingerprint of a client's certificate, as the standard tool prints it.
    pub fn fingerprint(directory: &Path) -> String {
        let certificate = directory.join("client-cert.pem");
        let arguments = ["x509", "-noout", "-fingerprint", "-sha256", "-in", certificate.to_str().unwrap()];
        let printed = super::run_well("openssl", &arguments);
        let (_, digits) = printed.trim().split_once('=').unwrap();
        format!("sha256:{digits}")
    }
}
