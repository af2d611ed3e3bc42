//! The hosts of this run of the control plane. A host that joins gets a seat while others work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strongroom_api::Name;
use strongroom_host::protocol::{Grant, OperationId, OperationKind, OperationRequest, VmGeneration};
use strongroom_types::VmId;
use uuid::Uuid;

use super::observe;
use crate::host::{Host, HostError};

/// The most hosts of one run, including those that were removed. A site has 64.
const SEATS_MAX: usize = 256;

/// A host, and its state outside the inventory.
pub(super) struct HostSeat {
    pub id: Uuid,
    pub name: Name,
    /// The address of a host that has joined, for people.
    pub address: Option<String>,
    pub host: Arc<dyn Host>,
    pub(super) seen: Mutex<observe::Seen>,
    /// Held from a query about VMs until its answer is in the inventory, so that an older answer
    /// never replaces a newer one.
    pub(super) looking: Mutex<()>,
    removed: AtomicBool,
}

impl HostSeat {
    pub fn new(id: Uuid, name: Name, address: Option<String>, host: Arc<dyn Host>) -> Self {
        let (seen, looking) = (Mutex::default(), Mutex::default());
        Self { id, name, address, host, seen, looking, removed: AtomicBool::new(false) }
    }

    /// Orders something that no task follows, and that is ordered again if it is still needed.
    ///
    /// # Errors
    /// [`HostError`].
    pub fn order(
        &self,
        vm: VmId,
        generation: VmGeneration,
        kind: OperationKind,
        grants: Vec<Grant>,
    ) -> Result<(), HostError> {
        let request = OperationRequest { operation: OperationId::random(), generation, kind, grants };
        self.host.operate(vm, &request).map(drop)
    }

    /// Takes the host out of the site. Its threads end.
    pub fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
        self.host.end_changes();
    }

    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }
}

/// All hosts. A seat stays where it is until the process ends.
pub(super) struct Seats(Box<[OnceLock<HostSeat>]>);

impl Default for Seats {
    fn default() -> Self {
        Self((0..SEATS_MAX).map(|_| OnceLock::new()).collect())
    }
}

impl Seats {
    /// Adds a host. Returns whether there was a place.
    pub fn add(&self, mut seat: HostSeat) -> bool {
        for place in &self.0 {
            match place.set(seat) {
                Ok(()) => return true,
                Err(taken) => seat = taken,
            }
        }
        false
    }

    /// Whether another host can be added.
    pub fn has_room(&self) -> bool {
        self.0.iter().any(|place| place.get().is_none())
    }

    /// The hosts, without those that were removed.
    pub fn iter(&self) -> impl Iterator<Item = &HostSeat> {
        self.0.iter().map_while(OnceLock::get).filter(|seat| !seat.is_removed())
    }
}
