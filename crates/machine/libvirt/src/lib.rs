//! Volumes as disks of guests that libvirt runs, with neither an API nor a VM of ours.
//!
//! - [`Attach`], [`Detach`]: a volume becomes a disk of a domain, and no longer is one.
//! - [`Libvirt`]: libvirt, spoken to through its own program, virsh.
//! - [`Service`]: systemd's unit that serves a volume from each start of the machine on.
//! - [`device`]: a volume as a device in a domain's XML.
//!
//! What it promises:
//! - A volume is a disk of one domain at a time.
//! - What fails half way is undone, unless it was there before. Called again, both go on.
//! - A disk's server ends only after the guest has let go of the disk.
//!
//! What may not enter: keys. The caller tries a volume's key, and says by which arguments
//! `volume expose` has it. Nothing is printed here: the caller hears remarks.
#![forbid(unsafe_code)]

mod attach;
mod detach;
pub mod device;
mod domain;
mod error;
mod service;
mod virsh;

pub use self::attach::{Attach, Attached, KeyWords};
pub use self::detach::{Detach, Detached};
pub use self::domain::is_target;
pub use self::error::LibvirtError;
pub use self::service::Service;
pub use self::virsh::{Libvirt, Scope};
