//! A whole front end: memory, queues, and a session with a server or its successor.
//!
//! The order of the messages is QEMU's (`vhost_user_backend_init`, `vhost_user_blk_start`,
//! `vhost_dev_start`).

mod wait;

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use strongroom_memory::{GuestAddress, GuestError};
use thiserror::Error;

pub use wait::Wake;

use super::connection::{Connection, ConnectionError, RingAddresses, RingFile};
use super::disk_config::DiskConfig;
use super::guest::{Guest, Pages};
use super::inflight::InflightArea;
use super::prepared::{Lengths, PreparedError, PreparedQueue, PreparedShape};
use super::protocol::{device_status, feature, protocol_feature};
use super::queue::{Queue, QueueError, SLOT_META_BYTES, Slot};
use super::ring::{DriverRing, RingPlace};

/// The most content of one request, in bytes.
pub const CONTENT_BYTES_MAX: u64 = 1 << 20;

/// Memory of a slot's content, with room for gaps between its pieces.
const SLOT_CONTENT_BYTES: u64 = CONTENT_BYTES_MAX + (64 << 10);

/// Bytes of the configuration space that are read (`struct virtio_blk_config` up to
/// `write_zeroes_may_unmap`).
const CONFIG_BYTES: u32 = 60;

const PAGE_BYTES: u64 = 4096;

/// The features in use, if the server offers them.
const PROTOCOL_FEATURES: u64 = protocol_feature::MQ
    | protocol_feature::REPLY_ACK
    | protocol_feature::CONFIG
    | protocol_feature::BACKEND_REQ
    | protocol_feature::INFLIGHT_SHMFD
    | protocol_feature::CONFIGURE_MEM_SLOTS
    | protocol_feature::STATUS;
const FEATURES: u64 = feature::SEG_MAX
    | feature::RO
    | feature::BLK_SIZE
    | feature::FLUSH
    | feature::TOPOLOGY
    | feature::CONFIG_WCE
    | feature::MQ
    | feature::DISCARD
    | feature::WRITE_ZEROES
    | feature::RING_INDIRECT_DESC
    | feature::RING_EVENT_IDX
    | feature::PROTOCOL_FEATURES
    | feature::VERSION_1;

/// Why there is no session.
#[derive(Debug, Error)]
pub enum FrontEndError {
    /// The messages.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// A queue.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// The guest's memory.
    #[error(transparent)]
    Memory(#[from] GuestError),
    /// No memory.
    #[error("cannot make the guest's memory: {0}")]
    Guest(#[source] io::Error),
    /// Fewer queues than asked for.
    #[error("the server has {offered} queues, not {wanted}")]
    Queues {
        /// The offered number.
        offered: u64,
        /// The requested number.
        wanted: u16,
    },
    /// A prepared queue.
    #[error(transparent)]
    Prepared(#[from] PreparedError),
    /// A feature that this front end requires.
    #[error("the server does not offer {0}")]
    NotOffered(&'static str),
}

impl FrontEndError {
    /// Whether the server is gone, so that its successor may be awaited.
    pub fn is_gone(&self) -> bool {
        matches!(self, FrontEndError::Connection(error) if error.is_gone())
    }
}

/// The settings of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Count of queues.
    pub queues: u16,
    /// Entries of each: a power of two.
    pub queue_size: u16,
    /// Requests of each queue that are in flight at once.
    pub depth: u16,
    /// Features to reject even if offered.
    pub without_features: u64,
    /// Protocol features to reject.
    pub without_protocol_features: u64,
    /// Whether some descriptors' memory crosses into the next region. libvhost-user (QEMU 7.2)
    /// mistakes such a chain for a loop if it fills its indirect table.
    pub splits_regions: bool,
    /// Memory of a request's content, in bytes: [`CONTENT_BYTES_MAX`] plus room for gaps, for users
    /// of [`Queue`].
    pub slot_content_bytes: u64,
    /// The pages of the guest's memory.
    pub pages: Pages,
}

impl Settings {
    /// All features, and rings of QEMU's size.
    pub fn new(queues: u16, depth: u16) -> Self {
        Self {
            queues,
            queue_size: 128,
            depth,
            without_features: 0,
            without_protocol_features: 0,
            splits_regions: true,
            slot_content_bytes: SLOT_CONTENT_BYTES,
            pages: Pages::Small,
        }
    }
}

/// A front end in a session.
pub struct FrontEnd {
    socket: PathBuf,
    settings: Settings,
    connection: Connection,
    features: u64,
    protocol_features: u64,
    guest: Guest,
    queues: Vec<Queue>,
    inflight: Option<InflightArea>,
    disk: DiskConfig,
}

impl fmt::Debug for FrontEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FrontEnd({}, {:?})", self.socket.display(), self.settings)
    }
}

impl FrontEnd {
    /// Connects to the server at `socket`, like a new guest that discovers its disk and starts its
    /// queues.
    pub fn connect(socket: &Path, settings: Settings) -> Result<Self, FrontEndError> {
        let guest = Guest::new(&regions(settings), settings.pages).map_err(FrontEndError::Guest)?;
        let mut connection = Connection::open(socket)?;
        let greeting = greet(&mut connection, settings)?;
        let mut front_end = Self {
            socket: socket.to_owned(),
            settings,
            connection,
            features: greeting.features,
            protocol_features: greeting.protocol_features,
            guest,
            queues: Vec::new(),
            inflight: None,
            disk: greeting.disk,
        };
        front_end.queues =
            (0..settings.queues).map(|index| front_end.new_queue(index)).collect::<Result<_, _>>()?;
        front_end.start()?;
        Ok(front_end)
    }

    /// Connects to a successor after a server died: all messages are sent again, the memory and the
    /// inflight area stay the same, and each ring begins at its used index, as in QEMU.
    pub fn reconnect(&mut self) -> Result<(), FrontEndError> {
        let mut connection = Connection::open(&self.socket)?;
        let greeting = greet(&mut connection, self.settings)?;
        let is_same = greeting.features == self.features;
        if !is_same {
            return Err(FrontEndError::NotOffered("what its predecessor did"));
        }
        (self.connection, self.disk) = (connection, greeting.disk);
        self.protocol_features = greeting.protocol_features;
        self.queues.iter_mut().try_for_each(Queue::renew_files)?;
        self.start()
    }

    /// Ends the session like a guest that shuts down: every queue has answered everything when this
    /// returns.
    pub fn stop(&mut self) -> Result<Vec<u16>, FrontEndError> {
        let indices = 0..u32::from(self.settings.queues);
        Ok(indices.map(|index| self.connection.stop_ring(index)).collect::<Result<_, _>>()?)
    }

    /// Starts the stopped queues again.
    pub fn start(&mut self) -> Result<(), FrontEndError> {
        let Self { connection, guest, settings, .. } = self;
        connection.set_features(self.features)?;
        if self.protocol_features & protocol_feature::INFLIGHT_SHMFD != 0 {
            if self.inflight.is_none() {
                let (description, file) = connection.inflight_area(settings.queues, settings.queue_size)?;
                self.inflight = Some(InflightArea::map(description, file)?);
            }
            if let Some(area) = &self.inflight {
                connection.set_inflight_area(area.description(), area.file().as_fd())?;
            }
        }
        let regions = guest.regions();
        if self.protocol_features & protocol_feature::CONFIGURE_MEM_SLOTS != 0 {
            regions.into_iter().try_for_each(|(region, file)| connection.add_region(region, file))?;
        } else {
            connection.set_memory_table(&regions)?;
        }
        for index in 0..settings.queues {
            self.start_ring(index)?;
        }
        if self.protocol_features & protocol_feature::STATUS != 0 {
            use device_status::{ACKNOWLEDGE, DRIVER, DRIVER_OK, FEATURES_OK};
            self.connection.set_status(ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK)?;
        }
        Ok(())
    }

    fn start_ring(&mut self, index: u16) -> Result<(), FrontEndError> {
        let queue = &self.queues[usize::from(index)];
        let place = queue.ring().place();
        let user = |address| {
            let user = self.guest.user_address(address);
            user.ok_or(GuestError::NotMapped { address, length: 1 })
        };
        let addresses = RingAddresses {
            descriptors: user(place.descriptors)?,
            available: user(place.available)?,
            used: user(place.used)?,
            log: None,
        };
        let (connection, ring) = (&mut self.connection, u32::from(index));
        connection.set_ring_size(ring, u32::from(queue.ring().size()))?;
        connection.set_ring_base(ring, queue.ring().used_index()?)?;
        connection.set_ring_addresses(ring, addresses)?;
        let files = [
            (RingFile::Error, queue.error_file().as_fd()),
            (RingFile::Kick, queue.kick_file().as_fd()),
            (RingFile::Call, queue.call_file().as_fd()),
        ];
        for (which, file) in files {
            connection.set_ring_file(index as u8, which, file)?;
        }
        connection.enable_ring(ring, true)?;
        Ok(())
    }

    fn new_queue(&self, index: u16) -> Result<Queue, FrontEndError> {
        let Settings { depth, slot_content_bytes, .. } = self.settings;
        let ring = self.new_ring(index);
        let (metas, contents) = self.slot_memory(index);
        let slot = |slot: u64| {
            let meta = GuestAddress(metas.0 + slot * SLOT_META_BYTES);
            Slot::new(meta, GuestAddress(contents.0 + slot * slot_content_bytes))
        };
        let slots = (0..u64::from(depth)).map(slot).collect();
        Ok(Queue::new(self.guest.memory(), ring, slots)?)
    }

    fn new_ring(&self, index: u16) -> DriverRing {
        let queue_size = self.settings.queue_size;
        let start = GuestAddress(u64::from(index) * queue_bytes(self.settings));
        let event_index = self.features & feature::RING_EVENT_IDX != 0;
        DriverRing::new(self.guest.memory(), RingPlace::at(start, queue_size), queue_size, event_index)
    }

    /// The start of the memory of a queue's slots, [`SLOT_META_BYTES`] for each, and of that of
    /// their contents.
    fn slot_memory(&self, index: u16) -> (GuestAddress, GuestAddress) {
        let Settings { queue_size, depth, slot_content_bytes, .. } = self.settings;
        let start = u64::from(index) * queue_bytes(self.settings);
        let metas = start + RingPlace::bytes(queue_size).next_multiple_of(PAGE_BYTES);
        let contents = CONTENT_START + u64::from(index) * u64::from(depth) * slot_content_bytes;
        (GuestAddress(metas), GuestAddress(contents))
    }

    /// A driver for an idle queue, which from then on replaces the one in [`Self::queues`].
    pub fn prepare(
        &self,
        index: u16,
        content_bytes: u32,
        lengths: Lengths,
    ) -> Result<PreparedQueue, FrontEndError> {
        if self.features & feature::RING_INDIRECT_DESC == 0 {
            return Err(FrontEndError::NotOffered("indirect descriptors"));
        }
        let (metas, contents) = self.slot_memory(index);
        let queue = &self.queues[usize::from(index)];
        let step_bytes = self.settings.slot_content_bytes;
        let depth = self.settings.depth;
        let shape = PreparedShape { depth, metas, contents, step_bytes, content_bytes, lengths };
        Ok(PreparedQueue::new(self.guest.memory(), self.new_ring(index), queue, shape)?)
    }

    /// Its settings.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The agreed features of the device.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// The agreed protocol features.
    pub fn protocol_features(&self) -> u64 {
        self.protocol_features
    }

    /// The disk in the configuration space.
    pub fn disk(&self) -> DiskConfig {
        self.disk
    }

    /// The queues.
    pub fn queues(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// The guest's memory.
    pub fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The messages.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The connection's socket, which closes when the server ends.
    pub fn socket(&self) -> &UnixStream {
        self.connection.socket()
    }

    /// The inflight area, if the server keeps one.
    pub fn inflight(&self) -> Option<&InflightArea> {
        self.inflight.as_ref()
    }
}

/// The start of the slots' content. The rings are in separate memory below.
const CONTENT_START: u64 = 1 << 32;

/// The regions of the guest's memory: one for rings, headers and tables; and one for content, or
/// two adjacent ones.
fn regions(settings: Settings) -> Vec<(GuestAddress, u64)> {
    let low = u64::from(settings.queues) * queue_bytes(settings);
    let content = u64::from(settings.queues) * u64::from(settings.depth) * settings.slot_content_bytes;
    let mut regions = vec![(GuestAddress(0), low)];
    if settings.splits_regions {
        let half = (content / 2).next_multiple_of(settings.pages.bytes());
        regions.extend([(GuestAddress(CONTENT_START), half), (GuestAddress(CONTENT_START + half), half)]);
    } else {
        regions.push((GuestAddress(CONTENT_START), content.next_multiple_of(settings.pages.bytes())));
    }
    regions
}

fn queue_bytes(settings: Settings) -> u64 {
    let ring = RingPlace::bytes(settings.queue_size).next_multiple_of(PAGE_BYTES);
    ring + u64::from(settings.depth) * SLOT_META_BYTES
}

struct Greeting {
    features: u64,
    protocol_features: u64,
    disk: DiskConfig,
}

/// Negotiates features, and reads the disk's configuration.
fn greet(connection: &mut Connection, settings: Settings) -> Result<Greeting, FrontEndError> {
    let offered = connection.features()?;
    if offered & feature::PROTOCOL_FEATURES == 0 {
        return Err(FrontEndError::NotOffered("protocol features"));
    }
    let wanted = PROTOCOL_FEATURES & !settings.without_protocol_features;
    let protocol_features = connection.protocol_features()? & wanted;
    connection.set_protocol_features(protocol_features)?;
    if protocol_features & protocol_feature::CONFIG == 0 {
        return Err(FrontEndError::NotOffered("its configuration space"));
    }
    let has_queues = protocol_features & protocol_feature::MQ != 0;
    let queues = if has_queues { connection.queue_count()? } else { 1 };
    if queues < u64::from(settings.queues) {
        return Err(FrontEndError::Queues { offered: queues, wanted: settings.queues });
    }
    connection.set_owner()?;
    let disk = DiskConfig::parse(&connection.config(0, CONFIG_BYTES)?);
    let features = offered & FEATURES & !settings.without_features;
    Ok(Greeting { features, protocol_features, disk })
}
