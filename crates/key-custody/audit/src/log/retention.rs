//! Removal of older files.
//!
//! **Order**, for one file at a time and the oldest first:
//! 1. the removal is put on record, durably, with the sequence and hash of its last line: no line
//!    vanishes without a record;
//! 2. the file is unlinked;
//! 3. the directory is synced before the next file goes. Otherwise a power cut could keep an older
//!    file and lose a younger one, which would leave a gap in the log.
//!
//! If there is no room for the record, step 1 comes last: the removed file makes room for it.
//!
//! After a power cut behind step 1 the file is still there, and a second record precedes its
//! removal. Three files are never removed: the last one, one whose successor has no durable line,
//! and one whose successor does not follow from it. The last case is damage, and the file is the
//! evidence.

use std::io;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::AuditError;
use crate::limits::LINE_MAX_BYTES;
use crate::line::{Line, hash};
use crate::read::{file_name, files, lines, whole};
use crate::record::{Actor, Outcome, Record};
use strongroom_types::hex;

use super::AuditLog;
use super::cursor::confirmed;

/// The action of a removal's record.
const ACTION: &str = "remove audit file";

/// Limits beyond which older files are removed. Without a limit, none is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Most bytes that the log may have.
    pub keep_bytes: Option<u64>,
    /// How old the last line of a file may be.
    pub keep_age: Option<Duration>,
    /// The collector that must have confirmed all lines of a file before it goes, if there is one.
    pub collector: Option<String>,
}

/// How large a log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The first line that is there; 0 if there is none.
    pub first_sequence: u64,
}

/// A file that may go.
struct Leaving {
    first: u64,
    bytes: u64,
    /// The reason.
    reason: String,
    /// The line that follows its last one, at the beginning of the next file.
    next: u64,
}

impl AuditLog {
    /// How large it is now. Blocks for the disk.
    ///
    /// # Errors
    /// [`AuditError::Io`].
    pub fn size(&self) -> Result<Size, AuditError> {
        let firsts = files(&*self.directory()).map_err(|error| AuditError::reading(&error))?;
        let lengths = firsts.iter().map(|first| self.length(*first));
        let bytes = lengths.sum::<io::Result<u64>>().map_err(|error| AuditError::reading(&error))?;
        let first_sequence = firsts.first().copied().unwrap_or(0);
        Ok(Size { files: firsts.len() as u64, bytes, first_sequence })
    }

    /// Removes the older files beyond the policy's limits, each with a record, and returns their
    /// number. Blocks for the disk.
    ///
    /// # Errors
    /// [`AuditError::Damaged`] if the next file does not follow from the one to be removed, and
    /// those of [`append`](Self::append). The file stays.
    pub fn retain(&self, policy: &Retention) -> Result<u64, AuditError> {
        let _alone = self.shared.retaining.lock();
        let mut removed = 0;
        while let Some(leaving) = self.leaving(policy)? {
            self.remove(&leaving, policy)?;
            removed += 1;
        }
        Ok(removed)
    }

    /// The oldest file, if the policy removes it.
    fn leaving(&self, policy: &Retention) -> Result<Option<Leaving>, AuditError> {
        let reading = |error: io::Error| AuditError::reading(&error);
        let firsts = files(&*self.directory()).map_err(reading)?;
        let &[first, next, ..] = firsts.as_slice() else { return Ok(None) };
        if next > self.durable() {
            return Ok(None);
        }
        if let Some(collector) = &policy.collector
            && confirmed(self, collector)? + 1 < next
        {
            return Ok(None);
        }
        let bytes =
            firsts.iter().map(|first| self.length(*first)).sum::<io::Result<u64>>().map_err(reading)?;
        let reason = match (policy.keep_bytes, policy.keep_age) {
            (Some(most), _) if bytes > most => format!("the log has {bytes} bytes, and {most} are kept"),
            (_, Some(most)) if self.ended_before(next, most).map_err(reading)? => {
                format!("its lines are older than the {} seconds for which they are kept", most.as_secs())
            }
            _ => return Ok(None),
        };
        let bytes = self.length(first).map_err(reading)?;
        Ok(Some(Leaving { first, bytes, reason, next }))
    }

    fn remove(&self, leaving: &Leaving, policy: &Retention) -> Result<(), AuditError> {
        let record = self.record_of(leaving, policy)?;
        let recorded = self.append(&record).wait();
        if !matches!(recorded, Err(AuditError::Full { .. })) {
            recorded?;
            return self.unlink(leaving.first);
        }
        self.unlink(leaving.first)?;
        self.append(&record).wait().map(drop)
    }

    fn unlink(&self, first: u64) -> Result<(), AuditError> {
        let directory = self.directory();
        directory.remove(&file_name(first)).map_err(|error| AuditError::removing(&error))?;
        directory.sync().map_err(|error| AuditError::removing(&error))
    }

    /// The record of a removal. The successor must follow from the file.
    fn record_of(&self, leaving: &Leaving, policy: &Retention) -> Result<Record, AuditError> {
        let Leaving { first, bytes, reason, next } = leaving;
        let name = file_name(*first);
        let damaged =
            |reason: &str| AuditError::Damaged { file: name.clone(), line: 1, reason: reason.into() };
        let file = self.directory().open(&name, false).and_then(|file| whole(&*file));
        let text = file.map_err(|error| AuditError::reading(&error))?;
        let last = lines(&text).last().map(|(_, line)| hash(line));
        let last = last.ok_or_else(|| damaged("it has no line"))?;
        let successor = self.first_line(*next).map_err(|error| AuditError::reading(&error))?;
        if successor.previous() != Some(last) {
            return Err(damaged("the file after it does not follow from it"));
        }
        let actor = Actor { role: "server".into(), name: "audit log".into(), ..Actor::default() };
        let mut record = Record::new(actor, ACTION, Outcome::Done)
            .reason(reason)
            .field("file", &name)
            .field("first_sequence", first.to_string())
            .field("last_sequence", (next - 1).to_string())
            .field("last_hash", hex::encode(&last))
            .field("bytes", bytes.to_string());
        if let Some(collector) = &policy.collector {
            record = record.field("confirmed_by", collector);
        }
        Ok(record)
    }

    /// Whether the file before line `next` ended at least `age` ago.
    fn ended_before(&self, next: u64, age: Duration) -> io::Result<bool> {
        let begun =
            OffsetDateTime::parse(&self.first_line(next)?.time, &Rfc3339).map_err(io::Error::other)?;
        Ok(OffsetDateTime::now_utc() - begun >= age)
    }

    /// The line that a file begins with.
    fn first_line(&self, first: u64) -> io::Result<Line> {
        let file = self.directory().open(&file_name(first), false)?;
        let mut bytes = vec![0; LINE_MAX_BYTES];
        let count = file.read_at(0, &mut bytes)?;
        let line = lines(&bytes[..count]).next().map(|(_, line)| Line::parse(line));
        line.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?.map_err(io::Error::other)
    }

    fn length(&self, first: u64) -> io::Result<u64> {
        self.directory().open(&file_name(first), false)?.length()
    }
}
