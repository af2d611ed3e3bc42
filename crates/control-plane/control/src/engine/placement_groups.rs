//! Placement groups: VMs that are kept on different hosts, or near each other.
//!
//! A request that places a VM is conditional on the records of its groups, and a VM joins only as
//! it was found. Two requests that place VMs on one host at the same time exclude each other by the
//! host's record (`placement`).

use strongroom_api::placement::{CreatePlacementGroup, GroupedVm, Keep, PlacementGroup, SetPlacementGroup};
use strongroom_api::{ErrorCode, ObjectKind, Problem, Reference};
use strongroom_types::VmId;
use uuid::Uuid;

use super::Control;
use super::access::Rights;
use super::accounts::within;
use super::placement::is_bound_for;
use super::wishes::Caller;
use crate::inventory::{Draft, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{PlacementGroupRecord, VmRecord};

/// The most placement groups of a site.
const GROUPS_MAX: usize = 1024;
/// The most VMs of a placement group.
const VMS_MAX: usize = 1024;

impl Control {
    /// Makes a placement group.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_placement_group(
        &self,
        caller: &Caller,
        wish: &CreatePlacementGroup,
    ) -> Result<PlacementGroup, Problem> {
        self.change(caller, format!("placement group {} was made", wish.name), |index, _| {
            if by_name_or_id(&index.placement_groups, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::PlacementGroup, wish.name.as_str()));
            }
            within(index.placement_groups.len(), GROUPS_MAX, "placement groups")?;
            let record = PlacementGroupRecord {
                id: Uuid::new_v4(),
                name: wish.name.clone(),
                keep: wish.keep,
                vms: Default::default(),
            };
            Ok((view(index, &record, |_| true), self.draft().create_named(&record)))
        })
    }

    /// Has VMs join and leave a placement group. They stay on their hosts.
    pub fn set_placement_group(
        &self,
        caller: &Caller,
        named: &str,
        wish: &SetPlacementGroup,
    ) -> Result<PlacementGroup, Problem> {
        self.change(caller, format!("the VMs of placement group {named} were changed"), |index, _| {
            let group = called(index, named)?;
            let find =
                |named: &str| index.find_vm(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named));
            let mut changed = PlacementGroupRecord::clone(&group.record);
            let mut draft = self.draft();
            changed.vms.retain(|vm| index.vm(*vm).is_some());
            for left in &wish.remove {
                changed.vms.remove(&find(left.as_str())?.id);
            }
            for joined in &wish.add {
                let vm = find(joined.as_str())?;
                if changed.keep == Keep::Apart
                    && let Some(other) =
                        changed.others(index, vm.id).find(|other| are_on_one_host(index, vm, other))
                {
                    let message =
                        format!("VM {} is on a host with VM {}, which is in the group", vm.name, other.name);
                    return Err(problems::conflict(message)
                        .next(format!("`strongroom vm migrate {}` moves it to another host", vm.name)));
                }
                changed.vms.insert(vm.id);
                // It is written again: a request that found it in no group does not move it.
                draft = draft.replace(vm, &vm.record);
            }
            within(changed.vms.len().saturating_sub(1), VMS_MAX, "VMs of this placement group")?;
            Ok((view(index, &changed, |_| true), draft.replace(group, &changed)))
        })
    }

    /// Deletes a placement group. Its VMs stay.
    pub fn delete_placement_group(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("placement group {named} was deleted"), |index, _| {
            let group = called(index, named)?;
            let message = format!("placement group {} was deleted", group.name);
            let draft = self.draft().remove_named(group);
            Ok(((), draft.event("placement_group.deleted", &group.object(), message, None)))
        })
    }

    /// All placement groups, with the VMs that a caller may view.
    pub fn list_placement_groups(&self, rights: &Rights) -> Vec<PlacementGroup> {
        let index = self.inventory.read();
        let sees = |vm: &VmRecord| rights.sees_vm(vm);
        index.placement_groups.iter().map(|group| view(&index, group, sees)).collect()
    }

    /// A placement group, with the VMs that a caller may view.
    pub fn show_placement_group(&self, rights: &Rights, named: &str) -> Result<PlacementGroup, Problem> {
        let index = self.inventory.read();
        Ok(view(&index, called(&index, named)?, |vm| rights.sees_vm(vm)))
    }
}

impl PlacementGroupRecord {
    /// Its other VMs.
    fn others<'index>(&self, index: &'index Index, but: VmId) -> impl Iterator<Item = &'index Row<VmRecord>> {
        self.vms.iter().filter(move |vm| **vm != but).filter_map(|vm| index.vm(*vm))
    }
}

/// The placement group with this name or id.
pub(super) fn called<'index>(
    index: &'index Index,
    named: &str,
) -> Result<&'index Row<PlacementGroupRecord>, Problem> {
    by_name_or_id(&index.placement_groups, named)
        .ok_or_else(|| problems::not_found(ObjectKind::PlacementGroup, named))
}

/// What placement groups say about a host for a VM: the number of VMs there that it is kept near.
///
/// # Errors
/// Why the VM is not placed there. VMs are not named: they may be of others.
pub(super) fn near<'index>(
    index: &Index,
    groups: impl Iterator<Item = &'index Row<PlacementGroupRecord>>,
    vm: Option<VmId>,
    host: (&str, Uuid),
) -> Result<usize, Problem> {
    let (called, host) = host;
    let mut near = 0;
    for group in groups {
        let is_other = |id: &&VmId| Some(**id) != vm;
        let others = group.vms.iter().filter(is_other).filter_map(|id| index.vm(*id));
        let there = others.filter(|other| other.host == host || is_bound_for(index, other, host)).count();
        match group.keep {
            Keep::Together => near += there,
            Keep::Apart if there == 0 => {}
            Keep::Apart => {
                let message =
                    format!("host {called} has a VM of placement group {}, which are kept apart", group.name);
                return Err(Problem::new(ErrorCode::NoHost, message));
            }
        }
    }
    Ok(near)
}

/// Makes a transaction that places VMs conditional on their placement groups: none has joined
/// meanwhile.
pub(super) fn within_groups(index: &Index, vms: &[VmRecord], draft: Draft) -> Draft {
    let is_one = |group: &&Row<PlacementGroupRecord>| vms.iter().any(|vm| group.vms.contains(&vm.id));
    let groups = index.placement_groups.iter().filter(is_one);
    groups.fold(draft, |draft, group| draft.unchanged(group))
}

/// The transaction with which a new VM is of its placement group.
pub(super) fn with_new(
    index: &Index,
    named: Option<&Reference>,
    vm: &VmRecord,
    draft: Draft,
) -> Result<Draft, Problem> {
    let Some(named) = named else { return Ok(draft) };
    let group = called(index, named.as_str())?;
    let mut with = PlacementGroupRecord::clone(&group.record);
    within(with.vms.len(), VMS_MAX, "VMs of this placement group")?;
    with.vms.insert(vm.id);
    Ok(draft.replace(group, &with))
}

fn are_on_one_host(index: &Index, one: &VmRecord, other: &VmRecord) -> bool {
    one.host == other.host || is_bound_for(index, one, other.host) || is_bound_for(index, other, one.host)
}

fn view(index: &Index, group: &PlacementGroupRecord, sees: impl Fn(&VmRecord) -> bool) -> PlacementGroup {
    let vms = group.vms.iter().filter_map(|vm| index.vm(*vm)).filter(|vm| sees(vm));
    let told = |vm: &Row<VmRecord>| GroupedVm {
        name: vm.name.clone(),
        host: index.host_of(vm).map(|host| host.name.to_string()),
    };
    PlacementGroup { id: group.id, name: group.name.clone(), keep: group.keep, vms: vms.map(told).collect() }
}
