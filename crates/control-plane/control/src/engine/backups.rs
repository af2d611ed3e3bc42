//! Backups of the inventory: on request, and as often as the machine's owner wants.
//!
//! Where they go, who opens them and how many are kept is said on the machine and not over the API,
//! so nobody who may have one made decides who can read it.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strongroom_api::access::AccessKind;
use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::backup::{InventoryBackup, MakeInventoryBackup};
use strongroom_api::{ErrorCode, ObjectKind, ObjectRef, Problem};
use strongroom_types::{display_bytes, display_seconds};

use super::Control;
use super::alarms::Wanted;
use super::wishes::Caller;
use crate::backup::{AccessLogPart, BackupProblem, Backups, UnfitDirectory};
use crate::problems;

/// The age from which a backup no longer counts where none are made without a request, in seconds:
/// 30 days.
const AGE_MAX_S: u64 = 30 * 86_400;
/// How many intervals of the schedule may pass without a backup.
const INTERVALS_MAX: u64 = 2;
/// The pause after a scheduled backup that failed, in seconds.
const AGAIN_AFTER_S: u64 = 600;

/// How backups are made, and what came of the last attempt.
#[derive(Default)]
pub(super) struct InventoryBackups {
    /// Absent in a program that makes none.
    backups: OnceLock<Arc<dyn Backups>>,
    /// Held while one is made.
    last_attempt: Mutex<Attempt>,
    /// Why the last attempt failed. Apart from the other, which is held for long.
    failed: Mutex<Option<String>>,
    /// Why the directory takes no backups, at the last look.
    unfit: Mutex<Option<UnfitDirectory>>,
}

/// The last attempt of this run.
#[derive(Clone, Copy, Debug, Default)]
enum Attempt {
    #[default]
    None,
    Made,
    /// In seconds since 1970.
    FailedAt(u64),
}

impl InventoryBackups {
    fn last(&self) -> Option<InventoryBackup> {
        self.backups.get()?.last()
    }
}

impl Control {
    /// Has backups of the inventory made by this.
    pub fn back_up_with(&self, backups: Arc<dyn Backups>) {
        let _ = self.backups.backups.set(backups);
    }

    /// Makes a backup of the inventory.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn back_up(&self, caller: &Caller, wish: &MakeInventoryBackup) -> Result<InventoryBackup, Problem> {
        let access_log = match wish.without_access_log {
            true => AccessLogPart::LeftOut,
            false => AccessLogPart::Included,
        };
        // On record before it is made, and so part of it.
        let entry = caller.entry_of(AccessKind::Changed, "a backup of the inventory was asked for");
        self.record_access(caller, entry)?;
        let mut last = self.backups.last_attempt.lock();
        let made = self.made(access_log);
        *last = self.after(&made);
        drop(last);
        made.map_err(|problem| match problem {
            BackupProblem::NotSetUp(_) => problems::conflict(format!("the inventory was not backed up: {problem}"))
                .next("set backup-directory and backup-custodian in strongroom.conf, and restart `serve`: docs/INSTALL.md, Backup"),
            BackupProblem::Unfit(ref unfit) => {
                let next_step = unfit.next_step.clone();
                Problem::new(ErrorCode::Unavailable, format!("the inventory was not backed up: {problem}"))
                    .next(next_step)
            }
            BackupProblem::Failed(_) => {
                Problem::new(ErrorCode::Unavailable, format!("the inventory was not backed up: {problem}"))
            }
        })
    }

    /// Makes a backup if the schedule wants one now, and looks whether the directory takes one.
    pub fn make_due_backup(&self) {
        let Some(backups) = self.backups.backups.get() else { return };
        let unfit = backups.unfit();
        *self.backups.unfit.lock() = unfit;
        let Some(every) = backups.every() else { return };
        let now = self.now_unix_ms() / 1000;
        let mut last = self.backups.last_attempt.lock();
        if let Attempt::FailedAt(at) = *last
            && at <= now
            && now < at.saturating_add(AGAIN_AFTER_S)
        {
            return;
        }
        // One that was made in the future was made with a wrong clock.
        let is_recent = |made: &InventoryBackup| {
            made.created_unix_seconds <= now
                && now < made.created_unix_seconds.saturating_add(every.as_secs())
        };
        if backups.last().as_ref().is_some_and(is_recent) {
            *last = Attempt::Made;
            return;
        }
        let made = self.made(backups.access_log());
        *last = self.after(&made);
        if let Err(problem) = made {
            tracing::warn!(%problem, "the inventory could not be backed up");
        }
    }

    fn made(&self, access_log: AccessLogPart) -> Result<InventoryBackup, BackupProblem> {
        let Some(backups) = self.backups.backups.get() else {
            return Err(BackupProblem::NotSetUp("this program makes none".to_owned()));
        };
        let export = self.inventory.export(access_log);
        let export = export.map_err(|failure| BackupProblem::Failed(failure.to_string()))?;
        let made = backups.make(&export)?;
        let length = display_bytes(made.length_bytes);
        let message = format!("the inventory was backed up: {}, {length}", made.file);
        if let Err(failure) = self.tell("inventory.backed_up", &inventory_object(), &message) {
            tracing::warn!(%failure, "an event cannot be written down");
        }
        Ok(made)
    }

    fn after(&self, made: &Result<InventoryBackup, BackupProblem>) -> Attempt {
        let problem = made.as_ref().err();
        *self.backups.failed.lock() = problem.map(ToString::to_string);
        match problem {
            None => Attempt::Made,
            Some(_) => Attempt::FailedAt(self.now_unix_ms() / 1000),
        }
    }

    /// The age of the last backup in seconds, if there is one.
    pub fn backup_age_s(&self) -> Option<u64> {
        let made = self.backups.last()?.created_unix_seconds;
        Some((self.now_unix_ms() / 1000).saturating_sub(made))
    }

    pub(super) fn review_backups(&self, wanted: &mut Wanted, now: u64) {
        let Some(backups) = self.backups.backups.get() else { return };
        if let Some(unfit) = self.backups.unfit.lock().as_ref() {
            wanted.raise(
                AlarmKind::InventoryUnbacked,
                Severity::Warning,
                inventory_object(),
                format!("the inventory is not backed up: {}", unfit.reason),
                &unfit.next_step,
            );
            return;
        }
        let every = backups.every();
        // The schedule's first attempt of this run has not come yet, or goes on.
        if every.is_some()
            && self.backups.last_attempt.try_lock().is_none_or(|last| matches!(*last, Attempt::None))
        {
            return;
        }
        let limit_s = every.map_or(AGE_MAX_S, |every| every.as_secs().saturating_mul(INTERVALS_MAX));
        // Before the first one, the age of the site counts.
        let first = || self.inventory.read().tokens.iter().map(|token| token.created_unix_seconds).min();
        let since = backups.last().map(|last| last.created_unix_seconds).or_else(first);
        if since.is_none_or(|since| since.saturating_add(limit_s) >= now) {
            return;
        }
        let why = self.backups.failed.lock().as_ref().map_or_else(String::new, |why| format!(": {why}"));
        wanted.raise(
            AlarmKind::InventoryUnbacked,
            Severity::Warning,
            inventory_object(),
            format!("the inventory has no backup of the last {}{why}", display_seconds(limit_s)),
            match every {
                Some(_) => "see to the directory of the backups, then `strongroom inventory backup`",
                None => "`strongroom inventory backup`, or backup-every in strongroom.conf",
            },
        );
    }
}

/// The inventory, as the object of events and alarms.
fn inventory_object() -> ObjectRef {
    ObjectRef { kind: ObjectKind::Control, id: None, name: "inventory".to_owned() }
}
