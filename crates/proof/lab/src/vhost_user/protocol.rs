//! Numbers of the protocols, by their own names.

/// Messages to a server.
#[allow(missing_docs)]
pub mod request {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
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

/// Messages from a server, over its own channel.
#[allow(missing_docs)]
pub mod backend_request {
    pub const CONFIG_CHANGE: u32 = 2;
}

/// Flags of a message's header.
#[allow(missing_docs)]
pub mod header_flag {
    pub const VERSION: u32 = 1;
    pub const REPLY: u32 = 1 << 2;
    pub const NEED_REPLY: u32 = 1 << 3;
}

/// Protocol features.
#[allow(missing_docs)]
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
}

/// Features of the device and of the transport.
#[allow(missing_docs)]
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
    pub const LOG_ALL: u64 = 1 << 26;
    pub const RING_INDIRECT_DESC: u64 = 1 << 28;
    pub const RING_EVENT_IDX: u64 = 1 << 29;
    /// Not a virtio feature: the front end supports protocol features, and enables each ring with a
    /// message.
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
}

/// Status of a device in SET_STATUS (VIRTIO 1.2, 2.1).
#[allow(missing_docs)]
pub mod device_status {
    pub const ACKNOWLEDGE: u64 = 1;
    pub const DRIVER: u64 = 2;
    pub const DRIVER_OK: u64 = 4;
    pub const FEATURES_OK: u64 = 8;
}

/// Flags of a descriptor.
#[allow(missing_docs)]
pub mod descriptor_flag {
    pub const NEXT: u16 = 1;
    pub const WRITE: u16 = 2;
    pub const INDIRECT: u16 = 4;
}

/// Types of block requests.
#[allow(missing_docs)]
pub mod block_request {
    pub const IN: u32 = 0;
    pub const OUT: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// The status byte of a successful request.
pub const STATUS_OK: u8 = 0;

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;

/// Bytes of the serial number that GET_ID asks for.
pub const SERIAL_BYTES: u32 = 20;

/// The most files with one message: the regions of SET_MEM_TABLE.
pub const FILES_MAX: usize = 8;

/// The longest answer accepted, in bytes; the configuration space has some 300.
pub const ANSWER_BYTES_MAX: u32 = 4096;
