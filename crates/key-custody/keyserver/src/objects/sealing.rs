//! The stored form of an object: sealed, and bound to its identifier, generation and kind.
//!
//! ```text
//! offset  bytes
//!      0      1  format, 1
//!      1      1  kind: 1 object, 2 tombstone
//!      2      8  generation, big-endian: 1 for a new object, one more with every change
//!     10     12  nonce, random
//!     22      n  AES-256-GCM of: metadata length (4, big-endian), metadata, material
//!   22+n     16  tag
//! ```
//!
//! The associated data are the object's identifier, its generation and its kind: a record moved to
//! another identifier, or an object in place of its tombstone, does not open. Every record has its
//! own random nonce. One root must not seal more than 2^32 records (NIST SP 800-38D, 8.3), which
//! takes fifty days at a thousand changes a second.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_crypto::mac::hmac_sha256;
use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroizing;

use super::id::ObjectId;

const FORMAT: u8 = 1;
const HEADER_BYTES: usize = 10;
const NONCE_BYTES: usize = 12;
const TAG_BYTES: usize = 16;
const KEY_BYTES: usize = 32;
const LENGTH_BYTES: usize = 4;

/// Most metadata that one object may have: half of the store's longest value. A tape library's
/// objects have a few hundred bytes.
pub const METADATA_MAX_BYTES: usize = 256 << 10;

/// The kind of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A live object.
    Object,
    /// The permanent rest of a destroyed object: everything except its material.
    Tombstone,
}

impl RecordKind {
    fn byte(self) -> u8 {
        match self {
            Self::Object => 1,
            Self::Tombstone => 2,
        }
    }
}

/// Why a record cannot be sealed or opened.
#[derive(Debug, thiserror::Error)]
pub enum SealingError {
    /// Not this program's format.
    #[error("the record of object {id} has no known format")]
    Format {
        /// The object.
        id: ObjectId,
    },
    /// Edited, exchanged, or sealed under another root.
    #[error(
        "the record of object {id} does not open: it was changed, belongs to another object, or was sealed under another root key"
    )]
    Authentication {
        /// The object.
        id: ObjectId,
    },
    /// More than a record may hold.
    #[error(
        "{length_bytes} bytes of metadata are more than the {METADATA_MAX_BYTES} that an object may have"
    )]
    TooLong {
        /// The length.
        length_bytes: usize,
    },
    /// The cryptographic library refused.
    #[error(transparent)]
    Crypto(#[from] strongroom_crypto::CryptoError),
    /// No protected memory.
    #[error(transparent)]
    Secret(#[from] strongroom_memory::secret::SecretError),
}

/// An opened record.
#[derive(Debug)]
pub struct OpenedRecord {
    /// Its kind.
    pub kind: RecordKind,
    /// Its generation, from 1.
    pub generation: u64,
    /// The object's metadata.
    pub metadata: Vec<u8>,
    /// Its secret, if it has one.
    pub material: SecretBytes,
}

/// The keys that seal and index all objects in the store.
pub struct Sealing {
    records: SecretBytes,
    names: SecretBytes,
}

impl Sealing {
    /// Derives the keys from the server's root key (HKDF-SHA256).
    ///
    /// # Errors
    ///
    /// [`SealingError::Crypto`] for an empty root or without protected memory.
    pub fn new(root: &SecretBytes) -> Result<Self, SealingError> {
        let derive = |purpose: &[u8]| hkdf_sha256(root, b"", purpose, KEY_BYTES);
        Ok(Self {
            records: derive(b"strongroom keyserver 1: records of managed objects")?,
            names: derive(b"strongroom keyserver 1: index of names")?,
        })
    }

    /// Seals one generation of an object.
    ///
    /// # Errors
    ///
    /// [`SealingError::TooLong`]; [`SealingError::Crypto`].
    pub fn seal(
        &self,
        id: ObjectId,
        kind: RecordKind,
        generation: u64,
        metadata: &[u8],
        material: Option<&SecretBytes>,
    ) -> Result<Vec<u8>, SealingError> {
        if metadata.len() > METADATA_MAX_BYTES {
            return Err(SealingError::TooLong { length_bytes: metadata.len() });
        }
        let material = material.map_or(&[][..], SecretBytes::expose);
        let mut plain = Zeroizing::new(Vec::with_capacity(LENGTH_BYTES + metadata.len() + material.len()));
        // METADATA_MAX_BYTES fits four bytes.
        plain.extend_from_slice(&(metadata.len() as u32).to_be_bytes());
        plain.extend_from_slice(metadata);
        plain.extend_from_slice(material);

        let nonce: [u8; NONCE_BYTES] = random()?;
        let mut record = Vec::with_capacity(HEADER_BYTES + NONCE_BYTES + plain.len() + TAG_BYTES);
        record.extend_from_slice(&[FORMAT, kind.byte()]);
        record.extend_from_slice(&generation.to_be_bytes());
        record.extend_from_slice(&nonce);
        let sealed_at = record.len();
        record.resize(sealed_at + plain.len() + TAG_BYTES, 0);
        let (ciphertext, tag) = record[sealed_at..].split_at_mut(plain.len());
        self.record_key(id)?
            .seal_out_of_place_scatter(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(associated_data(id, kind, generation)),
                &plain,
                ciphertext,
                &[],
                tag,
            )
            .map_err(|_| SealingError::Authentication { id })?;
        Ok(record)
    }

    /// Opens a record of `id`.
    ///
    /// # Errors
    ///
    /// [`SealingError::Format`], [`SealingError::Authentication`].
    pub fn open(&self, id: ObjectId, record: &[u8]) -> Result<OpenedRecord, SealingError> {
        let broken = || SealingError::Format { id };
        let (kind, generation) = header(record).ok_or_else(broken)?;
        let (nonce, sealed) = record[HEADER_BYTES..].split_first_chunk::<NONCE_BYTES>().ok_or_else(broken)?;
        if sealed.len() < TAG_BYTES {
            return Err(broken());
        }
        let mut plain = Zeroizing::new(sealed.to_vec());
        let opened = self.record_key(id)?.open_in_place(
            Nonce::assume_unique_for_key(*nonce),
            Aad::from(associated_data(id, kind, generation)),
            &mut plain,
        );
        let opened_bytes = opened.map_err(|_| SealingError::Authentication { id })?.len();

        plain.truncate(opened_bytes);
        let (length, content) = plain.split_first_chunk_mut::<LENGTH_BYTES>().ok_or_else(broken)?;
        let metadata_bytes = u32::from_be_bytes(*length) as usize;
        let (_, material) = content.split_at_mut_checked(metadata_bytes).ok_or_else(broken)?;
        // The secret is wiped where it was, and the metadata stay there.
        let material = SecretBytes::from_slice_and_wipe(material)?;
        let mut metadata = std::mem::take(&mut *plain);
        metadata.truncate(LENGTH_BYTES + metadata_bytes);
        metadata.drain(..LENGTH_BYTES);
        Ok(OpenedRecord { kind, generation, metadata, material })
    }

    /// The place of `text` in an index, which hides the text: equal texts have equal places only
    /// under the same root.
    ///
    /// # Errors
    ///
    /// [`SealingError::Crypto`].
    pub fn index_of(&self, text: &[u8]) -> Result<[u8; 32], SealingError> {
        Ok(hmac_sha256(&self.names, text)?)
    }

    fn record_key(&self, id: ObjectId) -> Result<LessSafeKey, SealingError> {
        UnboundKey::new(&AES_256_GCM, self.records.expose())
            .map(LessSafeKey::new)
            .map_err(|_| SealingError::Authentication { id })
    }
}

/// Kind and generation from a record's unauthenticated header.
pub(super) fn header(record: &[u8]) -> Option<(RecordKind, u64)> {
    let header = record.first_chunk::<HEADER_BYTES>()?;
    let kind = match (header[0], header[1]) {
        (FORMAT, 1) => RecordKind::Object,
        (FORMAT, 2) => RecordKind::Tombstone,
        _ => return None,
    };
    let generation = header.last_chunk::<8>()?;
    Some((kind, u64::from_be_bytes(*generation)))
}

fn associated_data(id: ObjectId, kind: RecordKind, generation: u64) -> [u8; 26] {
    let mut data = [0; 26];
    data[0] = FORMAT;
    data[1] = kind.byte();
    data[2..18].copy_from_slice(id.as_bytes());
    data[18..].copy_from_slice(&generation.to_be_bytes());
    data
}

fn random<const BYTES: usize>() -> Result<[u8; BYTES], SealingError> {
    let mut bytes = [0; BYTES];
    bytes.copy_from_slice(SecretBytes::random(BYTES)?.expose());
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealing() -> Sealing {
        Sealing::new(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
    }

    fn material() -> SecretBytes {
        SecretBytes::from_slice_and_wipe(&mut [0xa5; 32]).unwrap()
    }

    #[test]
    fn what_is_sealed_opens_and_shows_nothing() {
        let (sealing, id) = (sealing(), ObjectId::random());
        let record = sealing.seal(id, RecordKind::Object, 7, b"its metadata", Some(&material())).unwrap();
        assert!(!record.windows(4).any(|window| window == [0xa5; 4] || window == b"meta"));
        let opened = sealing.open(id, &record).unwrap();
        assert_eq!((opened.kind, opened.generation), (RecordKind::Object, 7));
        assert_eq!(opened.metadata, b"its metadata");
        assert_eq!(opened.material, material());
        let tombstone = sealing.seal(id, RecordKind::Tombstone, 8, b"", None).unwrap();
        assert!(sealing.open(id, &tombstone).unwrap().material.is_empty());
    }

    #[test]
    fn a_record_opens_only_as_what_it_is() {
        let (sealing, id) = (sealing(), ObjectId::random());
        let record = sealing.seal(id, RecordKind::Object, 7, b"its metadata", Some(&material())).unwrap();
        for bit in 0..record.len() * 8 {
            let mut changed = record.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(sealing.open(id, &changed).is_err(), "bit {bit}");
        }
        for length_bytes in 0..record.len() {
            assert!(sealing.open(id, &record[..length_bytes]).is_err());
        }
        assert!(matches!(
            sealing.open(ObjectId::random(), &record),
            Err(SealingError::Authentication { .. })
        ));
        let other_root = Sealing::new(&SecretBytes::random(32).unwrap()).unwrap();
        assert!(other_root.open(id, &record).is_err());
    }

    #[test]
    fn an_index_is_the_same_for_the_same_text_under_the_same_root() {
        let other_root = Sealing::new(&SecretBytes::random(32).unwrap()).unwrap();
        assert_eq!(sealing().index_of(b"name").unwrap(), sealing().index_of(b"name").unwrap());
        assert_ne!(sealing().index_of(b"name").unwrap(), sealing().index_of(b"eman").unwrap());
        assert_ne!(sealing().index_of(b"name").unwrap(), other_root.index_of(b"name").unwrap());
    }

    #[test]
    fn too_much_metadata_is_refused() {
        let refused =
            sealing().seal(ObjectId::random(), RecordKind::Object, 1, &vec![0; METADATA_MAX_BYTES + 1], None);
        assert!(matches!(refused, Err(SealingError::TooLong { .. })));
    }
}
