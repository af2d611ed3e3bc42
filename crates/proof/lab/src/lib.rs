//! Studies, load generators and reports, which verify Strongroom's claims and measure its speed.
//!
//! - [`vhost_user`]: a vhost-user-blk front end and driver of our own, and a load generator that
//!   verifies every sector. `strongroom-lab vhost-user-verify` runs it against any server.
//! - [`datapath`]: the speed of a worker, compared with other servers. `strongroom-lab datapath`
//!   runs it.
//! - [`ceph`]: volumes on a Ceph cluster, beside QEMU's driver. `strongroom-lab ceph` runs it.
//! - [`first_writes`]: the speed of first writes to our volumes and QEMU's images.
//!   `strongroom-lab first-writes` runs it.
//! - [`kmip_load`]: the rate and latency of Get on any KMIP server. `strongroom-lab kmip-load` runs
//!   it.
//! - [`service`]: a running server; [`processes`]: its processor time and memory; [`programs`]:
//!   running programs, and reports of their failures.
//! - [`study`]: comparisons within one run: interleaved, saved as they go, reported with intervals
//!   and verdicts.
//! - [`prove`]: measures known quantities with the same instrument, which must find them.
//!   `strongroom-lab prove` runs it.
//! - [`snapshots`]: what guests notice of snapshots, and what those cost.
//!   `strongroom-lab snapshots` runs it.
//! - [`soak`]: volumes under verified load for an hour, while their servers are disturbed.
//!   `strongroom-lab soak` runs it.
//! - [`latency`]: a histogram of latencies.
//! - [`migrate`]: live migration, beside QEMU's own ways. `strongroom-lab migrate` runs it.
//! - [`moves`]: moves of volumes, beside copies of the same file. `strongroom-lab moves` runs it.
//! - [`link`]: a slow link between two network namespaces, also for the tests of the whole system.
//!
//! **Promise:** the lab uses the programs it studies only through their public interfaces, so that
//! it treats other programs like ours, and shares no mistakes with them.
//!
//! **May not enter:** anything that Strongroom itself needs to run.
#![forbid(unsafe_code)]

pub mod ceph;
pub mod datapath;
pub mod first_writes;
pub mod kmip_load;
pub mod latency;
pub mod link;
mod markdown;
pub mod migrate;
pub mod moves;
pub mod processes;
pub mod programs;
pub mod prove;
mod qemu_img;
pub mod service;
pub mod snapshots;
pub mod soak;
pub mod study;
pub mod vhost_user;
