//! hostd, the daemon of one host, and the VM supervisor, a process for each running VM.
//!
//! - [`protocol`]: what hostd is asked and answers, as types. [`client`]: how it is asked.
//! - [`daemon`]: hostd. [`supervisor`]: the process of one VM.
//! - [`checks`]: whether this machine is fit for it.
//! - [`run_directory`], [`vm_directory`]: where a VM is, while it runs and for good; [`vm_lock`]: one at a time; `dumps`: its dumps.
//! - [`process`], [`proof`], [`wire`]: how processes of one host know each other and speak.
//!
//! hostd holds no key and sees no guest data. What needs a key is done by the VM supervisor of that VM, which fetches it.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_types, reason = "its locks become parking_lot's when its rooms are split")]

pub mod attestation;
pub mod checks;
pub mod client;
pub mod daemon;
mod dumps;
#[cfg(test)]
mod former;
pub mod process;
pub mod proof;
pub mod protocol;
pub mod run_directory;
pub mod supervisor;
pub mod vm_directory;
pub mod vm_lock;
pub mod wire;
