//! Opens the networks of network cards, before QEMU starts or for a card that is plugged in. QEMU
//! itself has an empty network of its own, and gets open sockets and devices.
//!
//! ```text
//! user     guest - QEMU - frame filter - passt - the host's network, as any program of the host's
//! tap      guest - QEMU - tap device
//! bridge   guest - QEMU - tap device - bridge, in one VLAN of it
//! ```

pub(crate) mod frame_filter;
pub(crate) mod own_addresses;
pub mod passt;
mod tap;

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::launch::{Isolation, LaunchError, Process};
use crate::machine::{Connection, InterfaceName, Network};

/// The interval after which the wait for a process's end is repeated.
const REAPED_WITHIN: Duration = Duration::from_secs(3600);

/// Why a network card cannot be connected.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// A tap device failed.
    #[error("cannot {action} the tap device {device}: {error}")]
    Tap {
        /// The action.
        action: &'static str,
        /// The device.
        device: String,
        /// The error.
        error: io::Error,
    },
    /// A bridge failed.
    #[error("cannot put {device} into {bridge}: {said}")]
    Bridge {
        /// The tap device.
        device: String,
        /// The bridge.
        bridge: String,
        /// The output of `ip` or `bridge`.
        said: String,
    },
    /// passt, or its frame filter, could not be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// A socket could not be made.
    #[error("cannot make the sockets of a network card: {0}")]
    Sockets(io::Error),
}

/// The network that a card is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkState {
    /// The host's network, through passt.
    Passt,
    /// Only QEMU's own DHCP server, for this reason.
    Restricted(String),
    /// This tap device.
    Tap(InterfaceName),
}

impl NetworkState {
    /// QEMU's connection to the network, with the number or name of its file.
    pub(crate) fn connection(&self, file: Option<String>) -> Connection {
        match (self, file) {
            (Self::Passt, Some(file)) => Connection::Stream(file),
            (Self::Tap(_), Some(file)) => Connection::Tap(file),
            _ => Connection::RestrictedUser,
        }
    }
}

/// An open network, for one card.
#[derive(Debug)]
pub struct OpenNetwork {
    state: NetworkState,
    /// Without a file, QEMU uses its own restricted network.
    file: Option<OwnedFd>,
    /// The processes behind the other side. They exit when the file is closed everywhere.
    processes: Vec<Process>,
}

impl OpenNetwork {
    /// Opens a network.
    ///
    /// # Errors
    /// If there is no such device or bridge, it is in use, or the caller lacks the rights.
    pub fn open(to: &Network, isolation: &Isolation<'_>) -> Result<Self, NetworkError> {
        match to {
            Network::User => passt::prepare(isolation),
            Network::Tap { device } => tap::open(device),
            Network::Bridge { bridge, vlan } => tap::in_bridge(bridge, *vlan),
        }
    }

    /// The network.
    pub fn state(&self) -> &NetworkState {
        &self.state
    }

    /// Splits it into the file, for QEMU, and its processes, for the caller to reap.
    pub fn into_parts(self) -> NetworkParts {
        NetworkParts { file: self.file, processes: NetworkProcesses(self.processes) }
    }
}

/// The parts of an open network.
#[derive(Debug)]
pub struct NetworkParts {
    /// The file that QEMU gets. The network ends when it is closed everywhere.
    pub file: Option<OwnedFd>,
    /// The processes behind the other side.
    pub processes: NetworkProcesses,
}

/// The processes of an open network, which are children of the process that opened it.
#[derive(Debug)]
pub struct NetworkProcesses(pub(crate) Vec<Process>);

impl NetworkProcesses {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until all have ended, and reaps them. Blocks for as long as the card is plugged in.
    pub fn reap(mut self) {
        for process in &mut self.0 {
            while !process.wait(REAPED_WITHIN) {}
            let _ = process.status();
        }
    }
}
