//! The measured products: command lines of programs that make disks and serve them over vhost-user.

mod storage_daemon;
mod strongroom;

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

pub use storage_daemon::{ImageFormat, StorageDaemon};
pub use strongroom::{MergeFacts, Strongroom};

use super::error::StudyError;

/// A program that makes and serves disks.
pub trait Product: Send + Sync {
    /// Its name in reports.
    fn name(&self) -> &str;

    /// Makes an empty disk of `bytes` at `place`.
    fn create(&self, place: &Path, bytes: u64) -> Result<(), StudyError>;

    /// The command that serves the disk at `place` to one guest at a time, until it is ended.
    fn serve(&self, place: &Path, socket: &Path, queues: u16) -> Command;

    /// Whether acknowledged but unflushed writes survive the killing of its processes.
    fn outlives_kill(&self) -> bool;

    /// Its first-write log, if it has one and reports it.
    fn log(&self, place: &Path) -> Result<Option<LogFacts>, StudyError>;

    /// Makes a snapshot: later writes go to a new layer, or to a new image above the present one.
    fn snapshot(&self, place: &Path, name: &str) -> Result<(), StudyError>;

    /// Whether it can make one while the disk is served.
    fn snapshots_while_served(&self) -> bool;

    /// Deletes the latest snapshot. The disk has a layer less, and the content of either.
    fn delete_snapshot(&self, place: &Path, name: &str) -> Result<(), StudyError>;

    /// Deletes the disk.
    fn delete(&self, place: &Path) -> Result<(), StudyError>;
}

/// The first-write log in the output of `strongroom volume info --json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct LogFacts {
    /// Its capacity in bytes.
    pub size_bytes: u64,
    /// The bytes not yet destaged; `None` if not reported.
    pub used_bytes: Option<u64>,
}
