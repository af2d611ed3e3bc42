//! The guest's memory, as a front end describes it: regions that are added and removed.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use strongroom_memory::{DirtyLog, GuestAddress, GuestError, GuestMemory, GuestRegion};
use thiserror::Error;

use super::dirty_log::DirtyPages;
use super::message::RegionDescription;

/// The most regions; QEMU asks for up to 512 and accepts fewer.
pub const REGIONS_MAX: usize = 64;

/// The reasons why the guest's memory cannot be used as described.
#[derive(Debug, Error)]
pub enum RegionError {
    /// It cannot be mapped, or overlaps.
    #[error(transparent)]
    Memory(#[from] GuestError),
    /// The file ends before the region does; an access there would kill this process.
    #[error("a memory region of {bytes} bytes reaches beyond the end of its file")]
    ShortFile {
        /// Its length.
        bytes: u64,
    },
    /// More regions than are supported.
    #[error("more than {REGIONS_MAX} memory regions")]
    TooMany,
    /// No such region.
    #[error("there is no memory region like the one to remove")]
    NoSuchRegion,
    /// The dirty log does not cover all pages.
    #[error("the dirty log does not cover the guest's memory")]
    ShortLog,
}

/// The regions.
#[derive(Default)]
pub struct Regions {
    regions: Vec<Region>,
}

#[derive(Clone)]
struct Region {
    description: RegionDescription,
    mapped: Arc<GuestRegion>,
    file: Arc<OwnedFd>,
}

impl Regions {
    /// Replaces all regions.
    pub fn new(described: Vec<(RegionDescription, OwnedFd)>) -> Result<Self, RegionError> {
        let mut regions = Self::default();
        for (description, file) in described {
            regions = regions.with(description, file)?;
        }
        Ok(regions)
    }

    /// These regions and one more.
    pub fn with(&self, description: RegionDescription, file: OwnedFd) -> Result<Self, RegionError> {
        if self.regions.len() == REGIONS_MAX {
            return Err(RegionError::TooMany);
        }
        let RegionDescription { guest, bytes, file_offset, .. } = description;
        let size_bytes = rustix::fs::fstat(&file).map_err(GuestError::Map)?.st_size;
        let end = file_offset.checked_add(bytes);
        if end.is_none_or(|end| end > u64::try_from(size_bytes).unwrap_or(0)) {
            return Err(RegionError::ShortFile { bytes });
        }
        let mapped = Arc::new(GuestRegion::map(&file, file_offset, guest, bytes)?);
        let mut regions = self.regions.clone();
        regions.push(Region { description, mapped, file: Arc::new(file) });
        let regions = Self { regions };
        // This fails if it overlaps another.
        regions.memory(None)?;
        Ok(regions)
    }

    /// These regions without one.
    pub fn without(&self, gone: RegionDescription) -> Result<Self, RegionError> {
        let is_gone = |region: &RegionDescription| {
            (region.guest, region.bytes, region.user) == (gone.guest, gone.bytes, gone.user)
        };
        let mut regions = self.regions.clone();
        let index = regions.iter().position(|region| is_gone(&region.description));
        regions.remove(index.ok_or(RegionError::NoSuchRegion)?);
        Ok(Self { regions })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// The regions and their files.
    pub fn iter(&self) -> impl Iterator<Item = (RegionDescription, &OwnedFd)> {
        self.regions.iter().map(|region| (region.description, &*region.file))
    }

    /// The memory of these regions; writes to it are marked in `log`.
    pub fn memory(&self, log: Option<&Arc<DirtyPages>>) -> Result<Arc<GuestMemory>, RegionError> {
        let end = |region: &Region| region.description.guest.0 + region.description.bytes;
        if let Some(log) = log
            && !self.regions.iter().all(|region| log.covers(end(region)))
        {
            return Err(RegionError::ShortLog);
        }
        let regions = self.regions.iter().map(|region| Arc::clone(&region.mapped)).collect();
        let log = log.map(|log| Arc::clone(log) as Arc<dyn DirtyLog>);
        Ok(Arc::new(GuestMemory::from_shared(regions, log)?))
    }

    /// The guest address of `bytes` bytes that the front end sees at `user`; they must lie in one
    /// region.
    pub fn guest_address(&self, user: u64, bytes: u64) -> Option<GuestAddress> {
        self.regions.iter().find_map(|Region { description: region, .. }| {
            let into = user.checked_sub(region.user)?;
            let inside = into.checked_add(bytes).is_some_and(|end| end <= region.bytes);
            inside.then(|| GuestAddress(region.guest.0 + into))
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    fn file(bytes: u64) -> OwnedFd {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        file
    }

    fn region(guest: u64, bytes: u64, user: u64) -> RegionDescription {
        RegionDescription { guest: GuestAddress(guest), bytes, user, file_offset: 0 }
    }

    #[test]
    fn regions_come_go_and_translate() {
        let (low, high) = (region(0, 4096, 0x7000_0000), region(1 << 32, 8192, 0x8000_0000));
        let regions = Regions::new(vec![(low, file(4096)), (high, file(8192))]).unwrap();
        assert_eq!(regions.guest_address(0x8000_1000, 4096), Some(GuestAddress((1 << 32) + 4096)));
        assert_eq!(regions.guest_address(0x8000_1001, 4096), None);
        assert_eq!(regions.guest_address(0x8000_1000, u64::MAX), None);
        assert_eq!(regions.guest_address(0, 1), None);
        let less = regions.without(high).unwrap();
        assert!(matches!(less.without(high), Err(RegionError::NoSuchRegion)));
        assert_eq!(less.guest_address(0x8000_0000, 1), None);
        assert!(less.without(low).unwrap().is_empty());
    }

    #[test]
    fn regions_that_overlap_or_outrun_their_file_are_refused() {
        let regions = Regions::new(vec![(region(0, 8192, 0), file(8192))]).unwrap();
        assert!(matches!(regions.with(region(4096, 4096, 0), file(4096)), Err(RegionError::Memory(_))));
        for bytes in [4097, u64::MAX] {
            let short = regions.with(region(1 << 20, bytes, 0), file(4096));
            assert!(matches!(short, Err(RegionError::ShortFile { .. })));
        }
        assert!(regions.with(region(u64::MAX - 10, 4096, 0), file(4096)).is_err());
        assert!(regions.with(region(1 << 20, 0, 0), file(4096)).is_err());
    }
}
