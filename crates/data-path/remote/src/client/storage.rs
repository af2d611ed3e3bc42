//! Directories of the server's, and the files in them.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Directory, Lockable, Storage, StoredFile};
use strongroom_datastore::file::{DatastoreError, FileSystem};

use super::connection::{Answered, Connection, done, number, opened};
use super::file::{RemoteFile, is_exclusive, of_answer};
use crate::message::{Answer, Ask, OPEN_FLAGS};
use crate::packet::Failure;

/// The most names of a directory: more than any volume or datastore has.
const NAMES_MAX: usize = 1 << 16;

type Dials = dyn Fn() -> Result<OwnedFd, Errno> + Send + Sync;

/// The storage of a server. Clones share it.
///
/// When the server has ended, the next request starts another one: directories are opened and
/// locked again by their paths. A change that may or may not have been made is an error then, as it
/// is if this process dies over it; so are all requests about open files.
#[derive(Clone)]
pub struct RemoteStorage(Arc<Shared>);

struct Shared {
    dials: Box<Dials>,
    connection: Mutex<Option<Arc<Connection>>>,
}

impl RemoteStorage {
    /// `dials` starts a server, and returns the socket of its storage.
    pub fn new(dials: impl Fn() -> Result<OwnedFd, Errno> + Send + Sync + 'static) -> Self {
        Self(Arc::new(Shared { dials: Box::new(dials), connection: Mutex::default() }))
    }
}

impl RemoteStorage {
    /// Gives up the connection to the server. The next request starts another one; what is open
    /// stays open.
    pub fn hang_up(&self) {
        *self.0.connection.lock() = None;
    }
}

impl Shared {
    /// The connection to the server, which is started if there is none but `lost`.
    fn connection(&self, lost: Option<&Arc<Connection>>) -> Result<Arc<Connection>, Errno> {
        let mut connection = self.connection.lock();
        match &*connection {
            Some(found) if lost.is_none_or(|lost| !Arc::ptr_eq(found, lost)) => Ok(Arc::clone(found)),
            _ => {
                // One that is lost may live still, if it has broken the protocol.
                *connection = None;
                let dialled = Connection::of((self.dials)()?).map_err(|_| Errno::PROTOTYPE)?;
                Ok(Arc::clone(connection.insert(Arc::new(dialled))))
            }
        }
    }

    fn ask(&self, ask: &Ask) -> Result<Answered, Errno> {
        let first = self.connection(None)?;
        match first.ask(ask, &[], &[]) {
            Ok(answered) => Ok(answered),
            Err(Failure::Gone) if ask.is_repeatable() => {
                let next = self.connection(Some(&first))?;
                Ok(next.ask(ask, &[], &[])?)
            }
            Err(failure) => {
                let _ = self.connection(Some(&first));
                Err(failure.into())
            }
        }
    }

    fn simply(&self, ask: &Ask) -> Result<Answer, Errno> {
        self.ask(ask)?.answer.into_result()
    }
}

impl RemoteStorage {
    fn open(&self, opens: Ask) -> Result<Arc<dyn Directory>, Errno> {
        let (_, connection) = opened(self.0.ask(&opens)?)?;
        let open = Arc::new(OpenDirectory(connection));
        let state = Mutex::new(State { open, lock: None });
        Ok(Arc::new(RemoteDirectory { storage: Arc::clone(&self.0), opens, state }))
    }
}

impl Storage for RemoteStorage {
    fn open_directory(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        self.open(Ask::OpenDirectory { path: path.to_owned() })
    }

    fn open_volume(&self, path: &Path) -> Result<Arc<dyn Directory>, Errno> {
        self.open(Ask::OpenVolume { path: path.to_owned() })
    }

    fn make_directory(&self, path: &Path) -> Result<(), Errno> {
        done(self.0.simply(&Ask::MakeDirectory { path: path.to_owned() })?)
    }

    fn remove_directory(&self, path: &Path) -> Result<(), Errno> {
        done(self.0.simply(&Ask::RemoveDirectory { path: path.to_owned() })?)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), Errno> {
        done(self.0.simply(&Ask::RenamePath { from: from.to_owned(), to: to.to_owned() })?)
    }

    fn exists(&self, path: &Path) -> bool {
        matches!(self.0.simply(&Ask::Exists { path: path.to_owned() }), Ok(Answer::Truth(true)))
    }

    fn is_directory(&self, path: &Path) -> bool {
        matches!(self.0.simply(&Ask::IsDirectory { path: path.to_owned() }), Ok(Answer::Truth(true)))
    }
}

/// An open directory. It is opened again if the server was replaced.
struct RemoteDirectory {
    storage: Arc<Shared>,
    /// The request that opens it.
    opens: Ask,
    state: Mutex<State>,
}

struct State {
    open: Arc<OpenDirectory>,
    /// Its lock, if it is held: whether it is exclusive.
    lock: Option<bool>,
}

struct OpenDirectory(Connection);

impl RemoteDirectory {
    fn now(&self) -> Arc<OpenDirectory> {
        Arc::clone(&self.state.lock().open)
    }

    /// Opens it at the present server, with its lock, if nobody else has done so since `lost`.
    fn reopen(&self, lost: &Arc<OpenDirectory>) -> Result<Arc<OpenDirectory>, Errno> {
        let mut state = self.state.lock();
        if !Arc::ptr_eq(&state.open, lost) {
            return Ok(Arc::clone(&state.open));
        }
        let (_, connection) = opened(self.storage.ask(&self.opens)?)?;
        if let Some(exclusive) = state.lock {
            done(connection.simply(&Ask::TryLock { exclusive })?)?;
        }
        state.open = Arc::new(OpenDirectory(connection));
        Ok(Arc::clone(&state.open))
    }

    fn ask(&self, ask: &Ask) -> Result<Answered, Errno> {
        let open = self.now();
        match open.0.ask(ask, &[], &[]) {
            Ok(answered) => Ok(answered),
            Err(Failure::Gone) => {
                let reopened = self.reopen(&open)?;
                match ask.is_repeatable() {
                    true => Ok(reopened.0.ask(ask, &[], &[])?),
                    false => Err(Errno::CONNRESET),
                }
            }
            Err(failure) => Err(failure.into()),
        }
    }

    fn simply(&self, ask: &Ask) -> Result<Answer, Errno> {
        self.ask(ask)?.answer.into_result()
    }
}

impl Lockable for RemoteDirectory {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        let exclusive = is_exclusive(operation)?;
        done(self.simply(&Ask::TryLock { exclusive })?)?;
        self.state.lock().lock = Some(exclusive);
        Ok(())
    }

    fn lock_holder(&self) -> Option<u32> {
        match self.simply(&Ask::LockHolder) {
            Ok(Answer::Holder(holder)) => holder,
            _ => None,
        }
    }
}

impl Directory for RemoteDirectory {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn file_system(&self, path: &Path) -> Result<FileSystem, DatastoreError> {
        let failed = |errno| DatastoreError::System {
            action: "examine the file system of",
            path: PathBuf::from(path),
            errno,
        };
        match self.simply(&Ask::FileSystem).map_err(failed)? {
            Answer::FileSystem(facts) => Ok(facts.into()),
            _ => Err(failed(Errno::BADMSG)),
        }
    }

    fn open(&self, name: &str, flags: OFlags) -> Result<Box<dyn StoredFile>, Errno> {
        // The server adds what belongs to its own files.
        let flags = (flags & OPEN_FLAGS).bits();
        let answered = self.ask(&Ask::Open { name: name.to_owned(), flags })?;
        Ok(Box::new(of_answer(answered)?))
    }

    fn names(&self) -> Result<Vec<String>, Errno> {
        let mut all: Vec<String> = Vec::new();
        loop {
            let after = all.last().cloned();
            match self.simply(&Ask::Names { after: after.clone() })? {
                Answer::Names { names, is_all } => {
                    // In order, so that a server cannot make this go on for ever.
                    let is_next = names.first().zip(after.as_ref()).is_none_or(|(next, last)| next > last);
                    if !is_next || !names.is_sorted() || (names.is_empty() && !is_all) {
                        return Err(Errno::BADMSG);
                    }
                    all.extend(names);
                    if all.len() > NAMES_MAX {
                        return Err(Errno::TOOBIG);
                    }
                    if is_all {
                        return Ok(all);
                    }
                }
                _ => return Err(Errno::BADMSG),
            }
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        done(self.simply(&Ask::Rename { from: from.to_owned(), to: to.to_owned() })?)
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        done(self.simply(&Ask::Remove { name: name.to_owned() })?)
    }

    /// The server knows which directory the file was opened in.
    fn link(&self, _: &dyn Directory, name: &str, file: &dyn StoredFile) -> Result<(), Errno> {
        let (_, file) = RemoteFile::of(file).ok_or(Errno::XDEV)?.identity()?;
        done(self.simply(&Ask::Link { name: name.to_owned(), file })?)
    }

    fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        number(self.simply(&Ask::AllocatedBytes { name: name.to_owned() })?)
    }

    fn link_count(&self, name: &str) -> Result<u64, Errno> {
        number(self.simply(&Ask::LinkCountOf { name: name.to_owned() })?)
    }

    fn sync(&self) -> Result<(), Errno> {
        done(self.simply(&Ask::SyncNames)?)
    }

    fn sync_file_system(&self) -> Result<(), Errno> {
        done(self.simply(&Ask::SyncFileSystem)?)
    }
}
