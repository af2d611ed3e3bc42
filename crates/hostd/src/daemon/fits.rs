//! Whether a VM fits this host as it is now: what is told before a key is made or anything is written.
//!
//! - Memory is compared with all that the host has, and not with what is free: which VMs run when is for a person to say.
//! - Processors are not compared: a guest with more of them than the host runs, and more slowly.

use std::path::Path;

use strongroom_types::display_bytes;

use super::capacity;
use super::config::DatastoreConfig;
use crate::checks::Root;
use crate::protocol::{DatastoreState, Disk, Network, Problem, VmSpec};

/// Whether this host has what a VM takes.
///
/// # Errors
/// `too_much_memory`; `no_such_interface` for a bridge or a tap device that is not there.
pub fn check_machine(root: &Root, host_memory_bytes: u64, spec: &VmSpec) -> Result<(), Problem> {
    if spec.memory_bytes > host_memory_bytes {
        let message = format!(
            "VM {} is to have {} of memory, and this host has {}",
            spec.name,
            display_bytes(spec.memory_bytes),
            display_bytes(host_memory_bytes)
        );
        return Err(Problem::new("too_much_memory", message).with_next_step("give it less with --memory"));
    }
    spec.nics.iter().try_for_each(|nic| match &nic.network {
        Network::User => Ok(()),
        Network::Tap { device } => {
            check_interface(root, device, ("tun_flags", "tap device"), "ip tuntap add dev NAME mode tap")
        }
        Network::Bridge { bridge, .. } => {
            check_interface(root, bridge, ("bridge", "bridge"), "ip link add NAME type bridge")
        }
    })
}

/// `mark` is what sysfs has of interfaces of this kind alone.
fn check_interface(
    root: &Root,
    device: &str,
    (mark, kind): (&str, &str),
    command: &str,
) -> Result<(), Problem> {
    let place = Path::new("/sys/class/net").join(device);
    let message = match (root.has(&place), root.has(place.join(mark))) {
        (_, true) => return Ok(()),
        (true, false) => format!("network interface {device} of this host is not a {kind}"),
        (false, false) => format!("this host has no {kind} {device}"),
    };
    let next = format!("make one (`{}`), or name another", command.replace("NAME", device));
    Err(Problem::new("no_such_interface", message).with_next_step(next))
}

/// Whether a VM's datastore is there, and has room for what is to be allocated at once.
///
/// # Errors
/// `no_such_datastore` if its disk is not mounted; `no_space`.
pub fn check_datastore(used: &DatastoreConfig, spec: &VmSpec) -> Result<(), Problem> {
    let now = capacity::datastore(used);
    let shown = used.path.display();
    match now.state {
        DatastoreState::Missing => {
            let why = now.reason.unwrap_or_default();
            let problem = Problem::new("no_such_datastore", format!("datastore {shown} is not there: {why}"));
            return Err(problem.with_next_step("mount the disk that it is on"));
        }
        DatastoreState::Full | DatastoreState::Ready => {}
    }
    let is_new = |disk: &&Disk| disk.thick && !spec.volume_path(&disk.name).exists();
    let wanted: u64 = spec.disks.iter().filter(is_new).map(|disk| disk.size_bytes.bytes()).sum();
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

#[cfg(test)]
mod tests {
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
        check_machine(&root, 1 << 30, &spec).unwrap();
        let refused = check_machine(&root, (1 << 30) - 1, &spec).unwrap_err();
        assert_eq!(refused.code, "too_much_memory");
        assert!(refused.message.contains("web1"), "{refused}");
    }

    #[test]
    fn bridges_and_taps_are_there_and_are_such() {
        let tree = tempfile::tempdir().unwrap();
        let root = Root::at(tree.path());
        for directory in ["br0/bridge", "eth0"] {
            std::fs::create_dir_all(tree.path().join("sys/class/net").join(directory)).unwrap();
        }
        let nic = |network: &str| {
            let nics = format!(r#","nics":[{{"mac":"52:54:00:00:00:01","network":{network}}}]"#);
            check_machine(&root, u64::MAX, &spec(Path::new("/srv"), &nics))
        };
        nic(r#"{"bridge":{"bridge":"br0"}}"#).unwrap();
        for (network, says) in [
            (r#"{"bridge":{"bridge":"br7"}}"#, "no bridge br7"),
            (r#"{"bridge":{"bridge":"eth0"}}"#, "eth0 of this host is not a bridge"),
            (r#"{"tap":{"device":"tap7"}}"#, "no tap device tap7"),
        ] {
            let refused = nic(network).unwrap_err();
            assert_eq!(refused.code, "no_such_interface");
            assert!(refused.message.contains(says) && refused.next_step.is_some(), "{refused}");
        }
    }

    #[test]
    fn a_datastore_that_is_not_mounted_or_has_no_room_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let id = strongroom_datastore::file::identify(scratch.path()).unwrap();
        let used = DatastoreConfig { path: scratch.path().to_owned(), id };
        let disk = |thick| {
            format!(
                r#","disks":[{{"name":"disk0","size_bytes":{},"key":"unencrypted","thick":{thick}}}]"#,
                1u64 << 46
            )
        };
        check_datastore(&used, &spec(scratch.path(), &disk(false))).unwrap();
        let refused = check_datastore(&used, &spec(scratch.path(), &disk(true))).unwrap_err();
        assert_eq!(refused.code, "no_space");
        let unmounted = DatastoreConfig { id: DatastoreId::random(), ..used };
        let refused = check_datastore(&unmounted, &spec(scratch.path(), "")).unwrap_err();
        assert_eq!(refused.code, "no_such_datastore");
    }
}
