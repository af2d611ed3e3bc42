//! The directory of a running machine's sockets.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use thiserror::Error;

use super::validate::{SpecError, socket_path};

/// The part of a VM's run directory that QEMU may write to.
const QEMU_DIRECTORY: &str = "qemu";
/// The part of a VM's run directory where its disks' servers listen.
const DISKS_DIRECTORY: &str = "disks";
/// The longest socket name in it.
const LONGEST_SOCKET: &str = "console.sock";

/// Why the directory cannot be used.
#[derive(Debug, Error)]
pub enum RunDirectoryError {
    /// It cannot be created.
    #[error("cannot make {path}: {error}")]
    Create {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// It belongs to another user, or other users can read it.
    #[error("{0} belongs to another user, or others have rights to it; remove it")]
    Exposed(PathBuf),
    /// Its path is not suitable.
    #[error(transparent)]
    Path(#[from] SpecError),
}

/// The directory of a running machine's sockets: `qemu` in the VM's run directory. QEMU and swtpm
/// can write nowhere else, and only their user and root can enter it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDirectory {
    path: PathBuf,
}

impl RunDirectory {
    /// Creates it in `vm`, a VM's existing run directory. `user` is QEMU's user, if it is not this
    /// process's own.
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
        // An earlier start may have left it to another VM user. Only root can change its owner.
        if !metadata.is_dir() || (metadata.uid() != owner && !geteuid().is_root()) {
            return Err(RunDirectoryError::Exposed(path.clone()));
        }
        if let Some((uid, gid)) = user {
            chown(path, Some(uid), Some(gid)).map_err(failed)?;
        }
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o700)).map_err(failed)?;
        Ok(directory)
    }

    /// Opens the existing directory in `vm`.
    pub fn open(vm: &Path) -> Result<Self, RunDirectoryError> {
        let path = vm.join(QEMU_DIRECTORY);
        socket_path(&path.join(LONGEST_SOCKET))?;
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory in which the servers of hot-plugged disks listen, beside it. QEMU sees it, and
    /// later files in it, if it exists when QEMU starts.
    pub fn disks(&self) -> PathBuf {
        self.path.with_file_name(DISKS_DIRECTORY)
    }

    /// The QMP socket, for the supervisor only.
    pub fn qmp(&self) -> PathBuf {
        self.path.join("qmp.sock")
    }

    /// The serial console: bytes, for one client at a time.
    pub fn console(&self) -> PathBuf {
        self.path.join(LONGEST_SOCKET)
    }

    /// The screen: RFB.
    pub fn vnc(&self) -> PathBuf {
        self.path.join("vnc.sock")
    }

    /// The channel to the guest agent.
    pub fn guest_agent(&self) -> PathBuf {
        self.path.join("agent.sock")
    }

    /// Where QEMU listens for the memory of a machine that moves here.
    pub fn incoming(&self) -> PathBuf {
        self.path.join("memory.sock")
    }

    /// Where a relay listens for the memory of a machine that moves away.
    pub fn outgoing(&self) -> PathBuf {
        self.disks().join("memory.sock")
    }

    /// The socket of the TPM, for QEMU.
    pub fn tpm(&self) -> PathBuf {
        self.path.join("tpm.sock")
    }

    /// Where the TPM's gate has who records its states connect: beside this directory, so that
    /// QEMU cannot put another socket in its place.
    pub fn tpm_states(&self) -> PathBuf {
        self.path.with_file_name("tpm-states.sock")
    }
}
