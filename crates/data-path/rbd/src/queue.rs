//! The file operations of one thread, as requests to images.

use std::collections::VecDeque;
use std::sync::Arc;

use rustix::io::Errno;
use strongroom_io::{DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Waker};
use strongroom_memory::Buffer;

use crate::ceph::{Image, Refused, Requests, Submission};
use crate::file::RbdFile;

/// A queue of file operations on images.
pub struct RbdQueue {
    files: Vec<RegisteredFile>,
    requests: Requests,
    unsent: VecDeque<FileIo>,
    /// Operations that ended without a request.
    refused: VecDeque<FileDone>,
    waker: Arc<Waker>,
}

struct RegisteredFile {
    /// Kept because it holds the lock.
    _file: Arc<dyn DataFile>,
    image: Arc<Image>,
}

impl RbdQueue {
    /// A queue of the thread that `waker` wakes, for about `depth` operations at a time.
    pub fn new(waker: Arc<Waker>, depth: usize) -> Self {
        Self {
            files: Vec::new(),
            requests: Requests::new(Arc::clone(&waker), depth),
            unsent: VecDeque::with_capacity(depth),
            refused: VecDeque::new(),
            waker,
        }
    }

    fn send(&mut self, io: FileIo) -> Result<(), FileDone> {
        let FileIo { tag, file, operation } = io;
        let refuse = |errno: Errno, buffer| FileDone { tag, result: Err(errno.into()), buffer };
        let submission = match operation {
            FileOperation::Read { offset, into } => Submission::Read(offset, into),
            // Every acknowledged write is durable.
            FileOperation::Write { offset, from, durable: _ } => Submission::Write(offset, from),
            FileOperation::SyncData | FileOperation::Sync => Submission::Flush,
            FileOperation::Punch { extent } => Submission::Free(extent),
            FileOperation::Zero { extent } => Submission::Zero(extent),
            // A cluster reserves no space.
            FileOperation::Allocate { .. } => return Err(refuse(Errno::OPNOTSUPP, None)),
        };
        let Some(RegisteredFile { image, .. }) = self.files.get(file.0 as usize) else {
            return Err(refuse(Errno::BADF, buffer_of(submission)));
        };
        let refused = |Refused { errno, buffer }| refuse(errno, buffer);
        self.requests.submit(image, tag, submission).map_err(refused)
    }
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
        self.files.push(RegisteredFile { _file: file, image });
        Ok(FileToken((self.files.len() - 1) as u32))
    }

    fn submit(&mut self, io: FileIo) {
        self.unsent.push_back(io);
    }

    fn kick(&mut self) {
        while let Some(io) = self.unsent.pop_front() {
            if let Err(done) = self.send(io) {
                self.refused.push_back(done);
                self.waker.wake();
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        done.extend(self.refused.drain(..));
        self.requests.poll(|ended| {
            let whole = ended.buffer.as_ref().map_or(0, Buffer::len);
            let result = match ended.result {
                Ok(count) if count < whole => {
                    Err(IoError::Short { done_bytes: count as u64, wanted_bytes: whole as u64 })
                }
                Ok(_) => Ok(()),
                Err(errno) => Err(errno.into()),
            };
            done.push(FileDone { tag: ended.tag, result, buffer: ended.buffer });
        });
    }
}
