//! The sidecar, byte by byte.
//!
//! ```text
//! offset         content
//! 0              4096 zeroes
//! 4096           marks: sectors of bits ([`tagging`](crate::file::tagging)); the numbers are those of regions
//! 1 MiB          tags: that of block N, 16 bytes, at 1 MiB + 16 N
//! ```
//!
//! A region is 16 MiB of the layer. The marks have room for the largest volume, so that a tag's place never changes. A
//! sector of zeroes marks nothing; a tag of zeroes says "nothing here", and so does a hole.

use strongroom_types::{BLOCK_BYTES, Extent, MAX_VOLUME_BYTES};

use crate::file::tagging::{NUMBERS_PER_PAGE, PAGE_BYTES, TAG_BYTES, Tag};

/// Tags of one page.
pub const TAGS_PER_PAGE: u64 = (PAGE_BYTES / TAG_BYTES) as u64;

/// What one page of tags vouches for.
pub const PAGE_DATA_BYTES: u64 = TAGS_PER_PAGE * BLOCK_BYTES;

/// What is marked as a whole. Larger regions are marked less often, smaller ones leave less unsettled after a power
/// cut.
pub const REGION_BYTES: u64 = 16 << 20;

/// Where the marks begin.
pub const MARKS_OFFSET: u64 = 4096;

/// Where the tags begin.
pub const TAGS_OFFSET: u64 = 1 << 20;

/// Regions of one page of marks, which is how marks are written.
pub const REGIONS_PER_MARKS_PAGE: u64 = NUMBERS_PER_PAGE;

const _: () = assert!(
    (MAX_VOLUME_BYTES / REGION_BYTES).div_ceil(REGIONS_PER_MARKS_PAGE) * PAGE_BYTES as u64 + MARKS_OFFSET
        <= TAGS_OFFSET
);

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
}
