//! The keys that authenticate plaintext metadata: a volume's descriptor, and a VM's configuration.

use strongroom_crypto::{kdf, mac};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{DESCRIPTOR_TAG_BYTES, VmId, VolumeId};

use crate::error::KeyError;
use crate::kek::Kek;

/// Authenticates one volume's descriptor: HMAC-SHA256 under a key derived from the volume's KEK and
/// id.
#[derive(Debug)]
pub struct DescriptorKey(SecretBytes);

impl DescriptorKey {
    /// The key of this volume under this KEK.
    pub fn derive(kek: &Kek, volume: VolumeId) -> Result<Self, KeyError> {
        Self::labelled(kek, &[b"strongroom descriptor mac v1".as_slice(), volume.as_bytes()].concat())
    }

    fn labelled(kek: &Kek, label: &[u8]) -> Result<Self, KeyError> {
        Ok(Self(kdf::hkdf_sha256(kek.secret(), b"", label, DESCRIPTOR_TAG_BYTES)?))
    }

    /// The tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> Result<[u8; DESCRIPTOR_TAG_BYTES], KeyError> {
        Ok(mac::hmac_sha256(&self.0, bytes)?)
    }

    /// Whether `tag` is the tag of these bytes, compared in constant time.
    pub fn verify(&self, bytes: &[u8], tag: &[u8; DESCRIPTOR_TAG_BYTES]) -> bool {
        mac::verify_hmac_sha256(&self.0, bytes, tag).is_ok()
    }

    /// A checksum in the tag's place for a volume without keys: it detects accidents, not attacks.
    pub fn checksum(bytes: &[u8]) -> [u8; DESCRIPTOR_TAG_BYTES] {
        mac::sha256(bytes)
    }
}

/// Authenticates one VM's configuration: HMAC-SHA256 under a key derived from one of its KEKs and
/// its id.
#[derive(Debug)]
pub struct ConfigurationKey(DescriptorKey);

impl ConfigurationKey {
    /// The key of this VM under this KEK.
    pub fn derive(kek: &Kek, vm: VmId) -> Result<Self, KeyError> {
        let label = [b"strongroom vm configuration mac v1".as_slice(), vm.as_bytes()].concat();
        DescriptorKey::labelled(kek, &label).map(Self)
    }

    /// The tag of these bytes.
    pub fn tag(&self, bytes: &[u8]) -> Result<[u8; DESCRIPTOR_TAG_BYTES], KeyError> {
        self.0.tag(bytes)
    }

    /// As [`DescriptorKey::verify`].
    pub fn verify(&self, bytes: &[u8], tag: &[u8; DESCRIPTOR_TAG_BYTES]) -> bool {
        self.0.verify(bytes, tag)
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
        let vm = VmId::from_bytes(*volume.as_bytes());
        assert!(!ConfigurationKey::derive(&kek(1), vm).unwrap().verify(b"descriptor", &tag));
    }

    #[test]
    fn tags_of_configurations_are_of_one_vm_and_one_key() {
        let kek = |fill| {
            KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
        };
        let (vm, other) = (VmId::random(), VmId::random());
        let key = ConfigurationKey::derive(&kek(1), vm).unwrap();
        let tag = key.tag(b"configuration").unwrap();
        assert!(key.verify(b"configuration", &tag) && !key.verify(b"configuratioN", &tag));
        assert!(!ConfigurationKey::derive(&kek(2), vm).unwrap().verify(b"configuration", &tag));
        assert!(!ConfigurationKey::derive(&kek(1), other).unwrap().verify(b"configuration", &tag));
    }

    #[test]
    fn a_checksum_is_sha_256() {
        // FIPS 180-2, appendix B.1.
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let found: String =
            DescriptorKey::checksum(b"abc").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, expected);
    }
}
