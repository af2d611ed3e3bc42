//! Volumes on a real cluster.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod conformance;
mod erasure_code;
mod fencing;
mod full;
mod hosts;
mod life;
mod names;
mod process;
mod support;
mod trouble;
