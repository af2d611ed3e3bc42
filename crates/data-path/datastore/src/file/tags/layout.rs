//! The sidecar, byte by byte.
//!
//! ```text
//! offset         content
//! 0              4096 zeroes
//! 4096           marks: sectors of bits ([`tagging`](crate::file::tagging)); the numbers are those of regions
//! 1 MiB          presence: sectors of bits; the numbers are those of pages of tags
//! 16 MiB         tags: that of block N, 16 bytes, at 16 MiB + 16 N
//! ```
//!
//! A region is 16 MiB of the layer. Marks and presence have room for the largest volume, so that a
//! tag's place never changes. A sector of marks that is zeroes marks nothing. All blocks of a page
//! of tags whose presence bit is not set are "nothing here", whatever lies in its place. In a page
//! whose bit is set, every block has a tag, even one that is "nothing here".
//!
//! In the former format ([`Layout::FORMER`]) there is no presence, the tags begin at 1 MiB, and a
//! tag of zeroes, or a hole, means "nothing here". An attacker who can write to the datastore can
//! forge that.

use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, MAX_VOLUME_BYTES};

use crate::file::tagging::{NUMBERS_PER_PAGE, PAGE_BYTES, TAG_BYTES, Tag};

/// Tags of one page.
pub const TAGS_PER_PAGE: u64 = (PAGE_BYTES / TAG_BYTES) as u64;

/// The bytes of data that one page of tags covers.
pub const PAGE_DATA_BYTES: u64 = TAGS_PER_PAGE * BLOCK_BYTES;

/// The unit in which the layer is marked. Larger regions are marked less often; smaller ones leave
/// less unsettled after a power cut.
pub const REGION_BYTES: u64 = 16 << 20;

/// Where the marks begin.
pub const MARKS_OFFSET: u64 = 4096;

/// Where the marks end; in the former format the tags begin here.
const MARKS_END: u64 = 1 << 20;

/// Where the presence of pages of tags begins.
const PRESENCE_OFFSET: u64 = MARKS_END;

/// Where the tags begin.
const TAGS_OFFSET: u64 = 16 << 20;

/// Pages of tags of one page of presence, which is how presence is written.
pub const PAGES_PER_PRESENCE_PAGE: u64 = NUMBERS_PER_PAGE;

/// Regions of one page of marks, which is how marks are written.
pub const REGIONS_PER_MARKS_PAGE: u64 = NUMBERS_PER_PAGE;

const _: () = assert!(
    (MAX_VOLUME_BYTES / REGION_BYTES).div_ceil(REGIONS_PER_MARKS_PAGE) * PAGE_BYTES as u64 + MARKS_OFFSET
        <= MARKS_END
);

const _: () = assert!(presence_offset(presence_pages(MAX_VOLUME_BYTES)) <= TAGS_OFFSET);

/// Where tags lie in a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    tags_offset: u64,
}

impl Layout {
    /// With presence.
    pub const CURRENT: Self = Self { tags_offset: TAGS_OFFSET };

    /// Without presence: absent blocks are not authenticated.
    pub const FORMER: Self = Self { tags_offset: MARKS_END };

    /// The layout of a sidecar whose absent blocks are authenticated by this epoch's key, or not at
    /// all.
    pub fn of(absence: Option<KeyEpoch>) -> Self {
        if absence.is_some() { Self::CURRENT } else { Self::FORMER }
    }

    /// The sidecar's length in bytes, for a layer of `layer_bytes` bytes.
    pub fn file_bytes(self, layer_bytes: u64) -> u64 {
        self.page_offset(layer_bytes.div_ceil(PAGE_DATA_BYTES))
    }

    /// The ranges of the sidecar that a layer of `layer_bytes` bytes may use.
    pub fn used(self, layer_bytes: u64) -> [std::ops::Range<u64>; 2] {
        let before = match self {
            Self::CURRENT => presence_offset(presence_pages(layer_bytes)),
            _ => self.tags_offset,
        };
        [0..before, self.tags_offset..self.file_bytes(layer_bytes)]
    }

    /// Where a page of tags lies.
    pub fn page_offset(self, page: u64) -> u64 {
        self.tags_offset + page * PAGE_BYTES as u64
    }

    /// The page of tags that lies at a place.
    pub fn page_at(self, offset: u64) -> u64 {
        (offset - self.tags_offset) / PAGE_BYTES as u64
    }

    /// The extent in the sidecar of these pages of tags.
    pub fn place_of_pages(self, pages: std::ops::Range<u64>) -> Extent {
        Extent::between(self.page_offset(pages.start), self.page_offset(pages.end))
    }
}

/// How many pages of presence a layer of `layer_bytes` bytes has.
pub const fn presence_pages(layer_bytes: u64) -> u64 {
    layer_bytes.div_ceil(PAGE_DATA_BYTES).div_ceil(PAGES_PER_PRESENCE_PAGE)
}

/// Where a page of presence lies.
pub const fn presence_offset(presence_page: u64) -> u64 {
    PRESENCE_OFFSET + presence_page * PAGE_BYTES as u64
}

/// Where a page of marks lies.
pub fn marks_offset(marks_page: u64) -> u64 {
    MARKS_OFFSET + marks_page * PAGE_BYTES as u64
}

/// The blocks of an extent.
pub fn blocks(extent: Extent) -> std::ops::Range<u64> {
    extent.offset() / BLOCK_BYTES..extent.end().div_ceil(BLOCK_BYTES)
}

/// The pages of tags that cover an extent.
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
        for (layout, first) in [(Layout::CURRENT, 16 << 20), (Layout::FORMER, 1 << 20)] {
            assert_eq!((layout.page_offset(0), layout.page_offset(3)), (first, first + 3 * 4096));
            assert_eq!(layout.page_at(first + 3 * 4096 + 1), 3);
            assert_eq!(layout.file_bytes(4096), first + 4096);
            assert_eq!(layout.file_bytes(MAX_VOLUME_BYTES), first + (256 << 30));
        }
        let one_page = PAGES_PER_PRESENCE_PAGE * PAGE_DATA_BYTES;
        assert_eq!((presence_pages(4096), presence_pages(one_page), presence_pages(one_page + 1)), (1, 1, 2));
        assert_eq!(presence_offset(1), (1 << 20) + 4096);
        let extent = Extent::between(PAGE_DATA_BYTES - 4096, PAGE_DATA_BYTES + 4096);
        assert_eq!((pages(extent), blocks(extent), regions(extent)), (0..2, 255..257, 0..1));
        assert_eq!(region_of(4095), 0);
        assert_eq!(region_of(4096), 1);
    }
}
