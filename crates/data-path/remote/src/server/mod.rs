//! The server's side.
//!
//! Each socket has a thread, which answers one request at a time: a cluster that does not answer
//! holds up those who wait for that object, and nobody else. Each lane has a thread, too, which
//! waits for no file: one whose last use was on a lane is closed by a thread of its own.

mod lane;
mod objects;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Storage, StoredFile};
use strongroom_io::{EventLoop, IoError};
use strongroom_wire::PacketSocket;
use uuid::Uuid;

use self::lane::LaneDoor;
use self::objects::StorageObject;
use crate::message::{Answer, Ask, PACKET_BYTES_MAX};
use crate::packet::{self, Failure, Received};

/// The most objects at once: each has a socket and a thread. A volume has some ten for each layer.
pub const OBJECTS_MAX: usize = 4096;

/// The stack of an object's thread; librados has threads of its own.
const STACK_BYTES: usize = 512 << 10;

type TellsErrors = dyn Fn(Errno) + Send + Sync;

type MakesLoops = dyn Fn() -> Result<Box<dyn EventLoop>, IoError> + Send + Sync;

/// Serves a storage to other processes. Clones share it.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    id: Uuid,
    storage: Box<dyn Storage>,
    event_loops: Box<MakesLoops>,
    tells_errors: Box<TellsErrors>,
    files: Mutex<HashMap<Uuid, Weak<ServedFile>>>,
    lanes: Mutex<HashMap<Uuid, Weak<LaneDoor>>>,
    objects: Mutex<usize>,
    fewer_objects: Condvar,
}

/// An open file. It is closed with its last socket and its last operation.
struct ServedFile {
    token: Uuid,
    file: Arc<dyn StoredFile>,
    is_writable: bool,
    /// The directory that it was opened in. A file does not keep it, nor its lock.
    directory: Weak<dyn Directory>,
}

/// What a request is answered with.
struct Reply {
    answer: Answer,
    data: Vec<u8>,
    files: Vec<OwnedFd>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self { answer, data: Vec::new(), files: Vec::new() }
    }
}

/// A request's attachments.
struct Beside<'a> {
    data: &'a [u8],
    files: Vec<OwnedFd>,
}

/// Something that a socket stands for.
trait Object: Send + 'static {
    fn answer(&mut self, ask: Ask, beside: Beside<'_>) -> Result<Reply, Errno>;
}

impl Server {
    /// Serves `storage`. Lanes run on `event_loops`, one for each.
    pub fn new<L: EventLoop + 'static>(
        storage: impl Storage + 'static,
        event_loops: impl Fn() -> Result<L, IoError> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(Shared {
            id: Uuid::new_v4(),
            storage: Box::new(storage),
            event_loops: Box::new(move || Ok(Box::new(event_loops()?))),
            tells_errors: Box::new(|_| ()),
            files: Mutex::default(),
            lanes: Mutex::default(),
            objects: Mutex::default(),
            fewer_objects: Condvar::new(),
        }))
    }

    /// Has `tells` called with the error of each request that fails.
    ///
    /// # Panics
    /// If somebody is served already.
    #[must_use]
    pub fn telling_errors(self, tells: impl Fn(Errno) + Send + Sync + 'static) -> Self {
        let mut shared = Arc::into_inner(self.0).expect("it is set before anybody is served");
        shared.tells_errors = Box::new(tells);
        Self(Arc::new(shared))
    }

    /// Answers a client that may use the whole storage, until it hangs up. What it has opened
    /// stays open as long as somebody has the sockets.
    ///
    /// # Errors
    /// If the socket is of another kind.
    pub fn serve(&self, socket: OwnedFd) -> Result<(), Errno> {
        let socket = PacketSocket::adopt(socket).ok_or(Errno::PROTOTYPE)?;
        answer_all(&self.0, &socket, &mut StorageObject(Arc::clone(&self.0)));
        Ok(())
    }
}

impl Server {
    /// Waits until no client has anything open.
    pub fn wait_until_unused(&self) {
        let mut objects = self.0.objects.lock();
        while *objects > 0 {
            self.0.fewer_objects.wait(&mut objects);
        }
    }
}

impl Shared {
    /// Counts a thread, if there may be another one.
    fn count(self: &Arc<Self>) -> Result<Counted, Errno> {
        let mut objects = self.objects.lock();
        if *objects >= OBJECTS_MAX {
            return Err(Errno::NFILE);
        }
        *objects += 1;
        Ok(Counted(Arc::clone(self)))
    }

    /// Closes a file that nobody uses any more, on a thread of its own: the storage may wait.
    fn close(self: &Arc<Self>, file: ServedFile) {
        *self.objects.lock() += 1;
        let counted = Counted(Arc::clone(self));
        let thread = thread::Builder::new().name("closing".to_owned()).stack_size(STACK_BYTES);
        // Without a thread, the file is closed here, with what the closure has.
        let _ = thread.spawn(move || {
            let _counted = counted;
            drop(file);
        });
    }

    /// Gives an object a thread, and returns the socket of its client.
    fn spawn(self: &Arc<Self>, object: impl Object, name: &str) -> Result<OwnedFd, Errno> {
        let counted = self.count()?;
        let (socket, theirs) = PacketSocket::pair()?;
        let thread = thread::Builder::new().name(name.to_owned()).stack_size(STACK_BYTES);
        let spawned = thread.spawn(move || {
            let (mut object, counted) = (object, counted);
            answer_all(&counted.0, &socket, &mut object);
        });
        match spawned {
            Ok(_) => Ok(theirs),
            Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN)),
        }
    }
}

/// A thread of the server's: one of those of objects and lanes that there may be, or one that
/// closes a file. The server is in use as long as there is any.
struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        *self.0.objects.lock() -= 1;
        self.0.fewer_objects.notify_all();
    }
}

/// Answers until the client hangs up, or breaks the protocol.
fn answer_all(shared: &Shared, socket: &PacketSocket, object: &mut impl Object) {
    let mut room = vec![0; PACKET_BYTES_MAX];
    loop {
        let (ask, beside) = match packet::receive::<Ask>(socket, &mut room) {
            Ok(Received { message, data, files }) => (message, Beside { data, files }),
            Err(Failure::Gone) => return,
            Err(Failure::Broken(errno)) => {
                tracing::warn!(%errno, "a client of the storage does not keep to the protocol");
                return;
            }
        };
        let reply = object.answer(ask, beside).unwrap_or_else(|errno| {
            (shared.tells_errors)(errno);
            Answer::failed(errno).into()
        });
        let Reply { answer, data, files } = reply;
        let files: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
        if packet::send(socket, &answer, &data, &files).is_err() {
            return;
        }
    }
}
