//! The control plane, first floor: what there is, what is wanted, who sees to it, and the REST
//! interface to all of it.
//!
//! - [`records`]: what is kept, key by key. [`inventory`]: the store and its index in memory.
//! - [`process`]: all of it put together; [`run`] is the entry. `server`: the REST interface.
//! - [`engine`]: wishes, tasks, what hosts say, alarms. [`host`], [`keys`]: the seams to hosts and
//!   to keys.
//!
//! It holds no key and sees no guest data: a key has a name here, and a guest's console is a ticket
//! that is handed through. What it knows is not secret, but for the tokens of its callers, of which
//! it keeps SHA-256 only.
#![forbid(unsafe_code)]

pub mod engine;
pub mod host;
pub mod inventory;
pub mod keys;
mod problems;
pub mod process;
pub mod records;
mod server;

pub use process::{ControlConfig, ControlError, ControlProcess, run};
