//! The line: what the two relays tell each other, beside QEMU's channels, over the connection of
//! their handshake. It is never full, so a side that fails is heard, and one that is dead noticed.
//!
//! | message | bytes |
//! |---|---|
//! | channels: so many were opened, and all that QEMU sent over them was sent (source to target) | 1, count (2, big-endian) |
//! | failed, after which nothing follows | 2, reason, channel (2) |
//!
//! An end of the stream without a failure says that the sender's side is complete. The target's is
//! when everything has reached its QEMU and that has closed all channels; the source says it when
//! it has heard that. So the source knows of the end of the last byte's way one round trip after it
//! has sent it.
//!
//! It is encrypted, whatever becomes of the memory.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_user_timeout,
};
use strongroom_crypto::CryptoError;
use strongroom_keyserver::grant::Secrecy;

use crate::error::{MigrateError, Reason};
use crate::keys::{Connection, Direction, SessionSecret};
use crate::record::{HEAD_BYTES, Head, Kind, Opener, RecordError, Sealer};

/// After how long without a sign of its machine the other host is gone.
const GONE_AFTER: Duration = Duration::from_secs(30);
/// The interval of questions to a silent machine.
const ASKS_EVERY: Duration = Duration::from_secs(5);
/// How long a message may take to leave this machine.
const SENT_WITHIN: Duration = Duration::from_secs(5);
/// The longest message; longer records are not read.
const MESSAGE_BYTES_MAX: usize = 4;

/// What the other relay says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It opened so many channels, and everything was sent over them.
    Channels(u16),
    /// It has failed.
    Failed(Reason),
    /// It is complete.
    End,
}

/// The speaking end.
#[derive(Debug)]
pub(crate) struct Speaker {
    sealer: Sealer,
}

/// The listening end.
#[derive(Debug)]
pub(crate) struct Listener {
    opener: Opener,
}

/// Both ends of a line for the side that sends in this direction.
pub(crate) fn line(secret: &SessionSecret, sends: Direction) -> Result<(Speaker, Listener), CryptoError> {
    let hears = match sends {
        Direction::ToTarget => Direction::ToSource,
        Direction::ToSource => Direction::ToTarget,
    };
    let sealer = Sealer::new(secret.key(Connection::Line, sends)?, Secrecy::Encrypted)?;
    let opener = Opener::new(secret.key(Connection::Line, hears)?, Secrecy::Encrypted)?;
    Ok((Speaker { sealer }, Listener { opener }))
}

/// Has the kernel notice a dead host, and not wait for one that takes no message.
pub(crate) fn watch(wire: &TcpStream) -> io::Result<()> {
    wire.set_nodelay(true)?;
    wire.set_write_timeout(Some(SENT_WITHIN))?;
    set_socket_keepalive(wire, true)?;
    set_tcp_keepidle(wire, ASKS_EVERY)?;
    set_tcp_keepintvl(wire, ASKS_EVERY)?;
    set_tcp_keepcnt(wire, (GONE_AFTER.as_secs() / ASKS_EVERY.as_secs()) as u32)?;
    set_tcp_user_timeout(wire, GONE_AFTER.as_millis() as u32)?;
    Ok(())
}

impl Speaker {
    /// Says how many channels there were, and that everything was sent over them.
    pub(crate) fn channels(&mut self, wire: &TcpStream, count: u16) -> Result<(), MigrateError> {
        let [high, low] = count.to_be_bytes();
        let said = self.sealer.sealed(Kind::Message, &[1, high, low])?;
        (&*wire).write_all(&said).map_err(MigrateError::PeerGone)
    }

    /// Says that this side is complete.
    pub(crate) fn complete(&mut self, wire: &TcpStream) -> Result<(), MigrateError> {
        let said = self.sealer.sealed(Kind::End, &[])?;
        (&*wire).write_all(&said).map_err(MigrateError::PeerGone)
    }

    /// Says that this side has failed.
    pub(crate) fn fail(&mut self, wire: &TcpStream, reason: Reason) -> Result<(), MigrateError> {
        let (code, channel) = match reason {
            Reason::Cancelled => (1, 0),
            Reason::Qemu { channel } => (2, channel),
            Reason::Wire { channel } => (3, channel),
            Reason::Record { channel } => (4, channel),
            Reason::Other => (5, 0),
        };
        let [high, low] = channel.to_be_bytes();
        let said = self.sealer.sealed(Kind::Message, &[2, code, high, low])?;
        (&*wire).write_all(&said).map_err(MigrateError::PeerGone)
    }
}

impl Listener {
    /// Waits for what the other side says next.
    pub(crate) fn hear(&mut self, wire: &TcpStream) -> Result<Heard, MigrateError> {
        let mut wire = wire;
        let mut head = [0; HEAD_BYTES];
        wire.read_exact(&mut head).map_err(gone)?;
        let length = Head::read(head).map_err(MigrateError::Line)?.record_bytes();
        if length > MESSAGE_BYTES_MAX + crate::record::OVERHEAD_BYTES {
            return Err(MigrateError::Line(RecordError::OutOfPlace));
        }
        let mut record = vec![0; length];
        record[..HEAD_BYTES].copy_from_slice(&head);
        wire.read_exact(&mut record[HEAD_BYTES..]).map_err(gone)?;
        let (kind, text) = self.opener.open(&mut record).map_err(MigrateError::Line)?;
        match (kind, &*text) {
            (Kind::End, _) => Ok(Heard::End),
            (Kind::Message, &[1, high, low]) => Ok(Heard::Channels(u16::from_be_bytes([high, low]))),
            (Kind::Message, &[2, code, high, low]) => {
                let channel = u16::from_be_bytes([high, low]);
                Ok(Heard::Failed(match code {
                    1 => Reason::Cancelled,
                    2 => Reason::Qemu { channel },
                    3 => Reason::Wire { channel },
                    4 => Reason::Record { channel },
                    _ => Reason::Other,
                }))
            }
            _ => Err(MigrateError::Line(RecordError::OutOfPlace)),
        }
    }
}

fn gone(error: io::Error) -> MigrateError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => MigrateError::Line(RecordError::CutOff),
        _ => MigrateError::PeerGone(error),
    }
}
