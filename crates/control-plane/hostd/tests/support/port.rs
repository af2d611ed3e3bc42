//! The port of a host for other hosts, under a certificate that the tests make.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::{ClientConfig, ServerConfig};
use strongroom_host::protocol::GUEST_PROTOCOL;
use strongroom_hostd::daemon::{PortConfig, PortOptions, PortTls};
use strongroom_keyserver::access::CertificateSha256;
use strongroom_keyserver::authority::peer::connecting_as_stranger;

const ADDRESS: &str = "port.address";
const CERTIFICATE: &str = "port.certificate";
const KEY: &str = "port.key";

/// Gives a host a port, at an address that no other test uses.
pub fn make(home: &Path) {
    let [_, _, _, any, .., other, third] = *uuid::Uuid::new_v4().as_bytes();
    let address = Ipv4Addr::new(127, any, other, third.clamp(1, 254));
    let made = rcgen::generate_simple_self_signed(["host".to_owned()]).unwrap();
    std::fs::write(home.join(CERTIFICATE), made.cert.der()).unwrap();
    std::fs::write(home.join(KEY), made.signing_key.serialize_der()).unwrap();
    std::fs::write(home.join(ADDRESS), SocketAddr::from((address, 5691)).to_string()).unwrap();
}

/// The port of a host that has one.
pub fn of(home: &Path) -> Option<PortOptions> {
    let address = std::fs::read_to_string(home.join(ADDRESS)).ok()?;
    let certificate = CertificateDer::from(std::fs::read(home.join(CERTIFICATE)).unwrap());
    let key = PrivatePkcs8KeyDer::from(std::fs::read(home.join(KEY)).unwrap());
    let certificate_sha256 = CertificateSha256::of(&certificate).to_string();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = config.with_no_client_auth().with_single_cert(vec![certificate], key.into()).unwrap();
    config.alpn_protocols = vec![GUEST_PROTOCOL.to_vec()];
    let config = Arc::new(config);
    let config = PortConfig { control: Arc::clone(&config), guests: config, certificate_sha256 };
    Some(PortOptions { listen: address.parse().unwrap(), tls: Arc::new(Tls(Arc::new(config))) })
}

#[derive(Debug)]
struct Tls(Arc<PortConfig>);

impl PortTls for Tls {
    fn config(&self) -> io::Result<Arc<PortConfig>> {
        Ok(Arc::clone(&self.0))
    }

    fn to_host(&self, certificate_sha256: &str) -> io::Result<Arc<ClientConfig>> {
        let certificate = certificate_sha256.parse().map_err(io::Error::other)?;
        Ok(Arc::new(connecting_as_stranger(certificate, GUEST_PROTOCOL).map_err(io::Error::other)?))
    }
}
