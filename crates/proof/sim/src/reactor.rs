//! A thread's event loop over simulated files: operations complete in any order, and are reported
//! sooner or later.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use strongroom_io::conformance::EventLoop;
use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, IoError, Reactor, Waker,
};
use strongroom_memory::Buffer;
use strongroom_types::{Extent, SECTOR_BYTES};

use crate::change::Change;
use crate::content::SpaceChange;
use crate::faults::strikes;
use crate::file::{SimFile, sim_file};
use crate::fs::SimFs;
use crate::inode::{OperationId, Tick};

/// The event loop of one thread. Clones share it.
#[derive(Clone)]
pub struct SimReactor {
    core: Rc<RefCell<Core>>,
    waker: Arc<Waker>,
    deadline: Rc<Cell<Option<Instant>>>,
}

struct Core {
    fs: SimFs,
    random: StdRng,
    /// Submitted since the last kick.
    unsent: Vec<Operation>,
    /// Sent and not completed.
    under_way: Vec<Operation>,
    /// Completed but not reported, in inboxes.
    untold: usize,
}

/// The completions of a queue.
#[derive(Default)]
struct Inbox {
    done: RefCell<VecDeque<(FileDone, Option<Told>)>>,
    closed: Cell<bool>,
}

/// The reported operation and its file.
struct Told {
    file: Arc<dyn DataFile>,
    operation: OperationId,
}

struct Operation {
    inbox: Rc<Inbox>,
    tag: u64,
    file: Arc<dyn DataFile>,
    id: OperationId,
    work: Work,
    buffer: Option<Buffer>,
}

enum Work {
    Read {
        offset: u64,
    },
    Write {
        extent: Extent,
        durable: bool,
    },
    Sync {
        horizon: Tick,
    },
    /// A sync without effect.
    SkippedSync,
    Space {
        extent: Extent,
        space: SpaceChange,
    },
}

impl SimReactor {
    pub(crate) fn new(fs: SimFs, seed: u64) -> Result<Self, IoError> {
        let random = StdRng::seed_from_u64(seed);
        let core = Core { fs, random, unsent: Vec::new(), under_way: Vec::new(), untold: 0 };
        let waker = Arc::new(Waker::new()?);
        Ok(Self { core: Rc::new(RefCell::new(core)), waker, deadline: Rc::default() })
    }
}

impl Reactor for SimReactor {
    fn file_queue(&self) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(SimQueue { core: Rc::clone(&self.core), inbox: Rc::default(), files: Vec::new() }))
    }

    fn wake_at(&self, deadline: Instant) {
        let earliest = self.deadline.get().map_or(deadline, |earlier| earlier.min(deadline));
        self.deadline.set(Some(earliest));
    }

    fn waker(&self) -> Arc<Waker> {
        Arc::clone(&self.waker)
    }
}

impl EventLoop for SimReactor {
    fn reactor(&self) -> Rc<dyn Reactor> {
        Rc::new(self.clone())
    }

    /// Does not sleep while operations are in flight: if one poll does not complete them, a later
    /// one does.
    fn sleep(&self, at_most: Duration) -> Result<(), IoError> {
        let until_deadline = self.deadline.take().map(|at| at.saturating_duration_since(Instant::now()));
        let sleep = match self.core.borrow().has_work() {
            true => Duration::ZERO,
            false => until_deadline.map_or(at_most, |sleep| sleep.min(at_most)),
        };
        let sleep = Timespec { tv_sec: sleep.as_secs() as i64, tv_nsec: i64::from(sleep.subsec_nanos()) };
        match poll(&mut [PollFd::new(&self.waker.event(), PollFlags::IN)], Some(&sleep)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.waker.reset();
        Ok(())
    }
}

struct SimQueue {
    core: Rc<RefCell<Core>>,
    inbox: Rc<Inbox>,
    files: Vec<Arc<dyn DataFile>>,
}

impl FileQueue for SimQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        if sim_file(&file).is_none() {
            return Err(Errno::BADF.into());
        }
        self.files.push(file);
        Ok(FileToken((self.files.len() - 1) as u32))
    }

    fn submit(&mut self, io: FileIo) {
        let core = &mut *self.core.borrow_mut();
        let file = self.files.get(io.file.0 as usize).map(Arc::clone);
        match Operation::new(&core.fs, &self.inbox, file, io) {
            Ok(operation) => core.unsent.push(operation),
            Err(done) => {
                self.inbox.done.borrow_mut().push_back((done, None));
                core.untold += 1;
            }
        }
    }

    fn kick(&mut self) {
        self.core.borrow_mut().kick();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        let core = &mut *self.core.borrow_mut();
        core.work();
        let mut inbox = self.inbox.done.borrow_mut();
        let told = if core.random.random() { inbox.len() } else { core.random.random_range(0..=inbox.len()) };
        core.untold -= told;
        for (ended, operation) in inbox.drain(..told) {
            if let Some(Told { file, operation }) = operation
                && let Some(file) = sim_file(&file)
            {
                let mut state = core.fs.state();
                state.tick();
                let now = state.clock;
                if let (Ok(()), Ok(inode)) = (state.alive(file.mount), state.file_mut(file.ino)) {
                    inode.tell(operation, now);
                }
            }
            done.push(ended);
        }
    }
}

impl Drop for SimQueue {
    fn drop(&mut self) {
        self.inbox.closed.set(true);
        let forgotten = self.inbox.done.take().len();
        self.core.borrow_mut().untold -= forgotten;
    }
}

impl Core {
    fn has_work(&self) -> bool {
        self.untold > 0 || !self.under_way.is_empty() && !self.fs.state().hung
    }

    /// Sends submitted operations: from now on a power cut may leave any part of them.
    fn kick(&mut self) {
        for mut operation in self.unsent.drain(..) {
            operation.send(&self.fs);
            self.under_way.push(operation);
        }
    }

    /// Completes some operations in flight, in any order; usually not all.
    fn work(&mut self) {
        if self.fs.state().hung {
            return;
        }
        let most = self.under_way.len();
        let count = if self.random.random_ratio(1, 4) { most } else { self.random.random_range(0..=most) };
        for _ in 0..count {
            let taken = self.random.random_range(0..self.under_way.len());
            let operation = self.under_way.swap_remove(taken);
            self.end(operation);
        }
    }

    fn end(&mut self, mut operation: Operation) {
        let result = operation.execute(&self.fs);
        let Operation { inbox, tag, file, id, work, buffer } = operation;
        if inbox.closed.get() {
            return;
        }
        let told = match work {
            Work::Write { .. } | Work::Space { .. } => Some(Told { file, operation: id }),
            Work::Read { .. } | Work::Sync { .. } | Work::SkippedSync => None,
        };
        inbox.done.borrow_mut().push_back((FileDone { tag, result, buffer }, told));
        self.untold += 1;
    }
}

impl Drop for Core {
    /// Like a ring, waits for operations in flight, but not for a hanging device.
    fn drop(&mut self) {
        if !self.fs.state().hung {
            while let Some(operation) = self.under_way.pop() {
                self.end(operation);
            }
        }
        for operation in self.under_way.drain(..) {
            self.fs.state().end_sync(operation.id);
        }
    }
}

impl Operation {
    /// Creates an operation to send, or its immediate completion if it is invalid.
    fn new(
        fs: &SimFs,
        inbox: &Rc<Inbox>,
        file: Option<Arc<dyn DataFile>>,
        io: FileIo,
    ) -> Result<Self, FileDone> {
        let tag = io.tag;
        let (work, buffer) = match io.operation {
            FileOperation::Read { offset, into } => (Work::Read { offset }, Some(into)),
            FileOperation::Write { offset, from, durable } => {
                let extent = Extent::between(offset, offset.saturating_add(from.len() as u64));
                (Work::Write { extent, durable }, Some(from))
            }
            FileOperation::SyncData | FileOperation::Sync => (Work::Sync { horizon: fs.state().clock }, None),
            FileOperation::Punch { extent } => (Work::Space { extent, space: SpaceChange::Free }, None),
            FileOperation::Zero { extent } => (Work::Space { extent, space: SpaceChange::Zero }, None),
            FileOperation::Allocate { extent } => (Work::Space { extent, space: SpaceChange::Reserve }, None),
        };
        let reach = match (&work, &buffer) {
            (Work::Read { offset }, Some(buffer)) => {
                Extent::between(*offset, offset.saturating_add(buffer.len() as u64))
            }
            (Work::Write { extent, .. } | Work::Space { extent, .. }, _) => *extent,
            (Work::Read { .. } | Work::Sync { .. } | Work::SkippedSync, _) => Extent::default(),
        };
        let transfers = buffer.is_some();
        let writes = matches!(work, Work::Write { .. } | Work::Space { .. });
        let refused = match file.as_ref().and_then(sim_file) {
            None => Some(Err(Errno::BADF)),
            Some(file) if writes && !file.writable => Some(Err(Errno::BADF)),
            Some(_) if i64::try_from(reach.end()).is_err() => Some(Err(Errno::INVAL)),
            // As with O_DIRECT.
            Some(_) if transfers && !reach.is_aligned_to(SECTOR_BYTES) => Some(Err(Errno::INVAL)),
            Some(_) if !matches!(work, Work::Sync { .. }) && reach.is_empty() => Some(Ok(())),
            Some(_) => None,
        };
        let id = fs.state().next_id();
        match (file, refused) {
            (Some(file), None) => Ok(Self { inbox: Rc::clone(inbox), tag, file, id, work, buffer }),
            (_, refused) => {
                let result = refused.unwrap_or(Err(Errno::BADF)).map_err(IoError::from);
                Err(FileDone { tag, result, buffer })
            }
        }
    }

    /// Its changes, as a power cut may leave them.
    fn changes(&self, fs: &SimFs) -> Vec<Change> {
        match (&self.work, &self.buffer) {
            (Work::Write { extent, .. }, Some(buffer)) => {
                let change = Change::sectors(extent.offset(), buffer.bytes().into());
                let state = fs.state();
                let file = sim_file(&self.file).and_then(|file| state.file(file.ino).ok());
                match file.filter(|_| state.habits.fills_whole) {
                    Some(file) => vec![change.filling(|block| file.is_data(block))],
                    None => vec![change],
                }
            }
            (Work::Space { extent, space }, _) => fs.state().transactions(*extent, *space),
            _ => Vec::new(),
        }
    }

    fn send(&mut self, fs: &SimFs) {
        let changes = self.changes(fs);
        let Some(file) = sim_file(&self.file) else { return };
        let mut state = fs.state();
        let syncs = matches!(self.work, Work::Sync { .. } | Work::Write { durable: true, .. });
        if syncs && !state.begin_sync(file.ino, self.id) {
            match &mut self.work {
                Work::Write { durable, .. } => *durable = false,
                work => *work = Work::SkippedSync,
            }
        }
        if changes.is_empty() || state.alive(file.mount).is_err() {
            return;
        }
        if let Ok(inode) = state.file_mut(file.ino) {
            inode.submit(self.id, changes);
        }
        state.tick();
    }

    fn execute(&mut self, fs: &SimFs) -> Result<(), IoError> {
        let changes = self.changes(fs);
        let Some(SimFile { ino, mount, .. }) = sim_file(&self.file) else {
            return Err(Errno::BADF.into());
        };
        let mut state = fs.state();
        state.end_sync(self.id);
        state.alive(*mount)?;
        match &self.work {
            Work::Read { offset } => {
                let one_in = state.faults.read_error_one_in;
                if strikes(one_in, &mut state.random) {
                    return Err(Errno::IO.into());
                }
                let Some(buffer) = &mut self.buffer else { return Ok(()) };
                let content = &state.file(*ino)?.current;
                let wanted_bytes = buffer.len() as u64;
                let done_bytes = content.length().saturating_sub(*offset).min(wanted_bytes);
                content.read(*offset, &mut buffer.bytes_mut()[..done_bytes as usize]);
                if done_bytes < wanted_bytes {
                    return Err(IoError::Short { done_bytes, wanted_bytes });
                }
            }
            Work::Write { extent, durable } => {
                for change in changes {
                    state.write(*ino, self.id, *extent, change, *durable)?;
                }
            }
            Work::SkippedSync => state.tick(),
            Work::Sync { horizon } => state.sync(*ino, *horizon)?,
            Work::Space { extent, space } => {
                state.change_space(*ino, self.id, *extent, *space, changes)?;
            }
        }
        Ok(())
    }
}
