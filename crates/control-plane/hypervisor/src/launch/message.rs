//! The messages between supervisor and process: JSON packets, the first with files.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_wire::Received;

use super::{Isolation, Measure, Shortfall};
use crate::packet::{self, PACKET_BYTES_MAX};

/// The program that a process becomes, and the access that it keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub becomes: Become,
    pub arguments: Vec<String>,
    pub user: Option<(u32, u32)>,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    pub network: Network,
    pub root: Root,
    /// The host files that it sees, beside programs and libraries.
    pub visible: Vec<Visible>,
    pub must: Vec<Measure>,
    /// The number of files that come with the plan.
    pub files: usize,
}

impl Plan {
    /// The default plan: as confined as possible, with the user of `isolation`.
    pub fn of(isolation: &Isolation<'_>) -> Self {
        Self {
            becomes: Become::FrameFilter,
            arguments: Vec::new(),
            user: isolation.user,
            groups: Vec::new(),
            network: Network::Own,
            root: Root::Own,
            visible: Vec::new(),
            must: isolation.must.to_vec(),
            files: 0,
        }
    }
}

/// The program that a process becomes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Become {
    /// The program at this path.
    Program(PathBuf),
    /// The frame filter of a network card, a part of this program. Its files are the guest's side
    /// and the network's.
    FrameFilter,
    /// The monitor, which speaks QMP for the VM's supervisor, a part of this program. Its files are
    /// the supervisor's side and QEMU's.
    Monitor,
    /// The monitor of the guest agent, which converses with the guest for the VM's supervisor, a
    /// part of this program. Its files are the supervisor's side and the guest's channel.
    AgentMonitor,
    /// The gate between QEMU and swtpm, a part of this program. Its files are
    /// [`GateFiles`](super::GateFiles).
    TpmGate,
}

impl fmt::Display for Become {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(path) => path.display().fmt(f),
            Self::FrameFilter => f.write_str("the filter of frames"),
            Self::Monitor => f.write_str("the monitor of QEMU"),
            Self::AgentMonitor => f.write_str("the monitor of the guest agent"),
            Self::TpmGate => f.write_str("the gate of the TPM"),
        }
    }
}

/// The root directory of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Root {
    /// A root of its own, with only the visible files.
    Own,
    /// The host's root, for a program that builds a smaller one itself.
    Hosts,
}

/// The network of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Network {
    /// An empty network of its own.
    Own,
    /// The host's.
    Host,
}

/// A file or directory of the host that a program sees, if it exists.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visible {
    pub path: PathBuf,
    pub writable: bool,
    /// Whether it is a device, which must be mounted as such.
    pub device: bool,
}

impl Visible {
    /// A path that is visible read-only.
    pub fn read(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writable: false, device: false }
    }

    /// A writable path.
    pub fn write(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writable: true, device: false }
    }

    /// A device node.
    pub fn device(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writable: true, device: true }
    }
}

/// A process's report before it becomes the program.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Report {
    Confined { shortfalls: Vec<Shortfall> },
    Lacks { shortfall: Shortfall },
    Failed { step: String, reason: String },
}

/// Sends a packet.
pub(super) fn send<M: Serialize>(
    socket: impl AsFd,
    message: &M,
    files: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    packet::send(socket, &bytes, files)
}

/// Waits for a packet; `None` at the end of the connection.
pub(super) fn receive<M: DeserializeOwned>(socket: impl AsFd) -> Result<Option<(M, Vec<OwnedFd>)>, Errno> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let Some(Received { bytes: length, files }) = packet::receive(socket, &mut bytes)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes[..length]).map(|message| Some((message, files))).map_err(|_| Errno::PROTO)
}
