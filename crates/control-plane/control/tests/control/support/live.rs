//! VMs that move between hosts in memory while they run.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use strongroom_host::migration::{Place, Stay};
use strongroom_host::protocol::{
    FetchingLive, Offer, OperationKind, OperationOutcome, OperationRequest, PowerState, Problem, Receiving,
    RunningMachine, Sending, VmGeneration,
};
use strongroom_types::VmId;
use uuid::Uuid;

use super::site::{FakeVm, HostInside};

/// What passes between two hosts, and who has a VM's volumes open.
#[derive(Default)]
pub struct Passing(Mutex<BTreeMap<VmId, Attempt>>);

struct Attempt {
    generation: VmGeneration,
    /// The guest, once its memory has passed.
    memory: Option<FakeVm>,
    /// Whether the source has closed the volumes.
    is_released: bool,
    /// Whether the target has opened them.
    is_taken_up: bool,
    /// Whether it has fetched them.
    with_volumes: bool,
}

impl Attempt {
    fn begun(generation: VmGeneration, with_volumes: bool) -> Self {
        Self { generation, memory: None, is_released: false, is_taken_up: false, with_volumes }
    }
}

/// The port of every relay.
const PORT: u16 = 6000;

impl HostInside {
    /// Carries out an operation of a live move.
    pub fn live(
        &mut self,
        id: VmId,
        request: &OperationRequest,
    ) -> Result<Option<OperationOutcome>, Problem> {
        if let Some((_, code)) = self.live_orders_that_fail.pop_if(|(name, _)| *name == request.kind.name()) {
            return Err(Problem::new(code, "it does not"));
        }
        let passing = std::sync::Arc::clone(&self.storage.lock().passing);
        let mut passing = passing.0.lock();
        let attempt = request.generation;
        let settings = match &request.kind {
            OperationKind::FetchLive(fetching) => Some(fetching.settings),
            OperationKind::Receive(receiving) => Some(receiving.settings),
            OperationKind::Send(sending) => Some(sending.settings),
            _ => None,
        };
        let limit = settings.map(|settings| (request.kind.name(), Some(settings.bytes_per_second)));
        self.limits.extend(limit);
        match &request.kind {
            OperationKind::Offer => {
                let vm = self.vms.get(&id).filter(|vm| VmGeneration(vm.generation) == attempt);
                let vm = vm.ok_or_else(|| Problem::new("not_running", "it does not run so"))?;
                let machine =
                    RunningMachine { generation_id: Uuid::nil(), qemu: "7.2".to_owned(), kvm: true };
                let (paused, spec) = (vm.power == PowerState::Paused, Box::new(vm.spec.clone()));
                Ok(Some(OperationOutcome::Offer(Box::new(Offer { machine, paused, spec }))))
            }
            OperationKind::FetchLive(fetching) => {
                let FetchingLive { offer, handover, .. } = &**fetching;
                if !self.datastores.contains_key(&offer.spec.datastore) {
                    self.violations.push(format!("{} comes to no datastore of this host", offer.spec.name));
                }
                if self.vms.get(&id).is_none_or(|vm| vm.power.is_off()) {
                    self.stay(id, attempt, Place::Coming)?;
                }
                self.fetch(id, request, &offer.spec, *handover)?;
                if let Some(vm) = self.vms.get_mut(&id) {
                    (vm.generation, vm.power) = (attempt.0, PowerState::Starting);
                }
                passing.insert(id, Attempt::begun(attempt, true));
                Ok(None)
            }
            OperationKind::Receive(receiving) => {
                let Receiving { offer, .. } = &**receiving;
                if passing.get(&id).is_some_and(|known| known.generation == attempt && known.with_volumes)
                    && self.vms.get(&id).is_some_and(|vm| !vm.power.is_off())
                {
                    return Ok(Some(OperationOutcome::Listening(([127, 0, 0, 1], PORT).into())));
                }
                if self.vms.get(&id).is_some_and(|vm| !vm.power.is_off()) {
                    return Err(Problem::new("running", "it is here"));
                }
                if !self.datastores.contains_key(&offer.spec.datastore) {
                    self.violations.push(format!("{} comes to no datastore of this host", offer.spec.name));
                }
                self.take_grants(&request.grants, &offer.spec)?;
                self.stay(id, attempt, Place::Coming)?;
                passing.insert(id, Attempt::begun(attempt, false));
                let vm = FakeVm {
                    generation: attempt.0,
                    power: PowerState::Starting,
                    ..FakeVm::new(&offer.spec, BTreeMap::new())
                };
                self.vms.insert(id, vm);
                Ok(Some(OperationOutcome::Listening(([127, 0, 0, 1], PORT).into())))
            }
            OperationKind::Send(sending) => {
                let Sending { running, to, with_volumes, .. } = &**sending;
                let leaving = Stay { generation: attempt, place: Place::Leaving };
                if self.residences.get(&id) == Some(&leaving) {
                    return Err(Problem::new("leaving", "it is leaving, in a sending that was interrupted"));
                }
                let vm = self.vms.get_mut(&id).filter(|vm| VmGeneration(vm.generation) == *running);
                let vm = vm.ok_or_else(|| Problem::new("not_running", "it does not run so"))?;
                let awaited = passing.get_mut(&id).filter(|known| known.generation == attempt);
                let Some(awaited) = awaited.filter(|_| to.port() == PORT) else {
                    return Err(Problem::new("relay", "nobody listens"));
                };
                if awaited.with_volumes != *with_volumes {
                    self.violations.push(format!("{id} has volumes at its target, or has not"));
                }
                awaited.memory = Some(vm.clone());
                vm.power = PowerState::Paused;
                self.stay(id, attempt, Place::Leaving)?;
                awaited.is_released = true;
                Ok(None)
            }
            OperationKind::TakeUp => {
                let here = Stay { generation: attempt, place: Place::Coming };
                let awaited = passing.get_mut(&id).filter(|known| known.generation == attempt);
                let awaited = awaited.filter(|_| self.residences.get(&id) == Some(&here));
                let awaited = awaited.ok_or_else(|| Problem::new("other_generation", "it does not come"))?;
                if !awaited.is_released {
                    self.violations.push(format!("{id} was opened while its source has it open"));
                }
                awaited.is_taken_up = true;
                let with_volumes = awaited.with_volumes;
                Ok(with_volumes.then(|| OperationOutcome::Volumes(self.arrived(id))))
            }
            OperationKind::Settle { here } => {
                let known = self.residences.get(&id).filter(|known| known.generation == attempt).copied();
                let was = known.map(|known| known.place);
                self.stay(id, attempt, if *here { Place::Here } else { Place::Left })?;
                let of_attempt = passing.get_mut(&id).filter(|known| known.generation == attempt);
                if of_attempt.as_ref().is_some_and(|known| known.with_volumes) && was.is_some() && !here {
                    self.copies.insert(id);
                }
                match (was, here) {
                    (Some(Place::Coming), true) => {
                        let passed = of_attempt.filter(|known| known.is_taken_up && known.is_released);
                        match passed.and_then(|known| known.memory.take()) {
                            Some(vm) => {
                                let (spec, generation) = (self.vms[&id].spec.clone(), attempt.0);
                                self.vms.insert(id, FakeVm { spec, generation, ..vm });
                            }
                            None => self.violations.push(format!("{id} goes on without its memory")),
                        }
                        passing.remove(&id);
                    }
                    (Some(Place::Leaving), true) => {
                        // With volumes of its own, the target harms nothing.
                        if of_attempt.is_some_and(|known| known.is_taken_up && !known.with_volumes) {
                            self.violations.push(format!("{id} goes on while its target has it open"));
                        }
                        passing.remove(&id);
                        if let Some(vm) = self.vms.get_mut(&id) {
                            vm.power = PowerState::Running;
                        }
                    }
                    (Some(Place::Coming | Place::Leaving) | None, false) => {
                        if let Some(known) = of_attempt.filter(|_| was == Some(Place::Coming)) {
                            known.is_taken_up = false;
                        }
                        self.vms.remove(&id);
                    }
                    (Some(Place::Here | Place::Left) | None, _) => {}
                }
                Ok(None)
            }
            other => unreachable!("{} is no part of a live move", other.name()),
        }
    }

    fn stay(&mut self, id: VmId, generation: VmGeneration, place: Place) -> Result<(), Problem> {
        let stay = Stay { generation, place };
        let late = |refused: strongroom_host::migration::NotRecorded| {
            Problem::new("other_generation", refused.to_string())
        };
        stay.follows(self.residences.get(&id).copied()).map_err(late)?;
        self.residences.insert(id, stay);
        Ok(())
    }

    /// Whether a VM's guest may work here.
    pub fn works(&self, id: VmId) -> bool {
        let is_between = self.residences.get(&id).is_some_and(|known| known.place.is_between());
        self.vms.get(&id).is_some_and(|vm| !vm.power.is_off()) && !is_between
    }
}
