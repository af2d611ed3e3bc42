//! A cluster of KMIP servers that have the same keys; the embedded key server is a cluster of one.
//!
//! - `member`: one server and its health.
//! - `cluster`: the choice of a server, and failover.
//! - `provider`: keys, through KMIP operations.

mod cluster;
mod member;
mod provider;

pub use cluster::{Asked, Cluster, FAILOVER_LIMIT, HEALTH_PERIOD, HEDGE_AFTER};
pub use member::RECOVERY_PERIOD;
pub use provider::{KEY_GROUP, KmipProvider};
