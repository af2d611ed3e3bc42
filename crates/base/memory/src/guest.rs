//! Memory that a guest shares with us, and the part of it that one transfer uses.
//!
//! A guest may change its memory at any moment, even while we read it. Rust's references promise
//! that this does not happen, so no reference into guest memory is ever made. A [`GuestSlice`]
//! copies bytes out and in, and passes raw [`Segment`]s to the cipher kernels, which read each byte
//! once and never branch on it. All writes into guest memory are marked in the guest's
//! [`DirtyLog`], so that a live migration sends them.
//!
//! A client that sends its bytes over a socket (NBD) has no shared memory: its `GuestSlice` is a
//! [`Buffer`] of our own, and the stages below cannot tell the difference.

use std::fmt;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use thiserror::Error;

use crate::pool::Buffer;

/// An address in the guest's physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

/// The most regions of one guest: QEMU's `VHOST_USER_MAX_RAM_SLOTS` is 512.
pub const REGIONS_MAX: usize = 512;

/// The reasons why guest memory cannot be used.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum GuestError {
    /// Part of the range is not memory of the guest.
    #[error("guest range of {length} bytes at {:#x} is not within the guest's memory", address.0)]
    NotMapped {
        /// First byte.
        address: GuestAddress,
        /// Count of bytes.
        length: u64,
    },
    /// Two regions contain the same address, or one wraps around.
    #[error("guest memory region of {length} bytes at {:#x} is empty, wraps around, or overlaps another", address.0)]
    BadRegion {
        /// First byte.
        address: GuestAddress,
        /// Count of bytes.
        length: u64,
    },
    /// More regions than any hypervisor sends.
    #[error("{0} guest memory regions; at most {REGIONS_MAX} are served")]
    TooManyRegions(usize),
    /// A shared word whose address is not a multiple of its size, so that access to it is not
    /// atomic.
    #[error("the word at guest address {:#x} is not aligned to its size", .0.0)]
    Misaligned(GuestAddress),
    /// The kernel refused the mapping.
    #[error("cannot map guest memory: {0}")]
    Map(rustix::io::Errno),
}

/// Records writes into guest memory.
pub trait DirtyLog: Send + Sync {
    /// Records that these bytes of the guest have changed. Called after the change.
    fn mark(&self, address: GuestAddress, length: u64);
}

/// One mapped run of guest memory.
pub struct GuestRegion {
    address: GuestAddress,
    length: u64,
    host: NonNull<u8>,
}

// SAFETY: a region is plain shared memory at a fixed address; every access to it, from any thread,
// is a raw copy that allows for concurrent changes.
unsafe impl Send for GuestRegion {}
// SAFETY: as above; it has no interior state of its own.
unsafe impl Sync for GuestRegion {}

impl GuestRegion {
    /// Maps `length` bytes of the file (a memfd of the hypervisor) at `file_offset` as the guest's
    /// memory at `address`. The mapping is shared and left out of core dumps.
    ///
    /// The other side could shrink the file, and an access would then fault. So the code that
    /// accepts a file from outside requires its size to be sealed (`F_SEAL_SHRINK`), or runs in a
    /// process that may crash alone.
    pub fn map(
        file: impl AsFd,
        file_offset: u64,
        address: GuestAddress,
        length: u64,
    ) -> Result<Self, GuestError> {
        let bad = GuestError::BadRegion { address, length };
        let Ok(bytes) = usize::try_from(length) else {
            return Err(bad);
        };
        if length == 0 || address.0.checked_add(length).is_none() {
            return Err(bad);
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let host = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file,
                file_offset,
            )
        }
        .map_err(GuestError::Map)?;
        // SAFETY: the range is the mapping just made.
        unsafe { madvise(host, bytes, Advice::LinuxDontDump) }.map_err(GuestError::Map)?;
        let host = NonNull::new(host.cast::<u8>()).ok_or(bad)?;
        Ok(Self { address, length, host })
    }

    /// Requests huge pages, as far as the kind of file and this system provide them. Call it before
    /// any page is touched, because existing pages do not change.
    pub fn wish_huge_pages(&self) -> Result<(), GuestError> {
        // SAFETY: the range is the mapping that this region owns; the advice changes no content.
        unsafe { madvise(self.host.as_ptr().cast(), self.length as usize, Advice::LinuxHugepage) }
            .map_err(GuestError::Map)
    }

    fn end(&self) -> u64 {
        self.address.0 + self.length
    }
}

impl Drop for GuestRegion {
    fn drop(&mut self) {
        // SAFETY: mapped with this length in `map`; slices hold the `Arc` that owns this region, so
        // none is left.
        let _ = unsafe { munmap(self.host.as_ptr().cast(), self.length as usize) };
    }
}

/// All memory of one guest.
pub struct GuestMemory {
    /// Sorted by address, without overlap.
    regions: Vec<Arc<GuestRegion>>,
    dirty: Option<Arc<dyn DirtyLog>>,
}

impl GuestMemory {
    /// Makes the memory of a guest from these regions; writes into it are recorded in `dirty`, if
    /// given.
    pub fn new(regions: Vec<GuestRegion>, dirty: Option<Arc<dyn DirtyLog>>) -> Result<Self, GuestError> {
        Self::from_shared(regions.into_iter().map(Arc::new).collect(), dirty)
    }

    /// As [`GuestMemory::new`], from regions that other `GuestMemory`s share: a guest whose memory
    /// grows by a region keeps its mappings.
    pub fn from_shared(
        mut regions: Vec<Arc<GuestRegion>>,
        dirty: Option<Arc<dyn DirtyLog>>,
    ) -> Result<Self, GuestError> {
        if regions.len() > REGIONS_MAX {
            return Err(GuestError::TooManyRegions(regions.len()));
        }
        regions.sort_by_key(|region| region.address);
        if let Some(pair) = regions.windows(2).find(|pair| pair[0].end() > pair[1].address.0) {
            return Err(GuestError::BadRegion { address: pair[1].address, length: pair[1].length });
        }
        Ok(Self { regions, dirty })
    }

    /// How many of the `length` bytes from `address` on are in one region; an error if not even the
    /// first one is.
    pub fn run_length(&self, address: GuestAddress, length: u32) -> Result<u32, GuestError> {
        let after = self.regions.partition_point(|region| region.address <= address);
        let region = after.checked_sub(1).map(|index| &self.regions[index]);
        match region.map(|region| region.end().saturating_sub(address.0)) {
            None | Some(0) => Err(GuestError::NotMapped { address, length: u64::from(length) }),
            Some(run) => Ok(u32::try_from(run).unwrap_or(u32::MAX).min(length)),
        }
    }

    /// Records that these bytes of the guest were changed.
    pub(crate) fn mark_dirty(&self, address: GuestAddress, length: u64) {
        if let Some(log) = &self.dirty {
            log.mark(address, length);
        }
    }

    /// The segment of the guest's memory at `address`, which must be within one region.
    pub fn segment(&self, address: GuestAddress, length: u32) -> Result<Segment, GuestError> {
        let not_mapped = GuestError::NotMapped { address, length: u64::from(length) };
        let after = self.regions.partition_point(|region| region.address <= address);
        let Some(region) = after.checked_sub(1).map(|index| &self.regions[index]) else {
            return Err(not_mapped);
        };
        let into = address.0 - region.address.0;
        if into.checked_add(u64::from(length)).is_none_or(|end| end > region.length) {
            return Err(not_mapped);
        }
        // SAFETY: `into` is at most the region's length, so the address is within, or one past, the
        // mapping.
        let host = unsafe { region.host.add(into as usize) };
        Ok(Segment { host, address, length })
    }
}

impl fmt::Debug for GuestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestMemory({} regions)", self.regions.len())
    }
}

/// A run of guest memory that is also contiguous in our address space.
#[derive(Clone, Copy)]
pub struct Segment {
    host: NonNull<u8>,
    address: GuestAddress,
    length: u32,
}

impl Segment {
    /// Its start in our address space. Valid for reads and writes of [`Segment::len`] bytes while
    /// the slice or memory that it came from lives; the content may change at any time.
    pub fn host(&self) -> NonNull<u8> {
        self.host
    }

    /// Count of bytes.
    pub fn len(&self) -> usize {
        self.length as usize
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// The memory of one transfer: segments of a guest's memory, or a buffer of our own.
pub struct GuestSlice {
    memory: Memory,
    length: usize,
}

enum Memory {
    Own(Buffer),
    Guest { memory: Arc<GuestMemory>, segments: Vec<Segment> },
}

impl GuestSlice {
    /// A slice of a whole buffer of our own, in one segment.
    pub fn from_buffer(buffer: Buffer) -> Self {
        let length = buffer.len();
        Self { memory: Memory::Own(buffer), length }
    }

    /// A slice of a guest's memory: the given ranges one after another. `segments` can be any
    /// vector; its content is discarded. A queue passes the one that [`GuestSlice::into_segments`]
    /// returned, so that no transfer allocates.
    pub fn from_guest(
        memory: &Arc<GuestMemory>,
        ranges: impl IntoIterator<Item = (GuestAddress, u32)>,
        mut segments: Vec<Segment>,
    ) -> Result<Self, GuestError> {
        segments.clear();
        let mut length = 0;
        for (address, bytes) in ranges {
            segments.push(memory.segment(address, bytes)?);
            length += bytes as usize;
        }
        Ok(Self { memory: Memory::Guest { memory: Arc::clone(memory), segments }, length })
    }

    /// The buffer of a slice from [`GuestSlice::from_buffer`].
    pub fn into_buffer(self) -> Option<Buffer> {
        match self.memory {
            Memory::Own(buffer) => Some(buffer),
            Memory::Guest { .. } => None,
        }
    }

    /// The vector of a slice of guest memory, emptied, for the next slice.
    pub fn into_segments(self) -> Vec<Segment> {
        match self.memory {
            Memory::Own(_) => Vec::new(),
            Memory::Guest { mut segments, .. } => {
                segments.clear();
                segments
            }
        }
    }

    /// Count of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The segments that contain the bytes `start .. start + length`, in order. Panics beyond the
    /// slice's end.
    pub fn segments(&self, start: usize, length: usize) -> impl Iterator<Item = Segment> + '_ {
        assert!(
            start.checked_add(length).is_some_and(|end| end <= self.length),
            "range beyond the end of a slice"
        );
        let own = match &self.memory {
            Memory::Own(buffer) => Some(Segment {
                host: buffer.address(),
                address: GuestAddress(0),
                length: buffer.len() as u32,
            }),
            Memory::Guest { .. } => None,
        };
        let guest = match &self.memory {
            Memory::Own(_) => &[][..],
            Memory::Guest { segments, .. } => segments,
        };
        let mut skip = start;
        let mut left = length;
        own.into_iter().chain(guest.iter().copied()).filter_map(move |segment| {
            let skipped = skip.min(segment.len());
            skip -= skipped;
            let taken = left.min(segment.len() - skipped);
            left -= taken;
            // SAFETY: skipped <= the segment's length, so the address stays within, or one past,
            // the segment.
            let host = unsafe { segment.host.add(skipped) };
            let address = GuestAddress(segment.address.0 + skipped as u64);
            (taken > 0).then_some(Segment { host, address, length: taken as u32 })
        })
    }

    /// Copies the bytes from `start` on into `into`. Each byte is read once. Panics beyond the
    /// slice's end.
    pub fn copy_to(&self, start: usize, into: &mut [u8]) {
        let mut at = 0;
        for segment in self.segments(start, into.len()) {
            // SAFETY: the segment is readable for its length while `self` lives; `into` is long
            // enough, as the segments' lengths add up to its own; guest memory and our own private
            // memory never overlap. The guest may change the source meanwhile: the copy is then a
            // mixture of old and new bytes, which only affects the guest.
            unsafe {
                std::ptr::copy_nonoverlapping(segment.host.as_ptr(), into.as_mut_ptr().add(at), segment.len())
            };
            at += segment.len();
        }
    }

    /// Copies `from` over the bytes from `start` on, and marks them dirty. Panics beyond the
    /// slice's end.
    pub fn copy_from(&mut self, start: usize, from: &[u8]) {
        let mut at = 0;
        for segment in self.segments(start, from.len()) {
            // SAFETY: as in `copy_to`, in the other direction; there are no references into guest
            // memory, and a slice of our own buffer is borrowed mutably here.
            unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr().add(at), segment.host.as_ptr(), segment.len())
            };
            at += segment.len();
        }
        self.mark_dirty(start, from.len());
    }

    /// Zeroes `length` bytes from `start` on, and marks them dirty. Panics beyond the slice's end.
    pub fn fill_zero(&mut self, start: usize, length: usize) {
        for segment in self.segments(start, length) {
            // SAFETY: the segment is writable for its length; otherwise as in `copy_from`.
            unsafe { std::ptr::write_bytes(segment.host.as_ptr(), 0, segment.len()) };
        }
        self.mark_dirty(start, length);
    }

    /// Records that `length` bytes from `start` on were changed through [`GuestSlice::segments`].
    /// The copying methods do this themselves.
    pub fn mark_dirty(&mut self, start: usize, length: usize) {
        let Memory::Guest { memory, .. } = &self.memory else {
            return;
        };
        let Some(log) = &memory.dirty else { return };
        for segment in self.segments(start, length) {
            log.mark(segment.address, u64::from(segment.length));
        }
    }
}

/// Omits the content, which is guest data.
impl fmt::Debug for GuestSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GuestSlice({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {

    use parking_lot::Mutex;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::pool::{BufferPool, CHUNK_BYTES};

    #[derive(Default)]
    struct Recorded(Mutex<Vec<(u64, u64)>>);

    impl DirtyLog for Recorded {
        fn mark(&self, address: GuestAddress, length: u64) {
            self.0.lock().push((address.0, length));
        }
    }

    fn guest(log: Option<Arc<dyn DirtyLog>>) -> Arc<GuestMemory> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 3 << 16).unwrap();
        let low = GuestRegion::map(&file, 0, GuestAddress(0), 1 << 16).unwrap();
        let high = GuestRegion::map(&file, 1 << 16, GuestAddress(1 << 32), 2 << 16).unwrap();
        Arc::new(GuestMemory::new(vec![high, low], log).unwrap())
    }

    #[test]
    fn bytes_cross_segments_in_order() {
        let memory = guest(None);
        let ranges = [(GuestAddress(100), 300), (GuestAddress((1 << 32) + 7), 212)];
        let mut slice = GuestSlice::from_guest(&memory, ranges, Vec::new()).unwrap();
        let data: Vec<u8> = (0..512).map(|i| i as u8).collect();
        slice.copy_from(0, &data);
        let mut back = vec![0; 400];
        slice.copy_to(50, &mut back);
        assert_eq!(back, data[50..450]);
        slice.fill_zero(290, 20);
        slice.copy_to(50, &mut back);
        assert!(
            back[240..260].iter().all(|byte| *byte == 0) && back[239] == data[289] && back[260] == data[310]
        );
        assert_eq!(slice.segments(290, 20).map(|s| s.len()).collect::<Vec<_>>(), [10, 10]);
        let segments = slice.into_segments();
        assert!(segments.is_empty() && segments.capacity() >= 2);
    }

    #[test]
    fn writes_are_marked_and_reads_are_not() {
        let log = Arc::new(Recorded::default());
        let memory = guest(Some(log.clone()));
        let ranges = [(GuestAddress(0), 4096), (GuestAddress(1 << 32), 4096)];
        let mut slice = GuestSlice::from_guest(&memory, ranges, Vec::new()).unwrap();
        slice.copy_to(0, &mut [0; 8192]);
        assert!(log.0.lock().is_empty());
        slice.copy_from(4000, &[1; 200]);
        assert_eq!(*log.0.lock(), [(4000, 96), (1 << 32, 104)]);
    }

    #[test]
    fn ranges_outside_the_guest_are_refused() {
        let memory = guest(None);
        for (address, length) in [(1 << 16, 1), (65_535, 2), (u64::MAX, 1), ((1 << 32) + (2 << 16), 1)] {
            let range = [(GuestAddress(address), length)];
            assert!(matches!(
                GuestSlice::from_guest(&memory, range, Vec::new()),
                Err(GuestError::NotMapped { .. })
            ));
        }
    }

    #[test]
    fn overlapping_and_wrapping_regions_are_refused() {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 8192).unwrap();
        let region = |address| GuestRegion::map(&file, 0, GuestAddress(address), 8192);
        let overlap = vec![region(0).unwrap(), region(4096).unwrap()];
        assert!(matches!(GuestMemory::new(overlap, None), Err(GuestError::BadRegion { .. })));
        assert!(matches!(region(u64::MAX - 4096), Err(GuestError::BadRegion { .. })));
    }

    #[test]
    fn our_own_buffer_behaves_alike() {
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        let mut slice = GuestSlice::from_buffer(pool.take(1000).unwrap());
        slice.fill_zero(0, 1000);
        slice.copy_from(10, b"hello");
        let mut back = [0; 7];
        slice.copy_to(9, &mut back);
        assert_eq!(&back, b"\0hello\0");
        assert_eq!(slice.into_buffer().unwrap().len(), 1000);
    }
}
