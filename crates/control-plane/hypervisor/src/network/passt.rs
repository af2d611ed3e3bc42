//! The user network: passt behind a frame filter.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::{NetworkError, NetworkState, OpenNetwork, own_addresses};
use crate::launch::{Become, Files, Isolation, LaunchError, Network, Plan, Process, Root, Visible, launch};

/// The path of passt; no search path is used.
const PASST: &str = "/usr/bin/passt";
/// passt reports a bad option within this time.
const FAILS_WITHIN: Duration = Duration::from_millis(100);

/// The path of passt; `None` if it is not installed. The user network is then restricted to QEMU.
pub fn find() -> Option<&'static Path> {
    Some(Path::new(PASST)).filter(|path| path.exists())
}

/// Prepares a network through passt, or the restricted one with the reason.
pub(super) fn prepare(isolation: &Isolation<'_>) -> Result<OpenNetwork, NetworkError> {
    if find().is_none() {
        return Ok(restricted("passt is not installed (Debian: passt)".to_owned()));
    }
    let (qemus, filters) = stream_pair()?;
    let (filters_other, passts) = stream_pair()?;
    let passt = match start_passt(isolation, passts) {
        Ok(passt) if passt.wait(FAILS_WITHIN) => return Ok(restricted(passt.said())),
        Ok(passt) => passt,
        Err(LaunchError::Lacks { .. }) if isolation.must.is_empty() => {
            return Ok(restricted("passt cannot be started".to_owned()));
        }
        Err(error) => return Err(error.into()),
    };
    let filter = start_filter(isolation, filters, filters_other)?;
    Ok(OpenNetwork { state: NetworkState::Passt, file: Some(qemus), processes: vec![passt, filter] })
}

fn restricted(reason: String) -> OpenNetwork {
    tracing::warn!("a network card reaches nothing: {reason}");
    OpenNetwork { state: NetworkState::Restricted(reason), file: None, processes: Vec::new() }
}

fn stream_pair() -> Result<(OwnedFd, OwnedFd), NetworkError> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| NetworkError::Sockets(errno.into()))
}

/// Starts passt. It forwards no port of the host to the guest, and does not map the gateway's
/// address to the host's loopback.
fn start_passt(isolation: &Isolation<'_>, socket: OwnedFd) -> Result<Process, LaunchError> {
    let user = isolation.user_beside()?;
    let isolation = &user.isolation(isolation);
    let mut files = Files::default();
    let socket = files.add(socket).to_string();
    let arguments =
        ["--foreground", "--quiet", "--no-map-gw", "--tcp-ports", "none", "--udp-ports", "none", "--fd"];
    let plan = Plan {
        becomes: Become::Program(PASST.into()),
        arguments: arguments.into_iter().map(str::to_owned).chain([socket]).collect(),
        network: Network::Host,
        // passt enters an empty root itself, after it has read this file.
        root: Root::Hosts,
        visible: vec![Visible::read("/etc/resolv.conf")],
        ..Plan::of(isolation)
    };
    launch(isolation, &plan, &files)
}

fn start_filter(
    isolation: &Isolation<'_>,
    guest: OwnedFd,
    network: OwnedFd,
) -> Result<Process, NetworkError> {
    let user = isolation.user_beside()?;
    let isolation = &user.isolation(isolation);
    let mut files = Files::default();
    files.add(guest);
    files.add(network);
    // This socket belongs to passt's network; the filter has a network of its own.
    files.add(own_addresses::open().map_err(NetworkError::Sockets)?);
    Ok(launch(isolation, &Plan { becomes: Become::FrameFilter, ..Plan::of(isolation) }, &files)?)
}
