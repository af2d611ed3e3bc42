//! The sidecar, byte by byte.
//!
//! ```text
//! offset         content
//! 0              4096 zeroes
//! 4096           marks: sectors of 512 bytes; sector S says which of the regions 3968 S .. 3968 (S+1) are marked
//!     0    16      tag of the sector
//!    16   496      region 3968 S + n is marked: bit n % 8 of byte n / 8
//! 1 MiB          tags: that of block N, 16 bytes, at 1 MiB + 16 N
//! ```
//!
//! A region is 16 MiB of the layer. The marks have room for the largest volume, so that a tag's place never changes. A sector
//! of zeroes marks nothing; a tag of zeroes says "nothing here", and so does a hole.

use strongroom_types::{BLOCK_BYTES, Extent, LayerId, MAX_VOLUME_BYTES, SECTOR_BYTES, VolumeId};

/// Length of a page, in which tags are read, kept and written: what a device writes best.
pub const PAGE_BYTES: usize = BLOCK_BYTES as usize;

/// Length of a tag.
pub const TAG_BYTES: usize = strongroom_crypto::block_tag::BLOCK_TAG_BYTES;

/// Tags of one page.
pub const TAGS_PER_PAGE: u64 = (PAGE_BYTES / TAG_BYTES) as u64;

/// What one page of tags vouches for.
pub const PAGE_DATA_BYTES: u64 = TAGS_PER_PAGE * BLOCK_BYTES;

/// What is marked as a whole. Larger regions are marked less often, smaller ones leave less unsettled after a power cut.
pub const REGION_BYTES: u64 = 16 << 20;

/// Where the marks begin.
pub const MARKS_OFFSET: u64 = 4096;

/// Where the tags begin.
pub const TAGS_OFFSET: u64 = 1 << 20;

const SECTOR: usize = SECTOR_BYTES as usize;

/// Regions of one sector of marks.
pub const REGIONS_PER_SECTOR: u64 = ((SECTOR - TAG_BYTES) * 8) as u64;

const SECTORS_PER_PAGE: u64 = PAGE_BYTES as u64 / SECTOR_BYTES;

/// Regions of one page of marks, which is how marks are written. A torn page is whole sectors, each of which has its own tag.
pub const REGIONS_PER_MARKS_PAGE: u64 = REGIONS_PER_SECTOR * SECTORS_PER_PAGE;

const _: () = assert!(
    (MAX_VOLUME_BYTES / REGION_BYTES).div_ceil(REGIONS_PER_MARKS_PAGE) * PAGE_BYTES as u64 + MARKS_OFFSET
        <= TAGS_OFFSET
);

/// A tag, so that two are compared in one step whatever they hold. Zero: nothing here.
pub type Tag = u128;

/// The sidecar's length for a layer of so many bytes.
pub fn file_bytes(layer_bytes: u64) -> u64 {
    TAGS_OFFSET + layer_bytes.div_ceil(PAGE_DATA_BYTES) * PAGE_BYTES as u64
}

/// Where a page of tags lies.
pub fn page_offset(page: u64) -> u64 {
    TAGS_OFFSET + page * PAGE_BYTES as u64
}

/// Where a page of marks lies.
pub fn marks_offset(marks_page: u64) -> u64 {
    MARKS_OFFSET + marks_page * PAGE_BYTES as u64
}

/// The blocks of an extent.
pub fn blocks(extent: Extent) -> std::ops::Range<u64> {
    extent.offset() / BLOCK_BYTES..extent.end().div_ceil(BLOCK_BYTES)
}

/// The pages whose tags vouch for an extent.
pub fn pages(extent: Extent) -> std::ops::Range<u64> {
    extent.offset() / PAGE_DATA_BYTES..extent.end().div_ceil(PAGE_DATA_BYTES)
}

/// The regions that an extent touches.
pub fn regions(extent: Extent) -> std::ops::Range<u64> {
    extent.offset() / REGION_BYTES..extent.end().div_ceil(REGION_BYTES)
}

/// The region of a block.
pub fn region_of(block: u64) -> u64 {
    block * BLOCK_BYTES / REGION_BYTES
}

/// The tag at a place in a page.
pub fn tag_at(page: &[u8], at: usize) -> Tag {
    let (tags, _) = page.as_chunks::<TAG_BYTES>();
    tags.get(at).map_or(0, |tag| Tag::from_le_bytes(*tag))
}

/// Sets the tag at a place in a page.
pub fn set_tag_at(page: &mut [u8], at: usize, tag: Tag) {
    let (tags, _) = page.as_chunks_mut::<TAG_BYTES>();
    if let Some(place) = tags.get_mut(at) {
        *place = tag.to_le_bytes();
    }
}

/// What a tag is bound to. It stands before what is tagged, and fills one block of SHA-256.
#[derive(Clone, Copy, Debug)]
pub struct Binding {
    /// The volume.
    pub volume: VolumeId,
    /// The layer.
    pub layer: LayerId,
}

/// Length of a header.
pub const HEADER_BYTES: usize = 64;

impl Binding {
    /// The header of a block's tag.
    pub fn of_block(&self, epoch: u32, block: u64) -> [u8; HEADER_BYTES] {
        self.header(b"strongroom block", epoch, block)
    }

    /// The header of the tag of a sector of marks.
    pub fn of_marks(&self, sector: u64) -> [u8; HEADER_BYTES] {
        self.header(b"strongroom marks", 0, sector)
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

/// The sectors of a page of marks: the number of each, its tag, and its bits.
pub fn marks_sectors(marks_page: u64, page: &[u8]) -> impl Iterator<Item = (u64, Tag, &[u8])> {
    (marks_page * SECTORS_PER_PAGE..).zip(page.chunks_exact(SECTOR)).map(|(number, sector)| {
        let (tag, bits) = sector.split_at(TAG_BYTES);
        (number, tag_at(tag, 0), bits)
    })
}

/// The same, to be filled.
pub fn marks_sectors_mut(marks_page: u64, page: &mut [u8]) -> impl Iterator<Item = (u64, &mut [u8])> {
    (marks_page * SECTORS_PER_PAGE..).zip(page.chunks_exact_mut(SECTOR))
}

/// Splits a sector of marks in the place of its tag and its bits.
pub fn split_marks(sector: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    sector.split_at_mut(TAG_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_the_first_and_the_last() {
        assert_eq!((page_offset(0), page_offset(3)), (1 << 20, (1 << 20) + 3 * 4096));
        assert_eq!(file_bytes(4096), (1 << 20) + 4096);
        assert_eq!(file_bytes(MAX_VOLUME_BYTES), (1 << 20) + (256 << 30));
        let extent = Extent::between(PAGE_DATA_BYTES - 4096, PAGE_DATA_BYTES + 4096);
        assert_eq!((pages(extent), blocks(extent), regions(extent)), (0..2, 255..257, 0..1));
        assert_eq!(region_of(4095), 0);
        assert_eq!(region_of(4096), 1);
    }

    #[test]
    fn no_two_headers_are_alike() {
        let binding = Binding { volume: VolumeId::random(), layer: LayerId::random() };
        let other = Binding { volume: binding.volume, layer: LayerId::random() };
        let headers = [
            binding.of_block(1, 7),
            binding.of_block(2, 7),
            binding.of_block(1, 8),
            binding.of_marks(7),
            other.of_block(1, 7),
        ];
        for (at, header) in headers.iter().enumerate() {
            assert!(!headers[..at].contains(header));
        }
    }
}
