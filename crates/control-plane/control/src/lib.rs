//! The control plane: the inventory of actual and desired states, the tasks that bring them
//! together, and the REST interface.
//!
//! - [`records`]: the stored records, with their keys. [`inventory`]: the store and its index in
//!   memory.
//! - [`process`]: the whole process; [`run`] is its entry point. `server`: the REST interface.
//! - [`certificate`]: a certificate of the API from an authority of the site. [`backup`]: backups
//!   of the inventory.
//! - [`engine`]: requests, tasks, reports of hosts, alarms. [`host`], [`joining`], [`keys`]: the
//!   interfaces to hosts, to machines that join as such, and to keys. [`identity`], [`courier`]:
//!   those to identity providers, and to whom alarms are sent.
//!
//! It holds no key and sees no guest data: it knows keys by their names, and passes on tickets for
//! a guest's console. Its data is not secret, except its callers' tokens, of which it stores only
//! the SHA-256.
#![forbid(unsafe_code)]

pub mod backup;
pub mod bearer;
pub mod certificate;
pub mod client_key;
pub mod courier;
pub mod engine;
pub mod guest_relay;
pub mod host;
pub mod identity;
pub mod inventory;
pub mod joining;
pub mod keys;
pub mod passwords;
mod problems;
pub mod process;
pub mod records;
mod server;

pub use process::{ControlConfig, ControlError, ControlProcess, Restoration, RestorationError, run};
