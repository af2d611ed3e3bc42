//! Where a server listens.

use std::ffi::OsStr;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 64;
/// The mode of a socket that a group may connect to, which requires write permission.
const MODE_FOR_GROUP: u32 = 0o660;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A unix socket, created with mode 0600, or 0660 for a group, in a directory that only trusted
    /// users can write. A dead server's socket is replaced.
    Unix(PathBuf),
    /// TCP. Port 0 is any free one.
    Tcp(SocketAddr),
}

impl Address {
    fn of(address: SocketAddrAny) -> Option<Self> {
        if let Ok(address) = SocketAddr::try_from(address.clone()) {
            return Some(Self::Tcp(address));
        }
        let address = SocketAddrUnix::try_from(address).ok()?;
        Some(Self::Unix(OsStr::from_bytes(address.path_bytes()?).into()))
    }
}

/// The reasons why a server cannot listen.
#[derive(Debug, Error)]
pub enum ListenError {
    /// Another server already listens there.
    #[error("a server already listens on {0}")]
    InUse(PathBuf),
    /// A file that is no socket, which is not removed.
    #[error("{0} exists and is no socket; it is left alone")]
    NotASocket(PathBuf),
    /// A path that is longer than a socket's address (108 bytes with the final zero).
    #[error("the socket's path {0} is too long; the kernel takes 107 bytes")]
    PathTooLong(PathBuf),
    /// Any other error of a unix socket.
    #[error("cannot listen on {path}: {errno}")]
    Unix {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        errno: Errno,
    },
    /// The socket cannot be given to the group.
    #[error(
        "{path} cannot be given to group {group}: {errno}; only root can give it to a group that it is not in itself"
    )]
    Group {
        /// The socket.
        path: PathBuf,
        /// The group's id.
        group: u32,
        /// What the kernel said.
        errno: Errno,
    },
    /// An inherited descriptor that is no listening socket of a supported kind.
    #[error("the inherited descriptor is no listening unix or TCP socket")]
    NotListening,
    /// Any other error of an inherited descriptor.
    #[error("the inherited socket cannot be used: {0}")]
    Inherited(#[source] Errno),
    /// Any other error of TCP.
    #[error("cannot listen on {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// The file of a listening unix socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn at(path: &Path) -> Result<Self, Errno> {
        let stat = rustix::fs::lstat(path)?;
        Ok(Self { path: path.to_owned(), device: stat.st_dev, inode: stat.st_ino })
    }

    /// Removes it. A file that another server has put in its place stays.
    pub fn remove(&self) {
        // A failure here leaves a dead socket, which the next server replaces.
        let Ok(_directory) = lock_directory(&self.path) else {
            return;
        };
        if Self::at(&self.path).is_ok_and(|found| found == *self) {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// The process that removes a socket's file.
enum Removal {
    ThisProcess(SocketFile),
    /// Another process, which the callback asks.
    Another(Box<dyn Fn() + Send + Sync>),
}

impl fmt::Debug for Removal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ThisProcess(file) => write!(f, "{file:?}"),
            Self::Another(_) => f.write_str("by another process"),
        }
    }
}

/// A listening socket.
///
/// A unix socket's file is removed when the listener that made it is dropped. Only the process that
/// has [bound](Self::bind) the socket removes the file, not those that [adopt](Self::adopt) it.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    address: Address,
    removal: Option<Removal>,
}

impl Listener {
    /// Starts to listen.
    pub fn bind(address: &Address) -> Result<Self, ListenError> {
        Self::bind_for(address, None)
    }

    /// As [`Self::bind`]. A unix socket's file belongs to this group, whose members may connect
    /// too.
    pub fn bind_for(address: &Address, group: Option<Gid>) -> Result<Self, ListenError> {
        match address {
            Address::Unix(path) => Self::bind_unix(path, group),
            Address::Tcp(address) => {
                Self::bind_tcp(*address).map_err(|source| ListenError::Tcp { address: *address, source })
            }
        }
    }

    /// Takes over a listening socket, which other processes may share. It is set not to block, for
    /// all of them.
    pub fn adopt(socket: OwnedFd) -> Result<Self, ListenError> {
        if !sockopt::socket_acceptconn(&socket).map_err(ListenError::Inherited)? {
            return Err(ListenError::NotListening);
        }
        rustix::io::ioctl_fionbio(&socket, true).map_err(ListenError::Inherited)?;
        let address = rustix::net::getsockname(&socket).map_err(ListenError::Inherited)?;
        let address = Address::of(address).ok_or(ListenError::NotListening)?;
        Ok(Self { socket, address, removal: None })
    }

    /// The file of the unix socket that was bound here.
    pub fn file(&self) -> Option<&SocketFile> {
        match &self.removal {
            Some(Removal::ThisProcess(file)) => Some(file),
            _ => None,
        }
    }

    /// Leaves the removal of [its file](Self::file) to another process: dropping the listener calls
    /// `remove`.
    pub fn remove_by(&mut self, remove: impl Fn() + Send + Sync + 'static) {
        if self.removal.is_some() {
            self.removal = Some(Removal::Another(Box::new(remove)));
        }
    }

    /// Where it listens, with the actual port if any port was allowed.
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn bind_tcp(address: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = Address::Tcp(listener.local_addr()?);
        Ok(Self { socket: listener.into(), address, removal: None })
    }

    fn bind_unix(path: &Path, group: Option<Gid>) -> Result<Self, ListenError> {
        let address = SocketAddrUnix::new(path).map_err(|_| ListenError::PathTooLong(path.to_owned()))?;
        let failed = |errno| ListenError::Unix { path: path.to_owned(), errno };
        // Held from the check for an existing socket until we listen: if two servers find a dead
        // one's socket, the second must not remove the first's.
        let _directory = lock_directory(path).map_err(failed)?;
        match rustix::fs::lstat(path) {
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(failed(errno)),
            Ok(stat) if FileType::from_raw_mode(stat.st_mode) != FileType::Socket => {
                return Err(ListenError::NotASocket(path.to_owned()));
            }
            Ok(_) => match rustix::net::connect(new_socket().map_err(failed)?, &address) {
                Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(failed)?,
                // A full queue belongs to a live server.
                Ok(()) | Err(Errno::AGAIN) => return Err(ListenError::InUse(path.to_owned())),
                Err(errno) => return Err(failed(errno)),
            },
        }
        let socket = new_socket().map_err(failed)?;
        // On Linux the file gets the socket's own mode, less the umask, from the moment that it
        // exists.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        rustix::net::bind(&socket, &address).map_err(failed)?;
        if let Some(group) = group {
            // Set the group first: otherwise the mode would apply to its present group.
            let chowned = rustix::fs::chownat(CWD, path, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
            let opened = chowned.and_then(|()| rustix::fs::chmod(path, Mode::from_raw_mode(MODE_FOR_GROUP)));
            if let Err(errno) = opened {
                let _ = rustix::fs::unlink(path);
                return Err(ListenError::Group { path: path.to_owned(), group: group.as_raw(), errno });
            }
        }
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        let removal = Some(Removal::ThisProcess(SocketFile::at(path).map_err(failed)?));
        Ok(Self { socket, address: Address::Unix(path.to_owned()), removal })
    }

    /// The next connection, set not to block; `None` if there is none.
    pub fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match rustix::net::accept_with(&self.socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
            Ok(socket) => Ok(Some(socket)),
            // No connection, or one that is already gone.
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Refuses connections from now on, even if other processes share this socket. It never listens
    /// again.
    pub fn refuse(&self) {
        // It listens, so this cannot fail.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        match &self.removal {
            Some(Removal::ThisProcess(file)) => file.remove(),
            Some(Removal::Another(remove)) => remove(),
            None => {}
        }
    }
}

fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Briefly locks the directory of a socket against other servers that start or end there.
fn lock_directory(path: &Path) -> Result<OwnedFd, Errno> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(directory, flags, Mode::empty())?;
    rustix::fs::flock(&directory, FlockOperation::LockExclusive)?;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_socket_is_the_owners_alone_and_removed_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let listener = Listener::bind(&Address::Unix(path.clone())).unwrap();
        let metadata = fs::symlink_metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_for_a_group_is_open_to_it_and_nobody_else() {
        let directory = tempfile::tempdir().unwrap();
        let address = Address::Unix(directory.path().join("nbd.sock"));
        let group = rustix::process::getegid();
        let _listener = Listener::bind_for(&address, Some(group)).unwrap();
        let metadata = fs::symlink_metadata(directory.path().join("nbd.sock")).unwrap();
        assert_eq!((metadata.permissions().mode() & 0o777, metadata.gid()), (0o660, group.as_raw()));
    }

    #[test]
    fn a_dead_servers_socket_is_replaced_a_living_ones_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let address = Address::Unix(path.clone());
        let living = UnixListener::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        drop(living);
        assert!(path.exists());
        let listener = Listener::bind(&address).unwrap();
        assert!(matches!(Listener::bind(&address), Err(ListenError::InUse(_))));
        // Another server's new socket in our place is not removed with ours.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::bind(&Address::Unix(path.clone())), Err(ListenError::NotASocket(_))));
        std::os::unix::fs::symlink("precious", directory.path().join("link")).unwrap();
        let link = Address::Unix(directory.path().join("link"));
        assert!(matches!(Listener::bind(&link), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn long_paths_and_missing_directories_are_errors() {
        let long = Address::Unix(PathBuf::from(format!("/tmp/{}", "x".repeat(200))));
        assert!(matches!(Listener::bind(&long), Err(ListenError::PathTooLong(_))));
        let nowhere = Address::Unix(PathBuf::from("/nonexistent/nbd.sock"));
        assert!(matches!(Listener::bind(&nowhere), Err(ListenError::Unix { .. })));
    }

    #[test]
    fn an_inherited_socket_is_accepted_from_and_not_removed() {
        let directory = tempfile::tempdir().unwrap();
        for address in
            [Address::Unix(directory.path().join("nbd.sock")), Address::Tcp("[::1]:0".parse().unwrap())]
        {
            let bound = Listener::bind(&address).unwrap();
            let adopted = Listener::adopt(bound.as_fd().try_clone_to_owned().unwrap()).unwrap();
            assert_eq!(adopted.address(), bound.address());
            assert!(matches!(adopted.accept(), Ok(None)));
            let _client: OwnedFd = match adopted.address() {
                Address::Unix(path) => UnixStream::connect(path).unwrap().into(),
                Address::Tcp(address) => std::net::TcpStream::connect(address).unwrap().into(),
            };
            assert!(matches!(adopted.accept(), Ok(Some(_))));
            drop(adopted);
            if let Address::Unix(path) = &address {
                assert!(path.exists());
                drop(bound);
                assert!(!path.exists());
            }
        }
    }

    #[test]
    fn what_does_not_listen_is_not_adopted() {
        let (connected, _peer) = UnixStream::pair().unwrap();
        assert!(matches!(Listener::adopt(connected.into()), Err(ListenError::NotListening)));
        let file = tempfile::tempfile().unwrap();
        assert!(matches!(Listener::adopt(file.into()), Err(ListenError::Inherited(Errno::NOTSOCK))));
    }
}
