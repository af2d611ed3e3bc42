//! The frontends, to which guests and clients connect.
//!
//! [`nbd`] serves a volume over the Network Block Device protocol, to any client of it: QEMU,
//! libnbd, the Linux kernel. [`vhost_user_blk`] serves it to a virtual machine as a virtio disk. A
//! frontend is above the whole stack of a volume and sees it as one
//! [`Disk<Plain>`](strongroom_io::Disk). This crate has no access to keys, layers, files or the
//! control plane.
#![forbid(unsafe_code)]

mod failure;
mod last_flush;
pub mod listen;
pub mod nbd;
pub mod vhost_user_blk;
