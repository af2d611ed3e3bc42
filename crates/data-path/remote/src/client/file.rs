//! Open files.

use std::any::Any;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::OnceLock;

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Lockable, StoredFile, adopt_host_file};
use strongroom_io::{DataFile, FileQueue, IoError, Reactor};
use uuid::Uuid;

use super::connection::{Answered, Connection, done, number, opened};
use super::lane;
use crate::message::{Answer, Ask, DATA_BYTES_MAX};

/// What becomes of operations under way when the server ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnEnd {
    /// They fail.
    Fail,
    /// They stay unanswered, and this process exits with status 1 when a lane with operations under
    /// way notices it: its successor repeats them. One that has nothing under way watches the
    /// files' [lifelines](StoredFile::lifeline).
    Exit,
}

/// An open file of the server's.
pub struct RemoteFile {
    connection: Connection,
    /// The server and the file's name there, once they are known.
    identity: OnceLock<(Uuid, Uuid)>,
    on_end: OnEnd,
    lifeline: Option<OwnedFd>,
}

/// Makes a file of a descriptor: one of the server's if it is a socket that keeps packets whole,
/// otherwise the kernel's.
pub fn adopt_with(file: OwnedFd, on_end: OnEnd) -> Arc<dyn StoredFile> {
    match Connection::of(file) {
        Ok(connection) => Arc::new(RemoteFile::new(connection, on_end)),
        Err(file) => adopt_host_file(file),
    }
}

/// [`adopt_with`], where operations fail if the server ends.
pub fn adopt(file: OwnedFd) -> Arc<dyn StoredFile> {
    adopt_with(file, OnEnd::Fail)
}

impl RemoteFile {
    pub(super) fn new(connection: Connection, on_end: OnEnd) -> Self {
        let lifeline = connection.watched().ok();
        Self { connection, identity: OnceLock::new(), on_end, lifeline }
    }

    /// The file of a handle, whichever stage wraps it.
    pub(super) fn of(file: &dyn DataFile) -> Option<&Self> {
        file.as_any().downcast_ref()
    }

    /// Bytes that the calling thread has copied between its own memory and that of its lanes.
    pub fn copied_bytes() -> u64 {
        lane::copied_bytes()
    }

    /// The server, and the file's token.
    pub(super) fn identity(&self) -> Result<(Uuid, Uuid), Errno> {
        if let Some(known) = self.identity.get() {
            return Ok(*known);
        }
        match self.connection.simply(&Ask::Identify)? {
            Answer::Identity { server, token } => Ok(*self.identity.get_or_init(|| (server, token))),
            _ => Err(Errno::BADMSG),
        }
    }

    pub(super) fn on_end(&self) -> OnEnd {
        self.on_end
    }

    /// Makes the file usable on a lane.
    pub(super) fn attach(&self, lane: Uuid) -> Result<u32, Errno> {
        match self.connection.simply(&Ask::Attach { lane })? {
            Answer::Attached { file } => Ok(file),
            _ => Err(Errno::BADMSG),
        }
    }

    pub(super) fn open_lane(&self, layout: u32, files: &[BorrowedFd<'_>]) -> Result<Answered, Errno> {
        Ok(self.connection.ask(&Ask::OpenLane { layout }, &[], files)?)
    }
}

impl fmt::Debug for RemoteFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteFile").field("identity", &self.identity.get()).finish_non_exhaustive()
    }
}

impl DataFile for RemoteFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn queue(&self, reactor: &Rc<dyn Reactor>) -> Result<Box<dyn FileQueue>, IoError> {
        lane::queue(self, reactor)
    }
}

pub(super) fn is_exclusive(operation: FlockOperation) -> Result<bool, Errno> {
    match operation {
        FlockOperation::NonBlockingLockExclusive => Ok(true),
        FlockOperation::NonBlockingLockShared => Ok(false),
        _ => Err(Errno::INVAL),
    }
}

impl Lockable for RemoteFile {
    fn try_lock(&self, operation: FlockOperation) -> Result<(), Errno> {
        done(self.connection.simply(&Ask::TryLock { exclusive: is_exclusive(operation)? })?)
    }

    fn lock_holder(&self) -> Option<u32> {
        match self.connection.simply(&Ask::LockHolder) {
            Ok(Answer::Holder(holder)) => holder,
            _ => None,
        }
    }
}

impl StoredFile for RemoteFile {
    fn length(&self) -> Result<u64, Errno> {
        number(self.connection.simply(&Ask::Length)?)
    }

    fn link_count(&self) -> Result<u64, Errno> {
        number(self.connection.simply(&Ask::LinkCount)?)
    }

    fn set_length(&self, bytes: u64) -> Result<(), Errno> {
        done(self.connection.simply(&Ask::SetLength { bytes })?)
    }

    fn allocate(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        done(self.connection.simply(&Ask::Allocate { offset, bytes })?)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut read = 0;
        while read < into.len() {
            let bytes = (into.len() - read).min(DATA_BYTES_MAX);
            let ask = Ask::ReadAt { offset: offset + read as u64, bytes };
            let Answered { answer, data, .. } = self.connection.ask(&ask, &[], &[])?;
            if answer.into_result()? != Answer::Data || data.len() > bytes {
                return Err(Errno::BADMSG);
            }
            into[read..read + data.len()].copy_from_slice(&data);
            read += data.len();
            if data.len() < bytes {
                break;
            }
        }
        Ok(read)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let mut at = offset;
        for piece in from.chunks(DATA_BYTES_MAX) {
            let answered = self.connection.ask(&Ask::WriteAt { offset: at }, piece, &[])?;
            done(answered.answer.into_result()?)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn begin_sync(&self, offset: u64, bytes: u64) {
        let _ = self.connection.simply(&Ask::BeginSync { offset, bytes });
    }

    fn sync(&self) -> Result<(), Errno> {
        done(self.connection.simply(&Ask::Sync)?)
    }

    fn share(&self) -> Result<OwnedFd, Errno> {
        let mut answered = self.connection.ask(&Ask::Share, &[], &[])?;
        let file = answered.files.pop();
        match answered.answer.into_result()? {
            Answer::Opened { .. } => file.ok_or(Errno::BADMSG),
            _ => Err(Errno::BADMSG),
        }
    }

    fn lifeline(&self) -> Option<BorrowedFd<'_>> {
        self.lifeline.as_ref().map(AsFd::as_fd)
    }

    fn next_data(&self, at: u64) -> Result<u64, Errno> {
        number(self.connection.simply(&Ask::NextData { at })?)
    }

    fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        number(self.connection.simply(&Ask::NextHole { at })?)
    }
}

/// The file of an answer.
pub(super) fn of_answer(answered: Answered) -> Result<RemoteFile, Errno> {
    let (_, connection) = opened(answered)?;
    Ok(RemoteFile::new(connection, OnEnd::Fail))
}
