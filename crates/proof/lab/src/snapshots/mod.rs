//! Snapshots: what guests notice of them, and what they cost before, during and after.
//!
//! - [`gap`]: how long guests wait while snapshots of several volumes are made at one instant;
//!   [`windows`]: gaps between answers; [`pairs`]: the figures of all pairs of windows.
//! - [`create`]: how long making a snapshot takes.
//! - [`chains`]: the speed of reads through many layers.
//! - [`after`]: the speed of writes right after a snapshot.
//! - [`merge`]: the speed of a guest while layers are merged.
//! - [`jobs`]: the same while data keys are renewed, or the volume moves; [`rewrite`]: how fast
//!   data keys are renewed.
//! - [`config`]: sizes and rounds; [`run`]: the order of the work, and its files; [`goals`]: what
//!   was to be reached.
//!
//! Disks are made and served by [products](crate::first_writes::product), as in the study of first
//! writes, and loaded by its writer or by [guests](crate::datapath::guest_load).

pub mod after;
pub mod chains;
pub mod config;
pub mod create;
pub mod gap;
pub mod goals;
pub mod jobs;
pub mod merge;
pub mod pairs;
pub mod rewrite;
pub mod run;
pub mod windows;
