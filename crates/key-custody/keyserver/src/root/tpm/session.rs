//! A session salted to the storage root key: authorises a command, authenticates both directions,
//! and encrypts one parameter (TPM 2.0 Library, Part 1, 19 and 21). SHA-256 and AES-128-CFB
//! throughout, which every TPM 2.0 of a PC has.

use aws_lc_rs::agreement::{self, ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey};
use aws_lc_rs::cipher::{
    AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand::SystemRandom;
use strongroom_memory::secret::SecretBytes;
use zeroize::{Zeroize, Zeroizing};

use super::command::{Authorization, Code, Entity, Reader, Tpm, Writer};
use super::error::TpmError;
use crate::root::error::RootError;

const START_AUTH_SESSION: Code = Code { number: 0x176, name: "TPM2_StartAuthSession" };
const HANDLE_NULL: u32 = 0x4000_0007;
pub(super) const ALGORITHM_AES: u16 = 0x0006;
pub(super) const ALGORITHM_SHA256: u16 = 0x000b;
pub(super) const ALGORITHM_CFB: u16 = 0x0043;
pub(super) const AES_KEY_BITS: u16 = 128;
const AES_BYTES: usize = 16;
pub(super) const DIGEST_BYTES: usize = 32;
/// Bytes of a coordinate on P-256.
pub(super) const COORDINATE_BYTES: usize = 32;

const ATTRIBUTE_DECRYPT: u8 = 0x20;
const ATTRIBUTE_ENCRYPT: u8 = 0x40;

/// The kind of a session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Authorises by the object's (empty) password.
    Hmac,
    /// Authorises by the object's policy.
    Policy,
    /// Computes a policy.
    Trial,
}

pub(super) struct Session {
    entity: Entity,
    key: SecretBytes,
    nonce_caller: [u8; DIGEST_BYTES],
    nonce_tpm: Vec<u8>,
}

/// The public point of the storage root key.
pub(super) struct Point {
    pub x: [u8; COORDINATE_BYTES],
    pub y: [u8; COORDINATE_BYTES],
}

impl Tpm {
    /// Starts a session whose key only the TPM that holds `parent`'s private part can compute.
    pub fn start_session(
        &mut self,
        parent: &Entity,
        point: &Point,
        kind: Kind,
    ) -> Result<Session, RootError> {
        let (salt, ephemeral) = salt(point)?;
        let nonce_caller = nonce()?;
        let mut encrypted_salt = Writer::new();
        encrypted_salt.sized(&ephemeral.x).sized(&ephemeral.y);
        let mut parameters = Writer::new();
        parameters.sized(&nonce_caller).sized(encrypted_salt.as_bytes());
        parameters.u8(match kind {
            Kind::Hmac => 0,
            Kind::Policy => 1,
            Kind::Trial => 3,
        });
        parameters.u16(ALGORITHM_AES).u16(AES_KEY_BITS).u16(ALGORITHM_CFB).u16(ALGORITHM_SHA256);
        let unbound = Entity::permanent(HANDLE_NULL);
        let response =
            self.run(START_AUTH_SESSION, &[parent, &unbound], Authorization::None, parameters, true, None)?;
        let handle = response.handle.unwrap_or(HANDLE_NULL);
        self.keep(handle);
        let mut reader = Reader::new(&response.parameters, START_AUTH_SESSION.name);
        let nonce_tpm = reader.sized()?.to_vec();
        let key = kdf_a(&salt, b"ATH", &nonce_tpm, &nonce_caller, DIGEST_BYTES)?;
        Ok(Session { entity: Entity::permanent(handle), key, nonce_caller, nonce_tpm })
    }
}

impl Session {
    pub fn handle(&self) -> u32 {
        self.entity.handle
    }

    pub fn entity(&self) -> &Entity {
        &self.entity
    }

    /// Builds the authorisation area of a command; encrypts its first parameter in place if
    /// requested.
    pub fn authorize(
        &mut self,
        code: Code,
        entities: &[&Entity],
        parameters: &mut [u8],
        encrypts_command: bool,
    ) -> Result<Vec<u8>, TpmError> {
        self.nonce_caller = nonce()?;
        let attributes = if encrypts_command { ATTRIBUTE_DECRYPT } else { ATTRIBUTE_ENCRYPT };
        if encrypts_command {
            let (key, iv) = self.cipher(&self.nonce_caller, &self.nonce_tpm)?;
            let first = first_parameter(parameters, code)?;
            EncryptingKey::cfb128(key)
                .and_then(|key| key.less_safe_encrypt(first, EncryptionContext::Iv128(FixedLength::from(iv))))
                .map_err(|_| TpmError::Library { call: "AES-CFB encryption" })?;
        }
        let mut hash = Context::new(&SHA256);
        hash.update(&code.number.to_be_bytes());
        for entity in entities {
            hash.update(&entity.name);
        }
        hash.update(parameters);
        let mac = self.mac(hash.finish().as_ref(), &self.nonce_caller, &self.nonce_tpm, attributes);
        let mut area = Writer::new();
        area.u32(self.entity.handle).sized(&self.nonce_caller).u8(attributes).sized(mac.as_ref());
        Ok(area.as_bytes().to_vec())
    }

    /// Checks the authorisation area of a response; decrypts its first parameter in place if
    /// requested.
    pub fn accept(
        &mut self,
        code: Code,
        parameters: &mut [u8],
        area: &mut Reader<'_>,
        decrypts_response: bool,
    ) -> Result<(), TpmError> {
        self.nonce_tpm = area.sized()?.to_vec();
        let attributes = area.u8()?;
        let said = area.sized()?;
        let mut hash = Context::new(&SHA256);
        hash.update(&0_u32.to_be_bytes());
        hash.update(&code.number.to_be_bytes());
        hash.update(parameters);
        let mac = self.mac(hash.finish().as_ref(), &self.nonce_tpm, &self.nonce_caller, attributes);
        let not_authentic = TpmError::Answer { command: code.name };
        verify_slices_are_equal(mac.as_ref(), said).map_err(|_| not_authentic)?;
        if decrypts_response {
            if attributes & ATTRIBUTE_ENCRYPT == 0 {
                return Err(TpmError::Answer { command: code.name });
            }
            let (key, iv) = self.cipher(&self.nonce_tpm, &self.nonce_caller)?;
            let first = first_parameter(parameters, code)?;
            DecryptingKey::cfb128(key)
                .and_then(|key| key.decrypt(first, DecryptionContext::Iv128(FixedLength::from(iv))).map(drop))
                .map_err(|_| TpmError::Library { call: "AES-CFB decryption" })?;
        }
        Ok(())
    }

    /// The objects here have empty passwords, so that the session's key is the whole key (Part 1,
    /// 19.6.5).
    fn mac(&self, hash: &[u8], newer: &[u8], older: &[u8], attributes: u8) -> hmac::Tag {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, self.key.expose()));
        context.update(hash);
        context.update(newer);
        context.update(older);
        context.update(&[attributes]);
        context.sign()
    }

    fn cipher(&self, newer: &[u8], older: &[u8]) -> Result<(UnboundCipherKey, [u8; AES_BYTES]), TpmError> {
        let derived = kdf_a(&self.key, b"CFB", newer, older, 2 * AES_BYTES)
            .map_err(|_| TpmError::Library { call: "KDFa" })?;
        let (key, vector) = derived.expose().split_at(AES_BYTES);
        let mut iv = [0; AES_BYTES];
        iv.copy_from_slice(vector);
        let key =
            UnboundCipherKey::new(&AES_128, key).map_err(|_| TpmError::Library { call: "AES-128 set-up" })?;
        Ok((key, iv))
    }
}

/// The content of the TPM2B that parameters start with.
fn first_parameter(parameters: &mut [u8], code: Code) -> Result<&mut [u8], TpmError> {
    let length = usize::from(Reader::new(parameters, code.name).u16()?);
    let why = "its first parameter is shorter than it says";
    parameters.get_mut(2..2 + length).ok_or(TpmError::Protocol { command: code.name, why })
}

/// A salt that only the TPM can compute too: ECDH with an ephemeral key, then KDFe (Part 1, C.6.1
/// and 11.4.10.3).
fn salt(parent: &Point) -> Result<(SecretBytes, Point), RootError> {
    let library = |call| move |_| RootError::from(TpmError::Library { call });
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new())
        .map_err(library("P-256 key generation"))?;
    let public = private.compute_public_key().map_err(library("P-256 key generation"))?;
    let ephemeral = Point::from_uncompressed(public.as_ref())
        .ok_or(TpmError::Library { call: "P-256 key generation" })?;
    let mut uncompressed = vec![4];
    uncompressed.extend_from_slice(&parent.x);
    uncompressed.extend_from_slice(&parent.y);
    let peer = UnparsedPublicKey::new(&ECDH_P256, uncompressed);
    let failed = RootError::from(TpmError::Library { call: "ECDH" });
    let salt = agreement::agree_ephemeral(private, peer, failed, |shared| {
        let mut hash = Context::new(&SHA256);
        hash.update(&1_u32.to_be_bytes());
        hash.update(shared);
        hash.update(b"SECRET\0");
        hash.update(&ephemeral.x);
        hash.update(&parent.x);
        let mut salt = Zeroizing::new([0; DIGEST_BYTES]);
        salt.copy_from_slice(hash.finish().as_ref());
        Ok(SecretBytes::from_slice_and_wipe(&mut *salt)?)
    })?;
    Ok((salt, ephemeral))
}

impl Point {
    fn from_uncompressed(bytes: &[u8]) -> Option<Self> {
        let (x, y) = bytes.strip_prefix(&[4])?.split_at_checked(COORDINATE_BYTES)?;
        Some(Self { x: x.try_into().ok()?, y: y.try_into().ok()? })
    }
}

/// KDFa (Part 1, 11.4.10.2) for at most one digest, which suffices here.
fn kdf_a(
    key: &SecretBytes,
    label: &[u8],
    context_u: &[u8],
    context_v: &[u8],
    length_bytes: usize,
) -> Result<SecretBytes, RootError> {
    debug_assert!(length_bytes <= DIGEST_BYTES, "KDFa of one round");
    let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key.expose()));
    context.update(&1_u32.to_be_bytes());
    context.update(label);
    context.update(&[0]);
    context.update(context_u);
    context.update(context_v);
    context.update(&(length_bytes as u32 * 8).to_be_bytes());
    let mut digest = Zeroizing::new([0; DIGEST_BYTES]);
    digest.copy_from_slice(context.sign().as_ref());
    let derived = SecretBytes::from_slice_and_wipe(&mut digest[..length_bytes])?;
    digest.zeroize();
    Ok(derived)
}

fn nonce() -> Result<[u8; DIGEST_BYTES], TpmError> {
    let mut nonce = [0; DIGEST_BYTES];
    aws_lc_rs::rand::fill(&mut nonce).map_err(|_| TpmError::Library { call: "random" })?;
    Ok(nonce)
}
