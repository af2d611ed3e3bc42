//! The first-write log.
mod file;
mod format;

pub use file::LogError;
pub(super) use file::{bytes_for, check_length, create, damaged};
pub(super) use format::LOG_BYTES_STEP;
pub use format::{LOG_BYTES_MAX, LOG_BYTES_MIN};
