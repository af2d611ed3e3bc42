//! The records about some objects: read backwards, newest file first, so that recent events are
//! found quickly however long the log is.

use std::collections::BTreeSet;
use std::io;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::AuditError;
use crate::line::{Content, Line};
use crate::read::{file_name, files, lines, whole};
use crate::record::Record;

use super::AuditLog;

/// Most files that are searched: a gibibyte at the default file size, which takes some seconds.
const FILES_MAX: usize = 16;
/// Most names that each line is searched for before it is parsed.
const SEARCHED_MAX: usize = 8;

/// A record with its place and time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// The sequence of its line.
    pub sequence: u64,
    /// When it was written, as in RFC 3339.
    pub time: String,
    /// The record itself.
    pub record: Record,
}

/// The records found about some objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The records, oldest first.
    pub records: Vec<Noted>,
    /// Whether these are all. If not, there were more than requested, or older files were removed
    /// or not searched.
    pub is_complete: bool,
    /// From which second since 1970 on these are all. A complete history begins with the log, which
    /// a restored server begins anew.
    pub since_unix_seconds: i64,
}

impl AuditLog {
    /// The last `most` durable records about any of `objects`, of this action if one is named.
    /// Blocks for the disk.
    ///
    /// # Errors
    /// [`AuditError::Io`].
    pub fn history(
        &self,
        objects: &BTreeSet<String>,
        action: Option<&str>,
        most: usize,
    ) -> Result<History, AuditError> {
        let (directory, durable) = (self.directory(), self.durable());
        let firsts = files(&*directory).map_err(|error| AuditError::reading(&error))?;
        let is_complete = firsts.first() == Some(&1);
        let mut history = History { records: Vec::new(), is_complete, since_unix_seconds: i64::MAX };
        let mut newest_first = Vec::new();
        for (looked, first) in firsts.iter().rev().enumerate() {
            if looked == FILES_MAX {
                history.is_complete = false;
                break;
            }
            let bytes = match directory.open(&file_name(*first), false).and_then(|file| whole(&*file)) {
                Ok(bytes) => bytes,
                // It was the oldest file, and retention has just removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    history.is_complete = false;
                    break;
                }
                Err(error) => return Err(AuditError::reading(&error)),
            };
            history.since_unix_seconds = begun(*first, &bytes);
            let mut found = about(&bytes, objects, durable);
            found.retain(|noted| action.is_none_or(|action| noted.record.action == action));
            found.reverse();
            newest_first.append(&mut found);
            if newest_first.len() > most {
                newest_first.truncate(most);
                history.is_complete = false;
                history.since_unix_seconds = newest_first
                    .last()
                    .and_then(|noted| unix_seconds(&noted.time))
                    .map_or(i64::MAX, |at| at + 1);
                break;
            }
        }
        newest_first.reverse();
        history.records = newest_first;
        Ok(history)
    }
}

/// The first second of which a file and its successors have all lines.
fn begun(first: u64, bytes: &[u8]) -> i64 {
    let line = lines(bytes).next().and_then(|(_, line)| Line::parse(line).ok());
    let begun = line.and_then(|line| unix_seconds(&line.time));
    // Lines of the same second may be in the file before.
    begun.map_or(i64::MAX, |at| at + i64::from(first != 1))
}

fn unix_seconds(time: &str) -> Option<i64> {
    OffsetDateTime::parse(time, &Rfc3339).ok().map(OffsetDateTime::unix_timestamp)
}

/// The durable records of a file that name one of the objects.
fn about(bytes: &[u8], objects: &BTreeSet<String>, durable: u64) -> Vec<Noted> {
    let lines = lines(bytes).filter_map(|(_, line)| std::str::from_utf8(line).ok());
    // To search a line for many names takes longer than to parse it.
    let may_name =
        |line: &str| objects.len() > SEARCHED_MAX || objects.iter().any(|object| line.contains(object));
    let named = lines.filter(|line| may_name(line));
    let parsed = named.filter_map(|line| Line::parse(line.as_bytes()).ok());
    let records = parsed.filter_map(|Line { sequence, time, content, .. }| match content {
        Content::Record(record)
            if sequence <= durable && record.objects.iter().any(|id| objects.contains(id)) =>
        {
            Some(Noted { sequence, time, record })
        }
        _ => None,
    });
    records.collect()
}
