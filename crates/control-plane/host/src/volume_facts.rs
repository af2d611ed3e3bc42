//! Facts about the volumes of a VM, from their descriptors. Reading them takes no key.

use std::path::{Path, PathBuf};

use strongroom_datastore::file::describe;
use strongroom_datastore::file::storage::is_gone;

use crate::protocol::{DiskKind, DiskName, Problem, VmSpec, VolumeFacts};

/// Returns the facts of a VM's volumes, except those that are recreated at each start.
///
/// # Errors
/// If a descriptor cannot be read, belongs to another volume, or is older than the known one: the
/// control plane would otherwise accept a volume that was put back or swapped.
pub fn facts(spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
    facts_at(spec, |name| spec.volume_path(name))
}

/// As [`facts`], for a VM whose directory is still being created: all of its volumes are in it.
///
/// # Errors
/// As [`facts`].
pub fn facts_in(directory: &Path, spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
    facts_at(spec, |name| directory.join(name.as_str()))
}

fn facts_at(spec: &VmSpec, path_of: impl Fn(&DiskName) -> PathBuf) -> Result<Vec<VolumeFacts>, Problem> {
    let known = spec.known_volumes();
    let facts = |name: DiskName| {
        let path = path_of(&name);
        let descriptor = describe(&path)?.descriptor;
        if let Some(known) = known.iter().find(|known| known.name == name) {
            descriptor.expect_volume(&path, Some(known.volume))?;
            descriptor.expect_generation(&path, known.least_generation)?;
        }
        Ok(VolumeFacts {
            disk: name,
            volume: descriptor.volume,
            kek: descriptor.encryption.as_ref().map(|encryption| encryption.kek.id),
            generation: descriptor.generation,
            size_bytes: Some(descriptor.size_bytes),
        })
    };
    let disks = spec.disks.iter().filter(|disk| disk.kind == DiskKind::Data).map(|disk| disk.name.clone());
    let own = spec.lasting_volumes().filter_map(|which| which.name().parse().ok());
    // A VM that an earlier version made lacks the volumes that are new in this one.
    let own = own.filter(|name: &DiskName| !is_gone(&path_of(name)));
    disks.chain(own).map(facts).collect()
}
