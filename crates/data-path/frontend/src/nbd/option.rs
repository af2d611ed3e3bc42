//! Options: a client's requests before transmission starts.

use thiserror::Error;

use super::protocol::{OPTION_MAGIC, STRING_BYTES_MAX, info, option};

/// The fixed part of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// The option's number.
    pub number: u32,
    /// Bytes of data that follow.
    pub length: u32,
}

/// An option with invalid data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct InvalidOption(pub &'static str);

/// An option that this server knows, with its data. ABORT is answered without parsing its data, so
/// it is not here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOption<'a> {
    /// Enter transmission on this export, or be cut off.
    ExportName(&'a [u8]),
    /// List the exports.
    List,
    /// Continue under TLS.
    StartTls,
    /// Describe an export.
    Info(InfoQuery<'a>),
    /// Describe an export and enter transmission on it.
    Go(InfoQuery<'a>),
    /// Use structured replies.
    StructuredReply,
    /// List the metadata contexts of an export.
    ListMetaContext(ContextQuery<'a>),
    /// Choose metadata contexts of an export.
    SetMetaContext(ContextQuery<'a>),
    /// Anything else.
    Unknown,
}

/// The data of INFO and GO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// The export.
    pub name: &'a [u8],
    /// Asks for the export's own name.
    pub wants_name: bool,
    /// Asks for the export's description.
    pub wants_description: bool,
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextQuery<'a> {
    /// The export.
    pub name: &'a [u8],
    /// Count of queries.
    pub count: u32,
    /// `count` queries, each a length and a string; checked.
    queries: &'a [u8],
}

impl OptionHeader {
    /// Bytes of the fixed part.
    pub const BYTES: usize = 16;

    /// Parses the fixed part; `None` if it does not start like an option.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let mut data = &bytes[..];
        let magic = u64::from_be_bytes(take(&mut data)?);
        let header = Self {
            number: u32::from_be_bytes(take(&mut data)?),
            length: u32::from_be_bytes(take(&mut data)?),
        };
        (magic == OPTION_MAGIC).then_some(header)
    }
}

impl<'a> ClientOption<'a> {
    /// Reads the data of option `number`.
    pub fn parse(number: u32, data: &'a [u8]) -> Result<Self, InvalidOption> {
        let without_data = |option| match data {
            [] => Ok(option),
            _ => Err(TAKES_NO_DATA),
        };
        match number {
            option::EXPORT_NAME if data.len() > STRING_BYTES_MAX => Err(NAME_TOO_LONG),
            option::EXPORT_NAME => Ok(Self::ExportName(data)),
            option::LIST => without_data(Self::List),
            option::START_TLS => without_data(Self::StartTls),
            option::INFO => InfoQuery::parse(data).map(Self::Info),
            option::GO => InfoQuery::parse(data).map(Self::Go),
            option::STRUCTURED_REPLY => without_data(Self::StructuredReply),
            option::LIST_META_CONTEXT => ContextQuery::parse(data).map(Self::ListMetaContext),
            option::SET_META_CONTEXT => ContextQuery::parse(data).map(Self::SetMetaContext),
            _ => Ok(Self::Unknown),
        }
    }
}

/// The error of an option that has data although it takes none.
pub const TAKES_NO_DATA: InvalidOption = InvalidOption("this option takes no data");
const TOO_SHORT: InvalidOption = InvalidOption("the option ends within its data");
const TOO_LONG: InvalidOption = InvalidOption("the option goes on after its data");
const NAME_TOO_LONG: InvalidOption = InvalidOption("a string of more than 4096 bytes");

impl<'a> InfoQuery<'a> {
    fn parse(mut data: &'a [u8]) -> Result<Self, InvalidOption> {
        let name = take_string(&mut data)?;
        let count = take(&mut data).map(u16::from_be_bytes).ok_or(TOO_SHORT)?;
        let (kinds, []) = data.as_chunks() else {
            return Err(TOO_LONG);
        };
        if kinds.len() != usize::from(count) {
            return Err(InvalidOption("another count of information requests than announced"));
        }
        let wants = |kind: u16| kinds.contains(&kind.to_be_bytes());
        Ok(Self { name, wants_name: wants(info::NAME), wants_description: wants(info::DESCRIPTION) })
    }
}

impl<'a> ContextQuery<'a> {
    fn parse(mut data: &'a [u8]) -> Result<Self, InvalidOption> {
        let name = take_string(&mut data)?;
        let count = take(&mut data).map(u32::from_be_bytes).ok_or(TOO_SHORT)?;
        let queries = data;
        // Each query has four bytes at least, so the data ends this loop long before a hostile
        // count does.
        for _ in 0..count {
            take_string(&mut data)?;
        }
        match data {
            [] => Ok(Self { name, count, queries }),
            _ => Err(TOO_LONG),
        }
    }

    /// The queries, in order.
    pub fn queries(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut data = self.queries;
        std::iter::from_fn(move || take_string(&mut data).ok())
    }
}

/// The next `N` bytes.
fn take<const N: usize>(data: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(*taken)
}

/// A string with its length before it.
fn take_string<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], InvalidOption> {
    let length = take(data).map(u32::from_be_bytes).ok_or(TOO_SHORT)? as usize;
    if length > STRING_BYTES_MAX {
        return Err(NAME_TOO_LONG);
    }
    let (string, rest) = data.split_at_checked(length).ok_or(TOO_SHORT)?;
    *data = rest;
    Ok(string)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Vec<u8> {
        [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
    }

    #[test]
    fn a_header_needs_its_magic() {
        let mut bytes = [0; OptionHeader::BYTES];
        assert_eq!(OptionHeader::parse(&bytes), None);
        bytes[..8].copy_from_slice(b"IHAVEOPT");
        bytes[11] = 7;
        bytes[12] = 1;
        let header = OptionHeader { number: option::GO, length: 1 << 24 };
        assert_eq!(OptionHeader::parse(&bytes), Some(header));
    }

    #[test]
    fn go_carries_a_name_and_what_is_asked() {
        let data = [&string("disk")[..], &[0, 3], &[0, 0, 0, 3, 0, 2]].concat();
        let query = InfoQuery { name: b"disk", wants_name: false, wants_description: true };
        assert_eq!(ClientOption::parse(option::GO, &data), Ok(ClientOption::Go(query)));
        for cut in 0..data.len() {
            assert!(ClientOption::parse(option::GO, &data[..cut]).is_err(), "{cut}");
        }
        assert!(ClientOption::parse(option::INFO, &[&data[..], &[0, 1]].concat()).is_err());
    }

    #[test]
    fn contexts_are_queried_by_name() {
        let data = [string(""), vec![0, 0, 0, 2], string("base:"), string("qemu:dirty")].concat();
        let Ok(ClientOption::SetMetaContext(query)) = ClientOption::parse(option::SET_META_CONTEXT, &data)
        else {
            panic!("not a query")
        };
        assert_eq!(query.queries().collect::<Vec<_>>(), [&b"base:"[..], b"qemu:dirty"]);
        for cut in 0..data.len() {
            assert!(ClientOption::parse(option::SET_META_CONTEXT, &data[..cut]).is_err());
        }
    }

    #[test]
    fn hostile_counts_and_lengths_are_refused() {
        let many = [string(""), vec![0xff; 4]].concat();
        assert_eq!(ClientOption::parse(option::LIST_META_CONTEXT, &many), Err(TOO_SHORT));
        let long = [&[0, 0, 0x10, 1][..], &[b'x'; 4099]].concat();
        assert_eq!(ClientOption::parse(option::GO, &long), Err(NAME_TOO_LONG));
        assert_eq!(ClientOption::parse(option::EXPORT_NAME, &long), Err(NAME_TOO_LONG));
        assert!(ClientOption::parse(option::LIST, b"x").is_err());
        assert_eq!(ClientOption::parse(77, b"x"), Ok(ClientOption::Unknown));
    }
}
