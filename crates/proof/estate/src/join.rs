//! How a simulated host gets its certificate: with a token, from the key server, as any machine
//! that joins.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use strongroom_api::host::HostToken;
use strongroom_host::protocol::GUEST_PROTOCOL;
use strongroom_hostd::daemon::{PortConfig, PortTls};
use strongroom_keyserver::access::{CertificateSha256, Role};
use strongroom_keyserver::authority::PrivateKey;
use strongroom_keyserver::authority::enrol::Client;
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::authority::peer::{ExpectedPeer, OwnSide};
use strongroom_keyserver::authority::signing_request::signing_request;

use crate::error::EstateError;

/// A host's certificate, for its port. It is not renewed: no run lasts that long.
#[derive(Debug)]
pub struct HostIdentity {
    /// The host's name.
    pub name: String,
    /// The address at which the control plane looks for it.
    pub address: SocketAddr,
    tls: Arc<PortConfig>,
}

impl PortTls for HostIdentity {
    fn config(&self) -> io::Result<Arc<PortConfig>> {
        Ok(Arc::clone(&self.tls))
    }

    fn to_host(&self, _: &str) -> io::Result<Arc<ClientConfig>> {
        Err(io::Error::other("simulated hosts have no volumes"))
    }
}

/// Redeems a token. Blocks.
///
/// # Errors
/// [`EstateError`].
pub fn join(token: &HostToken) -> Result<HostIdentity, EstateError> {
    let unusable = |error: &dyn std::fmt::Display| EstateError::Identity(error.to_string());
    let redeemed = EnrolmentToken::read(&token.token).map_err(|error| unusable(&error))?;
    let (key, pkcs8) = PrivateKey::generate().map_err(|error| unusable(&error))?;
    let request = signing_request(&key).map_err(|error| unusable(&error))?;
    let enrolled = Client::new(&token.enrolment)?.enrol(&redeemed, &request)?;
    let certificate = CertificateDer::from_pem_slice(enrolled.certificate.as_bytes());
    let authorities =
        CertificateDer::pem_slice_iter(enrolled.authorities.as_bytes()).collect::<Result<Vec<_>, _>>();
    let client = token.control.parse().map_err(|_| unusable(&"the token names no control plane"))?;
    let side = OwnSide {
        authorities: &authorities.map_err(|error| unusable(&error))?,
        certificate: certificate.map_err(|error| unusable(&error))?,
        key: &pkcs8,
        revocations: Arc::default(),
    };
    let unusable_tls = |error: rustls::Error| unusable(&error);
    let certificate_sha256 = CertificateSha256::of(&side.certificate).to_string();
    let guests = side.clone().listening_to_strangers(GUEST_PROTOCOL).map_err(unusable_tls)?;
    let control = side.listening(ExpectedPeer { role: Role::Control, client }).map_err(unusable_tls)?;
    Ok(HostIdentity {
        name: token.name.clone(),
        address: token.address.parse().map_err(|_| unusable(&"the token has no address"))?,
        tls: Arc::new(PortConfig {
            control: Arc::new(control),
            guests: Arc::new(guests),
            certificate_sha256,
        }),
    })
}
