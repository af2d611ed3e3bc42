//! The file systems under test: making, mounting, examining and unmounting each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::image::Image;

/// How long the kernel may take to close files that a dropped ring had open.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub struct FileSystem {
    pub name: &'static str,
    kind: &'static str,
    /// The minimum size, plus some room for volumes.
    device_mib: u64,
    make: &'static [&'static str],
    mount_options: &'static str,
    /// Whether a block of the device, with its content, must persist whole or not at all, because
    /// the file system itself does not tolerate a torn one.
    pub stays_whole: fn(u64, &[u8]) -> bool,
    /// Whether a block that is written again stays where it is.
    pub overwrites_in_place: bool,
    /// Examines without changing anything, and fails on damage.
    examine: &'static [&'static str],
}

/// Small file systems get blocks of 1024 bytes by default, which no real datastore has.
pub const EXT4: FileSystem = FileSystem {
    name: "ext4",
    kind: "ext4",
    device_mib: 128,
    make: &["mkfs.ext4", "-q", "-b", "4096"],
    mount_options: "discard",
    stays_whole: holds_superblock_of_ext4,
    overwrites_in_place: true,
    examine: &["e2fsck", "-f", "-n"],
};

/// One that is soon full.
pub const SMALL_EXT4: FileSystem = FileSystem { name: "ext4, small", device_mib: 64, ..EXT4 };

pub const EXT4_WRITEBACK: FileSystem =
    FileSystem { name: "ext4, data=writeback", mount_options: "discard,data=writeback", ..EXT4 };

/// The minimum size of `mkfs.xfs`.
pub const XFS: FileSystem = FileSystem {
    name: "XFS",
    kind: "xfs",
    device_mib: 300,
    make: &["mkfs.xfs", "-q"],
    mount_options: "discard",
    stays_whole: is_metadata_of_xfs,
    overwrites_in_place: true,
    examine: &["xfs_repair", "-n", "-f"],
};

pub const BTRFS: FileSystem = FileSystem {
    name: "btrfs",
    kind: "btrfs",
    device_mib: 256,
    make: &["mkfs.btrfs", "-q"],
    mount_options: "discard=sync",
    stays_whole: is_superblock_of_btrfs,
    overwrites_in_place: false,
    examine: &["btrfs", "check", "--readonly"],
};

pub const BTRFS_NODATACOW: FileSystem = FileSystem {
    name: "btrfs, nodatacow",
    mount_options: "discard=sync,nodatacow",
    overwrites_in_place: true,
    ..BTRFS
};

/// Its 1024 bytes have one checksum, which is wrong if they are torn, and the journal is found
/// through them. `e2fsck` repairs that from a copy.
fn holds_superblock_of_ext4(offset: u64, _content: &[u8]) -> bool {
    offset == 0
}

/// The same with 4096 bytes; `btrfs rescue super-recover` repairs it.
fn is_superblock_of_btrfs(offset: u64, _content: &[u8]) -> bool {
    offset == 64 << 10
}

/// Recovery replays the log into a block unless the block's header, in its first sector, says that
/// this was done (`xlog_recover_get_buf_lsn` in the kernel's `xfs_buf_item_recover.c`). A block of
/// which only the first sector is new is skipped, and its checksum is wrong. The log itself and
/// inodes, of one sector each, may be torn.
fn is_metadata_of_xfs(_offset: u64, content: &[u8]) -> bool {
    // Of xfs_format.h and xfs_da_format.h: B+trees of extents, space, inodes, references and
    // owners; directories.
    const MAGIC: [&[u8; 4]; 11] =
        [b"BMA3", b"AB3B", b"AB3C", b"IAB3", b"FIB3", b"R3FC", b"RMB3", b"XDB3", b"XDD3", b"XDF3", b"XSLM"];
    // Leaves and nodes of directories and attributes.
    const MAGIC_AT_8: [[u8; 2]; 4] = [[0x3D, 0xF1], [0x3D, 0xFF], [0x3B, 0xEE], [0x3E, 0xBE]];
    MAGIC.iter().any(|magic| content.starts_with(&magic[..]))
        || content.get(8..10).is_some_and(|found| MAGIC_AT_8.iter().any(|magic| found == magic))
}

impl FileSystem {
    /// A fresh one.
    pub fn make(&self, place: &Path) -> Image {
        let path = place.join("fresh");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(self.device_mib << 20).unwrap();
        let (program, options) = self.make.split_first().unwrap();
        run(Command::new(program).args(options).arg(&path)).unwrap();
        let image = Image::read_from(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        image
    }

    /// Mounts the file system that a file holds; the journal is replayed.
    pub fn mount(&self, image: &Path, at: &Path) -> Result<Mounted, String> {
        let options = format!("loop,{}", self.mount_options);
        run(Command::new("mount").args(["-t", self.kind, "-o", &options]).arg(image).arg(at))?;
        Ok(Mounted(at.to_owned()))
    }

    /// Checks an image for damage. The image must have been mounted, so that its journal is empty.
    pub fn examine(&self, image: &Path) -> Result<(), String> {
        let (program, options) = self.examine.split_first().unwrap();
        run(Command::new(program).args(options).arg(image))
    }
}

/// A mounted file system. Its loop device goes with the mount.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn path(&self) -> &Path {
        &self.0
    }

    fn unmount(&self) -> Result<(), Errno> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match unmount(&self.0, UnmountFlags::empty()) {
                Err(Errno::BUSY) if Instant::now() < deadline => std::thread::yield_now(),
                ended => return ended,
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let ended = self.unmount();
        assert!(ended.is_ok() || std::thread::panicking(), "{} stays mounted: {ended:?}", self.0.display());
    }
}

/// Runs a program; its output is the error.
pub fn run(command: &mut Command) -> Result<(), String> {
    let named = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{named}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(format!("{named}: {}: {}", output.status, String::from_utf8_lossy(&words).trim()))
}
