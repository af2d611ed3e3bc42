//! Prepares the networks of network cards before QEMU starts. QEMU itself has an empty network of
//! its own, and inherits open sockets and devices.
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

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::launch::{Isolation, LaunchError, Process};
use crate::machine::{Connection, InterfaceName, Network};

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

/// A network card's prepared connection.
pub(crate) struct Ready {
    pub state: NetworkState,
    /// The file that QEMU inherits. Without one, QEMU uses its own restricted network.
    pub file: Option<OwnedFd>,
    /// The processes behind the other side. They exit when QEMU does.
    pub processes: Vec<Process>,
}

/// Prepares a card's connection.
pub(crate) fn prepare(to: &Network, isolation: &Isolation<'_>) -> Result<Ready, NetworkError> {
    match to {
        Network::User => passt::prepare(isolation),
        Network::Tap { device } => tap::open(device),
        Network::Bridge { bridge, vlan } => tap::in_bridge(bridge, *vlan),
    }
}
