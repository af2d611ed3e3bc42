//! Whether VMs keep the rules of their policies.
//!
//! Every request that becomes a task passes [`keeps_policies`], with what the task will do, so no
//! operation can be without it. What deviates already stays as it is: a policy was changed, or a VM
//! was registered. It is shown with the VM, and is an alarm.

use strongroom_api::policy::{Deviation, PolicyRule, PolicyRules};
use strongroom_api::task::TaskKind;
use strongroom_api::vm::SnapshotRule;
use strongroom_api::{Name, Problem};
use strongroom_types::{DatastoreId, IoLimits, Redundancy, display_seconds};
use strongroom_vm::{DiskBecomes, DiskName};

use super::Stop;
use super::place::may_have_tags;
use crate::inventory::{Draft, Facet, Index, Row};
use crate::problems;
use crate::records::{
    DatastoreRecord, DiskRecord, DiskSealing, PolicyRecord, RuleRecord, ScheduleRecord, TaskRecord, VmRecord,
    Work,
};

/// What of a VM its policy does not permit, and what ends it.
pub(super) struct Found<'vm> {
    pub rule: PolicyRule,
    disk: Option<&'vm DiskRecord>,
    message: String,
    pub mend: Mend<'vm>,
}

/// What ends a deviation.
pub(super) enum Mend<'vm> {
    /// This disk is encrypted.
    Encrypt(&'vm DiskName),
    /// The VM moves to a key of this provider.
    MoveKeys(&'vm Name),
    /// This disk gets narrower limits.
    Limit(&'vm DiskName),
    /// The VM gets more snapshots.
    Schedule(&'vm SnapshotRule),
    /// This disk moves to a datastore.
    MoveDisk { disk: &'vm DiskName, to: Name },
    /// What no task does by itself, as this says.
    Anew(String),
}

/// Refuses a request with which a VM would deviate from its policy, and does not already.
pub(super) fn keeps_policies(
    index: &Index,
    task: &TaskRecord,
    changed: &[VmRecord],
    draft: &Draft,
) -> Result<(), Stop> {
    if task.task.kind == TaskKind::VmRegister {
        // It is there already, and is lost to nobody for its policy.
        return Ok(());
    }
    let schedules: Vec<ScheduleRecord> = draft.records()?;
    // A VM whose record stays as it is, but not what the task does, or its schedule.
    let also = task.vm.into_iter().chain(schedules.iter().map(|schedule| schedule.vm));
    let also = also.filter(|id| changed.iter().all(|vm| vm.id != *id)).filter_map(|id| index.vm(id));
    for vm in changed.iter().chain(also.map(|vm| &*vm.record)) {
        let Some(policy) = index.policy_of(vm) else { continue };
        let mut vm = vm.clone();
        if task.vm == Some(vm.id) {
            apply(&mut vm, &task.work);
        }
        let known = index.schedule(vm.id).map(|known| &*known.record);
        let schedule = schedules.iter().find(|schedule| schedule.vm == vm.id).or(known);
        let before = index.vm(vm.id).filter(|before| before.policy == vm.policy);
        let before = before.map(|before| deviations(index, before, known, policy)).unwrap_or_default();
        let is_new =
            |now: &Deviation| before.iter().all(|known| known.rule != now.rule || known.disk != now.disk);
        let new = deviations(index, &vm, schedule, policy).into_iter().find(is_new);
        if let Some(Deviation { message, next_step, .. }) = new {
            let message = format!("policy {}: {message}", policy.name);
            return Err(problems::conflict(message).next(next_step).into());
        }
    }
    Ok(())
}

/// What a task will make of its VM, as far as rules are about it.
fn apply(vm: &mut VmRecord, work: &Work) {
    match work {
        Work::AddDisk { disk, .. } | Work::BindVolume { disk, .. } => {
            vm.hardware.disks.push(DiskRecord::clone(disk))
        }
        Work::Limit { disk, limits, .. } => vm.hardware.limit(disk.as_ref(), *limits),
        Work::MoveDisk { disk, to, .. } => {
            let disks = vm.hardware.disks.iter_mut().filter(|known| known.name == *disk);
            disks.for_each(|known| known.datastore = Some(*to).filter(|to| *to != vm.datastore));
        }
        Work::SealDisk { disk, becomes: DiskBecomes::Clear, .. } => {
            let disks = vm.hardware.disks.iter_mut().filter(|known| known.name == *disk);
            disks.for_each(|known| known.sealing = DiskSealing::Clear);
        }
        Work::RotateKey { provider, .. } => {
            for disk in &mut vm.hardware.disks {
                if let DiskSealing::Under { key, .. } | DiskSealing::HalfClear { key, .. } = &mut disk.sealing
                {
                    key.provider = provider.clone();
                }
            }
        }
        // No other work changes what rules are about.
        _ => {}
    }
}

/// What of a VM its policy does not permit.
pub(super) fn deviations(
    index: &Index,
    vm: &VmRecord,
    schedule: Option<&ScheduleRecord>,
    policy: &PolicyRecord,
) -> Vec<Deviation> {
    let told = |found: Found<'_>| Deviation {
        next_step: found.next_step(vm, policy),
        rule: found.rule,
        disk: found.disk.map(|disk| disk.name.to_string()),
        message: found.message,
    };
    found(index, vm, schedule, policy).into_iter().map(told).collect()
}

/// As [`deviations`], for those that end them.
pub(super) fn found<'vm>(
    index: &Index,
    vm: &'vm VmRecord,
    schedule: Option<&ScheduleRecord>,
    policy: &'vm PolicyRecord,
) -> Vec<Found<'vm>> {
    let PolicyRules {
        encryption_required,
        key_provider,
        tpm_required,
        integrity_required,
        disk_limits,
        thick_required,
        losses_survived,
        snapshots,
        processor,
        // It is looked at when a VM moves.
        migration: _,
        // It is looked at when a browser asks.
        browser_console_denied: _,
        // They are looked at where a VM runs.
        crypto_safe_hosts: _,
        restart: _,
        disk_latency_p99_ms: _,
    } = &policy.rules;
    let mut found = Vec::new();
    let mut deviates = |rule, disk, message: String, mend| found.push(Found { rule, disk, message, mend });
    let name = &vm.name;
    if *tpm_required && !vm.hardware.tpm {
        let next = "make it anew with --tpm; a TPM cannot be added".to_owned();
        deviates(PolicyRule::Tpm, None, format!("VM {name} has no TPM"), Mend::Anew(next));
    }
    if let Some(demanded) = processor
        && vm.is_run()
        && vm.hardware.board.processor() != demanded
    {
        let message =
            format!("VM {name} has processor {}, and not {demanded}", vm.hardware.board.processor());
        let next = format!("`strongroom vm set {name} --processor {demanded}` while it is off");
        deviates(PolicyRule::Processor, None, message, Mend::Anew(next));
    }
    let lacking =
        |datastore| losses_survived.and_then(|demanded| lacks_redundancy(index, datastore, demanded));
    if let Some(lack) = lacking(vm.datastore) {
        let next = "make it anew in a datastore that has it: `strongroom datastore list` shows which; \
                    `strongroom vm clone` with --datastore copies all";
        let message = format!("VM {name} {lack}");
        deviates(PolicyRule::Redundancy, None, message, Mend::Anew(next.to_owned()));
    }
    for disk in &vm.hardware.disks {
        let called = || format!("{} of VM {name}", disk.name);
        if let Some(lack) = disk.datastore.and_then(lacking) {
            let message = format!("{} {lack}", called());
            let mend = match better_place(index, vm, disk, |id| lacking(id).is_none()) {
                Some(to) => Mend::MoveDisk { disk: &disk.name, to },
                None => Mend::Anew("have its host use a datastore that has it".to_owned()),
            };
            deviates(PolicyRule::Redundancy, Some(disk), message, mend);
        }
        if *encryption_required && disk.sealing == DiskSealing::Clear {
            let message = format!("{} is not encrypted", called());
            deviates(PolicyRule::Encryption, Some(disk), message, Mend::Encrypt(&disk.name));
        }
        let provider = disk.sealing.key().map(|key| key.provider.as_str());
        if let (Some(demanded), Some(used)) = (key_provider, provider)
            && demanded.as_str() != used
        {
            let message = format!("{} is under a key of {used}, and not of {demanded}", called());
            deviates(PolicyRule::KeyProvider, Some(disk), message, Mend::MoveKeys(demanded));
        }
        if *integrity_required && may_have_tags(disk.kind, &disk.sealing) && !disk.integrity {
            let next = format!(
                "make it anew with integrity; `strongroom vm clone {name} NAME --integrity` copies all"
            );
            let message = format!("{} has no integrity tags", called());
            deviates(PolicyRule::Integrity, Some(disk), message, Mend::Anew(next));
        }
        if let Some(message) = beyond(&disk.limits, disk_limits) {
            let message = format!("{} {message}", called());
            deviates(PolicyRule::DiskLimits, Some(disk), message, Mend::Limit(&disk.name));
        }
        if *thick_required && !disk.thick {
            let next = format!("make it anew; `strongroom vm clone {name} NAME` copies all");
            let message = format!("{} does not have its whole space", called());
            deviates(PolicyRule::Provisioning, Some(disk), message, Mend::Anew(next));
        }
    }
    let has = |demanded: &SnapshotRule| {
        schedule.is_some_and(|schedule| schedule.rules.iter().any(|known| covers(&known.rule, demanded)))
    };
    if vm.is_run() {
        for demanded in snapshots.iter().filter(|demanded| !has(demanded)) {
            let keep = demanded.keep;
            let message = format!("VM {name} has no {} snapshots of which {keep} are kept", demanded.name());
            deviates(PolicyRule::Snapshots, None, message, Mend::Schedule(demanded));
        }
    }
    found
}

impl Found<'_> {
    /// Why a request that should end it failed.
    pub(super) fn because(&self, problem: Problem) -> Problem {
        Problem { message: format!("{}, and {}", self.message, problem.message), ..problem }
    }

    fn next_step(&self, vm: &VmRecord, policy: &PolicyRecord) -> String {
        let name = &vm.name;
        match &self.mend {
            Mend::Encrypt(disk) => format!("`strongroom vm disk encrypt {name} {disk}`"),
            Mend::MoveKeys(provider) => {
                format!("`strongroom vm key rotate {name} --key-provider {provider}`")
            }
            Mend::Limit(disk) => format!(
                "`strongroom vm disk limit {name} {disk}` with {}",
                as_options(&policy.rules.disk_limits)
            ),
            Mend::Schedule(rule) => format!(
                "`strongroom vm snapshot schedule {name} --every {} --keep {}`, or `strongroom policy apply {}`",
                display_seconds(rule.every_s.into()),
                rule.keep,
                policy.name
            ),
            Mend::MoveDisk { disk, to } => {
                format!("`strongroom vm disk move {name} {disk} --to {to}`")
            }
            Mend::Anew(how) => how.clone(),
        }
    }
}

/// Why a datastore does not outlive as many losses as are demanded of what is in it.
pub(super) fn lacks_redundancy(index: &Index, datastore: DatastoreId, demanded: u8) -> Option<String> {
    let id = datastore.to_string();
    let known = index.datastores.get(&id);
    let has = match known.and_then(|known| known.redundancy) {
        Some(Redundancy { losses_survived, .. }) if losses_survived >= demanded => return None,
        Some(Redundancy { losses_survived, .. }) => format!("outlives {losses_survived}"),
        None => "is not known to outlive any".to_owned(),
    };
    let datastore = known.map_or(id, |known| known.name.to_string());
    Some(format!("must outlive {demanded} losses of storage, and datastore {datastore} {has}"))
}

/// A datastore that keeps a disk as is demanded and is reached by its VM's host: the VM's own if
/// that does.
fn better_place(
    index: &Index,
    vm: &VmRecord,
    disk: &DiskRecord,
    keeps: impl Fn(DatastoreId) -> bool,
) -> Option<Name> {
    let fits = |found: &&Row<DatastoreRecord>| {
        keeps(found.id) && found.on(vm.host).is_some() && !(disk.thick && found.ceph.is_some())
    };
    let own = index.datastore_of(vm).filter(fits);
    own.or_else(|| index.datastores.iter().find(fits)).map(|found| found.name.clone())
}

/// Whether a rule for snapshots is at least what is demanded.
fn covers(has: &SnapshotRule, demanded: &SnapshotRule) -> bool {
    let SnapshotRule { every_s, at_minutes, keep, quiesce_within_s } = *demanded;
    has.every_s == every_s
        && has.keep >= keep
        && at_minutes.is_none_or(|minutes| has.at_minutes == Some(minutes))
        && quiesce_within_s.is_none_or(|within_s| has.quiesce_within_s == Some(within_s))
}

/// The rules for snapshots that a VM has, with those that are demanded of it.
pub(super) fn with_demanded(has: &[RuleRecord], demanded: &[SnapshotRule]) -> Vec<SnapshotRule> {
    let own = has.iter().map(|known| known.rule.clone());
    let is_replaced = |own: &SnapshotRule| {
        demanded.iter().any(|demanded| demanded.every_s == own.every_s && !covers(own, demanded))
    };
    let kept: Vec<SnapshotRule> = own.filter(|own| !is_replaced(own)).collect();
    let lacks = |demanded: &&SnapshotRule| kept.iter().all(|own| own.every_s != demanded.every_s);
    let more: Vec<SnapshotRule> = demanded.iter().filter(lacks).cloned().collect();
    kept.into_iter().chain(more).collect()
}

/// A disk's limits, narrowed to those that are permitted.
pub(super) fn narrowed(limits: IoLimits, most: IoLimits) -> IoLimits {
    let is_within = |part: IoLimits, most: IoLimits| beyond(&part, &most).is_none();
    let iops = |limits: IoLimits| IoLimits { bandwidth: None, ..limits };
    let bandwidth = |limits: IoLimits| IoLimits { iops: None, ..limits };
    IoLimits {
        iops: if is_within(iops(limits), iops(most)) { limits.iops } else { most.iops },
        bandwidth: if is_within(bandwidth(limits), bandwidth(most)) {
            limits.bandwidth
        } else {
            most.bandwidth
        },
    }
}

/// How a disk's limits are wider than they may be.
fn beyond(limits: &IoLimits, most: &IoLimits) -> Option<String> {
    let iops = |limits: &IoLimits| limits.iops.map(|limit| limit.per_second.get());
    let bytes = |limits: &IoLimits| limits.bandwidth.map(|limit| limit.bytes_per_second.get());
    let wider =
        |has: Option<u64>, most: Option<u64>| most.is_some_and(|most| has.is_none_or(|has| has > most));
    let is_wider = wider(iops(limits), iops(most)) || wider(bytes(limits), bytes(most));
    is_wider.then(|| format!("may do {limits}, and at most {most} is permitted"))
}

fn as_options(limits: &IoLimits) -> String {
    let iops = limits.iops.map(|limit| format!("--iops {}", limit.per_second.get()));
    let bandwidth = limits.bandwidth.map(|limit| format!("--bandwidth {}", limit.bytes_per_second.get()));
    iops.into_iter().chain(bandwidth).collect::<Vec<_>>().join(" ")
}

/// The names of the VMs that deviate from a policy.
pub(super) fn deviating(index: &Index, policy: &PolicyRecord) -> Vec<Name> {
    let under = index.vms_with(&Facet::Policy(policy.id));
    under
        .filter(|vm| !found(index, vm, schedule_of(index, vm), policy).is_empty())
        .map(|vm| vm.name.clone())
        .collect()
}

/// The schedule of a VM.
pub(super) fn schedule_of<'index>(index: &'index Index, vm: &VmRecord) -> Option<&'index ScheduleRecord> {
    index.schedule(vm.id).map(|schedule| &*schedule.record)
}
