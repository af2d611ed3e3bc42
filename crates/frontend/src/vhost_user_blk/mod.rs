//! A vhost-user server of a virtio block device.
//!
//! One server serves one disk, on a unix socket, to one front end at a time: QEMU, or whatever else speaks the
//! protocol. The guest's memory is mapped here, and what a request transfers goes straight between it and the disk.
//! The front end and the guest may say anything: what cannot be served ends their own queue or session, never more.
//!
//! Layout, from the wire up:
//! - pure protocol: [`protocol`] (numbers and limits), [`message`], [`device`] (features, configuration space);
//! - the guest's memory: [`guest_memory`] (regions), [`split_ring`], [`chain`];
//! - requests: [`pending`], one; [`transfers`], all of a queue;
//! - threads: [`queue`], one each; [`channel`], [`ring_setup`] and [`session`], the front end's connection;
//!   [`server`].

mod chain;
mod channel;
mod device;
mod guest_memory;
mod message;
mod pending;
mod protocol;
mod queue;
mod ring_setup;
mod server;
mod session;
mod split_ring;
mod transfers;

pub use protocol::{DRAIN_TIMEOUT, QUEUES_MAX};
pub use server::{StartError, StopError, VhostUserConfig, VhostUserServer};
