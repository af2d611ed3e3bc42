//! Serves a volume's plain disk to one program on this machine: an NBD server, on a socket in a
//! directory that no other user can enter.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::nbd::{Export, LANE_DEPTH, NbdConfig, NbdServer};
use strongroom_io::{Disk, Plain};
use strongroom_ring::Lanes;

use super::{ImageError, ServeError};

/// The socket's name in its directory.
pub const SOCKET_NAME: &str = "nbd";

/// The most names that are tried for the directory; each existing one was left by a killed process
/// with our process id.
const ATTEMPTS_MAX: u32 = 1000;

/// A socket that one program on this machine may connect to.
pub struct PrivateSocket {
    // The order matters: the socket's file is removed before the directory.
    listener: Listener,
    directory: PrivateDirectory,
}

impl PrivateSocket {
    /// Makes a socket for processes of this user, or of `user` (user and group).
    pub fn make(user: Option<(u32, u32)>) -> Result<Self, ImageError> {
        let failed = |error| ImageError::Sandbox { action: "make a private directory", error };
        let directory = PrivateDirectory::make().map_err(failed)?;
        let socket = directory.path.join(SOCKET_NAME);
        let listener = Listener::bind(&Address::Unix(socket.clone())).map_err(ServeError::from)?;
        if let Some((user, group)) = user {
            chown(&socket, Some(user), Some(group)).map_err(failed)?;
            chown(&directory.path, Some(user), Some(group)).map_err(failed)?;
        }
        Ok(Self { listener, directory })
    }

    /// Where it listens.
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// The directory that holds it.
    pub fn directory(&self) -> &Path {
        &self.directory.path
    }
}

/// A disk that is served on the socket of a [`Conversion`](super::qemu_img::Conversion): by the
/// process of the conversion, or by another one that has the disk's keys.
pub struct ServedDisk(NbdServer);

impl ServedDisk {
    /// Serves `disk` to clients that connect at `listener`.
    ///
    /// # Errors
    /// If its threads or rings cannot be created.
    pub fn start(listener: OwnedFd, disk: Arc<dyn Disk<Plain>>) -> Result<Self, ImageError> {
        let config = NbdConfig::new(Export { name: String::new(), description: String::new() });
        let serve = || -> Result<NbdServer, ServeError> {
            let lanes = Lanes::start("nbd", config.lanes(), LANE_DEPTH)?;
            Ok(NbdServer::start(config, Listener::adopt(listener)?, disk, lanes)?)
        };
        Ok(Self(serve()?))
    }

    /// As [`start`](Self::start), at a listener that is kept.
    pub(crate) fn on(listener: BorrowedFd<'_>, disk: Arc<dyn Disk<Plain>>) -> Result<Self, ImageError> {
        let failed = |error| ImageError::Sandbox { action: "serve a disk to qemu-img", error };
        Self::start(listener.try_clone_to_owned().map_err(failed)?, disk)
    }

    /// Ends the server, and makes the written data durable.
    ///
    /// # Errors
    /// If the data is not durable.
    pub fn stop(self) -> Result<(), ImageError> {
        Ok(self.0.stop().map_err(ServeError::from)?)
    }
}

/// A directory of mode 0700, removed on drop.
struct PrivateDirectory {
    path: PathBuf,
}

impl PrivateDirectory {
    /// Makes it in the user's runtime directory, in root's, or in the temporary directory.
    fn make() -> io::Result<Self> {
        let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
        let mut error = io::Error::from(io::ErrorKind::NotFound);
        for parent in own.into_iter().chain(["/run".into(), "/tmp".into()]) {
            match Self::make_in(&parent) {
                Ok(directory) => return Ok(directory),
                Err(refused) => error = refused,
            }
        }
        Err(error)
    }

    fn make_in(parent: &Path) -> io::Result<Self> {
        let mut made = Err(io::Error::from(io::ErrorKind::AlreadyExists));
        for attempt in 0..ATTEMPTS_MAX {
            let path = parent.join(format!("strongroom-{}-{attempt}", std::process::id()));
            // Creating it fails if anything exists there, even a link, so the directory is ours
            // from the start.
            made = std::fs::DirBuilder::new().mode(0o700).create(&path).map(|()| Self { path });
            if !matches!(&made, Err(error) if error.kind() == io::ErrorKind::AlreadyExists) {
                break;
            }
        }
        made
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // Usually its socket was removed before.
        let _ = std::fs::remove_file(self.path.join(SOCKET_NAME));
        let _ = std::fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn directories_are_private_new_and_removed() {
        let parent = tempfile::tempdir().unwrap();
        let first = PrivateDirectory::make_in(parent.path()).unwrap();
        let second = PrivateDirectory::make_in(parent.path()).unwrap();
        assert_ne!(first.path, second.path);
        assert_eq!(first.path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        drop((first, second));
        assert_eq!(parent.path().read_dir().unwrap().count(), 0);
    }
}
