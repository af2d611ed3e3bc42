//! Where a VM goes with its volumes whose datastore no host that fits reaches: to another host's
//! datastore, the one with the most space.

use std::cmp::Reverse;

use strongroom_api::vm::PowerState;
use strongroom_api::{ErrorCode, Problem};
use strongroom_types::display_bytes;

use super::carried_moves::may_be_carried;
use super::compliance::lacks_redundancy;
use super::live_moves::may_move_live;
use super::moves::needs_elsewhere;
use super::placement::{Among, Choice, told_of};
use super::{Control, HostSeat};
use crate::inventory::{Index, Row};
use crate::records::{DatastoreRecord, VmRecord};

impl Control {
    /// Chooses the datastore of another host, and the host, for a VM whose volumes move with it.
    ///
    /// # Errors
    /// Why it does not stay in its datastore, and what keeps it from each of the others.
    pub(super) fn choose_elsewhere<'index>(
        &self,
        index: &'index Index,
        vm: &'index Row<VmRecord>,
        former: &'index HostSeat,
        among: &Among<'_>,
        in_own: Problem,
    ) -> Result<(Choice<'_>, &'index Row<DatastoreRecord>), Problem> {
        if in_own.code != ErrorCode::NoHost {
            return Err(in_own);
        }
        let others = index.datastores.iter().filter(|other| other.id != vm.datastore);
        let mut others: Vec<_> = others.map(|other| (self.left_bytes(index, other), other)).collect();
        others.sort_by_key(|(left_bytes, _)| Reverse(*left_bytes));
        let mut reasons = Vec::new();
        for (left_bytes, other) in others {
            match self.fits_elsewhere(index, vm, former, among, other, left_bytes) {
                Ok(choice) => return Ok((choice, other)),
                Err(problem) => reasons.push(format!("datastore {}: {}", other.name, problem.message)),
            }
        }
        let carried = match reasons.is_empty() {
            true => "there is no other datastore".to_owned(),
            false => reasons.join("; "),
        };
        let message = format!("{}; nor does it go with its volumes: {carried}", in_own.message);
        Err(Problem { message, ..in_own })
    }

    fn fits_elsewhere(
        &self,
        index: &Index,
        vm: &Row<VmRecord>,
        former: &HostSeat,
        among: &Among<'_>,
        other: &Row<DatastoreRecord>,
        left_bytes: u64,
    ) -> Result<Choice<'_>, Problem> {
        let needs = needs_elsewhere(index, vm, other, former);
        let choice = self.choose(index, &needs, among)?;
        self.reaches(choice.seat, other)?;
        self.must_have_room(index, choice.seat.id, needs.memory_bytes)?;
        let demanded = needs.policy.and_then(|policy| policy.rules.losses_survived);
        if let Some(lack) = demanded.and_then(|demanded| lacks_redundancy(index, other.id, demanded)) {
            return Err(Problem::new(ErrorCode::NoHost, format!("its volumes {lack}")));
        }
        may_be_carried(index, vm, former, choice.seat, other)?;
        if matches!(self.power_of(index, vm), PowerState::Running | PowerState::Paused) {
            may_move_live(vm, former, choice.seat)?;
        }
        // What a thin volume has allocated its host alone knows: if there is no room for it, the
        // copy fails, and the VM stays.
        let thick = vm.hardware.disks.iter().filter(|disk| disk.thick);
        let thick_bytes = thick.map(|disk| disk.size.bytes()).sum::<u64>();
        if left_bytes == 0 || left_bytes < thick_bytes {
            let left = display_bytes(left_bytes);
            let message = format!("it has room for {left}, without what is on its way there");
            return Err(Problem::new(ErrorCode::NoHost, message));
        }
        Ok(choice)
    }

    /// What is free in a datastore, as one of its hosts says, without what is on its way there, in
    /// bytes.
    fn left_bytes(&self, index: &Index, datastore: &DatastoreRecord) -> u64 {
        let free = datastore.mounts().filter_map(|mount| {
            let seen = self.seat(mount.host)?.seen();
            told_of(seen.state.as_ref()?, &mount.path).map(|told| told.free_bytes)
        });
        let coming = index.open_tasks().filter(|task| task.work.datastore_target() == Some(datastore.id));
        let coming = coming.filter_map(|task| index.vm(task.vm?));
        let coming_bytes = coming.map(|vm| vm.hardware.disk_bytes()).fold(0, u64::saturating_add);
        free.max().unwrap_or(0).saturating_sub(coming_bytes)
    }
}
