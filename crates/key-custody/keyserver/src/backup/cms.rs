//! A share for a custodian with an elliptic-curve key, as a CMS message (RFC 5652, RFC 5753), which
//! `openssl cms -decrypt -inform DER -inkey PRIVATE` opens.
//!
//! It has one recipient by ephemeral-static ECDH: X9.63's key derivation gives the key that wraps
//! the message key with AES key wrap. The content is under AES-256-CBC, which every CMS tool has.
//! CBC does not authenticate; the share's checksum and the backup's header do.

use aws_lc_rs::agreement::{self, ECDH_P256, ECDH_P384, EphemeralPrivateKey, PrivateKey, UnparsedPublicKey};
use aws_lc_rs::cipher::{
    AES_256, DecryptionContext, PaddedBlockDecryptingKey, PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::digest::{Context, SHA256, SHA384, digest};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::rand::SystemRandom;
use strongroom_crypto::key_wrap;
use strongroom_memory::secret::{SecretBytes, SecretError};
use zeroize::Zeroizing;

use super::error::BackupError;

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// Context-specific tags: primitive, constructed.
const CONTEXT_0_PRIMITIVE: u8 = 0x80;
const CONTEXT_0: u8 = 0xa0;
const CONTEXT_1: u8 = 0xa1;
const CONTEXT_2: u8 = 0xa2;

const ID_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x01];
const ID_ENVELOPED_DATA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x07, 0x03];
const ID_EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
const ID_AES256_CBC: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01, 0x2a];
const ID_AES256_WRAP: &[u8] = &[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01, 0x2d];

const KEY_BYTES: usize = 32;
const BLOCK_BYTES: usize = 16;
/// The usual length of a subject key identifier.
const KEY_IDENTIFIER_BYTES: usize = 20;

/// A curve, and its parameters in RFC 5753.
struct Curve {
    identifier: &'static [u8],
    agreement: &'static agreement::Algorithm,
    /// dhSinglePass-stdDH-sha256kdf-scheme and its sibling.
    scheme: &'static [u8],
    digest: &'static aws_lc_rs::digest::Algorithm,
    /// Bytes of an uncompressed point.
    point_bytes: usize,
}

impl Curve {
    /// The key that wraps the content's: X9.63's derivation with ECC-CMS-SharedInfo (RFC 5753,
    /// 7.2), one round.
    fn derive(&self, shared: &[u8]) -> Result<SecretBytes, SecretError> {
        let key_bits = (KEY_BYTES as u32 * 8).to_be_bytes();
        let shared_info =
            sequence(&[&wrap_algorithm(), &der(CONTEXT_2, &[&der(OCTET_STRING, &[&key_bits])])]);
        let mut hash = Context::new(self.digest);
        hash.update(shared);
        hash.update(&1_u32.to_be_bytes());
        hash.update(&shared_info);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        key.copy_from_slice(&hash.finish().as_ref()[..KEY_BYTES]);
        SecretBytes::from_slice_and_wipe(&mut *key)
    }

    /// The point of a key in an `OriginatorPublicKey` or a SubjectPublicKeyInfo without its head.
    fn point_in<'a>(&self, mut key: Der<'a>) -> Option<&'a [u8]> {
        let mut algorithm = key.inside(SEQUENCE)?;
        let is_named = algorithm.take(OBJECT_IDENTIFIER)? == ID_EC_PUBLIC_KEY
            && algorithm.take(OBJECT_IDENTIFIER)? == self.identifier;
        let point = key.take(BIT_STRING)?.strip_prefix(&[0])?;
        (is_named && point.len() == self.point_bytes).then_some(point)
    }
}

static CURVES: [Curve; 2] = [
    Curve {
        identifier: &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        agreement: &ECDH_P256,
        scheme: &[0x2b, 0x81, 0x04, 0x01, 0x0b, 0x01],
        digest: &SHA256,
        point_bytes: 65,
    },
    Curve {
        identifier: &[0x2b, 0x81, 0x04, 0x00, 0x22],
        agreement: &ECDH_P384,
        scheme: &[0x2b, 0x81, 0x04, 0x01, 0x0b, 0x02],
        digest: &SHA384,
        point_bytes: 97,
    },
];

/// A public key on P-256 or P-384.
pub(super) struct EcKey {
    curve: &'static Curve,
    point: Vec<u8>,
}

impl EcKey {
    /// Reads a SubjectPublicKeyInfo with a named curve and an uncompressed point; `None` for any
    /// other.
    pub fn new(public: &[u8]) -> Option<Self> {
        let key = CURVES.iter().find_map(|curve| {
            let point = public.get(public.len().checked_sub(curve.point_bytes)?..)?.to_vec();
            let key = Self { curve, point };
            (key.public_key(SEQUENCE) == public).then_some(key)
        })?;
        // Refuses a point that is not on the curve.
        key.agree(|_| Ok(())).ok()?;
        Some(key)
    }

    /// Encrypts `content` to this key.
    pub fn encrypt(&self, content: &SecretBytes) -> Result<Vec<u8>, BackupError> {
        let content_key = SecretBytes::random(KEY_BYTES)?;
        let (ephemeral, wrapped) =
            self.agree(|shared| Ok(key_wrap::wrap(&self.curve.derive(shared)?, &content_key)?))?;
        let (iv, ciphertext) = encrypt_content(&content_key, content)?;

        let originator = Self { curve: self.curve, point: ephemeral };
        let key_identifier = &digest(&SHA256, &self.point).as_ref()[..KEY_IDENTIFIER_BYTES].to_vec();
        let recipient = der(
            CONTEXT_1,
            &[
                &der(INTEGER, &[&[3]]),
                &der(CONTEXT_0, &[&originator.public_key(CONTEXT_1)]),
                &sequence(&[&der(OBJECT_IDENTIFIER, &[self.curve.scheme]), &wrap_algorithm()]),
                &sequence(&[&sequence(&[
                    &der(CONTEXT_0, &[&der(OCTET_STRING, &[key_identifier])]),
                    &der(OCTET_STRING, &[&wrapped]),
                ])]),
            ],
        );
        let encrypted_content = sequence(&[
            &der(OBJECT_IDENTIFIER, &[ID_DATA]),
            &sequence(&[&der(OBJECT_IDENTIFIER, &[ID_AES256_CBC]), &der(OCTET_STRING, &[&iv])]),
            &der(CONTEXT_0_PRIMITIVE, &[&ciphertext]),
        ]);
        let enveloped = sequence(&[&der(INTEGER, &[&[2]]), &der(SET, &[&recipient]), &encrypted_content]);
        Ok(sequence(&[&der(OBJECT_IDENTIFIER, &[ID_ENVELOPED_DATA]), &der(CONTEXT_0, &[&enveloped])]))
    }

    /// Performs ECDH with an ephemeral key; returns its public point, and the result of `take` on
    /// the shared secret.
    fn agree<T>(
        &self,
        take: impl FnOnce(&[u8]) -> Result<T, BackupError>,
    ) -> Result<(Vec<u8>, T), BackupError> {
        let library = |_| BackupError::Library { call: "ECDH" };
        let private =
            EphemeralPrivateKey::generate(self.curve.agreement, &SystemRandom::new()).map_err(library)?;
        let public = private.compute_public_key().map_err(library)?.as_ref().to_vec();
        let peer = UnparsedPublicKey::new(self.curve.agreement, &self.point);
        let failed = BackupError::Library { call: "ECDH" };
        agreement::agree_ephemeral(private, peer, failed, take).map(|taken| (public, taken))
    }

    /// The SubjectPublicKeyInfo, under `tag`.
    fn public_key(&self, tag: u8) -> Vec<u8> {
        let algorithm = sequence(&[
            &der(OBJECT_IDENTIFIER, &[ID_EC_PUBLIC_KEY]),
            &der(OBJECT_IDENTIFIER, &[self.curve.identifier]),
        ]);
        der(tag, &[&algorithm, &der(BIT_STRING, &[&[0], &self.point])])
    }
}

/// A custodian's private key, with its curve.
pub(super) struct EcPrivateKey {
    curve: &'static Curve,
    key: PrivateKey,
}

impl EcPrivateKey {
    /// Reads PKCS#8 or SEC 1 (DER); `None` for a key on another curve.
    pub fn new(private: &[u8]) -> Option<Self> {
        CURVES.iter().find_map(|curve| {
            let key = PrivateKey::from_private_key_der(curve.agreement, private).ok()?;
            Some(Self { curve, key })
        })
    }

    /// The SubjectPublicKeyInfo of its public half.
    pub fn public_key(&self) -> Option<Vec<u8>> {
        let point = self.key.compute_public_key().ok()?.as_ref().to_vec();
        Some(EcKey { curve: self.curve, point }.public_key(SEQUENCE))
    }

    /// Opens a message of [`EcKey::encrypt`]; `None` if it is for another key or was changed.
    pub fn decrypt(&self, message: &[u8]) -> Option<SecretBytes> {
        let Message { originator, wrapped, iv, ciphertext } = Message::read(message, self.curve)?;
        let peer = UnparsedPublicKey::new(self.curve.agreement, originator);
        let content_key = agreement::agree(&self.key, peer, (), |shared| {
            let key = self.curve.derive(shared).map_err(drop)?;
            key_wrap::unwrap(&key, wrapped).map_err(drop)
        });
        let content_key = UnboundCipherKey::new(&AES_256, content_key.ok()?.expose()).ok()?;
        let mut bytes = Zeroizing::new(ciphertext.to_vec());
        let context = DecryptionContext::Iv128(FixedLength::from(iv));
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(content_key).ok()?;
        let content = key.decrypt(&mut bytes, context).ok()?;
        SecretBytes::from_slice_and_wipe(content).ok()
    }
}

/// The parts of a message in the one form that [`EcKey::encrypt`] makes.
struct Message<'a> {
    originator: &'a [u8],
    wrapped: &'a [u8],
    iv: [u8; BLOCK_BYTES],
    ciphertext: &'a [u8],
}

impl<'a> Message<'a> {
    fn read(message: &'a [u8], curve: &Curve) -> Option<Self> {
        let mut content_info = Der(message).inside(SEQUENCE)?;
        content_info.expect(OBJECT_IDENTIFIER, ID_ENVELOPED_DATA)?;
        let mut enveloped = content_info.inside(CONTEXT_0)?.inside(SEQUENCE)?;
        enveloped.expect(INTEGER, &[2])?;

        let mut recipient = enveloped.inside(SET)?.inside(CONTEXT_1)?;
        recipient.expect(INTEGER, &[3])?;
        let originator = curve.point_in(recipient.inside(CONTEXT_0)?.inside(CONTEXT_1)?)?;
        recipient.inside(SEQUENCE)?.expect(OBJECT_IDENTIFIER, curve.scheme)?;
        let mut encrypted_key = recipient.inside(SEQUENCE)?.inside(SEQUENCE)?;
        encrypted_key.take(CONTEXT_0)?;
        let wrapped = encrypted_key.take(OCTET_STRING)?;

        let mut encrypted_content = enveloped.inside(SEQUENCE)?;
        encrypted_content.expect(OBJECT_IDENTIFIER, ID_DATA)?;
        let mut algorithm = encrypted_content.inside(SEQUENCE)?;
        algorithm.expect(OBJECT_IDENTIFIER, ID_AES256_CBC)?;
        let iv = algorithm.take(OCTET_STRING)?.try_into().ok()?;
        let ciphertext = encrypted_content.take(CONTEXT_0_PRIMITIVE)?;
        Some(Self { originator, wrapped, iv, ciphertext })
    }
}

/// A reader of DER, value by value.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// The content of the next value, which has this tag.
    fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (&[found, length], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match length {
            0..=0x7f => (usize::from(length), rest),
            0x81 => rest.split_first().map(|(&length, rest)| (usize::from(length), rest))?,
            0x82 => rest
                .split_first_chunk()
                .map(|(&length, rest)| (usize::from(u16::from_be_bytes(length)), rest))?,
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        (found == tag).then_some(content)
    }

    fn inside(&mut self, tag: u8) -> Option<Self> {
        self.take(tag).map(Self)
    }

    fn expect(&mut self, tag: u8, content: &[u8]) -> Option<()> {
        (self.take(tag)? == content).then_some(())
    }
}

fn encrypt_content(
    key: &SecretBytes,
    content: &SecretBytes,
) -> Result<([u8; BLOCK_BYTES], Vec<u8>), BackupError> {
    let library = |_| BackupError::Library { call: "AES-256-CBC encryption" };
    let key = UnboundCipherKey::new(&AES_256, key.expose()).map_err(library)?;
    // Allocated with room for the padding, so that the plaintext is in one place, which becomes the
    // ciphertext.
    let mut bytes = Zeroizing::new(Vec::with_capacity(content.len() + BLOCK_BYTES));
    bytes.extend_from_slice(content.expose());
    let context =
        PaddedBlockEncryptingKey::cbc_pkcs7(key).and_then(|key| key.encrypt(&mut *bytes)).map_err(library)?;
    let DecryptionContext::Iv128(iv) = context else {
        return Err(BackupError::Library { call: "AES-256-CBC encryption" });
    };
    let mut vector = [0; BLOCK_BYTES];
    vector.copy_from_slice(iv.as_ref());
    Ok((vector, bytes.to_vec()))
}

fn wrap_algorithm() -> Vec<u8> {
    sequence(&[&der(OBJECT_IDENTIFIER, &[ID_AES256_WRAP])])
}

fn sequence(parts: &[&[u8]]) -> Vec<u8> {
    der(SEQUENCE, parts)
}

/// One DER value (X.690, 8.1): tag, length, content. Contents here are far below 64 KiB.
fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let [high, low] = (length as u16).to_be_bytes();
    let mut value = vec![tag];
    match length {
        0..0x80 => value.push(low),
        0x80..0x100 => value.extend([0x81, low]),
        _ => value.extend([0x82, high, low]),
    }
    value.extend(parts.concat());
    value
}
