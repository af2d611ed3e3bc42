//! Descriptions of volumes and VMs for the control plane.

use strongroom_host::protocol::{Disk, DiskKey, ObservedVolume, VmReason, VolumeState, WaitingFor};
use strongroom_keys::LeaseStatus;
use strongroom_worker::condition::State;
use strongroom_worker::control::Status;

/// A volume that is not served yet.
pub fn opening(disk: &Disk) -> ObservedVolume {
    let kek = match &disk.key {
        DiskKey::Provider { kek, .. } | DiskKey::HalfClear { kek, .. } => *kek,
        DiskKey::Unencrypted => None,
    };
    ObservedVolume {
        disk: disk.name.clone(),
        state: VolumeState::Opening,
        worker_pid: None,
        restarts: 0,
        last_end: None,
        device_errors: 0,
        kek,
        lease: None,
    }
}

/// Merges a status of the volume's supervisor.
pub fn learn(volume: &mut ObservedVolume, status: &Status) {
    volume.state = match (status.condition.state, status.worker_pid) {
        (State::KeyUnavailable, _) => VolumeState::KeyUnavailable,
        (_, None) => VolumeState::Restarting,
        (State::Running, Some(_)) => VolumeState::Serving,
        (State::Parked, Some(_)) => VolumeState::Parked,
        (State::FlushFailed, Some(_)) => VolumeState::FlushFailed,
    };
    volume.worker_pid = status.worker_pid;
    volume.restarts = status.restarts;
    volume.last_end.clone_from(&status.last_end);
    volume.device_errors = status.condition.device_errors;
    volume.lease = status.key.as_ref().map(|key| LeaseStatus::clone(&key.lease));
}

fn reason(code: &str, message: String) -> VmReason {
    VmReason { code: code.to_owned(), message }
}

/// The VM waits for a key.
pub fn waiting(waiting: &WaitingFor) -> VmReason {
    reason("key_unavailable", format!("waiting for {}: {}", waiting.key, waiting.reason))
}

/// The datastore is full.
pub fn no_room() -> VmReason {
    let message =
        "its datastore is full: what its guest writes waits, and it goes on by itself when there is room";
    reason("no_space", message.to_owned())
}

/// The VM was paused on request.
pub fn paused_by_request() -> VmReason {
    reason("paused_by_request", "it was paused, as was asked for".to_owned())
}

/// The memory is being sealed.
pub fn suspending() -> VmReason {
    reason("suspending", "it stands still while its memory is sealed".to_owned())
}

/// The memory is being dumped.
pub fn dumping() -> VmReason {
    reason("dumping", "it stands still while its memory is dumped, and goes on then".to_owned())
}

/// The guest's kernel has panicked.
pub fn panicked() -> VmReason {
    reason("guest_panicked", "its guest's system has given up; reset or stop it".to_owned())
}

/// The TPM has ended.
pub fn tpm_lost() -> VmReason {
    let message =
        "its TPM has ended, and its guest sees one that fails; it has one again after a stop and a start";
    reason("tpm_lost", message.to_owned())
}

/// The process behind the user network has ended.
pub fn network_lost() -> VmReason {
    let message = "what its network goes through has ended, and its guest reaches nothing; it has a network again after a stop and a start";
    reason("network_lost", message.to_owned())
}

/// The guest's agent has not confirmed that its file systems are thawed.
pub fn guest_may_be_frozen() -> VmReason {
    let message = "the file systems of its guest may be frozen after a snapshot, and its agent is asked again and again to thaw them; \
                   thaw them in the guest (`fsfreeze --unfreeze`), or reset the VM";
    reason("guest_may_be_frozen", message.to_owned())
}

/// A disk has failed.
pub fn io_error(device: &str) -> VmReason {
    reason("io_error", format!("disk {device} has failed; resume it when that is repaired"))
}

/// A new supervisor is taking over.
pub fn adopting() -> VmReason {
    reason(
        "adopting",
        "its supervisor died; another one takes it over, and its guest waits for its disks".to_owned(),
    )
}
