//! The one thread that writes: all waiting records become one group, one write and one sync.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use time::OffsetDateTime;

use crate::error::AuditError;
use crate::head::{HeadSigner, SignedHead};
use crate::limits::AHEAD_BYTES;
use crate::line::{self, Chain, Content, FORMAT};
use crate::read::file_name;
use crate::storage::LogFile;

use super::opening::{Current, Found};
use super::queue::Group;
use super::{Options, Receipt, Shared, body};

pub(super) fn start(
    shared: Arc<Shared>,
    found: Found,
    signer: Box<dyn HeadSigner>,
    options: Options,
) -> io::Result<JoinHandle<()>> {
    let head_due = Instant::now() + options.head_interval;
    let Found { chain, log, file, unsigned, cut_bytes } = found;
    let mut writer =
        Writer { shared, signer, options, log, chain, file, unsigned, cut_bytes, head_due, tail: false };
    std::thread::Builder::new().name("audit-writer".into()).spawn(move || writer.run())
}

struct Writer {
    shared: Arc<Shared>,
    signer: Box<dyn HeadSigner>,
    options: Options,
    log: String,
    /// The durable end of the chain.
    chain: Chain,
    file: Option<Current>,
    /// Records since the last head.
    unsigned: u64,
    /// Bytes cut when the log was opened, until the cut has been put on record.
    cut_bytes: Option<u64>,
    /// When the next head must be signed.
    head_due: Instant,
    /// The bytes behind the durable end must be removed before the next write.
    tail: bool,
}

/// A group being written.
struct Draft {
    bytes: Vec<u8>,
    chain: Chain,
    /// The sequence of the group's first record.
    first_record: u64,
    /// Whether the file ends with this group.
    ends_file: bool,
    head: Option<Result<SignedHead, AuditError>>,
}

/// However the thread ends, no caller keeps waiting for it.
impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.end(AuditError::Failed { reason: "its writer has ended".into() });
    }
}

impl Writer {
    fn run(&mut self) {
        let mut answered = 0;
        loop {
            let deadline = (self.unsigned > 0).then_some(self.head_due);
            let Some(group) = self.shared.queue.next_group(answered, deadline) else { break };
            answered = group.entries.len();
            self.do_group(group, false);
        }
        if self.unsigned > 0 && self.shared.state.lock().ended.is_none() {
            self.do_group(Group::default(), true);
        }
        self.tail = true;
        if let Err(error) = self.cut_tail() {
            tracing::warn!(%error, "the audit log was not closed in order; it is cut when it is opened");
        }
        self.shared.end(AuditError::Closed);
    }

    fn do_group(&mut self, group: Group, last: bool) {
        let began = Instant::now();
        let done = self.draft(&group, last).and_then(|draft| {
            self.write(&draft)?;
            Ok(draft)
        });
        match done {
            Ok(draft) => {
                self.count(&group, &draft, began);
                self.shared.publish(self.chain.next - 1);
                for (entry, sequence) in group.entries.into_iter().zip(draft.first_record..) {
                    entry.answer.answer(Ok(Receipt { sequence }));
                }
                let unsigned = || AuditError::Unsigned { reason: "none was signed".into() };
                let head = draft.head.unwrap_or_else(|| Err(unsigned()));
                group.heads.into_iter().for_each(|answer| answer.answer(head.clone()));
            }
            Err(error) => {
                tracing::error!(%error, records = group.entries.len(), "records were refused");
                self.shared.counters.lock().refused += group.entries.len() as u64;
                // Do not retry at once.
                self.head_due = Instant::now() + self.options.head_interval;
                if matches!(error, AuditError::Failed { .. }) {
                    self.shared.end(error.clone());
                }
                group.refuse(&error);
            }
        }
    }

    /// Puts a group's lines one after the other.
    fn draft(&self, group: &Group, last: bool) -> Result<Draft, AuditError> {
        let mut chain = self.chain.clone();
        let mut bytes = Vec::new();
        let number = chain.next;
        if self.file.is_none() {
            let key = self.signer.public_key().id().to_owned();
            let begin = Content::Begin { format: FORMAT, log: self.log.clone(), key };
            chain.add(number, &body(&begin)?, &mut bytes);
        }
        if let Some(cut_bytes) = self.cut_bytes {
            chain.add(number, &body(&Content::Open { cut_bytes })?, &mut bytes);
        }
        let first_record = chain.next;
        for entry in &group.entries {
            chain.add(number, &entry.body, &mut bytes);
        }
        let length = self.file.as_ref().map_or(0, |file| file.length) + bytes.len() as u64;
        let is_old = |file: &Current| self.options.file_age.is_some_and(|most| file.age() >= most);
        let ends_file = length >= self.options.file_bytes || self.file.as_ref().is_some_and(is_old);
        let unsigned = self.unsigned + group.entries.len() as u64;
        let due = last
            || !group.heads.is_empty()
            || unsigned >= self.options.head_records
            || (unsigned > 0 && (ends_file || Instant::now() >= self.head_due));
        let head = due.then(|| self.sign(&mut chain, number, &mut bytes));
        Ok(Draft { bytes, chain, first_record, ends_file, head })
    }

    fn sign(&self, chain: &mut Chain, number: u64, bytes: &mut Vec<u8>) -> Result<SignedHead, AuditError> {
        let time = line::now();
        let head = SignedHead::sign(&self.log, chain.next - 1, &chain.last, &time, &*self.signer)
            .map_err(|error| AuditError::Unsigned { reason: error.to_string().into() })?;
        let content = Content::Head { key: head.key.clone(), signature: head.signature.clone() };
        let body = line::body(&time, &content)
            .map_err(|error| AuditError::Unsigned { reason: error.to_string().into() })?;
        chain.add(number, &body, bytes);
        Ok(head)
    }

    /// Makes a group durable, and moves the end of the chain behind it. If there is no room,
    /// nothing of the group stays.
    fn write(&mut self, draft: &Draft) -> Result<(), AuditError> {
        if draft.bytes.is_empty() {
            return Ok(());
        }
        self.cut_tail()?;
        let is_new = self.file.is_none();
        let mut current = match self.file.take() {
            Some(current) => current,
            None => self.new_file()?,
        };
        if let Err(error) = self.put(&mut current, &draft.bytes) {
            self.tail = true;
            // A file without its first line is created again.
            self.file = (!is_new).then_some(current);
            self.cut_tail()?;
            return Err(refusal(&error));
        }
        current.file.sync().map_err(|error| failed(&error))?;
        if is_new {
            self.shared.directory.sync().map_err(|error| failed(&error))?;
        }
        current.length += draft.bytes.len() as u64;
        self.chain = draft.chain.clone();
        self.cut_bytes = None;
        self.file = Some(current);
        if draft.ends_file {
            self.tail = true;
            // A failure here does not affect this group: the file stays, and the next group gets
            // the error.
            if self.cut_tail().is_ok() {
                self.file = None;
            }
        }
        Ok(())
    }

    /// Writes a group's bytes at the end, and zeroes ahead of them if none are left and there is
    /// room.
    fn put(&self, current: &mut Current, bytes: &[u8]) -> io::Result<()> {
        let end = current.length + bytes.len() as u64;
        if end > current.ahead {
            let ahead = end.max(self.options.file_bytes.min(end + AHEAD_BYTES));
            match write_zeroes(&*current.file, end, ahead) {
                Ok(()) => current.ahead = ahead,
                Err(error) if is_full(&error) => {
                    current.file.set_length(current.length.max(current.ahead))?
                }
                Err(error) => return Err(error),
            }
        }
        current.file.write_at(current.length, bytes)?;
        current.ahead = current.ahead.max(end);
        Ok(())
    }

    /// The file that the next line begins. One of that name may be left from an attempt that found
    /// no room: its lines are removed durably, since a power cut could otherwise mix them with the
    /// next ones.
    fn new_file(&self) -> Result<Current, AuditError> {
        let file = self.shared.directory.open(&file_name(self.chain.next), true);
        let file = file.map_err(|error| refusal(&error))?;
        if file.length().map_err(|error| refusal(&error))? > 0 {
            file.set_length(0).map_err(|error| refusal(&error))?;
            file.sync().map_err(|error| failed(&error))?;
        }
        Ok(Current { file, length: 0, ahead: 0, begun: OffsetDateTime::now_utc() })
    }

    /// Durably removes the bytes behind the end: a group that found no room, which must not follow
    /// the next one, or unused zeroes.
    fn cut_tail(&mut self) -> Result<(), AuditError> {
        if let Some(current) = self.file.as_mut().filter(|_| self.tail) {
            current.file.set_length(current.length).map_err(|error| refusal(&error))?;
            current.ahead = current.length;
            current.file.sync().map_err(|error| failed(&error))?;
        }
        self.tail = false;
        Ok(())
    }

    fn count(&mut self, group: &Group, draft: &Draft, began: Instant) {
        let took = began.elapsed();
        let records = group.entries.len() as u64;
        self.unsigned += records;
        let mut counters = self.shared.counters.lock();
        match &draft.head {
            Some(Ok(_)) => {
                counters.heads += 1;
                self.unsigned = 0;
            }
            Some(Err(error)) => {
                tracing::error!(%error, "the audit log goes on without a signed head");
                counters.heads_failed += 1;
            }
            None => {}
        }
        if draft.head.is_some() || self.unsigned == records {
            self.head_due = Instant::now() + self.options.head_interval;
        }
        counters.records += records;
        counters.groups += 1;
        counters.group_max = counters.group_max.max(records);
        counters.bytes += draft.bytes.len() as u64;
        counters.sync_time += took;
        counters.sync_time_max = counters.sync_time_max.max(took);
    }
}

fn write_zeroes(file: &dyn LogFile, mut from: u64, to: u64) -> io::Result<()> {
    static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];
    while from < to {
        let count = (to - from).min(ZEROES.len() as u64);
        file.write_at(from, &ZEROES[..count as usize])?;
        from += count;
    }
    Ok(())
}

/// The error of a write that failed.
fn refusal(error: &io::Error) -> AuditError {
    if is_full(error) { AuditError::Full { reason: error.to_string().into() } } else { failed(error) }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn failed(error: &io::Error) -> AuditError {
    AuditError::Failed { reason: error.to_string().into() }
}
