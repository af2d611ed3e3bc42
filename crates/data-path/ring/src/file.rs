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
    /// Takes a file over. Whether it bypasses the page cache (`O_DIRECT`), and what it may do, was
    /// decided when it was opened.
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

/// A file that a queue has registered. Queue and operations share it; the last one to go gives its
/// place back.
#[derive(Debug)]
pub(crate) struct OpenFile {
    /// Kept for its owner, to whom it may mean more than to the kernel.
    pub(crate) _file: Arc<dyn DataFile>,
    /// Its place among the ring's registered files.
    pub(crate) place: Place,
    /// Whether its file system may know `FALLOC_FL_ZERO_RANGE`; cleared once it said that it does
    /// not.
    pub(crate) zero_range: Cell<bool>,
}

/// A place in the table of registered files, by which alone an entry can name a file. It saves the
/// kernel a look-up and a reference count per operation. Given back when dropped.
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

/// Which places are free. A vacated one becomes free once the kernel has let go of the file in it.
#[derive(Debug)]
pub(crate) struct Places {
    pub(crate) free: Vec<u32>,
    pub(crate) vacated: Vec<u32>,
    /// Of all of them, taken ones too.
    count: u32,
}

impl Places {
    /// These places, all free.
    pub(crate) fn new(all: Range<u32>) -> Self {
        let count = all.len() as u32;
        Self { free: all.rev().collect(), vacated: Vec::new(), count }
    }
}
