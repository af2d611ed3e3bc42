//! Load that verifies every sector, on any vhost-user-blk server.
//!
//! Each written sector contains its own number, the write's and the run's ([`stamp`]). An
//! [`oracle`] knows the possible contents of each sector, for any order of completion; a [`plan`]
//! chooses the next request; [`Load`] keeps the queues full, and names each error: a lost write, a
//! stale read, a torn or misdirected sector.

mod config;
mod error;
mod load;
pub mod oracle;
pub mod plan;
pub mod report;
pub mod stamp;

pub use config::{LoadConfig, Reconnected, Until};
pub use error::LoadError;
pub use load::Load;
pub use oracle::{Finding, Wrong};
pub use report::Report;
