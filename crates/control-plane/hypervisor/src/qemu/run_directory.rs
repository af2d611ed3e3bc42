//! Where a running machine's sockets are.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use thiserror::Error;

use crate::machine::SpecError;

/// The part of a VM's run directory that QEMU may write to.
const QEMU_DIRECTORY: &str = "qemu";
/// The part of a VM's run directory where its disks' servers listen.
const DISKS_DIRECTORY: &str = "disks";
/// The longest name of a socket in it.
const LONGEST_SOCKET: &str = "console.sock";

/// Why there is no place for sockets.
#[derive(Debug, Error)]
pub enum RunDirectoryError {
    /// It cannot be made.
    #[error("cannot make {path}: {error}")]
    Create {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Somebody else made it, or others may look in.
    #[error("{0} belongs to another user, or others have rights to it; remove it")]
    Exposed(PathBuf),
    /// It is no good place.
    #[error(transparent)]
    Path(#[from] SpecError),
}

/// The directory of a running machine's sockets: `qemu` in the VM's run directory. It is the only
/// place that QEMU and swtpm can write to, and nobody but their user and root can enter it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Makes it in `vm`, a VM's own run directory, which exists; `user` is as whom QEMU will run,
    /// if not as us.
    pub fn create(vm: &Path, user: Option<(u32, u32)>) -> Result<Self, RunDirectoryError> {
        let directory = Self::open(vm)?;
        let path = &directory.path;
        let failed = |error| RunDirectoryError::Create { path: path.clone(), error };
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
            _ => {}
        }
        let metadata = std::fs::symlink_metadata(path).map_err(failed)?;
        let us = geteuid().as_raw();
        let owner = user.map_or(us, |(uid, _)| uid);
        // Left by an earlier start, it may be of another user of a VM; ours to give away only as
        // root.
        if !metadata.is_dir() || (metadata.uid() != owner && !geteuid().is_root()) {
            return Err(RunDirectoryError::Exposed(path.clone()));
        }
        if let Some((uid, gid)) = user {
            chown(path, Some(uid), Some(gid)).map_err(failed)?;
        }
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).map_err(failed)?;
        Ok(directory)
    }

    /// The one in `vm` that exists.
    pub fn open(vm: &Path) -> Result<Self, RunDirectoryError> {
        let path = vm.join(QEMU_DIRECTORY);
        crate::machine::validate_socket(&path.join(LONGEST_SOCKET))?;
        Ok(Self { path })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the servers of disks listen that are plugged in later: beside it. QEMU sees it if it
    /// is there at QEMU's start, and with it what comes to be in it.
    pub fn disks(&self) -> PathBuf {
        self.path.with_file_name(DISKS_DIRECTORY)
    }

    /// QMP: for the supervisor alone.
    pub fn qmp(&self) -> PathBuf {
        self.path.join("qmp.sock")
    }

    /// The serial console: bytes, one client at a time.
    pub fn console(&self) -> PathBuf {
        self.path.join(LONGEST_SOCKET)
    }

    /// The screen: RFB.
    pub fn vnc(&self) -> PathBuf {
        self.path.join("vnc.sock")
    }

    /// The channel to the guest's agent.
    pub fn guest_agent(&self) -> PathBuf {
        self.path.join("agent.sock")
    }

    /// Where swtpm listens.
    pub fn tpm(&self) -> PathBuf {
        self.path.join("tpm.sock")
    }
}
