//! For development only: a seeded model of a file system and its disk, on which a datastore runs
//! unchanged, so that tests can cut power at every moment and inject faults.
//!
//! A [`SimFs`] is the whole state: files, directories, and their durability. Its [`SimReactor`]s
//! are threads' event loops, whose queues complete operations in any order, sooner or later.
//! [`SimFs::cut`] returns the file system after a power cut now, and [`SimFs::cut_at`] after one at
//! an earlier moment. [`SimFs::killed_at`] returns the one that a killed process would have left
//! then, in which nothing is lost and nothing has become durable. All randomness comes from a seed,
//! so a failing history can be repeated.
//!
//! # What is modelled
//!
//! - **Data**: for a power cut, a write is a set of 512-byte sectors, each of which persists
//!   independently: a device promises atomicity for one logical block only (NVMe base
//!   specification, AWUPF; SCSI block commands, whose volatile cache keeps no order until
//!   SYNCHRONIZE CACHE). For a sector that was written several times since it was last made
//!   durable, any version may survive, including the durable one.
//! - **fsync, fdatasync** cover changes completed *and reported* before they were requested,
//!   through any handle, but only of their own file (POSIX.1-2024, `fsync`; `fsync(2)`: "calling
//!   fsync() does not necessarily ensure that the entry in the directory containing the file has
//!   also reached disk"). Changes in flight meanwhile may or may not become durable. `RWF_DSYNC`
//!   covers its own write with the length and space needed to read it back (`pwritev2(2)`).
//! - **A failed fsync** marks clean the data it could not write: readers see it, no later fsync
//!   covers it, and a power cut may keep it or not (Rebello et al., "Can Applications Recover from
//!   fsync Failures?", USENIX ATC 2020: ext4, XFS).
//! - **Overlapping syncs** are ordinary syncs, unless the model imitates btrfs (Linux 6.18), which
//!   acknowledges some overlapping syncs of one file before any flush: then every sync that begins
//!   during another has no effect. (`crates/proof/sim/tests/file_systems/syncs.rs` counts them on
//!   the real file system.)
//! - **Space**: a punch, zeroing or truncation is one or several transactions of the file system,
//!   each of which persists whole or not at all. Large ones take several: XFS ends a transaction
//!   for every extent that it unmaps (`xfs_free_file_space`), ext4 restarts its handle when the
//!   journal's credits run out (`ext4_ext_remove_space`). Here the boundaries between them fall on
//!   random blocks.
//! - **Names**: a creation, renaming or removal is one transaction. Until its directory has been
//!   synced, any subset of them may persist. ext4 and XFS keep them in order, which POSIX does not
//!   promise (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014, lists the orders
//!   of file systems).
//! - **Length**: a write that makes a file longer is two changes, the data and the length, of which
//!   either may persist alone.
//! - **Locks** belong to the open file, and operations in flight keep that open.
//! - **A kill** loses no completed changes. Operations in flight end before the locks are free:
//!   done, not done or, for a write, with only its first blocks (`generic_perform_write` checks for
//!   a fatal signal between pages). The changes are visible but no more durable than before, so a
//!   process must make them durable before it acknowledges anything that depends on them.
//!
//! # What is not
//!
//! Time (a hanging device only completes nothing), hard and symbolic links, owners and modes,
//! allocation below a block of 4096 bytes, the space of metadata, and torn 512-byte sectors, which
//! no current device leaves unreported. In the model a *first* write into a hole can be torn like
//! any other. On ext4 and XFS it cannot: the extent becomes readable only after its data is on the
//! device. That is their implementation, promised by neither, and does not hold for a hole that a
//! copy has filled with zeroes.
//!
//! The model knows no formats. `datastore` is the only file that knows its user: it is the
//! [`Storage`](strongroom_datastore::file::storage::Storage) of the `file` datastore.
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
