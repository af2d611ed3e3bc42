//! Harness of the whole-system tests: processes that end with their test, QEMU guests, real peers.
//!
//! The tests in `tests/` are named after what a user does, and read like it. They run the built
//! program, never its crates, against the real other side. This crate is what they share:
//!
//! - [`Scratch`]: a directory of one test, for its datastore, sockets and logs; kept when the test
//!   fails.
//! - [`Process`]: a started program that cannot outlive its test, not even one that is killed.
//! - [`Volume`] and [`Exposure`]: a volume made and exposed by the program under test.
//! - [`Guest`]: a running QEMU guest, spoken to over its serial line, and over QMP where it must
//!   be.
//! - [`Serving`]: somebody who runs all of Strongroom, and VMs.
//! - [`Terminal`]: somebody at a terminal, who is asked and types.
//! - [`KeyServerUser`]: somebody who runs the embedded key server.
//! - [`CommandLine`]: the program's commands, as a user calls them; [`Snapshot`]: that they touched
//!   nothing else.
//! - [`datastore`]: what somebody who has stolen the datastore can see.
//!
//! **Promise:** a harness call that cannot do its work fails the test there and then, with the
//! log's path; so no call here returns an error, and none waits without a deadline.
//!
//! **May not enter:** anything that reaches into the program's crates (the lab is a peer, not the
//! program), and sleeping.

#![forbid(unsafe_code)]

mod build;
mod command_line;
pub mod datastore;
mod exercise;
pub mod family;
mod guest;
pub mod key_server;
mod libvirt;
mod process;
mod qmp;
mod scratch;
mod serving;
mod session;
mod snapshot;
mod socket;
mod terminal;
mod transcript;
mod volume;

pub use command_line::{CommandLine, assert_refused};
pub use exercise::{Exercise, ExerciseReport};
pub use guest::{AwaitedGuest, Guest, GuestPlan, Machine};
pub use key_server::KeyServerUser;
pub use libvirt::Libvirt;
pub use process::{Finished, Process, run};
pub use qmp::Qmp;
pub use scratch::Scratch;
pub use serving::{Console, Serving, end_vms};
pub use session::{Output, RunningCommand, Session};
pub use snapshot::Snapshot;
pub use terminal::Terminal;
pub use volume::{Exposure, Protection, Volume};
