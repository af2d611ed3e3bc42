//! A server of the host's files, and clients of it.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::Duration;

use strongroom_datastore::file::storage::BY_PATH;
use strongroom_datastore::file::*;
use strongroom_io::IoError;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_remote::{RemoteStorage, Server};
use strongroom_ring::Ring;
use strongroom_wire::PacketSocket;

pub const MIB: u64 = 1 << 20;

pub fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

pub fn server() -> Server {
    Server::new(BY_PATH, ring)
}

/// A socket of the server's storage, served by a thread.
pub fn dial(server: &Server) -> OwnedFd {
    let (ours, theirs) = PacketSocket::pair().unwrap();
    let server = server.clone();
    thread::spawn(move || server.serve(ours.into_socket()).unwrap());
    theirs
}

pub fn client(server: &Server) -> RemoteStorage {
    let server = server.clone();
    RemoteStorage::new(move || Ok(dial(&server)))
}

pub fn kek() -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap()
}

pub fn to_open(protection: Protection<'_>, access: Access) -> OpenOptions<'_> {
    OpenOptions { protection, access, lock_wait: Duration::from_secs(10), least_generation: 0 }
}
