//! The volumes of a VM move to another host, which makes the VM of them there.
//!
//! | file | what |
//! |---|---|
//! | `give` | the host that has them answers questions |
//! | `give_beside` | the same, beside a guest that runs |
//! | `fetch` | the host that gets them asks, and makes the VM's directory |
//! | `fetch_beside` | the same, while the guest runs on the other host |
//!
//! Layers pass as they are stored, so nothing is decrypted. The host that gets them believes the
//! configuration of its order, the keys, and what the two say about the volumes; of the other host
//! it takes the lists of dumps and snapshots, which the VM's directory has.

mod fetch;
mod fetch_beside;
mod give;
mod give_beside;

use std::path::PathBuf;
use std::sync::Arc;

use strongroom_datastore::file::RelocateOptions;
use strongroom_host::protocol::{Disk, DiskKey, DiskKind, DiskName, OwnVolume, Problem, VmSpec};
use strongroom_keys::Kek;
use strongroom_types::VolumeId;

use crate::keys::VmKeys;
use crate::own_volume::{LOCK_WAIT, protection};
use crate::volumes::VolumeError;

pub use fetch::fetch;
pub use fetch_beside::{FetchesBeside, fetch_beside};
pub use give::give;
pub use give_beside::GivenBeside;

/// The name by which the VM's configuration is asked for.
const CONFIGURATION: &str = "vm.json";

/// A volume that moves with its VM.
struct MovingVolume<'a> {
    /// What the order says about it; absent for what the control plane does not know, such as a
    /// dump.
    volume: Option<VolumeId>,
    least_generation: u64,
    key: &'a DiskKey,
}

impl<'a> MovingVolume<'a> {
    /// The volume of a VM with this name, if it moves with it. A swap disk has nothing to move, and
    /// a VM that is suspended does not move.
    fn named(spec: &'a VmSpec, name: &str) -> Option<Self> {
        let name: DiskName = name.parse().ok()?;
        let moves = |disk: &&Disk| disk.name == name && disk.kind == DiskKind::Data && disk.place.is_none();
        let disk = spec.disks.iter().find(moves);
        let own = OwnVolume::named(name.as_str()).filter(|own| *own != OwnVolume::Memory);
        let key = match (disk, own) {
            (Some(disk), _) => &disk.key,
            (None, Some(_)) => spec.own_key(),
            (None, None) => return None,
        };
        let known = spec.known_volumes().into_iter().find(|known| known.name == name);
        let (volume, least_generation) = known.map_or((None, 0), |k| (Some(k.volume), k.least_generation));
        Some(Self { volume, least_generation, key })
    }

    /// A volume that a worker serves.
    fn served(disk: &'a Disk) -> Self {
        Self { volume: disk.volume, least_generation: disk.least_generation, key: &disk.key }
    }

    /// Holds its key.
    fn hold_key(&self, keys: &VmKeys, path: &std::path::Path) -> Result<Option<Arc<Kek>>, Problem> {
        let held = keys.hold_for(self.key, None);
        held.map_err(|error| VolumeError::Key { volume: PathBuf::from(path), error }.problem())
    }

    fn options<'k>(&self, kek: Option<&'k Kek>) -> RelocateOptions<'k> {
        let (protection, least_generation) = (protection(kek), self.least_generation);
        RelocateOptions { protection, lock_wait: LOCK_WAIT, least_generation }
    }
}

/// Refuses a VM that does not move like this.
fn check_moves(spec: &VmSpec) -> Result<(), Problem> {
    spec.check_whole()?;
    if spec.moving().is_some() {
        let message = format!("VM {} is between two keys", spec.name);
        return Err(
            Problem::new("rekey", message).with_next_step("complete `strongroom vm key rotate` first")
        );
    }
    if let Some(disk) = spec.disks.iter().find(|disk| disk.place.is_some()) {
        let message = format!("{} of VM {} is in another datastore than the VM", disk.name, spec.name);
        let next = format!("move it back first: `strongroom vm disk move {} {}`", spec.name, disk.name);
        return Err(Problem::new("disk_elsewhere", message).with_next_step(next));
    }
    if spec.tpm {
        let message = format!("VM {} has a TPM, whose state is in a directory of its host", spec.name);
        let next = "move it between hosts that share its datastore";
        return Err(Problem::new("tpm", message).with_next_step(next));
    }
    Ok(())
}
