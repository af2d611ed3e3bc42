//! Whether a machine is fit for VMs whose disks are encrypted, and stays so.
//!
//! - [`examine`] looks at the machine, at what is set up on it, and at what its key server and its
//!   control plane say.
//! - `cold_start`: the circle of a VM that waits for a key that is only to be had once that VM
//!   runs.
//! - `installation`: home, key server, certificates, processes of an older program.
//!
//! What it promises: nothing is changed; what cannot be looked at is said, and the rest is looked
//! at all the same.
//!
//! What may not enter: asking. The caller has the certificates and tokens with which key server and
//! control plane are asked, and brings their answers ([`Asked`]).
#![forbid(unsafe_code)]

mod cold_start;
mod examination;
mod installation;
mod provides_keys;

pub use self::examination::{Asked, Configuration, Diagnosis, Installation, examine};
pub use self::installation::{Certificate, KeyServer, KeyServerAnswer};
pub use self::provides_keys::ProvidesKeys;
