//! What network cards are connected to, made ready before QEMU: QEMU itself is in a network of its
//! own with nothing in it, and has open sockets and devices instead.
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
use crate::machine::{InterfaceName, Network};

/// Why a network card cannot be connected.
#[derive(Debug, Error)]
pub enum NetworkError {
    /// A tap device.
    #[error("cannot {action} the tap device {device}: {error}")]
    Tap {
        /// What was tried.
        action: &'static str,
        /// Which.
        device: String,
        /// Why it failed.
        error: io::Error,
    },
    /// A bridge.
    #[error("cannot put {device} into {bridge}: {said}")]
    Bridge {
        /// The tap device.
        device: String,
        /// The bridge.
        bridge: String,
        /// What `ip` or `bridge` said.
        said: String,
    },
    /// passt, or the filter before it.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The kernel's word.
    #[error("cannot make the sockets of a network card: {0}")]
    Sockets(io::Error),
}

/// What a network card came to be connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkState {
    /// The host's network, through passt.
    Passt,
    /// Nothing but QEMU's own DHCP server, for the reason given.
    Restricted(String),
    /// This tap device.
    Tap(InterfaceName),
}

/// A network card's connection, ready to be given to QEMU.
pub(crate) struct Ready {
    pub state: NetworkState,
    /// What QEMU gets open; without it, its own restricted network.
    pub file: Option<OwnedFd>,
    /// What serves the other side. It ends by itself when QEMU does.
    pub processes: Vec<Process>,
}

/// Makes a card's connection ready.
pub(crate) fn prepare(to: &Network, isolation: &Isolation<'_>) -> Result<Ready, NetworkError> {
    match to {
        Network::User => passt::prepare(isolation),
        Network::Tap { device } => tap::open(device),
        Network::Bridge { bridge, vlan } => tap::in_bridge(bridge, *vlan),
    }
}
