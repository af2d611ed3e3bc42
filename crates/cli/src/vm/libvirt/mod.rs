//! `strongroom vm disk attach --libvirt`, and `detach`: volumes as disks of guests that libvirt
//! runs. The implementation is in `strongroom_libvirt`.

mod attach;
mod detach;

pub use self::attach::AttachArguments;
pub use self::detach::DetachArguments;
