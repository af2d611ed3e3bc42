//! The control plane's logic: it records requests in the inventory, carries them out through hosts,
//! and monitors the result.
//!
//! No state that matters is kept here: a [`Control`] that is dropped at any moment and recreated
//! from the same store continues. These rules ensure it:
//! 1. A request is one transaction: the record, the task, the event, the `Idempotency-Key`.
//! 2. A request to a host or a key provider is in the store before it is sent, with its id, and is
//!    repeated with the same id.
//! 3. Only one task at a time works on a VM: the VM's record has its id.
//! 4. A start's generation is in the store before it is sent to anyone.
//! 5. Each run has a term of its own, greater than those before it and in the store before it is
//!    sent to a host, which refuses orders of a lesser one.
//!
//! - [`access`]: who may do what. [`accounts`]: users, roles, folders and grants. [`credentials`]:
//!   tokens, sessions. [`access_log`]: what is on record of all this.
//! - [`holders`]: who holds what a caller has shown. [`browsers`]: sessions of browsers.
//! - [`identity_providers`], [`outside`]: people who are no users, and their sessions. [`flows`]:
//!   their sign-ins that are not finished. [`emergency`]: credentials for when nobody can sign in.
//! - [`wishes`]: callers' requests. [`advance`]: one step of a task. [`operate`]: an operation of a
//!   host.
//! - [`policies`]: their requests, [`compliance`]: their rules. [`quotas`]: those of folders.
//! - [`sweep`]: tasks that work through many VMs.
//! - [`fill`]: filling disks with images. [`observe`]: reports of hosts. [`settle`]: VMs in the
//!   wrong state, and [`unsettled`]: which are looked at. [`alarms`], [`vm_alarms`]: present
//!   troubles.
//! - [`recipients`]: to whom alarms are sent, and the messages.
//! - [`schedule`]: the order of tasks. [`due_snapshots`]: the snapshots that VMs' schedules want.
//!   [`data_keys`]: the end of their data keys' cryptoperiods.
//! - [`seats`], [`joining`]: the hosts, and machines that become hosts. [`datastores`]: what they
//!   reach. [`placement`]: the choice of a VM's host, [`boards`]: what VMs have of hosts' QEMU.
//!   [`maintenance`]: hosts that take no VMs.
//! - [`moves`], [`evacuate`]: VMs that move to other hosts. [`elsewhere`]: the choice of a
//!   datastore for one whose volumes move with it. [`strays`]: VMs that run where they
//!   do not belong.
//! - [`groups`]: snapshots of several VMs at one instant.
//! - [`backups`]: backups of the inventory. [`restored`]: VMs whose record is from one.
//! - [`capacity`]: what datastores had, and when they will be full.
//! - [`volumes`]: lists and readings of volumes. [`volume_changes`]: changes of them.

pub mod access;
mod access_log;
mod accounts;
mod advance;
mod alarms;
mod backups;
mod balance;
mod boards;
mod browsers;
mod capacity;
mod carried_moves;
mod clones;
mod compliance;
mod credentials;
mod cursor;
mod data_keys;
mod datastores;
mod describe;
mod disk_moves;
mod disks;
mod due;
mod due_snapshots;
mod due_times;
mod elsewhere;
mod embedded;
mod emergency;
mod evacuate;
mod fencing;
mod fill;
mod flows;
mod groups;
pub mod holders;
mod identity_providers;
mod joining;
mod live_moves;
mod maintenance;
mod moves;
mod networks;
mod nics;
mod observe;
mod operate;
mod outside;
mod place;
mod placement;
mod placement_groups;
mod policies;
mod quotas;
mod recipients;
mod register;
mod restored;
mod rotate;
mod schedule;
mod seal_disks;
mod seats;
mod settle;
mod sizes;
mod slow_disks;
mod snapshot_schedule;
mod snapshots;
mod standings;
mod statistics;
mod strays;
mod sweep;
mod templates;
mod temporary;
pub mod tickets;
mod titles;
mod unsettled;
pub mod views;
mod vm_alarms;
mod volume_changes;
mod volumes;
mod wishes;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_api::access::ChainBreak;
use strongroom_api::task::Progress;
use strongroom_api::{Name, ObjectRef, Problem};
use strongroom_host::protocol::{Operation, OperationId, Term};
use strongroom_store::Store;
use uuid::Uuid;

use self::backups::InventoryBackups;
use self::due_snapshots::DueSnapshots;
use self::flows::Flows;
use self::recipients::Deliveries;
use self::seats::{HostSeat, Seats};
use self::standings::Standings;
use self::statistics::Samples;
use self::tickets::TicketsOut;
use self::unsettled::Marks;
use self::vm_alarms::VmAlarms;
use self::volumes::Spaces;
use crate::courier::Courier;
use crate::host::Host;
use crate::identity::IdentityProviders;
use crate::inventory::{Draft, Failure, Inventory};
use crate::joining::Joining;
use crate::keys::VmKeys;
use crate::problems;
use crate::records::{HostRecord, Named, VmRecord};

pub(crate) use accounts::no_random;
pub use advance::Next;
pub use alarms::Certificate;
pub use credentials::SigningIn;
pub use schedule::Schedule;
pub(crate) use statistics::Sample;
pub use wishes::{Caller, RequestKey};

/// How often a lost race is repeated. Each time, another change has succeeded.
const RACES_MAX: usize = 32;
/// The pause before an unavailable resource is requested again.
const RETRY_PAUSE: Duration = Duration::from_secs(2);
/// The pause before an operation is polled again, unless a change of the host comes first.
const POLL_PAUSE: Duration = Duration::from_secs(5);

/// The time of day, in milliseconds since 1970.
pub type Clock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// The control plane without its server.
pub struct Control {
    /// The inventory.
    pub inventory: Inventory,
    hosts: Seats,
    /// The term of this run.
    term: Term,
    /// How machines join; absent in a program that takes none.
    joining: OnceLock<Arc<dyn Joining>>,
    /// Carries messages to recipients; absent in a program that sends none.
    courier: OnceLock<Arc<dyn Courier>>,
    deliveries: Deliveries,
    /// The tickets that may not have been presented yet.
    tickets: TicketsOut,
    /// Asks identity providers; absent in a program that asks none.
    identity_providers: OnceLock<Arc<dyn IdentityProviders>>,
    flows: Flows,
    backups: InventoryBackups,
    keys: Arc<dyn VmKeys>,
    standings: Standings,
    samples: Samples,
    spaces: Spaces,
    clock: Clock,
    /// The schedule of tasks.
    pub schedule: Schedule,
    due_snapshots: DueSnapshots,
    /// The VMs that may have to be settled.
    unsettled: Marks,
    /// The VMs whose alarms may differ.
    unreviewed: Marks,
    vm_alarms: VmAlarms,
    refusals: access::Refusals,
    /// Where the chain of the access log was found broken.
    access_breaks: Mutex<Vec<ChainBreak>>,
    /// The progress of operations. It changes too fast for the store, and is read again after a
    /// restart.
    progress: Mutex<HashMap<Uuid, Progress>>,
    /// Operations that got their ids in this run and were not sent yet, so no host knows them.
    unsent: Mutex<HashSet<OperationId>>,
    /// Ends of operations that came with changes of their hosts, until their tasks go on.
    ended: Mutex<HashMap<(Uuid, OperationId), Operation>>,
    certificates: Mutex<Vec<Certificate>>,
    providers: Mutex<Vec<strongroom_api::key::KeyProvider>>,
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
        let term = inventory.begin_term(clock() / 1000)?;
        let seats = Seats::default();
        for (name, host) in hosts {
            let id = host_id(&inventory, &name, clock())?;
            host.set_term(term);
            seats.add(HostSeat::new(id, name, None, host));
        }
        let schedule = Schedule::default();
        for task in inventory.read().open_tasks() {
            schedule.wake(task.task.id);
        }
        let (progress, certificates, providers) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (standings, samples) = (Standings::default(), Samples::default());
        let control = Self {
            inventory,
            hosts: seats,
            term,
            joining: OnceLock::new(),
            courier: OnceLock::new(),
            deliveries: Deliveries::default(),
            tickets: TicketsOut::default(),
            identity_providers: OnceLock::new(),
            flows: Flows::default(),
            backups: InventoryBackups::default(),
            keys,
            standings,
            samples,
            spaces: Spaces::default(),
            clock,
            schedule,
            due_snapshots: DueSnapshots::default(),
            unsettled: Marks::default(),
            unreviewed: Marks::default(),
            vm_alarms: VmAlarms::default(),
            refusals: access::Refusals::default(),
            access_breaks: Mutex::default(),
            progress,
            unsent: Mutex::default(),
            ended: Mutex::default(),
            certificates,
            providers,
        };
        control.queue_schedules(control.now_unix_ms() / 1000);
        Ok(control)
    }

    /// The time in milliseconds since 1970.
    pub fn now_unix_ms(&self) -> u64 {
        (self.clock)()
    }

    fn draft(&self) -> Draft {
        Draft::new(self.now_unix_ms())
    }

    /// Records an event.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn tell(&self, kind: &str, object: &ObjectRef, message: &str) -> Result<(), Failure> {
        self.inventory.commit(self.draft().event(kind, object, message, None))
    }

    fn seat(&self, id: Uuid) -> Option<&HostSeat> {
        self.hosts.iter().find(|seat| seat.id == id)
    }

    /// Returns the host of a VM.
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

    /// Returns the progress of a task's operation.
    pub fn progress(&self, task: Uuid) -> Option<Progress> {
        self.progress.lock().get(&task).copied()
    }

    /// Repeats an attempt until it does not lose a race.
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
    /// The inventory failed.
    Failure(Failure),
    /// The request cannot be fulfilled.
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

/// Returns the id of a host by its name; a new one for an unknown host.
fn host_id(inventory: &Inventory, name: &Name, now_unix_ms: u64) -> Result<Uuid, Failure> {
    loop {
        if let Some(known) = inventory.read().hosts.iter().find(|host| host.name == *name) {
            if known.joined.is_none() {
                return Ok(known.id);
            }
            let reason = "another machine has joined under the name of this one; give this one another name";
            return Err(Failure::Damaged { key: known.name_key(), reason: reason.to_owned() });
        }
        let record = HostRecord {
            id: Uuid::new_v4(),
            name: name.clone(),
            joined: None,
            maintenance: false,
            fenced: None,
        };
        match inventory.commit(Draft::new(now_unix_ms).create_named(&record)) {
            Ok(()) => return Ok(record.id),
            Err(Failure::Raced) => inventory.catch_up()?,
            Err(failure) => return Err(failure),
        }
    }
}
