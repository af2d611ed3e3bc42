//! Notifies a service manager that the program is ready (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable with the service manager's socket; unset if there is none.
const SOCKET_VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends the state, if there is a service manager.
pub fn tell(state: &str) {
    let Some(socket) = std::env::var_os(SOCKET_VARIABLE) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!("the service manager at {} cannot be told: {error}", socket.to_string_lossy());
    }
}

/// The socket has a path or, if its name begins with @, is abstract.
fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_manager_is_told_by_path_and_by_name() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("notify");
        let name = format!("strongroom-test-{}", std::process::id());
        let heard = |listener: UnixDatagram| {
            let mut told = [0; 64];
            let length = listener.recv(&mut told).unwrap();
            String::from_utf8_lossy(&told[..length]).into_owned()
        };
        let listener = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(heard(listener), "READY=1");
        let listener = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(heard(listener), "STOPPING=1");
        assert!(send(OsStr::new("/nonexistent/notify"), "READY=1").is_err());
    }
}
