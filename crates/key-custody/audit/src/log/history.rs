//! The records about one object: read backwards, newest file first, so that recent events are found
//! quickly however long the log is.

use std::io;

use crate::error::AuditError;
use crate::line::{Content, Line};
use crate::read::{file_name, files, lines, whole};
use crate::record::Record;

use super::AuditLog;

/// Most files that are searched: a gibibyte at the default file size, which takes some seconds.
const FILES_MAX: usize = 16;

/// A record with its place and time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// The sequence of its line.
    pub sequence: u64,
    /// When it was written, as in RFC 3339.
    pub time: String,
    /// The record itself.
    pub record: Record,
}

/// The records found about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// The records, oldest first.
    pub records: Vec<Noted>,
    /// Whether these are all. If not, there were more than requested, or older files were removed
    /// or not searched.
    pub is_complete: bool,
}

impl AuditLog {
    /// The last `most` durable records about `object`. Blocks for the disk.
    ///
    /// # Errors
    /// [`AuditError::Io`].
    pub fn history(&self, object: &str, most: usize) -> Result<History, AuditError> {
        let (directory, durable) = (self.directory(), self.durable());
        let firsts = files(&*directory).map_err(|error| AuditError::reading(&error))?;
        let mut history = History { records: Vec::new(), is_complete: firsts.first() == Some(&1) };
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
            let mut found = about(&bytes, object, durable);
            found.reverse();
            newest_first.append(&mut found);
            if newest_first.len() > most {
                newest_first.truncate(most);
                history.is_complete = false;
                break;
            }
        }
        newest_first.reverse();
        history.records = newest_first;
        Ok(history)
    }
}

/// The durable records of a file that name the object.
fn about(bytes: &[u8], object: &str, durable: u64) -> Vec<Noted> {
    let lines = lines(bytes).filter_map(|(_, line)| std::str::from_utf8(line).ok());
    let named = lines.filter(|line| line.contains(object));
    let parsed = named.filter_map(|line| Line::parse(line.as_bytes()).ok());
    let records = parsed.filter_map(|Line { sequence, time, content, .. }| match content {
        Content::Record(record) if sequence <= durable && record.objects.iter().any(|id| id == object) => {
            Some(Noted { sequence, time, record })
        }
        _ => None,
    });
    records.collect()
}
