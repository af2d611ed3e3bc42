//! The volumes of a VM that have a worker: its disks, and its own volumes that its guest reaches.

use strongroom_types::{IoLimits, MIN_VOLUME_BYTES, VolumeSize};

use crate::protocol::{Disk, DiskFrontend, DiskKind, DiskName, OwnVolume, VmSpec};

/// The size of a seed: the files for cloud-init (each up to 1 MiB, the limit of
/// `strongroom vm create`), and their file system.
const SEED_BYTES: u64 = 4 << 20;

/// The volumes that are served while the VM runs, in the order of their sockets: the disks first.
///
/// The VM's own volumes are served like disks, under the VM's own key. They use NBD, because the
/// firmware's flash memory is not a virtio device, and a seed is only read.
pub fn served(spec: &VmSpec) -> Vec<Disk> {
    let own = spec.lasting_volumes().filter(|which| REACHED.contains(which));
    let own = own.filter_map(|which| own_disk(spec, which));
    spec.disks.iter().cloned().chain(own).collect()
}

/// Returns the index of one of the VM's own volumes in [`served`].
pub fn index_of(spec: &VmSpec, which: OwnVolume) -> Option<usize> {
    let name = which.name();
    served(spec).iter().position(|disk| disk.name.as_str() == name)
}

/// Returns the disk that an image can be written to: a data disk, or the seed.
pub fn fillable(spec: &VmSpec, name: &DiskName) -> Option<Disk> {
    let seed = OwnVolume::Seed.name();
    let may = |disk: &Disk| spec.disks.contains(disk) || disk.name.as_str() == seed;
    served(spec).into_iter().find(|disk| disk.name == *name && may(disk) && disk.kind == DiskKind::Data)
}

/// The VM's own volumes that a guest can reach.
const REACHED: [OwnVolume; 2] = [OwnVolume::Nvram, OwnVolume::Seed];

/// The size is a minimum: a volume that is already filled, such as that of UEFI's variables, keeps
/// its own size.
fn own_disk(spec: &VmSpec, which: OwnVolume) -> Option<Disk> {
    let size_bytes = if which == OwnVolume::Seed { SEED_BYTES } else { MIN_VOLUME_BYTES };
    Some(Disk {
        name: which.name().parse::<DiskName>().ok()?,
        size_bytes: VolumeSize::new(size_bytes).ok()?,
        key: spec.own_key().clone(),
        kind: DiskKind::Data,
        frontend: DiskFrontend::Nbd,
        thick: false,
        integrity: false,
        least_generation: spec.known_volume(which).map_or(0, |known| known.least_generation),
        volume: spec.known_volume(which).map(|known| known.volume),
        limits: IoLimits::NONE,
        place: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_guest_reaches_is_served_and_what_keeps_data_is_filled() {
        let text = r#"{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds","memory_bytes":268435456,
            "firmware":"uefi","tpm":true,"seed":true,
            "disks":[{"name":"disk0","size_bytes":1048576,"key":"unencrypted"},
                     {"name":"swap0","kind":"swap","size_bytes":1048576,"key":"unencrypted"}]}"#;
        let spec: VmSpec = serde_json::from_str(text).unwrap();
        spec.check().unwrap();
        let names: Vec<_> = served(&spec).iter().map(|disk| disk.name.to_string()).collect();
        assert_eq!(names, ["disk0", "swap0", "nvram", "seed"]);
        assert_eq!((index_of(&spec, OwnVolume::Seed), index_of(&spec, OwnVolume::Vtpm)), (Some(3), None));
        let may = |name: &str| fillable(&spec, &name.parse().unwrap()).is_some();
        assert_eq!(["disk0", "swap0", "nvram", "seed", "vtpm"].map(may), [true, false, false, true, false]);
    }
}
