//! Load that verifies every sector, on any vhost-user-blk server.
//!
//! Each sector that is written carries its number, the write's and the run's ([`stamp`]). An
//! [`oracle`] knows what each sector may hold, whatever the order in which requests end; a [`plan`]
//! says what to ask next; [`Load`] keeps the queues full, and tells what is wrong with a sector by
//! name: a lost write, a stale read, torn, misdirected.

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
