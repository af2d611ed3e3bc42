//! A simulated VM: what a host would report about it, without a guest.

use strongroom_host::protocol::{
    Contents, DiskChange, ObservedVm, ObservedVolume, OffReason, OperationKind, OperationOutcome,
    OperationRequest, PowerState, Problem, SnapshotChange, VmGeneration, VmReason, VmSnapshots, VmSpec,
    VolumeFacts, VolumeState,
};
use strongroom_types::{VolumeId, unix_seconds_now};

/// A VM of a simulated host.
#[derive(Debug)]
pub struct SimulatedVm {
    observed: ObservedVm,
    spec: VmSpec,
    snapshots: VmSnapshots,
}

impl SimulatedVm {
    /// A VM that was just made.
    pub fn new(spec: VmSpec) -> Self {
        let spec = with_volumes(spec);
        let observed = ObservedVm {
            vm: spec.id,
            name: spec.name.clone(),
            directory: spec.directory(),
            generation: VmGeneration(0),
            power: PowerState::Stopped,
            since_unix_seconds: unix_seconds_now(),
            supervisor_pid: None,
            supervisor_deaths: 0,
            qemu_pid: None,
            tpm_lost: false,
            network_lost: false,
            volumes: Vec::new(),
            reason: None,
            waiting_for: Vec::new(),
            suspended: None,
            dumps: Some(Vec::new()),
            snapshots: None,
            spec: None,
        };
        Self { observed, spec, snapshots: VmSnapshots::default() }
    }

    /// Its state.
    pub fn observed(&self) -> ObservedVm {
        ObservedVm {
            snapshots: Some(self.snapshots.clone()),
            spec: Some(Box::new(self.spec.clone())),
            ..self.observed.clone()
        }
    }

    /// Whether none of its processes would run.
    pub fn is_off(&self) -> bool {
        self.observed.power.is_off()
    }

    /// Its configuration.
    pub fn spec(&self) -> &VmSpec {
        &self.spec
    }

    /// The descriptors of its volumes.
    pub fn facts(&self) -> Vec<VolumeFacts> {
        let facts = self.spec.disks.iter().filter_map(|disk| {
            Some(VolumeFacts {
                disk: disk.name.clone(),
                volume: disk.volume?,
                kek: None,
                generation: disk.least_generation,
                size_bytes: Some(disk.size_bytes),
            })
        });
        facts.collect()
    }

    /// Carries out an operation other than its creation and deletion.
    pub fn carry_out(&mut self, request: &OperationRequest) -> Result<Option<OperationOutcome>, Problem> {
        match &request.kind {
            OperationKind::Start { spec, how } => {
                self.start(
                    request.generation,
                    spec,
                    if how.paused { PowerState::Paused } else { PowerState::Running },
                )?;
                Ok(None)
            }
            OperationKind::Stop { force, .. } => {
                self.meant_for(request.generation)?;
                let reason = if *force { OffReason::ForcedOff } else { OffReason::Stopped };
                if !self.is_off() {
                    self.turn(reason.power(), Some((reason.code(), "it was stopped on request")));
                    self.observed.volumes.clear();
                }
                Ok(None)
            }
            OperationKind::Pause => self.switch(request, PowerState::Running, PowerState::Paused),
            OperationKind::Resume => self.switch(request, PowerState::Paused, PowerState::Running),
            OperationKind::Reset => self.switch(request, PowerState::Running, PowerState::Running),
            OperationKind::Configure { spec } => {
                self.spec = with_volumes((**spec).clone());
                Ok(Some(OperationOutcome::Volumes(self.facts())))
            }
            OperationKind::SetNics { spec, open: _ } => {
                (self.spec.nics, self.spec.boot_order) = (spec.nics.clone(), spec.boot_order.clone());
                Ok(None)
            }
            OperationKind::SetSizes { spec } => {
                (self.spec.cpus, self.spec.memory_bytes) = (spec.cpus, spec.memory_bytes);
                Ok(None)
            }
            OperationKind::ChangeDisk { spec, change } => self.change_disk(spec, change),
            OperationKind::ChangeSnapshots { change, .. } => self.change_snapshots(change),
            OperationKind::SupplyGrants => Ok(None),
            OperationKind::Create { .. }
            | OperationKind::Delete
            | OperationKind::Suspend
            | OperationKind::Dump { .. }
            | OperationKind::DeleteDump { .. }
            | OperationKind::ImportDisk { .. }
            | OperationKind::Rekey { .. }
            | OperationKind::SnapshotGroup { .. }
            | OperationKind::Leave { .. }
            | OperationKind::Arrive { .. }
            | OperationKind::Fetch { .. }
            | OperationKind::RemoveCopy { .. }
            | OperationKind::Offer
            | OperationKind::FetchLive(_)
            | OperationKind::Receive(_)
            | OperationKind::Send(_)
            | OperationKind::TakeUp
            | OperationKind::Settle { .. } => Err(not_simulated(request.kind.name())),
        }
    }

    fn start(&mut self, generation: VmGeneration, spec: &VmSpec, power: PowerState) -> Result<(), Problem> {
        if !self.is_off() && generation == self.observed.generation {
            return Ok(());
        }
        if !self.is_off() || generation <= self.observed.generation {
            let message = format!("start {generation} is not after start {}", self.observed.generation);
            return Err(Problem::new("old_generation", message));
        }
        self.spec = with_volumes(spec.clone());
        self.observed.generation = generation;
        self.turn(power, None);
        let volume = |fact: VolumeFacts| ObservedVolume {
            disk: fact.disk,
            state: VolumeState::Serving,
            worker_pid: None,
            restarts: 0,
            last_end: None,
            device_errors: 0,
            kek: None,
            lease: None,
        };
        self.observed.volumes = self.facts().into_iter().map(volume).collect();
        Ok(())
    }

    fn switch(
        &mut self,
        request: &OperationRequest,
        from: PowerState,
        to: PowerState,
    ) -> Result<Option<OperationOutcome>, Problem> {
        self.meant_for(request.generation)?;
        if self.observed.power != from && self.observed.power != to {
            return Err(Problem::new(
                "conflict",
                format!("VM {} is not as it should be for it", self.spec.name),
            ));
        }
        let reason = (to == PowerState::Paused).then_some(("paused_by_request", "it was paused on request"));
        self.turn(to, reason);
        Ok(None)
    }

    fn change_disk(
        &mut self,
        spec: &VmSpec,
        change: &DiskChange,
    ) -> Result<Option<OperationOutcome>, Problem> {
        match change {
            DiskChange::Add { .. }
            | DiskChange::Remove { .. }
            | DiskChange::Resize { .. }
            | DiskChange::Limit { .. } => {
                self.spec = with_volumes(change.applied_to(spec)?);
                Ok(Some(OperationOutcome::Volumes(self.facts())))
            }
            DiskChange::Bind { .. }
            | DiskChange::Unbind { .. }
            | DiskChange::Move(_)
            | DiskChange::Seal { .. } => Err(not_simulated("change_disk")),
        }
    }

    fn change_snapshots(&mut self, change: &SnapshotChange) -> Result<Option<OperationOutcome>, Problem> {
        match change {
            // It was asked for again.
            SnapshotChange::Create { snapshot } if self.snapshots.get(snapshot.id).is_some() => {}
            SnapshotChange::Create { snapshot } => {
                self.snapshots.check_new(snapshot)?;
                let disks = self.spec.disks.iter().map(|disk| disk.name.clone()).collect();
                self.snapshots.add(snapshot, disks, Contents::default());
            }
            SnapshotChange::Delete { snapshot } => self.snapshots.remove(*snapshot),
            SnapshotChange::Revert { .. } | SnapshotChange::Prepare { .. } | SnapshotChange::Keep { .. } => {
                return Err(not_simulated("change_snapshots"));
            }
        }
        Ok(Some(OperationOutcome::Volumes(self.facts())))
    }

    fn meant_for(&self, generation: VmGeneration) -> Result<(), Problem> {
        match self.is_off() || generation == self.observed.generation {
            true => Ok(()),
            false => Err(Problem::new("other_generation", "another start of the VM runs")),
        }
    }

    fn turn(&mut self, power: PowerState, reason: Option<(&str, &str)>) {
        self.observed.power = power;
        self.observed.since_unix_seconds = unix_seconds_now();
        self.observed.reason =
            reason.map(|(code, message)| VmReason { code: code.to_owned(), message: message.to_owned() });
    }
}

/// Gives disks without a volume one.
fn with_volumes(spec: VmSpec) -> VmSpec {
    let new = spec.disks.iter().filter(|disk| disk.volume.is_none()).map(|disk| VolumeFacts {
        disk: disk.name.clone(),
        volume: VolumeId::random(),
        kek: None,
        generation: 1,
        size_bytes: Some(disk.size_bytes),
    });
    let new: Vec<_> = new.collect();
    spec.with_facts(&new)
}

/// The problem of an operation that simulated hosts do not have.
pub fn not_simulated(what: &str) -> Problem {
    Problem::new("not_simulated", format!("a simulated host has no {what}"))
}

#[cfg(test)]
mod tests {
    use strongroom_host::protocol::{OperationId, StartOptions};

    use super::*;

    fn vm() -> SimulatedVm {
        let text = r#"{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds",
            "memory_bytes":268435456,"disks":[{"name":"disk0","size_bytes":1048576,"key":"unencrypted"}]}"#;
        SimulatedVm::new(serde_json::from_str(text).unwrap())
    }

    fn asked(generation: u64, kind: OperationKind) -> OperationRequest {
        let generation = VmGeneration(generation);
        OperationRequest { operation: OperationId::random(), generation, kind, grants: Vec::new() }
    }

    #[test]
    fn a_start_is_of_a_later_generation_and_an_order_of_an_old_one_is_refused() {
        let mut vm = vm();
        let start = || OperationKind::Start { spec: Box::new(self::vm().spec), how: StartOptions::default() };
        vm.carry_out(&asked(1, start())).unwrap();
        vm.carry_out(&asked(1, start())).unwrap();
        assert_eq!((vm.observed.power, vm.observed.volumes.len()), (PowerState::Running, 1));
        let stop = || OperationKind::Stop { force: true, timeout_s: 1 };
        assert_eq!(vm.carry_out(&asked(0, stop())).unwrap_err().code, "other_generation");
        vm.carry_out(&asked(1, stop())).unwrap();
        assert!(vm.is_off());
        assert_eq!(vm.carry_out(&asked(1, start())).unwrap_err().code, "old_generation");
    }
}
