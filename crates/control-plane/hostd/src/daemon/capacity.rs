//! The resources of this host, total and free.

use std::collections::BTreeSet;
use std::path::Path;

use strongroom_datastore::file::storage::file_system_of;
use strongroom_datastore::file::{DatastoreError, identity};
use strongroom_host::protocol::{
    Accelerator, Capabilities, Datastore, DatastoreState, Problem, Programs, QemuFound, Topology,
};
use strongroom_hypervisor::firmware::Ovmf;
use strongroom_hypervisor::network::passt;
use strongroom_hypervisor::{QemuProgram, swtpm};
use strongroom_types::DatastoreId;

use super::config::DatastoreConfig;

/// With less free space than this, in bytes, a datastore counts as full: this leaves room for
/// metadata and for deletions.
const FULL_BELOW_BYTES: u64 = 64 << 20;

/// The processors that this process may use.
pub fn cpus() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// The id of the machine's last start.
pub fn boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim_end().to_owned())
}

/// The model of the first processor, as the kernel names it.
pub fn cpu_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(line.trim_start_matches([' ', '\t', ':']).to_owned())
}

/// Total memory, and memory that is available without swapping, in bytes.
pub fn memory_bytes() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    (field_kib(&text, "MemTotal:") * 1024, field_kib(&text, "MemAvailable:") * 1024)
}

fn field_kib(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
    line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The processors and memory nodes.
pub fn topology() -> Topology {
    let read = |path: &Path| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let (mut sockets, mut cores, mut threads) = (BTreeSet::new(), BTreeSet::new(), 0);
    for number in numbered(Path::new("/sys/devices/system/cpu"), "cpu") {
        let topology = Path::new("/sys/devices/system/cpu").join(format!("cpu{number}/topology"));
        let Some(socket) = read(&topology.join("physical_package_id")) else { continue };
        cores.insert((socket.clone(), read(&topology.join("core_id"))));
        sockets.insert(socket);
        threads += 1;
    }
    let nodes = numbered(Path::new("/sys/devices/system/node"), "node").into_iter();
    let node_memory_bytes = nodes
        .filter_map(|number| {
            let text = read(&Path::new("/sys/devices/system/node").join(format!("node{number}/meminfo")))?;
            Some(field_kib(&text, &format!("Node {number} MemTotal:")) * 1024)
        })
        .collect();
    let count = |found: usize| u32::try_from(found).unwrap_or(u32::MAX);
    Topology { sockets: count(sockets.len()), cores: count(cores.len()), threads, node_memory_bytes }
}

/// Returns the numbers after `prefix` in the names of a directory's entries.
fn numbered(directory: &Path, prefix: &str) -> BTreeSet<u32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

/// The accelerator for guests, as the probe of this QEMU found it. That `/dev/kvm` opens proves
/// little, since the kernel may offer no virtualisation.
pub fn accelerator(qemu: Option<&QemuProgram>) -> Accelerator {
    if qemu.is_some_and(|qemu| qemu.kvm().is_ok()) { Accelerator::Kvm } else { Accelerator::Tcg }
}

/// What this QEMU can give to guests, if that is known.
pub fn capabilities(qemu: Option<&QemuProgram>) -> Option<Capabilities> {
    let asked = qemu?.capabilities();
    asked.inspect_err(|why| tracing::warn!("what QEMU can give to guests is not known: {why}")).ok().cloned()
}

/// The programs that VMs are started with: this QEMU, and other installed programs.
pub fn programs(qemu: Option<&QemuProgram>) -> Programs {
    Programs {
        qemu: qemu
            .map(|qemu| QemuFound { path: qemu.path().to_owned(), version: qemu.version().to_string() }),
        uefi: Ovmf::find().ok().map(|ovmf| ovmf.code),
        passt: passt::find().map(Path::to_owned),
        swtpm: swtpm::find().map(Path::to_owned),
    }
}

/// The state of a datastore that cannot be used.
pub fn missing(config: &DatastoreConfig, reason: String) -> Datastore {
    Datastore {
        path: config.path.clone(),
        id: None,
        total_bytes: 0,
        free_bytes: 0,
        state: DatastoreState::Missing,
        reason: Some(reason),
        redundancy: None,
    }
}

/// Returns the state of a datastore.
pub fn datastore(config: &DatastoreConfig) -> Datastore {
    try_datastore(config).unwrap_or_else(|error| missing(config, error.to_string()))
}

/// As [`datastore`].
///
/// # Errors
/// If it cannot be read.
pub fn try_datastore(config: &DatastoreConfig) -> Result<Datastore, DatastoreError> {
    let path = config.path.clone();
    let missing = |reason: String| Ok(missing(config, reason));
    match identity(&path)? {
        Some(id) if id == config.id => {}
        Some(id) => return missing(format!("another datastore ({id}) is there now")),
        None => return missing("the directory is no datastore now; is its disk mounted?".to_owned()),
    }
    let space = file_system_of(&path)?;
    let (total_bytes, free_bytes, redundancy) = (space.total_bytes, space.available_bytes, space.redundancy);
    let full = free_bytes < FULL_BELOW_BYTES;
    let state = if full { DatastoreState::Full } else { DatastoreState::Ready };
    let reason = full.then(|| "there is no room for anything new".to_owned());
    Ok(Datastore { path, id: Some(config.id), total_bytes, free_bytes, state, reason, redundancy })
}

/// Checks that a directory is the datastore with this id. Marks nothing.
///
/// # Errors
/// `other_datastore`.
pub fn must_be(path: &Path, expected: DatastoreId) -> Result<DatastoreId, Problem> {
    let shown = path.display();
    let why = match identity(path)? {
        Some(id) if id == expected => return Ok(id),
        Some(id) => format!("{shown} is datastore {id}, and not {expected}"),
        None => format!("{shown} bears no mark of a datastore"),
    };
    Err(Problem::new("other_datastore", why)
        .with_next_step("mount the datastore's own storage there, or name the directory where it is mounted"))
}

/// Checks whether a directory may be used as a datastore. `known` is the datastore that was used at
/// this path before.
///
/// Creates no missing directory: the directory below the mount point of an unmounted disk is on the
/// root file system, and would receive VMs that belong on the disk.
///
/// # Errors
/// `no_such_directory`; `not_mounted` if the path was a datastore and has no mark now.
pub fn may_be_used(path: &Path, known: Option<&DatastoreConfig>) -> Result<(), Problem> {
    let shown = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => {
            let problem = Problem::new("no_such_directory", format!("{shown} is not a directory"));
            return Err(problem.with_next_step("name a directory"));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let problem = Problem::new("no_such_directory", format!("there is no directory {shown}"));
            return Err(
                problem.with_next_step(format!("`mkdir -p {shown}`, or mount the disk that it is on"))
            );
        }
        Err(error) => return Err(Problem::new("no_such_directory", format!("{shown}: {error}"))),
    }
    let Some(known) = known else { return Ok(()) };
    match identity(path) {
        Ok(Some(_)) => Ok(()),
        Ok(None) => {
            let message = format!("{shown} was datastore {}, and bears no mark of it now", known.id);
            let next =
                "mount the disk that it is on; if that datastore is gone for good, use another directory";
            Err(Problem::new("not_mounted", message).with_next_step(next))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_processors_and_memory() {
        let (total, available) = memory_bytes();
        assert!(cpus() > 0 && total >= available && available > 0, "{total} {available}");
        assert_eq!(field_kib("Node 0 MemTotal:       17 kB\n", "Node 0 MemTotal:"), 17);
    }

    #[test]
    fn a_datastore_that_is_another_one_is_missing() {
        let scratch = tempfile::tempdir().unwrap();
        let id = strongroom_datastore::file::identify(scratch.path()).unwrap();
        let config = DatastoreConfig { path: scratch.path().to_owned(), id, ceph: None };
        let found = datastore(&config);
        assert_ne!(found.state, DatastoreState::Missing);
        assert!(found.total_bytes >= found.free_bytes && found.total_bytes > 0);
        let other = DatastoreConfig { id: strongroom_types::DatastoreId::random(), ..config };
        assert_eq!(datastore(&other).state, DatastoreState::Missing);
    }

    #[test]
    fn another_directory_than_the_expected_datastore_is_refused_and_not_marked() {
        let scratch = tempfile::tempdir().unwrap();
        let (one, none) = (scratch.path().join("one"), scratch.path().join("none"));
        for path in [&one, &none] {
            std::fs::create_dir(path).unwrap();
        }
        let id = strongroom_datastore::file::identify(&one).unwrap();
        assert_eq!(must_be(&one, id).unwrap(), id);
        assert_eq!(must_be(&one, DatastoreId::random()).unwrap_err().code, "other_datastore");
        assert_eq!(must_be(&none, id).unwrap_err().code, "other_datastore");
        assert_eq!(std::fs::read_dir(&none).unwrap().count(), 0);
    }

    #[test]
    fn a_missing_directory_and_an_unmounted_datastore_are_not_used_as_new_ones() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("ds");
        let refused = may_be_used(&path, None).unwrap_err();
        assert_eq!(refused.code, "no_such_directory");
        assert!(refused.next_step.unwrap().contains(&format!("mkdir -p {}", path.display())));
        assert!(!path.exists());
        std::fs::create_dir(&path).unwrap();
        may_be_used(&path, None).unwrap();
        let id = strongroom_datastore::file::identify(&path).unwrap();
        let known = DatastoreConfig { path: path.clone(), id, ceph: None };
        may_be_used(&path, Some(&known)).unwrap();
        // The directory below the mount point while the disk is not mounted.
        std::fs::remove_dir_all(&path).unwrap();
        assert_eq!(may_be_used(&path, Some(&known)).unwrap_err().code, "no_such_directory");
        std::fs::create_dir(&path).unwrap();
        assert_eq!(may_be_used(&path, Some(&known)).unwrap_err().code, "not_mounted");
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "nothing is made in it");
    }
}
