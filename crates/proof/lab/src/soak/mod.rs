//! A soak: volumes of several kinds under verified load for an hour, while their servers are
//! killed, replaced, stopped, disconnected and starved of room, and the volumes grown and re-keyed.
//! Memory and descriptors must stay flat.
//!
//! - [`kind`]: the kinds of volumes, and their events.
//! - [`schedule`]: the next event, at random from a seed.
//! - [`volume`]: a volume, driven by the program's command line, and the process that exposes it.
//! - [`guest`]: the load on one volume, limited to a rate.
//! - [`conductor`]: applies the schedule, and waits until the load continues.
//! - [`meter`]: samples of the processes' resources; [`flat`]: whether they stay flat.
//! - [`run`]: the whole soak; [`report`]: its result.
//!
//! **Promise:** a soak without violations has verified every answer, read and checked every volume
//! at the end, and found no leftover process, socket or file.
//!
//! **May not enter:** any interface of the program other than its command line and its vhost-user
//! socket.

pub mod conductor;
pub mod error;
pub mod flat;
pub mod gate;
pub mod guest;
pub mod kind;
pub mod meter;
pub mod report;
pub mod run;
pub mod schedule;
pub mod small_disk;
pub mod tools;
pub mod volume;

pub use error::SoakError;
pub use report::SoakReport;
pub use run::{SoakConfig, run};
