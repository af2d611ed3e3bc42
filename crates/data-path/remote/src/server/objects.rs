//! What sockets stand for: the storage, a directory, a file.

use std::sync::{Arc, Weak};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::DatastoreError;
use strongroom_datastore::file::storage::{Directory, Lockable};
use strongroom_memory::{Buffer, BufferPool};
use uuid::Uuid;

use super::lane;
use super::{Beside, Object, Reply, ServedFile, Shared};
use crate::message::{Answer, Ask, DATA_BYTES_MAX, NAMES_BYTES_MAX, OPEN_FLAGS};

/// The whole storage.
pub(super) struct StorageObject(pub(super) Arc<Shared>);

struct DirectoryObject {
    shared: Arc<Shared>,
    directory: Arc<dyn Directory>,
}

struct FileObject {
    shared: Arc<Shared>,
    file: Arc<ServedFile>,
}

impl Object for StorageObject {
    fn answer(&mut self, ask: Ask, _: Beside<'_>) -> Result<Reply, Errno> {
        let Self(shared) = self;
        let storage = &shared.storage;
        match ask {
            Ask::OpenDirectory { path } => open_directory(shared, storage.open_directory(&path)?),
            Ask::OpenVolume { path } => open_directory(shared, storage.open_volume(&path)?),
            Ask::MakeDirectory { path } => done(storage.make_directory(&path)),
            Ask::RemoveDirectory { path } => done(storage.remove_directory(&path)),
            Ask::RenamePath { from, to } => done(storage.rename(&from, &to)),
            Ask::Exists { path } => Ok(Answer::Truth(storage.exists(&path)).into()),
            Ask::IsDirectory { path } => Ok(Answer::Truth(storage.is_directory(&path)).into()),
            _ => Err(Errno::NOTTY),
        }
    }
}

fn open_directory(shared: &Arc<Shared>, directory: Arc<dyn Directory>) -> Result<Reply, Errno> {
    let token = Uuid::new_v4();
    let socket = shared.spawn(DirectoryObject { shared: Arc::clone(shared), directory }, "directory")?;
    Ok(Reply { files: vec![socket], ..Answer::Opened { token }.into() })
}

impl Object for DirectoryObject {
    fn answer(&mut self, ask: Ask, _: Beside<'_>) -> Result<Reply, Errno> {
        let Self { shared, directory } = self;
        match ask {
            Ask::FileSystem => match directory.file_system("".as_ref()) {
                Ok(file_system) => Ok(Answer::FileSystem(file_system.into()).into()),
                Err(DatastoreError::System { errno, .. }) => Err(errno),
                Err(_) => Err(Errno::OPNOTSUPP),
            },
            Ask::Open { name, flags } => {
                let flags = OFlags::from_bits(flags).filter(|flags| OPEN_FLAGS.contains(*flags));
                let flags = flags.ok_or(Errno::INVAL)?;
                let file = directory.open(checked(&name)?, flags)?.into();
                let is_writable = flags.intersects(OFlags::RDWR | OFlags::WRONLY);
                let (token, directory) = (Uuid::new_v4(), Arc::downgrade(directory));
                let file = Arc::new(ServedFile { token, file, is_writable, directory });
                shared.files.lock().insert(file.token, Arc::downgrade(&file));
                share(shared, file)
            }
            Ask::Names { after } => {
                let (mut bytes, mut is_all) = (0, true);
                let mut names = Vec::new();
                let all = directory.names()?;
                for name in all.into_iter().filter(|name| after.as_ref().is_none_or(|after| name > after)) {
                    bytes += name.len();
                    if bytes > NAMES_BYTES_MAX {
                        is_all = false;
                        break;
                    }
                    names.push(name);
                }
                Ok(Answer::Names { names, is_all }.into())
            }
            Ask::Rename { from, to } => done(directory.rename(checked(&from)?, checked(&to)?)),
            Ask::Remove { name } => done(directory.remove(checked(&name)?)),
            Ask::Link { name, file } => {
                let file = shared.files.lock().get(&file).and_then(Weak::upgrade).ok_or(Errno::XDEV)?;
                let from = file.directory.upgrade().ok_or(Errno::XDEV)?;
                done(directory.link(&*from, checked(&name)?, &*file.file))
            }
            Ask::AllocatedBytes { name } if name == "." => number(directory.allocated_bytes(&name)),
            Ask::AllocatedBytes { name } => number(directory.allocated_bytes(checked(&name)?)),
            Ask::LinkCountOf { name } => number(directory.link_count(checked(&name)?)),
            Ask::SyncNames => done(directory.sync()),
            Ask::SyncFileSystem => done(directory.sync_file_system()),
            Ask::TryLock { exclusive } => done(try_lock(&**directory, exclusive)),
            Ask::LockHolder => Ok(Answer::Holder(directory.lock_holder()).into()),
            _ => Err(Errno::NOTTY),
        }
    }
}

impl Object for FileObject {
    fn answer(&mut self, ask: Ask, beside: Beside<'_>) -> Result<Reply, Errno> {
        let Self { shared, file: served } = self;
        let file = &served.file;
        match ask {
            Ask::Identify => Ok(Answer::Identity { server: shared.id, token: served.token }.into()),
            Ask::Length => number(file.length()),
            Ask::LinkCount => number(file.link_count()),
            Ask::SetLength { bytes } => done(served.writable().and_then(|()| file.set_length(bytes))),
            Ask::Allocate { offset, bytes } => {
                done(served.writable().and_then(|()| file.allocate(offset, bytes)))
            }
            Ask::ReadAt { offset, bytes } => {
                let mut data = aligned(bytes)?;
                let read = file.read_at(offset, data.bytes_mut())?;
                let data = data.bytes().get(..read).ok_or(Errno::IO)?.to_vec();
                Ok(Reply { data, ..Answer::Data.into() })
            }
            Ask::WriteAt { offset } => {
                served.writable()?;
                let mut data = aligned(beside.data.len())?;
                data.bytes_mut().copy_from_slice(beside.data);
                done(file.write_at(offset, data.bytes()))
            }
            Ask::BeginSync { offset, bytes } => {
                file.begin_sync(offset, bytes);
                Ok(Answer::Done.into())
            }
            Ask::Sync => done(file.sync()),
            Ask::NextData { at } => number(file.next_data(at)),
            Ask::NextHole { at } => number(file.next_hole(at)),
            Ask::TryLock { exclusive } => done(try_lock(&**file, exclusive)),
            Ask::LockHolder => Ok(Answer::Holder(file.lock_holder()).into()),
            Ask::Share => share(shared, Arc::clone(served)),
            Ask::OpenLane { layout } => lane::open(shared, layout, beside.files),
            Ask::Attach { lane } => {
                let door = shared.lanes.lock().get(&lane).and_then(Weak::upgrade).ok_or(Errno::NOENT)?;
                Ok(Answer::Attached { file: door.attach(Arc::clone(served))? }.into())
            }
            _ => Err(Errno::NOTTY),
        }
    }
}

impl ServedFile {
    pub(super) fn writable(&self) -> Result<(), Errno> {
        if self.is_writable { Ok(()) } else { Err(Errno::BADF) }
    }
}

/// Another socket of the file.
fn share(shared: &Arc<Shared>, file: Arc<ServedFile>) -> Result<Reply, Errno> {
    let token = file.token;
    let socket = shared.spawn(FileObject { shared: Arc::clone(shared), file }, "file")?;
    Ok(Reply { files: vec![socket], ..Answer::Opened { token }.into() })
}

impl Drop for FileObject {
    fn drop(&mut self) {
        let token = self.file.token;
        // Another socket of the file may remain; the last one forgets it.
        let mut files = self.shared.files.lock();
        if Arc::strong_count(&self.file) == 1 {
            files.remove(&token);
        }
        files.retain(|_, file| file.strong_count() > 0);
    }
}

fn try_lock(object: &(impl Lockable + ?Sized), exclusive: bool) -> Result<(), Errno> {
    object.try_lock(match exclusive {
        true => FlockOperation::NonBlockingLockExclusive,
        false => FlockOperation::NonBlockingLockShared,
    })
}

/// Memory for data of a request; the kernel's files may need its alignment.
fn aligned(bytes: usize) -> Result<Buffer, Errno> {
    let buffer = (bytes <= DATA_BYTES_MAX).then(|| BufferPool::brief().take(bytes)).flatten();
    buffer.ok_or(Errno::INVAL)
}

/// A name that does not lead out of its directory.
fn checked(name: &str) -> Result<&str, Errno> {
    match name {
        "" | "." | ".." => Err(Errno::INVAL),
        name if name.contains(['/', '\0']) => Err(Errno::INVAL),
        name => Ok(name),
    }
}

fn done(result: Result<(), Errno>) -> Result<Reply, Errno> {
    result.map(|()| Answer::Done.into())
}

fn number(result: Result<u64, Errno>) -> Result<Reply, Errno> {
    result.map(|number| Answer::Number(number).into())
}
