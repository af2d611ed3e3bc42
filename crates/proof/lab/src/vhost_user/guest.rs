//! A guest's memory: regions on sealed memfds, which the front end shares with a server.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
pub use strongroom_memory::GuestAddress;
use strongroom_memory::{GuestError, GuestMemory, GuestRegion, GuestSlice};

use super::connection::RegionDescription;

/// The announced front-end address of the first region; the others follow, far apart. A server must
/// not use it as an address of its own.
const USER_START: u64 = 0x5_0000_0000_0000;
const USER_STEP: u64 = 1 << 40;

/// The pages of a guest's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pages {
    /// Pages of 4 KiB.
    #[default]
    Small,
    /// Pages of 2 MiB, where available (transparent huge pages).
    Huge,
}

impl Pages {
    /// Bytes of a page.
    pub fn bytes(self) -> u64 {
        match self {
            Self::Small => 4096,
            Self::Huge => 2 << 20,
        }
    }
}

/// A guest's memory. A restarted server gets the same memory.
pub struct Guest {
    regions: Vec<(RegionDescription, OwnedFd)>,
    memory: Arc<GuestMemory>,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guest({} regions)", self.regions.len())
    }
}

impl Guest {
    /// New memory, zeroed, in regions given by their address and count of bytes, which are rounded
    /// up to whole pages.
    pub fn new(regions: &[(GuestAddress, u64)], pages: Pages) -> io::Result<Self> {
        let mut described = Vec::new();
        let mut mapped = Vec::new();
        for ((guest, bytes), index) in regions.iter().copied().zip(0..) {
            let bytes = bytes.next_multiple_of(pages.bytes());
            let file = memfd_create("guest", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
            ftruncate(&file, bytes)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            let region = GuestRegion::map(&file, 0, guest, bytes).map_err(io::Error::other)?;
            if pages == Pages::Huge {
                region.wish_huge_pages().map_err(io::Error::other)?;
            }
            mapped.push(region);
            let user = USER_START + index * USER_STEP;
            described.push((RegionDescription { guest: guest.0, bytes, user, file_offset: 0 }, file));
        }
        let memory = GuestMemory::new(mapped, None).map_err(io::Error::other)?;
        Ok(Self { regions: described, memory: Arc::new(memory) })
    }

    /// The memory itself.
    pub fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Its regions, for the messages that share them.
    pub fn regions(&self) -> Vec<(RegionDescription, BorrowedFd<'_>)> {
        self.regions.iter().map(|(region, file)| (*region, file.as_fd())).collect()
    }

    /// The announced front-end address of a guest address.
    pub fn user_address(&self, address: GuestAddress) -> Option<u64> {
        self.regions.iter().find_map(|(region, _)| {
            let into = address.0.checked_sub(region.guest)?;
            (into < region.bytes).then(|| region.user + into)
        })
    }
}

/// A run of guest memory, which may cross into the next region.
pub type Run = (GuestAddress, u32);

/// Copies `from` into runs, one after another.
pub fn scatter(memory: &Arc<GuestMemory>, runs: &[Run], from: &[u8]) -> Result<(), GuestError> {
    slice(memory, runs).map(|mut slice| slice.copy_from(0, from))
}

/// Copies runs, one after another, into `into`.
pub fn gather(memory: &Arc<GuestMemory>, runs: &[Run], into: &mut [u8]) -> Result<(), GuestError> {
    slice(memory, runs).map(|slice| slice.copy_to(0, into))
}

fn slice(memory: &Arc<GuestMemory>, runs: &[Run]) -> Result<GuestSlice, GuestError> {
    let mut pieces = Vec::with_capacity(runs.len() + 1);
    for (mut address, mut length) in runs.iter().copied() {
        while length > 0 {
            let piece = memory.run_length(address, length)?;
            pieces.push((address, piece));
            address = GuestAddress(address.0 + u64::from(piece));
            length -= piece;
        }
    }
    GuestSlice::from_guest(memory, pieces, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_go_on_from_one_region_into_the_next() {
        let guest = Guest::new(&[(GuestAddress(0), 4096), (GuestAddress(4096), 8192)], Pages::Small).unwrap();
        let runs = [(GuestAddress(4090), 10), (GuestAddress(1), 3)];
        scatter(guest.memory(), &runs, b"0123456789abc").unwrap();
        let mut back = [0; 13];
        gather(guest.memory(), &runs, &mut back).unwrap();
        assert_eq!(&back, b"0123456789abc");
        assert_eq!(&guest.memory().read::<4>(GuestAddress(4096)).unwrap(), b"6789");
        assert_eq!(guest.user_address(GuestAddress(4097)), Some(USER_START + USER_STEP + 1));
        assert_eq!(guest.user_address(GuestAddress(3 * 4096)), None);
    }
}
