//! Envelopes: a DEK sealed together with its context.

use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_crypto::{aead, random};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{BLOCK_BYTES, KekId, KeyEpoch, LayerId, VolumeId, hex};

use crate::error::KeyError;
use crate::kek::Kek;

/// Bytes of a DEK: two AES-256 keys, as XTS takes them.
pub const DEK_BYTES: usize = 64;

/// The purpose of a DEK.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Purpose {
    /// The blocks of a layer.
    LayerData,
}

/// How a DEK is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cipher {
    /// AES-256-XTS over 4096-byte units; the tweak is the unit's number, little-endian (IEEE 1619;
    /// dm-crypt's `aes-xts-plain64` with 4096-byte sectors and `iv_large_sectors`).
    #[serde(rename = "aes-256-xts-plain64-4096")]
    Aes256Xts4096,
}

impl fmt::Display for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes256Xts4096 => "AES-256-XTS, 4096-byte units",
        })
    }
}

/// The context that is authenticated with a DEK: an envelope opens only if all of it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EnvelopeContext {
    /// The purpose of the DEK.
    pub purpose: Purpose,
    /// The volume that it belongs to.
    pub volume: VolumeId,
    /// The layer that it seals.
    pub layer: LayerId,
    /// Its epoch in the volume.
    pub epoch: KeyEpoch,
    /// How it is used.
    pub cipher: Cipher,
}

impl EnvelopeContext {
    /// The associated data, byte by byte; `docs/ON_DISK.md` has the table.
    fn associated_data(&self, kek: KekId) -> Vec<u8> {
        let purpose: u8 = match self.purpose {
            Purpose::LayerData => 1,
        };
        let (cipher, unit_bytes): (u16, u32) = match self.cipher {
            Cipher::Aes256Xts4096 => (1, BLOCK_BYTES as u32),
        };
        let mut data = b"strongroom envelope v1\0".to_vec();
        data.push(purpose);
        data.extend_from_slice(self.volume.as_bytes());
        data.extend_from_slice(self.layer.as_bytes());
        data.extend_from_slice(&self.epoch.number().to_le_bytes());
        data.extend_from_slice(&cipher.to_le_bytes());
        data.extend_from_slice(&unit_bytes.to_le_bytes());
        data.extend_from_slice(kek.as_bytes());
        data
    }
}

/// A DEK sealed under a KEK with AES-256-GCM, in the form that a descriptor keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Envelope {
    /// The KEK that opens it.
    kek: KekId,
    /// 12 random bytes.
    #[serde(with = "hex")]
    nonce: Vec<u8>,
    /// The sealed DEK and the 16-byte tag.
    #[serde(with = "hex")]
    sealed: Vec<u8>,
}

impl Envelope {
    /// Makes a DEK from the kernel's randomness and seals it.
    pub fn new(context: &EnvelopeContext, kek: &Kek) -> Result<(Self, SecretBytes), KeyError> {
        let dek = random::secret(DEK_BYTES)?;
        Ok((Self::seal(context, &dek, kek)?, dek))
    }

    /// Seals an existing DEK, for the same layer under another KEK.
    pub fn seal(context: &EnvelopeContext, dek: &SecretBytes, kek: &Kek) -> Result<Self, KeyError> {
        let sealed = aead::seal(kek.secret(), &context.associated_data(kek.id()), dek)?;
        Ok(Self { kek: kek.id(), nonce: sealed.nonce.to_vec(), sealed: sealed.ciphertext_and_tag })
    }

    /// The KEK that opens it.
    pub fn kek(&self) -> KekId {
        self.kek
    }

    /// The DEK, if this envelope was sealed for exactly this context and is unchanged.
    pub fn open(&self, context: &EnvelopeContext, kek: &Kek) -> Result<SecretBytes, KeyError> {
        kek.expect_id(self.kek)?;
        let refused = || KeyError::Envelope { epoch: context.epoch, kek: self.kek };
        let nonce = self.nonce.as_slice().try_into().map_err(|_| refused())?;
        if self.sealed.len() != DEK_BYTES + aead::TAG_BYTES {
            return Err(refused());
        }
        let sealed = aead::Sealed { nonce, ciphertext_and_tag: self.sealed.clone() };
        aead::open(kek.secret(), &context.associated_data(kek.id()), &sealed).map_err(|_| refused())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kek::KekSource;

    fn kek(fill: u8) -> Kek {
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
    }

    fn context() -> EnvelopeContext {
        EnvelopeContext {
            purpose: Purpose::LayerData,
            volume: VolumeId::from_bytes([1; 16]),
            layer: LayerId::from_bytes([2; 16]),
            epoch: KeyEpoch::FIRST,
            cipher: Cipher::Aes256Xts4096,
        }
    }

    #[test]
    fn an_envelope_opens_for_its_own_use_alone() {
        let (envelope, dek) = Envelope::new(&context(), &kek(7)).unwrap();
        assert_eq!(envelope.open(&context(), &kek(7)).unwrap().expose(), dek.expose());
        let others = [
            EnvelopeContext { volume: VolumeId::from_bytes([3; 16]), ..context() },
            EnvelopeContext { layer: LayerId::from_bytes([3; 16]), ..context() },
            EnvelopeContext { epoch: KeyEpoch::new(2).unwrap(), ..context() },
        ];
        for other in others {
            assert!(matches!(envelope.open(&other, &kek(7)), Err(KeyError::Envelope { .. })), "{other:?}");
        }
        assert!(matches!(envelope.open(&context(), &kek(8)), Err(KeyError::WrongKek { .. })));
    }

    #[test]
    fn every_changed_byte_is_noticed() {
        let (envelope, _) = Envelope::new(&context(), &kek(7)).unwrap();
        for index in 0..envelope.sealed.len() {
            let mut edited = envelope.clone();
            edited.sealed[index] ^= 1;
            assert!(edited.open(&context(), &kek(7)).is_err());
        }
        let mut edited = envelope.clone();
        edited.nonce[0] ^= 1;
        assert!(edited.open(&context(), &kek(7)).is_err());
        edited.nonce.pop();
        assert!(edited.open(&context(), &kek(7)).is_err());
        let mut edited = envelope;
        edited.sealed.truncate(16);
        assert!(edited.open(&context(), &kek(7)).is_err());
    }

    #[test]
    fn the_associated_data_is_as_documented() {
        let data = context().associated_data(KekId::from_bytes([9; 16]));
        assert_eq!(data.len(), 23 + 1 + 16 + 16 + 4 + 2 + 4 + 16);
        assert_eq!(data[..24], *b"strongroom envelope v1\0\x01");
        assert_eq!(data[56..66], [1, 0, 0, 0, 1, 0, 0, 16, 0, 0]);
    }
}
