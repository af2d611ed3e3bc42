//! A vhost-user server of a virtio block device.
//!
//! One server serves one disk, on a unix socket, to one front end at a time (a second one may be
//! connected and wait for its turn, as in a migration): QEMU, or any other program that speaks the
//! protocol. The guest's memory is mapped here, and data is transferred directly between it and the
//! disk. The front end and the guest are not trusted: an invalid request ends their own queue or
//! session, never more.
//!
//! Layout, from the wire up:
//! - pure protocol: [`protocol`] (numbers and limits), [`message`], [`device`] (features,
//!   configuration space);
//! - the guest's memory: [`guest_memory`] (regions), [`dirty_log`], [`split_ring`], [`chain`];
//! - state that outlives this process: [`in_flight`], in memory that the front end keeps;
//!   [`suspended`], for an orderly hand-over to a successor;
//! - requests: [`pending`], one; [`transfers`], all of a queue;
//! - threads: [`queue`], one lane each; [`channel`], [`ring_setup`] and [`session`], a front end's
//!   connection; [`seats`], which session waits for which; [`activity`], which one runs the device;
//!   [`server`].

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
