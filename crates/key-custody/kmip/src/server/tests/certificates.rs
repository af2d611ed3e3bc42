//! An authority for tests.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::Fingerprint;

pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key.
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// A good certificate for `localhost`, for a server or a client.
    pub fn issue(&self) -> Identity {
        self.issue_until(2096)
    }

    /// A certificate that is good until the start of that year.
    pub fn issue_until(&self, year: i32) -> Identity {
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        Identity { certificate: certificate.into(), key: key.into() }
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        Arc::new(roots)
    }

    pub fn server_config(&self, identity: &Identity) -> ServerConfig {
        let verifier = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
        ServerConfig::builder()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![identity.certificate.clone()], identity.key.clone_key())
            .unwrap()
    }

    /// A client that trusts this authority and has that certificate, or none.
    pub fn client_config(&self, identity: Option<&Identity>) -> ClientConfig {
        self.client_config_of_versions(identity, rustls::ALL_VERSIONS)
    }

    pub fn client_config_of_versions(
        &self,
        identity: Option<&Identity>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> ClientConfig {
        let config =
            ClientConfig::builder_with_protocol_versions(versions).with_root_certificates(self.roots());
        match identity {
            Some(identity) => config
                .with_client_auth_cert(vec![identity.certificate.clone()], identity.key.clone_key())
                .unwrap(),
            None => config.with_no_client_auth(),
        }
    }
}
