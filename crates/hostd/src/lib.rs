//! hostd, the daemon of one host, and the VM supervisor, a process for each running VM.
//!
//! - [`protocol`]: what hostd is asked and answers, as types. [`client`]: how it is asked.
//!
//! hostd holds no key and sees no guest data. What needs a key is done by the VM supervisor of that VM, which fetches it.
#![forbid(unsafe_code)]

pub mod client;
pub mod protocol;
