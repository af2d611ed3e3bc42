//! The data path: this project's worker beside other servers of disks, in the same run.
//!
//! - [`workload`]: what is asked of all of them; the rows of the report.
//! - [`peers`]: the programs that serve, by their command lines; [`disks`]: the disks that they
//!   serve.
//! - [`comparison`]: who is compared, at what, and with whom.
//! - [`subjects`]: servers and files as the [runner](crate::study) drives them.
//! - `once`: what is done once, and timed.
//! - [`guest_load`]: guests that load a server over vhost-user; [`fio`]: the load of files and NBD
//!   servers.
//!
//! What is served from a file has the same size everywhere, lies on the same file system, and was
//! written all over before; all that serve plain blocks of a file serve the same one, and so do all
//! that open LUKS. Every server of a kind has the same client.

pub mod comparison;
pub mod disks;
pub mod fio;
pub mod guest_load;
mod once;
pub mod peers;
mod queue_load;
pub mod subjects;
pub mod workload;
