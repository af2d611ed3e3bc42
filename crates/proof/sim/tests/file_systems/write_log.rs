//! A device's requests, in order: the log of QEMU's `blklogwrites`.
//!
//! The format is dm-log-writes' (Linux, `Documentation/admin-guide/device-mapper/log-writes.rst`,
//! and `struct log_write_super` and `log_write_entry` of `drivers/md/dm-log-writes.c`),
//! little-endian: a first sector with magic, version, number of entries and sector size; then each
//! entry in a sector of its own, followed by its data.

use std::cell::Cell;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use thiserror::Error;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// The recorder's setting.
const LOG_SECTOR: u64 = 512;
const ENTRY_BYTES: usize = 32;
const COUNT_OFFSET: usize = 16;

/// More than any test writes; keeps a damaged count from exhausting memory.
const ENTRIES_MAX: u64 = 1 << 20;
/// The block layer splits requests far below it.
const WRITE_BYTES_MAX: u64 = 64 << 20;

/// Why a log cannot be read.
#[derive(Debug, Error)]
pub enum LogError {
    #[error("the log cannot be read: {0}")]
    Io(#[from] io::Error),
    #[error("the log ends at byte {end}, within what begins at byte {at}")]
    Truncated { at: u64, end: u64 },
    #[error("not a log of writes: magic {magic:#x}, version {version}, sectors of {sector_bytes} bytes")]
    Header { magic: u64, version: u64, sector_bytes: u32 },
    #[error("{0} entries are more than a test can have written")]
    TooMany(u64),
    #[error(
        "entry {entry} covers {sectors} sectors from {sector} on, which the device has not got, or not at once"
    )]
    Range { entry: u64, sector: u64, sectors: u64 },
    #[error("entry {entry} has flags {flags:#x}, which this test does not know")]
    Flags { entry: u64, flags: u64 },
}

/// The change of an entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Change {
    Nothing,
    Write { offset: u64, bytes: Vec<u8> },
    Discard { offset: u64, length: u64 },
}

/// One request to the device.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Everything before it is durable.
    pub flushes: bool,
    /// Its own change is durable.
    pub durable: bool,
    pub change: Change,
}

/// For people.
impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.change {
            Change::Nothing => write!(f, "nothing")?,
            Change::Write { offset, bytes } => write!(f, "{} bytes written at {offset}", bytes.len())?,
            Change::Discard { offset, length } => write!(f, "{length} bytes discarded at {offset}")?,
        }
        let (flushes, durable) = (self.flushes, self.durable);
        write!(f, "{}{}", if flushes { ", flush" } else { "" }, if durable { ", FUA" } else { "" })
    }
}

/// The number of entries of a log while it is being written: the device's moment.
///
/// QEMU writes an entry before it reports the request as done. With concurrent requests, the count
/// in the first sector may lag (on btrfs by up to 18), and an entry may be written before its
/// predecessor. So the entries are counted, and the greater count is used.
pub struct Clock {
    log: File,
    seen: Cell<(u64, usize)>,
}

impl Clock {
    pub fn of(log: &Path) -> io::Result<Self> {
        Ok(Self { log: File::open(log)?, seen: Cell::new((LOG_SECTOR, 0)) })
    }

    pub fn moment(&self) -> io::Result<usize> {
        let (mut at, mut count) = self.seen.get();
        let mut entry = [0; ENTRY_BYTES];
        loop {
            match self.log.read_exact_at(&mut entry, at) {
                // A log begins as a hole, and an entry changes something or flushes.
                Ok(()) if entry == [0; ENTRY_BYTES] => break,
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(error),
            }
            let (sectors, flags) = (word(&entry, 8), word(&entry, 16));
            let data_sectors = if flags & (DISCARD | MARK) == 0 { sectors } else { 0 };
            at = at.saturating_add(data_sectors.saturating_add(1).saturating_mul(LOG_SECTOR));
            count += 1;
        }
        self.seen.set((at, count));
        let mut first = [0; ENTRY_BYTES];
        match self.log.read_exact_at(&mut first, 0) {
            Ok(()) => Ok(count.max(word(&first, COUNT_OFFSET) as usize)),
            // The first flush has not happened yet.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(count),
            Err(error) => Err(error),
        }
    }
}

/// Reads the log of a device of this many bytes.
pub fn read_log(log: &File, device_bytes: u64) -> Result<Vec<Entry>, LogError> {
    let end = log.metadata()?.len();
    let header: [u8; ENTRY_BYTES] = read(log, 0, ENTRY_BYTES as u64, end)?.try_into().unwrap_or_default();
    let (magic, version, count) = (word(&header, 0), word(&header, 8), word(&header, COUNT_OFFSET));
    let sector_bytes = word(&header, 24) as u32;
    if magic != MAGIC || version != VERSION || !matches!(sector_bytes, 512 | 4096) {
        return Err(LogError::Header { magic, version, sector_bytes });
    }
    if count > ENTRIES_MAX {
        return Err(LogError::TooMany(count));
    }
    let sector_bytes = u64::from(sector_bytes);
    let mut at = sector_bytes;
    let mut entries = Vec::new();
    for entry in 0..count {
        let raw = read(log, at, ENTRY_BYTES as u64, end)?;
        let (sector, sectors, flags) = (word(&raw, 0), word(&raw, 8), word(&raw, 16));
        if flags & !(FLUSH | FUA | DISCARD | MARK) != 0 {
            return Err(LogError::Flags { entry, flags });
        }
        let bad = LogError::Range { entry, sector, sectors };
        let (offset, length) = match (sector.checked_mul(sector_bytes), sectors.checked_mul(sector_bytes)) {
            (Some(offset), Some(length)) => (offset, length),
            _ => return Err(bad),
        };
        if offset.checked_add(length).is_none_or(|end| end > device_bytes) {
            return Err(bad);
        }
        at += sector_bytes;
        let change = match flags {
            _ if length == 0 || flags & MARK != 0 => Change::Nothing,
            _ if flags & DISCARD != 0 => Change::Discard { offset, length },
            _ if length > WRITE_BYTES_MAX => return Err(bad),
            _ => {
                let bytes = read(log, at, length, end)?;
                at += length;
                Change::Write { offset, bytes }
            }
        };
        entries.push(Entry { flushes: flags & FLUSH != 0, durable: flags & FUA != 0, change });
    }
    Ok(entries)
}

fn read(log: &File, at: u64, length: u64, end: u64) -> Result<Vec<u8>, LogError> {
    if at.checked_add(length).is_none_or(|needed| needed > end) {
        return Err(LogError::Truncated { at, end });
    }
    let mut bytes = vec![0; length as usize];
    log.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn words(words: &[u64]) -> Vec<u8> {
        let mut sector: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        sector.resize(512, 0);
        sector
    }

    fn log(count: u64, rest: &[Vec<u8>]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&words(&[MAGIC, VERSION, count, 512])).unwrap();
        rest.iter().for_each(|part| file.write_all(part).unwrap());
        file
    }

    #[test]
    fn writes_flushes_and_discards_are_read() {
        let rest =
            [words(&[2, 1, FUA, 0]), vec![7; 512], words(&[0, 0, FLUSH, 0]), words(&[4, 4, DISCARD, 0])];
        let entries = read_log(&log(3, &rest), 4096).unwrap();
        let entry = |flushes, durable, change| Entry { flushes, durable, change };
        let expected = [
            entry(false, true, Change::Write { offset: 1024, bytes: vec![7; 512] }),
            entry(true, false, Change::Nothing),
            entry(false, false, Change::Discard { offset: 2048, length: 2048 }),
        ];
        assert_eq!(entries, expected);
    }

    #[test]
    fn what_is_no_log_is_refused_with_the_reason() {
        let refused = |log: File| read_log(&log, 4096).unwrap_err().to_string();
        assert!(refused(log(1, &[])).contains("ends at byte 512"));
        assert!(refused(log(1, &[words(&[0, 2, 0, 0]), vec![0; 512]])).contains("ends at"));
        assert!(refused(log(ENTRIES_MAX + 1, &[])).contains("more than"));
        assert!(refused(log(1, &[words(&[8, 1, 0, 0])])).contains("has not got"));
        assert!(refused(log(1, &[words(&[u64::MAX / 2, 1, 0, 0])])).contains("has not got"));
        assert!(refused(log(1, &[words(&[0, 0, 64, 0])])).contains("flags 0x40"));
        let mut other = tempfile::tempfile().unwrap();
        other.write_all(&[1; 512]).unwrap();
        assert!(refused(other).contains("not a log of writes"));
    }
}
