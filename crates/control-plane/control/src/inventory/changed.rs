//! Who hears of changes of the index: waiting requests, those that wait for one task, and what
//! settles VMs, reviews their alarms and reads volumes.

use std::collections::{BTreeSet, HashMap};

use parking_lot::Mutex;
use strongroom_types::{VmId, VolumeId};
use tokio::sync::watch;
use uuid::Uuid;

use super::catalog::Facet;
use super::index::Index;
use crate::records::{
    DatastoreRecord, HostRecord, ObservedRecord, PolicyRecord, Record, ScheduleRecord, TaskRecord, VmRecord,
    VolumeRecord,
};

/// Objects that have changed.
#[derive(Debug, PartialEq, Eq)]
pub enum ChangedObjects<Id> {
    /// Perhaps all of them.
    All,
    /// These.
    Some(BTreeSet<Id>),
}

impl<Id: Ord> ChangedObjects<Id> {
    fn add(&mut self, id: Id) {
        match self {
            Self::All => {}
            Self::Some(ids) => drop(ids.insert(id)),
        }
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Some(BTreeSet::new()))
    }
}

/// Changes that were not heard of yet, and who waits for some.
pub(super) struct Changed {
    revision: watch::Sender<u64>,
    vms: Mutex<ChangedObjects<VmId>>,
    unreviewed: Mutex<ChangedObjects<VmId>>,
    volumes: Mutex<ChangedObjects<VolumeId>>,
    tasks: Mutex<HashMap<Uuid, watch::Sender<()>>>,
}

impl Changed {
    /// An index was read whole at this revision.
    pub fn new(revision: u64) -> Self {
        Self {
            revision: watch::Sender::new(revision),
            vms: Mutex::new(ChangedObjects::All),
            unreviewed: Mutex::new(ChangedObjects::All),
            volumes: Mutex::new(ChangedObjects::All),
            tasks: Mutex::default(),
        }
    }

    /// Subscribes to all changes.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// Subscribes to the changes of one task that exists.
    pub fn subscribe_to_task(&self, task: Uuid) -> watch::Receiver<()> {
        self.tasks.lock().entry(task).or_default().subscribe()
    }

    /// Takes the VMs whose record, observed state, policy or host has changed since the last call.
    pub fn take_vms(&self) -> ChangedObjects<VmId> {
        self.vms.lock().take()
    }

    /// Takes the VMs whose alarms may differ since the last call.
    pub fn take_unreviewed(&self) -> ChangedObjects<VmId> {
        self.unreviewed.lock().take()
    }

    /// Takes the volumes whose record has changed since the last call.
    pub fn take_volumes(&self) -> ChangedObjects<VolumeId> {
        self.volumes.lock().take()
    }

    /// The index has the present value of this key. It is called while the index is locked, so that
    /// a caller that hears of it finds the value.
    pub fn note(&self, key: &[u8], index: &Index) {
        let Ok(key) = std::str::from_utf8(key) else { return };
        let of_vm = key.strip_prefix(VmRecord::PREFIX).or_else(|| key.strip_prefix(ObservedRecord::PREFIX));
        if let Some(vm) = of_vm.and_then(|id| id.parse().ok()) {
            self.vms.lock().add(vm);
            self.unreviewed.lock().add(vm);
        } else if let Some(volume) = key.strip_prefix(VolumeRecord::PREFIX).and_then(|id| id.parse().ok()) {
            self.volumes.lock().add(volume);
        } else if let Some(vm) = key.strip_prefix(ScheduleRecord::PREFIX).and_then(|id| id.parse().ok()) {
            self.unreviewed.lock().add(vm);
        } else if let Some(policy) = key.strip_prefix(PolicyRecord::PREFIX).and_then(|id| id.parse().ok()) {
            self.note_all_with(&Facet::Policy(policy), index);
        } else if let Some(host) = key.strip_prefix(HostRecord::PREFIX).and_then(|id| id.parse().ok()) {
            self.note_all_with(&Facet::Host(host), index);
        } else if let Some(datastore) =
            key.strip_prefix(DatastoreRecord::PREFIX).and_then(|id| id.parse().ok())
        {
            self.note_all_with(&Facet::Datastore(datastore), index);
        } else if let Some(task) = key.strip_prefix(TaskRecord::PREFIX).and_then(|id| id.parse().ok()) {
            if let Some(vm) = index.task(task).and_then(|known| known.vm) {
                self.unreviewed.lock().add(vm);
            }
            let mut tasks = self.tasks.lock();
            if let Some(waiting) = tasks.get(&task) {
                waiting.send_replace(());
                if waiting.receiver_count() == 0 {
                    tasks.remove(&task);
                }
            }
        }
    }

    /// Notes the VMs that have a policy or are on a host. One that is given it later, or leaves it,
    /// has a change of its own.
    fn note_all_with(&self, facet: &Facet, index: &Index) {
        let (mut vms, mut unreviewed) = (self.vms.lock(), self.unreviewed.lock());
        for vm in index.members(facet).iter().filter_map(|member| member.id().parse().ok()) {
            vms.add(vm);
            unreviewed.add(vm);
        }
    }

    /// The index was read whole.
    pub fn note_all(&self) {
        *self.vms.lock() = ChangedObjects::All;
        *self.unreviewed.lock() = ChangedObjects::All;
        *self.volumes.lock() = ChangedObjects::All;
        self.tasks.lock().retain(|_, waiting| {
            waiting.send_replace(());
            waiting.receiver_count() > 0
        });
    }

    /// The index is complete up to this revision.
    pub fn announce(&self, revision: u64) {
        self.revision.send_replace(revision);
    }
}
