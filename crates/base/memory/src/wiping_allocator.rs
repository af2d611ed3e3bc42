//! An allocator that wipes freed memory.
//!
//! Keys are kept in [`secret`](crate::secret) memory, but some pass through other memory: the
//! plaintext of a TLS record in rustls's buffers, an HTTP response, a parser's strings. When those
//! buffers are freed, their content would remain in the heap, within reach of a bug, a debugger, or
//! a swapped-out page. This allocator, used for the whole program, wipes it.
//!
//! It costs as much as zeroing freed memory. The data path allocates nothing for an I/O, so it
//! costs nothing there.

use std::alloc::{GlobalAlloc, Layout, System};

/// Wraps the allocator `Beneath`, and wipes every block before freeing it. The program declares it
/// as its `#[global_allocator]`.
#[derive(Clone, Copy, Debug, Default)]
pub struct WipingAllocator<Beneath = System> {
    beneath: Beneath,
}

impl WipingAllocator {
    /// Wraps the system's allocator.
    pub const fn new() -> Self {
        Self { beneath: System }
    }
}

// SAFETY: every block comes from `beneath` and is freed there with its original layout, and the
// requirements of `GlobalAlloc` are those that `beneath` fulfils. A block is written to only while
// it is still the caller's.
unsafe impl<Beneath: GlobalAlloc> GlobalAlloc for WipingAllocator<Beneath> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller fulfils the requirements on `layout`, which are those of `beneath`.
        unsafe { self.beneath.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { self.beneath.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller gives up a block of this layout that `beneath` made, so all of it may
        // be written; then it belongs to `beneath` again.
        unsafe {
            wipe(block, layout.size());
            self.beneath.dealloc(block, layout);
        }
    }

    /// Always moves the block: an allocator that moves a block to grow it does not wipe the old
    /// one.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees a size that is not zero and does not overflow with this
        // alignment, and a block of this layout; the two blocks are distinct, and each is at least
        // as long as the copied bytes.
        unsafe {
            let moved = self.beneath.alloc(Layout::from_size_align_unchecked(new_size, layout.align()));
            if !moved.is_null() {
                moved.copy_from_nonoverlapping(block, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
            moved
        }
    }
}

/// Writes zeroes in a way that the compiler cannot remove although the program never reads them.
///
/// # Safety
/// `block` must point to `length_bytes` writable bytes.
unsafe fn wipe(block: *mut u8, length_bytes: usize) {
    // SAFETY: the caller guarantees it. The assembly is empty; to the compiler it may read the
    // block.
    unsafe {
        block.write_bytes(0, length_bytes);
        std::arch::asm!("/* {0} */", in(reg) block, options(nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Inspects each block when it is freed.
    #[derive(Default)]
    struct Watched {
        bytes_back: Cell<usize>,
        bytes_not_wiped: Cell<usize>,
    }

    // SAFETY: this is the system's allocator, and inspects blocks before it frees them.
    unsafe impl GlobalAlloc for Watched {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            // SAFETY: the caller's guarantees are passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            // SAFETY: the block is still allocated, and every test below has written all of it.
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            self.bytes_back.set(self.bytes_back.get() + bytes.len());
            let not_wiped = bytes.iter().filter(|byte| **byte != 0).count();
            self.bytes_not_wiped.set(self.bytes_not_wiped.get() + not_wiped);
            // SAFETY: the caller's guarantees are passed on.
            unsafe { System.dealloc(block, layout) }
        }
    }

    #[test]
    fn what_is_given_back_is_wiped_also_when_it_grows_or_shrinks() {
        let allocator = WipingAllocator { beneath: Watched::default() };
        for (size, new_size) in [(1, 4096), (4096, 100_000), (1 << 20, 3), (64, 64)] {
            let layout = Layout::from_size_align(size, 16).unwrap();
            // SAFETY: sizes are not zero; each block is used within its size and freed once, with
            // its layout.
            unsafe {
                let block = allocator.alloc(layout);
                block.write_bytes(0xA5, size);
                let block = allocator.realloc(block, layout, new_size);
                let kept = std::slice::from_raw_parts(block, size.min(new_size));
                assert!(kept.iter().all(|byte| *byte == 0xA5));
                block.write_bytes(0x5A, new_size);
                allocator.dealloc(block, Layout::from_size_align(new_size, 16).unwrap());
            }
        }
        let Watched { bytes_back, bytes_not_wiped } = &allocator.beneath;
        assert_eq!(bytes_back.get(), 1 + 4096 + 4096 + 100_000 + (1 << 20) + 3 + 128);
        assert_eq!(bytes_not_wiped.get(), 0);
    }
}
