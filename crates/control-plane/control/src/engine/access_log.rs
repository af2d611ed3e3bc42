//! The access log as callers read it: pages, its head, and whether its chain is intact.

use strongroom_api::access::{
    AccessKind, AccessLogHead, AccessLogPage, AccessLogQuery, AccessLogReport, ChainBreak, VerifyAccessLog,
};
use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::limits::ACCESS_LOG_HEADS_MAX;
use strongroom_api::{ObjectKind, ObjectRef, Problem};
use strongroom_types::{counted, hex};

use super::Control;
use super::alarms::Wanted as WantedAlarms;
use super::views::limit;
use super::wishes::Caller;
use crate::inventory::{Failure, Wanted};
use crate::problems;
use crate::records::AccessAnchorRecord;

/// The bytes of a SHA-256.
const HASH_BYTES: usize = 32;

impl Control {
    /// A page of the access log. That it was read is in it.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn access_log(&self, caller: &Caller, query: &AccessLogQuery) -> Result<AccessLogPage, Problem> {
        let wanted = Wanted {
            after: query.after,
            since_unix_ms: query.since_unix_seconds.map(|since| since.saturating_mul(1000)),
            by: query.by.as_ref().map(strongroom_api::Name::as_str),
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
        self.record_access(caller, caller.entry_of(AccessKind::Read, "the access log was verified"))?;
        self.look_at_access_log(&wish.heads).map_err(|failure| problems::failure(&failure))
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

    pub(super) fn review_access_log(&self, wanted: &mut WantedAlarms) {
        let breaks = self.access_breaks.lock();
        let Some(ChainBreak { reason, .. }) = breaks.first() else { return };
        let more = match breaks.len() - 1 {
            0 => String::new(),
            more => format!(" (and {} more)", counted(more, "place")),
        };
        wanted.raise(
            AlarmKind::AccessLogBroken,
            Severity::Critical,
            ObjectRef { kind: ObjectKind::Control, id: None, name: "access log".to_owned() },
            format!("the access log was tampered with or damaged: {reason}{more}"),
            "`strongroom access verify` names all places; keep a copy of control/store.redb, and compare \
             heads that were kept elsewhere",
        );
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
