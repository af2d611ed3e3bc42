//! The host's file systems, by system calls.

use std::any::Any;
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path};
use std::sync::Arc;

use rustix::fs::{
    Advice, AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, IFlags, Mode, OFlags, RenameFlags,
    ResolveFlags, SeekFrom, fadvise, fallocate, fcntl_getfl, fcntl_setfl, flock, fstat, fstatvfs, fsync,
    ftruncate, ioctl_getflags, ioctl_setflags, linkat, mkdir, openat, openat2, renameat, renameat_with,
    rmdir, seek, statat, syncfs, unlinkat,
};
use rustix::io::{Errno, pread, pwrite};
use strongroom_io::DataFile;

use super::directory::{layer_of_name, parent_of};
use super::error::DatastoreError;
use super::filesystem::{self, FileSystem};
use super::identity::MARK;
use super::lock;
use super::storage::{Directory, EntryKind, Lockable, Storage, StoredFile};

/// The unit of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// The most entries of a directory that is listed. No volume and no datastore has as many; somebody
/// who fills one must not make a host read without end.
const NAMES_MAX: usize = 1 << 16;

/// The host's file systems.
pub(super) struct Host;

impl Storage for Host {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        Ok(Arc::new(HostDirectory(open_within(path, Within::Datastore)?)))
    }

    fn open_volume(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        Ok(Arc::new(HostDirectory(open_within(path, Within::Volume)?)))
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        mkdir(path, Mode::RWXU)
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        rmdir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        let ((source, old), (target, new)) = (place_of(from)?, place_of(to)?);
        renameat_with(&source, old, &target, new, RenameFlags::NOREPLACE)
    }

    fn exists(&self, path: &Path) -> bool {
        statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    fn is_directory(&self, path: &Path) -> bool {
        path.is_dir()
    }
}

/// The directory above a path, which no link below its datastore leads to, and the path's name in
/// it.
fn place_of(path: &Path) -> Result<(OwnedFd, &OsStr), Errno> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    Ok((open_within(parent_of(path), Within::Datastore)?, name))
}

/// What kind of directory the last component of a path names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    /// A datastore, which may be reached through links, or a VM in one.
    Datastore,
    /// A volume of a datastore, or of a VM in one.
    Volume,
}

/// Opens a directory without following links below its datastore. The datastore is the directory
/// that has a mark; the directory above a volume counts as one even without a mark.
fn open_within(path: &Path, within: Within) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut datastore = path;
    if within == Within::Volume {
        datastore = above(datastore).unwrap_or(datastore);
    }
    datastore = above(datastore).filter(|above| bears_mark(above)).unwrap_or(datastore);
    let below = match path.strip_prefix(datastore) {
        Ok(below) if !below.as_os_str().is_empty() => below,
        // `strip_prefix` does not know that `vm1` lies in `.`.
        _ if datastore == Path::new(".") && path != datastore => path,
        _ => return openat(CWD, path, flags | OFlags::RDONLY, Mode::empty()),
    };
    let datastore = openat(CWD, datastore, flags | OFlags::PATH, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(datastore, below, flags | OFlags::RDONLY, Mode::empty(), resolve)
}

/// The parent of a path, if its last component is a name.
fn above(path: &Path) -> Option<&Path> {
    match path.components().next_back() {
        Some(Component::Normal(_)) => Some(parent_of(path)),
        _ => None,
    }
}

fn bears_mark(directory: &Path) -> bool {
    statat(CWD, directory.join(MARK), AtFlags::SYMLINK_NOFOLLOW).is_ok()
}

/// A directory, held open, so that changes of its path do not matter.
struct HostDirectory(OwnedFd);

impl Lockable for HostDirectory {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        flock(&self.0, operation)
    }

    fn lock_holder(&self) -> Option<u32> {
        lock::holder(&self.0)
    }
}

impl Directory for HostDirectory {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn file_system(&self, path: &Path) -> Result<FileSystem, DatastoreError> {
        filesystem::recognise(&self.0, path)
    }

    /// Links are not followed: a datastore is not trusted to name our files.
    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::NONBLOCK;
        let file = openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)?;
        if flags.contains(OFlags::CREATE) && layer_of_name(name).is_some() {
            overwrite_in_place(&file);
        }
        forget_reads(&file);
        Ok(Box::new(HostFile(file.into())))
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.0)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name != "." && name != ".." {
                names.push(name);
            }
            if names.len() > NAMES_MAX {
                return Err(Errno::TOOBIG);
            }
        }
        names.sort();
        Ok(names)
    }

    fn kind(&self, name: &str) -> Result<EntryKind, Errno> {
        let stat = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File,
            FileType::Directory => EntryKind::Directory,
            _ => EntryKind::Other,
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        renameat(&self.0, from, &self.0, to)
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        unlinkat(&self.0, name, AtFlags::empty())
    }

    /// The link is made by name: one by open file would need `/proc`, or a capability.
    fn link(&self, from: &dyn Directory, name: &str, file: &dyn StoredFile) -> Result<(), Errno> {
        let meant = fstat(file.as_fd().ok_or(Errno::OPNOTSUPP)?)?;
        linkat(from.as_fd().ok_or(Errno::XDEV)?, name, &self.0, name, AtFlags::empty())?;
        let made = statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (made.st_dev, made.st_ino) == (meant.st_dev, meant.st_ino) {
            return Ok(());
        }
        let _ = self.remove(name);
        Err(Errno::STALE)
    }

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?.st_blocks as u64 * STAT_BLOCK_BYTES)
    }

    fn link_count(&self, name: &str) -> Result<u64, Errno> {
        Ok(statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)?.st_nlink)
    }

    fn sync(&self) -> Result<(), Errno> {
        fsync(&self.0)
    }

    fn sync_file_system(&self) -> Result<(), Errno> {
        syncfs(&self.0)
    }
}

/// Makes btrfs overwrite blocks in place: with copy on write, every overwrite takes new space and
/// metadata, at a fifth of the speed (measured). The flag can be set only on an empty file. Other
/// file systems have no such flag, and need none.
fn overwrite_in_place(file: &OwnedFd) {
    if let Ok(flags) = ioctl_getflags(file) {
        let _ = ioctl_setflags(file, flags | IFlags::NOCOW);
    }
}

/// Turns off access time updates: checking the access time costs 1 to 2 % of a small read. Only the
/// file's owner may turn them off.
fn forget_reads(file: &OwnedFd) {
    if let Ok(flags) = fcntl_getfl(file) {
        let _ = fcntl_setfl(file, flags | OFlags::NOATIME);
    }
}

/// An open file of the kernel that another process gave.
pub fn adopt_host_file(file: OwnedFd) -> Arc<dyn StoredFile> {
    Arc::new(HostFile(file.into()))
}

/// An open file. Its lock ends with the last use of the open file, the kernel's uses included.
pub(super) struct HostFile(pub(super) File);

impl DataFile for HostFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_fd())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for HostFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Lockable for HostFile {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        flock(&self.0, operation)
    }

    fn lock_holder(&self) -> Option<u32> {
        lock::holder(&self.0)
    }
}

impl StoredFile for HostFile {
    fn length(&self) -> Result<u64, Errno> {
        let stat = fstat(&self.0)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => Ok(stat.st_size as u64),
            _ => Err(Errno::NOTSUP),
        }
    }

    fn link_count(&self) -> Result<u64, Errno> {
        Ok(fstat(&self.0)?.st_nlink)
    }

    fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        ftruncate(&self.0, bytes)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        // Refused at once, because ext4 first takes all the room there is, and other volumes lack
        // it until it is given back. A worker may not ask, and allocates nothing of that length.
        let own_bytes = fstat(&self.0)?.st_blocks as u64 * STAT_BLOCK_BYTES;
        let is_beyond = fstatvfs(&self.0).is_ok_and(|space| {
            let free_bytes = space.f_bfree.saturating_mul(space.f_frsize);
            // A file system without a limit, such as a tmpfs, says that it has no blocks.
            space.f_blocks > 0 && bytes > free_bytes.saturating_add(own_bytes)
        });
        if is_beyond {
            return Err(Errno::NOSPC);
        }
        fallocate(&self.0, FallocateFlags::empty(), offset, bytes)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < into.len() {
            match pread(&self.0, &mut into[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let mut done = 0;
        while done < from.len() {
            match pwrite(&self.0, &from[done..], offset + done as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn begin_sync(&self, offset: u64, bytes: u64) {
        // Linux writes out dirty pages before it drops the clean ones.
        let _ = fadvise(&self.0, offset, NonZeroU64::new(bytes), Advice::DontNeed);
    }

    fn sync(&self) -> Result<(), Errno> {
        fsync(&self.0)
    }

    fn share(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.0, 0)
    }

    /// ext4's do. Whole syncs cost no more elsewhere as long as the map changes.
    fn data_syncs_may_miss_its_map(&self) -> bool {
        true
    }

    fn next_data(&self, at: u64) -> Result<u64, Errno> {
        seek(&self.0, SeekFrom::Data(at))
    }

    fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        seek(&self.0, SeekFrom::Hole(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_end_is_not_listed() {
        let directory = tempfile::tempdir_in("/dev/shm").unwrap();
        for at in 0..NAMES_MAX {
            std::fs::write(directory.path().join(at.to_string()), []).unwrap();
        }
        let opened = Host.open_directory(directory.path()).unwrap();
        assert_eq!(opened.names().unwrap().len(), NAMES_MAX);
        std::fs::write(directory.path().join("one more"), []).unwrap();
        assert_eq!(opened.names().unwrap_err(), Errno::TOOBIG);
    }

    #[test]
    fn a_file_that_finds_no_room_takes_none() {
        let directory = tempfile::tempdir().unwrap();
        let opened = Host.open_directory(directory.path()).unwrap();
        let file = opened.open("layer", OFlags::RDWR | OFlags::CREATE).unwrap();
        file.allocate(0, 4096).unwrap();
        let space = rustix::fs::statvfs(directory.path()).unwrap();
        assert_eq!(file.allocate(4096, 2 * space.f_blocks * space.f_frsize), Err(Errno::NOSPC));
        // No part of it was taken, and what it has can be allocated again.
        assert_eq!(opened.allocated_bytes("layer").unwrap(), 4096);
        file.allocate(0, 4096).unwrap();
    }

    #[test]
    fn reading_a_file_of_a_volume_does_not_touch_it() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("layer"), [7; 4096]).unwrap();
        let opened = Host.open_directory(directory.path()).unwrap();
        let file = opened.open("layer", OFlags::RDWR).unwrap();
        let flags = fcntl_getfl(DataFile::as_fd(&*file).unwrap()).unwrap();
        assert!(flags.contains(OFlags::NOATIME) && flags.contains(OFlags::RDWR), "{flags:?}");
    }
}
