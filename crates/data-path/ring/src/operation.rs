//! One file operation, from its submission to its end: the next call to the kernel, depending on
//! the kernel's last answer.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use strongroom_io::{FileDone, FileOperation, IoError};
use strongroom_memory::Buffer;
use strongroom_types::{BLOCK_BYTES, Extent};

use crate::file::OpenFile;

/// Repetitions of an interrupted call before it counts as failed. The kernel repeats most calls
/// itself, so an interruption is rare, and a file that keeps answering EAGAIN must not spin a
/// thread forever.
const RETRIES_MAX: u32 = 1000;

/// The place where a queue finds its ended operations.
#[derive(Debug)]
pub(crate) struct Inbox {
    pub(crate) done: RefCell<Vec<FileDone>>,
    /// Cleared when the queue is dropped and reads no more.
    pub(crate) open: Cell<bool>,
}

/// A file operation in progress, with everything that the kernel accesses for it.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) inbox: Rc<Inbox>,
    pub(crate) file: Rc<OpenFile>,
    tag: u64,
    step: Step,
    retries: u32,
}

#[derive(Debug)]
enum Step {
    Transfer(Transfer),
    Sync {
        data_only: bool,
    },
    Punch(Extent),
    Zero(Extent),
    /// Zeroing for file systems without such a call: first the space is freed, then it is allocated
    /// again.
    ZeroByPunch(Extent),
    Allocate(Extent),
}

#[derive(Debug)]
struct Transfer {
    direction: Direction,
    /// The file offset of the buffer's first byte.
    offset: u64,
    buffer: Buffer,
    /// The position in the buffer at which the current call starts: 0, or a block boundary, as
    /// O_DIRECT requires.
    start: usize,
    /// How many bytes of the buffer have been transferred; at least `start`.
    reached: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write { durable: bool },
}

/// A call to the kernel. Memory is named by the buffer that the operation owns.
#[derive(Debug)]
pub(crate) enum Call<'a> {
    Read { into: &'a Buffer, start: usize, offset: u64 },
    Write { from: &'a Buffer, start: usize, offset: u64, durable: bool },
    Sync { data_only: bool },
    Allocate { extent: Extent, mode: FallocateFlags },
}

/// How an operation continues after an answer of the kernel.
pub(crate) enum Next {
    /// Submit it again; [`Operation::call`] returns the next call.
    Again(Operation),
    /// The operation has ended.
    End(Rc<Inbox>, FileDone),
}

impl Operation {
    /// Begins an operation. Returns its end at once if there is nothing to submit.
    pub(crate) fn begin(
        inbox: &Rc<Inbox>,
        file: Option<&Rc<OpenFile>>,
        tag: u64,
        operation: FileOperation,
    ) -> Result<Self, FileDone> {
        let reach = match &operation {
            FileOperation::Read { offset, into: buffer }
            | FileOperation::Write { offset, from: buffer, .. } => Extent::new(*offset, buffer.len() as u64),
            FileOperation::Punch { extent }
            | FileOperation::Zero { extent }
            | FileOperation::Allocate { extent } => Ok(*extent),
            FileOperation::SyncData | FileOperation::Sync => Ok(Extent::default()),
        };
        let nothing_to_do = !matches!(operation, FileOperation::SyncData | FileOperation::Sync)
            && reach.is_ok_and(|extent| extent.is_empty());
        // Linux file offsets are signed, and io_uring interprets -1 as the file's current position.
        let in_reach = reach.is_ok_and(|extent| i64::try_from(extent.end()).is_ok());
        let mut step = Step::from(operation);
        if let (Step::Zero(extent), Some(false)) = (&step, file.map(|file| file.zero_range.get())) {
            step = Step::ZeroByPunch(*extent);
        }
        match file {
            None => Err(step.end(tag, Err(Errno::BADF.into()))),
            Some(_) if !in_reach => Err(step.end(tag, Err(Errno::INVAL.into()))),
            Some(_) if nothing_to_do => Err(step.end(tag, Ok(()))),
            Some(file) => Ok(Self { inbox: Rc::clone(inbox), file: Rc::clone(file), tag, step, retries: 0 }),
        }
    }

    /// The next call to the kernel.
    pub(crate) fn call(&self) -> Call<'_> {
        match &self.step {
            Step::Transfer(transfer) => transfer.call(),
            Step::Sync { data_only } => Call::Sync { data_only: *data_only },
            Step::Punch(extent) | Step::ZeroByPunch(extent) => Call::Allocate {
                extent: *extent,
                mode: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            },
            Step::Zero(extent) => Call::Allocate {
                extent: *extent,
                mode: FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
            },
            Step::Allocate(extent) => Call::Allocate { extent: *extent, mode: FallocateFlags::KEEP_SIZE },
        }
    }

    /// Continues after the kernel's answer: a count of bytes, or a negative error number.
    pub(crate) fn advance(mut self, answer: i32) -> Next {
        let outcome = match u32::try_from(answer) {
            Ok(count) => self.step.succeeded(count as usize),
            Err(_) => self.failed(Errno::from_raw_os_error(answer.wrapping_neg())),
        };
        match outcome {
            None => Next::Again(self),
            Some(result) => Next::End(self.inbox, self.step.end(self.tag, result)),
        }
    }

    /// The result after a failed call, or `None` to repeat it.
    fn failed(&mut self, errno: Errno) -> Option<Result<(), IoError>> {
        match (&self.step, errno) {
            (_, Errno::INTR | Errno::AGAIN) if self.retries < RETRIES_MAX => {
                self.retries += 1;
                None
            }
            (Step::Zero(extent), Errno::OPNOTSUPP) => {
                self.file.zero_range.set(false);
                self.step = Step::ZeroByPunch(*extent);
                None
            }
            _ => Some(Err(errno.into())),
        }
    }
}

impl Step {
    /// The result after a call that succeeded, or `None` if another must follow.
    fn succeeded(&mut self, count: usize) -> Option<Result<(), IoError>> {
        match self {
            Step::Transfer(transfer) => transfer.moved(count),
            Step::ZeroByPunch(extent) => {
                *self = Step::Allocate(*extent);
                None
            }
            Step::Sync { .. } | Step::Punch(_) | Step::Zero(_) | Step::Allocate(_) => Some(Ok(())),
        }
    }

    fn end(self, tag: u64, result: Result<(), IoError>) -> FileDone {
        let buffer = match self {
            Step::Transfer(transfer) => Some(transfer.buffer),
            _ => None,
        };
        FileDone { tag, result, buffer }
    }
}

impl From<FileOperation> for Step {
    fn from(operation: FileOperation) -> Self {
        let transfer = |direction, offset, buffer| {
            Step::Transfer(Transfer { direction, offset, buffer, start: 0, reached: 0 })
        };
        match operation {
            FileOperation::Read { offset, into } => transfer(Direction::Read, offset, into),
            FileOperation::Write { offset, from, durable } => {
                transfer(Direction::Write { durable }, offset, from)
            }
            FileOperation::SyncData => Step::Sync { data_only: true },
            FileOperation::Sync => Step::Sync { data_only: false },
            FileOperation::Punch { extent } => Step::Punch(extent),
            FileOperation::Zero { extent } => Step::Zero(extent),
            FileOperation::Allocate { extent } => Step::Allocate(extent),
        }
    }
}

impl Transfer {
    fn call(&self) -> Call<'_> {
        let offset = self.offset + self.start as u64;
        match self.direction {
            Direction::Read => Call::Read { into: &self.buffer, start: self.start, offset },
            Direction::Write { durable } => {
                Call::Write { from: &self.buffer, start: self.start, offset, durable }
            }
        }
    }

    /// Counts bytes from `start` on as transferred. Returns the result if those were the last
    /// bytes, or if there was no progress.
    fn moved(&mut self, count: usize) -> Option<Result<(), IoError>> {
        let reached = self.start + count;
        if reached >= self.buffer.len() {
            return Some(Ok(()));
        }
        if reached <= self.reached {
            return Some(Err(IoError::Short {
                done_bytes: self.reached as u64,
                wanted_bytes: self.buffer.len() as u64,
            }));
        }
        // A file may end anywhere, but a direct transfer starts at a block boundary. So a partly
        // read block is read again.
        self.reached = reached;
        self.start = reached - reached % BLOCK_BYTES as usize;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{Place, Places, RingFile};
    use std::sync::Arc;
    use strongroom_memory::{BufferPool, CHUNK_BYTES};

    fn operation(operation: FileOperation) -> Operation {
        let inbox = Rc::new(Inbox { done: RefCell::default(), open: Cell::new(true) });
        let file = Rc::new(OpenFile {
            _file: Arc::new(RingFile::new(std::fs::File::open("/dev/null").unwrap())),
            place: Place::take(&Rc::new(RefCell::new(Places::new(0..1)))).unwrap(),
            zero_range: Cell::new(true),
        });
        Operation::begin(&inbox, Some(&file), 7, operation).unwrap()
    }

    fn read(length: usize) -> Operation {
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        operation(FileOperation::Read { offset: 1 << 20, into: pool.take(length).unwrap() })
    }

    #[track_caller]
    fn again(next: Next) -> Operation {
        match next {
            Next::Again(operation) => operation,
            Next::End(_, done) => panic!("ended with {:?}", done.result),
        }
    }

    #[track_caller]
    fn end(next: Next) -> FileDone {
        match next {
            Next::End(_, done) => done,
            Next::Again(operation) => panic!("goes on with {:?}", operation.call()),
        }
    }

    #[track_caller]
    fn starts_at(operation: &Operation, expected: usize) {
        let Call::Read { start, offset, .. } = operation.call() else { panic!("{:?}", operation.call()) };
        assert_eq!((start, offset), (expected, (1 << 20) + expected as u64));
    }

    #[test]
    fn a_short_transfer_goes_on_at_the_last_block() {
        let first = read(20_000);
        starts_at(&first, 0);
        let second = again(first.advance(8192));
        starts_at(&second, 8192);
        let third = again(second.advance(4096 + 512));
        starts_at(&third, 12_288);
        let fourth = again(third.advance(4096));
        starts_at(&fourth, 16_384);
        let done = end(fourth.advance(20_000 - 16_384));
        assert_eq!((done.tag, done.result), (7, Ok(())));
        assert_eq!(done.buffer.unwrap().len(), 20_000);
    }

    #[test]
    fn the_end_of_the_file_is_an_error_that_counts_what_was_read() {
        // The file ends after 6000 bytes: the second call reads the last 1904 of them again, and
        // makes no progress.
        let done = end(again(read(8192).advance(6000)).advance(1904));
        assert_eq!(done.result, Err(IoError::Short { done_bytes: 6000, wanted_bytes: 8192 }));
        assert!(done.buffer.is_some());
        let done = end(again(read(8192).advance(4096)).advance(0));
        assert_eq!(done.result, Err(IoError::Short { done_bytes: 4096, wanted_bytes: 8192 }));
    }

    #[test]
    fn an_interrupted_call_is_repeated_but_not_for_ever() {
        let interrupted = [Errno::INTR, Errno::AGAIN].map(|errno| -errno.raw_os_error());
        let mut operation = read(4096);
        for round in 0..RETRIES_MAX as usize {
            operation = again(operation.advance(interrupted[round % 2]));
        }
        let done = end(operation.advance(interrupted[0]));
        assert_eq!(done.result, Err(Errno::INTR.into()));
    }

    #[test]
    fn an_error_after_a_part_is_the_error() {
        let done = end(again(read(8192).advance(4096)).advance(-Errno::NOSPC.raw_os_error()));
        assert_eq!(done.result, Err(IoError::NoSpace));
    }

    #[test]
    fn zeroing_without_zero_range_punches_and_allocates() {
        let extent = Extent::new(4096, 8192).unwrap();
        let mode = |operation: &Operation| match operation.call() {
            Call::Allocate { mode, extent: of } if of == extent => mode,
            other => panic!("{other:?}"),
        };
        let first = operation(FileOperation::Zero { extent });
        assert_eq!(mode(&first), FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE);
        let (inbox, file) = (Rc::clone(&first.inbox), Rc::clone(&first.file));
        let second = again(first.advance(-Errno::OPNOTSUPP.raw_os_error()));
        assert_eq!(mode(&second), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
        let third = again(second.advance(0));
        assert_eq!(mode(&third), FallocateFlags::KEEP_SIZE);
        assert_eq!(end(third.advance(0)).result, Ok(()));
        // The next operation does not try it again.
        let next = Operation::begin(&inbox, Some(&file), 8, FileOperation::Zero { extent }).unwrap();
        assert_eq!(mode(&next), FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE);
    }

    #[test]
    fn what_needs_no_call_ends_at_once() {
        let known = operation(FileOperation::SyncData);
        let begin = |file, operation| {
            Operation::begin(&known.inbox, file, 9, operation)
                .map(|operation| format!("{operation:?}"))
                .unwrap_err()
        };
        let empty = FileOperation::Punch { extent: Extent::default() };
        assert_eq!(begin(Some(&known.file), empty).result, Ok(()));
        let unknown_file = begin(None, FileOperation::SyncData);
        assert_eq!(unknown_file.result, Err(Errno::BADF.into()));
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        for offset in [u64::MAX, u64::MAX - 4096, i64::MAX as u64] {
            let into = pool.take(4096).unwrap();
            let done = begin(Some(&known.file), FileOperation::Read { offset, into });
            assert_eq!(done.result, Err(Errno::INVAL.into()));
            assert!(done.buffer.is_some());
        }
    }
}
