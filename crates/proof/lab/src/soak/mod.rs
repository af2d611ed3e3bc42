//! A soak: volumes of several kinds under verified load for an hour, while whatever serves them is
//! killed, replaced, stopped, grown, re-keyed, disconnected and starved of room; and memory and
//! descriptors must stay flat.
//!
//! - [`kind`]: which volumes there are, and what happens to each.
//! - [`schedule`]: what happens next, by chance from a seed.
//! - [`volume`]: a volume by the program's command line, and the process that exposes it.
//! - [`guest`]: the load on one volume, held back to a rate.
//! - [`conductor`]: has the schedule happen, and waits until the load goes on.
//! - [`meter`]: what the processes take, again and again; [`flat`]: whether that stays so.
//! - [`run`]: all of it; [`report`]: what came of it.
//!
//! **Promise:** a soak that reports no violation has had every answer verified, every volume read
//! whole and checked at its end, and found nothing left of it: no process, no socket, no file.
//!
//! **May not enter:** anything of the program but its command line and its vhost-user socket.

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
