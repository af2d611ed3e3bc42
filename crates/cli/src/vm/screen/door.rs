//! The socket for viewers, and the check of their accounts.
//!
//! A viewer of a guest's screen can also type into it, so access to this machine is not sufficient.
//! On a unix socket the kernel reports who connects (`SO_PEERCRED`). On loopback its table of TCP
//! connections does (proc(5), `/proc/net/tcp`): the entry of the viewer's end has the account that
//! made that socket. An end that is already closed has no owner there, so its connection is
//! refused, whatever it sent.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::sockopt;
use strongroom_files::FileError;
use strongroom_frontend::listen::{Address, Listener};
use uuid::Uuid;

use crate::error::CliError;

/// The state in `/proc/net/tcp` of a connection that is established at both ends.
const ESTABLISHED: &str = "01";
/// The inode of a socket that no process has any more.
const NO_INODE: &str = "0";

/// The socket for viewers.
pub struct Door {
    /// Removed before its directory.
    listener: Listener,
    admitted: Vec<u32>,
    _directory: Option<OwnDirectory>,
}

/// An admitted viewer.
pub enum Viewer {
    /// On the unix socket.
    Unix(UnixStream),
    /// On loopback.
    Tcp(TcpStream),
}

/// A refused viewer.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Another account owns it.
    #[error("a viewer of account {} was refused; --viewer lets one more account in", account(*.0))]
    Account(u32),
    /// Its owner is unknown.
    #[error("a viewer was refused that had hung up before it was known whose it is")]
    Nobody,
    /// A system call failed.
    #[error("a viewer was hung up on: {0}")]
    System(#[from] io::Error),
}

/// Parses a loopback address and a port.
pub fn parse_loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr = text
        .parse()
        .map_err(|_| format!("'{text}' is no address and port; write it as 127.0.0.1:5901 or [::1]:5901"))?;
    if address.ip().is_loopback() {
        return Ok(address);
    }
    Err(format!(
        "{} is no loopback address: VNC is not encrypted, and no network is to carry a screen in the clear; listen on 127.0.0.1:{port}, and forward \
         it with `ssh -L {port}:127.0.0.1:{port}`",
        address.ip(),
        port = address.port()
    ))
}

/// Parses the name or number of an account.
pub fn parse_account(text: &str) -> Result<u32, String> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match nix::unistd::User::from_name(text) {
        Ok(Some(user)) => Ok(user.uid.as_raw()),
        Ok(None) => Err(format!("this machine has no account {text}")),
        Err(errno) => Err(format!("account {text} cannot be looked up: {errno}")),
    }
}

impl Door {
    /// Listens at one of these, or on a socket in a new directory if none is given.
    pub fn open(
        listen: Option<SocketAddr>,
        socket: Option<&Path>,
        viewer: Option<u32>,
    ) -> Result<Self, CliError> {
        let mut admitted = vec![rustix::process::geteuid().as_raw(), 0];
        admitted.extend(viewer);
        admitted.sort_unstable();
        admitted.dedup();
        let (address, directory) = match (listen, socket) {
            (Some(address), _) => (Address::Tcp(address), None),
            (None, Some(path)) => (Address::Unix(path.to_owned()), None),
            (None, None) => {
                let directory = OwnDirectory::create()?;
                (Address::Unix(directory.0.join("screen.sock")), Some(directory))
            }
        };
        Ok(Self { listener: Listener::bind(&address)?, admitted, _directory: directory })
    }

    /// The unix socket.
    pub fn socket(&self) -> Option<&Path> {
        match self.listener.address() {
            Address::Unix(path) => Some(path),
            Address::Tcp(_) => None,
        }
    }

    /// The address on loopback.
    pub fn address(&self) -> Option<SocketAddr> {
        match self.listener.address() {
            Address::Unix(_) => None,
            Address::Tcp(address) => Some(*address),
        }
    }

    /// The admitted accounts, for people.
    pub fn admitted(&self) -> String {
        let names: Vec<String> = self.admitted.iter().map(|uid| account(*uid).to_string()).collect();
        names.join(" and ")
    }

    /// The next viewer; `None` if there is none.
    pub fn next(&self) -> Result<Option<Viewer>, Refused> {
        let Some(socket) = self.listener.accept().map_err(io::Error::from)? else { return Ok(None) };
        rustix::io::ioctl_fionbio(&socket, false).map_err(io::Error::from)?;
        let (viewer, uid) = match self.listener.address() {
            Address::Unix(_) => of_unix(socket)?,
            Address::Tcp(_) => of_loopback(socket)?,
        };
        if self.admitted.contains(&uid) { Ok(Some(viewer)) } else { Err(Refused::Account(uid)) }
    }
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

fn of_unix(socket: OwnedFd) -> Result<(Viewer, u32), Refused> {
    let peer = sockopt::socket_peercred(&socket).map_err(io::Error::from)?;
    Ok((Viewer::Unix(UnixStream::from(socket)), peer.uid.as_raw()))
}

fn of_loopback(socket: OwnedFd) -> Result<(Viewer, u32), Refused> {
    let stream = TcpStream::from(socket);
    // Keys and pointer movements are small messages.
    stream.set_nodelay(true)?;
    let connection = Loopback { server: stream.local_addr()?, viewer: stream.peer_addr()? };
    let table = match connection.server.ip() {
        IpAddr::V4(_) => "/proc/self/net/tcp",
        IpAddr::V6(_) => "/proc/self/net/tcp6",
    };
    let uid = connection.viewers_account(&std::fs::read_to_string(table)?).ok_or(Refused::Nobody)?;
    Ok((Viewer::Tcp(stream), uid))
}

/// The two ends of a TCP connection on loopback.
#[derive(Clone, Copy, Debug)]
struct Loopback {
    server: SocketAddr,
    viewer: SocketAddr,
}

impl Loopback {
    /// The account that made the socket at the viewer's end, if a process still has the socket and
    /// it is connected.
    fn viewers_account(self, table: &str) -> Option<u32> {
        let (local, remote) = (as_in_table(self.viewer), as_in_table(self.server));
        let entry = table.lines().find_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            (fields.get(1..3)? == [local.as_str(), remote.as_str()]).then_some(fields)
        })?;
        let (state, uid, inode) = (entry.get(3)?, entry.get(7)?, entry.get(9)?);
        if *state == ESTABLISHED && *inode != NO_INODE { uid.parse().ok() } else { None }
    }
}

/// An address in the table's form: the words of the address as in memory, each as a number of this
/// machine.
fn as_in_table(address: SocketAddr) -> String {
    let octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let word = |word: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*word));
    let (words, _) = octets.as_chunks::<4>();
    let words: String = words.iter().map(word).collect();
    format!("{words}:{:04X}", address.port())
}

fn account(uid: u32) -> impl fmt::Display {
    match nix::unistd::User::from_uid(nix::unistd::Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        Ok(None) | Err(_) => uid.to_string(),
    }
}

/// A new directory that no other user can access, removed on drop.
struct OwnDirectory(PathBuf);

impl OwnDirectory {
    fn create() -> Result<Self, CliError> {
        let parent = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
        let parent = parent.unwrap_or_else(std::env::temp_dir);
        let name = Uuid::new_v4().simple().to_string();
        let path = parent.join(format!("strongroom-screen-{}", &name[..12]));
        // It must not exist: another account could have made it.
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| CliError::File(FileError { action: "create", path: path.clone(), error }))?;
        Ok(Self(path))
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn screens_are_on_loopback_alone() {
        assert_eq!(parse_loopback("127.0.0.1:5901").unwrap().port(), 5901);
        assert!(parse_loopback("[::1]:0").is_ok());
        let refused = parse_loopback("0.0.0.0:5901").unwrap_err();
        assert!(refused.contains("ssh -L 5901:127.0.0.1:5901"), "{refused}");
        assert!(parse_loopback("5901").is_err());
        assert_eq!(parse_account("root"), Ok(0));
        assert_eq!(parse_account("65534"), Ok(65534));
        assert!(parse_account("no such account").is_err());
    }

    #[test]
    fn the_kernels_table_is_read_as_it_is_written() {
        let connection = Loopback {
            server: "127.0.0.1:5901".parse().unwrap(),
            viewer: "127.0.0.1:40000".parse().unwrap(),
        };
        let entry = |state: &str, inode: &str| {
            let own = "   1: 0100007F:170D 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 77 1";
            format!(
                "  sl  local_address rem_address   st ...\n{own}\n   2: 0100007F:9C40 0100007F:170D {state} 00000000:00000000 00:00000000 \
                 00000000  1000        0 {inode} 1 0000000000000000 20 4 30 10 -1\n"
            )
        };
        assert_eq!(connection.viewers_account(&entry("01", "4711")), Some(1000));
        // A viewer that has hung up: no process has that end any more, and the kernel reports root
        // as its owner.
        assert_eq!(connection.viewers_account(&entry("04", "0")), None);
        assert_eq!(connection.viewers_account(&entry("01", "0")), None);
        assert_eq!(connection.viewers_account(""), None);
    }

    #[test]
    fn an_account_that_was_not_named_is_refused_and_so_is_who_hung_up() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(mut door) = Door::open(Some(address.parse().unwrap()), None, None) else { continue };
            let connect = || TcpStream::connect(door.address().unwrap()).unwrap();
            let viewer = connect();
            assert!(matches!(door.next(), Ok(Some(Viewer::Tcp(_)))));
            drop(viewer);
            // Data from before it hung up is not passed on.
            let mut gone = connect();
            gone.write_all(b"RFB 003.008\n").unwrap();
            drop(gone);
            assert!(matches!(door.next(), Err(Refused::Nobody)));
            let _viewer = connect();
            door.admitted = vec![u32::MAX - 7];
            assert!(matches!(door.next(), Err(Refused::Account(_))));
        }
    }

    #[test]
    fn a_socket_of_its_own_goes_with_its_directory() {
        let door = Door::open(None, None, None).unwrap();
        let path = door.socket().unwrap().to_owned();
        let _viewer = UnixStream::connect(&path).unwrap();
        assert!(matches!(door.next(), Ok(Some(Viewer::Unix(_)))));
        drop(door);
        assert!(!path.parent().unwrap().exists());
    }
}
