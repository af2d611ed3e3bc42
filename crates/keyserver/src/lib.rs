//! The embedded key server: KMIP objects, its certificate authority, grants, backup, audit.
#![forbid(unsafe_code)]

pub mod access;
pub mod authority;
pub mod backup;
mod batch;
pub mod broker;
pub mod caller;
pub mod grant;
pub mod granting;
#[cfg(test)]
mod killed;
pub mod management;
pub mod objects;
pub mod observer;
pub mod operations;
pub mod process;
pub mod recovery;
pub mod root;
pub mod server;
pub mod service;
pub mod settings;
