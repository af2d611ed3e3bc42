//! Writes a file without the page cache, several writes in flight.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;
use strongroom_io::{FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Reactor};
use strongroom_memory::Buffer;
use strongroom_ring::{Ring, RingFile};
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::transfer::TransferError;

/// Writes in flight: enough that the disk never waits for the next one.
pub const WRITES_MAX: usize = 16;

/// A file that is written to. The page cache would cost a copy of every byte, and would be written
/// out only at the end.
pub struct FileWriter<'a> {
    /// For writes that are not whole blocks.
    file: &'a File,
    queue: Box<dyn FileQueue>,
    token: FileToken,
    ring: Ring,
    in_flight: usize,
    done: Vec<FileDone>,
}

impl<'a> FileWriter<'a> {
    /// Opens a file for writing on the thread of `ring`. Without support for `O_DIRECT`, writes go
    /// through the page cache.
    pub fn open(file: &'a File, ring: &Ring) -> Result<Self, TransferError> {
        // Reopen the file, so that the flag does not affect other holders of the caller's open
        // file.
        let name = format!("/proc/self/fd/{}", file.as_raw_fd());
        let direct = OpenOptions::new().write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(name);
        let opened = direct.or_else(|_| file.try_clone()).map_err(TransferError::File)?;
        let mut queue = ring.file_queue().map_err(failed)?;
        let token = queue.register(Arc::new(RingFile::new(opened))).map_err(failed)?;
        Ok(Self { file, queue, token, ring: ring.clone(), in_flight: 0, done: Vec::new() })
    }

    /// Starts a write. Returns the error of an earlier one, if one has failed.
    pub fn write(&mut self, extent: Extent, from: Buffer) -> Result<(), TransferError> {
        self.settle(WRITES_MAX - 1)?;
        if !extent.offset().is_multiple_of(BLOCK_BYTES) || !extent.length().is_multiple_of(BLOCK_BYTES) {
            return self.file.write_all_at(from.bytes(), extent.offset()).map_err(TransferError::File);
        }
        let operation = FileOperation::Write { offset: extent.offset(), from, durable: false };
        self.queue.submit(FileIo { tag: 0, file: self.token, operation });
        self.queue.kick();
        self.in_flight += 1;
        Ok(())
    }

    /// Waits until at most `left` writes are in flight, or one has failed.
    pub fn settle(&mut self, left: usize) -> Result<(), TransferError> {
        loop {
            self.queue.poll(&mut self.done);
            self.in_flight -= self.done.len();
            let ended = self.done.drain(..).try_for_each(|done| done.result);
            ended.map_err(failed)?;
            if self.in_flight <= left {
                return Ok(());
            }
            self.ring.wait(None).map_err(failed)?;
        }
    }
}

/// The file's error, with the kernel's error number if there is one.
fn failed(error: IoError) -> TransferError {
    TransferError::File(match error {
        IoError::NoSpace => Errno::NOSPC.into(),
        IoError::ReadOnly => Errno::ROFS.into(),
        IoError::Device(errno) => io::Error::from_raw_os_error(errno.0),
        error => io::Error::other(error),
    })
}
