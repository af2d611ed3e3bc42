//! The memory of a suspended VM: sealed in its own volume `memory`, as a stream that is completely
//! verified before QEMU parses a byte of it. And those of snapshots, each in its own volume.
//!
//! ```text
//! suspend   guest stands still > disks durable > memory sealed, its end marked > `vm.json` says so > QEMU ends
//! start     disks served > memory fits and is verified > QEMU loads it > `vm.json` says so no more > guest goes on > volume gone
//! snapshot  memory sealed while the guest runs > guest stands still for the rest > snapshot of the disks > guest goes on > its end marked
//! revert    disks reverted > the snapshot's memory is copied into `memory`, for the disks as they are now > `vm.json` says so
//! ```
//!
//! `vm.json` decides. As long as it lists the memory, a kill of any process leaves the VM
//! suspended. Before and after, the volume belongs to no one, and the next start removes it. The
//! entry is removed *before* the guest resumes: otherwise a crash in between would let the guest
//! resume a second time, over disks that are ahead of its memory.
//!
//! The memory of a VM with a TPM has the TPM's state. The TPM's record names it before `vm.json`
//! does, and until the guest goes on: no other memory is taken up, whatever an attacker puts into
//! `vm.json`.

mod load;
mod put_back;
mod save;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_crypto::mac::sha256;
use strongroom_datastore::file::storage::{BY_PATH, EntryKind, is_gone};
use strongroom_datastore::file::{delete, describe};
use strongroom_host::protocol::{DiskKey, DiskName, Lineage, OwnVolume, Problem, SavedMemory, VmSpec};
use strongroom_host::served::served;
use strongroom_keys::Kek;
use strongroom_streams::{Medium, SLOT_BYTES_MAX, StreamError, StreamKind, StreamReader, StreamWriter};
use strongroom_types::{LayerId, SnapshotId, VmId, VolumeId, hex, unix_seconds_now};
use strongroom_vm::MachineVersion;
use uuid::Uuid;

pub use self::load::to_take_up;
pub use self::put_back::KeptMemory;
pub use self::save::{Guest, Saving};
use super::own_volume::{LOCK_WAIT, OpenOwnVolume};

/// The format of a memory's description.
const FORMAT: u32 = 1;
/// How long QEMU may take to report completion after the last byte.
const SAYS_WITHIN: Duration = Duration::from_secs(60);
/// The interval between queries.
const ASK_AGAIN: Duration = Duration::from_millis(5);

/// The properties that a VM must still have to resume a memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Needs {
    format: u32,
    vm: VmId,
    /// The snapshot that it belongs to; `None` for that of a suspended VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    snapshot: Option<SnapshotId>,
    /// The version of QEMU: another may use a different layout of device state.
    qemu: String,
    /// Whether KVM ran the processors, which differ without it.
    kvm: bool,
    /// SHA-256 of the part of the configuration that defines the machine.
    machine_sha256: String,
    /// The generation id, which the guest keeps.
    generation_id: Uuid,
    disks: Vec<DiskState>,
}

/// A disk as the guest left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct DiskState {
    name: DiskName,
    volume: VolumeId,
    top: LayerId,
    /// The layers that are not part of its present content: of the disk now.
    #[serde(skip)]
    aside: Vec<LayerId>,
    /// The generation of its descriptor. A greater one is accepted, since keys are rotated; a lower
    /// one was put back.
    generation: u64,
}

impl DiskState {
    /// Whether a disk that had this top has the same content, which a snapshot may have put below
    /// another top since, and a merge into a lower layer.
    fn has_content_of(&self, top: LayerId) -> bool {
        !self.aside.contains(&top)
    }
}

impl Needs {
    fn of(spec: &VmSpec, qemu: String, kvm: bool, generation_id: Uuid) -> Result<Self, Problem> {
        Ok(Self {
            format: FORMAT,
            vm: spec.id,
            snapshot: None,
            kvm,
            machine_sha256: machine_sha256(spec, &qemu)?,
            qemu,
            generation_id,
            disks: disk_states(spec)?,
        })
    }

    /// Checks the memory's needs against the present VM. Returns a sentence if they do not fit.
    fn fit(&self, now: &Self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("it is of format {}, and this program reads {FORMAT}", self.format));
        }
        if self.vm != now.vm {
            return Err(format!("it is of VM {}", self.vm));
        }
        if self.snapshot != now.snapshot {
            let of = self.snapshot.map_or("no snapshot".to_owned(), |id| format!("snapshot {id}"));
            return Err(format!("it is of {of}"));
        }
        if (&self.qemu, self.kvm) != (&now.qemu, now.kvm) {
            let with = |kvm| if kvm { "with KVM" } else { "without KVM" };
            return Err(format!(
                "it is of QEMU {} {}, and this host has {} {}",
                self.qemu,
                with(self.kvm),
                now.qemu,
                with(now.kvm)
            ));
        }
        if self.machine_sha256 != now.machine_sha256 {
            return Err("the VM's configuration was changed since".to_owned());
        }
        for (then, now) in self.disks.iter().zip(&now.disks) {
            if (&then.name, then.volume) != (&now.name, now.volume) {
                return Err(format!("disk {} is another one since", now.name));
            }
            if !now.has_content_of(then.top) {
                return Err(format!("disk {} was reverted since", now.name));
            }
            if now.generation < then.generation {
                return Err(format!("disk {} was put back to what it was before", now.name));
            }
        }
        Ok(())
    }
}

/// The hash covers the machine, but not its paths, nor facts about keys and volumes that the
/// control plane learns. Nor does it cover a machine type that has the version of this QEMU: a
/// machine without one has that, and the memory of a VM that has got it since still fits.
fn machine_sha256(spec: &VmSpec, qemu: &str) -> Result<String, Problem> {
    let mut spec = spec.clone();
    let is_its_own = |version: &MachineVersion| version.as_str() == format!("{}{qemu}", version.prefix());
    spec.board.machine_type.take_if(|version| is_its_own(version));
    spec.board.processor.take_if(|model| model.is_host());
    spec.datastore = PathBuf::new();
    spec.disks.iter_mut().for_each(|disk| disk.place = None);
    // The name that it was made with: a guest does not see that its VM is renamed.
    spec.name = spec.directory.take().unwrap_or(spec.name);
    for disk in &mut spec.disks {
        (disk.key, disk.least_generation, disk.volume) = (DiskKey::Unencrypted, 0, None);
    }
    spec.own_volumes.clear();
    spec.lineage = Lineage::default();
    let text = serde_json::to_vec(&spec).map_err(|error| Problem::new("internal", error.to_string()))?;
    Ok(hex::encode(&sha256(&text)))
}

fn disk_states(spec: &VmSpec) -> Result<Vec<DiskState>, Problem> {
    let state = |disk: &strongroom_host::protocol::Disk| {
        let descriptor = describe(&spec.volume_path(&disk.name))?.descriptor;
        let chain: Vec<LayerId> = descriptor.chain().map(|layer| layer.id).collect();
        let layers = descriptor.layers.iter().map(|layer| layer.id);
        let aside = layers.filter(|layer| !chain.contains(layer)).collect();
        let (volume, top, generation) = (descriptor.volume, descriptor.top, descriptor.generation);
        Ok(DiskState { name: disk.name.clone(), volume, top, aside, generation })
    };
    served(spec).iter().map(state).collect()
}

/// Removes the volume of a memory that is no longer listed.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(spec: &VmSpec, which: OwnVolume) -> Result<(), Problem> {
    let path = spec.own_volume_path(which);
    match is_gone(&path) {
        true => Ok(()),
        false => delete(&path, LOCK_WAIT).map_err(Problem::from),
    }
}

/// A memory that is being saved, and is not durable yet.
pub struct Copied {
    stream: StreamWriter<OpenOwnVolume>,
    volume: VolumeId,
}

impl Copied {
    /// Begins with this description, in an empty volume.
    fn begin(path: &Path, kek: Option<&Kek>, needs: &Needs) -> Result<Self, Problem> {
        let description =
            serde_json::to_vec(needs).map_err(|error| Problem::new("internal", error.to_string()))?;
        let volume = describe(path)?.descriptor.volume;
        let medium = OpenOwnVolume::open(path, kek).map_err(|error| error.problem())?;
        let stream = StreamWriter::begin(medium, StreamKind::Memory, volume, SLOT_BYTES_MAX, &description);
        Ok(Self { stream: stream.map_err(stream_problem)?, volume })
    }

    /// Makes it durable, and marks its end.
    ///
    /// # Errors
    /// If the volume fails.
    pub fn finish(self) -> Result<SavedMemory, Problem> {
        let (bytes, medium) = self.stream.finish().map_err(stream_problem)?;
        medium.close().map_err(|error| error.problem())?;
        Ok(SavedMemory { volume: self.volume, bytes, at_unix_seconds: unix_seconds_now() })
    }
}

/// Opens the stream of a memory. Returns it with its description.
fn open(
    path: &Path,
    kek: Option<&Kek>,
    memory: &SavedMemory,
) -> Result<(StreamReader<OpenOwnVolume>, Needs), String> {
    let volume = describe(path).map_err(|error| error.to_string())?.descriptor.volume;
    if volume != memory.volume {
        return Err(format!("it is volume {volume}, and should be {}", memory.volume));
    }
    let medium = OpenOwnVolume::open(path, kek).map_err(|error| error.to_string())?;
    let stream = StreamReader::open(medium, StreamKind::Memory, volume).map_err(|error| error.to_string())?;
    let needs = serde_json::from_slice(stream.description()).map_err(|error| error.to_string())?;
    Ok((stream, needs))
}

/// Whether a memory's volume exists.
pub fn is_there(spec: &VmSpec) -> bool {
    !is_gone(&spec.own_volume_path(OwnVolume::Memory))
}

/// Flushes the disks' files: a memory is only useful with all writes that the guest's disks have
/// acknowledged.
///
/// # Errors
/// If a file cannot be flushed.
pub fn make_disks_durable(spec: &VmSpec) -> io::Result<()> {
    for disk in served(spec) {
        let volume = BY_PATH.open_volume(&spec.volume_path(&disk.name))?;
        for name in volume.names()? {
            let synced = match volume.kind(&name) {
                Ok(EntryKind::File) => volume.open(&name, OFlags::RDONLY).and_then(|file| file.sync()),
                kind => kind.map(drop),
            };
            match synced {
                // A merge has removed a layer whose blocks are durable in another one.
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
    Ok(())
}

impl Medium for OpenOwnVolume {
    fn size_bytes(&self) -> u64 {
        self.size_bytes()
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, into).map_err(io::Error::other)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.write_at(offset, from).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush().map_err(io::Error::other)
    }
}

fn stream_problem(error: StreamError) -> Problem {
    Problem::new("memory", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_that_was_renamed_has_the_machine_that_it_had() {
        let text = r#"{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds","memory_bytes":268435456}"#;
        let spec: VmSpec = serde_json::from_str(text).unwrap();
        let machine_sha256 = |spec: &VmSpec| machine_sha256(spec, "7.2");
        let hash = machine_sha256(&spec).unwrap();
        // As a former version has made it.
        let former = VmSpec { datastore: PathBuf::new(), ..spec.clone() };
        assert_eq!(hash, hex::encode(&sha256(&serde_json::to_vec(&former).unwrap())));
        let renamed = VmSpec {
            name: "shop1".parse().unwrap(),
            directory: Some(spec.name.clone()),
            datastore: "/mnt/ds".into(),
            ..spec.clone()
        };
        assert_eq!(machine_sha256(&renamed).unwrap(), hash);
        let larger = VmSpec { memory_bytes: (512 << 20).try_into().unwrap(), ..renamed };
        assert_ne!(machine_sha256(&larger).unwrap(), hash);
        // What it had already is said now.
        let mut pinned = spec.clone();
        pinned.board.machine_type = Some("pc-q35-7.2".parse().unwrap());
        pinned.board.processor = Some("host".parse().unwrap());
        assert_eq!(machine_sha256(&pinned).unwrap(), hash);
        pinned.board.machine_type = Some("pc-q35-7.1".parse().unwrap());
        assert_ne!(machine_sha256(&pinned).unwrap(), hash);
        let mut other = spec;
        other.board.processor = Some("x86-64-v2".parse().unwrap());
        assert_ne!(machine_sha256(&other).unwrap(), hash);
    }

    #[test]
    fn a_memory_is_taken_up_by_the_machine_that_it_is_of_alone() {
        let disk = DiskState {
            name: "disk0".parse().unwrap(),
            volume: VolumeId::random(),
            top: LayerId::random(),
            aside: vec![LayerId::random()],
            generation: 4,
        };
        let now = Needs {
            format: FORMAT,
            vm: VmId::random(),
            snapshot: None,
            qemu: "7.2".to_owned(),
            kvm: false,
            machine_sha256: "00".to_owned(),
            generation_id: Uuid::new_v4(),
            disks: vec![disk.clone()],
        };
        let fit = |change: &dyn Fn(&mut Needs)| {
            let mut then = now.clone();
            change(&mut then);
            then.fit(&now)
        };
        assert_eq!(fit(&|_| {}), Ok(()));
        assert_eq!(fit(&|then| then.generation_id = Uuid::new_v4()), Ok(()), "it is what the guest keeps");
        assert_eq!(fit(&|then| then.disks[0].generation = 3), Ok(()), "a key was rotated");
        let refused = |change: &dyn Fn(&mut Needs)| fit(change).unwrap_err();
        assert!(refused(&|then| then.format = 2).contains("format 2"));
        assert!(refused(&|then| then.vm = VmId::random()).contains("it is of VM"));
        assert!(refused(&|then| then.snapshot = Some(SnapshotId::random())).contains("of snapshot"));
        assert!(refused(&|then| then.qemu = "8.0".to_owned()).contains("QEMU 8.0 without KVM"));
        assert!(refused(&|then| then.kvm = true).contains("with KVM"));
        assert!(refused(&|then| then.machine_sha256.push('0')).contains("configuration"));
        assert!(refused(&|then| then.disks[0].volume = VolumeId::random()).contains("another one"));
        let [below, aside] = [LayerId::random(), disk.aside[0]];
        assert_eq!(fit(&|then| then.disks[0].top = below), Ok(()), "a snapshot was made since");
        assert_eq!(fit(&|then| then.disks[0].top = LayerId::random()), Ok(()), "and merged");
        assert!(refused(&|then| then.disks[0].top = aside).contains("reverted"));
        assert!(refused(&|then| then.disks[0].generation = 5).contains("put back"));
    }
}
