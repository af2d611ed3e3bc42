//! Files, and their places in the ring's table of registered files.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use strongroom_io::DataFile;

/// A file or block device of the kernel, for I/O through a ring.
#[derive(Debug)]
pub struct RingFile {
    file: OwnedFd,
}

impl RingFile {
    /// Takes a file over. Whether it bypasses the page cache (`O_DIRECT`), and what it may do, was decided when it
    /// was opened.
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

/// A file that a queue has registered. Queue and operations share it; the last one to go gives its place back.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) file: Arc<dyn DataFile>,
    /// Its place among the ring's registered files, which saves the kernel a look-up and a reference count per
    /// operation; without one the descriptor is used.
    pub(crate) place: Option<Place>,
    /// Whether its file system may know `FALLOC_FL_ZERO_RANGE`; cleared once it said that it does not.
    pub(crate) zero_range: Cell<bool>,
}

/// A place in the table of registered files, given back when dropped.
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

    /// Takes a free place, if there is one.
    pub(crate) fn take(places: &Rc<RefCell<Places>>) -> Option<Self> {
        let index = places.borrow_mut().free.pop()?;
        let places = Rc::clone(places);
        Some(Self { index, places })
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
}

impl Places {
    /// `count` free places.
    pub(crate) fn new(count: u32) -> Self {
        Self { free: (0..count).rev().collect(), vacated: Vec::with_capacity(count as usize) }
    }
}
