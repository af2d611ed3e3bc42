//! `strongroom vm disk attach --libvirt`, and `detach`: volumes as disks of guests that libvirt
//! runs, with neither an API nor a VM of ours.
//!
//! - [`attach`], [`detach`]: the commands.
//! - [`virsh`]: libvirt, through its own program. [`domain`], [`xml`]: what it says.
//! - [`service`]: who serves the volume from each start of the machine on.
//! - [`error`]: why not.

mod attach;
mod detach;
mod domain;
mod error;
mod service;
mod virsh;
mod xml;

pub use self::attach::AttachArguments;
pub use self::detach::DetachArguments;
pub use self::error::LibvirtError;
pub use self::service::Service;
