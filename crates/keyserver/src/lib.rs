//! The embedded key server: KMIP objects, its certificate authority, grants, backup, audit.
#![forbid(unsafe_code)]

pub mod access;
pub mod authority;
pub mod backup;
mod durable;
pub mod grant;
mod hex;
pub mod root;
