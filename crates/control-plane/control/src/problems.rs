//! Problems, as callers receive them.

use strongroom_api::{ErrorCode, Name, ObjectKind, Problem};
use strongroom_host::protocol;
use strongroom_store::StoreError;

use crate::host::HostError;
use crate::inventory::Failure;
use crate::records::VmRecord;

/// The inventory cannot be read or written.
pub fn failure(failure: &Failure) -> Problem {
    match failure {
        Failure::Store(StoreError::Full { .. }) => Problem::new(ErrorCode::Unavailable, failure.to_string())
            .next("make room on the file system of the control plane's home"),
        Failure::Raced => too_many_races(),
        Failure::AccessLogFull { .. } => Problem::new(ErrorCode::AccessLogFull, failure.to_string()).next(
            "`strongroom access retention --room SIZE` gives it more room; or export it \
             (`strongroom access log --after N --json`), and keep it for a shorter time (`--keep TIME`)",
        ),
        Failure::Store(_) | Failure::Damaged { .. } | Failure::UnknownFormat(_) => {
            tracing::error!(%failure, "the inventory cannot be used");
            Problem::new(ErrorCode::Unavailable, "the inventory cannot be written or read now")
                .next("see the control plane's log; ask again with the same Idempotency-Key")
        }
    }
}

/// Other changes were faster, again and again.
pub fn too_many_races() -> Problem {
    Problem::new(ErrorCode::Unavailable, "others changed the same objects again and again at the same time")
        .next("ask again")
}

/// The object does not exist.
pub fn not_found(kind: ObjectKind, named: &str) -> Problem {
    let list = match kind {
        ObjectKind::Vm => "vm list",
        ObjectKind::Datastore => "datastore list",
        ObjectKind::Policy => "policy list",
        ObjectKind::Host | ObjectKind::Control => "host list",
        ObjectKind::Task => "task list",
        ObjectKind::KeyProvider => "key-provider list",
        ObjectKind::Volume => "disk list",
        ObjectKind::Recipient => "recipient list",
        ObjectKind::PlacementGroup => "placement-group list",
        ObjectKind::Network => "network list",
    };
    Problem::new(ErrorCode::NotFound, format!("there is no {} {named}", kind.noun()))
        .next(format!("`strongroom {list}` shows what there is"))
}

/// A VM, or the volume that it holds, in a sentence.
pub fn called(vm: &VmRecord) -> String {
    format!("{} {}", vm.kind().noun(), vm.name)
}

/// The VM has no such disk.
pub fn no_such_disk(vm: &Name, disk: &str) -> Problem {
    Problem::new(ErrorCode::NotFound, format!("VM {vm} has no disk {disk}"))
        .next(format!("`strongroom vm disk list {vm}` shows what there is"))
}

/// The name is taken.
pub fn name_taken(kind: ObjectKind, name: &str) -> Problem {
    Problem::new(ErrorCode::NameTaken, format!("there is a {} {name} already", kind.noun()))
        .next("choose another name")
}

/// A value is outside its limits.
pub fn invalid(message: impl Into<String>) -> Problem {
    Problem::new(ErrorCode::Invalid, message)
}

/// The object's state does not allow the operation.
pub fn conflict(message: impl Into<String>) -> Problem {
    Problem::new(ErrorCode::Conflict, message)
}

/// The VM's host is not among those that this control plane was started with.
pub fn host_unknown(vm: &str) -> Problem {
    Problem::new(ErrorCode::HostUnavailable, format!("the host of VM {vm} is not one that is asked here"))
        .next("start the control plane with that host")
}

/// An error of a host.
pub fn host(name: &str, error: &HostError) -> Problem {
    match error {
        HostError::Unreachable(reason) => {
            Problem::new(ErrorCode::HostUnavailable, format!("host {name} does not answer: {reason}"))
                .next("see to it that hostd runs there")
        }
        HostError::Refused(problem) => host_refused(name, problem),
    }
}

/// The VM's datastore is not in the inventory.
pub fn datastore_unknown(vm: &VmRecord) -> Problem {
    conflict(format!("the datastore of VM {} is not known any more", vm.name))
}

/// Its creation ended before it had a key.
pub fn key_never_made(vm: &VmRecord) -> Problem {
    conflict(format!("VM {} waits for a key that was never made", vm.name))
}

/// A refusal by a host.
pub fn host_refused(name: &str, problem: &protocol::Problem) -> Problem {
    let code = match problem.code.as_str() {
        "key_unavailable" => ErrorCode::KeyUnavailable,
        "key_revoked" => ErrorCode::KeyRevoked,
        "no_space" | "full" => ErrorCode::DatastoreFull,
        "no_such_datastore" | "not_mounted" | "other_datastore" | "cluster" => {
            ErrorCode::DatastoreUnavailable
        }
        "bad_request"
        | "bad_spec"
        | "no_such_directory"
        | "too_much_memory"
        | "no_such_interface"
        | "interface_not_allowed"
        | "bad_image"
        | "image_too_large"
        | "file_too_large"
        | "boot_file_not_allowed"
        | "boot_file_missing"
        | "boot_file_unreadable"
        | "bad_range"
        | "kernel_too_large" => ErrorCode::Invalid,
        "no_such_vm" | "no_such_disk" | "no_such_dump" | "no_such_snapshot" | "not_a_volume"
        | "no_snapshot" => ErrorCode::NotFound,
        "busy" | "merging" | "too_late" | "too_many_tickets" | "too_many_datastores" => ErrorCode::TooMany,
        "not_running"
        | "not_ready"
        | "already_running"
        | "running"
        | "stopping"
        | "generation_used"
        | "suspended"
        | "paused"
        | "disk_needed"
        | "disk_exists"
        | "volume_exists"
        | "guest_keeps_disk"
        | "guest_keeps_nic"
        | "guest_keeps_cpu"
        | "not_growable"
        | "network"
        | "no_port"
        | "disks_changed"
        | "other_generation"
        | "left_host"
        | "other_directory"
        | "no_screen"
        | "bad_ticket"
        | "suspending"
        | "dumping"
        | "too_many_dumps"
        | "snapshot_exists"
        | "many_snapshots"
        | "in_snapshot"
        | "not_closed"
        | "half_reverted"
        | "incomplete_snapshot"
        | "many_layers"
        | "keeps_changing"
        | "other_volume"
        | "guest_agent"
        | "not_quiesced"
        | "not_frozen"
        | "group_void"
        | "volume_in_trouble" => ErrorCode::Conflict,
        "abandoned" => ErrorCode::Cancelled,
        _ => ErrorCode::HostFailed,
    };
    let message = format!("host {name}: {}", problem.message);
    Problem { code, message, next_step: problem.next_step.clone() }
}
