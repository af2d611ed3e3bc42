//! Clients of other HTTPS servers. A client trusts the roots that it is given and nobody else, goes
//! where it is sent and no further, and takes each status as an answer.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::Agent;
use ureq::config::ConfigBuilder;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};
use ureq::typestate::AgentScope;

/// There is no certificate where one should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoCertificates {
    /// The text is no PEM of certificates.
    #[error("it is no PEM of certificates")]
    NoPem,
    /// There is no key with them.
    #[error("there is no key in it")]
    NoKey,
    /// It has none.
    #[error("there is no certificate in it")]
    None,
    /// This machine has none of the authorities of the Internet.
    #[error("this machine has no certificates of authorities (Debian: the package ca-certificates)")]
    NoneOnMachine,
}

/// The certificates in a PEM, as roots.
///
/// # Errors
/// [`NoCertificates`].
pub fn roots_of(pem: &[u8]) -> Result<RootCerts, NoCertificates> {
    Ok(RootCerts::new_with_certs(&certificates_in(pem)?))
}

/// The certificates in a PEM, one or more.
fn certificates_in(pem: &[u8]) -> Result<Vec<Certificate<'static>>, NoCertificates> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .map(|der| der.map(|der| Certificate::from_der(&der).to_owned()))
        .collect::<Result<_, _>>()
        .map_err(|_| NoCertificates::NoPem)?;
    if certificates.is_empty() { Err(NoCertificates::None) } else { Ok(certificates) }
}

/// The roots that this machine has for everybody.
///
/// # Errors
/// [`NoCertificates::NoneOnMachine`].
pub fn machine_roots() -> Result<RootCerts, NoCertificates> {
    let found = rustls_native_certs::load_native_certs().certs;
    if found.is_empty() {
        return Err(NoCertificates::NoneOnMachine);
    }
    let certificates: Vec<Certificate<'static>> =
        found.iter().map(|der| Certificate::from_der(der).to_owned()).collect();
    Ok(RootCerts::new_with_certs(&certificates))
}

/// The configuration of a client with these roots: HTTPS only, no redirects, which could take a
/// token elsewhere, and no proxy. The caller sets deadlines.
pub fn client_of(roots: RootCerts) -> ConfigBuilder<AgentScope> {
    client_with(roots, None)
}

/// As [`client_of`], of a client that shows this certificate to a server that asks for one.
pub fn client_with_key(roots: RootCerts, certificate: ClientCert) -> ConfigBuilder<AgentScope> {
    client_with(roots, Some(certificate))
}

/// The first certificate in a PEM, with those after it, and its key.
///
/// # Errors
/// [`NoCertificates`] if there is no certificate, or no key.
pub fn client_certificate_of(pem: &[u8]) -> Result<ClientCert, NoCertificates> {
    let chain = certificates_in(pem)?;
    let key = PrivateKey::from_pem(pem).map_err(|_| NoCertificates::NoKey)?;
    Ok(ClientCert::new_with_certs(&chain, key))
}

fn client_with(roots: RootCerts, certificate: Option<ClientCert>) -> ConfigBuilder<AgentScope> {
    let tls = TlsConfig::builder()
        .root_certs(roots)
        .client_cert(certificate)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
        .build();
    Agent::config_builder()
        .tls_config(tls)
        .https_only(true)
        .max_redirects(0)
        .proxy(None)
        .http_status_as_error(false)
}
