//! Certificates that clients bring themselves.

use super::*;

/// A client's self-signed certificate, such as a vCenter's.
fn self_signed(days: i64) -> (CertificateDer<'static>, Peer) {
    let peer = Peer::new();
    let key = PrivateKey::from_pkcs8(&peer.pkcs8).unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.not_before = noon() - Duration::days(2);
    params.not_after = noon() + Duration::days(days);
    (params.self_signed(&key).unwrap().into(), peer)
}

#[test]
fn a_foreign_certificate_is_let_in_once_it_is_pinned_and_not_after_it_is_revoked() {
    let authority = Place::new().open();
    let (certificate, peer) = self_signed(30);
    let shown = || Some((vec![certificate.clone()], &peer));
    assert_eq!(refusal_of(&authority, shown()), Some(Refusal::UnknownAuthority));

    let client = authority.pin(certificate.clone(), PinFor::New(name("vcenter")), noon()).unwrap();
    assert_eq!(refusal_of(&authority, shown()), None);
    let roots = authority.roots(noon());
    for version in VERSIONS {
        assert!(handshake(&authority, version, &roots, shown()).is_ok());
    }
    let identity = authority.identify(&certificate, noon()).unwrap();
    assert_eq!((identity.client, identity.role, &identity.name), (client, Role::Client, &name("vcenter")));
    assert_eq!(authority.pins().len(), 1);

    // Its next certificate belongs to the same client.
    let (next, _) = self_signed(60);
    assert_eq!(authority.pin(next.clone(), PinFor::Existing(client), noon()).unwrap(), client);
    assert_eq!(authority.identify(&next, noon()).unwrap().client, client);

    authority.revoke_certificate(&CertificateSha256::of(&certificate), "replaced", noon()).unwrap();
    assert_eq!(refusal_of(&authority, shown()), Some(Refusal::Revoked));
    authority.identify(&next, noon()).unwrap();
}

#[test]
fn what_cannot_be_pinned_is_refused() {
    let authority = Place::new().open();
    let pin =
        |certificate: &CertificateDer<'static>, whose| authority.pin(certificate.clone(), whose, noon());
    let new = || PinFor::New(name("vcenter"));
    let (certificate, _) = self_signed(30);
    let client = pin(&certificate, new()).unwrap();
    assert!(matches!(pin(&certificate, new()), Err(AuthorityError::Pin(_))));
    assert!(matches!(pin(&self_signed(-1).0, new()), Err(AuthorityError::Pin(_))));
    assert!(matches!(pin(&CertificateDer::from(vec![0x30, 0]), new()), Err(AuthorityError::Pin(_))));
    let issued = issue(&authority, Role::Host, &Peer::new(), noon()).record;
    assert!(matches!(pin(issued.certificate(), new()), Err(AuthorityError::Pin(_))));
    let (other, _) = self_signed(30);
    let for_host = pin(&other, PinFor::Existing(issued.client));
    assert!(matches!(for_host, Err(AuthorityError::Unknown { .. })), "{for_host:?}");
    let too_long = CertificateDer::from(vec![0x30; limits::PINNED_CERTIFICATE_MAX_BYTES + 1]);
    assert!(matches!(pin(&too_long, new()), Err(AuthorityError::Pin(_))));
    authority.revoke_client(client, "gone", noon()).unwrap();
    assert!(matches!(pin(&other, PinFor::Existing(client)), Err(AuthorityError::Pin(_))));
}
