//! What the control plane does: takes wishes into the inventory, carries them out through hosts,
//! and looks after what is.
//!
//! Nothing here keeps state that matters: a [`Control`] that is dropped at any moment and made anew
//! from the same store goes on where it was. The rules that make it so:
//! 1. A wish is one transaction: the record, the task, the event, the `Idempotency-Key`.
//! 2. What is asked of a host or a key provider is in the store before, with the id that it is
//!    asked by, and is asked again by the same id.
//! 3. One task at a time works on a VM: its id is in the VM's record.
//! 4. A start's generation is in the store before anybody hears of it.
//!
//! - [`wishes`]: what callers ask for. [`advance`]: one step of a task. [`operate`]: an operation
//!   of a host.
//! - [`fill`]: images come into disks. [`observe`]: what hosts say. [`settle`]: a VM that is not as
//!   it should be. [`alarms`]: what is wrong.
//! - [`schedule`]: which task is due when.

mod advance;
mod alarms;
mod cursor;
mod disks;
mod fill;
mod observe;
mod operate;
mod place;
mod register;
mod rotate;
mod schedule;
mod settle;
mod slow_disks;
mod standings;
mod statistics;
mod tickets;
pub mod views;
mod wishes;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_api::task::Progress;
use strongroom_api::{Name, ObjectRef, Problem};
use strongroom_store::Store;
use uuid::Uuid;

use self::standings::Standings;
use self::statistics::Samples;
use crate::host::Host;
use crate::inventory::{Draft, Failure, Inventory};
use crate::keys::VmKeys;
use crate::problems;
use crate::records::{HostRecord, VmRecord};

pub use advance::Next;
pub use alarms::Certificate;
pub use schedule::Schedule;
pub(crate) use statistics::Sample;
pub use wishes::{Caller, RequestKey};

/// How often a race is run again before it is given up. Each time somebody else's change was made.
const RACES_MAX: usize = 32;
/// The pause before what cannot be had now is asked for again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The pause before an operation is looked at again, if no change of the host tells earlier.
const POLL_PAUSE: Duration = Duration::from_secs(5);

/// The time of day, in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The control plane without its server.
pub struct Control {
    /// What is known.
    pub inventory: Inventory,
    hosts: Vec<HostSeat>,
    keys: Arc<dyn VmKeys>,
    standings: Standings,
    samples: Samples,
    clock: Clock,
    /// When which task is due.
    pub schedule: Schedule,
    /// How far operations are. Too quick for the store, and found out again after a restart.
    progress: Mutex<HashMap<Uuid, Progress>>,
    certificate: Mutex<Option<Certificate>>,
    providers: Mutex<Vec<strongroom_api::key::KeyProvider>>,
}

/// A host, and what is known of it beside the inventory.
struct HostSeat {
    id: Uuid,
    name: Name,
    host: Arc<dyn Host>,
    seen: Mutex<observe::Seen>,
    /// Held from a question about VMs until the answer is in the inventory, so that no older answer
    /// replaces a newer one.
    looking: Mutex<()>,
}

impl Control {
    /// Opens the inventory, for these hosts.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn open(
        store: Arc<dyn Store>,
        hosts: Vec<(Name, Arc<dyn Host>)>,
        keys: Arc<dyn VmKeys>,
        clock: Clock,
    ) -> Result<Self, Failure> {
        let inventory = Inventory::open(store)?;
        let mut seats = Vec::with_capacity(hosts.len());
        for (name, host) in hosts {
            let id = host_id(&inventory, &name, clock())?;
            seats.push(HostSeat { id, name, host, seen: Mutex::default(), looking: Mutex::default() });
        }
        let schedule = Schedule::default();
        for task in inventory.read().open_tasks() {
            schedule.wake(task.task.id);
        }
        let (progress, certificate, providers) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (standings, samples) = (Standings::default(), Samples::default());
        Ok(Self {
            inventory,
            hosts: seats,
            keys,
            standings,
            samples,
            clock,
            schedule,
            progress,
            certificate,
            providers,
        })
    }

    /// Now, in milliseconds since 1970.
    pub fn now_unix_ms(&self) -> u64 {
        (self.clock)()
    }

    fn draft(&self) -> Draft {
        Draft::new(self.now_unix_ms())
    }

    /// Writes down that something happened.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn tell(&self, kind: &str, object: &ObjectRef, message: &str) -> Result<(), Failure> {
        self.inventory.commit(self.draft().event(kind, object, message, None))
    }

    fn seat(&self, id: Uuid) -> Option<&HostSeat> {
        self.hosts.iter().find(|seat| seat.id == id)
    }

    /// The host of a VM.
    fn seat_of(&self, vm: &VmRecord) -> Result<&HostSeat, Problem> {
        self.seat(vm.host).ok_or_else(|| problems::host_unknown(vm.name.as_str()))
    }

    fn set_progress(&self, task: Uuid, progress: Option<Progress>) {
        let mut all = self.progress.lock();
        match progress {
            Some(progress) => drop(all.insert(task, progress)),
            None => drop(all.remove(&task)),
        }
    }

    /// How far a task's operation is.
    pub fn progress(&self, task: Uuid) -> Option<Progress> {
        self.progress.lock().get(&task).copied()
    }

    /// Does something that may lose a race, until it does not.
    fn race<T>(&self, mut attempt: impl FnMut() -> Result<T, Stop>) -> Result<T, Problem> {
        for _ in 0..RACES_MAX {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Stop::Failure(Failure::Raced)) => {}
                Err(Stop::Failure(failure)) => return Err(problems::failure(&failure)),
                Err(Stop::Problem(problem)) => return Err(problem),
            }
        }
        Err(problems::too_many_races())
    }
}

/// Why an attempt ended.
enum Stop {
    /// The inventory.
    Failure(Failure),
    /// The caller's wish is impossible.
    Problem(Problem),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

/// The id of a host by its name; a new one if it was never seen.
fn host_id(inventory: &Inventory, name: &Name, now_unix_ms: u64) -> Result<Uuid, Failure> {
    loop {
        if let Some(known) = inventory.read().hosts.iter().find(|host| host.name == *name) {
            return Ok(known.id);
        }
        let record = HostRecord { id: Uuid::new_v4(), name: name.clone() };
        match inventory.commit(Draft::new(now_unix_ms).create_named(&record)) {
            Ok(()) => return Ok(record.id),
            Err(Failure::Raced) => inventory.catch_up()?,
            Err(failure) => return Err(failure),
        }
    }
}

/// The system's time of day, in milliseconds since 1970; zero on a machine whose clock stands
/// before.
pub fn unix_ms_now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
