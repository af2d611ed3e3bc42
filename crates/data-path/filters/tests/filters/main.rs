//! Filters over a disk in memory: alone, stacked, reordered and under faults.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod blocksize;
mod conformance;
mod crypt;
mod instruments;
mod park;
mod properties;
mod qos;
mod support;
mod switch;
