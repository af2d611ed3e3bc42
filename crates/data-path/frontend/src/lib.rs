//! What a guest or client connects to.
//!
//! [`nbd`] serves a volume over the Network Block Device protocol, to anything that speaks it:
//! QEMU, libnbd, the Linux kernel. [`vhost_user_blk`] serves it to a virtual machine as a virtio
//! disk. A frontend stands above the whole stack of a volume and sees it as one
//! [`Disk<Plain>`](strongroom_io::Disk); keys, layers and files do not enter this room, and neither
//! does the control plane.
#![forbid(unsafe_code)]

mod failure;
mod last_flush;
pub mod listen;
pub mod nbd;
pub mod vhost_user_blk;
