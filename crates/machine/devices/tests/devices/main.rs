//! Devices of this machine, as root: real FUSE, loop devices and a key server, and the built
//! program.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what tests found is for people to read")]

mod attached;
mod attacks;
mod ceph;
mod machine;
mod rekey;
