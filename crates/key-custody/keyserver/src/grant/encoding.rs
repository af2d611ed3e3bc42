//! The bytes of a grant. One grant has one encoding: every field has a fixed place or a counted
//! length, the objects are sorted, and meaningless bytes are refused.
//!
//! All numbers are big-endian and unsigned.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `SGR1`: a Strongroom grant, format 1 |
//! | 4 | 16 | id of the grant, random; good for one use |
//! | 20 | 16 | VM |
//! | 36 | 8 | generation of the VM |
//! | 44 | 8 | not before, seconds since 1970 (UTC, no leap seconds) |
//! | 52 | 8 | expires: the first second at which it is no longer good, later than not before |
//! | 60 | 32 | host: SHA-256 of its public key's `SubjectPublicKeyInfo` |
//! | 92 | 32 | signer: SHA-256 of the certificate whose key signed |
//! | 124 | 2 | operations, a bit each ([`GrantedOperation`]), at least one; the highest bit: the generation is only prepared |
//! | 126 | 1 | number of objects, 1 to 64 |
//! | 127 | | for each object, ascending, none twice: length (2 bytes, 1 to 1024), then its unique identifier, UTF-8 |
//! | end − 64 | 64 | signature: ECDSA P-256 with SHA-256, r and s of 32 bytes each |
//!
//! The signature covers the text `strongroom grant 1`, a zero byte, and everything before the
//! signature. The text separates it from other uses of the same key: TLS 1.3 transcripts start with
//! 64 spaces, those of TLS 1.2 with 0x01, signing requests with 0x30.
//!
//! ECDSA has for each signature (r, s) a second one, (r, n − s), that verifies as well. It is the
//! same grant: it has the same id, which can be used only once.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use strongroom_memory::secret::SecretBytes;

use super::refusal::Refusal;
use super::{GrantId, GrantPeriod, GrantTime, VmGeneration, VmId};
use crate::access::{CertificateSha256, PublicKeySha256};

/// Most bytes of a grant: room for the most objects with the usual ids of KMIP servers. Checked
/// before decoding.
pub const GRANT_MAX_BYTES: usize = 16 * 1024;
/// Most objects of one grant: a VM's KEK, and those of volumes it shares. Further objects need
/// further grants.
pub const GRANT_MAX_OBJECTS: usize = 64;
/// Longest unique identifier: a key's at an external provider.
pub const OBJECT_MAX_BYTES: usize = 1024;

const MAGIC: [u8; 4] = *b"SGR1";
pub(super) const SIGNATURE_BYTES: usize = 64;
/// The text before the signed data; see the [module](self).
const SIGNED_CONTEXT: &[u8] = b"strongroom grant 1\0";

/// An operation that a grant permits on its objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GrantedOperation {
    /// Get: the key itself. Bit 0.
    Get,
    /// Get Attributes, Get Attribute List, Locate, Check: the metadata. Bit 1.
    ReadMetadata,
    /// Encrypt, Decrypt, MAC, MAC Verify in the server. Bit 2.
    Use,
}

impl GrantedOperation {
    /// All of them.
    pub const ALL: [GrantedOperation; 3] = [Self::Get, Self::ReadMetadata, Self::Use];

    const fn bit(self) -> u16 {
        match self {
            Self::Get => 1,
            Self::ReadMetadata => 1 << 1,
            Self::Use => 1 << 2,
        }
    }
}

/// A set of operations, at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GrantedOperations(u16);

impl GrantedOperations {
    const KNOWN_BITS: u16 = 0b111;

    /// `first` and those in `more`.
    pub fn of(first: GrantedOperation, more: &[GrantedOperation]) -> Self {
        Self(more.iter().fold(first.bit(), |bits, operation| bits | operation.bit()))
    }

    /// Whether `operation` is among them.
    pub const fn contain(self, operation: GrantedOperation) -> bool {
        self.0 & operation.bit() != 0
    }

    fn from_bits(bits: u16) -> Option<Self> {
        (bits != 0 && bits & !Self::KNOWN_BITS == 0).then_some(Self(bits))
    }
}

/// A grant of the control plane.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    id: GrantId,
    vm: VmId,
    generation: VmGeneration,
    host: PublicKeySha256,
    operations: GrantedOperations,
    /// The VM runs in an earlier generation meanwhile, on another host.
    prepared: bool,
    objects: Vec<String>,
    not_before: GrantTime,
    expires: GrantTime,
}

/// The bit of a grant for a generation that is only prepared, beside its operations.
const PREPARED_BIT: u16 = 1 << 15;

/// Why a grant cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// No object, or too many.
    #[error("a grant names 1 to {GRANT_MAX_OBJECTS} objects, not {count}")]
    ObjectCount {
        /// How many were named.
        count: usize,
    },
    /// An object's identifier is empty or too long.
    #[error("an object's identifier has 1 to {OBJECT_MAX_BYTES} bytes, not {length_bytes}")]
    ObjectLength {
        /// Its length.
        length_bytes: usize,
    },
    /// The whole would be too long.
    #[error("the grant would have {length_bytes} bytes, more than {GRANT_MAX_BYTES}; name fewer objects")]
    TooLong {
        /// Its length.
        length_bytes: usize,
    },
    /// It would end before it begins.
    #[error("a grant ends later than it begins")]
    EmptyTime,
    /// A migration would end where it begins.
    #[error("a VM migrates to another host than the one that it runs on; name another target")]
    OneHost,
    /// A migration would not raise the VM's generation.
    #[error(
        "the VM runs in generation {running}, and a target is prepared for a later one, not for {prepared}"
    )]
    Generations {
        /// The generation that runs.
        running: VmGeneration,
        /// The generation that was to be prepared.
        prepared: VmGeneration,
    },
    /// The key is not on P-256, or the library failed.
    #[error("the grant cannot be signed: {0}")]
    Key(&'static str),
}

impl Grant {
    /// A grant with a fresh random id. `objects` may come in any order and more than once.
    ///
    /// # Errors
    /// All of [`GrantError`] but [`GrantError::Key`].
    pub fn new(
        vm: VmId,
        generation: VmGeneration,
        host: PublicKeySha256,
        operations: GrantedOperations,
        mut objects: Vec<String>,
        GrantPeriod { not_before, expires }: GrantPeriod,
    ) -> Result<Self, GrantError> {
        objects.sort_unstable();
        objects.dedup();
        if !(1..=GRANT_MAX_OBJECTS).contains(&objects.len()) {
            return Err(GrantError::ObjectCount { count: objects.len() });
        }
        if let Some(object) = objects.iter().find(|object| !(1..=OBJECT_MAX_BYTES).contains(&object.len())) {
            return Err(GrantError::ObjectLength { length_bytes: object.len() });
        }
        if expires <= not_before {
            return Err(GrantError::EmptyTime);
        }
        let (id, prepared) = (GrantId::random(), false);
        let grant = Self { id, vm, generation, host, operations, prepared, objects, not_before, expires };
        match grant.encoded_bytes() {
            ..=GRANT_MAX_BYTES => Ok(grant),
            length_bytes => Err(GrantError::TooLong { length_bytes }),
        }
    }

    /// The id, used once.
    pub fn id(&self) -> GrantId {
        self.id
    }

    /// The VM whose keys these are.
    pub fn vm(&self) -> VmId {
        self.vm
    }

    /// The VM's generation.
    pub fn generation(&self) -> VmGeneration {
        self.generation
    }

    /// The only host that may use it, by its public key.
    pub fn host(&self) -> PublicKeySha256 {
        self.host
    }

    /// The permitted operations.
    pub fn operations(&self) -> GrantedOperations {
        self.operations
    }

    /// The same for a generation that is prepared beside the one that runs: its redemption does not
    /// end that one.
    #[must_use]
    pub fn for_prepared(self) -> Self {
        Self { prepared: true, ..self }
    }

    /// Whether the generation is only prepared.
    pub fn is_for_prepared(&self) -> bool {
        self.prepared
    }

    /// The objects, in ascending order.
    pub fn objects(&self) -> &[String] {
        &self.objects
    }

    /// The first second at which it is valid.
    pub fn not_before(&self) -> GrantTime {
        self.not_before
    }

    /// The first second at which it is no longer valid.
    pub fn expires(&self) -> GrantTime {
        self.expires
    }

    /// Decodes `bytes` without verifying them, for a carrier that needs the grant's contents.
    pub fn claimed(bytes: &[u8]) -> Option<Self> {
        Presented::read(bytes).ok().map(|presented| presented.grant)
    }

    /// Decodes the id in `bytes` without verifying it, for the record of a refusal.
    pub fn claimed_id(bytes: &[u8]) -> Option<GrantId> {
        let mut reader = Reader(bytes);
        (reader.array::<4>()? == MAGIC).then(|| reader.array::<16>().map(GrantId::from_bytes))?
    }

    /// The grant's bytes with `signer`'s signature.
    ///
    /// # Errors
    /// [`GrantError::Key`] if the library fails.
    pub fn sign(&self, signer: &GrantSigner) -> Result<Vec<u8>, GrantError> {
        let mut bytes = Vec::with_capacity(self.encoded_bytes());
        bytes.extend(MAGIC);
        bytes.extend(self.id.as_bytes());
        bytes.extend(self.vm.as_bytes());
        bytes.extend(self.generation.0.to_be_bytes());
        bytes.extend(self.not_before.0.to_be_bytes());
        bytes.extend(self.expires.0.to_be_bytes());
        bytes.extend(self.host.as_bytes());
        bytes.extend(signer.certificate.as_bytes());
        let prepared = if self.prepared { PREPARED_BIT } else { 0 };
        bytes.extend((self.operations.0 | prepared).to_be_bytes());
        // Both limits are checked where a grant is made.
        bytes.push(self.objects.len() as u8);
        for object in &self.objects {
            bytes.extend((object.len() as u16).to_be_bytes());
            bytes.extend(object.as_bytes());
        }
        bytes.extend(signer.signature(&signed_message(&bytes))?);
        Ok(bytes)
    }

    fn encoded_bytes(&self) -> usize {
        let objects: usize = self.objects.iter().map(|object| 2 + object.len()).sum();
        127 + objects + SIGNATURE_BYTES
    }
}

/// A control plane's signing key, with its certificate.
pub struct GrantSigner {
    pub(super) key: EcdsaKeyPair,
    pub(super) certificate: CertificateSha256,
}

impl GrantSigner {
    /// Signs with `pkcs8` (DER, P-256), the private key of `certificate`.
    ///
    /// # Errors
    /// [`GrantError::Key`] if it is not such a key.
    pub fn new(pkcs8: &SecretBytes, certificate: CertificateSha256) -> Result<Self, GrantError> {
        EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.expose())
            .map(|key| Self { key, certificate })
            .map_err(|_| {
                GrantError::Key("the key is no P-256 key in PKCS#8; grants are signed with ECDSA P-256")
            })
    }
}

impl GrantSigner {
    pub(super) fn signature(&self, message: &[u8]) -> Result<[u8; SIGNATURE_BYTES], GrantError> {
        let failed = || GrantError::Key("the cryptographic library failed");
        let signature = self.key.sign(&SystemRandom::new(), message).map_err(|_| failed())?;
        signature.as_ref().try_into().map_err(|_| failed())
    }
}

impl fmt::Debug for GrantSigner {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "GrantSigner({}, key redacted)", self.certificate)
    }
}

/// A grant as received, decoded but not verified.
#[derive(Debug)]
pub(super) struct Presented<'bytes> {
    pub(super) grant: Grant,
    pub(super) signer: CertificateSha256,
    pub(super) message: Vec<u8>,
    pub(super) signature: &'bytes [u8; SIGNATURE_BYTES],
}

impl<'bytes> Presented<'bytes> {
    pub(super) fn read(bytes: &'bytes [u8]) -> Result<Self, Refusal> {
        if bytes.len() > GRANT_MAX_BYTES {
            return Err(Refusal::Malformed);
        }
        let (body, signature) = bytes.split_last_chunk().ok_or(Refusal::Malformed)?;
        let (grant, signer) = read_body(body).ok_or(Refusal::Malformed)?;
        Ok(Self { grant, signer, message: signed_message(body), signature })
    }
}

fn signed_message(body: &[u8]) -> Vec<u8> {
    [SIGNED_CONTEXT, body].concat()
}

fn read_body(body: &[u8]) -> Option<(Grant, CertificateSha256)> {
    let mut reader = Reader(body);
    if reader.array()? != MAGIC {
        return None;
    }
    let id = GrantId::from_bytes(reader.array()?);
    let vm = VmId::from_bytes(reader.array()?);
    let generation = VmGeneration(u64::from_be_bytes(reader.array()?));
    let not_before = GrantTime(u64::from_be_bytes(reader.array()?));
    let expires = GrantTime(u64::from_be_bytes(reader.array()?));
    let host = PublicKeySha256::from_bytes(reader.array()?);
    let signer = CertificateSha256::from_bytes(reader.array()?);
    let bits = u16::from_be_bytes(reader.array()?);
    let prepared = bits & PREPARED_BIT != 0;
    let operations = GrantedOperations::from_bits(bits & !PREPARED_BIT)?;
    let objects = read_objects(&mut reader)?;
    if !reader.0.is_empty() || expires <= not_before {
        return None;
    }
    Some((Grant { id, vm, generation, host, operations, prepared, objects, not_before, expires }, signer))
}

fn read_objects(reader: &mut Reader<'_>) -> Option<Vec<String>> {
    let [count] = reader.array()?;
    if !(1..=GRANT_MAX_OBJECTS).contains(&usize::from(count)) {
        return None;
    }
    let mut objects: Vec<String> = Vec::with_capacity(usize::from(count));
    for _ in 0..count {
        let length_bytes = usize::from(u16::from_be_bytes(reader.array()?));
        if !(1..=OBJECT_MAX_BYTES).contains(&length_bytes) {
            return None;
        }
        let object = std::str::from_utf8(reader.slice(length_bytes)?).ok()?;
        if objects.last().is_some_and(|last| last.as_str() >= object) {
            return None;
        }
        objects.push(object.to_owned());
    }
    Some(objects)
}

/// The bytes left to read.
pub(super) struct Reader<'bytes>(pub(super) &'bytes [u8]);

impl<'bytes> Reader<'bytes> {
    pub(super) fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn slice(&mut self, length_bytes: usize) -> Option<&'bytes [u8]> {
        let (slice, rest) = self.0.split_at_checked(length_bytes)?;
        self.0 = rest;
        Some(slice)
    }
}
