//! A thread's lane: its operations on the server's files.
//!
//! All queues of a thread share one, for each server. Memory of the pool is never looked at: what
//! is written is copied in, and what was read is copied out once its operation has ended.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use strongroom_io::{
    DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Reactor, Slot, Waker,
};
use strongroom_memory::{Buffer, BufferPool, make_shared_chunks};
use strongroom_types::Extent;
use uuid::Uuid;

use super::connection::{Connection, has_ended};
use super::file::{OnEnd, RemoteFile};
use crate::message::{Answer, Ask};
use crate::ring::{Broken, CHUNKS, ClientRing, ENTRIES, Ended, Entry, LAYOUT, make, operation, result_of};

/// How often a thread that waits looks whether the server has ended.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

thread_local! {
    static LANES: RefCell<Vec<Weak<RefCell<Lane>>>> = const { RefCell::new(Vec::new()) };
    static COPIED_BYTES: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn copied_bytes() -> u64 {
    COPIED_BYTES.get()
}

fn copy(to: &mut Buffer, from: &Buffer) {
    to.copy_from(from);
    COPIED_BYTES.set(COPIED_BYTES.get() + from.len() as u64);
}

/// A queue on the thread's lane to the file's server.
pub(super) fn queue(file: &RemoteFile, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
    let (server, _) = file.identity()?;
    let waker = reactor.waker();
    let mine = |lane: &Rc<RefCell<Lane>>| {
        let lane = lane.borrow();
        lane.server == server && Arc::ptr_eq(&lane.waker, &waker) && lane.on_end == file.on_end()
    };
    let known = LANES.with_borrow_mut(|lanes| {
        lanes.retain(|lane| lane.strong_count() > 0);
        lanes.iter().filter_map(Weak::upgrade).find(mine)
    });
    let lane = match known {
        Some(lane) => lane,
        None => {
            let lane = Rc::new(RefCell::new(Lane::open(file, server, reactor)?));
            LANES.with_borrow_mut(|lanes| lanes.push(Rc::downgrade(&lane)));
            lane
        }
    };
    let inbox = Rc::new(Inbox { done: RefCell::default(), is_open: Cell::new(true) });
    Ok(Box::new(RemoteQueue { lane, inbox, files: Vec::new() }))
}

struct Lane {
    server: Uuid,
    token: Uuid,
    ring: ClientRing,
    pool: BufferPool,
    connection: Connection,
    /// Shows that the server has ended.
    watched: OwnedFd,
    /// Wakes the server.
    wakes: OwnedFd,
    reactor: Rc<dyn Reactor>,
    waker: Arc<Waker>,
    on_end: OnEnd,
    under_way: InFlight<UnderWay>,
    /// Operations that the ring or the pool has no room for.
    waiting: VecDeque<Waiting>,
    /// The server has ended, or broken the ring: nothing ends any more.
    is_lost: bool,
    looked: Instant,
}

struct Inbox {
    done: RefCell<Vec<FileDone>>,
    /// Cleared when the queue is dropped.
    is_open: Cell<bool>,
}

struct Waiting {
    inbox: Rc<Inbox>,
    tag: u64,
    file: u32,
    operation: FileOperation,
}

struct UnderWay {
    inbox: Rc<Inbox>,
    tag: u64,
    /// The submitter's buffer.
    buffer: Option<Buffer>,
    /// The pool's.
    transfer: Option<Buffer>,
    is_read: bool,
}

impl Lane {
    fn open(file: &RemoteFile, server: Uuid, reactor: &Rc<dyn Reactor>) -> Result<Self, IoError> {
        let failed = |_| IoError::from(Errno::NOMEM);
        let (words, chunks) = (make().map_err(failed)?, make_shared_chunks(CHUNKS).map_err(failed)?);
        let ring = ClientRing::map(&words).map_err(failed)?;
        let pool = BufferPool::of_shared(&chunks, CHUNKS).map_err(failed)?;
        let waker = reactor.waker();
        let mut answered = file.open_lane(LAYOUT, &[words.as_fd(), chunks.as_fd(), waker.event()])?;
        let files = std::mem::take(&mut answered.files);
        let (Answer::Opened { token }, Ok([socket, wakes])) =
            (answered.answer.into_result()?, <[OwnedFd; 2]>::try_from(files))
        else {
            return Err(Errno::BADMSG.into());
        };
        let connection = Connection::of(socket).map_err(|_| Errno::BADMSG)?;
        Ok(Self {
            server,
            token,
            ring,
            pool,
            watched: connection.watched()?,
            connection,
            wakes,
            reactor: Rc::clone(reactor),
            waker,
            on_end: file.on_end(),
            under_way: InFlight::with_depth(ENTRIES),
            waiting: VecDeque::with_capacity(ENTRIES),
            is_lost: false,
            looked: Instant::now(),
        })
    }

    /// Puts into the ring what there is room for, and shows it to the server.
    fn send(&mut self) {
        let mut is_sent = false;
        while self.ring.has_room() && !self.is_lost {
            let Some(next) = self.waiting.pop_front() else { break };
            match self.place(next) {
                Ok(()) => is_sent = true,
                Err(next) => {
                    self.waiting.push_front(*next);
                    break;
                }
            }
        }
        if is_sent && self.ring.publish() {
            // It can fail only if the counter is full, which wakes the server too.
            let _ = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes());
        }
        if self.is_lost || !self.under_way.is_empty() || !self.waiting.is_empty() {
            self.look_for_its_end();
        }
    }

    /// Puts an operation into the ring. Returns it if the pool has no memory for it now.
    fn place(&mut self, waiting: Waiting) -> Result<(), Box<Waiting>> {
        let Waiting { inbox, tag, file, operation } = waiting;
        let whole = |extent: Extent| (extent.offset(), extent.length(), 0);
        let (number, (offset, length, place), buffer, transfer) = match operation {
            FileOperation::Read { offset, into } => match self.pool.take(into.len()) {
                Some(transfer) => {
                    let reach = (offset, into.len() as u64, transfer.place());
                    (operation::READ, reach, Some(into), Some(transfer))
                }
                None => {
                    let operation = FileOperation::Read { offset, into };
                    return Err(Box::new(Waiting { inbox, tag, file, operation }));
                }
            },
            FileOperation::Write { offset, from, durable } => match self.pool.take(from.len()) {
                Some(mut transfer) => {
                    copy(&mut transfer, &from);
                    let number = if durable { operation::WRITE_DURABLY } else { operation::WRITE };
                    let reach = (offset, from.len() as u64, transfer.place());
                    (number, reach, Some(from), Some(transfer))
                }
                None => {
                    let operation = FileOperation::Write { offset, from, durable };
                    return Err(Box::new(Waiting { inbox, tag, file, operation }));
                }
            },
            FileOperation::SyncData => (operation::SYNC, (0, 0, 0), None, None),
            FileOperation::Sync => (operation::SYNC_WHOLE, (0, 0, 0), None, None),
            FileOperation::Punch { extent } => (operation::PUNCH, whole(extent), None, None),
            FileOperation::Allocate { extent } => (operation::ALLOCATE, whole(extent), None, None),
            FileOperation::Zero { extent } => (operation::ZERO, whole(extent), None, None),
        };
        let is_read = number == operation::READ;
        let slot = self.under_way.insert(UnderWay { inbox, tag, buffer, transfer, is_read });
        let (tag, file) = (slot.tag(), u64::from(file));
        self.ring.push(Entry { tag, operation: number, file, offset, length, place });
        Ok(())
    }

    /// Delivers what has ended. `reader` is the queue that is polled: others' threads must not
    /// sleep over what is theirs.
    fn reap(&mut self, reader: &Rc<Inbox>) {
        let mut is_others = false;
        loop {
            match self.ring.reap() {
                Ok(Some(ended)) => is_others |= self.end(ended, reader),
                Ok(None) => {
                    self.ring.will_sleep();
                    // What ends from now on wakes the thread; what has ended before is taken now.
                    match self.ring.reap() {
                        Ok(Some(ended)) => is_others |= self.end(ended, reader),
                        Ok(None) => break,
                        Err(Broken) => self.lose(),
                    }
                }
                Err(Broken) => self.lose(),
            }
            if self.is_lost {
                break;
            }
        }
        if is_others {
            self.waker.wake();
        }
        self.send();
    }

    /// Ends an operation. Returns whether it is that of another queue.
    fn end(&mut self, ended: Ended, reader: &Rc<Inbox>) -> bool {
        let Some(operation) = Slot::from_tag(ended.tag).and_then(|slot| self.under_way.take(slot)) else {
            self.lose();
            return false;
        };
        let UnderWay { inbox, tag, mut buffer, transfer, is_read } = operation;
        let wanted_bytes = buffer.as_ref().map_or(0, Buffer::len) as u64;
        let result = result_of(ended.code, wanted_bytes);
        if let (true, Ok(()), Some(into), Some(from)) = (is_read, result, &mut buffer, &transfer) {
            copy(into, from);
        }
        if inbox.is_open.get() {
            inbox.done.borrow_mut().push(FileDone { tag, result, buffer });
        }
        !Rc::ptr_eq(&inbox, reader)
    }

    /// The server does not keep to the protocol, so no more is heard from it.
    fn lose(&mut self) {
        tracing::error!("the storage process has broken a ring");
        self.is_lost = true;
        self.connection.hang_up();
    }

    /// Fails all operations, or ends the process, if the server has ended.
    fn look_for_its_end(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.looked) >= LOOKS_EVERY {
            self.looked = now;
            self.is_lost |= has_ended(&self.watched);
        }
        self.reactor.wake_at(now + LOOKS_EVERY);
        if !self.is_lost {
            return;
        }
        if self.on_end == OnEnd::Exit {
            tracing::error!("the storage process is gone, and this one ends");
            std::process::exit(1);
        }
        let fail = |inbox: Rc<Inbox>, tag, buffer| {
            let result = Err(Errno::CONNRESET.into());
            if inbox.is_open.get() {
                inbox.done.borrow_mut().push(FileDone { tag, result, buffer });
                self.waker.wake();
            }
        };
        let lost = std::mem::replace(&mut self.under_way, InFlight::with_depth(0));
        for UnderWay { inbox, tag, buffer, .. } in lost.into_entries() {
            fail(inbox, tag, buffer);
        }
        for Waiting { inbox, tag, operation, .. } in self.waiting.drain(..) {
            let buffer = match operation {
                FileOperation::Read { into: buffer, .. } | FileOperation::Write { from: buffer, .. } => {
                    Some(buffer)
                }
                _ => None,
            };
            fail(inbox, tag, buffer);
        }
    }
}

/// A queue of file operations. If it is dropped, operations under way may be done or not.
struct RemoteQueue {
    lane: Rc<RefCell<Lane>>,
    inbox: Rc<Inbox>,
    files: Vec<Registered>,
}

struct Registered {
    /// Kept because its owner may hold more than the file, and because the server keeps the lock as
    /// long as somebody has its socket.
    _file: Arc<dyn DataFile>,
    number: u32,
}

impl FileQueue for RemoteQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        let remote = RemoteFile::of(&*file).ok_or(Errno::BADF)?;
        let (server, _) = remote.identity()?;
        let lane = self.lane.borrow();
        if server != lane.server {
            return Err(Errno::XDEV.into());
        }
        let number = remote.attach(lane.token)?;
        drop(lane);
        self.files.push(Registered { _file: file, number });
        Ok(FileToken((self.files.len() - 1) as u32))
    }

    fn submit(&mut self, io: FileIo) {
        let FileIo { tag, file, operation } = io;
        // The server refuses a number that it has not given.
        let number = self.files.get(file.0 as usize).map_or(u32::MAX, |file| file.number);
        let waiting = Waiting { inbox: Rc::clone(&self.inbox), tag, file: number, operation };
        self.lane.borrow_mut().waiting.push_back(waiting);
    }

    fn kick(&mut self) {
        self.lane.borrow_mut().send();
    }

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        self.lane.borrow_mut().reap(&self.inbox);
        done.append(&mut self.inbox.done.borrow_mut());
    }
}

impl Drop for RemoteQueue {
    fn drop(&mut self) {
        self.inbox.is_open.set(false);
        let lane = self.lane.borrow();
        for Registered { number, .. } in &self.files {
            // A server that has ended has let go of it.
            let _ = lane.connection.simply(&Ask::Detach { file: *number });
        }
    }
}
