//! The storage process: it has the cluster's key, and no key of a volume. Workers and their
//! supervisor use its files ([`strongroom_remote`]).
//!
//! ```text
//! supervisor                               storage process
//! Birth, then the user's key        ->     not dumpable, libraries loaded, confined
//!                                   <-     Ready, or Failed: it is connected, or cannot be
//! requests for directories          ->
//! ```
//!
//! All of it passes over one socket, its standard input. It ends when the supervisor has hung up
//! and nobody has a file of it open: a worker whose supervisor is gone still writes what it has to.
//!
//! A successor fences the instance of one that was killed before it writes ([`crate`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_confine::{SandboxError, confine_storage};
use strongroom_io::IdleReactor;
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes, SecretError};
use strongroom_remote::Server;
use strongroom_wire::{FormatError, Formats, PacketError, PacketSocket, encode};
use thiserror::Error;

use crate::ceph::{self, CephError, ClusterConf, ClusterOptions, GivenConf};
use crate::storage::{RbdOptions, RbdStorage};

/// Format 1 is the first.
const FORMATS: Formats = Formats { oldest: 1, newest: 1 };

/// The longest message.
const MESSAGE_BYTES_MAX: usize = 16 << 10;

/// What a storage process is told, beside the key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// The cephx user, such as `client.host1`.
    pub user: String,
    /// How the cluster is reached, some of [`PARAMETERS`](crate::PARAMETERS).
    pub parameters: BTreeMap<String, String>,
    /// The pool of names, locks and small files.
    pub pool: String,
    /// The pool of the blocks, if another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_pool: Option<String>,
    /// The namespace in the pools.
    pub namespace: String,
    /// The user and group that it gets, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_as: Option<(u32, u32)>,
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Ready,
    Failed { reason: String },
}

/// Why there is no storage process.
#[derive(Debug, Error)]
pub enum ProcessError {
    /// A person started it, not a supervisor.
    #[error("the process was not started by a supervisor")]
    NotBorn,
    /// It cannot be started.
    #[error("the storage process cannot be started: {0}")]
    Start(#[from] io::Error),
    /// The other process is gone, or does not keep to the protocol.
    #[error(transparent)]
    Packet(#[from] PacketError),
    /// A message cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// No memory for the key.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// It cannot be confined.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// It cannot use the cluster.
    #[error(transparent)]
    Ceph(#[from] CephError),
    /// The storage process cannot use the cluster.
    #[error("{0}")]
    Refused(String),
    /// The kernel's error.
    #[error("the storage process failed: {0}")]
    System(#[from] Errno),
}

fn send<M: Serialize>(socket: &PacketSocket, message: &M) -> Result<(), ProcessError> {
    Ok(socket.send(&encode(FORMATS.newest, message)?, &[])?)
}

fn receive<M: DeserializeOwned>(socket: &PacketSocket) -> Result<M, ProcessError> {
    let mut room = vec![0; MESSAGE_BYTES_MAX];
    let (bytes, _) = socket.receive(&mut room, 0)?;
    Ok(FORMATS.decode(bytes)?.1)
}

/// A storage process, from its supervisor's side.
#[derive(Debug)]
pub struct StorageProcess {
    child: Child,
}

impl StorageProcess {
    /// Starts a process with this command, which must call [`process_main`] with its standard
    /// input, and waits until it is connected. Returns it with the socket of its storage.
    ///
    /// # Errors
    /// If it cannot be started, or cannot use the cluster.
    pub fn start(
        command: &mut Command,
        birth: &Birth,
        key: &SecretBytes,
    ) -> Result<(Self, OwnedFd), ProcessError> {
        let (socket, theirs) = PacketSocket::pair()?;
        let child = command.stdin(theirs).stdout(Stdio::null()).spawn()?;
        // The command holds the other end.
        command.stdin(Stdio::null());
        let process = Self { child };
        send(&socket, birth)?;
        socket.send(key.expose(), &[])?;
        match receive(&socket)? {
            Report::Ready => Ok((process, socket.into_socket())),
            Report::Failed { reason } => Err(ProcessError::Refused(reason)),
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Kills it, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for StorageProcess {
    /// One that has ended is reaped; another one goes on until nobody uses it.
    fn drop(&mut self) {
        let _ = self.child.try_wait();
    }
}

/// Serves as the storage process of the supervisor at the other end of `socket`.
///
/// # Errors
/// [`ProcessError::NotBorn`] if a person started it. Any other error is also reported to the
/// supervisor.
pub fn process_main(socket: OwnedFd) -> Result<(), ProcessError> {
    let socket = PacketSocket::adopt(socket).ok_or(ProcessError::NotBorn)?;
    match begin(&socket) {
        Ok(storage) => {
            send(&socket, &Report::Ready)?;
            let server = Server::new(storage, || IdleReactor::new().map(Rc::new));
            server.serve(socket.into_socket())?;
            server.wait_until_unused();
            Ok(())
        }
        Err(error) => {
            // If the supervisor is gone, the report cannot be delivered.
            let _ = send(&socket, &Report::Failed { reason: error.to_string() });
            Err(error)
        }
    }
}

fn begin(socket: &PacketSocket) -> Result<RbdStorage, ProcessError> {
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let Birth { user, parameters, pool, data_pool, namespace, run_as } = receive(socket)?;
    let mut packet = SecretBytes::zeroed(SECRET_MAX_BYTES)?;
    let bytes = socket.receive_into(packet.expose_mut())?;
    let mut key = SecretBytes::zeroed(bytes)?;
    key.expose_mut().copy_from_slice(&packet.expose()[..bytes]);
    drop(packet);
    ceph::load()?;
    confine_storage(run_as)?;
    let conf = ClusterConf::Given(Arc::new(GivenConf { parameters, key }));
    let cluster = ClusterOptions { conf, user };
    Ok(RbdStorage::connect(&RbdOptions { cluster, pool, data_pool, namespace })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A supervisor of this release must understand a storage process of the next one, and the
    /// other way round.
    #[test]
    fn messages_of_format_1_are_read() {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        let theirs = PacketSocket::adopt(theirs).unwrap();
        let told = |text: &str| ours.send(text.as_bytes(), &[]).unwrap();
        told(
            r#"{"format":1,"message":{"user":"client.a","parameters":{"mon_host":"v2:127.0.0.1:3300"},"pool":"rep2","data_pool":"ec21","namespace":"n","run_as":[1,2]}}"#,
        );
        let birth: Birth = receive(&theirs).unwrap();
        assert_eq!((birth.user.as_str(), birth.run_as), ("client.a", Some((1, 2))));
        assert_eq!(birth.parameters["mon_host"], "v2:127.0.0.1:3300");
        told(r#"{"format":1,"message":"ready"}"#);
        assert_eq!(receive::<Report>(&theirs).unwrap(), Report::Ready);
        told(r#"{"format":1,"message":{"failed":{"reason":"no"}}}"#);
        assert_eq!(receive::<Report>(&theirs).unwrap(), Report::Failed { reason: "no".to_owned() });
        told(r#"{"format":2,"message":"ready"}"#);
        assert!(matches!(receive::<Report>(&theirs), Err(ProcessError::Format(FormatError::Unknown { .. }))));
    }
}
