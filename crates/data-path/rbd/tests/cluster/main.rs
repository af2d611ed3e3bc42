//! Volumes on a real cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod conformance;
mod fencing;
mod hosts;
mod life;
mod names;
mod process;
mod support;
mod trouble;
