//! A device's description of its disk (VIRTIO 1.2, 5.2.4).

/// The disk in the configuration space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskConfig {
    /// Count of sectors of 512 bytes.
    pub sectors: u64,
    /// The most data descriptors of a request.
    pub segments_max: u32,
    /// The most sectors of one segment of a discard.
    pub discard_sectors_max: u32,
    /// The most segments of a discard.
    pub discard_segments_max: u32,
    /// The most sectors of one segment of a zeroing.
    pub zero_sectors_max: u32,
    /// The most segments of a zeroing.
    pub zero_segments_max: u32,
}

impl DiskConfig {
    /// Parses the first bytes of the space. Missing fields are zero.
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |at| {
            let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
            four.map_or(0, u32::from_le_bytes)
        };
        Self {
            sectors: u64::from(word(0)) | u64::from(word(4)) << 32,
            segments_max: word(12),
            discard_sectors_max: word(36),
            discard_segments_max: word(40),
            zero_sectors_max: word(48),
            zero_segments_max: word(52),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_standard_puts_them() {
        let bytes: Vec<u8> = (0..60).collect();
        let config = DiskConfig::parse(&bytes);
        assert_eq!((config.sectors, config.segments_max), (0x0706_0504_0302_0100, 0x0f0e_0d0c));
        assert_eq!((config.discard_sectors_max, config.discard_segments_max), (0x2726_2524, 0x2b2a_2928));
        assert_eq!((config.zero_sectors_max, config.zero_segments_max), (0x3332_3130, 0x3736_3534));
        assert_eq!(DiskConfig::parse(&bytes[..8]).zero_segments_max, 0);
    }
}
