//! The client's side of the NBD protocol, as far as one export of our own worker needs it: fixed
//! newstyle, simple replies. Numbers: [`strongroom_frontend::nbd::protocol`].
//!
//! The worker reads what whoever writes the datastore has put there, so its answers are not
//! trusted: nothing is allocated by what it says but the sizes that were asked for.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use strongroom_frontend::nbd::protocol::{
    INIT_PASSWORD, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, handshake_flag, info,
    option, option_reply, transmission_flag,
};

use crate::error::DeviceError;

/// The longest reply to an option that is read; an export's size and its description.
const OPTION_REPLY_BYTES_MAX: u32 = 4096;
/// The most replies to one option.
const OPTION_REPLIES_MAX: u32 = 16;

/// What an export is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its size.
    pub size_bytes: u64,
}

/// Connects, and negotiates the export `name`.
pub fn connect(socket: &Path, name: &str) -> Result<(UnixStream, Export), Connect> {
    let mut stream = UnixStream::connect(socket)?;
    let export = negotiate(&mut stream, name)?;
    Ok((stream, export))
}

/// Why there is no connection.
#[derive(Debug)]
pub enum Connect {
    /// The socket ended, or is not there: its worker is replaced.
    Io(io::Error),
    /// What is at its other end is not our worker.
    Protocol(DeviceError),
}

impl From<io::Error> for Connect {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Connect {
    fn odd<T>(what: &'static str) -> Result<T, Self> {
        Err(Self::Protocol(DeviceError::Protocol(what)))
    }
}

fn negotiate(stream: &mut (impl Read + Write), name: &str) -> Result<Export, Connect> {
    if read_u64(stream)? != INIT_PASSWORD || read_u64(stream)? != OPTION_MAGIC {
        return Connect::odd("it does not begin as an NBD server does");
    }
    let wanted = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    if read_u16(stream)? & wanted != wanted {
        return Connect::odd("it is an NBD server of another kind");
    }
    let name_bytes = u32::try_from(name.len()).unwrap_or(u32::MAX);
    let mut request = u32::from(wanted).to_be_bytes().to_vec();
    request.extend(OPTION_MAGIC.to_be_bytes());
    request.extend(option::GO.to_be_bytes());
    // The name's length, the name, and that no further information is wanted.
    request.extend((4 + name_bytes + 2).to_be_bytes());
    request.extend(name_bytes.to_be_bytes());
    request.extend(name.as_bytes());
    request.extend(0_u16.to_be_bytes());
    stream.write_all(&request)?;

    let mut found = None;
    for _ in 0..OPTION_REPLIES_MAX {
        if read_u64(stream)? != OPTION_REPLY_MAGIC || read_u32(stream)? != option::GO {
            return Connect::odd("it answers another option");
        }
        let (kind, length) = (read_u32(stream)?, read_u32(stream)?);
        if length > OPTION_REPLY_BYTES_MAX {
            return Connect::odd("its answer to an option is too long");
        }
        let mut content = vec![0; length as usize];
        stream.read_exact(&mut content)?;
        match kind {
            option_reply::ACK => {
                return match found {
                    Some(export) => Ok(export),
                    None => Connect::odd("it does not say how large the export is"),
                };
            }
            option_reply::INFO if content.first_chunk() == Some(&info::EXPORT.to_be_bytes()) => {
                found = Some(export(&content)?);
            }
            option_reply::INFO => {}
            // It is ending, or it is another volume's.
            _ => return Connect::odd("it has no such export"),
        }
    }
    Connect::odd("its answer to an option does not end")
}

fn export(content: &[u8]) -> Result<Export, Connect> {
    let (Some(size), Some(flags)) =
        (content.get(2..10).and_then(<[u8]>::first_chunk), content.get(10..12).and_then(<[u8]>::first_chunk))
    else {
        return Connect::odd("its description of the export is too short");
    };
    let flags = u16::from_be_bytes(*flags);
    let needed = transmission_flag::SEND_FLUSH | transmission_flag::SEND_WRITE_ZEROES;
    if flags & needed != needed || flags & transmission_flag::READ_ONLY != 0 {
        return Connect::odd("its export cannot be written and flushed");
    }
    Ok(Export { size_bytes: u64::from_be_bytes(*size) })
}

/// The fixed part of a request.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// A command of the protocol.
    pub command: u16,
    /// Its flags.
    pub flags: u16,
    /// What its reply is known by.
    pub cookie: u64,
    /// Where.
    pub offset: u64,
    /// How much.
    pub length: u32,
}

impl Header {
    /// As it is sent.
    pub fn bytes(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}

/// The fixed part of a reply: the cookie, and an error number (0: none).
pub fn read_reply(stream: &mut impl Read) -> io::Result<(u64, u32)> {
    if read_u32(stream)? != SIMPLE_REPLY_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no reply of the protocol"));
    }
    let error = read_u32(stream)?;
    Ok((read_u64(stream)?, error))
}

fn read_u16(stream: &mut impl Read) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).map(|()| u16::from_be_bytes(bytes))
}

fn read_u32(stream: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map(|()| u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A server that has said everything already.
    struct Said(Cursor<Vec<u8>>);

    impl Read for Said {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into)
        }
    }

    impl Write for Said {
        fn write(&mut self, from: &[u8]) -> io::Result<usize> {
            Ok(from.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn greeting() -> Vec<u8> {
        let mut bytes = INIT_PASSWORD.to_be_bytes().to_vec();
        bytes.extend(OPTION_MAGIC.to_be_bytes());
        bytes.extend(3_u16.to_be_bytes());
        bytes
    }

    fn reply(kind: u32, length: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option::GO.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(content);
        bytes
    }

    fn described(size: u64, flags: u16) -> Vec<u8> {
        let mut content = info::EXPORT.to_be_bytes().to_vec();
        content.extend(size.to_be_bytes());
        content.extend(flags.to_be_bytes());
        reply(option_reply::INFO, 12, &content)
    }

    #[test]
    fn a_hostile_server_is_refused_and_costs_no_memory() {
        let all = transmission_flag::SEND_FLUSH | transmission_flag::SEND_WRITE_ZEROES;
        let ack = || reply(option_reply::ACK, 0, &[]);
        let told = |parts: &[Vec<u8>]| {
            let said =
                std::iter::once(greeting()).chain(parts.iter().cloned()).flatten().collect::<Vec<u8>>();
            match negotiate(&mut Said(Cursor::new(said)), "volume") {
                Ok(export) => Ok(export.size_bytes),
                Err(Connect::Protocol(DeviceError::Protocol(why))) => Err(why.to_owned()),
                Err(Connect::Protocol(other)) => Err(other.to_string()),
                Err(Connect::Io(error)) => Err(error.kind().to_string()),
            }
        };
        assert_eq!(told(&[described(1 << 20, all), ack()]), Ok(1 << 20));
        for (parts, why) in [
            (vec![ack()], "how large"),
            (vec![described(1, all | transmission_flag::READ_ONLY), ack()], "cannot be written"),
            (vec![described(1, transmission_flag::SEND_FLUSH), ack()], "cannot be written"),
            (vec![reply(option_reply::INFO, 3, &[0, 0, 1]), ack()], "too short"),
            (vec![reply(option_reply::INFO, u32::MAX, &[])], "too long"),
            (vec![reply(option_reply::ERR_UNKNOWN, 0, &[])], "no such export"),
            (vec![described(1, all); 40], "does not end"),
            (vec![], "end of file"),
        ] {
            let refused = told(&parts).unwrap_err();
            assert!(refused.contains(why), "{refused}: {why}");
        }
        let odd = negotiate(&mut Said(Cursor::new(vec![0; 64])), "volume");
        assert!(matches!(odd, Err(Connect::Protocol(_))));
    }
}
