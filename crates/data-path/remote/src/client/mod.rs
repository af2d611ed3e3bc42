//! The client's side.

mod connection;
mod file;
mod lane;
mod storage;

pub use self::file::{OnEnd, RemoteFile, adopt, adopt_with};
pub use self::storage::RemoteStorage;
