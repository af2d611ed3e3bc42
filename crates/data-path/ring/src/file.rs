//! Files, and their places in the ring's table of registered files.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use strongroom_io::{DataFile, IoError};

/// A file or block device of the kernel, for I/O through a ring.
#[derive(Debug)]
pub struct RingFile {
    file: OwnedFd,
}

impl RingFile {
    /// Takes ownership of a file. How it was opened decides whether it bypasses the page cache
    /// (`O_DIRECT`), and whether it can be written.
    pub fn new(file: File) -> Self {
        Self { file: file.into() }
    }
}

impl From<File> for RingFile {
    fn from(file: File) -> Self {
        Self::new(file)
    }
}

impl AsFd for RingFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl DataFile for RingFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A file that a queue has registered. The queue and its operations share it; the last one that
/// drops it frees its place.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Kept because the owner's type may hold more than the kernel's file, such as a lock.
    pub(crate) _file: Arc<dyn DataFile>,
    /// Its place in the ring's table.
    pub(crate) place: Place,
    /// Whether its file system may support `FALLOC_FL_ZERO_RANGE`; cleared once a call has failed
    /// because it does not.
    pub(crate) zero_range: Cell<bool>,
}

/// A place in the table of registered files. Entries can name a file only by its place, which saves
/// the kernel a lookup and a reference count per operation. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Place {
    index: u32,
    places: Rc<RefCell<Places>>,
}

impl Place {
    /// Its number in the kernel's table.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Takes a free place.
    pub(crate) fn take(places: &Rc<RefCell<Places>>) -> Result<Self, IoError> {
        let Places { free, count, .. } = &mut *places.borrow_mut();
        let index = free.pop().ok_or(IoError::FilesFull { files_max: *count })?;
        Ok(Self { index, places: Rc::clone(places) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.borrow_mut().vacated.push(self.index);
    }
}

/// The free places. A vacated place becomes free once the kernel has released its file.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) free: Vec<u32>,
    pub(crate) vacated: Vec<u32>,
    /// The count of all places, including those in use.
    count: u32,
}

impl Places {
    /// Makes these places, all of them free.
    pub(crate) fn new(all: Range<u32>) -> Self {
        let count = all.len() as u32;
        Self { free: all.rev().collect(), vacated: Vec::new(), count }
    }
}
