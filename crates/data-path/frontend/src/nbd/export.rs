//! The export: one disk under one name.

use strongroom_io::{Limits, TRANSFER_BYTES_MAX};

use super::protocol::{IOS_IN_FLIGHT_MAX, PAYLOAD_BYTES_MAX, STRING_BYTES_MAX, transmission_flag as flag};

/// The names of an export. A client that asks for the empty name gets it too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The name that a client asks for; at most 4096 bytes.
    pub name: String,
    /// Its description for people: at most 4096 bytes; may be empty.
    pub description: String,
}

impl Export {
    /// Whether the strings are short enough for the protocol.
    pub(super) fn is_valid(&self) -> bool {
        self.name.len() <= STRING_BYTES_MAX && self.description.len() <= STRING_BYTES_MAX
    }

    /// Whether a client means this export.
    pub(super) fn is_called(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }
}

/// The export as the connection negotiated it, unchanged until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// The export's size when transmission started.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this.
    pub block_bytes: u32,
    /// The alignment that a client should use.
    pub preferred_bytes: u32,
    /// Whether writing, zeroing and trimming are refused.
    pub read_only: bool,
    /// Whether trimming may free space.
    pub discards: bool,
    /// The most bytes of one transfer to the disk: at most its own limit and
    /// [`TRANSFER_BYTES_MAX`], a power of two (so that buffers of this size waste nothing), and at
    /// least a block.
    pub transfer_bytes_max: u32,
}

impl Geometry {
    /// The geometry of a disk with these limits.
    pub fn new(limits: &Limits) -> Self {
        let block_bytes = limits.block_bytes.max(1);
        let transfer_bytes_max = limits.transfer_bytes_max.clamp(block_bytes, TRANSFER_BYTES_MAX);
        Self {
            size_bytes: limits.size_bytes,
            block_bytes,
            // The protocol wants a power of two of at least 512.
            preferred_bytes: limits.preferred_bytes.max(block_bytes).max(512),
            read_only: limits.read_only,
            discards: limits.discards,
            transfer_bytes_max: 1 << transfer_bytes_max.ilog2(),
        }
    }

    /// The most bytes of one read or write of a client: as many as the pieces that may be in flight
    /// can carry, wherever it starts.
    pub fn payload_bytes_max(&self) -> u32 {
        let pieces_max = IOS_IN_FLIGHT_MAX as u32 - 1;
        PAYLOAD_BYTES_MAX.min(self.transfer_bytes_max.saturating_mul(pieces_max))
    }

    /// The transmission flags of a connection.
    ///
    /// CAN_MULTI_CONN promises that a flush on one connection covers writes answered on every
    /// other. The [`Disk`](strongroom_io::Disk) interface promises exactly that of its channels ("a
    /// flush covers every write whose `Done` was polled, on any channel, before the flush was
    /// submitted"). A write is answered only after its `Done` was polled, and nothing in between
    /// caches data.
    pub fn transmission_flags(&self, structured_replies: bool) -> u16 {
        let mut flags = flag::HAS_FLAGS
            | flag::SEND_FLUSH
            | flag::SEND_FUA
            | flag::SEND_WRITE_ZEROES
            | flag::CAN_MULTI_CONN
            | flag::SEND_CACHE;
        if self.discards {
            flags |= flag::SEND_TRIM;
        }
        if structured_replies {
            flags |= flag::SEND_DF;
        }
        if self.read_only {
            flags &= !(flag::SEND_TRIM | flag::SEND_WRITE_ZEROES);
            flags |= flag::READ_ONLY;
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        size_bytes: 1 << 30,
        block_bytes: 1,
        preferred_bytes: 1,
        transfer_bytes_max: u32::MAX,
        read_only: false,
        discards: true,
    };

    #[test]
    fn what_is_told_keeps_to_the_protocol() {
        let geometry = Geometry::new(&LIMITS);
        assert_eq!((geometry.preferred_bytes, geometry.transfer_bytes_max), (512, TRANSFER_BYTES_MAX));
        let odd = Geometry::new(&Limits { block_bytes: 4096, transfer_bytes_max: 70_000, ..LIMITS });
        assert_eq!((odd.preferred_bytes, odd.transfer_bytes_max), (4096, 65_536));
        assert_eq!(odd.payload_bytes_max(), 255 << 16);
        assert_eq!(geometry.payload_bytes_max(), 32 << 20);
    }

    #[test]
    fn a_read_only_export_offers_no_writing() {
        let geometry = Geometry::new(&Limits { read_only: true, ..LIMITS });
        let flags = geometry.transmission_flags(true);
        assert_eq!(flags & (flag::SEND_TRIM | flag::SEND_WRITE_ZEROES), 0);
        assert_ne!(flags & flag::READ_ONLY, 0);
        assert_eq!(geometry.transmission_flags(false) & flag::SEND_DF, 0);
    }
}
