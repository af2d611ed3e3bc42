//! Plugs network cards into and out of a running VM, and sets their links.
//!
//! The work has a thread of its own, since the guest takes its time to release a card. Each step
//! that a later supervisor must know is sent to the VM's own thread as a [`NicStep`]: a card is in
//! the state file before QEMU has it, and stays there until QEMU no longer has it. The networks of
//! new cards are opened by hostd, whose order they come with: this process cannot open any, and its
//! starter opens none but those of the VM's start.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, sync_channel};
use std::thread;

use strongroom_host::nic_layout::{Came, NicLayout, NicPlace};
use strongroom_host::orders::{GrantedNetwork, OpenedNetwork, Report};
use strongroom_host::protocol::{BootDevice, MacAddress, Nic, PowerState, Problem, VmSpec};
use strongroom_host::vm_directory::VmRecord;
use strongroom_hypervisor::network::NetworkState;

use super::activity::Activity;
use super::change::Change;
use super::unplug::{Release, ending, plug_problem};
use super::{Event, Vm};
use crate::disks;
use crate::door::Connection;
use crate::keys::VmKeys;
use crate::machine::Machine;

/// The network cards that a VM is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedNics {
    /// All of its cards.
    pub nics: Vec<Nic>,
    /// The order of booting, which names cards by their number.
    pub boot_order: Vec<BootDevice>,
}

/// A step that must be recorded before the change continues.
#[derive(Debug)]
pub enum NicStep {
    /// QEMU is about to have this card.
    Plugs(NicPlace),
    /// QEMU does not have the card with this address.
    Released(MacAddress),
    /// QEMU has the cards that it should have.
    Complete(WantedNics),
}

/// The networks that came with an order.
struct Granted {
    networks: Vec<GrantedNetwork>,
    files: Vec<OwnedFd>,
}

/// An open network.
struct Grant {
    state: NetworkState,
    file: Option<OwnedFd>,
}

impl Vm {
    /// Begins a change, which is answered when it has ended. If the same change is requested again,
    /// for example by the next hostd, the last request gets the answer.
    pub(super) fn set_nics(
        &mut self,
        asked_by: &Connection,
        request: u64,
        wanted: WantedNics,
        networks: Vec<GrantedNetwork>,
        files: Vec<OwnedFd>,
    ) -> Result<(), Problem> {
        let machine = self.machine()?;
        if let Some(same) = self.activity.nic_change_mut().filter(|known| *known.wanted() == wanted) {
            same.answer_to(asked_by, request);
            return Ok(());
        }
        self.activity.allow_another()?;
        let layout = self.nics();
        let changed = with_nics(&self.task.spec, &wanted)?;
        if self.standing.power == PowerState::Paused
            && let Some(place) = layout.iter().find(|place| !stays(place, &wanted))
        {
            let message =
                format!("VM {} stands still, and cannot let go of {}", self.task.spec.name, place.mac);
            return Err(Problem::new("paused", message).with_next_step("resume it, or stop it"));
        }
        let granted = Granted::new(networks, files)?;
        let (changing, wakes) = Change::new(wanted.clone(), asked_by, request);
        let work = Work {
            spec: changed,
            layout,
            keys: Arc::clone(&self.keys),
            machine,
            events: self.events.clone(),
            wakes,
        };
        let run = move || {
            let done = work.run(wanted, granted);
            let _ = work.events.send(Event::NicsChanged(done));
        };
        thread::Builder::new().name("nics".to_owned()).spawn(run).map_err(Problem::system)?;
        self.activity = Activity::NicChange(changing);
        Ok(())
    }

    /// The cards that QEMU has, or may have.
    fn nics(&self) -> NicLayout {
        self.state.nics.clone().unwrap_or_else(|| NicLayout::of(&self.task.spec))
    }

    /// Whether the next start would place the cards where they are.
    pub(super) fn has_nics_as_started(&self) -> bool {
        self.nics() == NicLayout::of(&self.task.spec)
    }

    /// Records a step, and sends the result to `done`.
    pub(super) fn nic_step(&mut self, step: NicStep, done: &SyncSender<Result<(), Problem>>) {
        let (mut spec, mut nics) = (self.task.spec.as_ref().clone(), self.nics());
        match step {
            NicStep::Plugs(place) => nics.add(place),
            NicStep::Released(mac) => {
                if let Some(place) = nics.place(mac) {
                    self.losses.networks.remove(&place.device().in_machine());
                }
                nics.remove(mac);
            }
            NicStep::Complete(wanted) => (spec.nics, spec.boot_order) = (wanted.nics, wanted.boot_order),
        }
        let before = self.state.nics.replace(nics);
        let told = self.configure(&spec);
        if told.is_err() {
            self.state.nics = before;
        }
        let _ = done.send(told);
    }

    /// Ends a change.
    pub(super) fn nics_changed(&mut self, changed: Result<(), Problem>) {
        let Some(changing) = self.activity.end_nic_change() else { return };
        let vm = &self.task.spec.name;
        match &changed {
            Ok(()) => tracing::info!("VM {vm}: its network cards are as was asked for"),
            Err(problem) => tracing::warn!("VM {vm}: its network cards are not as was asked for: {problem}"),
        }
        self.tell();
        changing.answer(|request| Report::answer(request, changed.err()));
    }

    /// Pulls the cables of a machine that has not run yet: it is started with all plugged in.
    pub(super) fn pull_cables(&self) -> Result<(), Problem> {
        let Some(machine) = &self.machine else { return Ok(()) };
        let pulled = self.task.spec.nics.iter().filter(|nic| !nic.link.is_up());
        let layout = self.nics();
        pulled.filter_map(|nic| Some((layout.place(nic.mac)?, nic.link))).try_for_each(|(place, link)| {
            machine.qemu().set_link(&place.device(), link).map_err(|error| plug_problem(&error))
        })
    }
}

/// The VM's configuration with these cards.
///
/// # Errors
/// If it is invalid, or two cards have the same address.
fn with_nics(spec: &VmSpec, wanted: &WantedNics) -> Result<VmSpec, Problem> {
    let WantedNics { nics, boot_order } = wanted.clone();
    let changed = VmSpec { nics, boot_order, ..spec.clone() };
    changed.check().map_err(|error| Problem::new("bad_spec", error.to_string()))?;
    let mut seen = BTreeSet::new();
    match changed.nics.iter().find(|nic| !seen.insert(nic.mac)) {
        Some(twice) => Err(Problem::new("bad_spec", format!("two cards have the address {}", twice.mac))),
        None => Ok(changed),
    }
}

/// Whether a card of the machine is one that it is to have.
fn stays(place: &NicPlace, wanted: &WantedNics) -> bool {
    wanted.nics.iter().any(|nic| nic.mac == place.mac && nic.network == place.network)
}

impl Granted {
    fn new(networks: Vec<GrantedNetwork>, files: Vec<OwnedFd>) -> Result<Self, Problem> {
        let has_file =
            |granted: &&GrantedNetwork| matches!(granted.network, OpenedNetwork::Open { has_file: true, .. });
        match networks.iter().filter(has_file).count() == files.len() {
            true => Ok(Self { networks, files }),
            false => Err(Problem::new("bad_request", "the files are not those of the networks")),
        }
    }

    /// Splits it into an open network, or the reason why there is none, for each card.
    fn each(self) -> impl Iterator<Item = (MacAddress, Result<Grant, Problem>)> {
        let mut files = self.files.into_iter();
        self.networks.into_iter().map(move |GrantedNetwork { mac, network }| match network {
            OpenedNetwork::Open { state, has_file } => {
                let file = if has_file { files.next() } else { None };
                (mac, Ok(Grant { state, file }))
            }
            OpenedNetwork::Failed(problem) => (mac, Err(problem)),
        })
    }
}

/// The inputs of a change.
struct Work {
    /// The VM after the change.
    spec: VmSpec,
    /// The cards before it.
    layout: NicLayout,
    keys: Arc<VmKeys>,
    machine: Machine,
    events: Sender<Event>,
    wakes: Receiver<()>,
}

impl Work {
    /// Cards that go make room for those that come.
    fn run(&self, wanted: WantedNics, granted: Granted) -> Result<(), Problem> {
        self.layout.iter().filter(|place| !stays(place, &wanted)).try_for_each(|place| self.take(place))?;
        let mut granted: Vec<_> = granted.each().collect();
        for nic in &wanted.nics {
            let at = granted.iter().position(|(mac, _)| *mac == nic.mac);
            self.give(nic, at.map(|at| granted.swap_remove(at).1))?;
        }
        VmRecord::change(&self.spec, |record| {
            // What else has changed meanwhile stays.
            let (nics, boot_order) = (wanted.nics.clone(), wanted.boot_order.clone());
            let spec = VmSpec { nics, boot_order, ..self.spec.clone() };
            disks::attest(&self.keys, record, &spec)
        })?;
        self.tell(NicStep::Complete(wanted))
    }

    /// Takes a card from the guest.
    fn take(&self, place: &NicPlace) -> Result<(), Problem> {
        let release = Release { machine: &self.machine, wakes: &self.wakes };
        release.await_of(&place.device(), || {
            let (vm, mac) = (&self.spec.name, place.mac);
            let message = format!(
                "the guest of VM {vm} has not let go of the network card {mac} in time; it may still"
            );
            let next = "have the guest end what uses it and try again, or stop the VM first";
            Problem::new("guest_keeps_nic", message).with_next_step(next)
        })?;
        self.tell(NicStep::Released(place.mac))
    }

    /// Gives the guest a card, unless it has it, and sets its link.
    fn give(&self, nic: &Nic, granted: Option<Result<Grant, Problem>>) -> Result<(), Problem> {
        let qemu = self.machine.qemu();
        let failed = |error| plug_problem(&error);
        // A card on another network was taken away above.
        let there = self.layout.place(nic.mac).filter(|place| place.network == nic.network);
        if let Some(place) = there {
            if qemu.is_plugged(&place.device()).map_err(failed)? {
                return qemu.set_link(&place.device(), nic.link).map_err(failed);
            }
            // The guest has released it after its time was over, or a supervisor died before QEMU
            // had it.
            qemu.unplugged(&place.device());
        }
        let Some(granted) = granted else {
            let message =
                format!("hostd has opened no network for the card {} of VM {}", nic.mac, self.spec.name);
            return Err(Problem::new("not_granted", message).with_next_step("try again"));
        };
        let Grant { state, file } = granted?;
        let place = NicPlace { mac: nic.mac, network: nic.network.clone(), came: Came::Plugged };
        let device = place.device();
        self.tell(NicStep::Plugs(place))?;
        let plugged = qemu
            .plug_nic(&device, nic, &state, file.as_ref().map(AsFd::as_fd))
            .and_then(|()| if nic.link.is_up() { Ok(()) } else { qemu.set_link(&device, nic.link) });
        plugged.or_else(|error| {
            // A silent QEMU may still have it.
            if !qemu.is_plugged(&device).unwrap_or(true) {
                self.tell(NicStep::Released(nic.mac))?;
            }
            Err(failed(error))
        })
    }

    fn tell(&self, step: NicStep) -> Result<(), Problem> {
        let (done, answer) = sync_channel(1);
        self.events.send(Event::Nic(step, done)).map_err(|_| ending())?;
        answer.recv().map_err(|_| ending())?
    }
}
