//! Volumes on a Ceph cluster.
//!
//! The datastore's code is that of the [`file`](mod@strongroom_datastore::file) datastore: it needs
//! directories with names, and files to lock, read and write. [`RbdStorage`] has them on a cluster:
//!
//! ```text
//! dir.<id>           a directory: an object whose map has an entry for each name, and a version
//! file.<id>          a small file, such as a descriptor: an object with its bytes
//! file.<id>          of a file that guests' blocks lie in: its lock and its count of names, and
//! strongroom.<id>    an image with its bytes, at the same offsets
//! ```
//!
//! An acknowledged change is durable and has been made whole: names change by compare-and-set of
//! the directory's version, and an image's 4096-byte block lies within one object, which the
//! cluster writes at once. So syncs have nothing to do but to wait, and no layer needs a
//! first-write log.
//!
//! **Fencing.** The lock of a killed process stays. Its successor on the same machine takes it only
//! after the cluster has been told to refuse the dead instance, for ten years, and has a new map:
//! no late write lands. A lock that an instance of another machine holds is refused, unless
//! [`RbdStorage::fence_host`] has fenced that machine's user, with all of its instances.
#![deny(unsafe_code)]

mod ceph;
mod conf;
mod file;
mod holder;
mod instances;
mod names;
pub mod process;
mod queue;
mod storage;

pub use ceph::{CephError, ClusterConf, ClusterOptions, GivenConf};
pub use conf::ConfError;
pub use storage::{RbdOptions, RbdStorage};
