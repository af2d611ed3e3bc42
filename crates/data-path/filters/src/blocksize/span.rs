//! How an extent lies on blocks.

use strongroom_types::{BLOCK_BYTES, Extent};

/// An extent, taken apart into the blocks that it covers in part and those that it covers whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// All blocks that it touches.
    pub widened: Extent,
    /// The first block, if the extent starts within it. It may end within it too.
    pub head: Option<Extent>,
    /// The blocks covered whole; may be empty.
    pub middle: Extent,
    /// The last block, if the extent ends within it, unless that is `head`.
    pub tail: Option<Extent>,
}

impl Span {
    /// Takes apart an extent that is not empty.
    pub fn of(extent: Extent) -> Self {
        let widened = extent.widened_to(BLOCK_BYTES);
        let first = Extent::between(widened.offset(), widened.offset() + BLOCK_BYTES);
        let last = Extent::between(widened.end() - BLOCK_BYTES, widened.end());
        let head = (extent.offset() > widened.offset()).then_some(first);
        let tail = (extent.end() < widened.end() && head != Some(last)).then_some(last);
        Self { widened, head, middle: extent.narrowed_to(BLOCK_BYTES), tail }
    }

    /// Whether all of it lies in one block.
    pub fn is_one_block(&self) -> bool {
        self.widened.length() == BLOCK_BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_cover_every_block_once() {
        let edges = [0, 1, 511, 512, 4095, 4096, 4097, 8191, 8192, 8193, 12_288, 16_000];
        for start in edges {
            for end in edges.into_iter().filter(|end| *end > start) {
                let extent = Extent::between(start, end);
                let span = Span::of(extent);
                let parts = [span.head.unwrap_or_default(), span.middle, span.tail.unwrap_or_default()];
                let bytes: u64 = parts.iter().map(|part| part.length()).sum();
                assert_eq!(bytes, span.widened.length(), "{extent:?} {span:?}");
                assert!(parts.iter().all(|part| part.is_empty() || span.widened.contains(*part)));
                assert!(extent.contains(span.middle) || span.middle.is_empty(), "{extent:?} {span:?}");
                let aligned = extent.is_aligned_to(BLOCK_BYTES);
                assert_eq!(aligned, span.head.is_none() && span.tail.is_none());
            }
        }
    }
}
