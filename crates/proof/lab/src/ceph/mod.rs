//! Volumes on a Ceph cluster, beside QEMU's own driver of such images, plain and with LUKS.
//!
//! All images lie in one pool of one cluster, have the same size and were fully written before. All
//! servers have the same client, the lab's own front end. QEMU's driver has no cache, as ours: a
//! write that it answers is on the cluster.
//!
//! - [`peers`]: what is served, and its command lines.
//! - [`comparison`]: the subjects, workloads and baselines.

pub mod comparison;
pub mod peers;
