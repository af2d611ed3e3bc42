//! Whether a VM fits this host at present, checked before a key is made or anything is written.
//!
//! - Memory is compared with the host's total, not with what is free: an operator decides which VMs
//!   run at the same time.
//! - Processors are not compared: a guest with more of them than the host runs, but more slowly.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{cluster_of, is_gone};
use strongroom_host::protocol::{Capabilities, Datastore, DatastoreState, Disk, Problem, VmSpec};
use strongroom_hypervisor::QemuProgram;
use strongroom_types::{VolumeSize, display_bytes};
use strongroom_vm::Lack;

use super::capacity;
use super::config::{DatastoreConfig, HostConfig};
use crate::checks::{Root, interfaces};

/// Checks whether this host has the resources for a VM.
///
/// # Errors
/// `too_much_memory`; the errors of [`interfaces::check`] for a network card.
pub fn check_machine(
    root: &Root,
    host_memory_bytes: u64,
    allowed: Option<&[String]>,
    spec: &VmSpec,
) -> Result<(), Problem> {
    if spec.memory_bytes.bytes() > host_memory_bytes {
        let message = format!(
            "VM {} is to have {} of memory, and this host has {}",
            spec.name,
            spec.memory_bytes,
            display_bytes(host_memory_bytes)
        );
        return Err(Problem::new("too_much_memory", message).with_next_step("give it less with --memory"));
    }
    spec.nics.iter().try_for_each(|nic| interfaces::check(root, allowed, &nic.network))
}

/// Checks whether the QEMU of this host can give a VM its machine type and processor. Its start has
/// QEMU check once more.
///
/// # Errors
/// `no_machine_type` and `no_processor`.
pub fn check_board(capabilities: &Capabilities, qemu: &QemuProgram, spec: &VmSpec) -> Result<(), Problem> {
    let Some(lack) = capabilities.lacks(&spec.board) else { return Ok(()) };
    let (name, version) = (&spec.name, qemu.version());
    Err(match lack {
        Lack::MachineType(wanted) => Problem::new(
            "no_machine_type",
            format!("VM {name} has machine type {wanted}, which QEMU {version} of this host does not have"),
        )
        .with_next_step(format!(
            "start it on a host that has it, upgrade QEMU here, or give it another one: `strongroom vm set {name} --machine-type TYPE`"
        )),
        Lack::Processor(wanted) => Problem::new(
            "no_processor",
            format!("VM {name} has processor {wanted}, which this host cannot give completely"),
        )
        .with_next_step(format!(
            "start it on a host that can, or give it another one: `strongroom vm set {name} --processor MODEL`"
        )),
    })
}

/// Checks each datastore that a VM has disks in, as [`check_datastore`]. One that this host does
/// not know is not checked.
///
/// # Errors
/// Those of [`check_datastore`].
pub fn check_datastores(config: &HostConfig, spec: &VmSpec) -> Result<(), Problem> {
    datastores_of(config, spec).try_for_each(|used| check_datastore(used, spec))
}

/// Checks that each datastore that a VM has disks in is mounted.
///
/// # Errors
/// `no_such_datastore`.
pub fn check_mounted(config: &HostConfig, spec: &VmSpec) -> Result<(), Problem> {
    datastores_of(config, spec).try_for_each(|used| must_be_mounted(used).map(drop))
}

fn datastores_of<'a>(config: &'a HostConfig, spec: &VmSpec) -> impl Iterator<Item = &'a DatastoreConfig> {
    let paths: BTreeSet<&Path> = std::iter::once(&spec.datastore)
        .chain(spec.places().map(|place| &place.path))
        .map(PathBuf::as_path)
        .collect();
    config.datastores.iter().filter(move |used| paths.contains(used.path.as_path()))
}

fn must_be_mounted(used: &DatastoreConfig) -> Result<Datastore, Problem> {
    let now = capacity::datastore(used);
    match now.state {
        DatastoreState::Missing => {
            let (shown, why) = (used.path.display(), now.reason.unwrap_or_default());
            let problem = Problem::new("no_such_datastore", format!("datastore {shown} is not there: {why}"));
            Err(problem.with_next_step("mount the disk that it is on"))
        }
        DatastoreState::Full | DatastoreState::Ready => Ok(now),
    }
}

/// Checks that a VM's datastore is mounted, can hold files as large as its disks, and has room for
/// the space that new and grown disks allocate at once.
///
/// # Errors
/// `no_such_datastore` if its disk is not mounted; `file_too_large`; `no_space`.
pub fn check_datastore(used: &DatastoreConfig, spec: &VmSpec) -> Result<(), Problem> {
    let now = must_be_mounted(used)?;
    let shown = used.path.display();
    let mut wanted = 0;
    let is_there =
        |disk: &&Disk| disk.place.as_ref().map_or(&spec.datastore, |place| &place.path) == &used.path;
    for disk in spec.disks.iter().filter(is_there) {
        let growth = growth_bytes(spec, disk);
        if growth > 0 && !can_hold(&used.path, disk.size_bytes) {
            let (name, vm, size) = (&disk.name, &spec.name, disk.size_bytes);
            let message = format!(
                "the file system of datastore {shown} has no files of {size}, as {name} of VM {vm} would be one"
            );
            let problem = Problem::new("file_too_large", message);
            return Err(problem.with_next_step("make it smaller, or use a datastore on XFS or btrfs"));
        }
        wanted += if disk.thick { growth } else { 0 };
    }
    if wanted > now.free_bytes {
        let message = format!(
            "the disks of VM {} that take their space at once need {}, and datastore {shown} has {} free",
            spec.name,
            display_bytes(wanted),
            display_bytes(now.free_bytes)
        );
        return Err(Problem::new("no_space", message).with_next_step("make room there, or use another one"));
    }
    Ok(())
}

/// The bytes by which a disk grows beyond its volume; 0 for a volume that cannot be read.
fn growth_bytes(spec: &VmSpec, disk: &Disk) -> u64 {
    let (path, bytes) = (spec.volume_path(&disk.name), disk.size_bytes.bytes());
    if is_gone(&path) {
        return bytes;
    }
    let has = strongroom_datastore::file::describe(&path).map(|found| found.descriptor.size_bytes.bytes());
    has.map_or(0, |has| bytes.saturating_sub(has))
}

/// Whether the file system supports files this large: sets the size of an unnamed file, which takes
/// no space. If that cannot be tried, the creation of the volume reports the error. A cluster has
/// images of every size that a volume may have.
fn can_hold(datastore: &Path, size: VolumeSize) -> bool {
    if cluster_of(datastore).is_some() {
        return true;
    }
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(datastore, flags, Mode::RUSR | Mode::WUSR) else { return true };
    rustix::fs::ftruncate(&file, size.block_aligned_bytes()) != Err(Errno::FBIG)
}

#[cfg(test)]
mod tests {
    use strongroom_datastore::file::{CreateOptions, Protection, Provisioning};
    use strongroom_types::{DatastoreId, VmId};

    use super::*;

    fn spec(datastore: &Path, more: &str) -> VmSpec {
        let text = format!(
            r#"{{"id":"{}","name":"web1","datastore":{datastore:?},"memory_bytes":1073741824{more}}}"#,
            VmId::random()
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn memory_that_no_start_could_have_is_refused() {
        let (root, spec) = (Root::machine(), spec(Path::new("/srv"), ""));
        check_machine(&root, 1 << 30, None, &spec).unwrap();
        let refused = check_machine(&root, (1 << 30) - 1, None, &spec).unwrap_err();
        assert_eq!(refused.code, "too_much_memory");
        assert!(refused.message.contains("web1"), "{refused}");
    }

    #[test]
    fn a_datastore_that_is_not_mounted_or_has_no_room_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let id = strongroom_datastore::file::identify(scratch.path()).unwrap();
        let used = DatastoreConfig { path: scratch.path().to_owned(), id, ceph: None };
        let disk = |thick| {
            format!(
                r#","disks":[{{"name":"disk0","size_bytes":{},"key":"unencrypted","thick":{thick}}}]"#,
                1u64 << 43
            )
        };
        check_datastore(&used, &spec(scratch.path(), &disk(false))).unwrap();
        let refused = check_datastore(&used, &spec(scratch.path(), &disk(true))).unwrap_err();
        assert_eq!(refused.code, "no_space");
        // A grown disk needs only the space that it grows by.
        let free = capacity::datastore(&used).free_bytes;
        let at = |size: u64| {
            let more = format!(
                r#","disks":[{{"name":"disk0","size_bytes":{size},"key":"unencrypted","thick":true}}]"#
            );
            spec(scratch.path(), &more)
        };
        let (small, large) = (at(1 << 20), at((free & !4095) + (1 << 20)));
        std::fs::create_dir(small.directory()).unwrap();
        let volume = CreateOptions {
            size: small.disks[0].size_bytes,
            provisioning: Provisioning::Thick,
            protection: Protection::Unencrypted,
            log_bytes: None,
            integrity: None,
        };
        strongroom_datastore::file::create(&small.volume_path(&small.disks[0].name), &volume).unwrap();
        check_datastore(&used, &small).unwrap();
        check_datastore(&used, &at(2 << 20)).unwrap();
        assert_eq!(check_datastore(&used, &large).unwrap_err().code, "no_space");
        let unmounted = DatastoreConfig { id: DatastoreId::random(), ..used };
        let refused = check_datastore(&unmounted, &spec(scratch.path(), "")).unwrap_err();
        assert_eq!(refused.code, "no_such_datastore");
    }
}
