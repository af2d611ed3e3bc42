//! Tests of tokens and their redemption.

mod port;

use std::sync::{Arc, Barrier};

use strongroom_store::{KeyRange, Store, Transaction};
use time::{Duration, OffsetDateTime};

use super::super::limits::{EXPIRED_TOKEN_KEPT, TOKEN_VALIDITY, TOKEN_VALIDITY_MAX, TOKENS_MAX};
use super::super::records::TOKEN;
use super::super::tests::{Peer, Place, name, noon};
use super::super::{Authority, AuthorityError, ClientCertificate, KeyTypes, SigningRequestError};
use super::token::TokenTextError;
use super::*;
use crate::access::{CertificateSha256, PublicKeySha256, Role};

fn token(authority: &Authority, now: OffsetDateTime) -> EnrolmentToken {
    authority.create_token(NewToken::new(Role::Host, name("host-1")), now).unwrap()
}

fn enrol(
    authority: &Authority,
    token: &EnrolmentToken,
    peer: &Peer,
    now: OffsetDateTime,
) -> Result<ClientCertificate, EnrolRefusal> {
    authority.enrol(token, peer.request.as_bytes(), now)
}

/// The refusal's code.
fn refused(outcome: Result<ClientCertificate, EnrolRefusal>) -> &'static str {
    outcome.unwrap_err().code()
}

fn key_of(peer: &Peer) -> PublicKeySha256 {
    use super::super::signing_request::RequestedKey;
    RequestedKey::read(peer.request.as_bytes(), KeyTypes::All).unwrap().sha256()
}

#[test]
fn a_token_makes_the_client_that_it_was_made_for() {
    let authority = Place::new().open();
    for role in Role::ALL {
        let new =
            NewToken { certificate_validity: Some(Duration::days(3)), ..NewToken::new(role, name("n")) };
        let token = authority.create_token(new, noon()).unwrap();
        let listed = authority.tokens(noon()).unwrap();
        let listed = listed.iter().find(|listed| listed.id == token.id()).unwrap();
        assert_eq!((listed.role, listed.state), (role, TokenState::Open));
        let peer = Peer::new();
        let issued = enrol(&authority, &token, &peer, noon()).unwrap();
        let identity = authority.identify(issued.record.certificate(), noon()).unwrap();
        assert_eq!((identity.role, identity.client, &identity.name), (role, listed.client, &name("n")));
        assert_eq!(identity.public_key, key_of(&peer));
        assert!(identity.not_after <= noon() + Duration::days(3));
    }
    assert!(authority.tokens(noon()).unwrap().iter().all(|listed| listed.state == TokenState::Used));
}

#[test]
fn a_token_is_good_once_and_the_one_who_used_it_gets_the_same_certificate_again() {
    let place = Place::new();
    let authority = place.open();
    let (token, peer, thief) = (token(&authority, noon()), Peer::new(), Peer::new());
    let issued = enrol(&authority, &token, &peer, noon()).unwrap();
    assert_eq!(refused(enrol(&authority, &token, &thief, noon())), "token-used");
    assert_eq!(enrol(&authority, &token, &peer, noon()).unwrap(), issued);

    // Also after a restart; but not after it has expired.
    drop(authority);
    let authority = place.open();
    assert_eq!(refused(enrol(&authority, &token, &thief, noon())), "token-used");
    assert_eq!(enrol(&authority, &token, &peer, noon()).unwrap(), issued);
    assert_eq!(refused(enrol(&authority, &token, &peer, noon() + TOKEN_VALIDITY)), "token-expired");
    authority.revoke_client(issued.record.client, "stolen", noon()).unwrap();
    assert_eq!(refused(enrol(&authority, &token, &peer, noon())), "client-revoked");
}

#[test]
fn a_client_that_lost_its_certificate_gets_another_and_the_lost_one_ends() {
    let authority = Place::new().open();
    let (first, other) = (Peer::new(), Peer::new());
    let lost = enrol(&authority, &token(&authority, noon()), &first, noon()).unwrap();
    let neighbour = enrol(&authority, &token(&authority, noon()), &other, noon()).unwrap();
    let (client, role, name) = (lost.record.client, lost.record.role, lost.record.name.clone());
    let wish = |role, name| NewToken { client: Some(client), ..NewToken::new(role, name) };
    // It must be the client's own name and role.
    for (role, name) in [(Role::Admin, name.clone()), (role, super::super::tests::name("other"))] {
        let refused = authority.create_token(wish(role, name), noon());
        assert!(matches!(refused, Err(AuthorityError::Unknown { .. })), "{refused:?}");
    }
    let replacing = authority.create_token(wish(role, name.clone()), noon()).unwrap();
    // Until the token is used, no certificate ends.
    authority.identify(lost.record.certificate(), noon()).unwrap();
    let peer = Peer::new();
    let issued = enrol(&authority, &replacing, &peer, noon()).unwrap();
    assert_eq!((issued.record.client, &issued.record.name, issued.record.role), (client, &name, role));
    assert!(authority.identify(lost.record.certificate(), noon()).is_err());
    authority.identify(issued.record.certificate(), noon()).unwrap();
    authority.identify(neighbour.record.certificate(), noon()).unwrap();
    assert_eq!(authority.clients().unwrap().len(), 2);
    // The same key gets the same certificate again. Another key gets none.
    assert_eq!(enrol(&authority, &replacing, &peer, noon()).unwrap().record, issued.record);
    assert_eq!(refused(enrol(&authority, &replacing, &Peer::new(), noon())), "token-used");

    // A client that is revoked meanwhile gets no certificate, and a revoked one no token.
    let late = authority.create_token(wish(role, name.clone()), noon()).unwrap();
    authority.revoke_client(client, "stolen", noon()).unwrap();
    assert_eq!(refused(enrol(&authority, &late, &Peer::new(), noon())), "client-revoked");
    assert!(matches!(authority.create_token(wish(role, name), noon()), Err(AuthorityError::Unknown { .. })));
}

#[test]
fn of_many_who_redeem_a_token_at_a_time_one_does() {
    let authority = Place::new().open();
    let token = token(&authority, noon());
    let barrier = Barrier::new(6);
    let codes: Vec<&str> = std::thread::scope(|scope| {
        let one = || {
            let peer = Peer::new();
            barrier.wait();
            enrol(&authority, &token, &peer, noon()).map_or_else(|refusal| refusal.code(), |_| "issued")
        };
        let threads: Vec<_> = (0..6).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(codes.iter().filter(|code| **code == "issued").count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| **code == "token-used").count(), 5, "{codes:?}");
    assert_eq!(authority.clients().unwrap().len(), 1);
}

#[test]
fn a_token_for_one_key_is_good_for_no_other() {
    let authority = Place::new().open();
    let (peer, thief) = (Peer::new(), Peer::new());
    let new = NewToken { public_key: Some(key_of(&peer)), ..NewToken::new(Role::Host, name("host-1")) };
    let token = authority.create_token(new, noon()).unwrap();
    assert_eq!(refused(enrol(&authority, &token, &thief, noon())), "token-other-key");
    enrol(&authority, &token, &peer, noon()).unwrap();
}

#[test]
fn what_is_no_good_token_is_refused_and_costs_no_good_one() {
    let authority = Place::new().open();
    let (good, peer) = (token(&authority, noon()), Peer::new());
    let foreign = token(&Place::new().open(), noon());
    assert_eq!(refused(enrol(&authority, &foreign, &peer, noon())), "token-unknown");

    // The right id with another secret is unknown, like any other token.
    let text = good.reveal();
    let mut digits: Vec<char> = text.chars().collect();
    let secret_at = text.find('.').unwrap() + 1 + 32;
    digits[secret_at] = if digits[secret_at] == '0' { '1' } else { '0' };
    let forged = with_right_check(&digits.into_iter().collect::<String>());
    assert_eq!(forged.id(), good.id());
    assert_eq!(refused(enrol(&authority, &forged, &peer, noon())), "token-unknown");

    let unsigned = authority.enrol(&good, b"no request", noon());
    assert_eq!(refused(unsigned), "signing-request");
    assert_eq!(refused(enrol(&authority, &good, &peer, noon() + TOKEN_VALIDITY)), "token-expired");
    enrol(&authority, &good, &peer, noon()).unwrap();

    let cancelled = token(&authority, noon());
    authority.cancel_token(cancelled.id()).unwrap();
    assert_eq!(refused(enrol(&authority, &cancelled, &peer, noon())), "token-unknown");
    for id in [cancelled.id(), good.id()] {
        assert!(matches!(authority.cancel_token(id), Err(AuthorityError::Unknown { .. })));
    }
}

/// A token from a forger who can compute the check digits.
fn with_right_check(text: &str) -> EnrolmentToken {
    let (prefix, digits) = text.split_once('.').unwrap();
    let bytes: Vec<u8> = digits.as_bytes().as_chunks::<2>().0.iter().map(hex).collect();
    let content = &bytes[..bytes.len() - 4];
    let check = &CertificateSha256::of(content).to_string()[..8];
    EnrolmentToken::read(&format!("{prefix}.{}{check}", &digits[..2 * content.len()])).unwrap()
}

fn hex(pair: &[u8; 2]) -> u8 {
    u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()
}

#[test]
fn a_tokens_text_is_read_back_and_a_mistake_in_it_is_found() {
    let authority = Place::new().open();
    let token = token(&authority, noon());
    let text = token.reveal();
    let read = EnrolmentToken::read(&format!(" {}\n", *text)).unwrap();
    assert_eq!((read.id(), read.authority()), (token.id(), authority.fingerprint()));
    assert_eq!(read.reveal(), text);
    assert_eq!(token.id().to_string().parse(), Ok(token.id()));

    let digits_at = text.find('.').unwrap() + 1;
    for at in digits_at..text.len() {
        let other = if text.as_bytes()[at] == b'7' { "8" } else { "7" };
        let mut changed = (*text).clone();
        changed.replace_range(at..=at, other);
        assert_eq!(EnrolmentToken::read(&changed).unwrap_err(), TokenTextError::Check, "{at}");
        assert_eq!(EnrolmentToken::read(&text[..at]).unwrap_err(), TokenTextError::Form, "{at}");
    }
    for other in ["", "strongroom-token-1.", &text.replace('-', "_"), &text.replace(|_: char| true, "é")] {
        assert_eq!(EnrolmentToken::read(other).unwrap_err(), TokenTextError::Form);
    }
    let printed = format!("{token:?}");
    assert!(printed.contains("redacted") && !printed.contains(&text[digits_at + 32..digits_at + 96]));
}

#[test]
fn a_stolen_store_has_no_token() {
    let place = Place::new();
    let authority = place.open();
    let text = token(&authority, noon()).reveal();
    let digits = text.split_once('.').unwrap().1;
    let secret: Vec<u8> = digits.as_bytes()[32..96].as_chunks::<2>().0.iter().map(hex).collect();
    let as_numbers = secret.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    for entry in place.store.snapshot().unwrap().all(&KeyRange::all()).unwrap() {
        let value = String::from_utf8_lossy(&entry.value);
        assert!(!value.contains(&digits[32..96]) && !value.contains(&as_numbers), "{entry:?}");
        assert!(!entry.value.windows(secret.len()).any(|window| window == secret), "{entry:?}");
    }
}

#[test]
fn tokens_have_limits_and_are_forgotten() {
    let place = Place::new();
    let authority = place.open();
    let make = |validity| {
        authority.create_token(NewToken { validity, ..NewToken::new(Role::Host, name("host-1")) }, noon())
    };
    for validity in [Duration::ZERO, Duration::seconds(59), TOKEN_VALIDITY_MAX + Duration::SECOND] {
        assert!(matches!(make(validity), Err(AuthorityError::Limit { .. })), "{validity}");
    }
    let kept = make(TOKEN_VALIDITY_MAX).unwrap();
    make(Duration::MINUTE).unwrap();
    assert_eq!(authority.tokens(noon() + Duration::MINUTE).unwrap().len(), 2);
    // An expired token is remembered for a day, so that a late user gets the right message.
    let count_after = |passed| {
        authority.maintain(noon() + passed).unwrap();
        authority.tokens(noon()).unwrap().len()
    };
    assert_eq!(count_after(EXPIRED_TOKEN_KEPT + Duration::seconds(59)), 2);
    assert_eq!(count_after(EXPIRED_TOKEN_KEPT + Duration::MINUTE), 1);
    assert_eq!(authority.tokens(noon()).unwrap()[0].id, kept.id());

    // Expired tokens do not count towards the limit.
    let short = make(Duration::MINUTE).unwrap().id();
    let record = place.store.get(format!("{TOKEN}{short}").as_bytes()).unwrap().unwrap().value;
    let numbers: Vec<_> = (2..TOKENS_MAX).collect();
    for numbers in numbers.chunks(100) {
        let put = |to: Transaction, number: &usize| to.put(format!("{TOKEN}{number:032x}"), record.clone());
        place.store.commit(numbers.iter().fold(Transaction::new(), put)).unwrap();
    }
    assert!(matches!(make(Duration::MINUTE), Err(AuthorityError::Limit { .. })));
    let later = noon() + Duration::MINUTE;
    authority.create_token(NewToken::new(Role::Host, name("host-1")), later).unwrap();
    assert_eq!(authority.tokens(later).unwrap().len(), 2);
}

#[test]
fn a_key_type_that_is_switched_off_is_refused() {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let request = rcgen::CertificateParams::default().serialize_request(&key).unwrap();
    let read = |key_types| {
        super::super::signing_request::RequestedKey::read(request.der(), key_types).map(|key| key.sha256())
    };
    assert!(read(KeyTypes::All).is_ok());
    assert_eq!(read(KeyTypes::WithoutEd25519), Err(SigningRequestError::Ed25519Off));
}

#[test]
fn a_roll_over_leaves_tokens_good() {
    let authority = Place::new().open();
    let token = token(&authority, noon());
    authority.roll_over(super::super::limits::CA_OVERLAP, noon()).unwrap();
    assert_ne!(token.authority(), authority.fingerprint());
    assert!(authority.roots(noon()).iter().any(|root| CertificateSha256::of(root) == token.authority()));
    enrol(&authority, &token, &Peer::new(), noon()).unwrap();
}
