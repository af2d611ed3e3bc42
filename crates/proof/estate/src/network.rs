//! A network of the site's own, so that its addresses are no one else's and its hosts are on
//! another address than this machine's loopback, as the key server demands.

use std::net::IpAddr;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};

use crate::error::{EstateError, system};

/// Moves this thread, and the threads and processes that it starts, into a network namespace with
/// the loopback interface and this address alone. Needs root.
///
/// # Errors
/// [`EstateError`].
pub fn enter_own(address: IpAddr) -> Result<(), EstateError> {
    unshare(CloneFlags::CLONE_NEWNET)
        .map_err(|errno| system("make a network namespace, as root")(errno.into()))?;
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &address.to_string(), "dev", "lo"])
}

fn ip(arguments: &[&str]) -> Result<(), EstateError> {
    let done = Command::new("ip").args(arguments).output().map_err(system("run ip (Debian: iproute2)"))?;
    match done.status.success() {
        true => Ok(()),
        false => Err(EstateError::Program(format!(
            "ip {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        ))),
    }
}
