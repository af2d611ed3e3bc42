//! A vhost-user server of a virtio block device.
//!
//! One server serves one disk, on a unix socket, to one front end at a time (a second one may be
//! connected and wait for its turn, as in a migration): QEMU, or whatever else speaks the protocol.
//! The guest's memory is mapped here, and what a request transfers goes straight between it and the
//! disk. The front end and the guest may say anything: what cannot be served ends their own queue
//! or session, never more.
//!
//! Layout, from the wire up:
//! - pure protocol: [`protocol`] (numbers and limits), [`message`], [`device`] (features,
//!   configuration space);
//! - the guest's memory: [`guest_memory`] (regions), [`dirty_log`], [`split_ring`], [`chain`];
//! - what outlives this process: [`in_flight`], in memory that the front end keeps; [`suspended`],
//!   what a successor is handed in order;
//! - requests: [`pending`], one; [`transfers`], all of a queue;
//! - threads: [`queue`], one lane each; [`channel`], [`ring_setup`] and [`session`], a front end's
//!   connection; [`seats`], who waits for whom; [`activity`], who runs the device; [`server`].

mod activity;
mod chain;
mod channel;
mod device;
mod dirty_log;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod guest_memory;
mod in_flight;
mod message;
mod pending;
mod protocol;
mod queue;
mod ring_setup;
mod seats;
mod server;
mod session;
mod spinning;
mod split_ring;
mod suspended;
mod transfers;

pub use protocol::{DRAIN_TIMEOUT, QUEUES_MAX, SESSIONS_MAX};
pub use server::{ResumeError, StartError, StopError, VhostUserConfig, VhostUserServer};
pub use suspended::{SUSPENDED_FILES_MAX, Suspended, SuspendedState};
