//! Kills a QEMU that was never recorded, because its supervisor died during the start.

use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use strongroom_host::process::ProcessIdentity;
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_hypervisor::RunDirectory;
use strongroom_hypervisor::qemu::connect_within;

/// How long the accept queue of such a QEMU may be full.
const ACCEPTS_WITHIN: Duration = Duration::from_secs(1);

/// Kills an unrecorded QEMU that a supervisor may have left when it died during a start. Such a
/// QEMU listens on its socket, or will within `within`. A listener of another user is spared: an
/// earlier QEMU of the VM may have left a link to some other socket there.
pub fn kill_unrecorded(run: &VmRunDirectory, within: Duration) {
    let Ok(qemu) = RunDirectory::open(run.path()) else { return };
    if !qemu.path().exists() {
        return;
    }
    let until = Instant::now() + within;
    loop {
        if let Ok(socket) = connect_within(&qemu.qmp(), ACCEPTS_WITHIN) {
            let user = std::fs::symlink_metadata(qemu.path()).map(|directory| directory.uid()).ok();
            let peer = rustix::net::sockopt::socket_peercred(&socket).ok();
            let peer = peer.filter(|peer| Some(peer.uid.as_raw()) == user);
            let pid = peer.map(|peer| peer.pid.as_raw_nonzero().get().cast_unsigned());
            if let Some(identity) = pid.and_then(ProcessIdentity::of) {
                tracing::warn!(
                    "QEMU {} was left by a supervisor that died while it started; it is killed",
                    identity.pid
                );
                let _ = identity.kill();
            }
            return;
        }
        if Instant::now() >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::UnixListener;

    use strongroom_host::run_directory::HostRunDirectory;
    use strongroom_types::VmId;

    use super::*;

    #[test]
    fn who_listens_behind_a_link_in_qemus_place_is_not_killed() {
        if !rustix::process::geteuid().is_root() {
            // Only root can make another user the owner of the directory.
            return;
        }
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        let run = HostRunDirectory::at(directory.path()).unwrap().vm(VmId::random());
        let qemu = RunDirectory::open(run.path()).unwrap();
        std::fs::create_dir_all(qemu.path()).unwrap();
        chown(qemu.path(), Some(0x7100_0001), None).unwrap();
        // This process listens, and would be killed.
        let ours = directory.path().join("ours.sock");
        let _listener = UnixListener::bind(&ours).unwrap();
        symlink(&ours, qemu.qmp()).unwrap();
        kill_unrecorded(&run, Duration::from_secs(60));
    }
}
