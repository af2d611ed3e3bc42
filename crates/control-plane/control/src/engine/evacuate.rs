//! All VMs of a host move to others. The host is in maintenance from the request on, so it gets no
//! new ones.
//!
//! The move of a VM begins in the transaction that has it in the evacuation's record.

use strongroom_api::host::EvacuateHost;
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::MoveToHost;
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_types::counted;
use uuid::Uuid;

use super::Control;
use super::joining::host_object;
use super::live_moves::settings;
use super::moves::{IfOn, Volumes};
use super::placement::Among;
use super::sweep::{Begun, Sweeps, not_twice};
use super::titles::title;
use super::wishes::{Caller, stop_timeout};
use crate::inventory::{Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{Evacuation, Sweep, TaskRecord, VmRecord, Work};

impl Control {
    /// Requests that all VMs of a host move to others.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn evacuate_host(&self, caller: &Caller, named: &str, how: &EvacuateHost) -> Result<Task, Problem> {
        let timeout_s = stop_timeout(how.timeout_s)?;
        self.wish(caller, |index, id| {
            let host = by_name_or_id(&index.hosts, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, named))?;
            not_twice(
                index,
                |work| matches!(work, Work::Evacuate(now) if now.host == host.id),
                format!("host {} is being evacuated", host.name),
            )?;
            let task = self.task(id, TaskKind::HostEvacuate, host_object(host), caller);
            let EvacuateHost { shut_down, with_volumes, bytes_per_second, timeout_s: _ } = *how;
            let vms = Sweep::default();
            let evacuation =
                Evacuation { host: host.id, shut_down, timeout_s, with_volumes, bytes_per_second, vms };
            Ok((TaskRecord { work: Work::Evacuate(evacuation), ..task }, self.with_maintenance(host, true)))
        })
    }

    /// Has a VM move whose move is part of a larger task.
    pub(super) fn begin_move(
        &self,
        task: &Row<TaskRecord>,
        vm: &Row<VmRecord>,
        among: &Among<'_>,
        if_on: IfOn,
        volumes: Volumes<'_>,
    ) -> Result<Begun, Problem> {
        let index = self.inventory.read();
        let departure = self.departure(&index, vm, among, if_on, volumes)?;
        let id = Uuid::now_v7();
        let (departing, draft) = self.departing(vm, &departure, id);
        // It is asked for by those who asked for the whole, from where they did.
        let begun = self.task(id, TaskKind::VmMoveHost, vm.object(), &Caller::machine(&task.task.by));
        let asked = Task { from: task.task.from.clone(), ..begun.task };
        let mut child = TaskRecord {
            task: asked,
            vm: Some(vm.id),
            work: departure.work,
            asked: task.asked.clone(),
            ..begun
        };
        child.task.title = title(&index, &child);
        let placed = self.within_room(&index, &child, std::slice::from_ref(&departing), draft)?;
        Ok(Begun { task: id, draft: placed.create(&child) })
    }
}

/// What a sweep has failed with that moves VMs to other hosts, if it has.
pub(super) fn not_moved(vms: &Sweep, reasons: &str) -> Option<Problem> {
    let Sweep { done, left, .. } = vms;
    (!left.is_empty()).then(|| {
        let left = counted(left.len(), "VM");
        let message = format!("{left} could not be moved, and {done} were: {reasons}");
        Problem::new(ErrorCode::NoHost, message)
    })
}

impl Sweeps for Evacuation {
    const EVENT: &'static str = "host.evacuate";

    fn vms(&self) -> &Sweep {
        &self.vms
    }

    fn vms_mut(&mut self) -> &mut Sweep {
        &mut self.vms
    }

    fn into_work(self) -> Work {
        Work::Evacuate(self)
    }

    fn todo<'index>(&self, index: &'index Index) -> Vec<&'index Row<VmRecord>> {
        index.vms_on(self.host).collect()
    }

    fn begin(&self, control: &Control, task: &Row<TaskRecord>, vm: &Row<VmRecord>) -> Result<Begun, Problem> {
        let wish = MoveToHost { bytes_per_second: self.bytes_per_second, ..MoveToHost::default() };
        let if_on =
            IfOn { settings: settings(&wish)?, shut_down_s: self.shut_down.then_some(self.timeout_s) };
        let volumes = if self.with_volumes { Volumes::MoveIfNeeded } else { Volumes::Stay };
        control.begin_move(task, vm, &Among::AllBut(self.host), if_on, volumes)
    }

    fn failure(&self, _: &Index, reasons: &str) -> Option<Problem> {
        let not_moved = not_moved(&self.vms, reasons)?;
        Some(not_moved.next(
            "see to the reasons, and evacuate once more; --shut-down moves VMs that cannot move while they run, \
             too, and --with-volumes those whose datastores no other host reaches",
        ))
    }
}
