//! The embedded key server: KMIP objects, its certificate authority, grants, backup, audit.
#![forbid(unsafe_code)]

pub mod access;
pub mod authority;
pub mod grant;
pub mod root;
