//! Volumes as block devices of this machine, for programs that use no VM: a Ceph daemon, LVM, a
//! file system.
//!
//! ```text
//! OSD, LVM, file system
//!   | /dev/strongroom/NAME
//! loop device, direct I/O       in the kernel
//!   | one file of a FUSE file system
//! device process ([`process`])  plain blocks in transit; no key, no volume's file
//!   | NBD, a unix socket
//! worker                        DEKs; as for any exposed volume
//! ```
//!
//! A device is a record in the home ([`record`]): which volume, and whether it is attached. The
//! service ([`service`]) has one device process for each attached record; that starts `volume
//! expose` for its volume, which holds the key and waits while there is none.
//!
//! - A request that the worker did not answer is repeated at its successor ([`requests`]): a device
//!   stops, and never fails, while its worker or its supervisor is replaced.
//! - A flush of the device is a flush of the volume; a discard frees its blocks, which then read as
//!   zeros.
//! - A device process outlives the service that started it. Its successor waits for its lock.
//!
//! Out of scope: keys, and formats of volumes. The caller makes, opens and deletes volumes.

#![forbid(unsafe_code)]

mod error;
mod file_system;
mod loop_device;
mod nbd;
pub mod process;
pub mod record;
mod requests;
pub mod service;
pub mod status;
mod watch;

pub use error::DeviceError;
pub use loop_device::User;
