//! Which peers a control plane and a host admit.

use super::super::peer::{ExpectedPeer, OwnSide, Revocations, connecting_as_stranger};
use super::*;
use crate::grant::{SignerRefusal, Signers};

/// A client, with its certificate.
struct Enrolled {
    peer: Peer,
    certificate: CertificateDer<'static>,
    is: ExpectedPeer,
}

fn enrolled(authority: &Authority, role: Role) -> Enrolled {
    let peer = Peer::new();
    let issued = issue(authority, role, &peer, noon());
    let certificate = issued.record.certificate.0.clone();
    Enrolled { peer, certificate, is: ExpectedPeer { role, client: issued.record.client } }
}

/// A handshake between two clients. Returns what each side made of the other.
fn shake(
    roots: &[CertificateDer<'static>],
    (control, host): (&Enrolled, &Enrolled),
    (host_expects, control_expects): (ExpectedPeer, ExpectedPeer),
) -> (Result<(), rustls::Error>, Result<(), rustls::Error>) {
    shake_knowing(roots, &Arc::default(), (control, host), (host_expects, control_expects))
}

/// The same, where both know what is revoked.
fn shake_knowing(
    roots: &[CertificateDer<'static>],
    revocations: &Arc<Revocations>,
    (control, host): (&Enrolled, &Enrolled),
    (host_expects, control_expects): (ExpectedPeer, ExpectedPeer),
) -> (Result<(), rustls::Error>, Result<(), rustls::Error>) {
    let side = |of: &'_ Enrolled| (of.certificate.clone(), of.peer.pkcs8.duplicate().unwrap());
    let ((certificate, key), (host_certificate, host_key)) = (side(control), side(host));
    let connecting =
        OwnSide { authorities: roots, certificate, key: &key, revocations: Arc::clone(revocations) }
            .connecting(control_expects);
    let listening = OwnSide {
        authorities: roots,
        certificate: host_certificate,
        key: &host_key,
        revocations: Arc::clone(revocations),
    };
    let address = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
    let client = ClientConnection::new(Arc::new(connecting.unwrap()), address).unwrap();
    let server = ServerConnection::new(Arc::new(listening.listening(host_expects).unwrap())).unwrap();
    exchange(client, server)
}

/// What the server and the client of a handshake made of each other.
fn exchange(
    mut client: ClientConnection,
    mut server: ServerConnection,
) -> (Result<(), rustls::Error>, Result<(), rustls::Error>) {
    let (mut client_says, mut server_says) = (Ok(()), Ok(()));
    for _ in 0..4 {
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).unwrap();
        }
        server.read_tls(&mut wire.as_slice()).unwrap();
        server_says = server_says.and_then(|()| server.process_new_packets().map(drop));
        let mut wire = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut wire).unwrap();
        }
        client.read_tls(&mut wire.as_slice()).unwrap();
        client_says = client_says.and_then(|()| client.process_new_packets().map(drop));
    }
    let unfinished = || Err(rustls::Error::HandshakeNotComplete);
    let end = |says: Result<(), rustls::Error>, open: bool| if open { unfinished() } else { says };
    (
        server_says.clone().and(end(server_says, server.is_handshaking())),
        client_says.clone().and(end(client_says, client.is_handshaking())),
    )
}

#[test]
fn a_stranger_knows_a_host_by_its_certificate_and_by_nothing_else() {
    const PROTOCOL: &[u8] = b"guest";
    let authority = Place::new().open();
    let roots = authority.roots(noon());
    let [host, other_host] = [(); 2].map(|()| enrolled(&authority, Role::Host));
    let meets = |expected: &Enrolled, met: &Enrolled, protocol: &[u8]| {
        let key = met.peer.pkcs8.duplicate().unwrap();
        let side = OwnSide {
            authorities: &roots,
            certificate: met.certificate.clone(),
            key: &key,
            revocations: Arc::default(),
        };
        let server = ServerConnection::new(Arc::new(side.listening_to_strangers(PROTOCOL).unwrap()));
        let client = connecting_as_stranger(CertificateSha256::of(&expected.certificate), protocol);
        let address = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
        let client = ClientConnection::new(Arc::new(client.unwrap()), address);
        exchange(client.unwrap(), server.unwrap())
    };
    let both = meets(&host, &host, PROTOCOL);
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    // Another host of the same site poses as this one.
    let (_, client_says) = meets(&host, &other_host, PROTOCOL);
    assert!(client_says.is_err());
    // The certificate of a host, without its key.
    let posing = Enrolled { peer: Peer::new(), certificate: host.certificate.clone(), is: host.is };
    let key = posing.peer.pkcs8.duplicate().unwrap();
    let side = OwnSide {
        authorities: &roots,
        certificate: posing.certificate,
        key: &key,
        revocations: Arc::default(),
    };
    assert!(side.listening_to_strangers(PROTOCOL).is_err());
    let (server_says, _) = meets(&host, &host, b"another");
    assert!(server_says.is_err());
}

#[test]
fn a_control_plane_and_a_host_admit_each_other_and_nobody_else() {
    let authority = Place::new().open();
    let roots = authority.roots(noon());
    let [control, other_control] = [(); 2].map(|()| enrolled(&authority, Role::Control));
    let [host, other_host] = [(); 2].map(|()| enrolled(&authority, Role::Host));
    let admin = enrolled(&authority, Role::Admin);
    let expected = (control.is, host.is);
    let both = shake(&roots, (&control, &host), expected);
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    // Towards hostd: another control plane, an administrator, and a hostile host.
    for wrong in [&other_control, &admin, &other_host, &host] {
        let (host_says, _) = shake(&roots, (wrong, &host), expected);
        assert!(host_says.is_err(), "{}", wrong.is);
    }
    // Towards the control plane: another host, an administrator, and a control plane.
    for wrong in [&other_host, &admin, &other_control] {
        let (_, control_says) = shake(&roots, (&control, wrong), expected);
        assert!(control_says.is_err(), "{}", wrong.is);
    }
}

#[test]
fn a_certificate_of_another_authority_is_of_no_use_with_the_same_id() {
    let (ours, theirs) = (Place::new().open(), Place::new().open());
    let (control, host) = (enrolled(&ours, Role::Control), enrolled(&ours, Role::Host));
    let forged = enrolled(&theirs, Role::Control);
    let roots = ours.roots(noon());
    let (host_says, _) = shake(&roots, (&forged, &host), (forged.is, host.is));
    assert!(host_says.is_err());
    let (host_says, _) = shake(&roots, (&control, &host), (control.is, host.is));
    assert!(host_says.is_ok());
}

#[test]
fn a_peer_that_is_revoked_is_refused_by_both_sides_from_the_next_handshake_on() {
    let authority = Place::new().open();
    let roots = authority.roots(noon());
    let (control, host) = (enrolled(&authority, Role::Control), enrolled(&authority, Role::Host));
    let renewed = {
        let peer = Peer::new();
        let issued = authority.renew(
            &authority.identify(&control.certificate, noon()).unwrap(),
            peer.request.as_bytes(),
            noon(),
        );
        Enrolled { peer, certificate: issued.unwrap().record.certificate.0.clone(), is: control.is }
    };
    let revocations = Arc::new(Revocations::default());
    let shaken = |control: &Enrolled| {
        let both = shake_knowing(&roots, &revocations, (control, &host), (control.is, host.is));
        (both.0.is_ok(), both.1.is_ok())
    };
    assert_eq!((shaken(&control), shaken(&renewed)), ((true, true), (true, true)));
    // One certificate of the control plane, and then the host with all of its own.
    authority.revoke_certificate(&CertificateSha256::of(&control.certificate), "stolen", noon()).unwrap();
    assert!(revocations.hear(authority.revocations(noon())));
    assert!(!revocations.hear(authority.revocations(noon())), "no news");
    assert!(!shaken(&control).0, "the host refuses it");
    assert_eq!(shaken(&renewed), (true, true));
    authority.revoke_client(host.is.client, "removed", noon()).unwrap();
    assert!(revocations.hear(authority.revocations(noon())));
    assert!(!shaken(&renewed).1, "the control plane refuses it");
}

#[test]
fn a_host_takes_grants_of_its_own_control_plane_and_of_nobody_else() {
    let (ours, theirs) = (Place::new().open(), Place::new().open());
    let roots = ours.roots(noon());
    let [control, other_control] = [(); 2].map(|()| enrolled(&ours, Role::Control));
    let (host, foreign) = (enrolled(&ours, Role::Host), enrolled(&theirs, Role::Control));
    let revocations = Arc::new(Revocations::default());
    let signer = |shown: &Enrolled, named: &Enrolled, now| {
        let side = OwnSide {
            authorities: &roots,
            certificate: host.certificate.clone(),
            key: &host.peer.pkcs8,
            revocations: Arc::clone(&revocations),
        };
        let signers = side.signer_shown(shown.certificate.clone(), control.is.client).unwrap();
        signers.signer(&CertificateSha256::of(&named.certificate), now).map(|signer| signer.client)
    };
    assert_eq!(signer(&control, &control, noon()), Ok(control.is.client));
    assert_eq!(signer(&control, &other_control, noon()), Err(SignerRefusal::Unknown), "names another");
    assert_eq!(signer(&other_control, &other_control, noon()), Err(SignerRefusal::Unknown));
    assert_eq!(signer(&host, &host, noon()), Err(SignerRefusal::NotControl));
    assert_eq!(signer(&foreign, &foreign, noon()), Err(SignerRefusal::Unknown));
    let later = noon() + time::Duration::days(4000);
    assert_eq!(signer(&control, &control, later), Err(SignerRefusal::Expired));
    authority_revokes(&ours, &revocations, &control);
    assert_eq!(signer(&control, &control, noon()), Err(SignerRefusal::Revoked));
}

fn authority_revokes(authority: &Authority, revocations: &Revocations, of: &Enrolled) {
    authority.revoke_certificate(&CertificateSha256::of(&of.certificate), "stolen", noon()).unwrap();
    assert!(revocations.hear(authority.revocations(noon())));
}
