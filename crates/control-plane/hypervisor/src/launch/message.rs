//! What supervisor and process say to each other: packets of JSON, the first with files.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_wire::Received;

use super::{Isolation, Measure, Shortfall};
use crate::packet::{self, PACKET_BYTES_MAX};

/// What a process is to become, and what it keeps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub becomes: Become,
    pub arguments: Vec<String>,
    pub user: Option<(u32, u32)>,
    /// Groups beside the user's own.
    pub groups: Vec<u32>,
    pub network: Network,
    pub root: Root,
    /// What it sees of the host's files, beside programs and libraries.
    pub visible: Vec<Visible>,
    pub must: Vec<Measure>,
    /// How many files come with the plan.
    pub files: usize,
}

impl Plan {
    /// To become nothing yet: confined as much as can be, and as whom `isolation` says.
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

/// What a process becomes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Become {
    /// The program in this file.
    Program(PathBuf),
    /// The filter of a network card's frames, which is a part of our own program. Its files are the
    /// guest's side and the network's.
    FrameFilter,
    /// What speaks QMP for the VM's supervisor, which is a part of our own program. Its files are
    /// the supervisor's side and QEMU's.
    Monitor,
}

impl fmt::Display for Become {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Program(path) => path.display().fmt(f),
            Self::FrameFilter => f.write_str("the filter of frames"),
            Self::Monitor => f.write_str("the monitor of QEMU"),
        }
    }
}

/// Which root directory a program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Root {
    /// One of its own, with what is visible.
    Own,
    /// The host's, for a program that makes a smaller one for itself.
    Hosts,
}

/// Which network a program is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Network {
    /// One of its own, with nothing in it.
    Own,
    /// The host's.
    Host,
}

/// A file or directory of the host that a program sees, where the host has it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Visible {
    pub path: PathBuf,
    pub writable: bool,
    /// Whether it is a device, which would do nothing otherwise.
    pub device: bool,
}

impl Visible {
    /// To be read.
    pub fn read(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writable: false, device: false }
    }

    /// To be written to.
    pub fn write(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writable: true, device: false }
    }

    /// A device.
    pub fn device(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), writable: true, device: true }
    }
}

/// What a process says before it is another one.
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

/// Waits for a packet; `None` at the end.
pub(super) fn receive<M: DeserializeOwned>(socket: impl AsFd) -> Result<Option<(M, Vec<OwnedFd>)>, Errno> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let Some(Received { bytes: length, files }) = packet::receive(socket, &mut bytes)? else {
        return Ok(None);
    };
    serde_json::from_slice(&bytes[..length]).map(|message| Some((message, files))).map_err(|_| Errno::PROTO)
}
