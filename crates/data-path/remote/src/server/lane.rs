//! A lane: does the operations that a client's thread puts into its ring.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::io::Errno;
use strongroom_io::{
    DataFile, EventLoop, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, IoError, Slot,
    Waker,
};
use strongroom_memory::{BufferPool, MAX_BUFFER_BYTES};
use strongroom_types::Extent;
use uuid::Uuid;

use super::{Beside, Counted, Object, Reply, STACK_BYTES, ServedFile, Shared};
use crate::message::{Answer, Ask};
use crate::ring::{Broken, CHUNKS, ENTRIES, Ended, Entry, LAYOUT, ServerRing, code_of, operation};

/// The most files on a lane: as many as a worker may have open.
const FILES_MAX: usize = 4096;

/// A lane sleeps until it is woken; this only bounds what a lost wake-up would cost.
const SLEEP: Duration = Duration::from_secs(60);

/// How other threads reach a lane.
pub(super) struct LaneDoor {
    orders: Mutex<Sender<Order>>,
    waker: Arc<Waker>,
}

enum Order {
    Attach(Arc<ServedFile>, Sender<Result<u32, Errno>>),
    Detach(u32),
    /// The client has hung up.
    End,
}

impl LaneDoor {
    /// Makes a file usable on the lane; returns its number.
    pub(super) fn attach(&self, file: Arc<ServedFile>) -> Result<u32, Errno> {
        let (answer, answered) = channel();
        self.order(Order::Attach(file, answer));
        answered.recv().unwrap_or(Err(Errno::NOENT))
    }

    fn order(&self, order: Order) {
        // It fails once the lane has ended.
        let _ = self.orders.lock().send(order);
        self.waker.wake();
    }
}

/// What the lane's socket stands for: the client's right to it.
struct LaneObject {
    shared: Arc<Shared>,
    token: Uuid,
    door: Arc<LaneDoor>,
}

impl Object for LaneObject {
    fn answer(&mut self, ask: Ask, _: Beside<'_>) -> Result<Reply, Errno> {
        match ask {
            Ask::Detach { file } => {
                self.door.order(Order::Detach(file));
                Ok(Answer::Done.into())
            }
            _ => Err(Errno::NOTTY),
        }
    }
}

impl Drop for LaneObject {
    fn drop(&mut self) {
        self.shared.lanes.lock().remove(&self.token);
        self.door.order(Order::End);
    }
}

/// Opens a lane over the client's files: the ring's words, the pool's chunks, the eventfd that
/// wakes its thread.
pub(super) fn open(shared: &Arc<Shared>, layout: u32, files: Vec<OwnedFd>) -> Result<Reply, Errno> {
    let files = <[OwnedFd; 3]>::try_from(files);
    let (Ok([words, chunks, wakes]), LAYOUT) = (files, layout) else { return Err(Errno::INVAL) };
    let ring = ServerRing::map(&words).map_err(|_| Errno::INVAL)?;
    // A pool stays on the thread that made it; here only its file is checked.
    drop(BufferPool::of_shared(&chunks, CHUNKS).map_err(|_| Errno::INVAL)?);
    let (orders, received) = channel();
    let (start, started) = channel();
    let counted = shared.count()?;
    let thread = thread::Builder::new().name("lane".to_owned()).stack_size(STACK_BYTES);
    thread
        .spawn(move || {
            let made = (counted.0.event_loops)().map_err(|_| Errno::NOMEM).and_then(|event_loop| {
                let pool = BufferPool::of_shared(&chunks, CHUNKS).map_err(|_| Errno::NOMEM)?;
                Ok((event_loop, pool))
            });
            match made {
                Ok((event_loop, pool)) => {
                    let _ = start.send(Ok(event_loop.reactor().waker()));
                    drop(start);
                    Lane::new(ring, pool, wakes, event_loop, counted).run(&received);
                }
                Err(errno) => drop(start.send(Err(errno))),
            }
        })
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    let waker = started.recv().unwrap_or(Err(Errno::NOMEM))?;
    let event = rustix::io::fcntl_dupfd_cloexec(waker.event(), 0)?;
    let door = Arc::new(LaneDoor { orders: Mutex::new(orders), waker });
    let token = Uuid::new_v4();
    shared.lanes.lock().insert(token, Arc::downgrade(&door));
    let socket = shared.spawn(LaneObject { shared: Arc::clone(shared), token, door }, "lane's client")?;
    Ok(Reply { files: vec![socket, event], ..Answer::Opened { token }.into() })
}

struct Lane {
    ring: ServerRing,
    pool: BufferPool,
    /// Wakes the client.
    wakes: OwnedFd,
    event_loop: Box<dyn EventLoop>,
    files: HashMap<u32, Attached>,
    next_file: u32,
    under_way: InFlight<UnderWay>,
    done: Vec<FileDone>,
    must_wake: bool,
    /// The client has hung up, or has broken the ring: nothing more is taken.
    is_ending: bool,
    server: Counted,
}

/// A file on the lane, with a queue of its own, so that it can be left alone.
struct Attached {
    file: KeepsOpen,
    queue: Box<dyn FileQueue>,
    token: FileToken,
    under_way: usize,
    is_leaving: bool,
    /// Whether something was submitted and not yet started.
    is_kicked: bool,
}

struct UnderWay {
    tag: u64,
    file: u32,
}

/// The file that is registered with a leaf: it stays open until the leaf has let go of it, even
/// after a queue was dropped.
#[derive(Debug)]
struct Held(Arc<dyn DataFile>, #[expect(dead_code, reason = "keeps it open")] KeepsOpen);

/// A lane's use of a file. If it is the last one, another thread closes the file.
struct KeepsOpen {
    server: Arc<Shared>,
    /// `None` only while it is dropped.
    file: Option<Arc<ServedFile>>,
}

impl KeepsOpen {
    fn writable(&self) -> Result<(), Errno> {
        self.file.as_ref().ok_or(Errno::BADF)?.writable()
    }
}

impl Drop for KeepsOpen {
    fn drop(&mut self) {
        if let Some(file) = self.file.take().and_then(Arc::into_inner) {
            self.server.close(file);
        }
    }
}

impl std::fmt::Debug for KeepsOpen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeepsOpen")
    }
}

impl DataFile for Held {
    fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        DataFile::as_fd(&*self.0)
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self.0.as_any()
    }
}

impl Lane {
    fn new(
        ring: ServerRing,
        pool: BufferPool,
        wakes: OwnedFd,
        event_loop: Box<dyn EventLoop>,
        server: Counted,
    ) -> Self {
        Self {
            ring,
            pool,
            wakes,
            event_loop,
            files: HashMap::new(),
            next_file: 0,
            under_way: InFlight::with_depth(ENTRIES),
            done: Vec::with_capacity(ENTRIES),
            must_wake: false,
            is_ending: false,
            server,
        }
    }

    /// Runs until the client has hung up and its last operation has ended.
    fn run(mut self, orders: &Receiver<Order>) {
        loop {
            orders.try_iter().for_each(|order| self.follow(order));
            let turned = self.turn();
            if self.is_ending {
                if self.under_way.is_empty() {
                    return;
                }
            } else if turned == Err(Broken) {
                tracing::error!("a client of the storage has broken a ring, and loses it");
                self.is_ending = true;
                continue;
            }
            let may_sleep = self.is_ending || self.ring.may_sleep().unwrap_or(true);
            if may_sleep && let Err(error) = self.event_loop.sleep(SLEEP) {
                tracing::error!(%error, "a lane's event loop failed, and the lane ends");
                // Its buffers may still be in use.
                std::mem::forget(self);
                return;
            }
            self.ring.woke();
        }
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Attach(file, answer) => drop(answer.send(self.attach(file))),
            Order::Detach(number) => {
                if let Some(attached) = self.files.get_mut(&number) {
                    attached.is_leaving = true;
                }
                self.let_go(number);
            }
            Order::End => self.is_ending = true,
        }
    }

    fn attach(&mut self, file: Arc<ServedFile>) -> Result<u32, Errno> {
        if self.files.len() >= FILES_MAX {
            return Err(Errno::MFILE);
        }
        let failed = |_| Errno::IO;
        let mut queue = file.file.queue(&self.event_loop.reactor()).map_err(failed)?;
        let stored: Arc<dyn DataFile> = Arc::clone(&file.file) as _;
        let keeps_open = || KeepsOpen { server: Arc::clone(&self.server.0), file: Some(Arc::clone(&file)) };
        let (held, file) = (Held(stored, keeps_open()), keeps_open());
        let token = queue.register(Arc::new(held)).map_err(failed)?;
        let number = self.next_file;
        self.next_file += 1;
        let attached = Attached { file, queue, token, under_way: 0, is_leaving: false, is_kicked: true };
        self.files.insert(number, attached);
        Ok(number)
    }

    /// Forgets a file that is leaving, once nothing is under way on it.
    fn let_go(&mut self, number: u32) {
        if self.files.get(&number).is_some_and(|file| file.is_leaving && file.under_way == 0) {
            self.files.remove(&number);
        }
    }

    /// Takes what there is to take, and reports what has ended.
    fn turn(&mut self) -> Result<(), Broken> {
        let ended = self.end_all();
        let taken = if self.is_ending { Ok(()) } else { self.take_all() };
        for attached in self.files.values_mut().filter(|file| !file.is_kicked) {
            attached.queue.kick();
            attached.is_kicked = true;
        }
        if std::mem::take(&mut self.must_wake) {
            // It can fail only if the counter is full, which wakes the client too.
            let _ = rustix::io::write(&self.wakes, &1_u64.to_ne_bytes());
        }
        ended.and(taken)
    }

    fn end_all(&mut self) -> Result<(), Broken> {
        let mut done = std::mem::take(&mut self.done);
        for attached in self.files.values_mut().filter(|file| file.under_way > 0) {
            attached.queue.poll(&mut done);
        }
        let mut result = Ok(());
        for FileDone { tag, result: ended, buffer } in done.drain(..) {
            // The memory is free before the client hears of it, and uses it again.
            drop(buffer);
            let Some(UnderWay { tag, file }) = Slot::from_tag(tag).and_then(|slot| self.under_way.take(slot))
            else {
                continue;
            };
            if let Some(attached) = self.files.get_mut(&file) {
                attached.under_way -= 1;
            }
            self.let_go(file);
            result = result.and(self.complete(tag, ended));
        }
        self.done = done;
        result
    }

    fn take_all(&mut self) -> Result<(), Broken> {
        while let Some(entry) = self.ring.take()? {
            if let Err(errno) = self.begin(&entry) {
                self.complete(entry.tag, Err(errno.into()))?;
            }
        }
        Ok(())
    }

    fn complete(&mut self, tag: u64, result: Result<(), IoError>) -> Result<(), Broken> {
        if let Err(IoError::Device(errno)) = result {
            (self.server.0.tells_errors)(Errno::from_raw_os_error(errno.0));
        }
        self.must_wake |= self.ring.complete(Ended { tag, code: code_of(result) })?;
        Ok(())
    }

    /// Starts an operation, if the client may do it.
    fn begin(&mut self, entry: &Entry) -> Result<(), Errno> {
        let number = u32::try_from(entry.file).map_err(|_| Errno::BADF)?;
        let attached = self.files.get_mut(&number).filter(|file| !file.is_leaving).ok_or(Errno::BADF)?;
        let is_write = !matches!(entry.operation, operation::READ | operation::SYNC | operation::SYNC_WHOLE);
        if is_write {
            attached.file.writable()?;
        }
        let extent = Extent::new(entry.offset, entry.length).map_err(|_| Errno::INVAL)?;
        let buffer = || {
            let length = usize::try_from(entry.length).ok().filter(|length| *length <= MAX_BUFFER_BYTES);
            length.and_then(|length| self.pool.take_at(entry.place, length)).ok_or(Errno::FAULT)
        };
        let offset = entry.offset;
        let operation = match entry.operation {
            operation::READ => FileOperation::Read { offset, into: buffer()? },
            operation::WRITE => FileOperation::Write { offset, from: buffer()?, durable: false },
            operation::WRITE_DURABLY => FileOperation::Write { offset, from: buffer()?, durable: true },
            operation::SYNC => FileOperation::SyncData,
            operation::SYNC_WHOLE => FileOperation::Sync,
            operation::PUNCH => FileOperation::Punch { extent },
            operation::ALLOCATE => FileOperation::Allocate { extent },
            operation::ZERO => FileOperation::Zero { extent },
            _ => return Err(Errno::OPNOTSUPP),
        };
        let slot = self.under_way.insert(UnderWay { tag: entry.tag, file: number });
        attached.queue.submit(FileIo { tag: slot.tag(), file: attached.token, operation });
        (attached.under_way, attached.is_kicked) = (attached.under_way + 1, false);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::FlockOperation;
    use strongroom_datastore::file::storage::{BY_PATH, Lockable, StoredFile};
    use strongroom_io::IdleReactor;

    use super::super::Server;
    use super::*;

    /// A file of a cluster that does not answer: it is closed when the test says so.
    #[derive(Debug)]
    struct Hanging(Mutex<Receiver<()>>);

    impl Drop for Hanging {
        fn drop(&mut self) {
            self.0.get_mut().recv().unwrap();
        }
    }

    impl DataFile for Hanging {
        fn as_fd(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }

        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }

    impl Lockable for Hanging {
        fn try_lock(&self, _: FlockOperation) -> Result<(), Errno> {
            Err(Errno::NOSYS)
        }

        fn lock_holder(&self) -> Option<u32> {
            None
        }
    }

    impl StoredFile for Hanging {
        fn length(&self) -> Result<u64, Errno> {
            Err(Errno::NOSYS)
        }

        fn link_count(&self) -> Result<u64, Errno> {
            Err(Errno::NOSYS)
        }

        fn set_length(&self, _: u64) -> Result<(), Errno> {
            Err(Errno::NOSYS)
        }

        fn allocate(&self, _: u64, _: u64) -> Result<(), Errno> {
            Err(Errno::NOSYS)
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
            Err(Errno::NOSYS)
        }

        fn write_at(&self, _: u64, _: &[u8]) -> Result<(), Errno> {
            Err(Errno::NOSYS)
        }

        fn sync(&self) -> Result<(), Errno> {
            Err(Errno::NOSYS)
        }

        fn next_data(&self, _: u64) -> Result<u64, Errno> {
            Err(Errno::NOSYS)
        }

        fn next_hole(&self, _: u64) -> Result<u64, Errno> {
            Err(Errno::NOSYS)
        }
    }

    #[test]
    fn a_lane_does_not_wait_for_a_file_to_be_closed() {
        let server = Server::new(BY_PATH, || IdleReactor::new().map(std::rc::Rc::new));
        let (closes, may_close) = channel();
        let directory = Arc::downgrade(&BY_PATH.open_directory(Path::new("/")).unwrap());
        let served = Arc::new(ServedFile {
            token: Uuid::new_v4(),
            file: Arc::new(Hanging(Mutex::new(may_close))),
            is_writable: true,
            directory,
        });
        let keeps_open = || KeepsOpen { server: Arc::clone(&server.0), file: Some(Arc::clone(&served)) };
        let (first, last) = (keeps_open(), keeps_open());
        drop(served);
        drop(first);
        assert_eq!(*server.0.objects.lock(), 0, "it is in use");
        drop(last);
        assert_eq!(*server.0.objects.lock(), 1, "the server stays until it is closed");
        closes.send(()).unwrap();
        server.wait_until_unused();
    }
}
