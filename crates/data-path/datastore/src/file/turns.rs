//! Serialises the syncs of a file, on file systems where they may not run concurrently.
//!
//! btrfs (Linux 6.18) acknowledges some concurrent syncs of one file before anything was flushed
//! (`docs/decisions/0008-first-write-log.md`). There a file has at most one sync under way, over
//! all threads, and a durable write is a write followed by a sync. A request for a sync is answered
//! by the next one that begins, together with all requests made until then.
//!
//! ```text
//! asked ---> waits for the one under way ---> begun: answers all who asked before ---> succeeded, or failed for good
//!                                               \---> abandoned, as its queue was dropped: answers none, another begins
//! ```
//!
//! It is a queue between a stage and its leaf, so that stages write the same way on every file
//! system.

use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Reactor, Slot,
    Thread, Waker,
};
use strongroom_memory::Buffer;

use super::settled::{FileMap, SettlingQueue};
use super::storage::StoredFile;

/// How the syncs of some files may run. All queues to these files come from here.
#[derive(Debug)]
pub(super) enum SyncOrder {
    /// Concurrently. These files need whole syncs at times.
    SideBySide(Vec<Arc<FileMap>>),
    /// The syncs of a file one after the other.
    InTurn(Arc<Turns>),
}

impl SyncOrder {
    pub(super) fn new<'a>(in_turn: bool, files: impl IntoIterator<Item = &'a Arc<dyn StoredFile>>) -> Self {
        match in_turn {
            true => Self::InTurn(Arc::default()),
            false => Self::SideBySide(files.into_iter().filter_map(FileMap::of).collect()),
        }
    }

    /// A thread's queue to the files, one of which is `file`.
    pub(super) fn queue(&self, file: &dyn DataFile, thread: &Thread) -> Result<Box<dyn FileQueue>, IoError> {
        let below = self.queue_without_syncs(file, thread)?;
        Ok(match self {
            Self::SideBySide(_) => below,
            Self::InTurn(turns) => {
                Box::new(TurnQueue::over(below, thread.reactor.waker(), Arc::clone(turns)))
            }
        })
    }

    /// A thread's queue for operations that need no turn.
    pub(super) fn queue_without_syncs(
        &self,
        file: &dyn DataFile,
        thread: &Thread,
    ) -> Result<Box<dyn FileQueue>, IoError> {
        let below = file.queue(&thread.reactor)?;
        Ok(match self {
            Self::SideBySide(maps) if !maps.is_empty() => Box::new(SettlingQueue::over(below, maps.clone())),
            Self::SideBySide(_) | Self::InTurn(_) => below,
        })
    }
}

/// The turns of each of some files.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<Vec<Arc<FileTurns>>>);

impl Turns {
    fn of(&self, file: Arc<dyn DataFile>) -> Arc<FileTurns> {
        let mut known = self.0.lock();
        if let Some(found) = known.iter().find(|turns| Arc::ptr_eq(&turns.file, &file)) {
            return Arc::clone(found);
        }
        let turns = Arc::new(FileTurns { file, book: Mutex::default() });
        known.push(Arc::clone(&turns));
        turns
    }
}

/// One file, and the record of its syncs.
#[derive(Debug)]
struct FileTurns {
    file: Arc<dyn DataFile>,
    book: Mutex<Book>,
}

/// Syncs of a file, numbered from 1 in the order in which they begin.
#[derive(Debug, Default)]
struct Book {
    begun: u64,
    /// The last sync that is known to have succeeded.
    succeeded: u64,
    is_under_way: bool,
    /// The error of a failed sync. The writes that it should have covered are lost, and the kernel
    /// would not report that again.
    failure: Option<IoError>,
    /// Threads that wait for the sync under way.
    waiting: Vec<Arc<Waker>>,
}

/// The state of a requested sync.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    Answered(Result<(), IoError>),
    /// The caller must send it: it counts as under way.
    Begins,
    Waits,
}

impl FileTurns {
    /// The number of the first sync that covers everything done by now.
    fn ask(&self) -> u64 {
        self.book.lock().begun + 1
    }

    /// Returns the state of a sync. If it waits, `waker` is called when that may have changed.
    fn look(&self, number: u64, waker: &Arc<Waker>) -> Standing {
        let mut book = self.book.lock();
        match book.failure {
            Some(error) => Standing::Answered(Err(error)),
            None if book.succeeded >= number => Standing::Answered(Ok(())),
            None if book.is_under_way => {
                if !book.waiting.iter().any(|other| Arc::ptr_eq(other, waker)) {
                    book.waiting.push(Arc::clone(waker));
                }
                Standing::Waits
            }
            None => {
                book.begun += 1;
                book.is_under_way = true;
                Standing::Begins
            }
        }
    }

    /// Ends the sync under way, with its result if that is known.
    fn end(&self, heard: Option<Result<(), IoError>>) {
        let mut book = self.book.lock();
        book.is_under_way = false;
        match heard {
            Some(Ok(())) => book.succeeded = book.begun,
            // Not the error of a write without room, which concerns no other write.
            Some(Err(IoError::NoSpace)) => book.failure = Some(IoError::FlushFailed),
            Some(Err(error)) => book.failure = Some(error),
            None => {}
        }
        book.waiting.drain(..).for_each(|waker| waker.wake());
    }
}

/// The file that one queue registers below. Operations under way keep it alive even after the queue
/// is dropped, so an abandoned sync has ended when this is dropped.
#[derive(Debug)]
struct FileInTurn {
    turns: Arc<FileTurns>,
    is_syncing: AtomicBool,
}

impl DataFile for FileInTurn {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        self.turns.file.as_fd()
    }

    fn as_any(&self) -> &dyn Any {
        self.turns.file.as_any()
    }

    fn queue(&self, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
        self.turns.file.queue(reactor)
    }
}

impl Drop for FileInTurn {
    fn drop(&mut self) {
        if *self.is_syncing.get_mut() {
            self.turns.end(None);
        }
    }
}

/// A queue that serialises the syncs of a file with those of all its other queues.
struct TurnQueue {
    below: Box<dyn FileQueue>,
    waker: Arc<Waker>,
    turns: Arc<Turns>,
    files: Vec<Registered>,
    sent: InFlight<Sent>,
    below_done: Vec<FileDone>,
    ended: Vec<FileDone>,
}

struct Registered {
    token: FileToken,
    file: Arc<FileInTurn>,
    /// The requested syncs, in the order of their numbers.
    asked: VecDeque<Asked>,
}

/// A requested sync, on its own or for a durable write.
struct Asked {
    tag: u64,
    buffer: Option<Buffer>,
    number: u64,
}

/// An operation that was sent below. Files are identified by their index.
enum Sent {
    /// An operation that needs no turn.
    Other {
        tag: u64,
    },
    /// A write that a sync must follow.
    DurableWrite {
        tag: u64,
        file: usize,
    },
    Sync {
        file: usize,
    },
}

impl TurnQueue {
    fn over(below: Box<dyn FileQueue>, waker: Arc<Waker>, turns: Arc<Turns>) -> Self {
        Self {
            below,
            waker,
            turns,
            files: Vec::new(),
            sent: InFlight::with_depth(0),
            below_done: Vec::new(),
            ended: Vec::new(),
        }
    }

    fn send(&mut self, sent: Sent, file: FileToken, operation: FileOperation) {
        let tag = self.sent.insert(sent).tag();
        self.below.submit(FileIo { tag, file, operation });
    }

    /// Requests a sync that begins after this call.
    fn ask(&mut self, file: usize, tag: u64, buffer: Option<Buffer>) {
        let Registered { file, asked, .. } = &mut self.files[file];
        asked.push_back(Asked { tag, buffer, number: file.turns.ask() });
    }

    /// Answers the requests that can be answered. Returns whether a sync was sent for the others.
    fn go_on(&mut self, number: usize) -> bool {
        let Registered { token, file, asked } = &mut self.files[number];
        let token = *token;
        while let Some(first) = asked.front() {
            match file.turns.look(first.number, &self.waker) {
                Standing::Answered(result) => {
                    let answered =
                        asked.pop_front().map(|Asked { tag, buffer, .. }| FileDone { tag, result, buffer });
                    self.ended.extend(answered);
                }
                Standing::Waits => return false,
                Standing::Begins => {
                    file.is_syncing.store(true, Ordering::SeqCst);
                    self.send(Sent::Sync { file: number }, token, FileOperation::SyncData);
                    return true;
                }
            }
        }
        false
    }

    fn finish(&mut self, FileDone { tag, result, buffer }: FileDone) {
        match Slot::from_tag(tag).and_then(|slot| self.sent.take(slot)) {
            Some(Sent::Other { tag }) => self.ended.push(FileDone { tag, result, buffer }),
            Some(Sent::DurableWrite { tag, file }) => match result {
                Ok(()) => self.ask(file, tag, buffer),
                Err(_) => self.ended.push(FileDone { tag, result, buffer }),
            },
            Some(Sent::Sync { file }) => {
                let file = &self.files[file].file;
                file.is_syncing.store(false, Ordering::SeqCst);
                file.turns.end(Some(result));
            }
            None => debug_assert!(false, "the leaf returned what was not submitted"),
        }
    }
}

impl FileQueue for TurnQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        let file = Arc::new(FileInTurn { turns: self.turns.of(file), is_syncing: AtomicBool::new(false) });
        let token = self.below.register(Arc::clone(&file) as _)?;
        self.files.push(Registered { token, file, asked: VecDeque::new() });
        Ok(token)
    }

    fn submit(&mut self, io: FileIo) {
        let FileIo { tag, file: token, mut operation } = io;
        // An operation on an unknown file is refused below.
        let file = self.files.iter().position(|file| file.token == token);
        match (&mut operation, file) {
            (FileOperation::SyncData | FileOperation::Sync, Some(file)) => {
                self.ask(file, tag, None);
                self.go_on(file);
                if !self.ended.is_empty() {
                    // No completion will cause a poll.
                    self.waker.wake();
                }
            }
            (FileOperation::Write { durable, .. }, Some(file)) if *durable => {
                *durable = false;
                self.send(Sent::DurableWrite { tag, file }, token, operation);
            }
            _ => self.send(Sent::Other { tag }, token, operation),
        }
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        let mut below_done = mem::take(&mut self.below_done);
        self.below.poll(&mut below_done);
        below_done.drain(..).for_each(|done| self.finish(done));
        self.below_done = below_done;
        let mut has_sent = false;
        for file in 0..self.files.len() {
            has_sent |= self.go_on(file);
        }
        if has_sent {
            self.below.kick();
        }
        done.append(&mut self.ended);
    }
}

#[cfg(test)]
#[path = "turns_tests.rs"]
mod tests;
