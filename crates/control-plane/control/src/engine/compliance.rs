//! Whether VMs keep the rules of their policies.
//!
//! Every request that becomes a task passes [`keeps_policies`], with what the task will do, so no
//! operation can be without it. What deviates already stays as it is: a policy was changed, or a VM
//! was registered. It is shown with the VM, and is an alarm.

use strongroom_api::policy::{Deviation, PolicyRule, PolicyRules};
use strongroom_api::task::TaskKind;
use strongroom_api::{Name, Problem};
use strongroom_types::IoLimits;
use strongroom_vm::DiskBecomes;

use super::place::may_have_tags;
use crate::inventory::Index;
use crate::problems;
use crate::records::{DiskRecord, DiskSealing, PolicyRecord, TaskRecord, VmRecord, Work};

/// Refuses a request with which a VM would deviate from its policy, and does not already.
pub(super) fn keeps_policies(index: &Index, task: &TaskRecord, changed: &[VmRecord]) -> Result<(), Problem> {
    if task.task.kind == TaskKind::VmRegister {
        // It is there already, and is lost to nobody for its policy.
        return Ok(());
    }
    let of_task = task.vm.filter(|id| changed.iter().all(|vm| vm.id != *id)).and_then(|id| index.vm(id));
    for vm in changed.iter().chain(of_task.map(|vm| &*vm.record)) {
        let Some(policy) = index.policy_of(vm) else { continue };
        let mut vm = vm.clone();
        if task.vm == Some(vm.id) {
            apply(&mut vm, &task.work);
        }
        let before = index.vm(vm.id).filter(|before| before.policy == vm.policy);
        let before = before.map(|before| deviations(before, policy)).unwrap_or_default();
        let is_new =
            |now: &Deviation| before.iter().all(|known| known.rule != now.rule || known.disk != now.disk);
        if let Some(Deviation { message, next_step, .. }) = deviations(&vm, policy).into_iter().find(is_new) {
            return Err(problems::conflict(format!("policy {}: {message}", policy.name)).next(next_step));
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
pub(super) fn deviations(vm: &VmRecord, policy: &PolicyRecord) -> Vec<Deviation> {
    let PolicyRules {
        encryption_required,
        key_provider,
        tpm_required,
        integrity_required,
        disk_limits,
        // They are looked at where a VM runs.
        crypto_safe_hosts: _,
        restart: _,
        disk_latency_p99_ms: _,
    } = &policy.rules;
    let mut found = Vec::new();
    let mut deviates = |rule, disk: Option<&DiskRecord>, message: String, next_step: String| {
        let disk = disk.map(|disk| disk.name.to_string());
        found.push(Deviation { rule, disk, message, next_step });
    };
    let name = &vm.name;
    if *tpm_required && !vm.hardware.tpm {
        let next = "make it anew with --tpm; a TPM cannot be added".to_owned();
        deviates(PolicyRule::Tpm, None, format!("VM {name} has no TPM"), next);
    }
    for disk in &vm.hardware.disks {
        let called = || format!("{} of VM {name}", disk.name);
        if *encryption_required && disk.sealing == DiskSealing::Clear {
            let next = format!("`strongroom vm disk encrypt {name} {}`", disk.name);
            deviates(PolicyRule::Encryption, Some(disk), format!("{} is not encrypted", called()), next);
        }
        let provider = disk.sealing.key().map(|key| key.provider.as_str());
        if let (Some(demanded), Some(used)) = (key_provider, provider)
            && demanded.as_str() != used
        {
            let message = format!("{} is under a key of {used}, and not of {demanded}", called());
            let next = format!("`strongroom vm key rotate {name} --key-provider {demanded}`");
            deviates(PolicyRule::KeyProvider, Some(disk), message, next);
        }
        if *integrity_required && may_have_tags(disk.kind, &disk.sealing) && !disk.integrity {
            let next = format!(
                "make it anew with integrity; `strongroom vm clone {name} NAME --integrity` copies all"
            );
            deviates(PolicyRule::Integrity, Some(disk), format!("{} has no integrity tags", called()), next);
        }
        if let Some(message) = beyond(&disk.limits, disk_limits) {
            let next =
                format!("`strongroom vm disk limit {name} {}` with {}", disk.name, as_options(disk_limits));
            deviates(PolicyRule::DiskLimits, Some(disk), format!("{} {message}", called()), next);
        }
    }
    found
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
    let under = index.vms.iter().filter(|vm| vm.policy == Some(policy.id));
    under.filter(|vm| !deviations(vm, policy).is_empty()).map(|vm| vm.name.clone()).collect()
}
