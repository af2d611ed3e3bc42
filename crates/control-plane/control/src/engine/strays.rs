//! VMs that run on a host that is not theirs.
//!
//! A VM's state is what its own host says. What another one says about it is no state, but a
//! reason for care: one that runs there with an earlier generation was given up and is ended, and
//! so is what an attempt to move it while it ran has left there. The VM is not started as long as a
//! host of its datastore says that it runs there.

use std::path::Path;

use strongroom_host::protocol::{OperationKind, VmGeneration};
use strongroom_types::VmId;
use uuid::Uuid;

use super::datastores::speaks_of_live_moves;
use super::observe::Present;
use super::settle::due;
use super::{Control, HostSeat};
use crate::inventory::{Index, Row};
use crate::records::{VmRecord, Work};

/// A VM that runs on a host that is not its own.
pub(super) struct Stray<'a> {
    seat: &'a HostSeat,
    pub vm: VmId,
    name: String,
    /// The generation that runs there.
    generation: u64,
    /// The last one of the VM that may not run there.
    over: u64,
}

impl Stray<'_> {
    /// What ends it, with its generation.
    fn order(&self) -> (OperationKind, u64) {
        // One that is between two hosts takes no other order.
        match speaks_of_live_moves(self.seat) {
            Ok(()) => (OperationKind::Settle { here: false }, self.over),
            Err(_) => (OperationKind::Stop { force: true, timeout_s: 0 }, self.generation),
        }
    }
}

impl Control {
    /// Ends VMs on hosts that are not theirs.
    pub(super) fn end_strays(&self, strays: &[Stray<'_>]) {
        for stray in strays {
            if !due(stray.seat, stray.vm, self.now_unix_ms()) {
                continue;
            }
            let (kind, generation) = stray.order();
            let (host, vm) = (&stray.seat.name, &stray.name);
            tracing::warn!(%host, %vm, generation = stray.generation, "the VM runs on a host that is not its own, and is ended there");
            if let Err(error) = stray.seat.order(stray.vm, VmGeneration(generation), kind, Vec::new()) {
                tracing::debug!(%host, %vm, %error, "it could not be ended");
            }
        }
    }

    /// The host that says that it runs this VM, which is another one's. Only hosts that reach its
    /// datastore could.
    pub(super) fn runs_elsewhere(&self, index: &Index, vm: &VmRecord) -> Option<&HostSeat> {
        let datastore = index.datastore_of(vm)?;
        self.hosts.iter().filter(|seat| seat.id != vm.host).find(|seat| {
            let Some(mount) = datastore.on(seat.id) else { return false };
            let below = Path::new(&mount.path);
            let seen = seat.seen();
            let runs = |place: &Present| !place.power.is_off() && place.directory.parent() == Some(below);
            seen.down.is_none() && seen.vms.get(&vm.id).is_some_and(|places| places.iter().any(runs))
        })
    }
}

/// The VM, if it was given up on a host that says that it runs there.
pub(super) fn stray<'a>(
    known: Option<&Row<VmRecord>>,
    seat: &'a HostSeat,
    vm: VmId,
    places: &[Present],
) -> Option<Stray<'a>> {
    let place = places.iter().find(|place| !place.power.is_off())?;
    let known = known.filter(|known| known.host != seat.id)?;
    let (name, generation) = (place.name.clone(), place.generation);
    // An earlier start, or an attempt to move it that was given up.
    let over = if generation < known.generation { known.generation } else { generation };
    (generation < known.generation || generation <= known.prepared).then_some(Stray {
        seat,
        vm,
        name,
        generation,
        over,
    })
}

/// Whether a VM moves from or to this host while it runs.
pub(super) fn is_moving_live(index: &Index, vm: &VmRecord, host: Uuid) -> bool {
    let task = vm.task.and_then(|task| index.task(task));
    task.is_some_and(|task| matches!(&task.work, Work::Migrate(live) if [live.from, live.to].contains(&host)))
}
