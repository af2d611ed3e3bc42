//! Grants for migrations: the control plane's signed, short-lived permission for one host to pass a
//! running VM on to another one.
//!
//! Both hosts get the same bytes. Each verifies them by itself, so neither has to believe the other
//! what the control plane wants. No key is fetched with such a grant: the key server never sees it.
//!
//! All numbers are big-endian and unsigned.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `SMG1`: a Strongroom grant for a migration, format 1 |
//! | 4 | 16 | id of the grant, random; good for one attempt |
//! | 20 | 16 | VM |
//! | 36 | 8 | generation that runs, at the source |
//! | 44 | 8 | generation that is prepared, at the target; higher than the one that runs |
//! | 52 | 8 | not before, seconds since 1970 (UTC, no leap seconds) |
//! | 60 | 8 | expires: the first second at which it is no longer good, later than not before |
//! | 68 | 16 | source: the client id of the host where the VM runs |
//! | 84 | 16 | target: that of another host |
//! | 100 | 1 | secrecy: 1, the memory passes encrypted; 2, in plain text |
//! | 101 | 32 | signer: SHA-256 of the certificate whose key signed |
//! | 133 | 64 | signature: ECDSA P-256 with SHA-256, r and s of 32 bytes each |
//!
//! The signature covers `SIGNED_CONTEXT`, which no other kind of grant has, and everything before
//! the signature, so it is none of a grant for keys ([`encoding`](super::encoding)).
//!
//! The secrecy is part of it, so neither a host nor somebody between the two can have the memory
//! pass otherwise than the control plane has decided.
//!
//! Hosts are named by their client ids, which outlive the renewal of a certificate: the certificate
//! itself is verified in the handshake between the two.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, UnparsedPublicKey};
use time::OffsetDateTime;

use super::encoding::{GrantError, Reader, SIGNATURE_BYTES};
use super::refusal::Refusal;
use super::verify::{Signers, check_period};
use super::{GrantId, GrantPeriod, GrantSigner, GrantTime, Secrecy, VmGeneration, VmId};
use crate::access::{CertificateSha256, ClientId};

/// Bytes of every grant for a migration.
pub const MIGRATION_GRANT_BYTES: usize = 197;

const MAGIC: [u8; 4] = *b"SMG1";
const SIGNED_CONTEXT: &[u8] = b"strongroom migration grant 1\0";

/// A migration, as its grant names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MigratingVm {
    /// The VM.
    pub vm: VmId,
    /// Its generation at the source.
    pub running: VmGeneration,
    /// Its generation at the target, if the migration is committed.
    pub prepared: VmGeneration,
    /// The host where it runs.
    pub source: ClientId,
    /// The host where it is to go on.
    pub target: ClientId,
    /// Whether its memory passes encrypted.
    pub secrecy: Secrecy,
}

/// Permission for one attempt to migrate a VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigrationGrant {
    id: GrantId,
    migrating: MigratingVm,
    period: GrantPeriod,
}

impl MigrationGrant {
    /// A grant with a fresh random id.
    ///
    /// # Errors
    /// [`GrantError::EmptyTime`]; [`GrantError::OneHost`]; [`GrantError::Generations`].
    pub fn new(migrating: MigratingVm, period: GrantPeriod) -> Result<Self, GrantError> {
        check(&migrating, period)?;
        Ok(Self { id: GrantId::random(), migrating, period })
    }

    /// The id of the attempt.
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// What is migrated.
    pub fn migrating(&self) -> &MigratingVm {
        &self.migrating
    }

    /// When it is valid.
    pub fn period(&self) -> GrantPeriod {
        self.period
    }

    /// The grant's bytes with `signer`'s signature.
    ///
    /// # Errors
    /// [`GrantError::Key`] if the library fails.
    pub fn sign(&self, signer: &GrantSigner) -> Result<[u8; MIGRATION_GRANT_BYTES], GrantError> {
        let MigratingVm { vm, running, prepared, source, target, secrecy } = &self.migrating;
        let body = [
            &MAGIC[..],
            self.id.as_bytes(),
            vm.as_bytes(),
            &running.0.to_be_bytes(),
            &prepared.0.to_be_bytes(),
            &self.period.not_before.0.to_be_bytes(),
            &self.period.expires.0.to_be_bytes(),
            source.as_bytes(),
            target.as_bytes(),
            &[byte_of(*secrecy)],
            signer.certificate.as_bytes(),
        ]
        .concat();
        let signature = signer.signature(&[SIGNED_CONTEXT, &body].concat())?;
        let mut bytes = [0; MIGRATION_GRANT_BYTES];
        let (front, back) = bytes.split_at_mut(MIGRATION_GRANT_BYTES - SIGNATURE_BYTES);
        front.copy_from_slice(&body);
        back.copy_from_slice(&signature);
        Ok(bytes)
    }

    /// Verifies that `bytes` are a grant of one of the `signers` that is valid at `now`. Whether
    /// it is for this VM and these hosts is for the caller to compare, and so is whether it was
    /// used before.
    ///
    /// # Errors
    /// The refusal. The signature is checked before any field is trusted.
    pub fn verify(bytes: &[u8], signers: &impl Signers, now: OffsetDateTime) -> Result<Self, Refusal> {
        let (body, signature) = bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or(Refusal::Malformed)?;
        let (grant, signer) = read_body(body).ok_or(Refusal::Malformed)?;
        let signer = signers.signer(&signer, now)?;
        UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, &signer.public_key)
            .verify(&[SIGNED_CONTEXT, body].concat(), signature)
            .map_err(|_| Refusal::BadSignature)?;
        check_period(grant.period, GrantTime::of(now))?;
        Ok(grant)
    }
}

fn byte_of(secrecy: Secrecy) -> u8 {
    match secrecy {
        Secrecy::Encrypted => 1,
        Secrecy::Plain => 2,
    }
}

fn check(migrating: &MigratingVm, period: GrantPeriod) -> Result<(), GrantError> {
    if period.expires <= period.not_before {
        return Err(GrantError::EmptyTime);
    }
    if migrating.source == migrating.target {
        return Err(GrantError::OneHost);
    }
    if migrating.prepared <= migrating.running {
        return Err(GrantError::Generations { running: migrating.running, prepared: migrating.prepared });
    }
    Ok(())
}

fn read_body(body: &[u8]) -> Option<(MigrationGrant, CertificateSha256)> {
    let mut reader = Reader(body);
    if reader.array()? != MAGIC {
        return None;
    }
    let id = GrantId::from_bytes(reader.array()?);
    let vm = VmId::from_bytes(reader.array()?);
    let running = VmGeneration(u64::from_be_bytes(reader.array()?));
    let prepared = VmGeneration(u64::from_be_bytes(reader.array()?));
    let not_before = GrantTime(u64::from_be_bytes(reader.array()?));
    let expires = GrantTime(u64::from_be_bytes(reader.array()?));
    let source = ClientId::from_bytes(reader.array()?);
    let target = ClientId::from_bytes(reader.array()?);
    let secrecy = match reader.array()? {
        [1] => Secrecy::Encrypted,
        [2] => Secrecy::Plain,
        _ => return None,
    };
    let signer = CertificateSha256::from_bytes(reader.array()?);
    let migrating = MigratingVm { vm, running, prepared, source, target, secrecy };
    let period = GrantPeriod { not_before, expires };
    let is_valid = reader.0.is_empty() && check(&migrating, period).is_ok();
    is_valid.then_some((MigrationGrant { id, migrating, period }, signer))
}

#[cfg(test)]
mod tests {
    use super::super::verify::tests::{Control, NOON, at, host};
    use super::super::{Grant, GrantVerifier, GrantedOperation, GrantedOperations, SignerRefusal};
    use super::*;

    fn migrating() -> MigratingVm {
        MigratingVm {
            vm: VmId::from_bytes([7; 16]),
            running: VmGeneration(3),
            prepared: VmGeneration(4),
            source: ClientId::from_bytes([1; 16]),
            target: ClientId::from_bytes([2; 16]),
            secrecy: Secrecy::Encrypted,
        }
    }

    fn period(from: i64, until: i64) -> GrantPeriod {
        GrantPeriod { not_before: GrantTime::of(at(from)), expires: GrantTime::of(at(until)) }
    }

    fn grant() -> MigrationGrant {
        MigrationGrant::new(migrating(), period(NOON, NOON + 300)).unwrap()
    }

    #[test]
    fn a_grant_is_read_back_as_it_was_signed_and_its_bytes_are_those_of_the_documentation() {
        let control = Control::new();
        let grant = grant();
        let bytes = grant.sign(control.signer()).unwrap();
        assert_eq!(MigrationGrant::verify(&bytes, &&control, at(NOON + 1)), Ok(grant.clone()));
        assert_eq!(bytes[..4], *b"SMG1");
        assert_eq!(bytes[4..20], *grant.id().as_bytes());
        assert_eq!(bytes[20..36], [7; 16]);
        assert_eq!(bytes[36..52], [3_u64.to_be_bytes(), 4_u64.to_be_bytes()].concat());
        assert_eq!(bytes[52..60], (NOON as u64).to_be_bytes());
        assert_eq!(bytes[60..68], (NOON as u64 + 300).to_be_bytes());
        assert_eq!(bytes[68..100], [[1; 16], [2; 16]].concat());
        assert_eq!(bytes[100], 1);
        let plain = MigratingVm { secrecy: Secrecy::Plain, ..migrating() };
        let plain = MigrationGrant::new(plain, grant.period()).unwrap();
        let bytes = plain.sign(control.signer()).unwrap();
        assert_eq!(bytes[100], 2);
        assert_eq!(MigrationGrant::verify(&bytes, &&control, at(NOON + 1)), Ok(plain));
    }

    #[test]
    fn whether_the_memory_is_encrypted_is_signed() {
        let control = Control::new();
        let mut bytes = grant().sign(control.signer()).unwrap();
        bytes[100] = 2;
        assert_eq!(MigrationGrant::verify(&bytes, &&control, at(NOON)), Err(Refusal::BadSignature));
        // No other byte says anything, whoever has signed it.
        for byte in [0, 3, 255] {
            bytes[100] = byte;
            assert_eq!(MigrationGrant::verify(&bytes, &&control, at(NOON)), Err(Refusal::Malformed));
        }
    }

    #[test]
    fn every_changed_bit_and_every_other_length_is_refused() {
        let control = Control::new();
        let bytes = grant().sign(control.signer()).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            let refusal = MigrationGrant::verify(&changed, &&control, at(NOON)).unwrap_err();
            let expected = matches!(
                refusal,
                Refusal::BadSignature | Refusal::Malformed | Refusal::Signer(SignerRefusal::Unknown)
            );
            assert!(expected, "bit {bit}: {refusal:?}");
        }
        for length in 0..bytes.len() {
            assert!(MigrationGrant::verify(&bytes[..length], &&control, at(NOON)).is_err(), "{length}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert_eq!(MigrationGrant::verify(&longer, &&control, at(NOON)), Err(Refusal::Malformed));
    }

    #[test]
    fn it_is_good_in_its_period_only() {
        let control = Control::new();
        let verify = |grant: &MigrationGrant, now| {
            MigrationGrant::verify(&grant.sign(control.signer()).unwrap(), &&control, at(now)).map(drop)
        };
        verify(&grant(), NOON - 29).unwrap();
        verify(&grant(), NOON + 329).unwrap();
        assert!(matches!(verify(&grant(), NOON - 31), Err(Refusal::NotYetValid { .. })));
        assert!(matches!(verify(&grant(), NOON + 330), Err(Refusal::Expired { .. })));
        let long = MigrationGrant::new(migrating(), period(NOON, NOON + 3601)).unwrap();
        assert!(matches!(verify(&long, NOON), Err(Refusal::TooLongLived { .. })));
    }

    #[test]
    fn a_migration_has_two_hosts_and_a_later_generation() {
        let made = |migrating| MigrationGrant::new(migrating, period(NOON, NOON + 300)).map(drop);
        let here = MigratingVm { target: migrating().source, ..migrating() };
        assert_eq!(made(here), Err(GrantError::OneHost));
        let again = MigratingVm { prepared: VmGeneration(3), ..migrating() };
        assert!(matches!(made(again), Err(GrantError::Generations { .. })));
        let never = MigrationGrant::new(migrating(), period(NOON, NOON)).map(drop);
        assert_eq!(never, Err(GrantError::EmptyTime));
    }

    #[test]
    fn a_grant_for_keys_is_none_for_a_migration_nor_the_other_way_round() {
        let control = Control::new();
        let keys = Grant::new(
            migrating().vm,
            VmGeneration(3),
            host().public_key,
            GrantedOperations::of(GrantedOperation::Get, &[]),
            vec!["kek".to_owned()],
            period(NOON, NOON + 300),
        );
        let keys = keys.unwrap().sign(control.signer()).unwrap();
        assert_eq!(MigrationGrant::verify(&keys, &&control, at(NOON)), Err(Refusal::Malformed));
        let migration = grant().sign(control.signer()).unwrap();
        let refusal = GrantVerifier::new(&control).verify(&migration, &host(), at(NOON)).unwrap_err();
        assert_eq!(refusal, Refusal::Malformed);
    }
}
