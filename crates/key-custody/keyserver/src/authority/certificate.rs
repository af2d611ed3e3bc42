//! The certificates that the authority makes: its own, the server's, the clients'. Only this file
//! decides their contents.
//!
//! | | authority | cross | server | client |
//! |---|---|---|---|---|
//! | subject | `CN=Strongroom CA` and its generation | the same | `CN=` first name | `CN=` name |
//! | basic constraints | CA, one below it | CA, none below it | - | - |
//! | key usage | certificate, CRL signing | the same | digital signature | digital signature |
//! | extended key usage | - | - | server | client |
//! | alternative names | - | - | names, addresses | `strongroom:client:`id`:role:`role |
//!
//! All are X.509 version 3, signed with ECDSA P-256 and SHA-256 (RFC 5758), with serial numbers of
//! 126 random bits.

use std::net::IpAddr;

use rcgen::string::Ia5String;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use time::{Duration, OffsetDateTime};

use super::error::AuthorityError;
use super::limits::{BACKDATED, SERVER_NAMES_MAX};
use super::private_key::PrivateKey;
use super::records::CaGeneration;
use crate::access::{CertificateSerial, ClientId, ClientName, Role};

/// Bytes of a serial number; RFC 5280, 4.1.2.2 allows 20.
const SERIAL_BYTES: usize = 16;
const CLIENT_URI_PREFIX: &str = "strongroom:client:";
const ROLE_INFIX: &str = ":role:";

/// A certificate's period of validity, in whole seconds as in the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Validity {
    pub(super) not_before: OffsetDateTime,
    pub(super) not_after: OffsetDateTime,
}

impl Validity {
    /// Starts a little before `now`, and ends `length` after `now`, but not after `end`.
    pub(super) fn of(now: OffsetDateTime, length: Duration, end: OffsetDateTime) -> Self {
        let now = now.replace_nanosecond(0).unwrap_or(now);
        Self { not_before: now - BACKDATED, not_after: (now + length).min(end) }
    }
}

/// A certificate just made.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) serial: CertificateSerial,
}

/// An authority's certificate for `subject_key`. It is self-signed or, as a cross certificate,
/// signed by the generation before (`signer`).
pub(super) fn authority(
    generation: CaGeneration,
    subject_key: &PrivateKey,
    signer: Option<&Issuer<'_, PrivateKey>>,
    validity: Validity,
) -> Result<Made, AuthorityError> {
    let (mut params, serial) = params(&format!("Strongroom CA {}", generation.0), validity)?;
    let below = if signer.is_some() { 0 } else { 1 };
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(below));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // RFC 5280, 4.2.1.1: required except in self-signed certificates.
    params.use_authority_key_identifier_extension = signer.is_some();
    let certificate = match signer {
        Some(signer) => params.signed_by(subject_key, signer)?,
        None => params.self_signed(subject_key)?,
    };
    Ok(Made { certificate: certificate.into(), serial })
}

/// The server's certificate for these DNS names and addresses.
pub(super) fn server(
    names: &[String],
    key: &PrivateKey,
    signer: &Issuer<'_, PrivateKey>,
    validity: Validity,
) -> Result<Made, AuthorityError> {
    if !(1..=SERVER_NAMES_MAX).contains(&names.len()) {
        return Err(AuthorityError::Limit {
            what: "the number of a server's names",
            allowed: format!("from 1 to {SERVER_NAMES_MAX}"),
        });
    }
    let shortest = names.iter().find(|name| name.len() <= 64);
    let (mut params, serial) = params(shortest.map_or("strongroom", String::as_str), validity)?;
    params.subject_alt_names = names.iter().map(|name| server_name(name)).collect::<Result<_, _>>()?;
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(Made { certificate: params.signed_by(key, signer)?.into(), serial })
}

fn server_name(name: &str) -> Result<SanType, AuthorityError> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    let refused = || AuthorityError::ServerName { name: name.to_owned() };
    // As strict as the clients that compare it: no wildcard, no trailing dot.
    rustls::pki_types::DnsName::try_from(name).map_err(|_| refused())?;
    Ia5String::try_from(name).map(SanType::DnsName).map_err(|_| refused())
}

/// A client's certificate.
pub(super) fn client(
    client: ClientId,
    role: Role,
    name: &ClientName,
    key: &impl PublicKeyData,
    signer: &Issuer<'_, PrivateKey>,
    validity: Validity,
) -> Result<Made, AuthorityError> {
    let (mut params, serial) = params(name.as_str(), validity)?;
    params.subject_alt_names = vec![SanType::URI(Ia5String::try_from(client_uri(client, role))?)];
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(Made { certificate: params.signed_by(key, signer)?.into(), serial })
}

fn params(
    common_name: &str,
    validity: Validity,
) -> Result<(CertificateParams, CertificateSerial), AuthorityError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.not_before = validity.not_before;
    params.not_after = validity.not_after;
    let serial = random_serial()?;
    params.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
    Ok((params, serial))
}

/// Positive, and always of the same length: the first byte is 0x40 to 0x7f.
fn random_serial() -> Result<CertificateSerial, AuthorityError> {
    let mut bytes = [0; SERIAL_BYTES];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| AuthorityError::Library("the random source"))?;
    bytes[0] = bytes[0] & 0x3f | 0x40;
    Ok(CertificateSerial::from_bytes(&bytes))
}

fn client_uri(client: ClientId, role: Role) -> String {
    format!("{CLIENT_URI_PREFIX}{client}{ROLE_INFIX}{role}")
}

/// The client and role in a certificate's URI, if it is one of ours. Accepts only the spelling that
/// [`client`] writes.
pub(super) fn read_client_uri(uri: &str) -> Option<(ClientId, Role)> {
    let (client, role) = uri.strip_prefix(CLIENT_URI_PREFIX)?.split_once(ROLE_INFIX)?;
    let (client, role) = (client.parse().ok()?, role.parse().ok()?);
    (client_uri(client, role) == uri).then_some((client, role))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_names_a_client_in_one_spelling_only() {
        let client = ClientId::from_bytes([0xab; 16]);
        let uri = client_uri(client, Role::Host);
        assert_eq!(uri, "strongroom:client:abababab-abab-abab-abab-abababababab:role:host");
        assert_eq!(read_client_uri(&uri), Some((client, Role::Host)));
        for other in [
            uri.to_uppercase(),
            uri.replace('-', ""),
            format!("{uri} "),
            format!("{uri}:role:admin"),
            uri.replace("host", "root"),
            uri.replace("strongroom", "http"),
        ] {
            assert_eq!(read_client_uri(&other), None, "{other}");
        }
    }

    #[test]
    fn serial_numbers_are_positive_and_of_one_length() {
        for _ in 0..64 {
            let serial = random_serial().unwrap();
            assert_eq!(serial.as_bytes().len(), SERIAL_BYTES);
            assert!((0x40..0x80).contains(&serial.as_bytes()[0]));
        }
    }

    #[test]
    fn a_server_name_is_a_name_or_an_address() {
        for name in ["kms.example.org", "localhost", "192.0.2.1", "2001:db8::1"] {
            assert!(server_name(name).is_ok(), "{name}");
        }
        for name in ["", "*.example.org", "a b", "kms/example", "-", "ä.example"] {
            assert!(matches!(server_name(name), Err(AuthorityError::ServerName { .. })), "{name}");
        }
    }
}
