//! Volumes of several layers, without their data path: adding, describing, opening, growing,
//! checking and deleting layers; and every way in which that is refused or interrupted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod additions;
mod between_hosts;
mod clones;
mod damage;
mod life;
mod maps;
mod relocation;
mod snapshots;
#[path = "../support/mod.rs"]
mod support;
mod volume;
