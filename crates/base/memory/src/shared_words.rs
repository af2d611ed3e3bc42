//! Words that one process writes and another reads, in a file that neither can truncate.
//!
//! The maker of the file seals its size, so that accesses to a mapping never fault, whatever the
//! other side does. A reader's mapping is read-only, and it gets only values: no reference into the
//! memory leaves this file.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::sealed_file::{SealedFileError, check_sealed_file, make_sealed_file};

/// Makes a file for `count` words, all zero. Pages are allocated when they are first written.
///
/// # Errors
/// If the kernel cannot make it.
pub fn make_shared_words(count: usize) -> Result<OwnedFd, SealedFileError> {
    make_sealed_file("strongroom-words", bytes_of(count))
}

fn bytes_of(count: usize) -> u64 {
    count as u64 * size_of::<u64>() as u64
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the mapping is memory at a fixed address while this lives, and every access to it is
// atomic.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: impl AsFd, count: usize, protection: ProtFlags) -> Result<Self, SealedFileError> {
        let bytes = bytes_of(count);
        check_sealed_file(&file, bytes)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap(std::ptr::null_mut(), bytes as usize, protection, MapFlags::SHARED, file, 0) }
                .map_err(SealedFileError::failed("map"))?;
        // SAFETY: the range is the mapping just made; the advice changes no content.
        let _ = unsafe { madvise(start, bytes as usize, Advice::LinuxDontDump) };
        let start = NonNull::new(start.cast()).ok_or(SealedFileError::NotSealed { bytes })?;
        Ok(Self { start, count })
    }

    /// All words. Those of a reader's mapping must only be loaded.
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping contains `count` words from `start` on, is aligned to a page, and
        // lives as long as `self`. The size of its file is sealed, so every page of it exists.
        // Other processes may change the words at any moment, which atomics allow.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping made in `new`, and no reference to it outlives `self`.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), bytes_of(self.count) as usize) };
    }
}

/// Shared words, writable.
#[derive(Debug)]
pub struct WordsWriter(Mapping);

impl WordsWriter {
    /// Maps the `count` words of a file made by [`make_shared_words`].
    ///
    /// # Errors
    /// For another kind of file, or if the kernel cannot map it.
    pub fn map(file: impl AsFd, count: usize) -> Result<Self, SealedFileError> {
        Mapping::new(file, count, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// Shared words, read-only. Their content is arbitrary: the writer may be compromised.
#[derive(Debug)]
pub struct WordsReader(Mapping);

impl WordsReader {
    /// Maps the `count` words of a file made by [`make_shared_words`], read-only.
    ///
    /// # Errors
    /// For another kind of file, or if the kernel cannot map it.
    pub fn map(file: impl AsFd, count: usize) -> Result<Self, SealedFileError> {
        Mapping::new(file, count, ProtFlags::READ).map(Self)
    }

    /// The word at `index`; 0 beyond the last one.
    pub fn load(&self, index: usize) -> u64 {
        self.0.words().get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_beyond() {
        let file = make_shared_words(512).unwrap();
        let (writer, reader) = (WordsWriter::map(&file, 512).unwrap(), WordsReader::map(&file, 512).unwrap());
        writer.words()[511].store(7, Ordering::Relaxed);
        assert_eq!((writer.words().len(), reader.load(511), reader.load(512)), (512, 7, 0));
        drop(file);
        assert_eq!(reader.load(511), 7);
    }

    #[test]
    fn nobody_can_cut_the_file_short() {
        let file = make_shared_words(512).unwrap();
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
        assert_eq!(ftruncate(&file, 8192), Err(Errno::PERM));
    }

    #[test]
    fn a_file_whose_size_is_not_sealed_or_is_another_is_refused() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&open, 4096).unwrap();
        let refused = SealedFileError::NotSealed { bytes: 4096 };
        assert_eq!(WordsReader::map(&open, 512).unwrap_err(), refused);
        assert_eq!(WordsWriter::map(&open, 512).unwrap_err(), refused);
        let file = make_shared_words(511).unwrap();
        assert_eq!(WordsReader::map(&file, 512).unwrap_err(), refused);
        assert_eq!(WordsReader::map(std::fs::File::open("/dev/null").unwrap(), 512).unwrap_err(), refused);
    }
}
