//! The data path: compares this project's worker with other disk servers in the same run.
//!
//! - [`workload`]: the load on all of them; the rows of the report.
//! - [`peers`]: the servers' command lines; [`disks`]: the disks that they serve.
//! - [`comparison`]: the subjects, the workloads and the baselines.
//! - [`subjects`]: servers and files, driven by the [runner](crate::study).
//! - `once`: timed one-off tasks.
//! - [`guest_load`]: guests that load a server over vhost-user; [`fio`]: the load of files and NBD
//!   servers.
//!
//! All disks in files have the same size, are on the same file system, and were fully written
//! before. All servers of plain blocks serve the same file, and so do all servers of LUKS. Every
//! server of a kind has the same client.

pub mod comparison;
pub mod disks;
pub mod fio;
pub mod guest_load;
mod once;
pub mod peers;
mod queue_load;
pub mod subjects;
pub mod workload;
