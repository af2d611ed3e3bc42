//! The front end's half of vhost-user-blk, like that of QEMU and its guest.
//!
//! From the wire up:
//! - [`connection`]: messages and their answers; [`protocol`]: their numbers;
//! - [`disk_config`]: a device's description of its disk;
//! - [`inflight`]: the area in which a server records taken requests for its successor;
//! - [`guest`]: a guest's memory; [`ring`]: the driver's half of a split virtqueue; [`queue`]:
//!   block requests; [`prepared`]: requests that are written once and sent repeatedly;
//! - [`front_end`]: the whole front end, which connects, and reconnects after the server died;
//! - [`verify`]: load in which every sector identifies itself.
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
