//! Limits that are checked before memory is allocated.

/// Most bytes of one message, header of the outermost structure included, unless a caller asks for
/// another limit.
///
/// The largest honest message is a batch of registered certificates or a long answer to Locate:
/// some hundred kilobytes. Eight connections that each send this much cost 8 MiB.
pub const MESSAGE_MAX_BYTES: usize = 1 << 20;

/// The largest value of [`Limits::message_bytes`]. Lengths below it fit every integer type in use,
/// on 32-bit machines too.
pub const MESSAGE_MAX_BYTES_CEILING: usize = 1 << 28;

/// Deepest nesting of structures. KMIP's own deepest message nests nine (a digest's fields in an
/// attribute in a wrapped key's value); vendor extensions may add some. It bounds the stack that
/// decoding needs.
pub const DEPTH_MAX: usize = 32;

/// Most fields in one message, counted through all levels. A field costs at least 8 bytes on the
/// wire and some 32 in memory, so that tiny fields cannot multiply the memory of a message.
pub const ITEMS_MAX: usize = 16 * 1024;

/// Longest text string in bytes. Names, identifiers and messages are far shorter; text is copied,
/// validated and compared more often than anything else.
pub const TEXT_MAX_BYTES: usize = 64 * 1024;

/// Longest big integer in bytes: an RSA modulus of 32,768 bits. This crate does not compute with
/// them.
pub const BIG_INTEGER_MAX_BYTES: usize = 4096;

/// The limits of decoding one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most bytes of the whole message.
    pub message_bytes: usize,
    /// Deepest nesting, the outermost structure being 1.
    pub depth: usize,
    /// Most fields in all.
    pub items: usize,
    /// Longest text string in bytes.
    pub text_bytes: usize,
    /// Longest big integer in bytes.
    pub big_integer_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: MESSAGE_MAX_BYTES,
            depth: DEPTH_MAX,
            items: ITEMS_MAX,
            text_bytes: TEXT_MAX_BYTES,
            big_integer_bytes: BIG_INTEGER_MAX_BYTES,
        }
    }
}

impl Limits {
    /// The default limits, with messages of up to `message_bytes` (at most
    /// [`MESSAGE_MAX_BYTES_CEILING`]).
    pub fn with_message_bytes(message_bytes: usize) -> Self {
        Self { message_bytes: message_bytes.min(MESSAGE_MAX_BYTES_CEILING), ..Self::default() }
    }
}
