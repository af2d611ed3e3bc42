//! The keys of tags: one for each epoch, derived from what seals the epoch's blocks.

use strongroom_crypto::CryptoError;
use strongroom_crypto::block_tag::{BLOCK_TAG_KEY_BYTES, BlockTagKey};
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_types::{BLOCK_BYTES, KeyEpoch};

use super::layout::{Binding, Tag, marks_sectors, marks_sectors_mut, set_tag_at, split_marks};
use crate::file::Deks;

/// HKDF's info: another purpose never gets this key.
const INFO: &[u8] = b"strongroom block tag key v1";

/// The keys that tag a layer's blocks.
#[derive(Debug)]
pub struct TagKeys {
    /// By epoch, oldest first; not empty.
    keys: Vec<(KeyEpoch, BlockTagKey)>,
}

/// A block that no key here has sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnknownEpoch(pub KeyEpoch);

impl TagKeys {
    /// Derives them; `None` where there is no DEK to derive from: a clear volume has no tags.
    ///
    /// # Errors
    /// What the ciphers say, for want of memory.
    pub fn derive(deks: &Deks) -> Result<Option<Self>, CryptoError> {
        let keys = deks.iter().map(|(epoch, dek)| {
            let key = hkdf_sha256(dek, &[], INFO, BLOCK_TAG_KEY_BYTES)?;
            Ok((*epoch, BlockTagKey::new(&key)?))
        });
        let keys = keys.collect::<Result<Vec<_>, CryptoError>>()?;
        Ok((!keys.is_empty()).then_some(Self { keys }))
    }

    /// Computes the tag that each block of `bytes` must have; the first block's number is `first`.
    pub(super) fn tags(
        &self,
        binding: &Binding,
        first: u64,
        bytes: &[u8],
        seals: &[Option<KeyEpoch>],
        tags: &mut Vec<Tag>,
    ) -> Result<Result<(), UnknownEpoch>, CryptoError> {
        tags.clear();
        for ((block, seal), number) in bytes.chunks(BLOCK_BYTES as usize).zip(seals).zip(first..) {
            tags.push(match seal {
                None => 0,
                // Written as zeroes is nothing there, whatever the seal says. Ciphertext is told by its first bytes.
                Some(_) if block.iter().all(|byte| *byte == 0) => 0,
                Some(epoch) => match self.keys.iter().find(|(of, _)| of == epoch) {
                    Some((_, key)) => {
                        of_something(key.tag(&binding.of_block(epoch.number(), number), block)?)
                    }
                    None => return Ok(Err(UnknownEpoch(*epoch))),
                },
            });
        }
        Ok(Ok(()))
    }

    /// Tags the sectors of a page of marks, whose bits are there.
    pub(super) fn tag_marks(
        &self,
        binding: &Binding,
        marks_page: u64,
        page: &mut [u8],
    ) -> Result<(), CryptoError> {
        let Some((_, key)) = self.keys.last() else { return Ok(()) };
        for (number, sector) in marks_sectors_mut(marks_page, page) {
            let (tag, bits) = split_marks(sector);
            let is_empty = bits.iter().all(|byte| *byte == 0);
            set_tag_at(
                tag,
                0,
                if is_empty { 0 } else { of_something(key.tag(&binding.of_marks(number), bits)?) },
            );
        }
        Ok(())
    }

    /// Reports the bits of each sector of a page of marks that one of the keys has tagged, and says how many others there are.
    pub(super) fn verify_marks(
        &self,
        binding: &Binding,
        marks_page: u64,
        page: &[u8],
        mut report: impl FnMut(u64, &[u8]),
    ) -> Result<usize, CryptoError> {
        let mut refused = 0;
        for (number, tag, bits) in marks_sectors(marks_page, page) {
            if tag == 0 && bits.iter().all(|byte| *byte == 0) {
                continue;
            }
            let mut matches = false;
            for (_, key) in &self.keys {
                matches |= of_something(key.tag(&binding.of_marks(number), bits)?) == tag;
            }
            if matches {
                report(number, bits);
            } else {
                refused += 1;
            }
        }
        Ok(refused)
    }
}

/// The tag of what is not nothing: never zero. One in 2^128 would be.
fn of_something(tag: [u8; 16]) -> Tag {
    Tag::from_le_bytes(tag).max(1)
}
