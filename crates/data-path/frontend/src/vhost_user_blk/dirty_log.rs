//! The dirty log of a live migration: a bit for each page of the guest's memory that we wrote to.
//!
//! The front end gives the log's file (SET_LOG_BASE), reads and clears the bits, and sends the
//! pages again. A bit is set after the page was written, so a page is never sent for the last time
//! before the write.

use std::os::fd::OwnedFd;

use strongroom_memory::{DirtyLog, GuestAddress, GuestError, GuestMemory, GuestRegion};

use super::message::LogDescription;

/// Bytes of guest memory for each bit (`VHOST_LOG_PAGE`), whatever the page size of guest and host.
const PAGE_BYTES: u64 = 4096;

/// A mapped log.
pub struct DirtyPages {
    bits: GuestMemory,
    file: OwnedFd,
    description: LogDescription,
}

impl DirtyPages {
    /// Maps the described part of the front end's file.
    pub fn map(description: LogDescription, file: OwnedFd) -> Result<Self, GuestError> {
        let LogDescription { bytes, offset } = description;
        let region = GuestRegion::map(&file, offset, GuestAddress(0), bytes)?;
        Ok(Self { bits: GuestMemory::new(vec![region], None)?, file, description })
    }

    /// Whether it has a bit for each page up to `end`.
    pub fn covers(&self, end: u64) -> bool {
        end.div_ceil(8 * PAGE_BYTES) <= self.description.bytes
    }

    /// Its file.
    pub fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Where it lies in its file.
    pub fn description(&self) -> LogDescription {
        self.description
    }
}

impl DirtyLog for DirtyPages {
    fn mark(&self, address: GuestAddress, length: u64) {
        if length == 0 {
            return;
        }
        // Guest memory ends within the address space, so this does not overflow.
        let (mut page, last) = (address.0 / PAGE_BYTES, (address.0 + (length - 1)) / PAGE_BYTES);
        while page <= last {
            let last_here = last.min(page | 7);
            let bits = (0xFF << (page % 8)) & (0xFF >> (7 - last_here % 8)) & 0xFF;
            if let Err(error) = self.bits.set_bits(GuestAddress(page / 8), bits as u8) {
                // This cannot happen: a session refuses memory that its log does not cover.
                tracing::error!(%error, "a page of the guest cannot be marked dirty; do not migrate it");
            }
            page = last_here + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn exactly_the_pages_touched_are_marked() {
        let ranges: [(u64, u64); 8] = [
            (0, 1),
            (4095, 2),
            (8 * 4096 - 1, 1),
            (8 * 4096 - 1, 2),
            (3 * 4096, 30 * 4096),
            (16 * 4096, 8 * 4096),
            (4096, 0),
            (127 * 4096, 4096),
        ];
        for (start, length) in ranges {
            let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
            ftruncate(&file, 4096).unwrap();
            let log = DirtyPages::map(LogDescription { bytes: 16, offset: 0 }, file).unwrap();
            log.mark(GuestAddress(start), length);
            let expected: BTreeSet<u64> = (start..start + length).map(|byte| byte / 4096).collect();
            let marked: BTreeSet<u64> = (0..128)
                .filter(|page| log.bits.load_u8(GuestAddress(page / 8)).unwrap() >> (page % 8) & 1 == 1)
                .collect();
            assert_eq!(marked, expected, "{length} bytes at {start}");
        }
    }

    #[test]
    fn coverage_is_exact() {
        let file = memfd_create("log", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 4096).unwrap();
        let log = DirtyPages::map(LogDescription { bytes: 2, offset: 0 }, file).unwrap();
        assert!(log.covers(16 * 4096) && !log.covers(16 * 4096 + 1) && log.covers(0));
    }
}
