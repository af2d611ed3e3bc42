//! How often a key server releases a key, and how long one waits for it: any server that speaks
//! KMIP 1.2 or newer over mutual TLS.
//!
//! One key is created; then each connection asks for it again and again, either as fast as the
//! server answers or at a rate that is set. At a set rate a request's time counts from when it was
//! *due*, so that a server that stands still is not let off the requests that nobody could send
//! meanwhile.
//!
//! The messages are put together and looked through here, byte by byte: a server is not judged by
//! its own codec.

mod connection;
mod load;
mod message;

pub use connection::{Identity, LoadError};
pub use load::{LoadConfig, LoadResult, run};
