//! Measures how many keys a key server releases, and with what latency: any server that speaks KMIP
//! 1.2 or newer over mutual TLS.
//!
//! It creates one key; then each connection gets it repeatedly, either as fast as the server
//! answers or at a set rate. At a set rate a request's time counts from when it was *due*, so that
//! a stalled server is charged for the requests that could not be sent meanwhile.
//!
//! This module builds and parses the messages itself, so that our server is not judged by its own
//! codec.

mod connection;
mod load;
mod message;

pub use connection::{Identity, LoadError};
pub use load::{LoadConfig, LoadResult, run};
