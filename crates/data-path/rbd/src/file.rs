//! Open files: small ones in an object, and those of blocks in an image.

use std::any::Any;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Lockable, StoredFile};
use strongroom_io::{DataFile, FileQueue, IoError, Reactor};

use crate::ceph::{Change, Image, ImageAccess, LockKind, Pool, Step, remove_image};
use crate::holder::Holder;
use crate::names::{Entry, ObjectId, compared_and_set};
use crate::queue::RbdQueue;
use crate::storage::Shared;

/// The operations of a queue for which there is memory from the start.
const QUEUE_DEPTH: usize = 64;

/// The attribute of a file's object that counts its names.
const NAMES: &str = "names";

/// The object of a file.
pub(crate) fn object_of(id: &ObjectId) -> String {
    format!("file.{id}")
}

/// The image of a file of blocks.
pub(crate) fn image_of(id: &ObjectId) -> String {
    format!("strongroom.{id}")
}

/// Makes a file's object, with one name.
pub(crate) fn make(pool: &Pool, id: &ObjectId) -> Result<(), Errno> {
    pool.change(&object_of(id), &Change(vec![Step::Create, Step::SetAttribute(NAMES, b"1")]))
}

/// The number of names of a file. It is never too low: a name is counted before it is made.
pub(crate) fn names_of(pool: &Pool, id: &ObjectId) -> Result<u64, Errno> {
    count_of(&pool.attribute(&object_of(id), NAMES)?)
}

/// Counts a name that is about to be made (1), or was removed (-1). Returns how many there are now.
pub(crate) fn count_name(pool: &Pool, id: &ObjectId, more: i64) -> Result<u64, Errno> {
    let object = object_of(id);
    let mut now = 0;
    compared_and_set(pool, &object, NAMES, |names| {
        now = count_of(names)?.checked_add_signed(more).ok_or(Errno::BADMSG)?;
        let next = now.to_string();
        let steps = [Step::AttributeIs(NAMES, names), Step::SetAttribute(NAMES, next.as_bytes())];
        pool.change(&object, &Change(steps.to_vec()))
    })?;
    Ok(now)
}

fn count_of(attribute: &[u8]) -> Result<u64, Errno> {
    std::str::from_utf8(attribute).ok().and_then(|text| text.parse().ok()).ok_or(Errno::BADMSG)
}

/// Removes a file without names, unless another process has it open: the last one to close it
/// removes it then.
pub(crate) fn reap(pool: &Pool, file: &Entry, cookie: &str) -> Result<(), Errno> {
    let (id, removed): (_, fn(&Pool, &ObjectId) -> _) = match file {
        Entry::Object(id) => (id, |_, _| Ok(())),
        Entry::Image(id) => (id, |pool, id| remove_image(pool, &image_of(id))),
        Entry::Directory(_) => return Err(Errno::ISDIR),
    };
    let object = object_of(id);
    pool.lock(&object, LockKind::Exclusive, cookie)?;
    match removed(pool, id) {
        Ok(()) | Err(Errno::NOENT) => pool.change(&object, &Change(vec![Step::Remove])),
        Err(errno) => {
            let _ = pool.unlock(&object, cookie);
            Err(errno)
        }
    }
}

/// A lock of one open file or directory, on its object.
pub(crate) struct ObjectLock {
    shared: Arc<Shared>,
    object: String,
    cookie: String,
    held: Mutex<Option<LockKind>>,
}

impl ObjectLock {
    pub(crate) fn new(shared: &Arc<Shared>, object: String) -> Self {
        let (shared, cookie) = (Arc::clone(shared), Holder::own().cookie());
        Self { shared, object, cookie, held: Mutex::new(None) }
    }

    pub(crate) fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Takes the lock. A holder that has died on this machine is fenced first.
    pub(crate) fn try_lock(&self, operation: FlockOperation) -> Result<LockKind, Errno> {
        let kind = match operation {
            FlockOperation::NonBlockingLockExclusive => LockKind::Exclusive,
            FlockOperation::NonBlockingLockShared => LockKind::Shared,
            _ => return Err(Errno::INVAL),
        };
        let mut held = self.held.lock();
        let locked = self.shared.pool.lock(&self.object, kind, &self.cookie);
        let locked = match locked {
            Err(Errno::BUSY) if self.release_the_dead()? => {
                self.shared.pool.lock(&self.object, kind, &self.cookie)
            }
            locked => locked,
        };
        match locked {
            Ok(()) => {
                *held = Some(kind);
                Ok(kind)
            }
            Err(Errno::BUSY) => Err(Errno::WOULDBLOCK),
            Err(errno) => Err(errno),
        }
    }

    /// Takes the lock from holders that are fenced, and from those that are known to have ended or
    /// whose host is lost, which are fenced first. Returns whether there were any.
    fn release_the_dead(&self) -> Result<bool, Errno> {
        let mut any = false;
        for holder in self.shared.pool.lockers(&self.object)? {
            let may_go = match Holder::of_cookie(&holder.cookie) {
                Some(process) => process.has_ended() || self.shared.instances.is_lost(&process)?,
                None => false,
            };
            if may_go || self.shared.is_fenced(&holder.address) {
                self.shared.fence(&holder.address)?;
                match self.shared.pool.break_lock(&self.object, &holder) {
                    // Another process was faster.
                    Ok(()) | Err(Errno::NOENT) => any = true,
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(any)
    }

    /// The process of this machine that holds the lock.
    pub(crate) fn holder(&self) -> Option<u32> {
        let lockers = self.shared.pool.lockers(&self.object).ok()?;
        lockers.iter().find_map(|locker| Holder::of_cookie(&locker.cookie)?.local_pid())
    }
}

impl Drop for ObjectLock {
    fn drop(&mut self) {
        if self.held.get_mut().is_some() {
            // If it fails, the lock stays until this process has ended and another one needs it.
            let _ = self.shared.pool.unlock(&self.object, &self.cookie);
        }
    }
}

/// An open file.
pub(crate) struct RbdFile {
    shared: Arc<Shared>,
    id: ObjectId,
    content: Content,
    access: ImageAccess,
    /// Fields are dropped in order: it is given back after the image is closed.
    lock: ObjectLock,
}

enum Content {
    Object,
    Image(Arc<Image>),
}

impl RbdFile {
    pub(crate) fn of_object(shared: &Arc<Shared>, id: ObjectId, access: ImageAccess) -> Self {
        Self::new(shared, id, Content::Object, access)
    }

    pub(crate) fn of_image(shared: &Arc<Shared>, id: ObjectId, access: ImageAccess) -> Result<Self, Errno> {
        let image = shared.open_image(&id, access)?;
        Ok(Self::new(shared, id, Content::Image(image), access))
    }

    fn new(shared: &Arc<Shared>, id: ObjectId, content: Content, access: ImageAccess) -> Self {
        let lock = ObjectLock::new(shared, object_of(&id));
        Self { shared: Arc::clone(shared), id, content, access, lock }
    }

    /// The image of a file of blocks.
    pub(crate) fn image_of(file: &dyn DataFile) -> Option<Arc<Image>> {
        match &file.as_any().downcast_ref::<Self>()?.content {
            Content::Image(image) => Some(Arc::clone(image)),
            Content::Object => None,
        }
    }

    pub(crate) fn id(&self) -> &ObjectId {
        &self.id
    }

    fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    fn writable(&self) -> Result<(), Errno> {
        match self.access {
            ImageAccess::Write => Ok(()),
            ImageAccess::Read => Err(Errno::BADF),
        }
    }
}

impl DataFile for RbdFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn queue(&self, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
        Ok(Box::new(RbdQueue::new(reactor.waker(), QUEUE_DEPTH)))
    }
}

impl fmt::Debug for RbdFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RbdFile({})", self.id)
    }
}

impl Lockable for RbdFile {
    /// An exclusive lock is the image's lock too, which a writer keeps: librbd would hand an
    /// automatic one over to a client that asks.
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        let kind = self.lock.try_lock(operation)?;
        match (&self.content, kind, self.access) {
            (Content::Image(image), LockKind::Exclusive, ImageAccess::Write) => match image.lock() {
                Err(Errno::BUSY | Errno::ROFS) => Err(Errno::WOULDBLOCK),
                locked => locked,
            },
            _ => Ok(()),
        }
    }

    fn lock_holder(&self) -> Option<u32> {
        self.lock.holder()
    }
}

impl StoredFile for RbdFile {
    fn length(&self) -> Result<u64, Errno> {
        match &self.content {
            Content::Object => self.pool().length(&object_of(&self.id)),
            Content::Image(image) => image.length(),
        }
    }

    fn link_count(&self) -> Result<u64, Errno> {
        names_of(self.pool(), &self.id)
    }

    fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        self.writable()?;
        match &self.content {
            Content::Object => self.pool().truncate(&object_of(&self.id), bytes),
            Content::Image(image) => image.resize(bytes),
        }
    }

    /// A cluster reserves no space, so this only gives the file its length.
    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let end = offset.checked_add(bytes).ok_or(Errno::FBIG)?;
        if self.length()? < end { self.set_length(end) } else { self.writable() }
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        match &self.content {
            Content::Object => self.pool().read(&object_of(&self.id), offset, into),
            Content::Image(image) => image.read(offset, into),
        }
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.writable()?;
        match &self.content {
            Content::Object => self.pool().write(&object_of(&self.id), offset, from),
            Content::Image(image) => {
                let end = offset.checked_add(from.len() as u64).ok_or(Errno::FBIG)?;
                if image.length()? < end {
                    image.resize(end)?;
                }
                image.write(offset, from)
            }
        }
    }

    fn sync(&self) -> Result<(), Errno> {
        match &self.content {
            Content::Object => Ok(()),
            Content::Image(image) => image.flush(),
        }
    }

    fn next_data(&self, at: u64) -> Result<u64, Errno> {
        let length = self.length()?;
        if at >= length {
            return Err(Errno::NXIO);
        }
        match &self.content {
            Content::Object => Ok(at),
            Content::Image(image) => {
                let content = image.next_content(at, length)?.ok_or(Errno::NXIO)?;
                Ok(content.offset().max(at))
            }
        }
    }

    fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        let length = self.length()?;
        if at >= length {
            return Err(Errno::NXIO);
        }
        match &self.content {
            Content::Object => Ok(length),
            Content::Image(image) => match image.next_content(at, length)? {
                Some(content) if content.offset() <= at => Ok(content.end().min(length)),
                _ => Ok(at),
            },
        }
    }
}

impl Drop for RbdFile {
    /// The last one to close a file without names removes it.
    fn drop(&mut self) {
        if names_of(self.pool(), &self.id) != Ok(0) {
            return;
        }
        let file = match &self.content {
            Content::Object => Entry::Object(self.id),
            Content::Image(_) => Entry::Image(self.id),
        };
        // Closes the image, which an open one could not be removed for.
        self.content = Content::Object;
        let _ = reap(self.pool(), &file, self.lock.cookie());
    }
}
