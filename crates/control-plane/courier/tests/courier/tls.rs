//! A server's certificate, of which nobody but a test knows.

use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate for 127.0.0.1.
pub struct Tls {
    pub config: Arc<ServerConfig>,
    /// The same, for clients that trust it.
    pub pem: String,
}

impl Tls {
    pub fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, private)
            .unwrap();
        Self { config: Arc::new(config), pem: certificate.pem() }
    }
}
