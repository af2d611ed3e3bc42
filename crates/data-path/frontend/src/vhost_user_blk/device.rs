//! The guest's view of the disk apart from its queues: features and the configuration space (VIRTIO
//! 1.2, 5.2.3 and 5.2.4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_filters::park::{ParkChannel, ParkDisk, Patience, TroubleBook};
use strongroom_filters::qos::{Limits, QosChannel};
use strongroom_io::{Disk, IoError, Plain, Thread};
use strongroom_statistics::{Recorder, Recorders};
use strongroom_types::SECTOR_BYTES;

use super::message::ConfigRange;
use super::protocol::{
    DISCARD_SECTORS_MAX, DISCARD_SEGMENTS_MAX, IOS_IN_FLIGHT_MAX, SEGMENTS_MAX, SERIAL_BYTES, feature,
};

/// Bytes of the configuration space that this device uses.
pub const CONFIG_BYTES: usize = 60;

/// The offset at which the driver sets whether the disk caches writes.
const WRITEBACK_OFFSET: usize = 32;

/// A queue's channel to the disk.
pub type QueueChannel = QosChannel<Plain, ParkChannel>;

/// A disk, as one guest sees it. Shared by its queues.
pub struct Device {
    /// A virtio disk has no status for a full datastore, so requests that find no room wait.
    disk: Arc<ParkDisk>,
    /// The limits of its queues' requests. They are above the waiting for room, so that a request
    /// that is repeated for want of room is spent once.
    limits: Limits,
    serial: [u8; SERIAL_BYTES],
    queues: u16,
    /// The recorders of its queues' requests.
    recorders: Recorders,
    /// Whether the driver flushes writes that must be durable; if not, every write is durable.
    writeback: AtomicBool,
}

impl Device {
    /// A disk with a serial number, of which at most the first 20 bytes are shown, and at most
    /// `queues` queues. Trouble that its owner should know about is recorded in `book`.
    pub fn new(
        disk: Arc<dyn Disk<Plain>>,
        serial: &str,
        queues: u16,
        book: Arc<TroubleBook>,
        recorders: Recorders,
        limits: Limits,
    ) -> Self {
        let disk = Arc::new(ParkDisk::new(disk, Patience::UntilThereIsRoom, book));
        let mut padded = [0; SERIAL_BYTES];
        padded.iter_mut().zip(serial.bytes()).for_each(|(to, from)| *to = from);
        Self { disk, limits, serial: padded, queues, recorders, writeback: AtomicBool::new(true) }
    }

    /// The same disk for another guest, in the state that a new driver expects.
    pub fn for_another(&self) -> Self {
        let Self { disk, limits, serial, queues, recorders, .. } = self;
        let (disk, limits, recorders) = (Arc::clone(disk), limits.clone(), recorders.clone());
        Self { disk, limits, serial: *serial, queues: *queues, recorders, writeback: AtomicBool::new(true) }
    }

    /// The disk.
    pub fn disk(&self) -> &dyn Disk<Plain> {
        &*self.disk
    }

    /// Opens a queue's channel to it.
    pub fn open_channel(&self, thread: &Thread) -> Result<QueueChannel, IoError> {
        let below = self.disk.open_channel(thread, IOS_IN_FLIGHT_MAX)?;
        Ok(QosChannel::new(below, thread, self.limits.clone(), IOS_IN_FLIGHT_MAX))
    }

    /// Claims a recorder for a queue's requests.
    pub fn claim_recorder(&self) -> Recorder {
        self.recorders.claim()
    }

    /// The serial number, filled up with zeroes.
    pub fn serial(&self) -> &[u8; SERIAL_BYTES] {
        &self.serial
    }

    /// The most queues.
    pub fn queues(&self) -> u16 {
        self.queues
    }

    /// Resets it to the state that a new driver expects.
    pub fn reset(&self) {
        self.set_writeback(true);
    }

    /// Whether the driver flushes writes that must be durable.
    pub fn writeback(&self) -> bool {
        self.writeback.load(Ordering::SeqCst)
    }

    /// Sets the driver's choice.
    pub fn set_writeback(&self, writeback: bool) {
        self.writeback.store(writeback, Ordering::SeqCst);
    }

    /// Whether a write must be durable before it is answered, for a driver that agreed on
    /// `features`: one that cannot flush, or has turned write-back off.
    pub fn writes_through(&self, features: u64) -> bool {
        let flushes = features & feature::FLUSH != 0;
        let may_turn_off = features & feature::CONFIG_WCE != 0;
        !flushes || may_turn_off && !self.writeback()
    }

    /// The feature bits that are offered.
    pub fn features(&self) -> u64 {
        let limits = self.disk.limits();
        let mut features = feature::VERSION_1
            | feature::RING_INDIRECT_DESC
            | feature::RING_EVENT_IDX
            | feature::PROTOCOL_FEATURES
            | feature::LOG_ALL
            | feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::TOPOLOGY
            | feature::MQ
            | feature::FLUSH
            | feature::CONFIG_WCE;
        if limits.read_only {
            features |= feature::RO;
        } else {
            features |= feature::WRITE_ZEROES;
            if limits.discards {
                features |= feature::DISCARD;
            }
        }
        features
    }

    /// The bytes of a range of the configuration space; unused bytes are zero.
    pub fn read_config(&self, range: ConfigRange) -> Vec<u8> {
        let config = self.config();
        (range.offset..range.offset + range.bytes)
            .map(|at| config.get(at as usize).copied().unwrap_or(0))
            .collect()
    }

    /// Takes a driver's write to the configuration space. Returns `false` if the write is not
    /// allowed.
    pub fn write_config(&self, range: ConfigRange, bytes: &[u8]) -> bool {
        match (range.offset as usize, bytes) {
            (WRITEBACK_OFFSET, [writeback @ (0 | 1)]) => {
                self.set_writeback(*writeback == 1);
                true
            }
            _ => false,
        }
    }

    /// `struct virtio_blk_config`, byte by byte.
    fn config(&self) -> [u8; CONFIG_BYTES] {
        let limits = self.disk.limits();
        let block_bytes = u64::from(limits.block_bytes).max(SECTOR_BYTES);
        let preferred_bytes = u64::from(limits.preferred_bytes).max(block_bytes);
        let exponent = (preferred_bytes / block_bytes).ilog2() as u8;
        let preferred_blocks = 1_u16 << exponent;
        let alignment_sectors = (preferred_bytes / SECTOR_BYTES) as u32;
        let segments = DISCARD_SEGMENTS_MAX as u32;
        let (discard_sectors, discard_segments) =
            if limits.discards { (DISCARD_SECTORS_MAX, segments) } else { (0, 0) };
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &(limits.size_bytes / SECTOR_BYTES).to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &(block_bytes as u32).to_le_bytes());
        put(24, &[exponent, 0]);
        put(26, &preferred_blocks.to_le_bytes());
        put(28, &u32::from(preferred_blocks).to_le_bytes());
        put(WRITEBACK_OFFSET, &[u8::from(self.writeback())]);
        put(34, &self.queues.to_le_bytes());
        put(36, &discard_sectors.to_le_bytes());
        put(40, &discard_segments.to_le_bytes());
        put(44, &alignment_sectors.to_le_bytes());
        put(48, &DISCARD_SECTORS_MAX.to_le_bytes());
        put(52, &segments.to_le_bytes());
        put(56, &[1]);
        config
    }
}

#[cfg(test)]
mod tests {
    use strongroom_io::{Allocation, Channel, Limits};
    use strongroom_types::Extent;

    use super::*;

    struct Sized(Limits);

    impl Disk<Plain> for Sized {
        fn limits(&self) -> Limits {
            self.0
        }

        fn open(&self, _: &Thread, _: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
            Err(IoError::Closed)
        }

        fn allocation(
            &self,
            _: Extent,
            _: &mut dyn FnMut(Extent, Allocation) -> bool,
        ) -> Result<(), IoError> {
            Ok(())
        }
    }

    fn device(read_only: bool) -> Device {
        let limits = Limits {
            size_bytes: (5 << 30) + 512,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: 1 << 20,
            read_only,
            discards: true,
        };
        let book = Arc::new(TroubleBook::new());
        Device::new(
            Arc::new(Sized(limits)),
            "a serial number that is too long",
            2,
            book,
            Recorders::none(),
            strongroom_filters::qos::Limits::none(),
        )
    }

    #[test]
    fn the_configuration_space_is_exact_to_the_byte() {
        let config = device(false).read_config(ConfigRange { offset: 0, bytes: 62 });
        let mut expected = vec![0; 62];
        expected[..8].copy_from_slice(&10_485_761_u64.to_le_bytes());
        expected[12] = 126;
        expected[20..24].copy_from_slice(&[0, 2, 0, 0]);
        expected[24..32].copy_from_slice(&[3, 0, 8, 0, 8, 0, 0, 0]);
        expected[32..36].copy_from_slice(&[1, 0, 2, 0]);
        expected[36..40].copy_from_slice(&[0, 0, 0x40, 0]);
        expected[40..48].copy_from_slice(&[16, 0, 0, 0, 8, 0, 0, 0]);
        expected[48..56].copy_from_slice(&[0, 0, 0x40, 0, 16, 0, 0, 0]);
        expected[56] = 1;
        assert_eq!(config, expected);
        assert_eq!(device(false).read_config(ConfigRange { offset: 34, bytes: 2 }), [2, 0]);
        assert_eq!(device(false).serial(), b"a serial number that");
    }

    #[test]
    fn only_the_cache_mode_can_be_changed() {
        let device = device(false);
        let one = |offset| ConfigRange { offset, bytes: 1 };
        assert!(!device.write_config(one(0), &[1]) && !device.write_config(one(32), &[2]));
        assert!(!device.write_config(ConfigRange { offset: 32, bytes: 2 }, &[0, 0]));
        let both = feature::FLUSH | feature::CONFIG_WCE;
        assert!(!device.writes_through(both) && device.writes_through(0));
        assert!(device.write_config(one(32), &[0]));
        assert!(device.writes_through(both) && !device.writes_through(feature::FLUSH));
        assert_eq!(device.read_config(one(32)), [0]);
        device.reset();
        assert!(!device.writes_through(both));
    }

    #[test]
    fn a_read_only_disk_offers_no_writing() {
        let written = feature::DISCARD | feature::WRITE_ZEROES;
        assert_eq!(device(true).features() & (written | feature::RO), feature::RO);
        assert_eq!(device(false).features() & (written | feature::RO), written);
    }
}
