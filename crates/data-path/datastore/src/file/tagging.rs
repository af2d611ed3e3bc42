//! Tags: their form, what they are bound to, and sectors of bits that have one.
//!
//! A sidecar stores facts about blocks as bits, in sectors of 512 bytes, the unit that a device
//! writes atomically. Each sector has its own tag:
//!
//! ```text
//! offset  bytes  content
//!      0     16  tag of the sector; zeroes if no bit is set, unless empty sectors are tagged too
//!     16    496  sector S: the bit of number 3968 S + n is bit n % 8 of byte n / 8
//! ```

use strongroom_crypto::CryptoError;
use strongroom_crypto::block_tag::{BLOCK_TAG_BYTES, BlockTagAlgorithm, BlockTagKey};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::{BLOCK_BYTES, KeyEpoch, LayerId, SECTOR_BYTES, VolumeId};

use super::open::Deks;

/// Length of a page, the unit in which sidecars are read, cached and written: devices handle it
/// best.
pub(super) const PAGE_BYTES: usize = BLOCK_BYTES as usize;

/// Length of a tag.
pub(super) const TAG_BYTES: usize = BLOCK_TAG_BYTES;

/// A tag as one number, so that two are compared in one step whatever their values.
pub(super) type Tag = u128;

/// In memory: "nothing here". The tag of a block is never zero.
pub(super) const NOTHING: Tag = 0;

/// How a sector without any bit set is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EmptySector {
    /// As zeroes. Anyone can forge it, which is harmless.
    Zeroes,
    /// With a tag, as any other.
    Tagged,
}

const SECTOR: usize = SECTOR_BYTES as usize;

/// Numbers of one sector.
pub(super) const NUMBERS_PER_SECTOR: u64 = ((SECTOR - TAG_BYTES) * 8) as u64;

pub(super) const SECTORS_PER_PAGE: u64 = PAGE_BYTES as u64 / SECTOR_BYTES;

/// Numbers of one page. A torn page is whole sectors, each of which has its own tag.
pub(super) const NUMBERS_PER_PAGE: u64 = NUMBERS_PER_SECTOR * SECTORS_PER_PAGE;

/// The volume and layer that a tag is bound to. They are part of a header that precedes the tagged
/// data and fills one block of SHA-256.
#[derive(Clone, Copy, Debug)]
pub(super) struct Binding {
    /// The volume.
    pub volume: VolumeId,
    /// The layer.
    pub layer: LayerId,
}

/// Length of a header.
pub(super) const HEADER_BYTES: usize = 64;

impl Binding {
    /// The header of a block's tag.
    pub fn of_block(&self, epoch: u32, block: u64) -> [u8; HEADER_BYTES] {
        self.header(b"strongroom block", epoch, block)
    }

    /// The header of the tag of a block that is "nothing here".
    pub fn of_nothing(&self, epoch: u32, block: u64) -> [u8; HEADER_BYTES] {
        self.header(b"strongroom empty", epoch, block)
    }

    /// The header of the tag of a sector of bits.
    pub fn of_sector(&self, purpose: &[u8; 16], sector: u64) -> [u8; HEADER_BYTES] {
        self.header(purpose, 0, sector)
    }

    fn header(&self, purpose: &[u8; 16], epoch: u32, place: u64) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[..16].copy_from_slice(purpose);
        header[16..32].copy_from_slice(self.volume.as_bytes());
        header[32..48].copy_from_slice(self.layer.as_bytes());
        header[48..52].copy_from_slice(&epoch.to_le_bytes());
        header[56..].copy_from_slice(&place.to_le_bytes());
        header
    }
}

/// Keys for tags, one per epoch, derived from the DEK that seals the epoch's blocks.
#[derive(Debug)]
pub(super) struct Tagger {
    /// By epoch, oldest first; not empty.
    keys: Vec<(KeyEpoch, BlockTagKey)>,
}

impl Tagger {
    /// Derives the keys; `None` if there is no DEK to derive from. `info` names purpose and
    /// algorithm: nothing else gets these keys.
    pub fn derive(
        deks: &Deks,
        algorithm: BlockTagAlgorithm,
        info: &[u8],
    ) -> Result<Option<Self>, CryptoError> {
        let derived = |dek| BlockTagKey::derive(algorithm, dek, info);
        let keys = deks.iter().map(|(epoch, dek)| Ok((*epoch, derived(dek)?)));
        let keys = keys.collect::<Result<Vec<_>, CryptoError>>()?;
        Ok((!keys.is_empty()).then_some(Self { keys }))
    }

    /// A publicly known key, for a clear volume: its tags show accidental damage, not tampering.
    pub fn without_a_key() -> Result<Self, CryptoError> {
        let algorithm = BlockTagAlgorithm::HmacSha256;
        let key = BlockTagKey::new(algorithm, &SecretBytes::zeroed(algorithm.key_bytes())?)?;
        Ok(Self { keys: vec![(KeyEpoch::CLEAR, key)] })
    }

    /// The key of an epoch.
    pub fn of(&self, epoch: KeyEpoch) -> Option<&BlockTagKey> {
        self.keys.iter().find(|(of, _)| *of == epoch).map(|(_, key)| key)
    }

    /// Tags the sectors of a page, whose bits are already filled in, under the key of `epoch`, or
    /// the newest one.
    pub fn tag_page(
        &self,
        epoch: Option<KeyEpoch>,
        header: impl Fn(u64) -> [u8; HEADER_BYTES],
        page_number: u64,
        page: &mut [u8],
        empty: EmptySector,
    ) -> Result<(), CryptoError> {
        let newest = || self.keys.last().map(|(_, key)| key);
        let Some(key) = epoch.and_then(|epoch| self.of(epoch)).or_else(newest) else { return Ok(()) };
        for (number, sector) in sectors_mut(page_number, page) {
            let (tag, bits) = sector.split_at_mut(TAG_BYTES);
            let says_nothing = empty == EmptySector::Zeroes && bits.iter().all(|byte| *byte == 0);
            let right = if says_nothing { 0 } else { of_something(key.tag(&header(number), bits)?) };
            tag.copy_from_slice(&right.to_le_bytes());
        }
        Ok(())
    }

    /// Reports each sector of a page: with its bits if one of the keys verifies it, and without if
    /// none does.
    pub fn verify_page(
        &self,
        header: impl Fn(u64) -> [u8; HEADER_BYTES],
        page_number: u64,
        page: &[u8],
        empty: EmptySector,
        mut report: impl FnMut(u64, Option<&[u8]>),
    ) -> Result<(), CryptoError> {
        for (number, sector) in (page_number * SECTORS_PER_PAGE..).zip(page.chunks_exact(SECTOR)) {
            let (tag, bits) = sector.split_at(TAG_BYTES);
            let tag = tag.first_chunk().map_or(0, |tag| Tag::from_le_bytes(*tag));
            if empty == EmptySector::Zeroes && tag == 0 && bits.iter().all(|byte| *byte == 0) {
                continue;
            }
            let mut matches = false;
            for (_, key) in &self.keys {
                matches |= of_something(key.tag(&header(number), bits)?) == tag;
            }
            report(number, matches.then_some(bits));
        }
        Ok(())
    }
}

/// The sectors of a page, mutable, with their numbers.
fn sectors_mut(page_number: u64, page: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    (page_number * SECTORS_PER_PAGE..).zip(page.chunks_exact_mut(SECTOR))
}

/// The bits of a page's sectors, mutable, each with the number of its first bit.
pub(super) fn bits_mut(page_number: u64, page: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    sectors_mut(page_number, page)
        .map(|(number, sector)| (number * NUMBERS_PER_SECTOR, &mut sector[TAG_BYTES..]))
}

/// The bits of a page's sectors, without verification.
pub(super) fn bits(page_number: u64, page: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let first = page_number * NUMBERS_PER_PAGE;
    (first..)
        .step_by(NUMBERS_PER_SECTOR as usize)
        .zip(page.chunks_exact(SECTOR))
        .map(|(first, sector)| (first, &sector[TAG_BYTES..]))
}

/// The tag of a block that is there: never zero. One in 2^128 would be.
pub(super) fn of_something(tag: [u8; 16]) -> Tag {
    Tag::from_le_bytes(tag).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSE: &[u8; 16] = b"strongroom marks";

    #[test]
    fn no_two_headers_are_alike() {
        let binding = Binding { volume: VolumeId::random(), layer: LayerId::random() };
        let other = Binding { volume: binding.volume, layer: LayerId::random() };
        let headers = [
            binding.of_block(1, 7),
            binding.of_block(2, 7),
            binding.of_block(1, 8),
            binding.of_nothing(1, 7),
            binding.of_nothing(2, 7),
            binding.of_sector(PURPOSE, 7),
            binding.of_sector(b"strongroom other", 7),
            other.of_block(1, 7),
        ];
        for (at, header) in headers.iter().enumerate() {
            assert!(!headers[..at].contains(header));
        }
    }

    #[test]
    fn a_sector_says_nothing_once_a_bit_of_it_is_changed() {
        let binding = Binding { volume: VolumeId::random(), layer: LayerId::random() };
        let header = |number| binding.of_sector(PURPOSE, number);
        let tagger = Tagger::without_a_key().unwrap();
        let mut page = vec![0; PAGE_BYTES];
        for (at, (_, bits)) in bits_mut(3, &mut page).enumerate().filter(|(at, _)| at % 2 == 0) {
            bits[at] = 0x10;
        }
        tagger.tag_page(None, header, 3, &mut page, EmptySector::Zeroes).unwrap();
        let verified = |page: &[u8], number: u64| {
            let mut found = Vec::new();
            tagger
                .verify_page(header, number, page, EmptySector::Zeroes, |sector, bits| {
                    found.push((sector, bits.is_some()));
                })
                .unwrap();
            found
        };
        assert_eq!(verified(&page, 3), [24, 26, 28, 30].map(|sector| (sector, true)));
        assert_eq!(verified(&page, 4), [32, 34, 36, 38].map(|sector| (sector, false)), "another place");
        page[2 * SECTOR + 500] ^= 1;
        page[5 * SECTOR] = 1;
        assert_eq!(verified(&page, 3), [(24, true), (26, false), (28, true), (29, false), (30, true)]);
        let firsts: Vec<u64> = bits(3, &page).map(|(first, _)| first).collect();
        assert_eq!((firsts[0], firsts[1], firsts.len()), (3 * NUMBERS_PER_PAGE, 25 * 3968, 8));
    }

    #[test]
    fn zeroes_are_no_sector_where_an_empty_one_is_tagged() {
        let binding = Binding { volume: VolumeId::random(), layer: LayerId::random() };
        let header = |number| binding.of_sector(PURPOSE, number);
        let tagger = Tagger::without_a_key().unwrap();
        let mut page = vec![0; PAGE_BYTES];
        tagger.tag_page(None, header, 0, &mut page, EmptySector::Tagged).unwrap();
        page[3 * SECTOR..4 * SECTOR].fill(0);
        let mut refused = Vec::new();
        let report = |sector, bits: Option<&[u8]>| refused.extend(bits.is_none().then_some(sector));
        tagger.verify_page(header, 0, &page, EmptySector::Tagged, report).unwrap();
        assert_eq!(refused, [3]);
    }
}
