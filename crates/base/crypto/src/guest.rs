//! Encrypts and decrypts guest memory: whole units of a transfer, whose memory may be in many
//! pieces and change at any moment.
//!
//! Runs of units within one segment are passed to the kernel in place, in one call. A unit that is
//! split across segments is copied through a scratch unit in secret memory, because it contains a
//! guest's plaintext. Each byte of the guest is read once and affects no decision.

use std::ptr;

use strongroom_memory::GuestSlice;
use strongroom_memory::secret::SecretBytes;

use crate::error::CryptoError;
use crate::xts::{Xts, XtsSession};

/// One thread's session with a key for guest memory.
#[derive(Debug)]
pub struct GuestSession {
    session: XtsSession,
    /// Space for one unit.
    scratch: SecretBytes,
}

impl GuestSession {
    /// Sets the key up for one thread.
    ///
    /// # Errors
    /// As [`Xts::session`].
    pub fn new(xts: &Xts) -> Result<Self, CryptoError> {
        let scratch = SecretBytes::zeroed(xts.unit_size().bytes())?;
        Ok(Self { session: xts.session()?, scratch })
    }

    /// Encrypts the bytes of `source` from `start` on into `destination`, until it is full; the
    /// first unit has the number `first_unit`.
    ///
    /// # Errors
    /// [`CryptoError::PartialDataUnit`] if `destination` is not whole units,
    /// [`CryptoError::BufferMismatch`] if `source` ends before it, [`CryptoError::DataUnitRange`],
    /// [`CryptoError::Library`].
    pub fn encrypt(
        &mut self,
        first_unit: u64,
        source: &GuestSlice,
        start: usize,
        destination: &mut [u8],
    ) -> Result<(), CryptoError> {
        let mut numbers = self.unit_numbers(first_unit, source, start, destination.len())?;
        let Self { session, scratch } = self;
        let scratch = scratch.expose_mut();
        let unit_bytes = scratch.len();
        let mut destination = destination;
        // Bytes of a split unit that are in the scratch unit.
        let mut gathered = 0;
        for segment in source.segments(start, destination.len()) {
            let mut at = 0;
            while at < segment.len() {
                // SAFETY: `at` is within the segment.
                let from = unsafe { segment.host().as_ptr().add(at) };
                let left = segment.len() - at;
                if gathered == 0 && left >= unit_bytes {
                    let units = left / unit_bytes;
                    let into = take_front(&mut destination, units * unit_bytes);
                    let first = numbers.next(units)?;
                    // SAFETY: `units` whole units from `from` on are within the segment, readable
                    // while `source` is borrowed, even if they change; `into` is as long, and
                    // exclusively ours: a mutable borrow of memory that does not belong to a guest
                    // or, because that is borrowed separately, to the slice's own buffer.
                    unsafe { session.encrypt_raw(first, from, into.as_mut_ptr(), units)? };
                    at += into.len();
                    continue;
                }
                let taken = left.min(unit_bytes - gathered);
                // SAFETY: `taken` bytes are within the segment and within the scratch unit, which
                // is exclusively ours.
                unsafe { ptr::copy_nonoverlapping(from, scratch[gathered..].as_mut_ptr(), taken) };
                at += taken;
                gathered += taken;
                if gathered == unit_bytes {
                    session.encrypt(numbers.next(1)?, scratch, take_front(&mut destination, unit_bytes))?;
                    gathered = 0;
                }
            }
        }
        Ok(())
    }

    /// Decrypts `source` over the bytes of `destination` from `start` on, and marks them dirty; the
    /// first unit has the number `first_unit`.
    ///
    /// # Errors
    /// As [`encrypt`](Self::encrypt), with source and destination exchanged; some of the units may
    /// then have been decrypted.
    pub fn decrypt(
        &mut self,
        first_unit: u64,
        source: &[u8],
        destination: &mut GuestSlice,
        start: usize,
    ) -> Result<(), CryptoError> {
        let numbers = self.unit_numbers(first_unit, destination, start, source.len())?;
        let result = self.decrypt_segments(numbers, source, destination, start);
        destination.mark_dirty(start, source.len());
        result
    }

    fn decrypt_segments(
        &mut self,
        mut numbers: UnitNumbers,
        mut source: &[u8],
        destination: &mut GuestSlice,
        start: usize,
    ) -> Result<(), CryptoError> {
        let Self { session, scratch } = self;
        let scratch = scratch.expose_mut();
        let unit_bytes = scratch.len();
        // Bytes of a split unit that are still to be written, at the end of the scratch unit.
        let mut pending = 0;
        for segment in destination.segments(start, source.len()) {
            let mut at = 0;
            while at < segment.len() {
                // SAFETY: `at` is within the segment.
                let into = unsafe { segment.host().as_ptr().add(at) };
                let left = segment.len() - at;
                if pending == 0 && left >= unit_bytes {
                    let units = left / unit_bytes;
                    let from;
                    (from, source) = source.split_at(units * unit_bytes);
                    let first = numbers.next(units)?;
                    // SAFETY: `units` whole units from `into` on are within the segment, writable
                    // while `destination` is borrowed mutably, and there is no Rust reference to
                    // them; `from` is as long, only read, and, being borrowed at the same time, not
                    // part of the slice's own buffer.
                    unsafe { session.decrypt_raw(first, from.as_ptr(), into, units)? };
                    at += from.len();
                    continue;
                }
                if pending == 0 {
                    let from;
                    (from, source) = source.split_at(unit_bytes);
                    session.decrypt(numbers.next(1)?, from, scratch)?;
                    pending = unit_bytes;
                }
                let given = left.min(pending);
                let from = scratch[unit_bytes - pending..].as_ptr();
                // SAFETY: `given` bytes are within the scratch unit, which is exclusively ours, and
                // within the segment, writable as above.
                unsafe { ptr::copy_nonoverlapping(from, into, given) };
                at += given;
                pending -= given;
            }
        }
        Ok(())
    }

    /// Checks the lengths of a call, which ensures that the segments add up to whole units.
    fn unit_numbers(
        &self,
        first_unit: u64,
        slice: &GuestSlice,
        start: usize,
        length_bytes: usize,
    ) -> Result<UnitNumbers, CryptoError> {
        let unit_bytes = self.scratch.len();
        let guest_bytes = slice.len().saturating_sub(start);
        if !length_bytes.is_multiple_of(unit_bytes) {
            return Err(CryptoError::PartialDataUnit { length_bytes, unit_bytes });
        }
        if length_bytes > guest_bytes {
            return Err(CryptoError::BufferMismatch {
                source_bytes: guest_bytes,
                destination_bytes: length_bytes,
            });
        }
        Ok(UnitNumbers { next: Some(first_unit), unit_bytes })
    }
}

/// Counts units through a call.
struct UnitNumbers {
    next: Option<u64>,
    unit_bytes: usize,
}

impl UnitNumbers {
    /// The number of the next unit; advances by `units`.
    fn next(&mut self, units: usize) -> Result<u64, CryptoError> {
        let Some(first) = self.next else {
            return Err(CryptoError::DataUnitRange {
                first: 1 << 64,
                count: units,
                unit_bytes: self.unit_bytes,
            });
        };
        self.next = first.checked_add(units as u64);
        Ok(first)
    }
}

/// Splits the first `length` bytes off `rest`.
fn take_front<'a>(rest: &mut &'a mut [u8], length: usize) -> &'a mut [u8] {
    let (front, back) = std::mem::take(rest).split_at_mut(length);
    *rest = back;
    front
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use strongroom_memory::{BufferPool, CHUNK_BYTES, DirtyLog, GuestAddress, GuestMemory, GuestRegion};

    use super::*;
    use crate::xts::UnitSize;

    const UNIT: usize = 4096;

    #[derive(Default)]
    struct Dirty(Mutex<Vec<(u64, u64)>>);

    impl DirtyLog for Dirty {
        fn mark(&self, address: GuestAddress, length: u64) {
            self.0.lock().push((address.0, length));
        }
    }

    fn xts() -> Xts {
        Xts::new(&SecretBytes::random(64).unwrap(), UnitSize::Bytes4096).unwrap()
    }

    fn guest(dirty: Option<Arc<dyn DirtyLog>>) -> Arc<GuestMemory> {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        let region = GuestRegion::map(&file, 0, GuestAddress(0), 1 << 20).unwrap();
        Arc::new(GuestMemory::new(vec![region], dirty).unwrap())
    }

    /// A slice whose segments have these lengths, with gaps between them that reveal writes beyond
    /// a segment.
    fn slice(memory: &Arc<GuestMemory>, lengths: &[usize]) -> GuestSlice {
        let mut address = 100;
        let ranges = lengths.iter().map(|length| {
            let range = (GuestAddress(address), *length as u32);
            address += *length as u64 + 16;
            range
        });
        GuestSlice::from_guest(memory, ranges.collect::<Vec<_>>(), Vec::new()).unwrap()
    }

    fn text(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn however_the_segments_lie_the_units_are_the_same() {
        let xts = xts();
        let (mut session, mut plain_session) = (GuestSession::new(&xts).unwrap(), xts.session().unwrap());
        let layouts: [&[usize]; 9] = [
            &[8 * UNIT],
            &[UNIT, 7 * UNIT],
            &[1, 8 * UNIT - 1],
            &[8 * UNIT - 1, 1],
            &[512; 64],
            &[3 * UNIT + 5, UNIT - 5, 4 * UNIT],
            &[100, UNIT, UNIT, UNIT, 5 * UNIT - 100],
            &[2 * UNIT, 1, 1, UNIT - 2, 2 * UNIT + 9, 3 * UNIT - 9],
            &[7, 0, 4089, 7 * UNIT],
        ];
        let plain = text(8 * UNIT);
        let mut expected = vec![0; plain.len()];
        plain_session.encrypt(1 << 40, &plain, &mut expected).unwrap();
        for layout in layouts {
            let memory = guest(None);
            let mut slice = slice(&memory, layout);
            slice.copy_from(0, &plain);
            let mut sealed = vec![0; plain.len()];
            session.encrypt(1 << 40, &slice, 0, &mut sealed).unwrap();
            assert!(sealed == expected, "{layout:?}");
            let mut part = vec![0; 3 * UNIT];
            session.encrypt((1 << 40) + 2, &slice, 2 * UNIT, &mut part).unwrap();
            assert!(part == expected[2 * UNIT..5 * UNIT], "{layout:?}");

            slice.fill_zero(0, plain.len());
            session.decrypt((1 << 40) + 1, &sealed[UNIT..7 * UNIT], &mut slice, UNIT).unwrap();
            let mut back = vec![1; plain.len()];
            slice.copy_to(0, &mut back);
            assert!(back[UNIT..7 * UNIT] == plain[UNIT..7 * UNIT], "{layout:?}");
            assert!(back[..UNIT].iter().chain(&back[7 * UNIT..]).all(|byte| *byte == 0), "{layout:?}");
        }
    }

    #[test]
    fn bytes_between_segments_are_left_alone_and_the_rest_is_marked() {
        let dirty = Arc::new(Dirty::default());
        let memory = guest(Some(Arc::clone(&dirty) as Arc<dyn DirtyLog>));
        let mut slice = slice(&memory, &[1000, 2 * UNIT - 1000]);
        let mut all =
            GuestSlice::from_guest(&memory, [(GuestAddress(0), 3 * UNIT as u32)], Vec::new()).unwrap();
        all.copy_from(0, &[0xAA; 3 * UNIT]);
        dirty.0.lock().clear();
        GuestSession::new(&xts()).unwrap().decrypt(0, &text(2 * UNIT), &mut slice, 0).unwrap();
        assert_eq!(*dirty.0.lock(), [(100, 1000), (1116, 2 * UNIT as u64 - 1000)]);
        let mut bytes = vec![0; 3 * UNIT];
        all.copy_to(0, &mut bytes);
        assert!(bytes[..100].iter().chain(&bytes[1100..1116]).all(|byte| *byte == 0xAA));
        assert!(bytes[2 * UNIT + 116..].iter().all(|byte| *byte == 0xAA));
    }

    #[test]
    fn a_slice_of_our_own_buffer_is_one_segment() {
        let pool = BufferPool::new(CHUNK_BYTES).unwrap();
        let mut session = GuestSession::new(&xts()).unwrap();
        let mut slice = GuestSlice::from_buffer(pool.take(2 * UNIT).unwrap());
        slice.copy_from(0, &text(2 * UNIT));
        let mut sealed = vec![0; 2 * UNIT];
        session.encrypt(9, &slice, 0, &mut sealed).unwrap();
        slice.fill_zero(0, 2 * UNIT);
        session.decrypt(9, &sealed, &mut slice, 0).unwrap();
        assert!(slice.into_buffer().unwrap().bytes() == text(2 * UNIT));
    }

    #[test]
    fn lengths_and_numbers_out_of_range_are_refused() {
        let memory = guest(None);
        let mut slice = slice(&memory, &[512; 16]);
        let mut session = GuestSession::new(&xts()).unwrap();
        let mut sealed = vec![0; 3 * UNIT];
        assert!(matches!(
            session.encrypt(0, &slice, 0, &mut sealed[..100]),
            Err(CryptoError::PartialDataUnit { length_bytes: 100, .. })
        ));
        assert!(matches!(
            session.encrypt(0, &slice, 0, &mut sealed),
            Err(CryptoError::BufferMismatch { .. })
        ));
        assert!(matches!(
            session.decrypt(0, &sealed[..UNIT], &mut slice, usize::MAX),
            Err(CryptoError::BufferMismatch { .. })
        ));
        let last = session.encrypt(u64::MAX, &slice, UNIT, &mut sealed[..UNIT]);
        assert!(last.is_ok(), "{last:?}");
        assert!(matches!(
            session.encrypt(u64::MAX, &slice, 0, &mut sealed[..2 * UNIT]),
            Err(CryptoError::DataUnitRange { .. })
        ));
    }
}
