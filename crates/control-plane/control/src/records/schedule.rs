//! The schedule of a VM: the wanted rules for its snapshots, the cryptoperiod of its data keys, and
//! the stage of each.

use serde::{Deserialize, Serialize};
use strongroom_api::vm::{Cryptoperiod, FailedRenewal, ScheduledRun, SnapshotRule};
use strongroom_types::{SnapshotId, SnapshotName, VmId};
use strongroom_vm::limits::SNAPSHOTS_MAX;
use uuid::Uuid;

/// The schedule of a VM. It is a record of its own, because it changes with each
/// snapshot, and the version of the VM does not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRecord {
    /// The VM.
    pub vm: VmId,
    /// Counts the requests for other rules of snapshots.
    pub version: u64,
    /// The rules, the most frequent first.
    pub rules: Vec<RuleRecord>,
    /// How long its data keys are used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cryptoperiod: Option<CryptoperiodRecord>,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleRecord {
    /// What is wanted.
    pub rule: SnapshotRule,
    /// The last time at which a snapshot was due and that needs nothing any more, in seconds since
    /// 1970. Nothing is made for a time that is not later.
    pub settled_unix_seconds: u64,
    /// Its stage.
    pub stage: RuleStage,
    /// The last result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduledRun>,
    /// The snapshots that it has made, oldest first. No others are ever deleted for it. Some may
    /// not exist any more: what a host reports only ever leads to fewer deletions.
    #[serde(default)]
    pub made: Vec<MadeSnapshot>,
}

/// The stage of a rule. It is recorded in the transaction that makes the task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum RuleStage {
    /// It waits for the next time.
    Idle,
    /// A snapshot is due, the VM has as many as it can have, and the oldest of the rule goes first.
    MakingRoom {
        /// When it was due, in seconds since 1970.
        due_unix_seconds: u64,
        /// The deletion.
        deletion: Deletion,
    },
    /// A snapshot is being made.
    Making {
        /// When it was due, in seconds since 1970.
        due_unix_seconds: u64,
        /// The task.
        task: Uuid,
        /// The snapshot.
        snapshot: MadeSnapshot,
        /// Its name.
        name: SnapshotName,
    },
    /// After a snapshot was made, those beyond the kept ones are deleted, one after the other.
    Trimming {
        /// The deletion that has begun.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deletion: Option<Deletion>,
    },
}

/// The deletion of a snapshot of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deletion {
    /// The task.
    pub task: Uuid,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

/// A snapshot that a rule has made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MadeSnapshot {
    /// Its id.
    pub id: SnapshotId,
    /// The number of the VM's last start before it.
    pub generation: u64,
    /// Whether the VM was off.
    pub while_off: bool,
}

/// The cryptoperiod of a VM's data keys. Its beginning is the VM's last renewal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CryptoperiodRecord {
    /// What is wanted.
    pub wanted: Cryptoperiod,
    /// Its stage.
    pub stage: RenewalStage,
    /// The last renewal, if it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedRenewal>,
}

/// The stage of a renewal. It is recorded in the transaction that makes the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "stage", rename_all = "snake_case")]
pub enum RenewalStage {
    /// It waits for the end of the period.
    Idle,
    /// The data keys are being renewed.
    Renewing {
        /// The task.
        task: Uuid,
    },
}

impl CryptoperiodRecord {
    /// A new one.
    pub fn new(wanted: Cryptoperiod) -> Self {
        Self { wanted, stage: RenewalStage::Idle, failed: None }
    }
}

impl RuleRecord {
    /// A new rule, for the times after this one.
    pub fn new(rule: SnapshotRule, settled_unix_seconds: u64) -> Self {
        Self { rule, settled_unix_seconds, stage: RuleStage::Idle, last: None, made: Vec::new() }
    }

    /// The rule's snapshots that exist, oldest first.
    pub fn existing<'rule>(
        &'rule self,
        exists: impl Fn(SnapshotId) -> bool + 'rule,
    ) -> impl Iterator<Item = &'rule MadeSnapshot> {
        self.made.iter().filter(move |made| exists(made.id))
    }

    /// Adds a snapshot. Forgets one that does not exist, if more are known than a VM can have.
    pub fn add(&mut self, made: MadeSnapshot, exists: impl Fn(SnapshotId) -> bool) {
        self.made.push(made);
        let gone = self.made.iter().position(|known| known.id != made.id && !exists(known.id));
        if let Some(gone) = gone.filter(|_| self.made.len() > SNAPSHOTS_MAX) {
            self.made.remove(gone);
        }
    }
}
