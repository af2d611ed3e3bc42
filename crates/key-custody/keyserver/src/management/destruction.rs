//! Administrators' requests to destroy keys, and a key's records.

use std::collections::BTreeSet;

use tokio::runtime::Handle;

use super::protocol::{DestructionAnswer, HISTORY_MAX, HistoryAnswer};
use super::questions::ScheduleDestruction;
use super::{Management, Unanswered, refused, refused_by_server};
use crate::access::Identity;
use crate::objects::destruction::{DestructionError, Waiting};
use crate::objects::id::ObjectId;

impl Management {
    pub(super) fn schedule_destruction(
        &self,
        asker: &Identity,
        wanted: &ScheduleDestruction,
    ) -> Result<DestructionAnswer, Unanswered> {
        let ScheduleDestruction { key, delay_seconds, ref reason, leave_to_clones } = *wanted;
        if !leave_to_clones {
            self.wait(self.destructions.check_clones(key)).map_err(not_done)?;
        }
        let data_keys = self.data_keys_under(key)?;
        let scheduled = self.wait(self.destructions.schedule(asker, key, delay_seconds, reason));
        Ok(DestructionAnswer { data_keys: Some(data_keys), ..answered(key, scheduled)? })
    }

    pub(super) fn cancel_destruction(&self, key: ObjectId) -> Result<DestructionAnswer, Unanswered> {
        answered(key, self.wait(self.destructions.cancel(key)))
    }

    pub(super) fn confirm_destruction(
        &self,
        asker: &Identity,
        key: ObjectId,
    ) -> Result<DestructionAnswer, Unanswered> {
        let data_keys = self.data_keys_under(key)?;
        let confirmed = self.wait(self.destructions.confirm(asker, key));
        Ok(DestructionAnswer { data_keys: Some(data_keys), ..answered(key, confirmed)? })
    }

    pub(super) fn list_destructions(&self) -> Result<Vec<DestructionAnswer>, Unanswered> {
        let waiting = self.destructions.waiting().map_err(not_done)?;
        Ok(waiting.into_iter().map(|(key, waiting)| answer(key, waiting)).collect())
    }

    pub(super) fn key_history(&self, key: ObjectId, most: u32) -> Result<HistoryAnswer, Unanswered> {
        if !(1..=HISTORY_MAX).contains(&most) {
            return Err(refused(
                "malformed",
                format!("1 to {HISTORY_MAX} records can be asked for, not {most}"),
            ));
        }
        let history = self.audit.history(&BTreeSet::from([key.to_string()]), None, most as usize);
        let history = history.map_err(|error| refused_by_server("audit", &error))?;
        Ok(HistoryAnswer { events: history.records, is_complete: history.is_complete })
    }

    /// Waits on the answering thread, which may block.
    pub(super) fn wait<T>(&self, task: impl Future<Output = T>) -> T {
        Handle::current().block_on(task)
    }
}

fn answered(
    key: ObjectId,
    waiting: Result<Waiting, DestructionError>,
) -> Result<DestructionAnswer, Unanswered> {
    waiting.map(|waiting| answer(key, waiting)).map_err(not_done)
}

fn answer(key: ObjectId, waiting: Waiting) -> DestructionAnswer {
    DestructionAnswer {
        key,
        requested_by: waiting.requested_by,
        requested_unix_seconds: waiting.requested_at.0,
        due_unix_seconds: waiting.due.0,
        reason: waiting.reason,
        confirmed_by: waiting.confirmed_by,
        data_keys: None,
    }
}

fn not_done(error: DestructionError) -> Unanswered {
    match &error {
        DestructionError::Keeping(_) | DestructionError::Damaged(_) if error.code() != "no-such-object" => {
            refused_by_server(error.code(), &error)
        }
        _ => refused(error.code(), error.to_string()),
    }
}
