//! Reading: one walk that checks everything, then fields that are known to be well formed.

use super::{DateTime, Interval, Limits, Tag, TtlvError, Type};

/// Tag, type and length in front of every value.
pub const HEADER_BYTES: usize = 8;

/// The length in bytes, including the header, of the message that starts with `header`. A transport
/// reads the header first and then knows how much to wait for.
///
/// # Errors
/// [`TtlvError::NotTheMessage`] if it is not a structure of that tag, [`TtlvError::MessageTooLong`]
/// above the limit; both before memory is allocated.
pub fn message_length_bytes(
    header: [u8; HEADER_BYTES],
    expected: Tag,
    limits: &Limits,
) -> Result<usize, TtlvError> {
    let (tag, kind, content_bytes) = split_header(header)?;
    if tag != expected || kind != Type::Structure {
        return Err(TtlvError::NotTheMessage { expected, found: tag, kind });
    }
    let length_bytes = content_bytes.saturating_add(HEADER_BYTES);
    if length_bytes > limits.message_bytes {
        return Err(TtlvError::MessageTooLong { length_bytes, limit_bytes: limits.message_bytes });
    }
    Ok(length_bytes)
}

fn split_header(header: [u8; HEADER_BYTES]) -> Result<(Tag, Type, usize), TtlvError> {
    let [high, middle, low, kind, length @ ..] = header;
    let tag = Tag::from_bytes([high, middle, low]);
    let known = Type::from_number(kind).ok_or(TtlvError::UnknownType { tag, kind })?;
    let length_bytes = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    Ok((tag, known, length_bytes))
}

/// The content of a structure, borrowed from bytes that have been checked through all levels.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Structure<'a> {
    tag: Tag,
    content: &'a [u8],
}

impl<'a> Structure<'a> {
    /// Parses `bytes` as exactly one structure.
    ///
    /// # Errors
    /// [`TtlvError`].
    pub fn parse(bytes: &'a [u8], expected: Tag, limits: &Limits) -> Result<Self, TtlvError> {
        let header = *bytes
            .first_chunk::<HEADER_BYTES>()
            .ok_or(TtlvError::Truncated { needed_bytes: HEADER_BYTES, available_bytes: bytes.len() })?;
        message_length_bytes(header, expected, limits)?;
        let mut walk = Walk { limits, items: 0 };
        let behind = walk.field(bytes, 1)?;
        if !behind.is_empty() {
            return Err(TtlvError::TrailingBytes(behind.len()));
        }
        Ok(Self { tag: expected, content: bytes.get(HEADER_BYTES..).unwrap_or_default() })
    }

    /// The structure's tag.
    pub fn tag(self) -> Tag {
        self.tag
    }

    /// The encoded fields, without the structure's own header.
    pub fn content(self) -> &'a [u8] {
        self.content
    }

    /// The fields, in their order.
    pub fn fields(self) -> impl Iterator<Item = Field<'a>> {
        let mut rest = self.content;
        std::iter::from_fn(move || {
            let (field, behind) = Field::split(rest)?;
            rest = behind;
            Some(field)
        })
    }
}

/// A field that is known to be well formed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Field<'a> {
    tag: Tag,
    kind: Type,
    value: &'a [u8],
}

impl<'a> Field<'a> {
    /// The field's tag.
    pub fn tag(self) -> Tag {
        self.tag
    }

    /// Its type.
    pub fn kind(self) -> Type {
        self.kind
    }

    /// Splits the first field off checked bytes. Returns `None` if there is no whole field.
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let (tag, kind, length_bytes) = split_header(*header).ok()?;
        let value = rest.get(..length_bytes)?;
        let behind = rest.get(length_bytes.checked_next_multiple_of(8)?..)?;
        Some((Self { tag, kind, value }, behind))
    }

    /// The structure, if it is one.
    pub fn structure(self) -> Option<Structure<'a>> {
        (self.kind == Type::Structure).then_some(Structure { tag: self.tag, content: self.value })
    }

    /// The integer, if it is one.
    pub fn integer(self) -> Option<i32> {
        self.fixed(Type::Integer).map(i32::from_be_bytes)
    }

    /// The long integer, if it is one.
    pub fn long_integer(self) -> Option<i64> {
        self.fixed(Type::LongInteger).map(i64::from_be_bytes)
    }

    /// The bytes of the big integer, if it is one.
    pub fn big_integer(self) -> Option<&'a [u8]> {
        (self.kind == Type::BigInteger).then_some(self.value)
    }

    /// The number of the enumeration, if it is one.
    pub fn enumeration(self) -> Option<u32> {
        self.fixed(Type::Enumeration).map(u32::from_be_bytes)
    }

    /// The boolean, if it is one.
    pub fn boolean(self) -> Option<bool> {
        self.fixed(Type::Boolean).map(|bytes| u64::from_be_bytes(bytes) == 1)
    }

    /// The text, if it is one.
    pub fn text(self) -> Option<&'a str> {
        (self.kind == Type::TextString).then(|| std::str::from_utf8(self.value).ok()).flatten()
    }

    /// The bytes, if it is a byte string.
    pub fn bytes(self) -> Option<&'a [u8]> {
        (self.kind == Type::ByteString).then_some(self.value)
    }

    /// The time, if it is one.
    pub fn date_time(self) -> Option<DateTime> {
        self.fixed(Type::DateTime).map(|bytes| DateTime(i64::from_be_bytes(bytes)))
    }

    /// The interval, if it is one.
    pub fn interval(self) -> Option<Interval> {
        self.fixed(Type::Interval).map(|bytes| Interval(u32::from_be_bytes(bytes)))
    }

    fn fixed<const LENGTH_BYTES: usize>(self, kind: Type) -> Option<[u8; LENGTH_BYTES]> {
        if self.kind != kind {
            return None;
        }
        self.value.try_into().ok()
    }
}

/// The one walk that checks a message.
struct Walk<'l> {
    limits: &'l Limits,
    items: usize,
}

impl Walk<'_> {
    /// Checks the first field of `bytes` and returns the bytes behind its padding.
    fn field<'a>(&mut self, bytes: &'a [u8], depth: usize) -> Result<&'a [u8], TtlvError> {
        let Some((header, rest)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(TtlvError::Truncated { needed_bytes: HEADER_BYTES, available_bytes: bytes.len() });
        };
        let (tag, kind, length_bytes) = split_header(*header)?;
        self.items += 1;
        if self.items > self.limits.items {
            return Err(TtlvError::TooManyItems { limit: self.limits.items });
        }
        self.check_length(tag, kind, length_bytes)?;
        let truncated = || TtlvError::Truncated { needed_bytes: length_bytes, available_bytes: rest.len() };
        let (value, behind) = rest.split_at_checked(length_bytes).ok_or_else(truncated)?;
        let padding_bytes = length_bytes.next_multiple_of(8) - length_bytes;
        let (padding, behind) = behind.split_at_checked(padding_bytes).ok_or_else(truncated)?;
        if padding.iter().any(|&byte| byte != 0) {
            return Err(TtlvError::Padding(tag));
        }
        self.check_value(tag, kind, value, depth)?;
        Ok(behind)
    }

    fn check_length(&self, tag: Tag, kind: Type, length_bytes: usize) -> Result<(), TtlvError> {
        let possible = match kind.fixed_length_bytes() {
            Some(fixed_bytes) => length_bytes == fixed_bytes,
            // A structure holds whole fields, and each is a multiple of eight bytes long.
            None if matches!(kind, Type::Structure | Type::BigInteger) => length_bytes.is_multiple_of(8),
            None => true,
        };
        if !possible || (kind == Type::BigInteger && length_bytes == 0) {
            return Err(TtlvError::Length { tag, kind, length_bytes });
        }
        let limit_bytes = match kind {
            Type::TextString => self.limits.text_bytes,
            Type::BigInteger => self.limits.big_integer_bytes,
            _ => self.limits.message_bytes,
        };
        if length_bytes > limit_bytes {
            return Err(TtlvError::ValueTooLong { tag, length_bytes, limit_bytes });
        }
        Ok(())
    }

    fn check_value(&mut self, tag: Tag, kind: Type, value: &[u8], depth: usize) -> Result<(), TtlvError> {
        match kind {
            Type::Structure => {
                if depth > self.limits.depth {
                    return Err(TtlvError::TooDeep { limit: self.limits.depth });
                }
                let mut rest = value;
                while !rest.is_empty() {
                    rest = self.field(rest, depth + 1)?;
                }
            }
            Type::Boolean if !matches!(value, [0, 0, 0, 0, 0, 0, 0, 0 | 1]) => {
                return Err(TtlvError::Boolean(tag));
            }
            Type::TextString if std::str::from_utf8(value).is_err() => return Err(TtlvError::Text(tag)),
            _ => {}
        }
        Ok(())
    }
}
