//! Requests of a client during transmission.

use strongroom_statistics::Operation;
use strongroom_types::Extent;
use thiserror::Error;

use super::handshake::Agreement;
use super::protocol::{REQUEST_MAGIC, command, command_flag as flag};
use super::reply::ErrorNumber;

/// The fixed part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Flags of the command.
    pub flags: u16,
    /// The command's number.
    pub kind: u16,
    /// The client's name for the request.
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Count of bytes.
    pub length: u32,
}

/// A valid request, according to the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send the extent's content.
    Read(Extent),
    /// The extent's new content follows.
    Write {
        /// The extent to write.
        extent: Extent,
        /// Whether it must be durable before the reply.
        durable: bool,
    },
    /// End the connection once everything is answered.
    Disconnect,
    /// Make all answered writes durable.
    Flush,
    /// The extent's content is not needed any more.
    Trim {
        /// The extent that is not needed.
        extent: Extent,
        /// Whether it must be durable before the reply.
        durable: bool,
    },
    /// The extent will be read soon.
    Cache(Extent),
    /// Make the extent zero.
    WriteZeroes {
        /// The extent to zero.
        extent: Extent,
        /// Whether its space may be freed.
        may_unmap: bool,
        /// Whether it must be durable before the reply.
        durable: bool,
    },
    /// Report which parts of the extent hold data.
    BlockStatus {
        /// The extent to report on.
        extent: Extent,
        /// Whether to report only on the first part.
        one: bool,
    },
}

/// A request that is answered with an error at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct Refusal {
    /// The error number for the client.
    pub error: ErrorNumber,
    /// The message for the client's user.
    pub reason: &'static str,
}

impl RequestHeader {
    /// Bytes of the fixed part.
    pub const BYTES: usize = 28;

    /// Parses the fixed part; `None` if it does not start like a request.
    pub fn parse(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let [m0, m1, m2, m3, f0, f1, k0, k1, rest @ ..] = *bytes;
        let (cookie, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let header = Self {
            flags: u16::from_be_bytes([f0, f1]),
            kind: u16::from_be_bytes([k0, k1]),
            cookie: u64::from_be_bytes(*cookie),
            offset: u64::from_be_bytes(*offset),
            length: u32::from_be_bytes(*rest.first_chunk()?),
        };
        (u32::from_be_bytes([m0, m1, m2, m3]) == REQUEST_MAGIC).then_some(header)
    }

    /// The operation that it is counted as, whether or not it is valid; `None` if it is not
    /// counted.
    pub fn operation(&self) -> Option<Operation> {
        match self.kind {
            command::READ => Some(Operation::Read),
            command::WRITE => Some(Operation::Write),
            command::FLUSH => Some(Operation::Flush),
            command::TRIM => Some(Operation::Discard),
            command::WRITE_ZEROES => Some(Operation::WriteZeroes),
            _ => None,
        }
    }

    /// Bytes of data that follow, whether or not the request is valid.
    pub fn payload_bytes(&self) -> u32 {
        if self.kind == command::WRITE { self.length } else { 0 }
    }

    /// The command, if the request is valid. Otherwise the error follows the protocol's rules
    /// ("Error values").
    pub fn command(&self, agreement: &Agreement) -> Result<Command, Refusal> {
        self.check_flags()?;
        let durable = self.flags & flag::FUA != 0;
        match self.kind {
            command::READ => {
                if self.length > agreement.geometry.payload_bytes_max() {
                    return refuse(ErrorNumber::Overflow, "a read of more than the maximum payload");
                }
                Ok(Command::Read(self.extent(agreement, ErrorNumber::Invalid)?))
            }
            command::WRITE => {
                check_writable(agreement)?;
                if self.length > agreement.geometry.payload_bytes_max() {
                    return refuse(ErrorNumber::Invalid, "a write of more than the maximum payload");
                }
                let extent = self.extent(agreement, ErrorNumber::NoSpace)?;
                Ok(Command::Write { extent, durable })
            }
            command::DISCONNECT => Ok(Command::Disconnect),
            command::FLUSH if (self.offset, self.length) == (0, 0) => Ok(Command::Flush),
            command::FLUSH => refuse(ErrorNumber::Invalid, "a flush of a part of the export"),
            command::TRIM => {
                check_writable(agreement)?;
                if !agreement.geometry.discards {
                    return refuse(ErrorNumber::Invalid, "trimming was not offered");
                }
                let extent = self.extent(agreement, ErrorNumber::Invalid)?;
                Ok(Command::Trim { extent, durable })
            }
            command::CACHE => Ok(Command::Cache(self.extent(agreement, ErrorNumber::Invalid)?)),
            command::WRITE_ZEROES => {
                check_writable(agreement)?;
                Ok(Command::WriteZeroes {
                    extent: self.extent(agreement, ErrorNumber::NoSpace)?,
                    may_unmap: self.flags & flag::NO_HOLE == 0,
                    durable,
                })
            }
            command::BLOCK_STATUS if agreement.allocation_context => Ok(Command::BlockStatus {
                extent: self.extent(agreement, ErrorNumber::Invalid)?,
                one: self.flags & flag::REQ_ONE != 0,
            }),
            command::BLOCK_STATUS => refuse(ErrorNumber::Invalid, "no metadata context was chosen"),
            _ => refuse(ErrorNumber::Invalid, "an unknown command"),
        }
    }

    /// FUA is valid for every command ("Command flags"), each other flag for one command.
    fn check_flags(&self) -> Result<(), Refusal> {
        let valid = flag::FUA
            | match self.kind {
                command::READ => flag::DF,
                command::WRITE_ZEROES => flag::NO_HOLE,
                command::BLOCK_STATUS => flag::REQ_ONE,
                _ => 0,
            };
        if self.flags & !valid != 0 {
            return refuse(ErrorNumber::Invalid, "a flag that this command does not have");
        }
        Ok(())
    }

    /// The extent of the request; `beyond` is the error for bytes beyond the end.
    fn extent(&self, agreement: &Agreement, beyond: ErrorNumber) -> Result<Extent, Refusal> {
        let geometry = &agreement.geometry;
        let extent = match Extent::new(self.offset, u64::from(self.length)) {
            Ok(extent) if extent.end() <= geometry.size_bytes => extent,
            _ => return refuse(beyond, "a request beyond the end of the export"),
        };
        if extent.is_empty() {
            return refuse(ErrorNumber::Invalid, "a request for no bytes");
        }
        // A client may trim, cache and ask for status at any alignment: parts of blocks are
        // skipped, or widened to whole ones.
        let transfers = matches!(self.kind, command::READ | command::WRITE | command::WRITE_ZEROES);
        if transfers && !extent.is_aligned_to(u64::from(geometry.block_bytes)) {
            return refuse(ErrorNumber::Invalid, "a request that is not aligned to the minimum block size");
        }
        Ok(extent)
    }
}

fn check_writable(agreement: &Agreement) -> Result<(), Refusal> {
    if agreement.geometry.read_only {
        return refuse(ErrorNumber::NotPermitted, "the export is read-only");
    }
    Ok(())
}

fn refuse<T>(error: ErrorNumber, reason: &'static str) -> Result<T, Refusal> {
    Err(Refusal { error, reason })
}

#[cfg(test)]
mod tests {
    use strongroom_io::Limits;

    use super::super::export::Geometry;
    use super::*;

    fn agreement() -> Agreement {
        let limits = Limits {
            size_bytes: 1 << 30,
            block_bytes: 512,
            preferred_bytes: 4096,
            transfer_bytes_max: 1 << 20,
            read_only: false,
            discards: true,
        };
        Agreement { geometry: Geometry::new(&limits), structured_replies: true, allocation_context: true }
    }

    fn request(kind: u16, flags: u16, offset: u64, length: u32) -> RequestHeader {
        RequestHeader { flags, kind, cookie: 1, offset, length }
    }

    fn error(header: RequestHeader, agreement: &Agreement) -> u32 {
        header.command(agreement).unwrap_err().error as u32
    }

    #[test]
    fn a_header_is_read_in_network_order() {
        let mut bytes = [0; RequestHeader::BYTES];
        assert_eq!(RequestHeader::parse(&bytes), None);
        bytes[..8].copy_from_slice(&[0x25, 0x60, 0x95, 0x13, 0, 1, 0, 6]);
        bytes[8..16].copy_from_slice(&7_u64.to_be_bytes());
        bytes[16..24].copy_from_slice(&8_u64.to_be_bytes());
        bytes[24..].copy_from_slice(&9_u32.to_be_bytes());
        let header = RequestHeader { flags: 1, kind: 6, cookie: 7, offset: 8, length: 9 };
        assert_eq!(RequestHeader::parse(&bytes), Some(header));
    }

    #[test]
    fn errors_are_those_of_the_protocol() {
        let mut agreement = agreement();
        for (kind, beyond) in [
            (command::READ, 22),
            (command::WRITE, 28),
            (command::TRIM, 22),
            (command::WRITE_ZEROES, 28),
            (command::BLOCK_STATUS, 22),
            (command::CACHE, 22),
        ] {
            assert_eq!(error(request(kind, 0, 1 << 30, 512), &agreement), beyond, "{kind}");
            assert_eq!(error(request(kind, 0, u64::MAX, 512), &agreement), beyond, "{kind}");
            assert_eq!(error(request(kind, 0, 0, 0), &agreement), 22, "{kind}");
            assert_eq!(error(request(kind, 1 << 4, 0, 512), &agreement), 22, "flag of {kind}");
        }
        assert_eq!(error(request(command::READ, 0, 100, 512), &agreement), 22);
        assert_eq!(error(request(command::READ, 0, 0, 33 << 20), &agreement), 75);
        assert_eq!(error(request(command::WRITE, 0, 0, 33 << 20), &agreement), 22);
        assert_eq!(error(request(command::FLUSH, 0, 0, 512), &agreement), 22);
        assert_eq!(error(request(99, 0, 0, 512), &agreement), 22);
        agreement.geometry.read_only = true;
        agreement.allocation_context = false;
        for kind in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
            assert_eq!(error(request(kind, 0, 0, 512), &agreement), 1);
        }
        assert_eq!(error(request(command::BLOCK_STATUS, 0, 0, 512), &agreement), 22);
    }

    #[test]
    fn only_a_write_carries_data() {
        assert_eq!(request(command::WRITE, 0xff, u64::MAX, 77).payload_bytes(), 77);
        assert_eq!(request(command::WRITE_ZEROES, 0, 0, 77).payload_bytes(), 0);
        assert_eq!(request(99, 0, 0, 77).payload_bytes(), 0);
    }

    #[test]
    fn flags_reach_their_commands() {
        let agreement = agreement();
        let extent = Extent::new(0, 512).unwrap();
        let command =
            |kind: u16, flags: u16, length: u32| request(kind, flags, 0, length).command(&agreement).unwrap();
        assert_eq!(command(command::WRITE, 1, 512), Command::Write { extent, durable: true });
        assert_eq!(
            command(command::WRITE_ZEROES, 2, 512),
            Command::WriteZeroes { extent, may_unmap: false, durable: false }
        );
        assert_eq!(command(command::READ, 4 | 1, 512), Command::Read(extent));
        assert_eq!(command(command::BLOCK_STATUS, 8, 512), Command::BlockStatus { extent, one: true });
        assert_eq!(command(command::FLUSH, 1, 0), Command::Flush);
    }
}
