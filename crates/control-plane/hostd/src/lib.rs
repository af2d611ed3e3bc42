//! hostd, the daemon of one host.
//!
//! - [`daemon`]: hostd. [`checks`]: whether this machine is fit for it. `boot_files`: the files of
//!   the host that VMs boot from, as both regard them.
//! - Its protocol and the paths of VMs are in `strongroom_host`.
//!
//! hostd holds no key and sees no guest data: it depends on no crate with a type for a key. The
//! VM's supervisor, a separate process, does everything that needs one and fetches it
//! (`strongroom_vm_supervisor`). hostd starts it as a program and does not link it.
#![forbid(unsafe_code)]

mod boot_files;
pub mod checks;
pub mod daemon;
#[cfg(test)]
mod former;
