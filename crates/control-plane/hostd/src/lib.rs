//! hostd, the daemon of one host.
//!
//! - [`daemon`]: hostd. [`checks`]: whether this machine is fit for it.
//! - What it is asked, and where VMs are, is in `strongroom_host`.
//!
//! hostd holds no key and sees no guest data: it depends on no room that has a type for a key. What
//! needs one is done by the supervisor of that VM, a process of its own, which fetches it
//! (`strongroom_vm_supervisor`). hostd starts it as a program and does not link it.
#![forbid(unsafe_code)]

pub mod checks;
pub mod daemon;
#[cfg(test)]
mod former;
