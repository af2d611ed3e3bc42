//! Studies, load generators and reports: what shows that Strongroom does what it says, and how
//! fast.
//!
//! - [`vhost_user`]: a vhost-user-blk front end and driver of our own, and a load generator that
//!   verifies every sector. `strongroom-lab vhost-user-verify` runs it against any server.
//! - [`datapath`]: how fast a worker serves its disk, beside other servers.
//!   `strongroom-lab datapath` runs it.
//! - [`first_writes`]: how fast a disk is that has never been written, ours and QEMU's.
//!   `strongroom-lab first-writes` runs it.
//! - [`kmip_load`]: how often any KMIP server releases a key, and how fast.
//!   `strongroom-lab kmip-load` runs it.
//! - [`service`]: a server that runs; [`processes`]: what it takes of processor and memory;
//!   [`programs`]: what is told of one that fails.
//! - [`study`]: what is compared is measured in the same run: interleaved, kept as it goes, told
//!   with intervals and verdicts.
//! - [`prove`]: the same measures what is known beforehand, and must find it.
//!   `strongroom-lab prove` runs it.
//! - [`soak`]: volumes under verified load for an hour, whatever happens to who serves them.
//!   `strongroom-lab soak` runs it.
//! - [`latency`]: how long requests took.
//!
//! **Promise:** the lab knows the programs it studies only by their public interfaces, so that it
//! judges another's as it judges ours, and shares no mistake with what it judges.
//!
//! **May not enter:** anything that Strongroom itself needs to run.
#![forbid(unsafe_code)]

pub mod datapath;
pub mod first_writes;
pub mod kmip_load;
pub mod latency;
mod markdown;
pub mod processes;
pub mod programs;
pub mod prove;
mod qemu_img;
pub mod service;
pub mod soak;
pub mod study;
pub mod vhost_user;
