//! The VMs of this host: those in its datastores, and those that are not off.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use strongroom_datastore::file::storage::{BY_PATH, is_gone};
use strongroom_host::protocol::{
    ChangedObject, Dump, ObservedVm, OffReason, PowerState, Problem, SavedMemory, VmGeneration, VmReason,
    VmSnapshots, VmSpec,
};
use strongroom_host::state_file::Off;
use strongroom_host::vm_directory::VmRecord;
use strongroom_types::{DatastoreId, VmId, unix_seconds_now};
use tokio::sync::watch;

use super::changes::ChangeLog;
use super::link::Link;

/// The data of the guest that a VM keeps while it is off, from its directory.
#[derive(Debug, Default)]
pub struct Kept {
    /// The saved memory.
    pub suspended: Option<SavedMemory>,
    /// Its dumps.
    pub dumps: Vec<Dump>,
    /// Its snapshots.
    pub snapshots: VmSnapshots,
}

impl From<&VmRecord> for Kept {
    fn from(record: &VmRecord) -> Self {
        let (suspended, dumps) = (record.suspended.clone(), record.dumps.clone());
        Self { suspended, dumps, snapshots: record.snapshots.clone() }
    }
}

/// All VMs.
#[derive(Debug)]
pub struct Vms {
    known: Mutex<BTreeMap<VmId, Entry>>,
    changes: Arc<ChangeLog>,
}

#[derive(Debug)]
struct Entry {
    observed: watch::Sender<ObservedVm>,
    link: Option<Arc<Link>>,
}

impl Vms {
    /// An empty list.
    pub fn new(changes: Arc<ChangeLog>) -> Self {
        Self { known: Mutex::default(), changes }
    }

    /// Adds the VMs that have a directory in a datastore and belong to this host. One that cannot
    /// be read does not hide the others. `path_of` has the directories of this host's datastores.
    pub fn scan(
        &self,
        datastore: &Path,
        path_of: impl Fn(DatastoreId) -> Option<PathBuf>,
        belongs: impl Fn(VmId) -> bool,
    ) {
        let names = match BY_PATH.open_directory(datastore).and_then(|opened| opened.names()) {
            Ok(names) => names,
            Err(errno) => {
                tracing::warn!("{} cannot be looked through: {errno}", datastore.display());
                return;
            }
        };
        for name in names.iter().filter(|name| !name.starts_with('.')) {
            let directory = datastore.join(name);
            match VmRecord::read(&directory) {
                Ok(None) => {}
                Ok(Some(record)) if !belongs(record.spec.id) => {}
                Ok(Some(mut record)) => {
                    // The present paths of the datastores count.
                    record.spec.place(datastore.to_owned(), &path_of);
                    self.found(&directory, record);
                }
                Err(error) => tracing::warn!("{error}"),
            }
        }
    }

    /// Forgets VMs that are off and whose directories are no longer in the datastore.
    pub fn forget_missing(&self, datastore: &Path) {
        let off = |vm: &ObservedVm| matches!(vm.power, PowerState::Stopped | PowerState::Crashed);
        for vm in self.all().iter().filter(|vm| vm.directory.parent() == Some(datastore)) {
            if off(vm) && is_gone(&vm.directory) {
                tracing::warn!("VM {} is off, and {} is gone", vm.name, vm.directory.display());
                self.forget(vm.vm);
            }
        }
    }

    fn found(&self, directory: &Path, record: VmRecord) {
        let vm = record.spec.id;
        let named = record.spec.directory_name();
        if directory.file_name().and_then(|name| name.to_str()) != Some(named.as_str()) {
            tracing::warn!(
                "{} is not the directory of VM {} in it, which is {named}; it is left alone",
                directory.display(),
                record.spec.name
            );
            return;
        }
        if let Some(known) = self.get(vm) {
            if known.directory != directory {
                let (directory, known) = (directory.display(), known.directory.display());
                tracing::error!(
                    "VM {vm} is in {known} and in {directory}: a copy. The second one is left alone"
                );
            }
            // A rescan says nothing new about a known VM, which may be running.
            return;
        }
        let kept = Kept::from(&record);
        self.set_off(record.spec, record.generation, None, kept);
    }

    /// Returns the state of a VM.
    pub fn get(&self, vm: VmId) -> Option<ObservedVm> {
        self.lock().get(&vm).map(|entry| entry.observed.borrow().clone())
    }

    /// Returns the states of all VMs, by id.
    pub fn all(&self) -> Vec<ObservedVm> {
        self.lock().values().map(|entry| entry.observed.borrow().clone()).collect()
    }

    /// The number of VMs that are not off.
    pub fn running(&self) -> usize {
        self.lock().values().filter(|entry| !entry.observed.borrow().power.is_off()).count()
    }

    /// Whether a VM with an encrypted disk is not off.
    pub fn encrypted_run(&self) -> bool {
        let runs =
            |vm: &ObservedVm| !vm.power.is_off() && vm.spec.as_ref().is_some_and(|spec| spec.is_encrypted());
        self.lock().values().any(|entry| runs(&entry.observed.borrow()))
    }

    /// Subscribes to a VM's state.
    pub fn watch(&self, vm: VmId) -> Option<watch::Receiver<ObservedVm>> {
        self.lock().get(&vm).map(|entry| entry.observed.subscribe())
    }

    /// Returns the supervisor of a VM that is not off.
    ///
    /// # Errors
    /// If the VM is off, or its supervisor has died and is being replaced.
    pub fn link(&self, vm: VmId) -> Result<Arc<Link>, Problem> {
        let known = self.lock();
        let entry = known.get(&vm).ok_or_else(|| no_such_vm(vm))?;
        entry.link.clone().ok_or_else(|| {
            let observed = entry.observed.borrow();
            let name = &observed.name;
            match observed.power.is_off() {
                true => Problem::new("not_running", format!("VM {name} is off"))
                    .with_next_step(format!("`strongroom vm start {name}` starts it")),
                false => {
                    let message = format!("the supervisor of VM {name} is being replaced");
                    Problem::new("supervisor_away", message).with_next_step("try again in a moment")
                }
            }
        })
    }

    /// Sets or clears the VM's supervisor.
    pub fn set_link(&self, vm: VmId, link: Option<Arc<Link>>) {
        if let Some(entry) = self.lock().get_mut(&vm) {
            entry.link = link;
        }
    }

    /// Records a state that the supervisor reports.
    pub fn observe(&self, vm: VmId, mut observed: ObservedVm) {
        if observed.vm != vm {
            tracing::error!("the supervisor of VM {vm} speaks of VM {}", observed.vm);
            return;
        }
        // The VM counts as off only when its supervisor has ended and released its place.
        if observed.power.is_off() {
            return;
        }
        self.change(vm, |now| {
            observed.spec = now.spec.take();
            // A supervisor of an earlier version does not report these.
            observed.dumps = observed.dumps.or_else(|| now.dumps.take());
            observed.snapshots = observed.snapshots.or_else(|| now.snapshots.take());
            *now = observed;
        });
    }

    /// Records that the VM is being started with this configuration.
    pub fn set_starting(&self, spec: &VmSpec, generation: VmGeneration) {
        let (dumps, snapshots) = self.get(spec.id).map(|now| (now.dumps, now.snapshots)).unwrap_or_default();
        let (dumps, snapshots) = (dumps.unwrap_or_default(), snapshots.unwrap_or_default());
        let kept = Kept { suspended: None, dumps, snapshots };
        let mut starting = self.off_as(spec.clone(), generation, None, kept);
        (starting.power, starting.reason) = (PowerState::Starting, None);
        self.set(starting);
    }

    /// Records that the VM's supervisor has died and is being replaced.
    pub fn set_orphaned(&self, vm: VmId) {
        self.change(vm, |now| {
            now.supervisor_pid = None;
            now.power = PowerState::Starting;
            let message = "its supervisor died; another one takes it over, and its guest waits for its disks";
            now.reason = Some(VmReason { code: "adopting".to_owned(), message: message.to_owned() });
        });
    }

    /// Records that the VM is off, the reason, and the data that it keeps.
    pub fn set_off(&self, spec: VmSpec, generation: VmGeneration, off: Option<&Off>, kept: Kept) {
        self.set(self.off_as(spec, generation, off, kept));
    }

    /// Removes a VM.
    pub fn forget(&self, vm: VmId) {
        if self.lock().remove(&vm).is_some() {
            self.changes.add(ChangedObject::Vm(vm));
        }
    }

    /// Records the VM's configuration, or that of its next start, and its snapshots.
    pub fn configure(&self, spec: VmSpec, snapshots: VmSnapshots) {
        self.change(spec.id, |now| {
            (now.spec, now.snapshots) = (Some(Box::new(spec)), Some(snapshots));
        });
    }

    /// Records the VM's dumps.
    pub fn set_dumps(&self, vm: VmId, dumps: Vec<Dump>) {
        self.change(vm, |now| now.dumps = Some(dumps));
    }

    fn off_as(
        &self,
        spec: VmSpec,
        generation: VmGeneration,
        off: Option<&Off>,
        Kept { suspended, dumps, snapshots }: Kept,
    ) -> ObservedVm {
        let unsaid = match (&suspended, generation) {
            (Some(_), _) => OffReason::Suspended,
            (None, VmGeneration(0)) => OffReason::NeverStarted,
            (None, _) => OffReason::Stopped,
        };
        let reason = off.map_or(unsaid, |off| off.reason);
        // A memory that could not be resumed, or whose VM was killed before it was, is still there.
        let power = if suspended.is_some() { PowerState::Suspended } else { reason.power() };
        let suspended_at = suspended.as_ref().map(|memory| memory.at_unix_seconds);
        let since = off.map(|off| off.at_unix_seconds).or(suspended_at).unwrap_or_else(unix_seconds_now);
        let message = off.map(|off| off.message.clone());
        ObservedVm {
            vm: spec.id,
            name: spec.name.clone(),
            directory: spec.directory(),
            generation,
            power,
            since_unix_seconds: since,
            supervisor_pid: None,
            supervisor_deaths: 0,
            qemu_pid: None,
            tpm_lost: false,
            network_lost: false,
            volumes: Vec::new(),
            reason: message.map(|message| VmReason { code: reason.code().to_owned(), message }),
            waiting_for: Vec::new(),
            suspended,
            dumps: Some(dumps),
            snapshots: Some(snapshots),
            spec: Some(Box::new(spec)),
        }
    }

    fn set(&self, observed: ObservedVm) {
        let vm = observed.vm;
        let mut known = self.lock();
        match known.get_mut(&vm) {
            Some(entry) => drop(entry.observed.send_replace(observed)),
            None => drop(known.insert(vm, Entry { observed: watch::Sender::new(observed), link: None })),
        }
        drop(known);
        self.changes.add(ChangedObject::Vm(vm));
    }

    fn change(&self, vm: VmId, change: impl FnOnce(&mut ObservedVm)) {
        if let Some(entry) = self.lock().get(&vm) {
            entry.observed.send_modify(change);
        }
        self.changes.add(ChangedObject::Vm(vm));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VmId, Entry>> {
        self.known.lock()
    }
}

/// The error for a missing VM.
pub fn no_such_vm(vm: VmId) -> Problem {
    Problem::new("no_such_vm", format!("this host knows no VM {vm}"))
}
