//! A guest that counts: a boot sector. It fills a part of its memory with what no program shortens,
//! and from then on counts ticks, a thousand a second, and changes so many of those pages at each.
//! Between ticks it sleeps, or counts as fast as its processor is.
//!
//! Its counts are read in QEMU's memory from outside, so nothing of the guest has to be asked, and
//! a gap is one of the guest itself: its own clock stands still with it.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use crate::processes::ProcessId;

/// Ticks of the guest in a second.
pub const TICKS_PER_SECOND: u32 = 1000;
/// Bytes of a page.
pub const PAGE_BYTES: u32 = 4096;
/// Where its changing memory begins: above what firmware uses.
const BEGINS_AT: u32 = 16 << 20;
/// Where its counts are: of ticks, and of turns of a guest that works, four bytes each.
const COUNTS_AT: u64 = 0x5000;

/// A counting guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountingGuest {
    /// Bytes that it fills, and changes in turn: whole pages.
    pub filled_bytes: u32,
    /// Pages that it changes at each tick.
    pub pages_per_tick: u32,
    /// Whether it works between ticks, so that its processor is never idle.
    pub works: bool,
}

impl CountingGuest {
    /// Memory that a VM needs for it, in MiB: what it fills, and what firmware uses.
    pub fn memory_mib(&self) -> u32 {
        (BEGINS_AT + self.filled_bytes + (16 << 20)) >> 20
    }

    /// Its first sector. A disk of it needs no more.
    pub fn boot_sector(&self) -> [u8; 512] {
        let begin = BEGINS_AT.to_le_bytes();
        let end = (BEGINS_AT + self.filled_bytes).to_le_bytes();
        let pages = self.pages_per_tick.to_le_bytes();
        // hlt, or add dword [0x5004], 1; and that again.
        let between: [u8; 9] = match self.works {
            true => [0x66, 0x83, 0x06, 0x04, 0x50, 1, 0xeb, 0xf8, 0x90],
            false => [0xf4, 0xeb, 0xfd, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90],
        };
        let code: &[&[u8]] = &[
            &[0xfa, 0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xd0, 0xbc, 0x00, 0x70], // cli; ds = ss = 0; a stack
            &[0xe4, 0x92, 0x0c, 0x02, 0xe6, 0x92],                         // the 21st address line
            &[0x0f, 0x01, 0x16, 0xb0, 0x7c],                               // lgdt [gdtr]
            &[0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0],             // protected mode
            &[0xbb, 0x08, 0x00, 0x8e, 0xe3],                               // fs has 4 GiB from now on,
            &[0x24, 0xfe, 0x0f, 0x22, 0xc0],                               // also in real mode
            &[0x66, 0xbf],
            &begin,
            &[0x66, 0xb8, 0x78, 0x56, 0x34, 0x12], // edi = begin; eax = a seed
            &[0x66, 0x69, 0xc0, 0x0d, 0x66, 0x19, 0x00], // fill: eax = eax * 1664525
            &[0x66, 0x05, 0x5f, 0xf3, 0x6e, 0x3c], // + 1013904223
            &[0x64, 0x67, 0x66, 0x89, 0x07, 0x66, 0x83, 0xc7, 0x04], // fs:[edi] = eax; edi += 4
            &[0x66, 0x81, 0xff],
            &end,
            &[0x72, 0xe1], // until the end
            &[0xb0, 0x34, 0xe6, 0x43, 0xb0, 0xa9, 0xe6, 0x40, 0xb0, 0x04, 0xe6, 0x40], // 1193182 Hz / 1193
            &[0xb0, 0xfe, 0xe6, 0x21], // no interrupt but that one
            &[0xc7, 0x06, 0x20, 0x00, 0x7e, 0x7c, 0xc7, 0x06, 0x22, 0x00, 0, 0], // its vector: tick
            &[0x66, 0xbf],
            &begin,
            &[0xfb], // edi = begin; sti
            &between,
            &[0x66, 0xff, 0x06, 0x00, 0x50, 0x66, 0xb9],
            &pages, // tick: count; ecx = pages
            &[
                0x67, 0xe3, 0x1f, 0x64, 0x67, 0x66, 0xff, 0x07, // next: is one left? change a page
                0x66, 0x81, 0xc7, 0x00, 0x10, 0, 0, // the one after it
                0x66, 0x81, 0xff,
            ],
            &end,
            &[0x72, 0x06, 0x66, 0xbf],
            &begin, // or the first
        ];
        let end_of_tick = [0x66, 0x49, 0xeb, 0xde, 0xb0, 0x20, 0xe6, 0x20, 0xcf];
        // A descriptor of 4 GiB of data, behind one of nothing.
        let table = [15, 0, 0xb6, 0x7c, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0x92, 0xcf, 0];
        let mut sector = [0; 512];
        let content = [code.concat(), end_of_tick.to_vec(), table.to_vec()].concat();
        sector[..content.len()].copy_from_slice(&content);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector
    }
}

/// What a guest has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Ticks.
    pub ticks: u32,
    /// Turns of a guest that works.
    pub turns: u32,
}

/// The memory of a guest, in a QEMU's.
#[derive(Debug)]
pub struct GuestMemory {
    process: File,
    at: u64,
}

impl GuestMemory {
    /// Finds the memory of a guest that has this much.
    ///
    /// # Errors
    /// If the process is gone, may not be read, or has no such memory yet.
    pub fn of(qemu: ProcessId, memory_bytes: u64) -> io::Result<Self> {
        let maps = fs::read_to_string(format!("/proc/{qemu}/maps"))?;
        let at = maps.lines().find_map(|line| {
            let (begin, rest) = line.split_once('-')?;
            let (end, rest) = rest.split_once(' ')?;
            let (begin, end) = (u64::from_str_radix(begin, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
            (end - begin == memory_bytes && rest.starts_with("rw")).then_some(begin)
        });
        let missing = || io::Error::new(io::ErrorKind::NotFound, "QEMU has no memory of a guest yet");
        let at = at.ok_or_else(missing)?;
        Ok(Self { process: File::open(format!("/proc/{qemu}/mem"))?, at })
    }

    /// What the guest has counted.
    ///
    /// # Errors
    /// If the process is gone.
    pub fn counts(&self) -> io::Result<Counts> {
        let mut bytes = [0; 8];
        self.process.read_exact_at(&mut bytes, self.at + COUNTS_AT)?;
        let [a, b, c, d, e, f, g, h] = bytes;
        Ok(Counts { ticks: u32::from_le_bytes([a, b, c, d]), turns: u32::from_le_bytes([e, f, g, h]) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_sector_has_its_parts_where_its_jumps_lead() {
        for works in [true, false] {
            let guest = CountingGuest { filled_bytes: 64 << 20, pages_per_tick: 5, works };
            let sector = guest.boot_sector();
            assert_eq!(guest.memory_mib(), 96);
            assert_eq!(sector[0x33..0x36], [0x66, 0x69, 0xc0], "fill");
            assert_eq!(sector[0x75], if works { 0x66 } else { 0xf4 }, "between ticks");
            assert_eq!(sector[0x7e..0x81], [0x66, 0xff, 0x06], "tick");
            assert_eq!(sector[0xa7..0xb0], [0x66, 0x49, 0xeb, 0xde, 0xb0, 0x20, 0xe6, 0x20, 0xcf]);
            assert_eq!(sector[0xb0..0xb6], [15, 0, 0xb6, 0x7c, 0, 0], "gdtr");
            assert_eq!(sector[510..], [0x55, 0xaa]);
        }
    }
}
