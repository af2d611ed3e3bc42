//! The run directory of a host, for files that last as long as its processes: sockets, secrets,
//! state.
//!
//! ```text
//! <run>/hostd/control.sock   guest.sock
//! <run>/vms/<vm>/supervisor.sock   secret   state.json
//!                kernel   initrd   (until QEMU has loaded them)
//!                disks/0.sock ...  (of workers, for QEMU)
//!                qemu/             (of QEMU: `strongroom_hypervisor::RunDirectory`)
//!                tpm-states.sock   (of the TPM's gate)
//!                vtpm.state/       (of swtpm, if the VM's directory is on a cluster, or its guest
//!                                   has come from another host)
//! ```

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use strongroom_types::VmId;

use crate::protocol::TPM_STATE;

/// The longest path of a run directory, in bytes. It keeps the paths of the sockets in it below the
/// kernel's 108.
pub const RUN_BYTES_MAX: usize = 48;
/// The mode of the directory with the sockets of a VM's disks.
const DISKS_MODE: u32 = 0o711;

/// The run directory of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRunDirectory(PathBuf);

impl HostRunDirectory {
    /// Opens the run directory at `path`. Creates it with access only for this user if it does not
    /// exist.
    ///
    /// # Errors
    /// If it cannot be made, belongs to another user, is writable by others, or has too long a
    /// path.
    pub fn at(path: &Path) -> io::Result<Self> {
        let path = std::path::absolute(path)?;
        if path.as_os_str().len() > RUN_BYTES_MAX {
            let path = path.display();
            return Err(io::Error::other(format!(
                "the run directory's path {path} is longer than {RUN_BYTES_MAX} bytes, and a socket's path below it would \
                 be too long; choose another one with --run"
            )));
        }
        let run = Self(path);
        for (directory, mode) in
            [(run.0.clone(), 0o711), (run.0.join("hostd"), 0o700), (run.0.join("vms"), 0o711)]
        {
            make(&directory, mode)?;
        }
        Ok(run)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// hostd's control socket.
    pub fn control_socket(&self) -> PathBuf {
        self.0.join("hostd/control.sock")
    }

    /// The guest socket, over which guest data passes.
    pub fn guest_socket(&self) -> PathBuf {
        self.0.join("hostd/guest.sock")
    }

    /// The lock file of the single hostd.
    pub fn lock_file(&self) -> PathBuf {
        self.0.join("hostd/lock")
    }

    /// The lock file for changes to a VM's directory.
    pub fn vm_lock(&self, vm: VmId) -> PathBuf {
        self.0.join(format!("hostd/{vm}.lock"))
    }

    /// The probed features of this host's QEMU, shared by all its VMs.
    pub fn qemu_findings(&self) -> PathBuf {
        qemu_findings(&self.0)
    }

    /// The directory with the run directories of VMs.
    pub fn vms(&self) -> PathBuf {
        self.0.join("vms")
    }

    /// The run directory of one VM.
    pub fn vm(&self, vm: VmId) -> VmRunDirectory {
        VmRunDirectory(self.vms().join(vm.to_string()))
    }

    /// Returns the VMs that have a run directory.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn vms_found(&self) -> io::Result<Vec<VmId>> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(self.vms())? {
            found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<VmId>().ok()));
        }
        Ok(found)
    }
}

fn qemu_findings(host: &Path) -> PathBuf {
    host.join("hostd/qemu.json")
}

/// The run directory of a VM that is not off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRunDirectory(PathBuf);

impl VmRunDirectory {
    /// An existing run directory at `path`; its owner is not checked.
    pub fn existing(path: PathBuf) -> Self {
        Self(path)
    }

    /// Creates it, if it does not exist.
    ///
    /// # Errors
    /// As [`HostRunDirectory::at`].
    pub fn make(&self) -> io::Result<()> {
        make(&self.0, 0o700)?;
        // QEMU runs as another user and may traverse only this directory, whatever umask this
        // process inherited.
        make(&self.disks(), DISKS_MODE)?;
        std::fs::set_permissions(self.disks(), PermissionsExt::from_mode(DISKS_MODE))
    }

    /// Removes it with all of its contents.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn remove(&self) -> io::Result<()> {
        match std::fs::remove_dir_all(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The directory for the control sockets of volumes whose own directories can have none.
    pub fn control_sockets(&self) -> PathBuf {
        self.0.join("control")
    }

    /// The supervisor's socket.
    pub fn supervisor_socket(&self) -> PathBuf {
        self.0.join("supervisor.sock")
    }

    /// The file with the secret by which the supervisor proves its identity.
    pub fn secret(&self) -> PathBuf {
        self.0.join("secret")
    }

    /// The file with the VM's processes.
    pub fn state(&self) -> PathBuf {
        self.0.join("state.json")
    }

    /// The probed features of this host's QEMU, shared by all its VMs.
    pub fn qemu_findings(&self) -> PathBuf {
        qemu_findings(self.0.parent().and_then(Path::parent).unwrap_or(&self.0))
    }

    /// A copy of the kernel that QEMU is about to load.
    pub fn kernel(&self) -> PathBuf {
        self.0.join("kernel")
    }

    /// A copy of the initial ram disk that QEMU is about to load.
    pub fn initrd(&self) -> PathBuf {
        self.0.join("initrd")
    }

    /// swtpm's directory, if it is not in the VM's own one: each state is kept there, too.
    pub fn tpm_state(&self) -> PathBuf {
        self.0.join(TPM_STATE)
    }

    fn disks(&self) -> PathBuf {
        self.0.join("disks")
    }

    /// The socket of a disk. Its name is short, however long the disk's name is.
    pub fn disk_socket(&self, index: usize) -> PathBuf {
        self.disks().join(format!("{index}.sock"))
    }
}

/// Creates a directory that other users cannot write to.
fn make(directory: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(directory)?;
    let metadata = std::fs::symlink_metadata(directory)?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !ours || metadata.mode() & 0o022 != 0 {
        let directory = directory.display();
        return Err(io::Error::other(format!(
            "{directory} belongs to another user, or others can write to it; remove it"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_socket_fits_into_an_address() {
        let run = HostRunDirectory(PathBuf::from("/").join("r".repeat(RUN_BYTES_MAX - 1)));
        let longest = run.vm(VmId::random()).supervisor_socket();
        assert!(longest.as_os_str().len() < 107, "{}", longest.display());
        assert!(HostRunDirectory::at(Path::new(&format!("/tmp/{}", "r".repeat(RUN_BYTES_MAX)))).is_err());
    }

    #[test]
    fn a_run_directory_is_ours_alone_and_vms_in_it_are_found() {
        let scratch = tempfile::tempdir().unwrap();
        let run = HostRunDirectory::at(&scratch.path().join("run")).unwrap();
        let vm = VmId::random();
        run.vm(vm).make().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(run.vm(vm).path()), mode(&run.vm(vm).disks())), (0o700, DISKS_MODE));
        // The mode after a stricter umask, or after a supervisor was killed between its two steps.
        std::fs::set_permissions(run.vm(vm).disks(), PermissionsExt::from_mode(0o700)).unwrap();
        run.vm(vm).make().unwrap();
        assert_eq!(mode(&run.vm(vm).disks()), DISKS_MODE);
        assert_eq!(run.vms_found().unwrap(), [vm]);
        run.vm(vm).remove().unwrap();
        run.vm(vm).remove().unwrap();
        assert!(run.vms_found().unwrap().is_empty());
        std::fs::set_permissions(run.path(), PermissionsExt::from_mode(0o777)).unwrap();
        assert!(HostRunDirectory::at(run.path()).is_err());
    }
}
