//! For development only: a seeded model of a file system and of the disk below it, on which a
//! datastore runs unchanged, so that power can be cut beneath it at every moment and everything can
//! go wrong.
//!
//! A [`SimFs`] is all that there is: files, directories, what of them is durable and what is not.
//! Its [`SimReactor`]s are threads' event loops, whose queues end operations in any order, sooner
//! or later. [`SimFs::cut`] makes the file system that a power cut would leave now, and
//! [`SimFs::cut_at`] the one of an earlier moment; [`SimFs::killed_at`] the one that a killed
//! process would have left then, of which nothing is lost and nothing has become durable.
//! Everything that is drawn at random is drawn from a seed, so a history that fails can be had
//! again.
//!
//! # What is modelled
//!
//! - **Data**: a write is, for a power cut, a set of 512-byte sectors, each of which persists by
//!   itself: a device promises atomicity for one logical block only (NVMe base specification,
//!   AWUPF; SCSI block commands, whose volatile cache keeps no order until SYNCHRONIZE CACHE). Of a
//!   sector that was written several times since it was last made durable, any version may be
//!   there, the durable one too.
//! - **fsync, fdatasync** cover what was done *and told of* before they were asked for, on
//!   whichever open file, and only of their own file (POSIX.1-2024, `fsync`; `fsync(2)`: "calling
//!   fsync() does not necessarily ensure that the entry in the directory containing the file has
//!   also reached disk"). What is under way meanwhile may become durable, and need not. `RWF_DSYNC`
//!   covers its own write with the length and space that it takes to read it back (`pwritev2(2)`).
//! - **A failed fsync** marks clean what it could not write: readers see it, no later fsync covers
//!   it, and a power cut may leave it or not (Rebello et al., "Can Applications Recover from fsync
//!   Failures?", USENIX ATC 2020: ext4, XFS).
//! - **Overlapping syncs** are syncs as any other, unless the file system is to have the habit of
//!   btrfs (Linux 6.18), which acknowledges some of those of one file before anything was flushed:
//!   then every one that begins beside another does nothing.
//!   (`crates/proof/sim/tests/file_systems/syncs.rs` counts them on the real one.)
//! - **Space**: a punch, zeroing or truncation is one or several transactions of the file system,
//!   each of which persists whole or not at all. Large ones take several: XFS ends a transaction
//!   for every extent that it unmaps (`xfs_free_file_space`), ext4 restarts its handle when the
//!   journal's credits run out (`ext4_ext_remove_space`). Here the boundaries between them fall on
//!   random blocks.
//! - **Names**: a creation, renaming or removal is one transaction. Until its directory has been
//!   synced, any subset of them may persist. ext4 and XFS keep them in order and are kinder; POSIX
//!   promises no more (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, has who
//!   keeps which order).
//! - **Length**: a write that makes a file longer is two changes, the data and the length, of which
//!   either may persist alone.
//! - **Locks** belong to the open file, and operations under way keep that open.
//! - **A kill** loses nothing that was done. What was under way ends before the locks are free:
//!   done, not done, or, of a write, its first blocks (`generic_perform_write` looks for a fatal
//!   signal between pages). All of it is visible and no more durable than before, so whoever
//!   acknowledges something that rests upon it has to make it durable first.
//!
//! # What is not
//!
//! Time (a device that hangs ends nothing, and that is all), hard and symbolic links, owners and
//! modes, allocation below a block of 4096 bytes, the space that metadata takes, and torn 512-byte
//! sectors, which no device that is still sold leaves behind unreported. A *first* write into a
//! hole is torn here as any other. On ext4 and XFS it is not: the extent becomes readable only
//! after its data is on the device. That is theirs, not promised by either, and untrue for a hole
//! that a copy has filled with zeroes.
//!
//! Nothing of a format enters here. `datastore` is the one file that knows who stands above: it is
//! the [`Storage`](strongroom_datastore::file::storage::Storage) of the `file` datastore.
#![forbid(unsafe_code)]

mod change;
mod content;
mod datastore;
mod faults;
mod file;
mod fs;
mod inode;
mod names;
mod reactor;
mod state;

pub use faults::Faults;
pub use file::{SimDirectory, SimFile};
pub use fs::{OpenHow, SimFs};
pub use reactor::SimReactor;
