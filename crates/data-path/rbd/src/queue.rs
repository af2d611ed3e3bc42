//! The file operations of one thread, as requests to images.
//!
//! librbd takes what it is given, makes a request of each object that it reaches, and keeps memory
//! for all of them. So a queue has a limit of objects, and what is beyond it waits here, where no
//! thread waits for it. Long extents go to librbd in parts, and have a limit of their own: nothing
//! else waits behind them.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::io::Errno;
use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Slot, Waker,
};
use strongroom_memory::Buffer;
use strongroom_types::Extent;

use crate::ceph::{Ended, Image, OBJECT_BYTES, Refused, Requests, Submission};
use crate::file::RbdFile;

/// Objects that the transfers of a queue reach at once, and as many that the parts of its long
/// extents do. librados has twice as many requests under way for a whole client by default.
const OBJECTS_MAX: u64 = 512;
/// Objects of a part of a long extent.
const PART_OBJECTS: u64 = 64;
const PART_BYTES: u64 = PART_OBJECTS * OBJECT_BYTES;

/// A queue of file operations on images.
pub struct RbdQueue {
    requests: Requests<Name>,
    files: Vec<RegisteredFile>,
    /// Objects that requests under way reach, but for parts of long extents.
    objects: u64,
    /// Objects that parts of long extents reach.
    long_objects: u64,
    unsent: VecDeque<FileIo>,
    /// Long extents that have parts to send.
    long: VecDeque<LongExtent>,
    parted: InFlight<Parted>,
    /// Operations that ended without a request.
    refused: VecDeque<FileDone>,
    waker: Arc<Waker>,
}

/// Fields are dropped in order: the file closes the image, if nobody else has it then.
struct RegisteredFile {
    image: Arc<Image>,
    /// Kept because it holds the lock.
    _file: Arc<dyn DataFile>,
}

/// The tag of a request.
#[derive(Clone, Copy, Debug)]
enum Name {
    /// All of the operation with this tag.
    Whole { tag: u64, objects: u64 },
    /// A part of a long extent.
    Part { of: Slot, objects: u64 },
}

/// What is left to send of a long extent.
struct LongExtent {
    slot: Slot,
    file: FileToken,
    left: Extent,
    keeps_space: bool,
}

/// An operation whose extent is sent in parts.
struct Parted {
    tag: u64,
    under_way: usize,
    is_sent: bool,
    result: Result<(), IoError>,
}

impl RbdQueue {
    /// A queue of the thread that `waker` wakes, for about `depth` operations at a time.
    pub fn new(waker: Arc<Waker>, depth: usize) -> Self {
        Self {
            requests: Requests::new(Arc::clone(&waker), depth),
            files: Vec::new(),
            objects: 0,
            long_objects: 0,
            unsent: VecDeque::with_capacity(depth),
            long: VecDeque::new(),
            parted: InFlight::with_depth(0),
            refused: VecDeque::new(),
            waker,
        }
    }

    /// Sends what there is room for. Returns whether anything was sent, or has ended by that.
    fn send(&mut self) -> bool {
        let mut is_any = false;
        while let Some(io) = self.unsent.pop_front() {
            let objects = objects_of(&io.operation);
            if objects > PART_OBJECTS {
                self.divide(io);
                continue;
            }
            if self.objects + objects > OBJECTS_MAX {
                self.unsent.push_front(io);
                break;
            }
            self.send_whole(io, objects);
            is_any = true;
        }
        while self.long_objects + PART_OBJECTS <= OBJECTS_MAX
            && let Some(extent) = self.long.pop_front()
        {
            self.send_part(extent);
            is_any = true;
        }
        is_any
    }

    fn send_whole(&mut self, io: FileIo, objects: u64) {
        let FileIo { tag, file, operation } = io;
        let refuse = |errno: Errno, buffer| FileDone { tag, result: Err(errno.into()), buffer };
        let submission = match operation {
            FileOperation::Read { offset, into } => Ok(Submission::Read(offset, into)),
            // Every acknowledged write is durable.
            FileOperation::Write { offset, from, durable: _ } => Ok(Submission::Write(offset, from)),
            FileOperation::SyncData | FileOperation::Sync => Ok(Submission::Flush),
            FileOperation::Punch { extent } => Ok(Submission::Free(extent)),
            FileOperation::Zero { extent } => Ok(Submission::Zero(extent)),
            // A cluster reserves no space.
            FileOperation::Allocate { .. } => Err(refuse(Errno::OPNOTSUPP, None)),
        };
        let sent = submission.and_then(|submission| {
            let sent = self.request(file, Name::Whole { tag, objects }, submission);
            sent.map_err(|Refused { errno, buffer }| refuse(errno, buffer))
        });
        match sent {
            Ok(()) => self.objects += objects,
            Err(refused) => self.refuse(refused),
        }
    }

    fn divide(&mut self, io: FileIo) {
        let (left, keeps_space) = match io.operation {
            FileOperation::Punch { extent } => (extent, false),
            FileOperation::Zero { extent } => (extent, true),
            // No buffer is as long, and the others have no extent.
            _ => return self.send_whole(io, PART_OBJECTS),
        };
        let parted = Parted { tag: io.tag, under_way: 0, is_sent: false, result: Ok(()) };
        let slot = self.parted.insert(parted);
        self.long.push_back(LongExtent { slot, file: io.file, left, keeps_space });
    }

    /// Sends the next part of a long extent, and queues what is left behind the other ones.
    fn send_part(&mut self, extent: LongExtent) {
        let LongExtent { slot, file, left, keeps_space } = extent;
        let end = (left.offset() / PART_BYTES + 1).saturating_mul(PART_BYTES).min(left.end());
        let (part, left) = (Extent::between(left.offset(), end), Extent::between(end, left.end()));
        let objects = objects_in(part.offset(), part.length());
        let submission = if keeps_space { Submission::Zero(part) } else { Submission::Free(part) };
        // After a failure the rest is not sent.
        let has_failed = self.parted.get_mut(slot).is_none_or(|parted| parted.result.is_err());
        let sent = match has_failed {
            true => Ok(false),
            false => self.request(file, Name::Part { of: slot, objects }, submission).map(|()| true),
        };
        let Some(parted) = self.parted.get_mut(slot) else { return };
        match sent {
            Ok(true) => {
                self.long_objects += objects;
                parted.under_way += 1;
                parted.is_sent = left.is_empty();
            }
            Ok(false) => parted.is_sent = true,
            Err(Refused { errno, .. }) => {
                (parted.is_sent, parted.result) = (true, Err(errno.into()));
            }
        }
        if !parted.is_sent {
            self.long.push_back(LongExtent { slot, file, left, keeps_space });
        } else if parted.under_way == 0
            && let Some(Parted { tag, result, .. }) = self.parted.take(slot)
        {
            self.refuse(FileDone { tag, result, buffer: None });
        }
    }

    fn request(&mut self, file: FileToken, name: Name, submission: Submission) -> Result<(), Refused> {
        match self.files.get(file.0 as usize) {
            Some(RegisteredFile { image, .. }) => self.requests.submit(image, name, submission),
            None => Err(Refused { errno: Errno::BADF, buffer: buffer_of(submission) }),
        }
    }

    /// Ends an operation without a request.
    fn refuse(&mut self, done: FileDone) {
        self.refused.push_back(done);
        self.waker.wake();
    }

    /// Takes what has ended.
    fn take_ends(&mut self, done: &mut Vec<FileDone>) {
        let Self { requests, objects, long_objects, parted, .. } = self;
        requests.poll(|Ended { tag, result, buffer }| {
            let whole = buffer.as_ref().map_or(0, Buffer::len);
            let result = match result {
                Ok(count) if count < whole => {
                    Err(IoError::Short { done_bytes: count as u64, wanted_bytes: whole as u64 })
                }
                Ok(_) => Ok(()),
                Err(errno) => Err(errno.into()),
            };
            match tag {
                Name::Whole { tag, objects: reached } => {
                    *objects -= reached;
                    done.push(FileDone { tag, result, buffer });
                }
                Name::Part { of, objects: reached } => {
                    *long_objects -= reached;
                    let Some(operation) = parted.get_mut(of) else { return };
                    operation.under_way -= 1;
                    operation.result = operation.result.and(result);
                    if operation.is_sent
                        && operation.under_way == 0
                        && let Some(Parted { tag, result, .. }) = parted.take(of)
                    {
                        done.push(FileDone { tag, result, buffer: None });
                    }
                }
            }
        });
    }
}

/// Objects that an operation reaches.
fn objects_of(operation: &FileOperation) -> u64 {
    match operation {
        FileOperation::Read { offset, into: buffer } | FileOperation::Write { offset, from: buffer, .. } => {
            objects_in(*offset, buffer.len() as u64)
        }
        FileOperation::Punch { extent }
        | FileOperation::Zero { extent }
        | FileOperation::Allocate { extent } => objects_in(extent.offset(), extent.length()),
        FileOperation::SyncData | FileOperation::Sync => 1,
    }
}

/// Objects that so many bytes from an offset on lie in.
fn objects_in(offset: u64, bytes: u64) -> u64 {
    let last = offset.saturating_add(bytes.saturating_sub(1));
    last / OBJECT_BYTES - offset / OBJECT_BYTES + 1
}

fn buffer_of(submission: Submission) -> Option<Buffer> {
    match submission {
        Submission::Read(_, buffer) | Submission::Write(_, buffer) => Some(buffer),
        Submission::Free(_) | Submission::Zero(_) | Submission::Flush => None,
    }
}

impl FileQueue for RbdQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        let image = RbdFile::image_of(&*file).ok_or(Errno::BADF)?;
        self.files.push(RegisteredFile { image, _file: file });
        Ok(FileToken((self.files.len() - 1) as u32))
    }

    fn submit(&mut self, io: FileIo) {
        self.unsent.push_back(io);
    }

    fn kick(&mut self) {
        self.send();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        loop {
            self.take_ends(done);
            let sent = self.send();
            done.extend(self.refused.drain(..));
            if !sent {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_lie_in_the_objects_that_they_reach() {
        for (offset, bytes, objects) in [
            (0, 0, 1),
            (0, OBJECT_BYTES, 1),
            (0, OBJECT_BYTES + 1, 2),
            (OBJECT_BYTES - 1, 2, 2),
            (PART_BYTES, PART_BYTES, PART_OBJECTS),
            (u64::MAX, 1, 1),
        ] {
            assert_eq!(objects_in(offset, bytes), objects, "{bytes} at {offset}");
        }
    }
}
