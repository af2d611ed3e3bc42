//! A file system of one file, whose content is the volume. The loop device over it has the rest.
//!
//! - fsync, which is the loop device's flush, is a flush of the volume.
//! - A punched hole, which is its discard, must read as zeros: so it is NBD's "write zeroes" with
//!   leave to free, not its "trim", which promises nothing about the content.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Session, SessionACL, WriteFlags,
};
use rustix::fs::FallocateFlags;
use strongroom_types::BLOCK_BYTES;

use crate::requests::{Request, Requests, Waiting};

/// The file's name.
pub(crate) const FILE: &str = "volume";
/// The file's inode.
const INODE: INodeNo = INodeNo(2);
/// Attributes never change.
const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
/// The largest transfer: the kernel's limit of pages of one FUSE request.
const TRANSFER_BYTES_MAX: u32 = 1 << 20;
/// Requests in flight. Each may have [`TRANSFER_BYTES_MAX`] of this process's memory.
const IN_FLIGHT_MAX: u16 = 64;

pub(crate) struct VolumeFile(pub Arc<Requests>);

impl VolumeFile {
    /// Mounts it.
    pub fn mount(self, at: &Path) -> io::Result<BackgroundSession> {
        let mut config = Config::default();
        config.acl = SessionACL::Owner;
        config.mount_options = vec![
            MountOption::FSName("strongroom".to_owned()),
            MountOption::NoExec,
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoAtime,
        ];
        Session::new(self, at, &config)?.spawn()
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o700, 0),
            INODE => (FileType::RegularFile, 0o600, self.0.size_bytes()),
            _ => return None,
        };
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: BLOCK_SIZE,
            flags: 0,
        })
    }
}

/// What the loop device takes as the granularity of discards.
#[allow(clippy::cast_possible_truncation, reason = "4096")]
const BLOCK_SIZE: u32 = BLOCK_BYTES as u32;

impl Filesystem for VolumeFile {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wrong = |_| io::Error::other("the kernel's FUSE takes no requests of this size");
        config.set_max_write(TRANSFER_BYTES_MAX).map_err(wrong)?;
        config.set_max_background(IN_FLIGHT_MAX).map_err(|_| io::Error::other("too few in flight"))?;
        // Without it each request is for itself; it is slower, and nothing else.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(INODE).filter(|_| parent == INodeNo::ROOT && name == FILE) {
            Some(attributes) => reply.entry(&FOREVER, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // No plain block in the page cache below the loop device, and writes beside each other.
        reply.opened(
            FileHandle(0),
            FopenFlags::FOPEN_DIRECT_IO
                | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
                | FopenFlags::FOPEN_NOFLUSH,
        );
    }

    fn read(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let left = self.0.size_bytes().saturating_sub(offset);
        let length = size.min(u32::try_from(left).unwrap_or(u32::MAX));
        if length == 0 {
            return reply.data(&[]);
        }
        self.0.submit(Request::Read { offset, length, reply });
    }

    fn write(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        content: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if offset.saturating_add(content.len() as u64) > self.0.size_bytes() {
            return reply.error(Errno::ENOSPC);
        }
        self.0.submit(Request::Write { offset, content: content.into(), reply });
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.submit(Request::Flush(Waiting::Kernel(reply)));
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let mode = FallocateFlags::from_bits_retain(mode.cast_unsigned());
        let punches = mode == FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let zeroes = mode - FallocateFlags::KEEP_SIZE == FallocateFlags::ZERO_RANGE;
        if !punches && !zeroes {
            return reply.error(Errno::EOPNOTSUPP);
        }
        if length == 0 || offset.saturating_add(length) > self.0.size_bytes() {
            return reply.error(Errno::EINVAL);
        }
        Request::zero(offset, length, punches, reply).into_iter().for_each(|part| self.0.submit(part));
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(self.0.size_bytes() / BLOCK_BYTES, 0, 0, 1, 0, BLOCK_SIZE, 255, BLOCK_SIZE);
    }
}
