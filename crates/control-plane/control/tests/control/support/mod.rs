//! The environment of the control plane's tests: a host and key providers in memory, a store that
//! forgets nothing, and a fuse that kills the control plane between any two external actions.

pub mod backups;
pub mod browser;
pub mod client;
pub mod courier;
pub mod fuse;
pub mod identity;
pub mod joining;
pub mod live;
pub mod passwords;
pub mod relay;
pub mod server;
pub mod site;
pub mod told;

pub use site::{REFUSED, Site, caller, copy, create, killed_after, killed_at_each, settle_down, with_vms};
