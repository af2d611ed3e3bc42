//! The keys of tags: one for each epoch, derived from what seals the epoch's blocks.

use std::sync::Arc;

use strongroom_crypto::CryptoError;
use strongroom_types::{BLOCK_BYTES, KeyEpoch};

use crate::file::Deks;
use crate::file::tagging::{Binding, Tag, Tagger, of_something};

/// HKDF's info: another purpose never gets this key.
const INFO: &[u8] = b"strongroom block tag key v1";

/// What the header of a sector of marks begins with.
const MARKS: &[u8; 16] = b"strongroom marks";

/// The keys that tag a layer's blocks. Clones share them.
#[derive(Clone, Debug)]
pub struct TagKeys {
    tagger: Arc<Tagger>,
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
        Ok(Tagger::derive(deks, INFO)?.map(|tagger| Self { tagger: Arc::new(tagger) }))
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
                Some(epoch) => match self.tagger.of(*epoch) {
                    Some(key) => of_something(key.tag(&binding.of_block(epoch.number(), number), block)?),
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
        self.tagger.tag_page(|sector| binding.of_sector(MARKS, sector), marks_page, page)
    }

    /// Reports the bits of each sector of a page of marks, or that it says nothing.
    pub(super) fn verify_marks(
        &self,
        binding: &Binding,
        marks_page: u64,
        page: &[u8],
        report: impl FnMut(u64, Option<&[u8]>),
    ) -> Result<(), CryptoError> {
        self.tagger.verify_page(|sector| binding.of_sector(MARKS, sector), marks_page, page, report)
    }
}
