//! Limits of records, of the queue and of files.

use std::time::Duration;

/// Longest text of a record, in bytes: a KMIP object's id, a certificate's subject or a reason fit.
pub const TEXT_MAX_BYTES: usize = 1024;

/// Most objects of one record: as many as one KMIP Locate or batch may name.
pub const OBJECTS_MAX: usize = 1024;

/// Most free fields of one record.
pub const FIELDS_MAX: usize = 32;

/// Longest line, in bytes with its end. A longer record is refused; `verify` and the reader refuse
/// longer lines.
pub const LINE_MAX_BYTES: usize = 256 * 1024;

/// Most records that wait; further ones are refused and may be tried again.
pub const QUEUE_MAX_RECORDS: usize = 16 * 1024;

/// Most bytes of records that wait.
pub const QUEUE_MAX_BYTES: usize = 32 * 1024 * 1024;

/// Bytes after which a file is followed by the next, unless the options say otherwise.
pub const FILE_BYTES: u64 = 64 * 1024 * 1024;

/// Largest file size that the options may set: opening the log reads a whole file.
pub const FILE_MAX_BYTES: u64 = 1024 * 1024 * 1024;

/// Records after which a head is signed, unless the options say otherwise.
pub const HEAD_RECORDS: u64 = 4096;

/// Time after which a head is signed if there are records without one, unless the options say
/// otherwise.
pub const HEAD_INTERVAL: Duration = Duration::from_secs(60);

/// Bytes of zeroes that are written ahead of the lines. A group that overwrites them changes no
/// length and takes no space, so its sync is a flush of the device and not a commit of the file
/// system's journal, which waits for other processes' writes.
pub(crate) const AHEAD_BYTES: u64 = 4 * 1024 * 1024;

/// Longest time that a record waits for others to share its sync, when others are expected. A sync
/// takes a tenth of that on a good disk, and a few of it on most.
pub(crate) const GATHER_TIME: Duration = Duration::from_millis(1);

/// Most records of one group, which share a write and a sync.
pub(crate) const GROUP_MAX_RECORDS: usize = 1024;

/// A group is closed by the record that reaches this many bytes.
pub(crate) const GROUP_MAX_BYTES: usize = 1024 * 1024;
