//! The harness of the whole-system tests: processes that end with their test, QEMU guests, real
//! peers.
//!
//! The tests in `tests/` are named after user actions, and read like them. They run the built
//! program, never its crates, against real peers. This crate has their common parts:
//!
//! - [`Scratch`]: the directory of one test, for its datastore, sockets and logs; kept when the
//!   test fails.
//! - [`Process`]: a started program that cannot outlive its test, not even a killed one.
//! - [`Volume`] and [`Exposure`]: a volume made and exposed by the program under test.
//! - [`Guest`]: a running QEMU guest, driven over its serial line, and over QMP where necessary.
//! - [`Serving`]: a user who runs all of Strongroom, and VMs.
//! - [`Terminal`]: a user at a terminal, who answers questions.
//! - [`KeyServerUser`]: a user who runs the embedded key server.
//! - [`CommandLine`]: the program's commands, as a user calls them; [`Snapshot`]: checks that they
//!   changed nothing else.
//! - [`datastore`]: what a thief of the datastore can see.
//!
//! **Promise:** a harness call that cannot do its work fails the test at once, with the log's path.
//! So no call here returns an error, and none waits without a timeout.
//!
//! **May not enter:** anything that uses the program's crates (the lab is a peer, not the program),
//! and sleeping.

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

use std::hash::{BuildHasher, Hasher, RandomState};

pub use command_line::{CommandLine, assert_refused};
pub use exercise::{Exercise, ExerciseReport};
pub use guest::{AwaitedGuest, Guest, GuestPlan, Machine};
pub use key_server::KeyServerUser;
pub use libvirt::Libvirt;
pub use process::{Finished, Process, run};
pub use qmp::Qmp;
pub use scratch::Scratch;
pub use serving::{
    Console, Serving, end_vms, end_vms_in, put_test_guest, put_test_guest_for_uefi, take_place,
};
pub use session::{Output, RunningCommand, Session};
pub use snapshot::Snapshot;
pub use terminal::Terminal;
pub use volume::{Exposure, Protection, Volume};

/// The seed of a test that does things at random: `STRONGROOM_SEED`, or another one in each run.
/// The test prints it.
pub fn seed() -> u64 {
    let given = std::env::var("STRONGROOM_SEED").ok().and_then(|text| text.parse().ok());
    given.unwrap_or_else(|| RandomState::new().build_hasher().finish())
}
