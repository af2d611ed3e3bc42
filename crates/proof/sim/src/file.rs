//! Open files and directories: all immediate operations, as opposed to those of a queue.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use parking_lot::MutexGuard;
use rustix::io::Errno;
use strongroom_io::DataFile;
use strongroom_types::{Extent, SECTOR_BYTES};

use crate::change::Change;
use crate::content::SpaceChange;
use crate::faults::strikes;
use crate::fs::{OpenHow, SimFs};
use crate::names::{Ino, Target};
use crate::state::{HandleId, State};

/// An open file. Its lock ends with it.
#[derive(Debug)]
pub struct SimFile {
    pub(crate) fs: SimFs,
    pub(crate) ino: Ino,
    pub(crate) id: HandleId,
    pub(crate) mount: u32,
    pub(crate) writable: bool,
}

/// An open directory. Its lock ends with it.
#[derive(Debug)]
pub struct SimDirectory {
    pub(crate) fs: SimFs,
    pub(crate) ino: Ino,
    pub(crate) id: HandleId,
    pub(crate) mount: u32,
}

impl SimDirectory {
    /// Opens or creates a file of the directory.
    pub fn open(&self, name: &str, how: OpenHow) -> Result<SimFile, Errno> {
        self.fs.state().alive(self.mount)?;
        self.fs.open_file(self.ino, name, how)
    }

    /// The names in it, sorted.
    pub fn names(&self) -> Result<Vec<String>, Errno> {
        let state = self.fs.state();
        state.alive(self.mount)?;
        Ok(state.medium.names.list(self.ino))
    }

    /// Renames a file, over another one if there is one (`renameat`).
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let mut state = self.fs.state();
        state.alive(self.mount)?;
        state.name_fault()?;
        let ino = state.medium.names.get(self.ino, from).ok_or(Errno::NOENT)?;
        if let Some(replaced) = state.medium.names.get(self.ino, to) {
            match (state.is_directory(ino), state.is_directory(replaced)) {
                _ if ino == replaced => return Ok(()),
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !state.medium.names.list(replaced).is_empty() => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        let changes =
            vec![(self.ino, from.to_owned(), Target::Gone), (self.ino, to.to_owned(), Target::Moved(ino))];
        state.names().change(changes);
        state.tick();
        Ok(())
    }

    /// Removes a file (`unlinkat`).
    pub fn unlink(&self, name: &str) -> Result<(), Errno> {
        let mut state = self.fs.state();
        state.alive(self.mount)?;
        state.name_fault()?;
        let ino = state.medium.names.get(self.ino, name).ok_or(Errno::NOENT)?;
        if state.is_directory(ino) {
            return Err(Errno::ISDIR);
        }
        let changes = vec![(self.ino, name.to_owned(), Target::Gone)];
        state.names().change(changes);
        state.tick();
        Ok(())
    }

    /// Gives a file another name (`linkat`).
    pub fn link(&self, name: &str, file: &SimFile) -> Result<(), Errno> {
        let mut state = self.fs.state();
        state.alive(self.mount)?;
        state.name_fault()?;
        if state.medium.names.get(self.ino, name).is_some() {
            return Err(Errno::EXIST);
        }
        if !state.medium.names.lead_to(file.ino) {
            return Err(Errno::NOENT);
        }
        state.names().change(vec![(self.ino, name.to_owned(), Target::Added(file.ino))]);
        state.tick();
        Ok(())
    }

    /// The number of names of a file in it.
    pub fn link_count(&self, name: &str) -> Result<u64, Errno> {
        let state = self.fs.state();
        let ino = state.medium.names.get(self.ino, name).ok_or(Errno::NOENT)?;
        Ok(state.medium.names.count(ino))
    }

    /// Makes its names durable (`fsync`).
    pub fn sync(&self) -> Result<(), Errno> {
        let mut state = self.fs.state();
        state.alive(self.mount)?;
        let one_in = state.faults.sync_error_one_in;
        if strikes(one_in, &mut state.random) {
            return Err(Errno::IO);
        }
        let ino = self.ino;
        state.names().sync(ino);
        state.tick();
        Ok(())
    }

    /// Makes all completed changes on its file system durable (`syncfs`).
    pub fn sync_file_system(&self) -> Result<(), Errno> {
        let mut state = self.fs.state();
        state.alive(self.mount)?;
        state.sync_all()
    }

    /// Allocated bytes of a file in it.
    pub fn allocated_bytes(&self, name: &str) -> Result<u64, Errno> {
        let state = self.fs.state();
        let ino = state.medium.names.get(self.ino, name).ok_or(Errno::NOENT)?;
        Ok(state.file(ino).map_or(0, |file| file.current.allocated_bytes()))
    }

    /// Locks it without waiting (`flock` with `LOCK_NB`).
    pub fn try_lock(&self, exclusive: bool) -> Result<(), Errno> {
        try_lock(&mut self.fs.state(), self.ino, self.id, exclusive)
    }
}

impl Drop for SimDirectory {
    fn drop(&mut self) {
        unlock(&mut self.fs.state(), self.ino, self.id);
    }
}

impl SimFile {
    fn state(&self) -> Result<MutexGuard<'_, State>, Errno> {
        let state = self.fs.state();
        state.alive(self.mount)?;
        Ok(state)
    }

    fn state_to_write(&self) -> Result<MutexGuard<'_, State>, Errno> {
        if self.writable { self.state() } else { Err(Errno::BADF) }
    }

    /// The number of its names.
    pub fn link_count(&self) -> Result<u64, Errno> {
        Ok(self.state()?.medium.names.count(self.ino))
    }

    /// Its length in bytes.
    pub fn length(&self) -> Result<u64, Errno> {
        Ok(self.state()?.file(self.ino)?.current.length())
    }

    /// Reads from `offset` on; returns the number of bytes before the end (`pread`).
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize, Errno> {
        let mut state = self.state()?;
        let one_in = state.faults.read_error_one_in;
        if strikes(one_in, &mut state.random) {
            return Err(Errno::IO);
        }
        let content = &state.file(self.ino)?.current;
        let count = content.length().saturating_sub(offset).min(into.len() as u64) as usize;
        content.read(offset, &mut into[..count]);
        Ok(count)
    }

    /// Writes all of `from` through the page cache (`pwrite`).
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        let mut state = self.state_to_write()?;
        // The page cache writes back whole sectors, with the bytes around.
        let exact = Extent::new(offset, from.len() as u64).map_err(|_| Errno::INVAL)?;
        if exact.is_empty() {
            return Ok(());
        }
        let sectors = exact.widened_to(SECTOR_BYTES);
        let mut bytes = vec![0; sectors.length() as usize];
        state.file(self.ino)?.current.read(sectors.offset(), &mut bytes);
        let skip = (offset - sectors.offset()) as usize;
        bytes[skip..skip + from.len()].copy_from_slice(from);
        let operation = state.next_id();
        let change = Change::sectors(sectors.offset(), bytes.into());
        let result = state.write(self.ino, operation, exact, change, false);
        self.done(&mut state, operation)?;
        result
    }

    /// Sets its length (`ftruncate`).
    pub fn set_length(&self, length: u64) -> Result<(), Errno> {
        let mut state = self.state_to_write()?;
        let operation = state.next_id();
        state.file_mut(self.ino)?.execute(operation, vec![Change::truncate(length)], false);
        self.done(&mut state, operation)
    }

    /// Allocates space for an extent, and extends the file to it (`fallocate`).
    pub fn allocate(&self, extent: Extent) -> Result<(), Errno> {
        let mut state = self.state_to_write()?;
        let operation = state.next_id();
        let longer = crate::change::Length::AtLeast(extent.end());
        let changes = vec![Change::space(extent, SpaceChange::Reserve), Change::length(longer)];
        state.change_space(self.ino, operation, extent, SpaceChange::Reserve, changes)?;
        self.done(&mut state, operation)
    }

    /// Makes all completed changes durable (`fsync`).
    pub fn sync(&self) -> Result<(), Errno> {
        self.state()?.sync_at_once(self.ino)
    }

    /// The first byte of data from `at` on (`SEEK_DATA`); ENXIO if there is none.
    pub fn next_data(&self, at: u64) -> Result<u64, Errno> {
        self.state()?.file(self.ino)?.current.next_data(at).ok_or(Errno::NXIO)
    }

    /// The first byte from `at` on that is not data (`SEEK_HOLE`); ENXIO from the end on.
    pub fn next_hole(&self, at: u64) -> Result<u64, Errno> {
        let state = self.state()?;
        let content = &state.file(self.ino)?.current;
        if at >= content.length() { Err(Errno::NXIO) } else { Ok(content.next_hole(at)) }
    }

    /// Locks it without waiting (`flock` with `LOCK_NB`).
    pub fn try_lock(&self, exclusive: bool) -> Result<(), Errno> {
        try_lock(&mut self.fs.state(), self.ino, self.id, exclusive)
    }

    /// The submitter of an immediate operation knows its completion at once.
    fn done(&self, state: &mut State, operation: u64) -> Result<(), Errno> {
        let now = state.clock;
        state.file_mut(self.ino)?.tell(operation, now);
        state.tick();
        Ok(())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut state = self.fs.state();
        unlock(&mut state, self.ino, self.id);
        if let Some(count) = state.open.get_mut(&self.ino) {
            *count -= 1;
            if *count == 0 {
                state.open.remove(&self.ino);
            }
        }
    }
}

impl DataFile for SimFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The simulated file behind a data file.
pub(crate) fn sim_file(file: &Arc<dyn DataFile>) -> Option<&SimFile> {
    file.as_any().downcast_ref()
}

fn try_lock(state: &mut State, ino: Ino, id: HandleId, exclusive: bool) -> Result<(), Errno> {
    let holders = state.locks.entry(ino).or_default();
    if holders.contains(&(id, exclusive)) {
        return Ok(());
    }
    // As flock(2) says, converting a lock releases it first, even if the new one is refused.
    holders.retain(|(other, _)| *other != id);
    if holders.iter().any(|(_, alone)| exclusive || *alone) {
        return Err(Errno::WOULDBLOCK);
    }
    holders.push((id, exclusive));
    Ok(())
}

fn unlock(state: &mut State, ino: Ino, id: HandleId) {
    if let Some(holders) = state.locks.get_mut(&ino) {
        holders.retain(|(other, _)| *other != id);
    }
}
