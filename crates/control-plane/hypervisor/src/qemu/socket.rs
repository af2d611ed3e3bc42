//! Connections to the sockets of a running QEMU. A captured QEMU may replace its sockets, or accept
//! no connection.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{QemuError, QemuIdentity};

/// How long QEMU's accept queue may be full: its main loop may be blocked by a disk's flush.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(10);

/// Connects to a socket of the QEMU with this identity.
///
/// # Errors
/// [`QemuError::Stranger`] if another process listens there. Also if no process does, or the queue
/// stays full.
pub fn connect_to(path: &Path, identity: QemuIdentity) -> Result<UnixStream, QemuError> {
    let socket = connect_within(path, ACCEPTS_WITHIN)
        .map_err(|error| QemuError::System { action: "connect to QEMU", error })?;
    expect_peer(&socket, path, identity)?;
    Ok(socket)
}

/// Connects within a timeout, which the standard library does not support.
///
/// # Errors
/// If no process listens, or the queue stays full.
pub fn connect_within(path: &Path, within: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(within))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

/// Checks that the listener is the process with this identity. The kernel reports the peer, which
/// cannot forge it.
pub(super) fn expect_peer(socket: &UnixStream, path: &Path, identity: QemuIdentity) -> Result<(), QemuError> {
    let peer = socket_peercred(socket)
        .map_err(|errno| QemuError::System { action: "ask who listens", error: errno.into() })?;
    let pid = peer.pid.as_raw_nonzero().get().cast_unsigned();
    if (pid, peer.uid.as_raw()) == (identity.pid, identity.uid) {
        Ok(())
    } else {
        Err(QemuError::Stranger { place: path.display().to_string() })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_queue_that_stays_full_is_not_waited_for_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let mut clients = Vec::new();
        let refused = loop {
            match connect_within(&path, Duration::from_millis(1)) {
                Ok(client) => clients.push(client),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn another_process_at_a_sockets_place_is_a_stranger() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console.sock");
        let _listener = UnixListener::bind(&path).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let us = QemuIdentity { pid: std::process::id(), start_time_ticks: 0, uid };
        assert!(connect_to(&path, us).is_ok());
        for other in [QemuIdentity { pid: us.pid + 1, ..us }, QemuIdentity { uid: uid + 1, ..us }] {
            assert!(matches!(connect_to(&path, other), Err(QemuError::Stranger { .. })));
        }
    }
}
