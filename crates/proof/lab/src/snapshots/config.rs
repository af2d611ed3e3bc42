//! Sizes, rounds and places.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::ValueEnum;
use strongroom_types::Extent;

use crate::first_writes::order::sequential;
use crate::first_writes::product::{ImageFormat, Product, StorageDaemon, Strongroom};
use crate::first_writes::session::{Place, Session as Guest};
use crate::study::{Pace, SubjectError};
use crate::vhost_user::front_end::Settings;

/// The requests that fill disks, in bytes.
const FILL_BYTES: u64 = 1 << 20;
const FILL_DEPTH: u16 = 8;

/// A part of the study.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// How long guests wait while snapshots are made at one instant.
    Gap,
    /// How long making a snapshot takes.
    Create,
    /// The speed of reads through a chain of layers.
    Chains,
    /// The speed of writes right after a snapshot.
    After,
    /// The speed of a guest while layers are merged.
    Merge,
    /// The speed of a guest while the data keys of its volume are renewed.
    Reencrypt,
    /// The speed of a guest while its volume moves to another directory.
    Move,
    /// How fast a volume that nobody uses is rewritten under new data keys.
    Rewrite,
}

impl Part {
    /// Those of snapshots, which are measured if none is named.
    pub const OF_SNAPSHOTS: [Self; 5] = [Self::Gap, Self::Create, Self::Chains, Self::After, Self::Merge];

    /// Its name, in files and plans.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gap => "gap",
            Self::Create => "create",
            Self::Chains => "chains",
            Self::After => "after",
            Self::Merge => "merge",
            Self::Reencrypt => "reencrypt",
            Self::Move => "move",
            Self::Rewrite => "rewrite",
        }
    }
}

/// The sizes of disks in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Each volume of a group.
    pub group: u64,
    /// The disk whose snapshot is timed.
    pub created: u64,
    /// How much of that is written.
    pub created_content: u64,
    /// The disk that is read through its layers.
    pub chain: u64,
    /// The disk that is written after a snapshot.
    pub after: u64,
    /// How much of those writes counts as "until the log is full"; by default the log's size.
    pub after_log: Option<u64>,
    /// Each of the two layers that are merged.
    pub merge: u64,
}

/// The configuration of all parts.
#[derive(Clone)]
pub struct SnapshotsConfig {
    /// The program.
    pub program: PathBuf,
    /// Where disks are made, in directories that are removed.
    pub scratch: PathBuf,
    /// Where sockets are: a short path.
    pub sockets: PathBuf,
    /// The key and the passphrase of all disks.
    pub secret: PathBuf,
    /// The sizes.
    pub sizes: Sizes,
    /// Numbers of volumes in a group.
    pub volumes: Vec<u16>,
    /// Requests of each guest in flight.
    pub depths: Vec<u16>,
    /// Pairs of windows in a measurement.
    pub pairs: usize,
    /// Snapshots of a volume, at most, before their layers are merged: it has at most 31 layers
    /// below its top. At least 2.
    pub snapshots_max: usize,
    /// The least duration of a window.
    pub window: Duration,
    /// Rounds of every part.
    pub rounds: u32,
    /// The counted time of a measurement of IOPS.
    pub duration: Duration,
    /// Whether QEMU's images are measured as well.
    pub has_peers: bool,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

impl SnapshotsConfig {
    /// Our volumes, encrypted or not.
    pub(super) fn strongroom(&self, name: &str, is_encrypted: bool) -> Strongroom {
        let key_file = is_encrypted.then(|| self.secret.clone());
        Strongroom { name: name.to_owned(), program: self.program.clone(), key_file, thick: false }
    }

    /// qcow2 images with LUKS.
    pub(super) fn qcow2(&self, name: &str) -> StorageDaemon {
        let (name, passphrase_file) = (name.to_owned(), self.secret.clone());
        StorageDaemon { name, format: ImageFormat::Qcow2Luks, passphrase_file }
    }

    /// An empty directory for disks.
    pub(super) fn fresh_directory(&self, name: &str) -> Result<PathBuf, SubjectError> {
        let path = self.scratch.join(name);
        remove_directory(&path)
            .and_then(|()| fs::create_dir_all(&path))
            .map_err(|error| format!("cannot make {}: {error}; choose another directory", path.display()))?;
        Ok(path)
    }

    /// A guest of one queue, with its server's files in `directory`.
    pub(super) fn place(&self, directory: &Path, depth: u16) -> Place {
        // libvhost-user (QEMU 7.2) mistakes a chain that crosses into the next region for a loop.
        let settings = Settings { splits_regions: false, ..Settings::new(1, depth) };
        let (directory, socket) = (directory.to_owned(), self.socket(directory));
        Place { directory, socket, settings, stop: Arc::clone(&self.stop) }
    }

    /// Writes the beginning of a disk, `bytes_max` at most, once for each snapshot, and makes that
    /// one; once if there is none. Afterwards the disk is at rest, and nobody serves it.
    pub(super) fn fill(
        &self,
        directory: &Path,
        product: &dyn Product,
        disk: &Path,
        bytes_max: u64,
        snapshots: &[&str],
    ) -> Result<(), SubjectError> {
        let mut guest = Guest::open(&self.place(directory, FILL_DEPTH), product, disk)?;
        let content = Extent::between(0, bytes_max.min(guest.disk_bytes()));
        for number in 0..snapshots.len().max(1) {
            guest.write(&mut sequential(content, FILL_BYTES), u64::MAX)?;
            if let Some(snapshot) = snapshots.get(number) {
                guest.snapshot(snapshot)?;
            }
        }
        guest.settle()?;
        guest.close()?;
        Ok(())
    }

    /// The socket of the server of a disk in `directory`.
    pub(super) fn socket(&self, directory: &Path) -> PathBuf {
        let below = directory.strip_prefix(&self.scratch).unwrap_or(directory);
        self.sockets.join(below.to_string_lossy().replace('/', "-"))
    }

    /// Measurements of IOPS.
    pub(super) fn pace(&self) -> Pace {
        Pace { rounds: self.rounds, warm_up: self.duration / 4, duration: self.duration }
    }
}

/// Removes a directory, if it is there.
pub(super) fn remove_directory(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// A size for tables.
pub(super) fn shown_bytes(bytes: u64) -> String {
    match bytes.is_multiple_of(1 << 30) {
        true => format!("{} GiB", bytes >> 30),
        false => format!("{} MiB", bytes >> 20),
    }
}
