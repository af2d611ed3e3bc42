//! Tags of blocks: many short messages under one key.
//!
//! | algorithm | what | for |
//! |---|---|---|
//! | [`HmacSha256`](BlockTagAlgorithm::HmacSha256) | HMAC-SHA256 (FIPS 198-1), truncated to 128 bits (NIST SP 800-107, 5.1) | approved by FIPS |
//! | [`PolyvalAes`](BlockTagAlgorithm::PolyvalAes) | AES-256 of POLYVAL (RFC 8452) under another key | several times as fast |
//!
//! `docs/decisions/0032-second-tag-algorithm.md` has the construction and its bounds.
//!
//! Values that are equivalent to a key are only in secret memory, in registers, and during a call
//! on the stack, where they are wiped. [`mac`](crate::mac) instead sets up its key for every
//! message and leaves it on the library's heap, which suits a descriptor but not every block of a
//! disk.

mod hmac;
mod polyval;
mod polyval_aes;

use strongroom_memory::secret::SecretBytes;

#[cfg(test)]
pub(crate) use self::polyval::available as polyval_kernels;
use crate::error::CryptoError;
use crate::kdf::hkdf_sha256;
use crate::module::refuse_in_fips;
use hmac::HmacKey;
use polyval_aes::PolyvalAesKey;

/// Length of a tag.
pub const BLOCK_TAG_BYTES: usize = 16;

/// How blocks are tagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockTagAlgorithm {
    /// HMAC-SHA256, truncated to 128 bits.
    HmacSha256,
    /// AES-256 of POLYVAL.
    PolyvalAes,
}

impl BlockTagAlgorithm {
    /// The fastest of this build.
    pub const FASTEST: Self = if crate::module::IS_FIPS_BUILD { Self::HmacSha256 } else { Self::PolyvalAes };

    /// Refuses what this build does not compute.
    ///
    /// # Errors
    /// [`CryptoError::OutsideModule`].
    pub fn check_available(self) -> Result<(), CryptoError> {
        match self {
            Self::HmacSha256 => Ok(()),
            Self::PolyvalAes => refuse_in_fips(polyval_aes::ALGORITHM),
        }
    }

    /// Length of a key.
    pub fn key_bytes(self) -> usize {
        match self {
            Self::HmacSha256 => hmac::KEY_BYTES,
            Self::PolyvalAes => polyval_aes::KEY_BYTES,
        }
    }
}

/// A key for tags, shared by threads.
#[derive(Debug)]
pub struct BlockTagKey(Keyed);

#[derive(Debug)]
enum Keyed {
    HmacSha256(HmacKey),
    PolyvalAes(PolyvalAesKey),
}

impl BlockTagKey {
    /// Takes a key of [`BlockTagAlgorithm::key_bytes`].
    ///
    /// # Errors
    /// [`CryptoError::KeyLength`], [`CryptoError::Secret`], [`CryptoError::Library`],
    /// [`CryptoError::OutsideModule`].
    pub fn new(algorithm: BlockTagAlgorithm, key: &SecretBytes) -> Result<Self, CryptoError> {
        algorithm.check_available()?;
        Ok(Self(match algorithm {
            BlockTagAlgorithm::HmacSha256 => Keyed::HmacSha256(HmacKey::new(key)?),
            BlockTagAlgorithm::PolyvalAes => Keyed::PolyvalAes(PolyvalAesKey::new(key, polyval::fastest())?),
        }))
    }

    /// Derives a key from another one by HKDF-SHA256. `info` names the purpose.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`CryptoError::Limit`].
    pub fn derive(
        algorithm: BlockTagAlgorithm,
        from: &SecretBytes,
        info: &[u8],
    ) -> Result<Self, CryptoError> {
        Self::new(algorithm, &hkdf_sha256(from, &[], info, algorithm.key_bytes())?)
    }

    /// The tag of `header` followed by `message`. HMAC does not authenticate the lengths: each
    /// caller must use one header length.
    ///
    /// # Errors
    /// [`CryptoError::Library`].
    pub fn tag(&self, header: &[u8], message: &[u8]) -> Result<[u8; BLOCK_TAG_BYTES], CryptoError> {
        match &self.0 {
            Keyed::HmacSha256(key) => key.tag(header, message),
            Keyed::PolyvalAes(key) => Ok(key.tag(header, message)),
        }
    }
}

/// The tag by each kernel of POLYVAL that this machine can run, for the self-test.
#[cfg(not(feature = "fips"))]
pub(crate) fn tags_by_every_kernel(
    key: &SecretBytes,
    header: &[u8],
    message: &[u8],
) -> Result<Vec<[u8; BLOCK_TAG_BYTES]>, CryptoError> {
    let tag = |kernel| Ok(PolyvalAesKey::new(key, kernel)?.tag(header, message));
    polyval::available().map(tag).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(algorithm: BlockTagAlgorithm) -> SecretBytes {
        let mut bytes: Vec<u8> = (0..algorithm.key_bytes() as u8).collect();
        SecretBytes::from_slice_and_wipe(&mut bytes).unwrap()
    }

    fn algorithms() -> impl Iterator<Item = BlockTagAlgorithm> {
        let all = [BlockTagAlgorithm::HmacSha256, BlockTagAlgorithm::PolyvalAes];
        all.into_iter().filter(|algorithm| {
            let refused = matches!(
                BlockTagKey::new(*algorithm, &key(*algorithm)),
                Err(CryptoError::OutsideModule { .. })
            );
            assert_eq!(refused, crate::module::IS_FIPS_BUILD && *algorithm == BlockTagAlgorithm::PolyvalAes);
            !refused
        })
    }

    #[test]
    fn keys_of_another_length_are_refused() {
        for algorithm in algorithms() {
            for length in [0, 16, 31, 33, 47, 49, 64] {
                let key = SecretBytes::random(length).unwrap();
                let refused = BlockTagKey::new(algorithm, &key);
                assert!(matches!(refused, Err(CryptoError::KeyLength { .. })), "{algorithm:?}: {length}");
            }
        }
    }

    /// Each bit counts, and each length of both parts.
    #[test]
    fn whatever_is_changed_the_tag_is_another() {
        for algorithm in algorithms() {
            let tags = BlockTagKey::new(algorithm, &key(algorithm)).unwrap();
            let (header, message) = ([7; 64], [9; 528]);
            let right = tags.tag(&header, &message).unwrap();
            assert_eq!(tags.tag(&header, &message).unwrap(), right, "a key can be used again");
            let mut seen = std::collections::HashSet::from([right]);
            for bit in 0..8 * 64 {
                let mut changed = header;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    seen.insert(tags.tag(&changed, &message).unwrap()),
                    "{algorithm:?}: {bit} of the header"
                );
            }
            for bit in 0..8 * 528 {
                let mut changed = message;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(seen.insert(tags.tag(&header, &changed).unwrap()), "{algorithm:?}: {bit}");
            }
            for length in 0..528 {
                // Zeroes at the end are not what is filled up with zeroes.
                assert!(
                    seen.insert(tags.tag(&header, &[0; 528][..length]).unwrap()),
                    "{algorithm:?}: {length}"
                );
            }
            let derived = |info: &[u8]| {
                let tags = BlockTagKey::derive(algorithm, &key(algorithm), info).unwrap();
                tags.tag(&header, &message).unwrap()
            };
            assert_ne!(derived(b"one"), derived(b"other"));
        }
    }
}
