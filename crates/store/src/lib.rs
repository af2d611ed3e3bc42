//! The metadata store: compare-and-swap transactions, ranges, watches and leases.
#![forbid(unsafe_code)]
