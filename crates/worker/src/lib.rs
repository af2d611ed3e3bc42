//! Wires the stages of one VM's volumes, and makes the process that they run in fit for keys.
//!
//! - [`process`]: no dumps, no core files, ciphers that answer rightly; before the first key.
#![forbid(unsafe_code)]

pub mod process;

pub use process::ProcessError;
