//! Which hosts and grants are admitted.

use std::io::{Read, Write};
use std::net::TcpStream;

use strongroom_keyserver::access::Role;
use strongroom_keyserver::grant::{MigratingVm, Refusal, Secrecy, SignerRefusal, VmGeneration, VmId};
use strongroom_migrate::{Attempt, MigrateError, Migration};

use crate::site::{Ends, Members, PREPARED, Pair, RUNNING};

/// What the source's relay makes of this grant, and then the target's.
fn admitted(pair: &Pair<'_>, grant: &[u8]) -> [MigrateError; 2] {
    let members = pair.members;
    let source = pair.send_as(&members.source, grant, pair.address()).unwrap_err();
    [source, pair.receive_as(&members.target, grant).unwrap_err()]
}

#[test]
fn grants_of_others_and_of_other_times_are_refused_by_both_hosts() {
    let (members, foreign) = (Members::new(), Members::new());
    let pair = Pair::new(&members);
    let migrating = members.migrating(pair.vm);
    let other_control = members.another(Role::Control);
    let refused = |grant: &[u8]| {
        admitted(&pair, grant).map(|error| match error {
            MigrateError::Grant { vm, refusal } if vm == pair.vm => refusal,
            other => panic!("{other}"),
        })
    };
    for grant in [
        members.grant_for(migrating, &other_control, 0, 300),
        members.grant_for(migrating, &members.source, 0, 300),
        members.grant_for(migrating, &foreign.control, 0, 300),
    ] {
        assert_eq!(refused(&grant), [(); 2].map(|()| Refusal::Signer(SignerRefusal::Unknown)));
    }
    for (from, until) in [(-900, -60), (60, 300), (0, 4000)] {
        for refusal in refused(&members.grant_for(migrating, &members.control, from, until)) {
            let expected = matches!(
                refusal,
                Refusal::Expired { .. } | Refusal::NotYetValid { .. } | Refusal::TooLongLived { .. }
            );
            assert!(expected, "{refusal}");
        }
    }
    let mut changed = members.grant(pair.vm);
    changed[25] ^= 1;
    assert_eq!(refused(&changed), [Refusal::BadSignature, Refusal::BadSignature]);
    assert_eq!(refused(&changed[1..]), [Refusal::Malformed, Refusal::Malformed]);
    members.hear_of_revocation(&members.control);
    let revoked = refused(&members.grant(pair.vm));
    assert_eq!(revoked, [(); 2].map(|()| Refusal::Signer(SignerRefusal::Revoked)));
}

#[test]
fn a_grant_is_for_one_vm_generation_and_pair_of_hosts() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let right = members.migrating(pair.vm);
    let stranger = members.another(Role::Host).client;
    let grant = |migrating| members.grant_for(migrating, &members.control, 0, 300);

    for error in admitted(&pair, &grant(MigratingVm { vm: VmId::random(), ..right })) {
        assert!(matches!(error, MigrateError::OtherVm { vm, .. } if vm == pair.vm), "{error}");
    }
    let earlier = MigratingVm { running: VmGeneration(6), prepared: VmGeneration(9), ..right };
    let [source, target] = admitted(&pair, &grant(earlier));
    assert!(matches!(source, MigrateError::OtherGeneration { present: RUNNING, .. }), "{source}");
    assert!(matches!(target, MigrateError::OtherGeneration { present: PREPARED, .. }), "{target}");
    let exchanged = MigratingVm { source: right.target, target: right.source, ..right };
    for error in admitted(&pair, &grant(exchanged)) {
        assert!(matches!(error, MigrateError::OtherHost { .. }), "{error}");
    }
    let elsewhere = grant(MigratingVm { target: stranger, ..right });
    let error = pair.receive_as(&members.target, &elsewhere).unwrap_err();
    assert!(matches!(error, MigrateError::OtherHost { part: "target", .. }), "{error}");
    // A genuine grant, beside the certificate of somebody else.
    let attempt = Attempt {
        signer: members.source.certificate.clone(),
        ..members.attempt(pair.vm, RUNNING, &grant(right))
    };
    let listener = crate::site::listen(&pair.target_socket());
    let site = members.site_of(&members.source);
    let error =
        Migration::send(attempt, site, &members.used("source"), pair.address(), listener, pair.options);
    assert!(matches!(
        error.unwrap_err(),
        MigrateError::Grant { refusal: Refusal::Signer(SignerRefusal::Unknown), .. }
    ));
}

#[test]
fn a_grant_is_good_for_one_attempt_on_either_host() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let Ends { source, target } = pair.start();
    assert!(source.is_established() && target.is_established());
    drop((source, target));
    for error in admitted(&pair, &pair.grant) {
        assert!(matches!(error, MigrateError::Used { vm, .. } if vm == pair.vm), "{error}");
    }
}

/// Starts a target for the right source, and has `as_source` come with this grant. Returns what
/// happened to the latter.
fn comes(members: &Members, as_source: &crate::site::Member, signed_for: MigratingVm) -> MigrateError {
    let pair = Pair::of(members, signed_for.vm);
    let grant = members.grant(pair.vm);
    let target = pair.receive_as(&members.target, &grant).unwrap();
    let other = members.grant_for(signed_for, &members.control, 0, 300);
    let source = pair.send_as(as_source, &other, pair.address()).unwrap();
    assert!(!source.is_established(), "admitted");
    assert!(!target.progress().is_established);
    source.wait().unwrap_err()
}

#[test]
fn another_host_of_the_site_is_not_admitted_though_it_has_a_grant() {
    let members = Members::new();
    let other = members.another(Role::Host);
    let migrating = MigratingVm { source: other.client, ..members.migrating(VmId::random()) };
    let error = comes(&members, &other, migrating);
    assert!(matches!(error, MigrateError::NotAdmitted { .. }), "{error}");
}

#[test]
fn the_right_host_with_another_grant_is_refused() {
    let members = Members::new();
    let migrating = members.migrating(VmId::random());
    let error = comes(&members, &members.source, migrating);
    assert!(matches!(error, MigrateError::GrantsDiffer { .. }), "{error}");
}

/// Nobody has a host take an encrypted move for a plain one: not a host with another grant, and
/// not whoever changes the byte that decides.
#[test]
fn whether_the_memory_is_encrypted_is_what_both_grants_say() {
    let members = Members::new();
    let plain = MigratingVm { secrecy: Secrecy::Plain, ..members.migrating(VmId::random()) };
    let error = comes(&members, &members.source, plain);
    assert!(matches!(error, MigrateError::GrantsDiffer { .. }), "{error}");
    let pair = Pair::new(&members);
    let mut changed = pair.grant.clone();
    assert_eq!(changed[100], 1);
    changed[100] = 2;
    for error in admitted(&pair, &changed) {
        let refused = matches!(error, MigrateError::Grant { refusal: Refusal::BadSignature, .. });
        assert!(refused, "{error}");
    }
}

#[test]
fn the_memory_of_a_vm_with_keys_here_passes_encrypted_whatever_the_grant_says() {
    let members = Members::new();
    let pair = Pair::with(&members, Secrecy::Plain);
    let attempt =
        |generation| Attempt { is_encrypted: true, ..members.attempt(pair.vm, generation, &pair.grant) };
    let listener = crate::site::listen(&pair.source_socket());
    let (site, used) = (members.site_of(&members.source), members.used("source"));
    let sent = Migration::send(attempt(RUNNING), site, &used, pair.address(), listener, pair.options);
    let (site, used) = (members.site_of(&members.target), members.used("target"));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let qemu = pair.target_socket();
    let received = Migration::receive(attempt(PREPARED), site, &used, listener, &qemu, pair.options);
    for error in [sent.unwrap_err(), received.unwrap_err()] {
        assert!(matches!(error, MigrateError::InPlainText { vm } if vm == pair.vm), "{error}");
    }
    // The grant is not used up.
    let Ends { source, target } = pair.start();
    assert!(source.is_established() && target.is_established());
}

#[test]
fn a_target_that_is_not_the_grants_is_not_given_anything() {
    let members = Members::new();
    let other = members.another(Role::Host);
    let pair = Pair::new(&members);
    // Another host poses as the target: with its own certificate, and a grant for itself.
    let migrating = MigratingVm { target: other.client, ..members.migrating(pair.vm) };
    let posing = members.grant_for(migrating, &members.control, 0, 300);
    let target = pair.receive_as(&other, &posing).unwrap();
    let source = pair.send_as(&members.source, &pair.grant, pair.address()).unwrap();
    assert!(!source.is_established());
    let error = source.wait().unwrap_err();
    assert!(matches!(error, MigrateError::NotAdmitted { .. }), "{error}");
    assert!(!target.progress().is_established);
}

#[test]
fn a_revoked_host_is_not_admitted() {
    let members = Members::new();
    let pair = Pair::new(&members);
    members.hear_of_revocation(&members.source);
    let Ends { source, target } = pair.start();
    assert!(!source.is_established());
    assert!(matches!(source.wait(), Err(MigrateError::NotAdmitted { .. })));
    assert!(!target.progress().is_established);
}

#[test]
fn strangers_keep_nobody_out() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let target = pair.receive_as(&members.target, &pair.grant).unwrap();
    // Silent ones, ones that begin TLS and stop, ones that send anything.
    let strangers: Vec<TcpStream> = (0..100)
        .map(|number| {
            let mut stream = TcpStream::connect(pair.address()).unwrap();
            let said: &[u8] =
                [&b""[..], &[22, 3, 1, 2, 0], b"SRM1 and something that is no session at all"][number % 3];
            stream.write_all(said).unwrap();
            stream
        })
        .collect();
    let source = pair.send_as(&members.source, &pair.grant, pair.address()).unwrap();
    assert!(source.is_established());
    assert!(target.is_established());
    // The oldest were displaced: the target keeps a limited number.
    let displaced = strangers.iter().take(50).map(|mut stream| stream.read(&mut [0; 64]));
    assert!(displaced.map(|read| read.unwrap_or(0)).all(|count| count < 64));
}
