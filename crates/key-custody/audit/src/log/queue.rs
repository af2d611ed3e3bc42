//! The queue of records that wait to be written.
//!
//! **Gathering.** A sync costs the same for one record and for a hundred. Callers that wait for
//! their records tend to come back with the next ones as soon as they are answered, so the writer
//! waits for most of them, but no longer than [`GATHER_TIME`]: those that it last answered plus
//! those already waiting, without as many as have work for the time of a sync ([`awaited`]). With
//! all, no caller would work during a sync. A lone caller never waits.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use strongroom_types::{Answerer, Pending, pending};

use crate::error::AuditError;
use crate::head::SignedHead;
use crate::limits::{
    GATHER_TIME, GROUP_MAX_BYTES, GROUP_MAX_RECORDS, LINE_MAX_BYTES, QUEUE_MAX_BYTES, QUEUE_MAX_RECORDS,
};
use crate::line;
use crate::record::Record;

use super::Receipt;

/// Bytes of a line outside its body: sequence, group, previous hash.
const AROUND_BODY_BYTES: usize = 160;

/// A record on its way, as the text that its line will have.
pub(super) struct Entry {
    pub(super) body: Vec<u8>,
    pub(super) answer: Answerer<Result<Receipt, AuditError>>,
}

/// The records of one write and sync.
#[derive(Default)]
pub(super) struct Group {
    pub(super) entries: Vec<Entry>,
    /// The callers that asked for a head over it.
    pub(super) heads: Vec<Answerer<Result<SignedHead, AuditError>>>,
}

impl Group {
    pub(super) fn refuse(self, why: &AuditError) {
        self.entries.into_iter().for_each(|entry| entry.answer.answer(Err(why.clone())));
        self.heads.into_iter().for_each(|head| head.answer(Err(why.clone())));
    }
}

#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    entries: VecDeque<Entry>,
    heads: Vec<Answerer<Result<SignedHead, AuditError>>>,
    bytes: usize,
    /// How many records the writer waits for, while it waits; an earlier wake-up would be in vain.
    awaited: Option<usize>,
    /// Why the queue takes no more records.
    closed: Option<AuditError>,
}

impl Waiting {
    fn refusal(&self, bytes: usize) -> Option<AuditError> {
        let full = self.entries.len() >= QUEUE_MAX_RECORDS
            || self.heads.len() >= QUEUE_MAX_RECORDS
            || self.bytes + bytes > QUEUE_MAX_BYTES;
        self.closed.clone().or(full.then_some(AuditError::Overloaded))
    }

    /// Whether this many records wait, or a request that cannot wait.
    fn is_due(&self, records: usize) -> bool {
        self.entries.len() >= records || !self.heads.is_empty() || self.closed.is_some()
    }

    /// Whether the writer must be woken. Returns `true` once only, because waking is a system call.
    fn wakes_writer(&mut self) -> bool {
        let is_due = self.awaited.is_some_and(|records| self.is_due(records));
        if is_due {
            self.awaited = None;
        }
        is_due
    }
}

impl Queue {
    pub(super) fn append(&self, record: &Record) -> Pending<Result<Receipt, AuditError>> {
        let (answer, pending) = pending();
        match text_of(record) {
            Ok(body) => self.push(Entry { body, answer }),
            Err(error) => answer.answer(Err(error)),
        }
        pending
    }

    fn push(&self, entry: Entry) {
        let bytes = entry.body.len();
        let mut waiting = self.waiting.lock();
        if let Some(refused) = waiting.refusal(bytes) {
            drop(waiting);
            return entry.answer.answer(Err(refused));
        }
        waiting.bytes += bytes;
        waiting.entries.push_back(entry);
        let wakes_writer = waiting.wakes_writer();
        drop(waiting);
        if wakes_writer {
            self.arrived.notify_one();
        }
    }

    pub(super) fn ask_for_head(&self) -> Pending<Result<SignedHead, AuditError>> {
        let (answer, pending) = pending();
        let mut waiting = self.waiting.lock();
        match waiting.refusal(0) {
            Some(refused) => {
                drop(waiting);
                answer.answer(Err(refused));
            }
            None => {
                waiting.heads.push(answer);
                drop(waiting);
                self.arrived.notify_one();
            }
        }
        pending
    }

    /// Takes no more records; waiting ones are still written.
    pub(super) fn finish(&self) {
        self.waiting.lock().closed.get_or_insert(AuditError::Closed);
        self.arrived.notify_one();
    }

    /// Takes no more records, and refuses the waiting ones.
    pub(super) fn close(&self, why: &AuditError) {
        let mut waiting = self.waiting.lock();
        waiting.closed.get_or_insert_with(|| why.clone());
        let entries = std::mem::take(&mut waiting.entries).into();
        let heads = std::mem::take(&mut waiting.heads);
        drop(waiting);
        Group { entries, heads }.refuse(why);
    }

    /// The next group: empty at `deadline`, `None` after the last one. `answered` is the number of
    /// records in the group before.
    pub(super) fn next_group(&self, answered: usize, deadline: Option<Instant>) -> Option<Group> {
        let mut waiting = self.waiting.lock();
        // A group of one with an empty queue means a lone caller.
        let awaited = awaited(answered, waiting.entries.len());
        if awaited > 1 {
            self.wait_for(&mut waiting, awaited, Some(Instant::now() + GATHER_TIME));
        }
        self.wait_for(&mut waiting, 1, deadline);
        if waiting.entries.is_empty() && waiting.heads.is_empty() {
            return waiting.closed.is_none().then(Group::default);
        }
        let mut group = Group { entries: Vec::new(), heads: std::mem::take(&mut waiting.heads) };
        let mut bytes = 0;
        while group.entries.len() < GROUP_MAX_RECORDS && bytes < GROUP_MAX_BYTES {
            let Some(entry) = waiting.entries.pop_front() else { break };
            bytes += entry.body.len();
            group.entries.push(entry);
        }
        waiting.bytes -= bytes;
        Some(group)
    }

    /// Waits until `deadline` for this many records, or for a request that cannot wait.
    fn wait_for(&self, waiting: &mut MutexGuard<'_, Waiting>, records: usize, deadline: Option<Instant>) {
        while !waiting.is_due(records) {
            waiting.awaited = Some(records);
            match deadline.map(|at| at.saturating_duration_since(Instant::now())) {
                None => self.arrived.wait(waiting),
                Some(left) if left.is_zero() => break,
                Some(left) => drop(self.arrived.wait_for(waiting, left)),
            }
        }
        waiting.awaited = None;
    }
}

/// With fewer callers, half of them are waited for.
const FEW_CALLERS: usize = 16;

/// How many records to wait for, after a group of `answered` during whose sync `arrived` came.
///
/// The other callers work while the next group is synced. One and a half times as many as came
/// during the last sync keep the processors busy as long. Less than a quarter would gain nothing,
/// and with half of them two groups take turns, however long a sync takes.
fn awaited(answered: usize, arrived: usize) -> usize {
    let callers = answered + arrived;
    let (quarter, half) = (callers / 4, callers / 2);
    let working = if callers < FEW_CALLERS { half } else { (arrived + arrived / 2).clamp(quarter, half) };
    (callers - working).min(GROUP_MAX_RECORDS)
}

/// The text of a record, made by its caller's thread and not by the writer's.
fn text_of(record: &Record) -> Result<Vec<u8>, AuditError> {
    record.check()?;
    let failed = |error: serde_json::Error| AuditError::Failed { reason: error.to_string().into() };
    let text = line::record_body(&line::now(), record).map_err(failed)?;
    let (asked, most) = (text.len() + AROUND_BODY_BYTES, LINE_MAX_BYTES);
    if asked > most {
        return Err(AuditError::TooLarge { what: "bytes in a line", asked, most });
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lone_caller_never_waits_and_of_a_few_half_do() {
        assert_eq!([awaited(0, 0), awaited(1, 0), awaited(1, 1), awaited(2, 0)], [0, 1, 1, 1]);
        assert_eq!([awaited(3, 0), awaited(8, 7), awaited(15, 0)], [2, 8, 8]);
    }

    #[test]
    fn as_many_as_work_during_a_sync_are_not_waited_for() {
        // Syncs are short, then longer and longer.
        let sizes = [0, 4, 6, 8, 10, 16].map(|arrived| awaited(32 - arrived, arrived));
        assert_eq!(sizes, [24, 24, 23, 20, 17, 16]);
        assert_eq!(awaited(GROUP_MAX_RECORDS, GROUP_MAX_RECORDS), GROUP_MAX_RECORDS);
    }
}
