//! Which file systems can hold volumes, and what each can do.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use strongroom_types::{BLOCK_BYTES, Redundancy};

use rustix::fs::{fstat, fstatfs, fstatvfs, major, minor};

use super::directory::system;
use super::error::DatastoreError;

/// The file systems that the error message names.
pub(super) const SUPPORTED: &str = "ext4, XFS, btrfs or tmpfs";

/// A write of at least this length goes in place only: writing it to the log too would cost more
/// than the log saves.
const FILL_BYTES_MIN: u64 = 64 << 10;

/// A file system whose promises are tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// btrfs.
    Btrfs,
    /// tmpfs; its content does not survive a reboot.
    Tmpfs,
    /// A Ceph cluster.
    Ceph,
}

impl fmt::Display for FileSystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "XFS",
            Self::Btrfs => "btrfs",
            Self::Tmpfs => "tmpfs",
            Self::Ceph => "Ceph",
        })
    }
}

/// The file system of a datastore, and its room.
#[derive(Clone, Copy, Debug)]
pub struct FileSystem {
    /// Its kind.
    pub kind: FileSystemKind,
    /// The least bytes of a first write that goes in place. There the file system never tears a
    /// block that it writes for the first time: the extent turns from unwritten to written in one
    /// step, after the data. `docs/decisions/0008` says how that was tested. `None` if the file
    /// system gives no such guarantee.
    pub fill_bytes_min: Option<u64>,
    /// Whether an aligned block is always written whole, even in place. Layers then need no
    /// first-write log.
    pub writes_whole_blocks: bool,
    /// Whether space can be reserved for a file. Thick volumes need that.
    pub reserves_space: bool,
    /// Whether no two syncs of one file may be under way at once: the file system would acknowledge
    /// some of them early.
    pub syncs_in_turn: bool,
    /// Total bytes.
    pub total_bytes: u64,
    /// Bytes that this process may still allocate.
    pub available_bytes: u64,
    /// How many losses its data outlives, if that is known.
    pub redundancy: Option<Redundancy>,
}

/// Identifies the file system of `file`, or refuses it with the reason.
pub(super) fn recognise(file: impl AsFd, path: &Path) -> Result<FileSystem, DatastoreError> {
    let stats = fstatfs(&file).map_err(system("examine the file system of", path))?;
    let mounted_as = mounted_type(&file);
    let refuse =
        |kind: String, reason| Err(DatastoreError::FileSystem { path: path.to_owned(), kind, reason });
    // statfs(2)'s magic numbers. ext2, ext3 and ext4 share one; only the mount table tells them
    // apart.
    let kind = match (stats.f_type as u64 & 0xFFFF_FFFF, mounted_as.as_deref()) {
        (0xEF53, Some(older @ ("ext2" | "ext3"))) => {
            return refuse(older.to_owned(), "it has no extents and no unwritten blocks");
        }
        (0xEF53, _) => FileSystemKind::Ext4,
        (0x5846_5342, _) => FileSystemKind::Xfs,
        (0x9123_683E, _) => FileSystemKind::Btrfs,
        (0x0102_1994, mounted) if mounted != Some("devtmpfs") => FileSystemKind::Tmpfs,
        (0x6969 | 0xFF53_4D42 | 0xFE53_4D42 | 0x517B | 0x00C3_6400 | 0x0102_1997, mounted) => {
            let kind = mounted.unwrap_or("of the network").to_owned();
            return refuse(kind, "a dead host's late writes cannot be fenced there");
        }
        (magic, mounted) => {
            let kind = mounted.map_or_else(|| format!("{magic:#x}"), str::to_owned);
            return refuse(kind, "its handling of holes and flushes is not tested");
        }
    };
    let space = fstatvfs(&file).map_err(system("examine the file system of", path))?;
    // tmpfs does not survive a power cut, so it cannot be torn by one.
    let fills_whole = kind == FileSystemKind::Tmpfs || space.f_frsize >= BLOCK_BYTES;
    Ok(FileSystem {
        kind,
        fill_bytes_min: fills_whole.then_some(FILL_BYTES_MIN),
        writes_whole_blocks: false,
        reserves_space: true,
        // Linux 6.18; `docs/decisions/0008` has the figures. ext4 and XFS never did so.
        syncs_in_turn: kind == FileSystemKind::Btrfs,
        total_bytes: space.f_blocks.saturating_mul(space.f_frsize),
        available_bytes: space.f_bavail.saturating_mul(space.f_frsize),
        redundancy: None,
    })
}

/// The type of the file system of `file`, from this process's mount table. btrfs subvolumes have
/// separate device numbers and are not found, but their magic number is enough.
fn mounted_type(file: impl AsFd) -> Option<String> {
    let device = fstat(file).ok()?.st_dev;
    let device = format!("{}:{}", major(device), minor(device));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let matches = mount.split(' ').nth(2)? == device;
        matches.then(|| source.split(' ').next().unwrap_or_default().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pseudo_file_systems_are_refused_by_name() {
        for (path, kind) in [("/proc", "proc"), ("/sys", "sysfs")] {
            let directory = std::fs::File::open(path).unwrap();
            let error = recognise(&directory, Path::new(path)).unwrap_err();
            assert!(
                matches!(&error, DatastoreError::FileSystem { kind: found, .. } if found == kind),
                "{error}"
            );
            assert!(error.to_string().contains(SUPPORTED), "{error}");
        }
    }

    #[test]
    fn tmpfs_is_known() {
        let directory = std::fs::File::open("/dev/shm").unwrap();
        assert_eq!(recognise(&directory, Path::new("/dev/shm")).unwrap().kind, FileSystemKind::Tmpfs);
    }
}
