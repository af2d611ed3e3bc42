//! The access log as callers read it: pages, its head, and whether its chain is intact.

use strongroom_api::access::{
    AccessKind, AccessLogHead, AccessLogPage, AccessLogQuery, AccessLogReport, AccessLogRetention,
    ChainBreak, SetAccessLogRetention, VerifyAccessLog,
};
use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::limits::{
    ACCESS_LOG_HEADS_MAX, ACCESS_LOG_KEEP_MAX_S, ACCESS_LOG_KEEP_MIN_S, ACCESS_LOG_ROOM_MAX_BYTES,
    ACCESS_LOG_ROOM_MIN_BYTES, EVENT_NUMBER_MAX,
};
use strongroom_api::{ObjectKind, ObjectRef, Problem, WhenFull};
use strongroom_types::{counted, display_bytes, hex};

use super::Control;
use super::alarms::Wanted as WantedAlarms;
use super::views::limit;
use super::wishes::Caller;
use crate::inventory::{Failure, Wanted, most_bytes};
use crate::problems;
use crate::records::{AccessAnchorRecord, AccessRetentionRecord};

/// A little more than the bytes of an entry.
const ENTRY_BYTES: u64 = 1024;
/// The bytes of a SHA-256.
const HASH_BYTES: usize = 32;

fn log_object() -> ObjectRef {
    ObjectRef { kind: ObjectKind::Control, id: None, name: "access log".to_owned() }
}

impl Control {
    /// A page of the access log. That it was read is in it.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn access_log(&self, caller: &Caller, query: &AccessLogQuery) -> Result<AccessLogPage, Problem> {
        let wanted = Wanted {
            after: query.after,
            since_unix_ms: query.since_unix_seconds.map(|since| since.saturating_mul(1000)),
            by: query.by.as_ref().map(strongroom_api::identity::ActorName::as_str),
            limit: limit(query.limit)?,
        };
        self.record_access(caller, caller.entry_of(AccessKind::Read, "the access log was read"))?;
        let page = self.inventory.access_log().and_then(|log| log.page(&wanted));
        let page = page.map_err(|failure| problems::failure(&failure))?;
        if !page.breaks.is_empty() {
            self.access_log_is_broken(&page.breaks);
        }
        Ok(page)
    }

    /// The position of the access log, behind the entry that this was asked for.
    pub fn access_log_head(&self, caller: &Caller) -> Result<AccessLogHead, Problem> {
        self.record_access(caller, caller.entry_of(AccessKind::Read, "the head of the access log was read"))?;
        let log = self.inventory.access_log().map_err(|failure| problems::failure(&failure))?;
        Ok(log.head())
    }

    /// Verifies the access log, and that it agrees with heads that were kept elsewhere.
    pub fn verify_access_log(
        &self,
        caller: &Caller,
        wish: &VerifyAccessLog,
    ) -> Result<AccessLogReport, Problem> {
        if wish.heads.len() > ACCESS_LOG_HEADS_MAX {
            let message = format!("heads: at most {ACCESS_LOG_HEADS_MAX}, not {}", wish.heads.len());
            return Err(problems::invalid(message));
        }
        let is_hash = |head: &AccessLogHead| hex::decode_array::<HASH_BYTES>(&head.hash).is_some();
        if let Some(wrong) = wish.heads.iter().find(|head| !is_hash(head)) {
            return Err(problems::invalid(format!("the head of entry {} has no SHA-256", wrong.id)));
        }
        if let Some(wrong) = wish.heads.iter().find(|head| head.id > EVENT_NUMBER_MAX) {
            let message = format!("the number of an entry is at most {EVENT_NUMBER_MAX}, not {}", wrong.id);
            return Err(problems::invalid(message));
        }
        self.record_access(caller, caller.entry_of(AccessKind::Read, "the access log was verified"))?;
        self.look_at_access_log(&wish.heads).map_err(|failure| problems::failure(&failure))
    }

    /// How long the access log is kept, and how large it is.
    pub fn access_retention(&self) -> Result<AccessLogRetention, Problem> {
        let AccessRetentionRecord { keep_s, room_bytes } = self.inventory.read().access_retention();
        let log = self.inventory.access_log().map_err(|failure| problems::failure(&failure))?;
        let oldest_unix_ms = log.oldest_unix_ms().map_err(|failure| problems::failure(&failure))?;
        let (bytes, entries) = (log.bytes(), log.entries());
        Ok(AccessLogRetention { keep_s, room_bytes, bytes, entries, oldest_unix_ms })
    }

    /// Sets how long the access log is kept, and how large it may become.
    pub fn set_access_retention(
        &self,
        caller: &Caller,
        wish: &SetAccessLogRetention,
    ) -> Result<AccessLogRetention, Problem> {
        let before = self.inventory.read().access_retention();
        let wanted = AccessRetentionRecord {
            keep_s: wish.keep_s.unwrap_or(before.keep_s),
            room_bytes: wish.room_bytes.unwrap_or(before.room_bytes),
        };
        if !(ACCESS_LOG_KEEP_MIN_S..=ACCESS_LOG_KEEP_MAX_S).contains(&wanted.keep_s) {
            return Err(problems::invalid("keep_s: the access log is kept for 30 days to ten years"));
        }
        let room = ACCESS_LOG_ROOM_MIN_BYTES..=ACCESS_LOG_ROOM_MAX_BYTES;
        if !room.contains(&wanted.room_bytes) {
            return Err(problems::invalid("room_bytes: the access log has room for 1 MiB to 64 GiB"));
        }
        let bytes = self.inventory.access_log().map_err(|failure| problems::failure(&failure))?.bytes();
        if wanted.room_bytes < before.room_bytes && wanted.room_bytes < bytes {
            let message = format!("room_bytes: the access log has {} already", display_bytes(bytes));
            return Err(problems::conflict(message).next("keep it for a shorter time first"));
        }
        let message = format!(
            "the access log is kept for {} s in {} bytes, and no longer for {} s in {} bytes",
            wanted.keep_s, wanted.room_bytes, before.keep_s, before.room_bytes
        );
        self.change(caller, message, |index, _| match index.retention.last() {
            Some(known) if *known.record != before => Err(problems::too_many_races()),
            Some(known) => Ok(((), self.draft().replace(known, &wanted))),
            None => Ok(((), self.draft().create(&wanted))),
        })?;
        self.access_retention()
    }

    /// Verifies the access log. A broken chain raises an alarm; an intact one clears it.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn look_at_access_log(&self, kept: &[AccessLogHead]) -> Result<AccessLogReport, Failure> {
        let report = self.inventory.access_log()?.verify(kept)?;
        match report.breaks.is_empty() {
            true if kept.is_empty() => self.access_breaks.lock().clear(),
            true => {}
            false => self.access_log_is_broken(&report.breaks),
        }
        let anchored = self.inventory.read().anchor.last().map(|anchor| anchor.0.clone());
        Ok(AccessLogReport { anchored, ..report })
    }

    fn access_log_is_broken(&self, breaks: &[ChainBreak]) {
        for ChainBreak { id, reason } in breaks {
            tracing::error!(entry = id, %reason, "the chain of the access log is broken");
        }
        *self.access_breaks.lock() = breaks.to_vec();
    }

    pub(super) fn review_access_log(&self, wanted: &mut WantedAlarms) -> Result<(), Failure> {
        self.review_room(wanted)?;
        let breaks = self.access_breaks.lock();
        let Some(ChainBreak { reason, .. }) = breaks.first() else { return Ok(()) };
        let more = match breaks.len() - 1 {
            0 => String::new(),
            more => format!(" (and {} more)", counted(more, "place")),
        };
        wanted.raise(
            AlarmKind::AccessLogBroken,
            Severity::Critical,
            log_object(),
            format!("the access log was tampered with or damaged: {reason}{more}"),
            "`strongroom access verify` names all places; keep a copy of control/store.redb, and compare \
             heads that were kept elsewhere",
        );
        Ok(())
    }

    fn review_room(&self, wanted: &mut WantedAlarms) -> Result<(), Failure> {
        let retention = self.inventory.read().access_retention();
        let log = self.inventory.access_log()?;
        if !log.is_almost_full(retention) {
            return Ok(());
        }
        let most = most_bytes(retention, WhenFull::Refused).unwrap_or(retention.room_bytes);
        let (severity, then) = match log.bytes() + ENTRY_BYTES > most {
            true => (Severity::Critical, "changes are refused"),
            false => (Severity::Warning, "changes are refused when it is full"),
        };
        let has = format!("{} of {}", display_bytes(log.bytes()), display_bytes(most));
        wanted.raise(
            AlarmKind::AccessLogFull,
            severity,
            log_object(),
            format!("the access log has {has}, and none of it is old enough to be removed: {then}"),
            "`strongroom access retention --room SIZE` gives it more room",
        );
        Ok(())
    }

    /// Has the key server put the head of the access log on its audit log, if it has changed since.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn anchor_access_log(&self) -> Result<(), Failure> {
        let head = self.inventory.access_log()?.head();
        if head.id == 0 || self.inventory.read().anchor.last().is_some_and(|anchor| anchor.0 == head) {
            return Ok(());
        }
        if let Err(problem) = self.keys.record_access_head(&head) {
            tracing::warn!(%problem, "the head of the access log is not on the audit log");
            return Ok(());
        }
        self.inventory.commit(self.draft().put(&AccessAnchorRecord(head)))
    }
}
