//! Small values in guest memory that a queue and its driver share: indices, descriptors, status
//! bytes.
//!
//! A ring's indices are published with release and read with acquire, as the virtio standard
//! requires of both sides. Other data is copied, possibly byte by byte, and only the copy is used.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, Ordering};

use crate::guest::{GuestAddress, GuestError, GuestMemory};

impl GuestMemory {
    /// The byte at `address`. Writes that preceded its store are visible after this.
    pub fn load_u8(&self, address: GuestAddress) -> Result<u8, GuestError> {
        let byte = self.word::<u8>(address)?;
        // SAFETY: as in `load_u16`; every byte is aligned.
        Ok(unsafe { AtomicU8::from_ptr(byte) }.load(Ordering::Acquire))
    }

    /// Stores a byte and marks it dirty. Earlier writes are visible to a thread that reads the new
    /// byte.
    pub fn store_u8(&self, address: GuestAddress, value: u8) -> Result<(), GuestError> {
        let byte = self.word::<u8>(address)?;
        // SAFETY: as in `load_u8`.
        unsafe { AtomicU8::from_ptr(byte) }.store(value, Ordering::Release);
        self.mark_dirty(address, 1);
        Ok(())
    }

    /// Sets bits of the byte at `address` atomically.
    pub fn set_bits(&self, address: GuestAddress, bits: u8) -> Result<(), GuestError> {
        let byte = self.word::<u8>(address)?;
        // SAFETY: as in `load_u8`.
        unsafe { AtomicU8::from_ptr(byte) }.fetch_or(bits, Ordering::SeqCst);
        self.mark_dirty(address, 1);
        Ok(())
    }

    /// The 64-bit word at `address`, as [`GuestMemory::load_u16`].
    pub fn load_u64(&self, address: GuestAddress) -> Result<u64, GuestError> {
        let word = self.word::<u64>(address)?;
        // SAFETY: as in `load_u16`.
        Ok(u64::from_le(unsafe { AtomicU64::from_ptr(word) }.load(Ordering::Acquire)))
    }

    /// Stores a 64-bit word, as [`GuestMemory::store_u16`].
    pub fn store_u64(&self, address: GuestAddress, value: u64) -> Result<(), GuestError> {
        let word = self.word::<u64>(address)?;
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU64::from_ptr(word) }.store(value.to_le(), Ordering::Release);
        self.mark_dirty(address, 8);
        Ok(())
    }

    /// The 16-bit word at `address`, in the byte order of the guest's memory (little-endian).
    /// Writes that preceded its store by the guest are visible after this.
    pub fn load_u16(&self, address: GuestAddress) -> Result<u16, GuestError> {
        let word = self.word::<u16>(address)?;
        // SAFETY: `word` checked that the address is aligned, and mapped while `self` lives. Its
        // content is only ever accessed atomically or by raw copies, never through a reference of
        // ours.
        let value = unsafe { AtomicU16::from_ptr(word) }.load(Ordering::Acquire);
        Ok(u16::from_le(value))
    }

    /// Stores a 16-bit word, little-endian, and marks it dirty. Earlier writes into the guest's
    /// memory are visible to a thread that reads the new word.
    pub fn store_u16(&self, address: GuestAddress, value: u16) -> Result<(), GuestError> {
        let word = self.word::<u16>(address)?;
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU16::from_ptr(word) }.store(value.to_le(), Ordering::Release);
        self.mark_dirty(address, 2);
        Ok(())
    }

    /// Copies the bytes at `address`, which must be within one region. Each is read once.
    pub fn read<const N: usize>(&self, address: GuestAddress) -> Result<[u8; N], GuestError> {
        let segment = self.segment(address, N as u32)?;
        let mut bytes = [0; N];
        // SAFETY: the segment is readable for N bytes while `self` lives, and never overlaps our
        // own stack. The guest may change the source meanwhile: the copy is then a mixture of old
        // and new bytes, which only affects the guest.
        unsafe { std::ptr::copy_nonoverlapping(segment.host().as_ptr(), bytes.as_mut_ptr(), N) };
        Ok(bytes)
    }

    /// Copies bytes to `address`, which must be within one region, and marks them dirty.
    pub fn write(&self, address: GuestAddress, bytes: &[u8]) -> Result<(), GuestError> {
        let not_mapped = GuestError::NotMapped { address, length: bytes.len() as u64 };
        let Ok(length) = u32::try_from(bytes.len()) else { return Err(not_mapped) };
        let segment = self.segment(address, length)?;
        // SAFETY: the segment is writable for its length while `self` lives; there are no
        // references into it, so it does not overlap `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), segment.host().as_ptr(), bytes.len()) };
        self.mark_dirty(address, u64::from(length));
        Ok(())
    }

    /// The pointer to a word; an error if it is not mapped or not aligned.
    fn word<T>(&self, address: GuestAddress) -> Result<*mut T, GuestError> {
        let word = self.segment(address, size_of::<T>() as u32)?.host().as_ptr().cast::<T>();
        if word.is_aligned() { Ok(word) } else { Err(GuestError::Misaligned(address)) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::guest::GuestRegion;

    fn memory() -> GuestMemory {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 2 << 12).unwrap();
        let low = Arc::new(GuestRegion::map(&file, 0, GuestAddress(4096), 4096).unwrap());
        let high = Arc::new(GuestRegion::map(&file, 4096, GuestAddress(8192), 4096).unwrap());
        GuestMemory::from_shared(vec![low, high], None).unwrap()
    }

    #[test]
    fn words_are_little_endian_aligned_and_inside() {
        let memory = memory();
        memory.store_u16(GuestAddress(4096), 0x1234).unwrap();
        assert_eq!(memory.read::<2>(GuestAddress(4096)).unwrap(), [0x34, 0x12]);
        assert_eq!(memory.load_u16(GuestAddress(4096)).unwrap(), 0x1234);
        assert_eq!(memory.load_u16(GuestAddress(4097)), Err(GuestError::Misaligned(GuestAddress(4097))));
        memory.store_u64(GuestAddress(4104), 0x0102_0304_0506_0708).unwrap();
        assert_eq!(memory.load_u8(GuestAddress(4104)), Ok(8));
        memory.store_u8(GuestAddress(4105), 0x10).unwrap();
        memory.set_bits(GuestAddress(4105), 3).unwrap();
        assert_eq!(memory.load_u64(GuestAddress(4104)), Ok(0x0102_0304_0506_1308));
        assert_eq!(memory.load_u64(GuestAddress(4100)), Err(GuestError::Misaligned(GuestAddress(4100))));
        assert!(matches!(memory.load_u16(GuestAddress(12_287)), Err(GuestError::NotMapped { .. })));
        assert!(matches!(memory.store_u16(GuestAddress(0), 1), Err(GuestError::NotMapped { .. })));
    }

    #[test]
    fn bytes_are_copied_within_one_region() {
        let memory = memory();
        memory.write(GuestAddress(5000), b"hello").unwrap();
        assert_eq!(&memory.read::<5>(GuestAddress(5000)).unwrap(), b"hello");
        assert!(memory.write(GuestAddress(8190), b"hello").is_err());
        assert!(memory.read::<5>(GuestAddress(u64::MAX - 2)).is_err());
        assert_eq!(memory.run_length(GuestAddress(8190), 5), Ok(2));
        assert_eq!(memory.run_length(GuestAddress(8192), 5), Ok(5));
        assert!(memory.run_length(GuestAddress(12_288), 1).is_err());
        assert!(memory.run_length(GuestAddress(1), 1).is_err());
    }
}
