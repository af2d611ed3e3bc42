//! The front end's half of vhost-user-blk, as QEMU and its guest have it.
//!
//! From the wire up:
//! - [`connection`]: messages and their answers; [`protocol`]: their numbers;
//! - [`disk_config`]: what a device says of its disk;
//! - [`inflight`]: the area in which a server keeps what it has taken, for its successor;
//! - [`guest`]: memory, as a guest has it; [`ring`]: the driver's half of a split virtqueue;
//!   [`queue`]: block requests; [`prepared`]: those that are written once and sent again and again;
//! - [`front_end`]: all of it together: connects, and comes back after the server died;
//! - [`verify`]: load whose every sector says what it is.
//!
//! Sources: "Vhost-user Protocol" (QEMU's `docs/interop/vhost-user.rst`); VIRTIO 1.2, 2.7 and 5.2.

pub mod connection;
pub mod disk_config;
pub mod front_end;
pub mod guest;
pub mod inflight;
pub mod prepared;
pub mod protocol;
pub mod queue;
pub mod ring;
pub mod verify;
