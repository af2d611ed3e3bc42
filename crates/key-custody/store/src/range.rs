//! Ranges of keys, in the order of their bytes, and pages of them.

use crate::entry::Entry;

/// The keys from `start` on and before `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key that may be in it.
    pub start: Vec<u8>,
    /// The first key that is not; `None` for no end.
    pub end: Option<Vec<u8>>,
}

impl KeyRange {
    /// Every key.
    pub fn all() -> Self {
        Self { start: Vec::new(), end: None }
    }

    /// Just this key.
    pub fn one(key: impl Into<Vec<u8>>) -> Self {
        let start = key.into();
        let end = Some(successor(&start));
        Self { start, end }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        // The next key without the prefix: increment the last byte below 255, and drop the bytes
        // after it.
        let kept = start.iter().rposition(|byte| *byte != u8::MAX);
        let end = kept.map(|last| {
            let mut end = start[..=last].to_vec();
            end[last] += 1;
            end
        });
        Self { start, end }
    }

    /// The keys from `start` on and before `end`.
    pub fn between(start: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self { start: start.into(), end: Some(end.into()) }
    }

    /// The part of the range after `key`.
    #[must_use]
    pub fn after(&self, key: &[u8]) -> Self {
        Self { start: successor(key).max(self.start.clone()), end: self.end.clone() }
    }

    /// Whether `key` is in it.
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.start.as_slice() && self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Whether no key can be in it.
    pub fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }
}

/// The least key greater than `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

/// Some entries of a range, in the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The unread rest of the range; `None` if there is none.
    pub rest: Option<KeyRange>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_its_last_byte_that_can_grows() {
        assert_eq!(KeyRange::prefix(*b"a/").end, Some(b"a0".to_vec()));
        assert_eq!(KeyRange::prefix(*b"a\xFF\xFF").end, Some(b"b".to_vec()));
        assert_eq!(KeyRange::prefix(*b"\xFF").end, None);
        assert_eq!(KeyRange::prefix(*b"").end, None);
    }

    #[test]
    fn one_key_is_alone_in_its_range() {
        let range = KeyRange::one(*b"k");
        assert!(range.contains(b"k"));
        assert!(!range.contains(b"k\0") && !range.contains(b"j\xFF"));
        assert!(range.after(b"k").is_empty());
    }
}
