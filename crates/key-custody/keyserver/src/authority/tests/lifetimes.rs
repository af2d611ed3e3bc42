//! Renewal, roll-over and restart.

use super::super::limits::{
    CA_OVERLAP, CA_OVERLAP_MIN, CLIENT_CERTIFICATES_MAX, CLIENT_VALIDITY, RENEWAL_GRACE, SERVER_VALIDITY,
};
use super::*;
use crate::grant::{
    Grant, GrantPeriod, GrantSigner, GrantTime, GrantVerifier, GrantedOperation, GrantedOperations,
    SignerRefusal, Signers, VmGeneration, VmId,
};

#[test]
fn a_renewed_certificate_is_the_same_clients_and_the_old_one_ends_after_its_grace() {
    let authority = Place::new().open();
    let start = noon();
    let old = issue(&authority, Role::Host, &Peer::new(), start).record;
    let identity = authority.identify(old.certificate(), start).unwrap();
    let new = authority.renew(&identity, Peer::new().request.as_bytes(), start).unwrap().record;
    assert_eq!((new.client, new.role, &new.name), (old.client, old.role, &old.name));
    assert_ne!(new.public_key, old.public_key);
    let renewed = authority.identify(new.certificate(), start).unwrap();
    assert_eq!(renewed.client, identity.client);

    let grace = RENEWAL_GRACE;
    authority.identify(old.certificate(), start + grace - Duration::SECOND).unwrap();
    assert_eq!(authority.identify(old.certificate(), start + grace).unwrap_err(), Refusal::Revoked);
    let late = authority.renew(&identity, Peer::new().request.as_bytes(), start + grace);
    assert!(matches!(late, Err(AuthorityError::Refused(Refusal::Revoked))), "{late:?}");
}

#[test]
fn a_client_that_renews_in_a_loop_is_stopped() {
    let authority = Place::new().open();
    let record = issue(&authority, Role::Host, &Peer::new(), noon()).record;
    let identity = authority.identify(record.certificate(), noon()).unwrap();
    let request = Peer::new().request;
    for _ in 1..CLIENT_CERTIFICATES_MAX {
        authority.renew(&identity, request.as_bytes(), noon()).unwrap();
    }
    let outcome = authority.renew(&identity, request.as_bytes(), noon());
    assert!(matches!(outcome, Err(AuthorityError::Limit { .. })), "{outcome:?}");
}

#[test]
fn the_authority_and_the_server_are_the_same_after_a_restart_and_no_other_root_opens_them() {
    let place = Place::new();
    let first = place.open();
    let (roots, server) = (first.roots(noon()), first.server_certificate());
    drop(first);
    let again = place.open();
    assert_eq!(again.roots(noon()), roots);
    assert_eq!(again.server_certificate(), server);
    let wrong = SecretBytes::random(32).unwrap();
    let outcome = Authority::open(place.store.clone(), &wrong, Place::settings(), noon());
    assert!(matches!(outcome, Err(AuthorityError::Sealed(_))));
}

#[test]
fn the_servers_certificate_is_renewed_in_time_while_it_runs() {
    let place = Place::new();
    let long_ago = noon() - SERVER_VALIDITY - Duration::DAY;
    let authority = place.open_at(long_ago);
    let roots = authority.roots(noon());
    let outdated = authority.server_certificate();
    let expired = handshake(&authority, VERSIONS[1], &roots, None).unwrap_err();
    assert!(matches!(expired, rustls::Error::InvalidCertificate(_)), "{expired}");

    authority.maintain(long_ago + SERVER_VALIDITY / 2).unwrap();
    assert_eq!(authority.server_certificate(), outdated);
    authority.maintain(noon()).unwrap();
    assert_ne!(authority.server_certificate(), outdated);
    assert_eq!(refusal_of(&authority, None), Some(Refusal::NoCertificate));
}

#[test]
fn after_a_roll_over_old_and_new_work_until_the_old_one_ends() {
    let place = Place::new();
    let authority = place.open();
    let start = noon();
    let old_roots = authority.roots(start);
    let peer = Peer::new();
    let old = issue(&authority, Role::Host, &peer, start);

    authority.roll_over(CA_OVERLAP, start).unwrap();
    let roots = authority.roots(start);
    assert_eq!(roots.len(), 2);
    assert_eq!(roots[1], old_roots[0]);
    assert_eq!(authority.fingerprint(), CertificateSha256::of(&roots[0]));
    let new_peer = Peer::new();
    let new = issue(&authority, Role::Host, &new_peer, start);
    assert_eq!(new.roots, roots);
    // Clients that know either root reach the server, with a certificate of either.
    for version in VERSIONS {
        for known in [&roots[..1], &roots[1..], &roots[..]] {
            for (issued, peer) in [(&old, &peer), (&new, &new_peer)] {
                let shown = Some((vec![issued.record.certificate().clone()], peer));
                assert_eq!(handshake(&authority, version, known, shown), Ok(4));
            }
        }
    }
    let again = authority.roll_over(CA_OVERLAP, start);
    assert!(matches!(again, Err(AuthorityError::Limit { .. })), "{again:?}");
    let too_short = authority.roll_over(CA_OVERLAP_MIN - Duration::SECOND, start);
    assert!(matches!(too_short, Err(AuthorityError::Limit { .. })));

    // The end of the overlap ends certificates that the old generation signed, whether cached or
    // not.
    let end = start + CA_OVERLAP;
    assert!(authority.identify(old.record.certificate(), end - Duration::SECOND).is_ok());
    assert!(authority.identify(old.record.certificate(), end + Duration::SECOND).is_err());
    authority.maintain(end).unwrap();
    assert_eq!(authority.roots(end), roots[..1]);
    drop(authority);
    let reopened = place.open_at(end);
    assert_eq!(reopened.roots(end), roots[..1]);
    reopened.roll_over(CA_OVERLAP, end).unwrap();
}

#[test]
fn what_has_long_expired_is_forgotten() {
    let authority = Place::new().open();
    let long_ago = noon() - CLIENT_VALIDITY - Duration::days(31);
    let gone = issue(&authority, Role::Host, &Peer::new(), long_ago).record;
    let kept = issue(&authority, Role::Host, &Peer::new(), noon()).record;
    authority.revoke_certificate(&gone.sha256(), "stolen", long_ago).unwrap();
    authority.maintain(noon()).unwrap();
    assert!(authority.certificates_of(gone.client, noon()).unwrap().is_empty());
    assert_eq!(authority.certificates_of(kept.client, noon()).unwrap(), [(kept, false)]);
    assert!(matches!(
        authority.revoke_certificate(&gone.sha256(), "", noon()),
        Err(AuthorityError::Unknown { .. })
    ));
}

#[test]
fn grants_are_believed_from_control_as_long_as_it_is_let_in() {
    let authority = Place::new().open();
    let (control, host) = (Peer::new(), Peer::new());
    let control_record = issue(&authority, Role::Control, &control, noon()).record;
    let host_record = issue(&authority, Role::Host, &host, noon()).record;
    let identity = authority.identify(host_record.certificate(), noon()).unwrap();
    let now = GrantTime::of(noon());
    let grant = Grant::new(
        VmId::random(),
        VmGeneration(1),
        identity.public_key,
        GrantedOperations::of(GrantedOperation::Get, &[]),
        vec!["kek-1".to_owned()],
        GrantPeriod { not_before: now, expires: GrantTime(now.0 + 60) },
    )
    .unwrap();
    let signer =
        |peer: &Peer, record: &CertificateRecord| GrantSigner::new(&peer.pkcs8, record.sha256()).unwrap();
    let verifier = GrantVerifier::new(authority.clone());
    let bytes = grant.sign(&signer(&control, &control_record)).unwrap();
    let verified = verifier.check(&bytes, &identity, noon(), "kek-1", GrantedOperation::Get).unwrap();
    assert_eq!(verified.signer(), control_record.client);

    let by_host = grant.sign(&signer(&host, &host_record)).unwrap();
    let refused = verifier.verify(&by_host, &identity, noon()).unwrap_err();
    assert_eq!(refused, SignerRefusal::NotControl.into());
    let unknown = authority.signer(&CertificateSha256::of(b"nobody's"), noon());
    assert_eq!(unknown, Err(SignerRefusal::Unknown));
    let later = noon() + CLIENT_VALIDITY + Duration::DAY;
    assert_eq!(authority.signer(&control_record.sha256(), later), Err(SignerRefusal::Expired));
    authority.revoke_client(control_record.client, "gone", noon()).unwrap();
    let refused = verifier.verify(&bytes, &identity, noon()).unwrap_err();
    assert_eq!(refused, SignerRefusal::Revoked.into());
}

#[test]
fn no_private_key_lies_open_in_the_store() {
    let place = Place::new();
    let authority = place.open();
    issue(&authority, Role::Host, &Peer::new(), noon());
    // The start of every unsealed P-256 PKCS#8: the OIDs of EC keys and of the curve, in a
    // private-key frame.
    let marker = [0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
    let (_, pkcs8) = PrivateKey::generate().unwrap();
    assert!(pkcs8.expose().windows(marker.len()).any(|window| window == marker));
    let entries = place.store.snapshot().unwrap().all(&strongroom_store::KeyRange::all()).unwrap();
    assert!(entries.len() > 5);
    for entry in entries {
        assert!(!entry.value.windows(marker.len()).any(|window| window == marker), "{entry:?}");
        assert!(!entry.value.windows(11).any(|window| window == b"PRIVATE KEY"), "{entry:?}");
    }
}

#[test]
fn settings_out_of_range_are_refused() {
    let place = Place::new();
    let refused = |settings| Authority::open(place.store.clone(), &place.root, settings, noon()).err();
    for names in [vec![], vec!["*.example.org".to_owned()]] {
        assert!(refused(Settings::new(names)).is_some());
    }
    let with = |change: fn(&mut Settings)| {
        let mut settings = Place::settings();
        change(&mut settings);
        matches!(refused(settings), Some(AuthorityError::Limit { .. }))
    };
    assert!(with(|settings| settings.server_validity = Duration::days(398)));
    assert!(with(|settings| settings.client_validity = Duration::days(826)));
    assert!(with(|settings| settings.client_validity = Duration::minutes(59)));
    let authority = place.open();
    let request = Peer::new().request;
    let too_long = Some(Duration::days(826));
    let outcome = authority.issue(Role::Client, &name("a"), request.as_bytes(), too_long, noon());
    assert!(matches!(outcome, Err(AuthorityError::Limit { .. })));
}
