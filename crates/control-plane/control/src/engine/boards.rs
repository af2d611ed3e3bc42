//! The machine types and processors of VMs: what they get, and which hosts can give them.
//!
//! A host says what its QEMU can give. That decides whether a VM is placed there, and nothing
//! else: the host checks again when the VM is started, and QEMU refuses what would be incomplete.
//!
//! ```text
//! new VM                        the machine type that its host's QEMU takes for the present one
//! start of a VM without one     the same, in its record before the host hears of the start
//! suspended VM, or one that moves without a start       it stays as it is
//! ```

use std::collections::BTreeMap;

use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::host::{DemandedProcessor, ProcessorLack, SiteProcessors};
use strongroom_api::policy::PolicyRules;
use strongroom_api::vm::{Board, PatchVm, PowerState};
use strongroom_api::{ErrorCode, Problem};
use strongroom_host::protocol::{self, Capabilities, FORMAT_WITH_CAPABILITIES, StartOptions};
use strongroom_vm::{Lack, ProcessorModel};

use super::advance::{Next, Step};
use super::alarms::{Wanted, host_object};
use super::{Control, HostSeat};
use crate::inventory::{Failure, Index};
use crate::problems;
use crate::records::{ObservedRecord, VmRecord, Work};

/// Most VMs that are named as those that have a processor.
const VMS_NAMED_MAX: usize = 3;
/// Most processors, and differences, that a sentence lists.
const LISTED_MAX: usize = 8;

/// The board of a new VM before its host is chosen: with the processor that its policy demands, if
/// it names none.
pub(super) fn wanted(wish: &Board, rules: &PolicyRules) -> Board {
    let processor = wish.processor.clone().or_else(|| rules.processor.clone());
    Board { processor: named(processor), ..wish.clone() }
}

/// The board of a new VM on its host.
pub(super) fn on_host(board: Board, seat: &HostSeat) -> Board {
    let given = told(seat).and_then(|told| told.default_machine_type(board.machine).cloned());
    Board { machine_type: board.machine_type.clone().or(given), ..board }
}

/// Gives a VM's record the machine type and processor of a request.
pub(super) fn patch(board: &mut Board, wish: &PatchVm) {
    if let Some(version) = &wish.machine_type {
        board.machine_type = Some(version.clone());
    }
    if let Some(model) = &wish.processor {
        board.processor = named(Some(model.clone()));
    }
}

/// The processor `host` is what every board without another one has, also on earlier hosts.
fn named(model: Option<ProcessorModel>) -> Option<ProcessorModel> {
    model.filter(|model| !model.is_host())
}

/// What a host says that it can give, if it is one that is told of machine types.
fn told(seat: &HostSeat) -> Option<Capabilities> {
    let seen = seat.seen();
    let state = seen.state.as_ref().filter(|state| state.formats.has(FORMAT_WITH_CAPABILITIES));
    state.and_then(|state| state.capabilities.clone())
}

/// The instructions of AES and of carry-less multiplication, with which AES-GCM costs little, in
/// QEMU's words.
const CIPHER_FEATURES: [&str; 2] = ["aes", "pclmulqdq"];
/// A feature of every processor that this program runs on: a host that names it tells of all.
const SURE_FEATURE: &str = "sse2";

/// Whether a host says that its processor lacks what makes encryption cheap. One that does not say
/// what it has is taken for one that has it.
pub(super) fn lacks_cipher(seat: &HostSeat) -> bool {
    let has = |told: &Capabilities, feature: &str| told.features.iter().any(|known| known == feature);
    told(seat).is_some_and(|told| {
        has(&told, SURE_FEATURE) && !CIPHER_FEATURES.iter().all(|feature| has(&told, feature))
    })
}

/// Checks that a host can give a VM its machine type and processor, as far as it says.
///
/// # Errors
/// What it lacks, or that it is of an earlier version.
pub(super) fn gives(seat: &HostSeat, called: &str, board: &Board) -> Result<(), Problem> {
    if !board.is_pinned() {
        return Ok(());
    }
    let seen = seat.seen();
    let Some(state) = &seen.state else { return Ok(()) };
    let none = |message: String| Problem::new(ErrorCode::NoHost, message);
    if !state.formats.has(FORMAT_WITH_CAPABILITIES) {
        let message = format!(
            "host {} has version {}, which knows no machine type or processor of a VM's own, as {called} has",
            seat.name, state.version
        );
        return Err(none(message).next("upgrade the program there"));
    }
    let Some(capabilities) = &state.capabilities else { return Ok(()) };
    match capabilities.lacks(board) {
        None => Ok(()),
        Some(Lack::MachineType(wanted)) => {
            let message = format!(
                "host {} has no machine type {wanted}, which {called} has{}",
                seat.name,
                qemu_of(state)
            );
            let next = match capabilities.default_machine_type(board.machine) {
                Some(newest) => format!("upgrade QEMU there, or use {newest}"),
                None => "upgrade QEMU there".to_owned(),
            };
            Err(none(message).next(format!("{next}; `strongroom host show {}` lists what it has", seat.name)))
        }
        Some(Lack::Processor(wanted)) => {
            let message =
                format!("host {} cannot give the whole processor {wanted}, which {called} has", seat.name);
            Err(none(message).next(format!(
                "choose one that it can give: {}; `strongroom host show {}` lists all",
                listed(capabilities.processors.iter().map(ProcessorModel::as_str)),
                seat.name
            )))
        }
    }
}

/// Checks that the processor `host` of a VM has on its next host what it has on its former one.
///
/// # Errors
/// What is missing there.
pub(super) fn keeps_features(former: &HostSeat, next: &HostSeat, called: &str) -> Result<(), Problem> {
    let (Some(has), Some(gets)) = (told(former), told(next)) else { return Ok(()) };
    let missing = has.features_beyond(&gets);
    if missing.is_empty() {
        return Ok(());
    }
    let message = format!(
        "{called} has the processor of its host, and that of host {} lacks {}, which host {} has",
        next.name,
        listed(missing.into_iter()),
        former.name
    );
    let shared = Capabilities::processors_of_all(&[&has, &gets]);
    let next_step = match shared.is_empty() {
        true => "move it to a host that has all of it".to_owned(),
        false => format!(
            "give it one that both hosts can give, while it is off (`strongroom vm set NAME --processor MODEL`): {}",
            listed(shared.into_iter().map(ProcessorModel::as_str))
        ),
    };
    Err(Problem::new(ErrorCode::NoHost, message).next(next_step))
}

fn qemu_of(state: &protocol::Host) -> String {
    let qemu = state.programs.as_ref().and_then(|programs| programs.qemu.as_ref());
    qemu.map_or_else(String::new, |qemu| format!(": it has QEMU {}", qemu.version))
}

fn listed<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(LISTED_MAX);
    let text = names.take(LISTED_MAX).collect::<Vec<_>>().join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

impl Control {
    /// Gives a VM without a machine type the one that it has on its host, before it is started.
    /// `None` if it stays as it is: a guest that is suspended goes on with the devices that it has.
    pub(super) fn pin(&self, step: &Step, how: StartOptions) -> Result<Option<Next>, Failure> {
        let vm = &step.vm;
        if vm.hardware.board.machine_type.is_some() {
            return Ok(None);
        }
        let is_suspended = {
            let index = self.inventory.read();
            let seen = index.observed(vm.id);
            let has_memory =
                |seen: &ObservedRecord| seen.power == PowerState::Suspended || seen.suspended.is_some();
            seen.is_some_and(|seen| has_memory(seen)) && !how.discard_memory
        };
        let board = on_host(vm.hardware.board.clone(), step.seat);
        let Some(version) = board.machine_type.clone().filter(|_| !is_suspended) else { return Ok(None) };
        let mut pinned = VmRecord::clone(&vm.record);
        pinned.hardware.board = board;
        let message = format!("{} has machine type {version} from now on", problems::called(vm));
        let draft = self.draft().event("vm.machine_type", &vm.object(), message, Some(step.task.task.id));
        let work = Work::Start { discard_memory: how.discard_memory, paused: how.paused };
        self.turn_with(step, work, pinned, draft).map(Some)
    }
}

/// What the VMs and policies of the site demand of processors, and what its hosts have.
pub(super) struct Baseline {
    demanded: Vec<DemandedProcessor>,
    /// The hosts that say what they can give.
    telling: usize,
    /// How many of them have a feature, and how many a processor of a maker.
    features: BTreeMap<String, usize>,
    vendors: BTreeMap<String, usize>,
}

impl Baseline {
    pub fn of<'a>(index: &Index, seats: impl Iterator<Item = &'a HostSeat>) -> Self {
        let mut demanded: BTreeMap<ProcessorModel, DemandedProcessor> = BTreeMap::new();
        let none = |model: &ProcessorModel| DemandedProcessor {
            processor: model.clone(),
            vms: Vec::new(),
            vms_total: 0,
            policies: Vec::new(),
        };
        for (model, members) in index.processors() {
            let known = demanded.entry(model.clone()).or_insert_with(|| none(model));
            known.vms = members.vms.iter().take(VMS_NAMED_MAX).map(|vm| vm.name().to_owned()).collect();
            known.vms_total = members.vms.len() as u64;
        }
        for policy in index.policies.iter() {
            let Some(model) = policy.rules.processor.as_ref().filter(|model| !model.is_host()) else {
                continue;
            };
            let known = demanded.entry(model.clone()).or_insert_with(|| none(model));
            known.policies.push(policy.name.to_string());
        }
        let demanded = demanded.into_values().collect();
        let mut baseline = Self { demanded, telling: 0, features: BTreeMap::new(), vendors: BTreeMap::new() };
        for has in seats.filter_map(told) {
            baseline.telling += 1;
            for feature in has.features {
                *baseline.features.entry(feature).or_default() += 1;
            }
            if let Some(vendor) = has.vendor {
                *baseline.vendors.entry(vendor.to_string()).or_default() += 1;
            }
        }
        baseline
    }

    /// What the site demands of a machine that is not among its hosts, or is this one.
    pub fn beside(&self, host: Option<&Capabilities>) -> SiteProcessors {
        let others = self.telling - usize::from(host.is_some());
        let has = |feature: &String| usize::from(host.is_some_and(|host| host.features.contains(feature)));
        let is_of =
            |vendor: &str| host.and_then(|host| host.vendor.as_ref()).is_some_and(|of| of.as_str() == vendor);
        let features =
            self.features.iter().filter(|(feature, hosts)| others > 0 && **hosts - has(feature) == others);
        let vendors = self.vendors.iter().filter(|(vendor, hosts)| **hosts > usize::from(is_of(vendor)));
        SiteProcessors {
            demanded: self.demanded.clone(),
            features: features.map(|(feature, _)| feature.clone()).collect(),
            vendors: vendors.map(|(vendor, _)| vendor.clone()).collect(),
        }
    }

    /// What a host lacks of what the site demands, or all other hosts have.
    pub fn lacking(&self, seat: &HostSeat) -> Vec<ProcessorLack> {
        let Some(has) = told(seat) else { return Vec::new() };
        self.beside(Some(&has)).lacking(&has)
    }
}

/// Raises an alarm for a host that cannot give what policies demand of VMs.
pub(super) fn review(index: &Index, seat: &HostSeat, state: &protocol::Host, wanted: &mut Wanted) {
    let Some(capabilities) = &state.capabilities else { return };
    let lacking = index.policies.iter().filter_map(|policy| {
        let model = policy.rules.processor.as_ref()?;
        (!capabilities.has_processor(model)).then(|| (policy.name.as_str(), model))
    });
    let lacking: Vec<(&str, &ProcessorModel)> = lacking.collect();
    let Some((policy, model)) = lacking.first() else { return };
    wanted.raise(
        AlarmKind::HostLacksProcessor,
        Severity::Warning,
        host_object(seat),
        format!(
            "host {} cannot give the whole processor {model}, which policy {policy} demands: its VMs do not run there",
            seat.name
        ),
        format!("`strongroom host show {}` lists what it can give; have the policy demand one that all hosts can", seat.name),
    );
}
