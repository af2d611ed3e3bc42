//! A large site without guests: one control plane, and simulated hosts in one process.
//!
//! - [`host`]: a host behind hostd's own server, with its terms, queue and changes; its VMs are
//!   states alone. [`join`]: how it gets its certificate, as any machine does. [`machines`]: many
//!   of them.
//! - [`site`]: a `strongroom serve`; [`api`]: a client of its control plane; [`network`]: a network
//!   of their own.
//! - [`load`]: power, creation, reconfiguration and snapshots, and whether what was acknowledged is
//!   there afterwards. [`measure`]: what all that costs.
//!
//! `strongroom-estate` measures; `scripts/measure-estate` runs it, and `docs/LAB.md` has the
//! method.
//!
//! **May not enter:** anything that Strongroom itself needs to run.
#![forbid(unsafe_code)]

pub mod api;
pub mod error;
pub mod host;
pub mod join;
pub mod load;
pub mod machines;
pub mod measure;
pub mod network;
pub mod site;
mod vm;
