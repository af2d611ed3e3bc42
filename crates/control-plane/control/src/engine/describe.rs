//! Names, notes and tags of VMs. The inventory alone decides them: they change in one transaction,
//! in any state of the VM, and no host is asked.
//!
//! A VM that is renamed keeps its directory, so nothing of it moves while it runs. Its host learns
//! the new name with the next order that has the VM's configuration, and writes it into `vm.json`.

use std::collections::BTreeSet;

use strongroom_api::limits::TAGS_MAX;
use strongroom_api::vm::{Notes, PatchVm, Tag, TagChanges, TagKey};
use strongroom_api::{ErrorCode, Name, Problem};
use strongroom_host::protocol::{FORMAT_WITH_CAPABILITIES, FORMAT_WITH_DIRECTORIES, FORMAT_WITH_HOT_PLUG};

use super::HostSeat;
use super::volume_changes::name_is_free;
use crate::inventory::Index;
use crate::problems;
use crate::records::VmRecord;

/// What of a request is about a VM's description, and what about its machine.
pub(super) struct Described<'a> {
    name: Option<&'a Name>,
    notes: Option<&'a Notes>,
    tags: Option<&'a TagChanges>,
    /// Whether there is nothing about the machine.
    pub(super) is_all: bool,
}

impl<'a> Described<'a> {
    pub(super) fn of(patch: &'a PatchVm) -> Self {
        let PatchVm {
            name,
            notes,
            tags,
            cpus,
            memory_bytes,
            growth,
            machine_type,
            processor,
            nics,
            boot,
            cdrom,
            vnc,
            restart,
        } = patch;
        let is_any = name.is_some() || notes.is_some() || tags.is_some();
        let is_of_machine = cpus.is_some()
            || memory_bytes.is_some()
            || growth.is_some()
            || machine_type.is_some()
            || processor.is_some()
            || nics.is_some()
            || boot.is_some()
            || cdrom.is_some()
            || vnc.is_some()
            || restart.is_some();
        let (name, notes, tags) = (name.as_ref(), notes.as_ref(), tags.as_ref());
        Self { name, notes, tags, is_all: is_any && !is_of_machine }
    }

    /// Whether it can change while a task works on the VM: nothing that a task does has to do with
    /// notes and tags. A task speaks of the VM by its name.
    pub(super) fn may_change_beside_a_task(&self) -> bool {
        self.is_all && self.name.is_none()
    }

    /// Changes a VM's record.
    ///
    /// # Errors
    /// If the name is taken, or there would be too many tags.
    pub(super) fn apply(&self, index: &Index, vm: &mut VmRecord) -> Result<(), Problem> {
        if let Some(name) = self.name.filter(|name| **name != vm.name) {
            name_is_free(index, name)?;
            vm.rename(name);
        }
        if let Some(notes) = self.notes {
            vm.notes = notes.clone();
        }
        if let Some(TagChanges { set, remove }) = self.tags {
            let set = one_for_each_key(set)?;
            let remove: BTreeSet<&str> = remove.iter().map(TagKey::as_str).collect();
            if let Some(both) = set.iter().map(Tag::key).find(|key| remove.contains(key)) {
                return Err(problems::invalid(format!("tags: {both} is to be set and to be removed")));
            }
            let is_new = |key: &str| set.iter().any(|new| new.key() == key);
            let stays = |tag: &Tag| !remove.contains(tag.key()) && !is_new(tag.key());
            vm.tags.retain(stays);
            vm.tags.extend(set);
            must_not_be_too_many(vm.tags.len())?;
        }
        Ok(())
    }
}

/// Checks that the host of a VM can be told the name of its directory and its order of booting. One
/// that does not answer is told later.
///
/// # Errors
/// If it has an earlier version.
pub(super) fn host_reads(seat: &HostSeat, vm: &VmRecord) -> Result<(), Problem> {
    let has_link = vm.hardware.nics.iter().any(|nic| !nic.link.is_up());
    let has_directory = vm.directory.is_some() || !vm.hardware.boot.order().is_empty();
    let needs = [
        (
            vm.hardware.board.is_pinned(),
            FORMAT_WITH_CAPABILITIES,
            "no machine type and no processor of a VM's own",
        ),
        (!vm.hardware.growth.is_none(), FORMAT_WITH_HOT_PLUG, "no VM that grows while it runs"),
        (has_link, FORMAT_WITH_HOT_PLUG, "no network card whose link is down"),
        (has_directory, FORMAT_WITH_DIRECTORIES, "no VM whose directory has another name, and no boot order"),
    ];
    let seen = seat.seen();
    let Some(state) = &seen.state else { return Ok(()) };
    let lacking = needs.into_iter().find(|(is_needed, format, _)| *is_needed && !state.formats.has(*format));
    let Some((_, _, what)) = lacking else { return Ok(()) };
    let message = format!("host {} has version {}, which knows {what}", seat.name, state.version);
    Err(Problem::new(ErrorCode::NoHost, message).next("upgrade the program there"))
}

/// Checks that a host can plug into a running VM what `changes` names.
///
/// # Errors
/// If it has an earlier version.
pub(super) fn host_plugs(seat: &HostSeat, changes: &str) -> Result<(), Problem> {
    match &seat.seen().state {
        Some(state) if !state.formats.has(FORMAT_WITH_HOT_PLUG) => {
            let message = format!(
                "host {} has version {}, which changes {changes} of a VM only while it is off",
                seat.name, state.version
            );
            Err(Problem::new(ErrorCode::NoHost, message)
                .next("stop the VM first, or upgrade the program there"))
        }
        Some(_) | None => Ok(()),
    }
}

/// The tags of a request.
///
/// # Errors
/// If a key is there twice, or there are too many.
pub(super) fn one_for_each_key(tags: &[Tag]) -> Result<BTreeSet<Tag>, Problem> {
    must_not_be_too_many(tags.len())?;
    let mut keys = BTreeSet::new();
    match tags.iter().find(|tag| !keys.insert(tag.key())) {
        Some(twice) => Err(problems::invalid(format!("tags: {} is there twice", twice.key()))),
        None => Ok(tags.iter().cloned().collect()),
    }
}

fn must_not_be_too_many(count: usize) -> Result<(), Problem> {
    if count > TAGS_MAX {
        return Err(problems::invalid(format!("tags: a VM has at most {TAGS_MAX}, and these are {count}")));
    }
    Ok(())
}
