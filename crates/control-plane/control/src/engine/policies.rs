//! Policies: they are made, changed and deleted, and VMs that deviate are made to keep them.

use strongroom_api::limits::{DESCRIPTION_MAX_BYTES, DISK_LATENCY_P99_MAX_MS, LOSSES_SURVIVED_MAX};
use strongroom_api::policy::{CreatePolicy, Policy, PolicyRules, SetPolicy};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{EncryptDisk, MoveDisk, RotateKey, SetSnapshotSchedule};
use strongroom_api::{ErrorCode, ObjectKind, ObjectRef, Problem, Reference};
use strongroom_types::counted;
use uuid::Uuid;

use super::Control;
use super::compliance::{Mend, found, narrowed, schedule_of, with_demanded};
use super::snapshot_schedule::check_snapshot_rules;
use super::sweep::{Begun, Sweeps, not_twice};
use super::views::policy_view;
use super::wishes::Caller;
use crate::inventory::{Facet, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{Application, PolicyRecord, Sweep, TaskRecord, VmRecord, Work};

impl Control {
    /// Makes a policy.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_policy(&self, caller: &Caller, wish: &CreatePolicy) -> Result<Task, Problem> {
        if wish.description.len() > DESCRIPTION_MAX_BYTES {
            return Err(problems::invalid("the description is too long"));
        }
        check_rules(&wish.rules)?;
        self.wish(caller, |index, task| {
            if by_name_or_id(&index.policies, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Policy, wish.name.as_str()));
            }
            let record = PolicyRecord {
                id: Uuid::new_v4(),
                name: wish.name.clone(),
                description: wish.description.clone(),
                rules: wish.rules.clone(),
            };
            let task = self.task_done(task, TaskKind::PolicyCreate, policy_object(&record), caller);
            Ok((task, self.draft().create_named(&record)))
        })
    }

    /// Gives a policy other rules. Its VMs stay as they are; those that do not keep the rules
    /// deviate.
    pub fn set_policy(&self, caller: &Caller, named: &str, wish: &SetPolicy) -> Result<Policy, Problem> {
        check_rules(&wish.rules)?;
        self.change(caller, format!("the rules of policy {named} were set"), |index, _| {
            let policy = by_name_or_id(&index.policies, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Policy, named))?;
            let changed = PolicyRecord { rules: wish.rules.clone(), ..PolicyRecord::clone(&policy.record) };
            Ok((policy_view(index, &changed), self.draft().replace(policy, &changed)))
        })
    }

    /// Deletes a policy that no VM is under.
    pub fn delete_policy(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            let policy = by_name_or_id(&index.policies, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Policy, named))?;
            let vms = index.members(&Facet::Policy(policy.id)).len();
            if vms > 0 {
                return Err(Problem::new(
                    ErrorCode::InUse,
                    format!("policy {} holds for {}", policy.name, counted(vms, "VM")),
                )
                .next("delete those VMs first, or keep the policy"));
            }
            let task = self.task_done(task, TaskKind::PolicyDelete, policy_object(policy), caller);
            Ok((task, self.draft().remove_named(policy)))
        })
    }

    /// Requests that the VMs of a policy keep its rules, as far as requests can bring that about.
    pub fn apply_policy(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let policy = by_name_or_id(&index.policies, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Policy, named))?;
            not_twice(
                index,
                |work| matches!(work, Work::ApplyPolicy(now) if now.policy == policy.id),
                format!("policy {} is being applied", policy.name),
            )?;
            let task = self.task(id, TaskKind::PolicyApply, policy_object(policy), caller);
            let application = Application { policy: policy.id, vms: Sweep::default() };
            Ok((TaskRecord { work: Work::ApplyPolicy(application), ..task }, self.draft().unchanged(policy)))
        })
    }

    /// Requests what ends a deviation of a VM.
    fn mend(
        &self,
        caller: &Caller,
        vm: &VmRecord,
        mend: &Mend<'_>,
        policy: &PolicyRecord,
    ) -> Result<Task, Problem> {
        // VMs are named by their ids: a name may be another's by the time of the request.
        let (id, rules) = (vm.id.to_string(), &policy.rules);
        match mend {
            Mend::Encrypt(disk) => {
                let first = rules.key_provider.clone().filter(|_| vm.hardware.keys().is_empty());
                let wish = EncryptDisk { integrity: rules.integrity_required, key_provider: first };
                self.encrypt_disk(caller, &id, disk.as_str(), &wish)
            }
            Mend::MoveKeys(provider) => {
                let how = RotateKey { key_provider: Some((*provider).clone()), data: false };
                self.rotate_key(caller, &id, &how)
            }
            Mend::Limit(disk) => {
                let has = vm.hardware.disk(disk.as_str()).map_or(rules.disk_limits, |disk| disk.limits);
                self.limit_disk(caller, &id, Some(disk.as_str()), narrowed(has, rules.disk_limits))
            }
            Mend::Schedule(_) => {
                let (rules, version) = {
                    let index = self.inventory.read();
                    let known = schedule_of(&index, vm);
                    let has = known.map_or(&[][..], |known| &known.rules);
                    (with_demanded(has, &rules.snapshots), known.map_or(0, |known| known.version))
                };
                self.set_snapshot_schedule(caller, &id, &SetSnapshotSchedule { rules }, Some(version))
            }
            Mend::MoveDisk { disk, to } => {
                let wish = MoveDisk { datastore: Reference::from(to.clone()) };
                self.move_disk(caller, &id, disk.as_str(), &wish)
            }
            Mend::Anew(how) => Err(problems::conflict("no request ends this").next(how)),
        }
    }
}

impl Application {
    fn policy<'index>(&self, index: &'index Index) -> Option<&'index Row<PolicyRecord>> {
        index.policies.get(&self.policy.to_string())
    }
}

impl Sweeps for Application {
    const EVENT: &'static str = "policy.apply";

    fn vms(&self) -> &Sweep {
        &self.vms
    }

    fn vms_mut(&mut self) -> &mut Sweep {
        &mut self.vms
    }

    fn into_work(self) -> Work {
        Work::ApplyPolicy(self)
    }

    fn todo<'index>(&self, index: &'index Index) -> Vec<&'index Row<VmRecord>> {
        let Some(policy) = self.policy(index) else { return Vec::new() };
        let under = index.vms_with(&Facet::Policy(policy.id));
        under.filter(|vm| !found(index, vm, schedule_of(index, vm), policy).is_empty()).collect()
    }

    /// The request is committed before the sweep has its task. If the control plane is killed in
    /// between, the VM's next turn comes when that task has ended, and begins with what is left.
    fn begin(&self, control: &Control, task: &Row<TaskRecord>, vm: &Row<VmRecord>) -> Result<Begun, Problem> {
        let policy = self.policy(&control.inventory.read()).cloned();
        let Some(policy) = policy else { return Err(problems::conflict("the policy is not there any more")) };
        let found = {
            let index = control.inventory.read();
            found(&index, vm, schedule_of(&index, vm), &policy)
        };
        let by_request = found.iter().find(|found| !matches!(found.mend, Mend::Anew(_)));
        let Some(first) = by_request.or(found.first()) else {
            return Err(problems::conflict("it keeps the rules meanwhile"));
        };
        let caller = Caller::of_task(task);
        let begun =
            control.mend(&caller, vm, &first.mend, &policy).map_err(|problem| first.because(problem))?;
        Ok(Begun { task: begun.id, draft: control.draft() })
    }

    fn failure(&self, index: &Index, reasons: &str) -> Option<Problem> {
        let left = self.vms.left.len();
        let policy = self.policy(index).map_or("", |policy| policy.name.as_str());
        (left > 0).then(|| {
            let message = format!("policy {policy} is not kept by {}: {reasons}", counted(left, "VM"));
            problems::conflict(message).next("`strongroom vm show VM` says what ends each")
        })
    }
}

/// Checks rules against their limits.
fn check_rules(rules: &PolicyRules) -> Result<(), Problem> {
    if rules.disk_latency_p99_ms.is_some_and(|latency_ms| latency_ms > DISK_LATENCY_P99_MAX_MS) {
        let message = format!("a disk's latency is at most {DISK_LATENCY_P99_MAX_MS} milliseconds");
        return Err(problems::invalid(message));
    }
    if rules.losses_survived.is_some_and(|losses| losses > LOSSES_SURVIVED_MAX) {
        return Err(problems::invalid(format!("a policy demands at most {LOSSES_SURVIVED_MAX} losses")));
    }
    check_snapshot_rules(&rules.snapshots)
}

pub(super) fn policy_object(policy: &PolicyRecord) -> ObjectRef {
    ObjectRef { kind: ObjectKind::Policy, id: Some(policy.id), name: policy.name.to_string() }
}
