//! The audit log: append-only, hash-chained, its heads signed.
#![forbid(unsafe_code)]
