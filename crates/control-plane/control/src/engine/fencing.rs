//! Hosts that are lost.
//!
//! ```text
//! fence   inventory: the host was declared lost, and gets no VM -> another host of each of its
//!         datastores on clusters: no write of the lost one can land any more -> inventory: it is
//!         shut out -> each of its VMs there: it is of another host, with the next generation
//!         -> that host: it has the VM, durably -> a VM that is wanted on is started there
//! admit   the host answers, and its machine has started again -> another host of each datastore:
//!         it may connect -> inventory: it gets VMs again -> the host looks at its datastores
//! ```
//!
//! A person declares that a host is lost; nothing here decides it. Only the cluster's refusal makes
//! it safe to start its VMs elsewhere, so VMs in directories of the host stay there. Each step may
//! be repeated.

use strongroom_api::host::{AdmitHost, FenceHost, Host};
use strongroom_api::task::TaskKind;
use strongroom_api::vm::{Lifecycle, PowerState};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_host::protocol::{Fencing, FencingRequest};
use strongroom_types::{CephUser, DatastoreId, VmId};
use uuid::Uuid;

use super::alarms::host_object;
use super::datastores::looked_through;
use super::moves::needs_elsewhere;
use super::placement::{Among, Choice};
use super::titles::moved_to;
use super::wishes::Caller;
use super::{Control, HostSeat};
use crate::inventory::{Draft, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{FencedHost, HostRecord, Mount, ObservedRecord, TaskRecord, VmRecord, Work};

/// A datastore on a cluster, of a host that is lost or back.
struct Shut {
    datastore: DatastoreId,
    name: String,
    /// The user that the host is to the cluster.
    user: CephUser,
    /// The other hosts that reach it.
    others: Vec<Uuid>,
}

impl Control {
    /// Declares a host lost: it is shut out from its datastores on clusters, and its VMs there are
    /// placed elsewhere.
    ///
    /// # Errors
    /// [`Problem`], also if it could not be shut out from each: its VMs stay where they are then.
    pub fn fence_host(&self, caller: &Caller, named: &str, wish: &FenceHost) -> Result<Host, Problem> {
        let seat = self.find_seat(Some(named))?;
        if wish.confirm != seat.name.as_str() {
            let message = format!("`confirm` is {:?}, and the host is called {}", wish.confirm, seat.name);
            return Err(problems::invalid(message).next("repeat the name of the host that is lost"));
        }
        if !wish.even_if_it_answers && self.hear_state(seat).is_ok() {
            let message = format!("host {} answers, so it is not lost", seat.name);
            return Err(problems::conflict(message).next(format!(
                "`strongroom host evacuate {}` moves its VMs; --even-if-it-answers cuts off the disks of those that run",
                seat.name
            )));
        }
        let boot_id = seat.seen().state.as_ref().and_then(|state| state.boot_id.clone());
        let shut = self.with_helper(seat)?;
        if shut.is_empty() {
            let message = format!(
                "host {} has no datastore on a cluster, and nobody can shut it out from its directories",
                seat.name
            );
            return Err(problems::conflict(message).next("its VMs start again when it does"));
        }
        let at_unix_ms = self.now_unix_ms();
        let message = format!("host {} is declared lost, and shut out from its clusters", seat.name);
        self.change(caller, message.clone(), |index, _| {
            let host = host_of(index, seat)?;
            // The start that was known first counts.
            let known = host.fenced.as_ref().and_then(|fenced| fenced.boot_id.clone());
            let boot_id = known.or_else(|| boot_id.clone());
            let fenced = Some(FencedHost { boot_id, at_unix_ms, complete: false });
            let message = format!("{message}, by {}", caller.name);
            Ok(((), self.fenced_draft(seat, host, fenced, "host.fencing", message)))
        })?;
        self.order_all(seat, &shut, Fencing::Fence)?;
        let message =
            format!("host {} is shut out from its clusters: nothing that it writes lands there", seat.name);
        self.race(|| {
            let draft = {
                let index = self.inventory.read();
                let host = host_of(&index, seat)?;
                let Some(fenced) = &host.fenced else {
                    return Err(
                        problems::conflict(format!("host {} was admitted meanwhile", seat.name)).into()
                    );
                };
                let fenced = Some(FencedHost { complete: true, ..fenced.clone() });
                self.fenced_draft(seat, host, fenced, "host.fenced", message.clone())
            };
            Ok(self.inventory.commit(draft)?)
        })?;
        self.place_all_elsewhere(caller, seat, &shut)?;
        self.show_host(named)
    }

    /// Makes the VMs of a fenced host that are in these datastores other hosts'. One that stays has
    /// an event that says why.
    fn place_all_elsewhere(&self, caller: &Caller, seat: &HostSeat, shut: &[Shut]) -> Result<(), Problem> {
        let fenced: Vec<DatastoreId> = shut.iter().map(|shut| shut.datastore).collect();
        let vms: Vec<VmId> = {
            let index = self.inventory.read();
            let there = |vm: &&Row<VmRecord>| vm.datastores().iter().all(|id| fenced.contains(id));
            index.vms_on(seat.id).filter(there).map(|vm| vm.id).collect()
        };
        for vm in vms {
            if let Err(problem) = self.place_elsewhere(caller, seat, vm) {
                tracing::warn!(host = %seat.name, %problem, "a VM of a fenced host stays there");
                let index = self.inventory.read();
                let Some(vm) = index.vm(vm) else { continue };
                let (object, message) =
                    (vm.object(), format!("VM {} stays of host {}: {problem}", vm.name, seat.name));
                drop(index);
                let draft = self.draft().event("vm.not_placed", &object, message, None);
                self.inventory.commit(draft).map_err(|failure| problems::failure(&failure))?;
            }
        }
        Ok(())
    }

    /// The change of what the inventory has of a host's fencing, with its event.
    fn fenced_draft(
        &self,
        seat: &HostSeat,
        host: &Row<HostRecord>,
        fenced: Option<FencedHost>,
        event: &'static str,
        message: String,
    ) -> Draft {
        let record = HostRecord { fenced, ..HostRecord::clone(&host.record) };
        self.draft().replace(host, &record).event(event, &host_object(seat), message, None)
    }

    /// Lets a host that was declared lost use its clusters again.
    ///
    /// # Errors
    /// [`Problem`], also if its machine has not started again.
    pub fn admit_host(&self, caller: &Caller, named: &str, wish: &AdmitHost) -> Result<Host, Problem> {
        let seat = self.find_seat(Some(named))?;
        let fenced = host_of(&self.inventory.read(), seat)?.fenced.clone();
        let Some(fenced) = fenced else {
            return Err(problems::conflict(format!("host {} was not declared lost", seat.name))
                .next("there is nothing to do"));
        };
        self.hear_state(seat).map_err(|error| problems::host(seat.name.as_str(), &error))?;
        let boot_id = seat.seen().state.as_ref().and_then(|state| state.boot_id.clone());
        let has_started_again = match (&fenced.boot_id, &boot_id) {
            (Some(before), Some(now)) => before != now,
            (None, Some(_)) => wish.has_started_again,
            (_, None) => false,
        };
        if !has_started_again {
            let (message, next) = match fenced.boot_id {
                Some(_) => (
                    format!(
                        "the machine of host {} has not started again since it was declared lost, and what runs there has lost its disks",
                        seat.name
                    ),
                    format!("restart the machine, and repeat `strongroom host admit {}`", seat.name),
                ),
                None => (
                    format!(
                        "it is not known whether the machine of host {} has started again since it was declared lost",
                        seat.name
                    ),
                    "restart the machine, and say so with --has-started-again".to_owned(),
                ),
            };
            return Err(problems::conflict(message).next(next));
        }
        self.order_all(seat, &self.with_helper(seat)?, Fencing::Admit)?;
        let message = format!("host {} may use its clusters again, and gets VMs", seat.name);
        self.change(caller, message.clone(), |index, _| {
            let host = host_of(index, seat)?;
            Ok(((), self.fenced_draft(seat, host, None, "host.admitted", message.clone())))
        })?;
        self.have_it_look(seat);
        self.show_host(named)
    }

    /// Has an admitted host look at its datastores on clusters, so that it gets VMs at once. One
    /// that cannot be read yet is looked at by the host again and again.
    fn have_it_look(&self, seat: &HostSeat) {
        let mounts: Vec<Mount> = {
            let index = self.inventory.read();
            let mounts = index.datastores.iter().filter_map(|datastore| datastore.on(seat.id));
            mounts.filter(|mount| mount.client.is_some()).cloned().collect()
        };
        for mount in mounts {
            if let Err(error) = seat.host.look_through(&looked_through(&mount)) {
                tracing::warn!(host = %seat.name, %error, "an admitted host does not look at its datastore");
            }
        }
        if let Err(error) = self.hear_state(seat) {
            tracing::warn!(host = %seat.name, %error, "an admitted host does not say how it is");
        }
    }

    /// The datastores on clusters of a host, each with the others that reach it.
    ///
    /// # Errors
    /// If one has no other host that answers.
    fn with_helper(&self, seat: &HostSeat) -> Result<Vec<Shut>, Problem> {
        let index = self.inventory.read();
        let of_host = index.datastores.iter().filter_map(|datastore| {
            let client = datastore.on(seat.id)?.client.as_ref()?;
            let others = datastore.mounts().map(|mount| mount.host).filter(|host| *host != seat.id);
            let (name, user) = (datastore.name.to_string(), client.user.clone());
            Some(Shut { datastore: datastore.id, name, user, others: others.collect() })
        });
        let all: Vec<Shut> = of_host.collect();
        for Shut { name, others, .. } in &all {
            if !others.iter().any(|host| self.seat(*host).is_some_and(HostSeat::is_up)) {
                return Err(no_helper(seat, name));
            }
        }
        Ok(all)
    }

    /// Has another host of each datastore fence, or admit, a host.
    fn order_all(&self, seat: &HostSeat, all: &[Shut], fencing: Fencing) -> Result<(), Problem> {
        for Shut { datastore, name, user, others } in all {
            let request = FencingRequest { datastore: *datastore, user: user.clone(), fencing };
            let mut refusal = Some(no_helper(seat, name));
            for other in others.iter().filter_map(|host| self.seat(*host)).filter(|other| other.is_up()) {
                match other.host.fence(&request) {
                    Ok(()) => {
                        refusal = None;
                        break;
                    }
                    Err(error) => refusal = Some(problems::host(other.name.as_str(), &error)),
                }
            }
            if let Some(problem) = refusal {
                let what = match fencing {
                    Fencing::Fence => "shut out from",
                    Fencing::Admit => "admitted to",
                };
                let message =
                    format!("host {} is not {what} datastore {name} yet: {}", seat.name, problem.message);
                return Err(Problem { message, ..problem }.next("see to the cluster, and repeat it"));
            }
        }
        Ok(())
    }

    /// Makes a VM of a fenced host another one's.
    fn place_elsewhere(&self, caller: &Caller, former: &HostSeat, vm: VmId) -> Result<(), Problem> {
        self.race(|| {
            let id = Uuid::now_v7();
            let (before, next, placed, reason) = {
                let index = self.inventory.read();
                let Some(vm) = index.vm(vm).filter(|vm| vm.host == former.id) else { return Ok(()) };
                if vm.lifecycle != Lifecycle::Present {
                    let message = format!("{} is not complete", problems::called(vm));
                    return Err(problems::conflict(message).into());
                }
                let Some(datastore) = index.datastore_of(vm) else {
                    return Err(problems::datastore_unknown(vm).into());
                };
                let needs = needs_elsewhere(&index, vm, datastore, former);
                let Choice { seat: next, reason } = self.choose(&index, &needs, &Among::AllBut(former.id))?;
                let seen = index.observed(vm.id).map_or(0, |seen| seen.generation);
                let generation = vm.generation_after(seen);
                (
                    vm.clone(),
                    next,
                    VmRecord { generation, task: Some(id), ..VmRecord::clone(&vm.record) },
                    reason,
                )
            };
            let placed = self.now_on(next.id, placed);
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            let message = format!(
                "{} is of host {} from now on, because host {} is lost{reason}",
                problems::called(&before),
                next.name,
                former.name
            );
            let task = self.task(id, TaskKind::VmMoveHost, before.object(), caller);
            let mut task = TaskRecord { vm: Some(vm), work: Work::TakeOver, ..task };
            task.task.title = moved_to(&task, next.name.as_str());
            let mut draft = self.draft().replace(&before, &placed).create(&task);
            if let Some(seen) = self.inventory.read().observed(vm) {
                // Nothing of it runs any more that reaches its disks.
                draft = draft.put(&ObservedRecord {
                    power: PowerState::Stopped,
                    since_unix_seconds: self.now_unix_ms() / 1000,
                    reason: None,
                    waiting_for: Vec::new(),
                    ..ObservedRecord::clone(&seen.record)
                });
            }
            let draft = draft.event("vm.placed", &before.object(), message, Some(id));
            self.inventory.commit(draft)?;
            self.schedule.wake(id);
            Ok(())
        })
    }
}

fn no_helper(seat: &HostSeat, datastore: &str) -> Problem {
    let message = format!(
        "no other host that answers reaches datastore {datastore}, which is to shut {} out",
        seat.name
    );
    Problem::new(ErrorCode::NoHost, message).next(format!(
        "have another one reach it: `strongroom datastore add-host {datastore} --host HOST --user client.HOST`"
    ))
}

fn host_of<'index>(index: &'index Index, seat: &HostSeat) -> Result<&'index Row<HostRecord>, Problem> {
    let host = by_name_or_id(&index.hosts, seat.name.as_str());
    host.ok_or_else(|| problems::not_found(ObjectKind::Host, seat.name.as_str()))
}
