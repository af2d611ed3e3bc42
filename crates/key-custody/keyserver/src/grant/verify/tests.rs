use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use proptest::prelude::*;
use strongroom_memory::secret::SecretBytes;
use time::OffsetDateTime;

use super::super::encoding::{
    GRANT_MAX_BYTES, GRANT_MAX_OBJECTS, GrantError, GrantSigner, GrantedOperations, OBJECT_MAX_BYTES,
};
use super::super::{GrantId, GrantPeriod, VmGeneration, VmId};
use super::*;
use crate::access::{CertificateSerial, ClientName, PublicKeySha256};

pub(in crate::grant) const NOON: i64 = 1_795_348_800;

pub(in crate::grant) fn at(unix_seconds: i64) -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(unix_seconds).unwrap()
}

pub(in crate::grant) fn host() -> Identity {
    Identity {
        client: ClientId::from_bytes([1; 16]),
        role: Role::Host,
        name: "host-1".parse::<ClientName>().unwrap(),
        public_key: PublicKeySha256::of(b"the key of host-1"),
        certificate: CertificateSha256::of(b"the certificate of host-1"),
        serial: CertificateSerial::from_bytes(&[1]),
        not_after: at(NOON + 86_400),
    }
}

/// A control plane with its key, which is the only signer.
pub(in crate::grant) struct Control {
    signer: GrantSigner,
    certificate: CertificateSha256,
    answer: Result<Signer, SignerRefusal>,
}

impl Control {
    pub(in crate::grant) fn new() -> Self {
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref()).unwrap();
        let certificate = CertificateSha256::of(pkcs8.as_ref());
        let secret = SecretBytes::from_slice_and_wipe(&mut pkcs8.as_ref().to_vec()).unwrap();
        let answer = Ok(Signer {
            client: ClientId::from_bytes([2; 16]),
            public_key: key.public_key().as_ref().to_vec(),
        });
        Self { signer: GrantSigner::new(&secret, certificate).unwrap(), certificate, answer }
    }

    pub(in crate::grant) fn signer(&self) -> &GrantSigner {
        &self.signer
    }

    pub(in crate::grant) fn sign(&self, grant: &Grant) -> Vec<u8> {
        grant.sign(&self.signer).unwrap()
    }
}

impl Signers for &Control {
    fn signer(&self, certificate: &CertificateSha256, _now: OffsetDateTime) -> Result<Signer, SignerRefusal> {
        if *certificate == self.certificate { self.answer.clone() } else { Err(SignerRefusal::Unknown) }
    }
}

fn grant_for(from_seconds: i64, until_seconds: i64, objects: &[&str]) -> Grant {
    Grant::new(
        VmId::from_bytes([7; 16]),
        VmGeneration(3),
        host().public_key,
        GrantedOperations::of(GrantedOperation::Get, &[]),
        objects.iter().map(|object| (*object).to_owned()).collect(),
        GrantPeriod {
            not_before: GrantTime::of(at(from_seconds)),
            expires: GrantTime::of(at(until_seconds)),
        },
    )
    .unwrap()
}

fn grant() -> Grant {
    grant_for(NOON, NOON + 300, &["kek-1", "kek-2"])
}

fn check(control: &Control, bytes: &[u8]) -> Result<VerifiedGrant, Refusal> {
    GrantVerifier::new(control).check(bytes, &host(), at(NOON + 1), "kek-1", GrantedOperation::Get)
}

#[test]
fn a_grant_is_read_back_as_it_was_signed() {
    let control = Control::new();
    let grant = grant();
    let verified = check(&control, &control.sign(&grant)).unwrap();
    assert_eq!(*verified.grant(), grant);
    assert_eq!(verified.signer(), ClientId::from_bytes([2; 16]));
    assert_eq!(Grant::claimed_id(&control.sign(&grant)), Some(grant.id()));
    assert_eq!(Grant::claimed(&control.sign(&grant)), Some(grant));
    assert_eq!(Grant::claimed(b"SGR1"), None);
}

#[test]
fn the_bytes_are_those_of_the_documentation() {
    let control = Control::new();
    let grant = grant();
    let bytes = control.sign(&grant);
    assert_eq!(bytes[..4], *b"SGR1");
    assert_eq!(bytes[4..20], *grant.id().as_bytes());
    assert_eq!(bytes[20..36], [7; 16]);
    assert_eq!(bytes[36..44], 3_u64.to_be_bytes());
    assert_eq!(bytes[44..52], (NOON as u64).to_be_bytes());
    assert_eq!(bytes[52..60], (NOON as u64 + 300).to_be_bytes());
    assert_eq!(bytes[60..92], *host().public_key.as_bytes());
    assert_eq!(bytes[92..124], *control.certificate.as_bytes());
    assert_eq!(bytes[124..127], [0, 1, 2]);
    assert_eq!(bytes[127..bytes.len() - 64], *b"\0\x05kek-1\0\x05kek-2");
}

#[test]
fn every_changed_bit_is_refused() {
    let control = Control::new();
    let bytes = control.sign(&grant());
    for bit in 0..bytes.len() * 8 {
        let mut changed = bytes.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let refusal = check(&control, &changed).unwrap_err();
        let expected = matches!(
            refusal,
            Refusal::BadSignature | Refusal::Malformed | Refusal::Signer(SignerRefusal::Unknown)
        );
        assert!(expected, "bit {bit}: {refusal:?}");
    }
}

#[test]
fn every_other_length_is_refused() {
    let control = Control::new();
    let bytes = control.sign(&grant());
    for length_bytes in 0..bytes.len() {
        assert!(check(&control, &bytes[..length_bytes]).is_err(), "{length_bytes} bytes");
    }
    for more in [1, 64, 65, GRANT_MAX_BYTES] {
        let longer = [bytes.clone(), vec![0; more]].concat();
        assert!(check(&control, &longer).is_err(), "{more} bytes more");
    }
}

#[test]
fn each_reason_has_its_own_refusal() {
    let mut control = Control::new();
    let bytes = control.sign(&grant());
    let check = |host: &Identity, now, object, operation| {
        GrantVerifier::new(&control).check(&bytes, host, at(now), object, operation).unwrap_err()
    };
    let soon = NOON + 1;
    assert_eq!(check(&host(), soon, "kek-3", GrantedOperation::Get), Refusal::OtherObject);
    assert_eq!(check(&host(), soon, "", GrantedOperation::Get), Refusal::OtherObject);
    assert_eq!(check(&host(), soon, "kek-1", GrantedOperation::Use), Refusal::OtherOperation);
    let other = Identity { public_key: PublicKeySha256::of(b"another key"), ..host() };
    assert_eq!(check(&other, soon, "kek-1", GrantedOperation::Get), Refusal::OtherHost);
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Host) {
        let no_host = Identity { role, ..host() };
        assert_eq!(check(&no_host, soon, "kek-1", GrantedOperation::Get), Refusal::NotAHost);
    }
    for reason in [
        SignerRefusal::Unknown,
        SignerRefusal::NotControl,
        SignerRefusal::Revoked,
        SignerRefusal::Expired,
        SignerRefusal::OtherKeyType,
    ] {
        control.answer = Err(reason);
        assert_eq!(super::tests::check(&control, &bytes), Err(Refusal::Signer(reason)));
    }
}

#[test]
fn a_grant_of_another_key_is_not_the_controls() {
    let (control, impostor) = (Control::new(), Control::new());
    let signer = GrantSigner { certificate: control.certificate, ..impostor.signer };
    let bytes = grant().sign(&signer).unwrap();
    assert_eq!(check(&control, &bytes), Err(Refusal::BadSignature));
}

#[test]
fn a_grant_is_good_from_its_first_second_to_its_last_and_the_clocks_skew_around() {
    let control = Control::new();
    let bytes = control.sign(&grant());
    let verify = |now| GrantVerifier::new(&control).verify(&bytes, &host(), at(now));
    let skew = CLOCK_SKEW_SECONDS as i64;
    let (not_before, expires) = (grant().not_before(), grant().expires());
    assert_eq!(verify(0), Err(Refusal::NotYetValid { not_before }));
    assert_eq!(verify(NOON - skew - 1), Err(Refusal::NotYetValid { not_before }));
    assert!(verify(NOON - skew).is_ok());
    assert!(verify(NOON + 299 + skew).is_ok());
    assert_eq!(verify(NOON + 300 + skew), Err(Refusal::Expired { expires }));
    assert_eq!(verify(-1), Err(Refusal::NotYetValid { not_before }));
}

#[test]
fn a_grant_for_longer_than_any_may_be_is_refused_though_it_is_signed() {
    let control = Control::new();
    let longest = GRANT_MAX_LIFETIME_SECONDS as i64;
    assert!(check(&control, &control.sign(&grant_for(NOON, NOON + longest, &["kek-1"]))).is_ok());
    let too_long = control.sign(&grant_for(NOON, NOON + longest + 1, &["kek-1"]));
    assert_eq!(check(&control, &too_long), Err(Refusal::TooLongLived { lifetime_seconds: 3601 }));
}

#[test]
fn what_cannot_be_granted_is_not_signed() {
    let make = |objects: Vec<String>, times| {
        let operations = GrantedOperations::of(GrantedOperation::Get, &[]);
        Grant::new(VmId::random(), VmGeneration(1), host().public_key, operations, objects, times)
    };
    let times = GrantPeriod { not_before: GrantTime(1), expires: GrantTime(2) };
    let names = |count: usize| (0..count).map(|number| number.to_string()).collect::<Vec<_>>();
    assert_eq!(make(vec![], times), Err(GrantError::ObjectCount { count: 0 }));
    assert!(make(names(GRANT_MAX_OBJECTS), times).is_ok());
    assert_eq!(make(names(GRANT_MAX_OBJECTS + 1), times), Err(GrantError::ObjectCount { count: 65 }));
    assert_eq!(make(vec![String::new()], times), Err(GrantError::ObjectLength { length_bytes: 0 }));
    assert!(make(vec!["k".repeat(OBJECT_MAX_BYTES)], times).is_ok());
    let too_long = make(vec!["k".repeat(OBJECT_MAX_BYTES + 1)], times);
    assert_eq!(too_long, Err(GrantError::ObjectLength { length_bytes: 1025 }));
    let many = (0..16).map(|number| format!("{number:x}").repeat(OBJECT_MAX_BYTES)).collect();
    assert!(matches!(make(many, times), Err(GrantError::TooLong { .. })));
    assert_eq!(
        make(names(1), GrantPeriod { not_before: GrantTime(2), expires: GrantTime(2) }),
        Err(GrantError::EmptyTime)
    );
}

#[test]
fn a_key_of_another_kind_signs_nothing_and_no_key_is_printed() {
    let mut garbage = vec![7; 64];
    let secret = SecretBytes::from_slice_and_wipe(&mut garbage).unwrap();
    assert!(matches!(GrantSigner::new(&secret, host().certificate), Err(GrantError::Key(_))));
    let printed = format!("{:?}", Control::new().signer);
    assert!(printed.ends_with("key redacted)"), "{printed}");
}

proptest! {
    #[test]
    fn whatever_is_granted_is_read_back(
        id in any::<[u8; 16]>(),
        generation in any::<u64>(),
        objects in prop::collection::vec("[a-z0-9-]{1,40}|\\PC{1,20}", 1..8),
        start in 0_u64..1 << 37,
        lifetime_seconds in 1_u64..=GRANT_MAX_LIFETIME_SECONDS,
        more in prop::sample::subsequence(&GrantedOperation::ALL[..], 0..=3),
    ) {
        let control = Control::new();
        let times = GrantPeriod { not_before: GrantTime(start), expires: GrantTime(start + lifetime_seconds) };
        let operations = GrantedOperations::of(GrantedOperation::Get, &more);
        let generation = VmGeneration(generation);
        let vm = VmId::from_bytes(id);
        let grant = Grant::new(vm, generation, host().public_key, operations, objects.clone(), times).unwrap();
        let verifier = GrantVerifier::new(&control);
        let now = at(start as i64);
        let verified = verifier.verify(&control.sign(&grant), &host(), now).unwrap();
        prop_assert_eq!(verified.grant(), &grant);
        for object in &objects {
            for operation in GrantedOperation::ALL {
                let permitted = operation == GrantedOperation::Get || more.contains(&operation);
                prop_assert_eq!(verified.permits(object, operation).is_ok(), permitted);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let control = Control::new();
        prop_assert!(check(&control, &bytes).is_err());
        let with_magic = [b"SGR1".to_vec(), bytes].concat();
        prop_assert!(check(&control, &with_magic).is_err());
        let _: Option<GrantId> = Grant::claimed_id(&with_magic);
    }
}
