//! Numbers of the protocols, and the limits of this server.
//!
//! Sources: "Vhost-user Protocol" of QEMU (`docs/interop/vhost-user.rst`), and "Virtual I/O Device
//! (VIRTIO) Version 1.2", 2.7 (split virtqueues) and 5.2 (block device), whose names these are.

use std::time::Duration;

/// Messages of a front end that this server supports.
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_LOG_FD: u32 = 7;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}

/// Messages that this server sends on its own initiative.
pub mod backend_request {
    pub const CONFIG_CHANGE: u32 = 2;
}

/// Flags of a message's header.
pub mod header_flag {
    pub const VERSION_MASK: u32 = 3;
    pub const VERSION: u32 = 1;
    pub const REPLY: u32 = 1 << 2;
    pub const NEED_REPLY: u32 = 1 << 3;
}

/// Protocol features.
pub mod protocol_feature {
    pub const MQ: u64 = 1 << 0;
    pub const LOG_SHMFD: u64 = 1 << 1;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const RESET_DEVICE: u64 = 1 << 13;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const OFFERED: u64 = MQ
        | LOG_SHMFD
        | REPLY_ACK
        | BACKEND_REQ
        | CONFIG
        | INFLIGHT_SHMFD
        | RESET_DEVICE
        | CONFIGURE_MEM_SLOTS
        | STATUS;
}

/// Feature bits of the device and of the transport.
pub mod feature {
    pub const SEG_MAX: u64 = 1 << 2;
    pub const RO: u64 = 1 << 5;
    pub const BLK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const CONFIG_WCE: u64 = 1 << 11;
    pub const MQ: u64 = 1 << 12;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// Not a feature of virtio: writes to the guest's memory are marked in the front end's log.
    pub const LOG_ALL: u64 = 1 << 26;
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// Not a feature of virtio: the front end supports protocol features, and enables each ring by
    /// a message.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Flags of a descriptor.
pub mod descriptor_flag {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// Types of block requests.
pub mod block_request {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// The flag of a zeroing that may free space.
pub const WRITE_ZEROES_UNMAP: u32 = 1;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;

/// Bytes of the serial number that GET_ID asks for.
pub const SERIAL_BYTES: usize = 20;

/// The most bytes of a message's body; a longer one ends the session. The longest supported one is
/// SET_CONFIG of the whole configuration space, 268 bytes; the rest leaves room for messages of
/// other devices, which are refused individually.
pub const BODY_BYTES_MAX: u32 = 4096;

/// The most descriptors of files with one message: the regions of SET_MEM_TABLE.
pub const FILES_MAX: usize = 8;

/// The most bytes of the configuration space that a message carries (`VHOST_USER_MAX_CONFIG_SIZE`).
pub const CONFIG_BYTES_MAX: u32 = 256;

/// The most queues of one device: each has a thread, an event loop and memory.
pub const QUEUES_MAX: u16 = 16;

/// The most entries of a queue. QEMU allows 1024.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// The most descriptors of an indirect table; drivers use at most [`SEGMENTS_MAX`] and two more.
pub const INDIRECT_DESCRIPTORS_MAX: u32 = 1024;

/// The most data descriptors of one request, as announced to drivers: with header and status they
/// fill a queue of 128 entries, QEMU's default.
pub const SEGMENTS_MAX: u32 = 126;

/// Segments of one discard or zeroing.
pub const DISCARD_SEGMENTS_MAX: usize = 16;

/// Sectors of one such segment: 2 GiB, so that one segment does not block a queue for long.
pub const DISCARD_SECTORS_MAX: u32 = 1 << 22;

/// The most pieces, of all requests of one queue, that are in flight in the disk. More requests
/// stay in the ring, and more pieces of a request wait.
pub const IOS_IN_FLIGHT_MAX: usize = 256;

/// Front ends that are connected at once: the source and the destination of a migration.
pub const SESSIONS_MAX: usize = 2;

/// How long a front end that wants to run the device waits for another one to stop.
pub const ACTIVATION_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of the largest dirty log: 16 TiB of guest memory.
pub const LOG_BYTES_MAX: u64 = 1 << 29;

/// Memory of one queue for the stages below, allocated as needed.
pub const STAGE_MEMORY_BYTES: usize = 32 << 20;

/// How long a front end may take to send the rest of a message, and to receive an answer.
pub const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long stopping waits for requests in flight.
pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
