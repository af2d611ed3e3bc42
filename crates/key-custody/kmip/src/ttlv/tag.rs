//! Tags of fields.

use std::fmt;

/// The tag of a field: three bytes. `0x42….` are KMIP's own, `0x54….` are left to vendors.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tag(u32);

impl Tag {
    /// The largest number of a tag.
    pub const MAX: u32 = 0xFF_FFFF;

    /// The first tag of the range that KMIP leaves to vendors.
    pub const EXTENSIONS_FIRST: u32 = 0x54_0000;

    /// A tag of the KMIP specification or of this program, checked at compile time.
    pub(crate) const fn of(number: u32) -> Self {
        assert!(number <= Self::MAX);
        Self(number)
    }

    /// The tag with that number, if the number fits into three bytes.
    pub fn from_number(number: u32) -> Option<Self> {
        (number <= Self::MAX).then_some(Self(number))
    }

    /// The number of the tag, at most [`Tag::MAX`].
    pub fn number(self) -> u32 {
        self.0
    }

    /// The tag of the first three bytes of a field.
    pub(super) fn from_bytes(bytes: [u8; 3]) -> Self {
        let [high, middle, low] = bytes;
        Self(u32::from_be_bytes([0, high, middle, low]))
    }

    /// The three bytes of the tag.
    pub(super) fn to_bytes(self) -> [u8; 3] {
        let [_, high, middle, low] = self.0.to_be_bytes();
        [high, middle, low]
    }
}

impl fmt::Display for Tag {
    /// The name in the specification, or the number.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => formatter.write_str(name),
            None => write!(formatter, "0x{:06X}", self.0),
        }
    }
}

impl fmt::Debug for Tag {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Makes the constants of [`Tag`] and the two directions of their names.
macro_rules! tags {
    ($($constant:ident = $number:literal $name:literal,)*) => {
        impl Tag {
            $(
                #[doc = concat!("`", $name, "`")]
                pub const $constant: Self = Self::of($number);
            )*

            /// The name that the specification gives this tag, as the OASIS XML encoding spells it.
            pub fn name(self) -> Option<&'static str> {
                match self.number() {
                    $($number => Some($name),)*
                    _ => None,
                }
            }

            /// The tag that the OASIS XML encoding spells so.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$constant),)*
                    _ => None,
                }
            }
        }
    };
}
pub(super) use tags;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_lead_back_to_each_other() {
        let named: Vec<Tag> =
            (0x42_0000..0x42_0200).filter_map(Tag::from_number).filter(|tag| tag.name().is_some()).collect();
        assert_eq!(named.len(), 0x124, "KMIP 1.4 has 0x420001 to 0x420124");
        for tag in named {
            assert_eq!(Tag::from_name(tag.name().unwrap()), Some(tag));
            assert_eq!(Tag::from_bytes(tag.to_bytes()), tag);
        }
        assert_eq!(Tag::BATCH_ITEM.number(), 0x42_000F);
        assert_eq!(Tag::from_name("NeverExtractable").map(Tag::number), Some(0x42_0123));
    }

    #[test]
    fn a_tag_without_a_name_is_shown_by_its_number() {
        assert_eq!(Tag::from_number(0x54_0001).unwrap().to_string(), "0x540001");
        assert_eq!(format!("{:?}", Tag::KEY_BLOCK), "KeyBlock");
        assert_eq!(Tag::from_number(0x100_0000), None);
    }
}
