//! A collector's progress: a file beside the log, replaced as a whole.
//!
//! ```text
//! LOG SP NEXT LF
//! ```
//! The log's name and the sequence of the first line that has not been confirmed.

use std::io;
use std::sync::Arc;

use super::AuditLog;
use crate::error::AuditError;
use crate::read::{files, whole};
use crate::storage::Directory;

const NAME_MAX_BYTES: usize = 32;

/// The last line that a collector has confirmed, durably noted; 0 for none.
pub(super) fn confirmed(log: &AuditLog, collector: &str) -> Result<u64, AuditError> {
    Ok(Cursor::load(log.directory(), collector, log)?.next - 1)
}

pub(crate) struct Cursor {
    directory: Arc<dyn Directory>,
    name: String,
    log: String,
    /// The first line that has not been confirmed.
    pub(crate) next: u64,
}

impl Cursor {
    pub(crate) fn load(
        directory: Arc<dyn Directory>,
        collector: &str,
        log: &AuditLog,
    ) -> Result<Self, AuditError> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if collector.is_empty() || collector.len() > NAME_MAX_BYTES || !collector.bytes().all(is_plain) {
            let error = format!("{collector:?} cannot name a collector: letters, digits and - can");
            return Err(AuditError::opening(&io::Error::new(io::ErrorKind::InvalidInput, error)));
        }
        let name = format!("syslog-{collector}.cursor");
        let mut cursor = Self { directory, name, log: log.id().to_owned(), next: 1 };
        let Some(text) = cursor.text().map_err(|error| AuditError::opening(&error))? else {
            return Ok(cursor);
        };
        let damaged = |reason: String| AuditError::Damaged { file: cursor.name.clone(), line: 1, reason };
        let fields = text.strip_suffix('\n').and_then(|text| text.split_once(' '));
        let fields =
            fields.and_then(|(log, next)| Some((log, next.parse::<u64>().ok().filter(|next| *next > 0)?)));
        let (of, next) = fields.ok_or_else(|| damaged("it is no cursor".into()))?;
        if of != cursor.log {
            return Err(damaged(format!("it is of the log {of}, and this is {}", cursor.log)));
        }
        if next > log.durable() + 1 {
            return Err(damaged(format!(
                "the collector has confirmed line {}, and the log ends with {}",
                next - 1,
                log.durable()
            )));
        }
        cursor.next = next;
        Ok(cursor)
    }

    /// Moves to the first existing line if retention has removed those before it, which can no
    /// longer be shipped.
    pub(crate) fn skip_what_has_gone(&mut self) -> Result<(), AuditError> {
        let first = files(&*self.directory).map_err(|error| AuditError::opening(&error))?.first().copied();
        if let Some(first) = first.filter(|first| *first > self.next) {
            tracing::warn!(
                cursor = self.name,
                "lines {} to {} have gone from the audit log before they were shipped",
                self.next,
                first - 1
            );
            self.next = first;
        }
        Ok(())
    }

    fn text(&self) -> io::Result<Option<String>> {
        if !self.directory.names()?.contains(&self.name) {
            return Ok(None);
        }
        let bytes = whole(&*self.directory.open(&self.name, false)?)?;
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Records durably that all lines before `next` have been confirmed.
    pub(crate) fn advance(&mut self, next: u64) -> io::Result<()> {
        let new = format!("{}.new", self.name);
        let text = format!("{} {next}\n", self.log);
        let file = self.directory.open(&new, true)?;
        file.set_length(0)?;
        file.write_at(0, text.as_bytes())?;
        file.sync()?;
        self.directory.rename(&new, &self.name)?;
        self.directory.sync()?;
        self.next = next;
        Ok(())
    }
}
