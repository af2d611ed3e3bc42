//! The key that authenticates a volume's descriptor.

use strongroom_crypto::{kdf, mac};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::VolumeId;

use crate::error::KeyError;
use crate::kek::Kek;

/// Bytes of a descriptor's tag: HMAC-SHA256, or SHA-256 for a volume without keys.
pub const DESCRIPTOR_TAG_BYTES: usize = 32;

/// Authenticates one volume's descriptor: HMAC-SHA256 under a key derived from the volume's KEK and id.
#[derive(Debug)]
pub struct DescriptorKey(SecretBytes);

impl DescriptorKey {
    /// The key of this volume under this KEK.
    pub fn derive(kek: &Kek, volume: VolumeId) -> Result<Self, KeyError> {
        let label = [b"strongroom descriptor mac v1".as_slice(), volume.as_bytes()].concat();
        Ok(Self(kdf::hkdf_sha256(kek.secret(), b"", &label, DESCRIPTOR_TAG_BYTES)?))
    }

    /// The tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> Result<[u8; DESCRIPTOR_TAG_BYTES], KeyError> {
        Ok(mac::hmac_sha256(&self.0, bytes)?)
    }

    /// Whether this is the tag of these bytes; takes the same time wherever they differ.
    pub fn verify(&self, bytes: &[u8], tag: &[u8; DESCRIPTOR_TAG_BYTES]) -> bool {
        mac::verify_hmac_sha256(&self.0, bytes, tag).is_ok()
    }

    /// What stands in a tag's place for a volume without keys: it shows accidents, not intent.
    pub fn checksum(bytes: &[u8]) -> [u8; DESCRIPTOR_TAG_BYTES] {
        mac::sha256(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kek::KekSource;

    #[test]
    fn tags_are_of_one_volume_and_one_key() {
        let kek = |fill| {
            KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
        };
        let (volume, other) = (VolumeId::random(), VolumeId::random());
        let key = DescriptorKey::derive(&kek(1), volume).unwrap();
        let tag = key.tag(b"descriptor").unwrap();
        assert!(key.verify(b"descriptor", &tag) && !key.verify(b"descriptos", &tag));
        assert!(!DescriptorKey::derive(&kek(2), volume).unwrap().verify(b"descriptor", &tag));
        assert!(!DescriptorKey::derive(&kek(1), other).unwrap().verify(b"descriptor", &tag));
    }
}
