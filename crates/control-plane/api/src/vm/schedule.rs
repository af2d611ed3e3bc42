//! Schedules: the snapshots of a VM that the control plane makes and deletes by itself, and the
//! data keys that it renews.

use serde::{Deserialize, Deserializer, Serialize};
use strongroom_types::{SnapshotName, display_seconds};
use utoipa::ToSchema;

use super::snapshot::QuiesceWithin;
use crate::Name;

/// When snapshots of a VM are made, and how many of them are kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SnapshotRule {
    /// The time from one snapshot to the next, in seconds: whole minutes. A VM has one rule of each
    /// length.
    #[schema(minimum = 300, maximum = 31_622_400, multiple_of = 60)]
    pub every_s: u32,
    /// When in the day they are made, in minutes after midnight, UTC; only for a rule of whole
    /// days. A VM's own offset of up to 15 minutes is added. Without it, the snapshots of many VMs
    /// are spread over the whole period.
    #[schema(maximum = 1439)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_minutes: Option<u32>,
    /// How many of its snapshots are kept. The rules of a VM keep at most 26 together.
    #[schema(minimum = 1, maximum = 26)]
    pub keep: u32,
    /// Has the agent in a guest that runs freeze the guest's file systems meanwhile, for which it
    /// has so many seconds. Without an agent that does so, the snapshot fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quiesce_within_s: Option<QuiesceWithin>,
}

impl SnapshotRule {
    /// The rule's name, which the names of its snapshots begin with: `hourly`, `daily`, `weekly`,
    /// or as in `every-6h`.
    pub fn name(&self) -> String {
        match self.every_s {
            3600 => "hourly".to_owned(),
            86_400 => "daily".to_owned(),
            604_800 => "weekly".to_owned(),
            other => format!("every-{}", display_seconds(other.into())),
        }
    }
}

/// A request for all rules of a VM. Rules that are left out are removed, and their snapshots stay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetSnapshotSchedule {
    /// The rules; without any, nothing is made by itself.
    #[schema(max_items = 8)]
    pub rules: Vec<SnapshotRule>,
}

/// The schedule of a VM's snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotSchedule {
    /// Counts its changes; `If-Match` takes it. Zero if the VM has no rules.
    pub version: u64,
    /// The rules, the most frequent first.
    pub rules: Vec<ScheduledRule>,
}

/// A rule, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduledRule {
    /// The rule's name: the beginning of its snapshots' names.
    pub name: String,
    /// The rule.
    pub rule: SnapshotRule,
    /// How many of its snapshots there are.
    pub kept: u32,
    /// When the next snapshot is due, in seconds since 1970. In the past if it could not be made
    /// yet.
    pub next_unix_seconds: u64,
    /// Why the snapshot that is due could not be made yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// The last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<ScheduledRun>,
}

/// What came of a time at which a snapshot was due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScheduledRun {
    /// When it was due, in seconds since 1970.
    pub due_unix_seconds: u64,
    /// The result.
    pub outcome: RunOutcome,
}

/// The result of a time at which a snapshot was due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum RunOutcome {
    /// The snapshot was made.
    Made {
        /// Its name.
        #[schema(value_type = Name)]
        snapshot: SnapshotName,
    },
    /// There was nothing to do: the VM has been off since the last snapshot of the rule.
    Skipped {},
    /// It could not be made until the next one was due.
    Missed {
        /// How many times in a row.
        times: u64,
        /// Why.
        reason: String,
    },
    /// It failed, or one that was no longer to be kept could not be deleted.
    Failed {
        /// Why.
        reason: String,
    },
}

/// How long a VM's data keys are used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Cryptoperiod {
    /// The time from one renewal to the next, in seconds: whole days.
    #[schema(minimum = 86_400, maximum = 316_224_000, multiple_of = 86_400)]
    pub every_s: u32,
    /// When in the day a renewal may begin; at any time without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<DayWindow>,
}

/// A part of each day, which may pass midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DayWindow {
    /// Its beginning, in minutes after midnight, UTC.
    #[schema(maximum = 1439)]
    pub from_minutes: u32,
    /// Its end, in minutes after midnight, UTC.
    #[schema(maximum = 1439)]
    pub to_minutes: u32,
}

impl DayWindow {
    /// Whether this minute after midnight lies in it.
    pub fn contains(self, minute: u32) -> bool {
        let Self { from_minutes, to_minutes } = self;
        match from_minutes < to_minutes {
            true => (from_minutes..to_minutes).contains(&minute),
            false => minute >= from_minutes || minute < to_minutes,
        }
    }
}

/// A request for another cryptoperiod of a VM's data keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetCryptoperiod {
    /// The period; with `null`, data keys are not renewed by themselves. It must be there: a
    /// request without a body ends nothing.
    #[serde(deserialize_with = "present")]
    #[schema(required)]
    pub cryptoperiod: Option<Cryptoperiod>,
}

/// A field that may be `null`, but not absent.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Cryptoperiod>, D::Error> {
    Option::deserialize(value)
}

/// The cryptoperiod of a VM's data keys, and what came of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CryptoperiodView {
    /// The period.
    pub period: Cryptoperiod,
    /// When they are renewed next, in seconds since 1970. In the past if that was not possible yet.
    pub next_unix_seconds: u64,
    /// Why the renewal that is due has not begun yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
    /// The last renewal, if it failed. It is tried again a day later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<FailedRenewal>,
}

/// A renewal of data keys that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FailedRenewal {
    /// When, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// Why.
    pub reason: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_named_after_its_period() {
        let name =
            |every_s| SnapshotRule { every_s, at_minutes: None, keep: 1, quiesce_within_s: None }.name();
        assert_eq!([3600, 86_400, 604_800].map(name), ["hourly", "daily", "weekly"]);
        assert_eq!([300, 21_600, 172_800].map(name), ["every-5m", "every-6h", "every-2d"]);
    }
}
