//! A backend in memory that outlives its engine and fails on request.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; not every test needs all of it"
)]

use std::collections::HashSet;
use std::io;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use strongroom_store::StorageBackend;

/// Bytes that several engines may use, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Memory(Arc<Mutex<State>>);

const BLOCK_BYTES: u64 = 4096;

/// The remaining room.
#[derive(Clone, Copy, Debug, Default)]
pub enum Room {
    #[default]
    Any,
    /// So many blocks that were never written, as on a full file system.
    Blocks(u64),
    /// So many writes and changes of length, as on a copy-on-write file system.
    Writes(u64),
    /// So many writes and changes of length, then one finds no room, and later ones do.
    AllButOne(u64),
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// Blocks that have been written: to write them again takes no room.
    filled: HashSet<u64>,
    /// The remaining room.
    room: Room,
    /// Syncs until one fails.
    syncs_until_failure: Option<u64>,
    /// The device fails: no write succeeds.
    writes_fail: bool,
    /// No read succeeds.
    reads_fail: bool,
}

/// Exclusive access to the bytes.
pub struct Held<'a>(#[allow(dead_code, reason = "it is held, and not looked at")] MutexGuard<'a, State>);

impl Memory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Nothing is read or written until this is dropped.
    pub fn hold(&self) -> Held<'_> {
        Held(self.state())
    }

    /// Sets the remaining room.
    pub fn set_room(&self, room: Room) {
        self.state().room = room;
    }

    /// So many syncs succeed, and then one fails.
    pub fn fail_sync_after(&self, syncs: u64) {
        self.state().syncs_until_failure = Some(syncs);
    }

    /// From now on all writes fail, or none does.
    pub fn fail_writes(&self, fail: bool) {
        self.state().writes_fail = fail;
    }

    /// From now on all reads fail, or none does.
    pub fn fail_reads(&self, fail: bool) {
        self.state().reads_fail = fail;
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// These bytes.
    pub fn of(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State { bytes, ..State::default() })))
    }

    /// These bytes, with one of them changed.
    pub fn damaged(bytes: &[u8], place: usize) -> Self {
        let mut bytes = bytes.to_vec();
        bytes[place] ^= 0x10;
        Self::of(bytes)
    }

    /// A copy of its bytes, without the failures.
    pub fn copy(&self) -> Self {
        Self::of(self.bytes())
    }
}

impl State {
    fn take_room(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let blocks = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        let new: Vec<u64> = blocks.filter(|block| !self.filled.contains(block)).collect();
        let needed = new.len() as u64;
        let enough = match &mut self.room {
            Room::Any => true,
            Room::Blocks(left) => take(left, needed),
            Room::Writes(left) => take(left, 1),
            Room::AllButOne(0) => {
                self.room = Room::Any;
                false
            }
            Room::AllButOne(left) => take(left, 1),
        };
        if !enough {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.filled.extend(new);
        Ok(())
    }
}

fn device_failed() -> io::Error {
    io::Error::other("the device failed")
}

fn take(left: &mut u64, needed: u64) -> bool {
    let enough = *left >= needed;
    *left = if enough { *left - needed } else { 0 };
    enough
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        if state.reads_fail {
            return Err(device_failed());
        }
        let end = offset as usize + out.len();
        let bytes = state.bytes.get(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut state = self.state();
        state.take_room(length, 0)?;
        state.bytes.resize(length as usize, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        match &mut self.state().syncs_until_failure {
            Some(0) => Err(device_failed()),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        if state.writes_fail {
            return Err(device_failed());
        }
        state.take_room(offset, data.len() as u64)?;
        let end = offset as usize + data.len();
        let bytes = state.bytes.get_mut(offset as usize..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(data);
        Ok(())
    }
}
