//! VMs by what they are looked for with, and sums over them: what is asked of a few VMs, or of how
//! many there are, must not walk over all of them.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use strongroom_api::vm::PowerState;
use strongroom_types::{DatastoreId, ProviderKey, VmId};
use strongroom_vm::ProcessorModel;
use uuid::Uuid;

use crate::records::{DiskRecord, VmRecord};

/// The length of the parts by which names are found, in bytes. A shorter part of a name is in most
/// names of a site.
pub const NAME_PART_BYTES: usize = 3;

/// What some VMs have in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Facet {
    /// Each VM has it.
    Any,
    /// Their host.
    Host(Uuid),
    /// Their datastore.
    Datastore(DatastoreId),
    /// Their policy.
    Policy(Uuid),
    /// Their folder.
    Folder(Uuid),
    /// A network on which they have a card.
    Network(Uuid),
    /// A key of a disk.
    Key(ProviderKey),
    /// Their processor, if it is not that of the host.
    Processor(ProcessorModel),
    /// A VM whose layers they have.
    LayersOf(VmId),
    /// A tag's key.
    Tag(String),
    /// Whether they have encrypted disks.
    Encrypted(bool),
    /// What their host said last.
    Power(PowerState),
    /// Their record is from a backup that no host has confirmed.
    FromBackup,
    /// A part of their name in lower case.
    NamePart([u8; NAME_PART_BYTES]),
}

/// The parts of a text by which names that contain it are found. None if it is too short.
pub fn name_parts(text: &str) -> BTreeSet<[u8; NAME_PART_BYTES]> {
    let lower = text.to_ascii_lowercase();
    lower.as_bytes().windows(NAME_PART_BYTES).filter_map(|part| part.try_into().ok()).collect()
}

/// A VM in a set, in the order of names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    name: Arc<str>,
    id: Arc<str>,
}

impl Member {
    /// The key of its record.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The name of its VM.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn before_all(name: &str) -> Self {
        Self { name: name.into(), id: "".into() }
    }

    fn behind_all(name: &str) -> Self {
        // Ids are hexadecimal digits and hyphens.
        Self { name: name.into(), id: "~".into() }
    }
}

/// The VMs that have a facet.
#[derive(Clone, Debug, Default)]
pub struct Members {
    /// VMs, in the order of their names.
    pub vms: BTreeSet<Member>,
    /// Holders of volumes.
    pub holders: BTreeSet<Member>,
}

impl Members {
    const NONE: &'static Self = &Self { vms: BTreeSet::new(), holders: BTreeSet::new() };

    /// The VMs behind a name.
    pub fn vms_after(&self, name: Option<&str>) -> impl Iterator<Item = &Member> {
        let from = name.map_or(Bound::Unbounded, |name| Bound::Excluded(Member::behind_all(name)));
        self.vms.range((from, Bound::Unbounded))
    }

    /// The VMs before a name, the last one first.
    pub fn vms_before(&self, name: Option<&str>) -> impl Iterator<Item = &Member> {
        let to = name.map_or(Bound::Unbounded, |name| Bound::Excluded(Member::before_all(name)));
        self.vms.range((Bound::Unbounded, to)).rev()
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.vms.iter().chain(&self.holders)
    }

    /// The number of all of them.
    pub fn len(&self) -> usize {
        self.vms.len() + self.holders.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.vms.is_empty() && self.holders.is_empty()
    }

    /// Adds others.
    pub(super) fn add(&mut self, others: &Self) {
        self.vms.extend(others.vms.iter().cloned());
        self.holders.extend(others.holders.iter().cloned());
    }

    fn set(&mut self, is_holder: bool) -> &mut BTreeSet<Member> {
        if is_holder { &mut self.holders } else { &mut self.vms }
    }
}

/// Sums over the VMs of a host, or in a datastore.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sums {
    /// The memory of those that are ever started, in bytes.
    pub placed_bytes: u128,
    /// The memory of those that are on, in bytes.
    pub running_bytes: u128,
    /// The sizes of their disks, in bytes.
    pub disk_bytes: u128,
    /// Their volumes.
    pub volumes: usize,
}

impl Sums {
    /// What a VM adds to a facet: in a datastore only the disks that are there count.
    fn of(vm: &VmRecord, power: Option<PowerState>, facet: &Facet) -> Self {
        let is_counted = |disk: &&DiskRecord| match facet {
            Facet::Datastore(datastore) => vm.datastore_of(disk) == *datastore,
            _ => true,
        };
        let disks = || vm.hardware.disks.iter().filter(is_counted);
        let memory = u128::from(vm.hardware.memory.bytes());
        let is_on = power.is_some_and(|power| power.is_on() && power != PowerState::Unknown);
        Self {
            placed_bytes: if vm.is_run() { memory } else { 0 },
            running_bytes: if is_on { memory } else { 0 },
            disk_bytes: disks().map(|disk| u128::from(disk.size.bytes())).sum(),
            volumes: disks().filter(|disk| disk.volume.is_some()).count(),
        }
    }

    fn add(&mut self, other: &Self) {
        self.placed_bytes += other.placed_bytes;
        self.running_bytes += other.running_bytes;
        self.disk_bytes += other.disk_bytes;
        self.volumes += other.volumes;
    }

    fn take(&mut self, other: &Self) {
        self.placed_bytes -= other.placed_bytes;
        self.running_bytes -= other.running_bytes;
        self.disk_bytes -= other.disk_bytes;
        self.volumes -= other.volumes;
    }
}

/// What a VM is counted with.
struct Counted {
    member: Member,
    is_holder: bool,
    facets: Vec<Facet>,
    /// What it adds to each facet that is summed.
    sums: Vec<(Facet, Sums)>,
}

/// VMs by their facets.
#[derive(Default)]
pub(super) struct Catalog {
    members: HashMap<Facet, Members>,
    sums: HashMap<Facet, Sums>,
    counted: HashMap<Arc<str>, Counted>,
    /// The processors that VMs have had. There are few, and no more than QEMU has.
    processors: BTreeSet<ProcessorModel>,
}

impl Catalog {
    /// The VMs that have a facet.
    pub fn members(&self, facet: &Facet) -> &Members {
        self.members.get(facet).unwrap_or(Members::NONE)
    }

    /// Sums over the VMs that have a facet, which is a host, a datastore, or that of all.
    pub fn sums(&self, facet: &Facet) -> Sums {
        self.sums.get(facet).copied().unwrap_or_default()
    }

    /// The processors that VMs have, besides that of the host.
    pub fn processors(&self) -> impl Iterator<Item = (&ProcessorModel, &Members)> {
        let all = self.processors.iter();
        all.map(|model| (model, self.members(&Facet::Processor(model.clone()))))
            .filter(|(_, members)| !members.is_empty())
    }

    /// The set of one VM.
    pub fn alone(&self, id: &str) -> Members {
        let mut members = Members::default();
        if let Some(counted) = self.counted.get(id) {
            members.set(counted.is_holder).insert(counted.member.clone());
        }
        members
    }

    /// Counts a VM as it is now; `None` if it is gone.
    pub fn count(&mut self, id: &str, vm: Option<&VmRecord>, power: Option<PowerState>) {
        let facets = vm.map(|vm| facets_of(vm, power)).unwrap_or_default();
        let is_holder = vm.is_some_and(|vm| vm.holds_volume);
        let summed = facets.iter().filter(|facet| facet.is_summed());
        let sums: Vec<_> = vm.map_or_else(Vec::new, |vm| {
            summed.map(|facet| (facet.clone(), Sums::of(vm, power, facet))).collect()
        });
        let before = self.counted.remove(id);
        let is_same = |before: &Counted| {
            before.facets == facets
                && before.is_holder == is_holder
                && vm.is_some_and(|vm| *before.member.name == *vm.name.as_str())
        };
        if let Some(before) = &before {
            for (facet, sums) in &before.sums {
                if let Some(known) = self.sums.get_mut(facet) {
                    known.take(sums);
                }
            }
            if !is_same(before) {
                before.facets.iter().for_each(|facet| self.take_out(facet, before));
            }
        }
        let Some(vm) = vm else {
            self.sums.retain(|facet, _| self.members.contains_key(facet));
            return;
        };
        for (facet, added) in &sums {
            self.sums.entry(facet.clone()).or_default().add(added);
        }
        let counted = match before {
            Some(before) if is_same(&before) => Counted { sums, ..before },
            _ => {
                let member = Member { name: vm.name.as_str().into(), id: id.into() };
                for facet in &facets {
                    if let Facet::Processor(model) = facet {
                        self.processors.insert(model.clone());
                    }
                    let members = self.members.entry(facet.clone()).or_default();
                    members.set(is_holder).insert(member.clone());
                }
                Counted { member, is_holder, facets, sums }
            }
        };
        self.counted.insert(Arc::clone(&counted.member.id), counted);
    }

    fn take_out(&mut self, facet: &Facet, counted: &Counted) {
        if let MapEntry::Occupied(mut members) = self.members.entry(facet.clone()) {
            members.get_mut().set(counted.is_holder).remove(&counted.member);
            if members.get().is_empty() {
                members.remove();
            }
        }
    }
}

impl Facet {
    fn is_summed(&self) -> bool {
        matches!(self, Self::Any | Self::Host(_) | Self::Datastore(_))
    }
}

fn facets_of(vm: &VmRecord, power: Option<PowerState>) -> Vec<Facet> {
    let mut facets = vec![Facet::Any, Facet::Host(vm.host), Facet::Encrypted(vm.hardware.encrypted())];
    facets.extend(vm.datastores().into_iter().map(Facet::Datastore));
    facets.extend(power.map(Facet::Power));
    facets.extend(vm.policy.map(Facet::Policy));
    facets.extend(vm.folder.map(Facet::Folder));
    facets.extend(vm.from_backup.then_some(Facet::FromBackup));
    facets.extend(vm.hardware.board.processor.clone().filter(|model| !model.is_host()).map(Facet::Processor));
    facets.extend(vm.hardware.networks().map(Facet::Network));
    facets.extend(vm.hardware.keys().into_iter().map(Facet::Key));
    facets.extend(vm.shared().map(Facet::LayersOf));
    facets.extend(vm.tags.iter().map(|tag| Facet::Tag(tag.key().to_owned())));
    facets.extend(name_parts(vm.name.as_str()).into_iter().map(Facet::NamePart));
    facets
}
