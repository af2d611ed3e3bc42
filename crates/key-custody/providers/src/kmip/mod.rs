//! A cluster of KMIP servers that have the same keys, and the embedded key server, which is one of
//! one server.
//!
//! - `member`: what is known of one server.
//! - `cluster`: which server is asked, and when the next one is.
//! - `provider`: keys, by KMIP's operations.

mod cluster;
mod member;
mod provider;

pub use cluster::{Asked, Cluster, FAILOVER_LIMIT, HEALTH_PERIOD, HEDGE_AFTER};
pub use member::RECOVERY_PERIOD;
pub use provider::{KEY_GROUP, KmipProvider};
