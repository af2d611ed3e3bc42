//! Writing: once to count, once into a buffer of exactly that size.

use zeroize::Zeroizing;

use super::{DateTime, Interval, Tag, Type};

/// Encodes the fields that `write` writes into a buffer that never grows, because a growing buffer
/// would leave copies of keys in freed memory. `write` is called twice and must write the same both
/// times.
pub fn write_exactly(write: impl Fn(&mut Writer)) -> Zeroizing<Vec<u8>> {
    let mut counting = Writer { sink: Sink::Count(0) };
    write(&mut counting);
    let length_bytes = counting.written_bytes();
    let mut writer = Writer { sink: Sink::Buffer(Zeroizing::new(Vec::with_capacity(length_bytes))) };
    write(&mut writer);
    match writer.sink {
        Sink::Buffer(buffer) => buffer,
        Sink::Count(_) => Zeroizing::default(),
    }
}

/// The destination of fields; see [`write_exactly`].
pub struct Writer {
    sink: Sink,
}

enum Sink {
    Count(usize),
    Buffer(Zeroizing<Vec<u8>>),
}

impl Writer {
    /// A structure of the fields that `fields` writes.
    pub fn structure(&mut self, tag: Tag, fields: impl FnOnce(&mut Self)) {
        self.header(tag, Type::Structure, 0);
        let content_starts_at = self.written_bytes();
        fields(self);
        let content_bytes = self.written_bytes() - content_starts_at;
        if let Sink::Buffer(buffer) = &mut self.sink
            && let Some(length) = buffer.get_mut(content_starts_at - 4..content_starts_at)
        {
            length.copy_from_slice(&length_on_the_wire(content_bytes));
        }
    }

    /// Encoded fields, as [`Structure::content`](super::Structure::content) gave them.
    pub fn encoded(&mut self, fields: &[u8]) {
        self.put(fields);
    }

    /// An integer.
    pub fn integer(&mut self, tag: Tag, value: i32) {
        self.field(tag, Type::Integer, &value.to_be_bytes());
    }

    /// A long integer.
    pub fn long_integer(&mut self, tag: Tag, value: i64) {
        self.field(tag, Type::LongInteger, &value.to_be_bytes());
    }

    /// A big integer, as [`BigInteger::expose`](super::BigInteger::expose) gives its bytes.
    pub fn big_integer(&mut self, tag: Tag, value: &[u8]) {
        self.field(tag, Type::BigInteger, value);
    }

    /// An enumeration.
    pub fn enumeration(&mut self, tag: Tag, number: u32) {
        self.field(tag, Type::Enumeration, &number.to_be_bytes());
    }

    /// A boolean.
    pub fn boolean(&mut self, tag: Tag, value: bool) {
        self.field(tag, Type::Boolean, &u64::from(value).to_be_bytes());
    }

    /// A text string.
    pub fn text(&mut self, tag: Tag, value: &str) {
        self.field(tag, Type::TextString, value.as_bytes());
    }

    /// A byte string.
    pub fn bytes(&mut self, tag: Tag, value: &[u8]) {
        self.field(tag, Type::ByteString, value);
    }

    /// A time.
    pub fn date_time(&mut self, tag: Tag, value: DateTime) {
        self.field(tag, Type::DateTime, &value.0.to_be_bytes());
    }

    /// An interval.
    pub fn interval(&mut self, tag: Tag, value: Interval) {
        self.field(tag, Type::Interval, &value.0.to_be_bytes());
    }

    fn field(&mut self, tag: Tag, kind: Type, value: &[u8]) {
        self.header(tag, kind, value.len());
        self.put(value);
        let padding_bytes = value.len().next_multiple_of(8) - value.len();
        self.put([0; 8].get(..padding_bytes).unwrap_or_default());
    }

    fn header(&mut self, tag: Tag, kind: Type, length_bytes: usize) {
        self.put(&tag.to_bytes());
        self.put(&[kind as u8]);
        self.put(&length_on_the_wire(length_bytes));
    }

    fn put(&mut self, bytes: &[u8]) {
        match &mut self.sink {
            Sink::Count(counted) => *counted += bytes.len(),
            Sink::Buffer(buffer) => buffer.extend_from_slice(bytes),
        }
    }

    fn written_bytes(&self) -> usize {
        match &self.sink {
            Sink::Count(counted) => *counted,
            Sink::Buffer(buffer) => buffer.len(),
        }
    }
}

/// Four bytes of length. No message of this program comes near 4 GiB; a larger one would get a
/// length that every reader refuses.
fn length_on_the_wire(length_bytes: usize) -> [u8; 4] {
    u32::try_from(length_bytes).unwrap_or(u32::MAX).to_be_bytes()
}
