//! The choice of a VM's host, and the room that hosts have for VMs.
//!
//! A datastore that one host reaches leaves no choice, and as long as that is so an administrator
//! decides how much its VMs are promised: an alarm says when it is more than there is. Where
//! several hosts reach a datastore, a host takes only VMs whose memory it has: all that are placed
//! there, on or off, and those on their way, so that a host can start what it was given at any
//! time.
//!
//! Every request that becomes a task passes [`Control::within_room`] with its transaction, so no
//! operation can be without it, and two at the same time do not use the same room.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::path::Path;

use strongroom_api::task::TaskKind;
use strongroom_api::vm::{Board, Nic};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_host::protocol::{self, CryptoSafeState, DatastoreState};
use strongroom_types::{VmId, counted, display_bytes};
use uuid::Uuid;

use super::boards::{gives, keeps_features};
use super::datastores::{keeps_tpms_in, speaks_of_disk_places};
use super::placement_groups::{near, within_groups};
use super::{Control, HostSeat};
use crate::inventory::{Draft, Facet, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{
    DatastoreRecord, HostRecord, PlacementGroupRecord, PolicyRecord, TaskRecord, VmRecord, Work,
};

/// What a VM needs of its host.
pub(super) struct Needs<'a> {
    /// The VM in a sentence.
    pub called: String,
    pub datastore: &'a Row<DatastoreRecord>,
    /// The datastores of disks that are not in that one: its host reaches them, too.
    pub others: Vec<&'a Row<DatastoreRecord>>,
    pub policy: Option<&'a Row<PolicyRecord>>,
    /// The memory that it adds to what is placed on its host, in bytes.
    pub memory_bytes: u64,
    pub processors: u32,
    /// Its network cards, if they are chosen.
    pub nics: Option<&'a [Nic]>,
    /// The VM, if it exists.
    pub vm: Option<VmId>,
    /// Its machine type and processor; `None` for what is never started.
    pub board: Option<&'a Board>,
    /// The host whose processor it has, if it has that of its host.
    pub has_processor_of: Option<&'a HostSeat>,
    /// Whether it has a TPM.
    pub has_tpm: bool,
    /// Its placement groups.
    pub groups: Vec<&'a Row<PlacementGroupRecord>>,
}

/// Which host a VM is placed on.
pub(super) enum Among<'a> {
    /// The one with this name or id.
    Named(&'a str),
    /// The best of all.
    All,
    /// The best of all but this one.
    AllBut(Uuid),
}

/// The chosen host.
pub(super) struct Choice<'a> {
    pub seat: &'a HostSeat,
    /// Why it was chosen, and what kept the others from it, if there was a choice.
    pub reason: Option<String>,
}

/// How well a host fits.
struct Fit {
    /// The memory that is placed on no VM, this one included, in bytes.
    left_bytes: u64,
    /// Whether it has as many processors as the VM. With fewer the guest runs more slowly.
    has_processors: bool,
    /// Whether the VM's memory fits one of its memory nodes. Over several the guest runs more
    /// slowly.
    fits_a_node: bool,
    /// The number of VMs there that it is kept near.
    near: usize,
}

/// A host that could have the VM, and whether it fits.
struct Judged<'a> {
    seat: &'a HostSeat,
    fit: Result<Fit, Problem>,
}

impl Control {
    /// Chooses the host of a VM.
    ///
    /// # Errors
    /// Why no host fits: one reason for each.
    pub(super) fn choose(
        &self,
        index: &Index,
        needs: &Needs<'_>,
        among: &Among<'_>,
    ) -> Result<Choice<'_>, Problem> {
        let datastore = needs.datastore;
        if let Among::Named(named) = among {
            let host = by_name_or_id(&index.hosts, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, named))?;
            let seat = self.seat_of_host(host)?;
            self.fit_of(index, needs, seat)?;
            let reason = datastore.is_shared().then(|| format!("host {} was asked for", seat.name));
            return Ok(Choice { seat, reason });
        }
        let but = match among {
            Among::AllBut(host) => Some(*host),
            Among::All | Among::Named(_) => None,
        };
        let seats = datastore.mounts().filter(|mount| Some(mount.host) != but);
        let seats = seats.filter_map(|mount| self.seat(mount.host));
        let mut judged: Vec<Judged<'_>> =
            seats.map(|seat| Judged { seat, fit: self.fit_of(index, needs, seat) }).collect();
        if !datastore.is_shared()
            && let Some(Judged { fit: Err(problem), .. }) = judged.pop_if(|one| one.fit.is_err())
        {
            // There is no choice, and one reason.
            return Err(problem);
        }
        let Some(best) = judged.iter().filter(|one| one.fit.is_ok()).max_by_key(rank) else {
            let why = reasons(&judged, None);
            let why = if why.is_empty() { "no other host reaches its datastore".to_owned() } else { why };
            let message = format!("no host fits {}: {why}", needs.called);
            return Err(Problem::new(ErrorCode::NoHost, message).next(
                "have another host reach the datastore (`strongroom datastore add-host`), or make room",
            ));
        };
        let reason = datastore.is_shared().then(|| {
            let others = reasons(&judged, Some(best.seat.id));
            let others = if others.is_empty() { String::new() } else { format!(" ({others})") };
            format!("host {} fits best{}{others}", best.seat.name, said(&best.fit))
        });
        Ok(Choice { seat: best.seat, reason })
    }

    fn seat_of_host(&self, host: &HostRecord) -> Result<&HostSeat, Problem> {
        self.seat(host.id).ok_or_else(|| {
            Problem::new(
                ErrorCode::HostUnavailable,
                format!("host {} is not one that is asked here", host.name),
            )
        })
    }

    /// Whether a host fits a VM.
    fn fit_of(&self, index: &Index, needs: &Needs<'_>, seat: &HostSeat) -> Result<Fit, Problem> {
        let none = |message: String| Problem::new(ErrorCode::NoHost, message);
        let (host, datastore) = (&seat.name, needs.datastore);
        let Some(mount) = datastore.on(seat.id) else { return Err(does_not_reach(seat, datastore)) };
        for other in &needs.others {
            self.reaches(seat, other)?;
        }
        if needs.has_tpm {
            keeps_tpms_in(seat, datastore)?;
        }
        takes_vms(index, seat)?;
        if let Some(policy) = needs.policy {
            self.check_crypto_safe(policy, &needs.called, seat)?;
        }
        if let Some(nics) = needs.nics {
            self.connected_on(index, seat.id, nics)?;
        }
        if let Some(board) = needs.board {
            gives(seat, &needs.called, board)?;
        }
        if let Some(former) = needs.has_processor_of {
            keeps_features(former, seat, &needs.called)?;
        }
        let seen = seat.seen();
        let state = seen.state.as_ref().filter(|_| seen.down.is_none());
        let processors = state.map_or(0, |state| state.cpus);
        let near = near(index, needs.groups.iter().copied(), needs.vm, (host.as_str(), seat.id))?;
        let nodes = state.map_or(&[][..], |state| &state.topology.node_memory_bytes);
        let fits_a_node = nodes.is_empty() || nodes.iter().any(|bytes| *bytes >= needs.memory_bytes);
        let has_processors = processors >= needs.processors;
        let fit = |left_bytes| Fit { left_bytes, has_processors, fits_a_node, near };
        if !datastore.is_shared() {
            return Ok(fit(state.map_or(0, |state| state.memory_bytes)));
        }
        let Some(state) = state else {
            return Err(none(format!("host {host} does not answer, and its state is unknown")));
        };
        must_be_ready(seat, state, datastore, &mount.path)?;
        let placed = placed_bytes(index, seat.id);
        let after = placed.saturating_add(needs.memory_bytes);
        match state.memory_bytes.checked_sub(after) {
            Some(left) => Ok(fit(left)),
            None => Err(no_room(seat, state.memory_bytes, placed, needs.memory_bytes)),
        }
    }

    /// Checks that a host can use a datastore beside that of a VM's directory now, and knows how.
    ///
    /// # Errors
    /// [`ErrorCode::NoHost`].
    pub(super) fn reaches(&self, seat: &HostSeat, datastore: &DatastoreRecord) -> Result<(), Problem> {
        let Some(mount) = datastore.on(seat.id) else { return Err(does_not_reach(seat, datastore)) };
        speaks_of_disk_places(seat)?;
        let seen = seat.seen();
        let Some(state) = seen.state.as_ref().filter(|_| seen.down.is_none()) else {
            let message = format!("host {} does not answer, and its state is unknown", seat.name);
            return Err(Problem::new(ErrorCode::NoHost, message));
        };
        must_be_ready(seat, state, datastore, &mount.path)
    }

    /// Refuses a request that places a VM on a host without room, or on one in maintenance, or
    /// starts one there. Otherwise makes the transaction conditional on what the host has, so that
    /// requests at the same time do not use the same room.
    pub(super) fn within_room(
        &self,
        index: &Index,
        task: &TaskRecord,
        vms: &[VmRecord],
        draft: Draft,
    ) -> Result<Draft, Problem> {
        // What is found on a host was not placed there.
        if task.kind() == TaskKind::VmRegister {
            return Ok(draft);
        }
        let hosts: BTreeSet<Uuid> = vms.iter().map(|vm| vm.host).chain(task.work.target()).collect();
        let starts = matches!(task.work, Work::Start { .. } | Work::Stop { then_start: true, .. });
        hosts.into_iter().filter_map(|host| index.hosts.get(&host.to_string())).try_fold(
            draft,
            |draft, host| {
                let is_new = |vm: &VmRecord| {
                    let before = index.vm(vm.id).map(|known| known.host);
                    task.work.target() == Some(host.id) || vm.host == host.id && before != Some(host.id)
                };
                let places = vms.iter().any(is_new);
                if places || starts {
                    must_not_be_in_maintenance(host)?;
                }
                let more_bytes = more_bytes(index, host.id, vms, task);
                let draft = if places { within_groups(index, vms, draft) } else { draft };
                if !places && more_bytes == 0 {
                    return Ok(if starts { draft.unchanged(host) } else { draft });
                }
                let shares = |vm: &VmRecord| index.datastore_of(vm).is_some_and(|found| found.is_shared());
                if !vms.iter().any(shares) {
                    return Ok(draft.unchanged(host));
                }
                self.must_have_room(index, host.id, more_bytes)?;
                // The host's record is written again, so that the next request of this kind looks
                // once more.
                Ok(draft.replace(host, &host.record))
            },
        )
    }

    /// Checks that a host has memory for VMs with so many bytes more.
    pub(super) fn must_have_room(&self, index: &Index, host: Uuid, more_bytes: u64) -> Result<(), Problem> {
        let Some(seat) = self.seat(host).filter(|_| more_bytes > 0) else { return Ok(()) };
        let total = seat.seen().state.as_ref().map_or(0, |state| state.memory_bytes);
        let placed = placed_bytes(index, host);
        match placed.saturating_add(more_bytes) > total {
            true => Err(no_room(seat, total, placed, more_bytes)),
            false => Ok(()),
        }
    }

    /// Checks that a policy allows a host in its present state.
    pub(super) fn check_crypto_safe(
        &self,
        policy: &PolicyRecord,
        called: &str,
        seat: &HostSeat,
    ) -> Result<(), Problem> {
        if !policy.rules.crypto_safe_hosts {
            return Ok(());
        }
        let seen = seat.seen();
        let told = seen.state.as_ref().map(|state| &state.crypto_safe);
        if told.is_some_and(|told| told.state == CryptoSafeState::Safe) {
            return Ok(());
        }
        let why = told.map_or_else(|| "it has not said".to_owned(), |told| told.reasons.join("; "));
        let message = format!(
            "policy {} lets {called} run on crypto-safe hosts only, and host {} is none: {why}",
            policy.name, seat.name
        );
        Err(Problem::new(ErrorCode::NoHost, message)
            .next("`strongroom doctor` on that host says what is missing"))
    }
}

fn does_not_reach(seat: &HostSeat, datastore: &DatastoreRecord) -> Problem {
    let message = format!("host {} does not reach datastore {}", seat.name, datastore.name);
    Problem::new(ErrorCode::NoHost, message)
        .next(format!("`strongroom datastore add-host {} --host {}`", datastore.name, seat.name))
}

/// What a host says of the datastore at this path.
pub(super) fn told_of<'a>(state: &'a protocol::Host, path: &str) -> Option<&'a protocol::Datastore> {
    state.datastores.iter().find(|told| told.path == Path::new(path))
}

/// Checks that a host says that it can use a datastore, which is at this path there.
fn must_be_ready(
    seat: &HostSeat,
    state: &protocol::Host,
    datastore: &DatastoreRecord,
    path: &str,
) -> Result<(), Problem> {
    let told = told_of(state, path);
    let is_ready =
        |told: &protocol::Datastore| told.id == Some(datastore.id) && told.state == DatastoreState::Ready;
    if told.is_some_and(is_ready) {
        return Ok(());
    }
    let why = told.and_then(|told| told.reason.clone()).unwrap_or_else(|| "it is not there".to_owned());
    let message = format!("datastore {} cannot be used on host {}: {why}", datastore.name, seat.name);
    Err(Problem::new(ErrorCode::NoHost, message))
}

/// Checks that a host takes VMs at all.
fn takes_vms(index: &Index, seat: &HostSeat) -> Result<(), Problem> {
    let Some(host) = index.hosts.get(&seat.id.to_string()).filter(|host| !host.is_leaving()) else {
        let message = format!("host {} is being removed", seat.name);
        return Err(Problem::new(ErrorCode::NoHost, message));
    };
    must_not_be_in_maintenance(host)
}

/// Refuses a host in maintenance, and one that was declared lost.
pub(super) fn must_not_be_in_maintenance(host: &HostRecord) -> Result<(), Problem> {
    if host.fenced.is_some() {
        let message = format!("host {} was declared lost: no VM is placed or started there", host.name);
        return Err(Problem::new(ErrorCode::NoHost, message).next(format!(
            "when its machine has started again, admit it: `strongroom host admit {}`",
            host.name
        )));
    }
    if !host.maintenance {
        return Ok(());
    }
    let message = format!("host {} is in maintenance: no VM is placed or started there", host.name);
    Err(Problem::new(ErrorCode::NoHost, message)
        .next(format!("`strongroom host maintenance {} off` ends it", host.name)))
}

fn no_room(seat: &HostSeat, total_bytes: u64, placed_bytes: u64, more_bytes: u64) -> Problem {
    let message = format!(
        "host {} has {} of memory, of which {} are placed, and this takes {} more",
        seat.name,
        display_bytes(total_bytes),
        display_bytes(placed_bytes),
        display_bytes(more_bytes)
    );
    Problem::new(ErrorCode::NoHost, message).next("move or delete VMs there, or give this one less memory")
}

/// The reasons of the hosts that do not fit, and what the others have.
fn reasons(judged: &[Judged<'_>], but: Option<Uuid>) -> String {
    let others = judged.iter().filter(|one| Some(one.seat.id) != but);
    let told = others.map(|one| match &one.fit {
        Ok(_) => format!("host {}{}", one.seat.name, said(&one.fit)),
        Err(problem) => problem.message.clone(),
    });
    told.collect::<Vec<_>>().join("; ")
}

/// The order of hosts that fit: of two that are alike, the first by name is better.
fn rank<'a>(one: &&'a Judged<'_>) -> Option<(usize, bool, bool, u64, Reverse<&'a str>)> {
    let Fit { left_bytes, has_processors, fits_a_node, near } = one.fit.as_ref().ok()?;
    Some((*near, *has_processors, *fits_a_node, *left_bytes, Reverse(one.seat.name.as_str())))
}

fn said(fit: &Result<Fit, Problem>) -> String {
    let Ok(fit) = fit else { return String::new() };
    let few = if fit.has_processors { "" } else { " and fewer processors than the VM" };
    let near = match fit.near {
        0 => String::new(),
        near => format!(" and {} of its placement group", counted(near, "VM")),
    };
    let nodes = if fit.fits_a_node { "" } else { " on several memory nodes" };
    format!(", with {} left{near}{nodes}{few}", display_bytes(fit.left_bytes))
}

/// The memory of the VMs that are placed on a host, and on their way to it.
pub(super) fn placed_bytes(index: &Index, host: Uuid) -> u64 {
    let on_its_way = index.open_tasks().filter(|task| task.work.target() == Some(host));
    let coming = on_its_way.filter_map(|task| index.vm(task.vm?)).filter(|vm| vm.host != host);
    let here = index.sums(&Facet::Host(host)).placed_bytes;
    let here = u64::try_from(here).unwrap_or(u64::MAX);
    coming.map(|vm| takes_bytes(index, host, vm, None)).fold(here, u64::saturating_add)
}

/// The memory that these VMs, as they become, take beyond what they take of a host before.
fn more_bytes(index: &Index, host: Uuid, changed: &[VmRecord], task: &TaskRecord) -> u64 {
    let before = changed.iter().filter_map(|vm| index.vm(vm.id));
    let before = before.map(|vm| takes_bytes(index, host, vm, None)).fold(0, u64::saturating_add);
    let after = changed.iter().map(|vm| takes_bytes(index, host, vm, Some(task)));
    after.fold(0, u64::saturating_add).saturating_sub(before)
}

/// The memory of a VM, if it is placed on a host or on its way to it.
fn takes_bytes(index: &Index, host: Uuid, vm: &VmRecord, new: Option<&TaskRecord>) -> u64 {
    let is_there = vm.host == host || target_of(index, vm, new) == Some(host);
    if vm.is_run() && is_there { vm.hardware.memory.bytes() } else { 0 }
}

/// The host that a VM is on its way to.
fn target_of(index: &Index, vm: &VmRecord, new: Option<&TaskRecord>) -> Option<Uuid> {
    let id = vm.task?;
    let new = new.filter(|task| task.task.id == id);
    new.map_or_else(|| index.task(id).and_then(|known| known.work.target()), |task| task.work.target())
}

/// Whether a VM is on its way to a host.
pub(super) fn is_bound_for(index: &Index, vm: &VmRecord, host: Uuid) -> bool {
    target_of(index, vm, None) == Some(host)
}
