//! Opens a log: finds the end of its chain and the part of the last group that was not durable.
//!
//! A group is written at the end of the last file and is durable before the next one is written. So
//! a power cut can tear only one group, at the very end. A broken line that is followed by a line
//! of a later group had been durable: that is damage, and nothing is cut.

use std::io;
use std::time::Duration;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::error::AuditError;
use crate::line::{Chain, Content, Hash, Line, hash};
use crate::read::{file_name, files, lines, whole};
use crate::storage::{Directory, LogFile};
use strongroom_types::hex;

/// The point at which a log continues.
pub(super) struct Found {
    pub(super) chain: Chain,
    /// Names the log.
    pub(super) log: String,
    /// The last file; none if the next line begins one.
    pub(super) file: Option<Current>,
    /// Records since the last head.
    pub(super) unsigned: u64,
    /// Bytes that were cut off at the end; `None` for a new log.
    pub(super) cut_bytes: Option<u64>,
}

/// The file being written.
pub(super) struct Current {
    pub(super) file: Box<dyn LogFile>,
    /// Its durable bytes, after which the next group goes.
    pub(super) length: u64,
    /// Its length with the zeroes that are written ahead of the lines.
    pub(super) ahead: u64,
    /// When the file was begun, by the clock at that time.
    pub(super) begun: OffsetDateTime,
}

impl Current {
    /// The file's age; zero if the clock was set back.
    pub(super) fn age(&self) -> Duration {
        (OffsetDateTime::now_utc() - self.begun).try_into().unwrap_or_default()
    }
}

pub(super) fn open(directory: &dyn Directory) -> Result<Found, AuditError> {
    let failed = |error: io::Error| AuditError::opening(&error);
    let mut files = files(directory).map_err(failed)?;
    let mut cut_bytes = 0;
    while let Some(first) = files.pop() {
        let name = file_name(first);
        let file = directory.open(&name, true).map_err(failed)?;
        let bytes = whole(&*file).map_err(failed)?;
        if let Some(end) = scan(&name, first, &bytes)? {
            check_link(directory, files.last().copied(), &name, end.before)?;
            make_durable(directory, &*file, &bytes, &end).map_err(failed)?;
            cut_bytes += trimmed(&bytes[end.length..]).len() as u64;
            let length = end.length as u64;
            return Ok(Found {
                chain: end.chain,
                log: end.log,
                file: Some(Current { file, length, ahead: length, begun: end.begun }),
                unsigned: end.unsigned,
                cut_bytes: Some(cut_bytes),
            });
        }
        // Its first group was not durable, so no caller was answered from it; the file before it
        // was durable to its end.
        if let Some(before) = files.last() {
            must_be_whole(directory, *before, first)?;
        }
        cut_bytes += trimmed(&bytes).len() as u64;
        directory.remove(&name).map_err(failed)?;
        directory.sync().map_err(failed)?;
    }
    Ok(Found { chain: Chain::new(), log: new_log()?, file: None, unsigned: 0, cut_bytes: None })
}

/// Where the whole lines of a file end.
struct End {
    chain: Chain,
    log: String,
    /// When the first line was written.
    begun: OffsetDateTime,
    /// The previous hash in the first line.
    before: Hash,
    length: usize,
    /// Where the last group begins.
    group_offset: usize,
    unsigned: u64,
}

impl End {
    /// The end of a file of one line.
    fn begin(line: &Line, log: String, before: Hash, text: &[u8]) -> Self {
        let chain = Chain { next: line.sequence + 1, last: hash(text) };
        // A time that cannot be read makes the file an old one.
        let begun = OffsetDateTime::parse(&line.time, &Rfc3339).unwrap_or(OffsetDateTime::UNIX_EPOCH);
        Self { chain, log, begun, before, length: text.len() + 1, group_offset: 0, unsigned: 0 }
    }

    /// Advances by one line.
    fn advance(&mut self, line: &Line, text: &[u8]) {
        self.chain = Chain { next: line.sequence + 1, last: hash(text) };
        if line.group == line.sequence {
            self.group_offset = self.length;
        }
        self.length += text.len() + 1;
        match line.content {
            Content::Head { .. } => self.unsigned = 0,
            Content::Record(_) => self.unsigned += 1,
            Content::Begin { .. } | Content::Open { .. } => {}
        }
    }
}

/// Reads the whole lines of a file from its beginning on; `None` if not even the first one is
/// whole.
fn scan(name: &str, first: u64, bytes: &[u8]) -> Result<Option<End>, AuditError> {
    let mut end: Option<End> = None;
    for (number, (_, text)) in (1..).zip(lines(bytes)) {
        let Ok(line) = Line::parse(text) else { break };
        let next = end.as_ref().map_or(first, |end| end.chain.next);
        let is_next = line.sequence == next && line.group <= next;
        match (&mut end, &line.content, line.previous()) {
            (None, Content::Begin { log, .. }, Some(before)) if is_next => {
                end = Some(End::begin(&line, log.clone(), before, text));
            }
            (Some(end), _, Some(previous)) if is_next && previous == end.chain.last => {
                end.advance(&line, text)
            }
            // A whole line that is not the next link was not written here.
            _ => return Err(damaged(name, number, "it does not follow from the line before it")),
        }
    }
    let (length, next) = end.as_ref().map_or((0, first), |end| (end.length, end.chain.next));
    check_torn(name, &bytes[..length], &bytes[length..], next)?;
    Ok(end)
}

/// The bytes after the whole lines must belong to a group that was not durable.
fn check_torn(name: &str, whole: &[u8], rest: &[u8], next: u64) -> Result<(), AuditError> {
    let later = lines(rest).filter_map(|(_, text)| Line::parse(text).ok()).find(|line| line.group > next);
    later.map_or(Ok(()), |line| {
        let number = lines(whole).count() as u64 + 1;
        let reason = format!("it is broken, and line {} was written after it was durable", line.sequence);
        Err(damaged(name, number, &reason))
    })
}

/// The bytes without the trailing zeroes, which are written ahead of the lines.
fn trimmed(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    &bytes[..end]
}

/// A file's first line must follow from the last line of the file before.
fn check_link(
    directory: &dyn Directory,
    before: Option<u64>,
    name: &str,
    expected: Hash,
) -> Result<(), AuditError> {
    let last = match before {
        Some(first) => last_line(directory, first)?.map(|(_, hash)| hash),
        // It is the log's first file, or retention has removed the files before it.
        None => return Ok(()),
    };
    if last == Some(expected) {
        Ok(())
    } else {
        Err(damaged(name, 1, "it does not follow from the last line of the file before it"))
    }
}

/// A file that was followed by another one was durable to its end.
fn must_be_whole(directory: &dyn Directory, first: u64, following: u64) -> Result<(), AuditError> {
    match last_line(directory, first)? {
        Some((sequence, _)) if sequence + 1 == following => Ok(()),
        _ => Err(damaged(&file_name(first), 1, &format!("it should end with line {}", following - 1))),
    }
}

/// The sequence and hash of a file's last line, if that is whole and nothing follows it.
fn last_line(directory: &dyn Directory, first: u64) -> Result<Option<(u64, Hash)>, AuditError> {
    let file = directory.open(&file_name(first), false).map_err(|error| AuditError::opening(&error))?;
    let bytes = whole(&*file).map_err(|error| AuditError::opening(&error))?;
    let last = lines(&bytes).last().filter(|(offset, text)| offset + text.len() + 1 == bytes.len());
    Ok(last.and_then(|(_, text)| Line::parse(text).ok().map(|line| (line.sequence, hash(text)))))
}

/// Cuts the torn part, and makes the rest durable. The last group is written again: after a failed
/// sync the page cache may show data that the device does not have, and no later sync writes it.
fn make_durable(directory: &dyn Directory, file: &dyn LogFile, bytes: &[u8], end: &End) -> io::Result<()> {
    if bytes.len() > end.length {
        file.set_length(end.length as u64)?;
    }
    file.write_at(end.group_offset as u64, &bytes[end.group_offset..end.length])?;
    file.sync()?;
    directory.sync()
}

fn new_log() -> Result<String, AuditError> {
    let mut id = [0; 16];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| AuditError::Io {
        doing: "opened",
        reason: "there is no randomness for its id".into(),
    })?;
    Ok(hex::encode(&id))
}

fn damaged(file: &str, line: u64, reason: &str) -> AuditError {
    AuditError::Damaged { file: file.to_owned(), line, reason: reason.to_owned() }
}
