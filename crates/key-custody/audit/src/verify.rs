//! Checks a log against its chain, its heads, and heads kept elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::AuditError;
use crate::head::{PublicKey, SignedHead};
use crate::limits::LINE_MAX_BYTES;
use crate::line::{Content, FORMAT, Hash, Line, NO_HASH, hash};
use crate::read::{file_name, files, lines, unfinished, whole};
use crate::storage::Directory;
use strongroom_types::hex;

/// The facts of a log that verifies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Names the log.
    pub log: String,
    /// Files.
    pub files: u64,
    /// The first line present; above 1 if retention has removed files.
    pub first_sequence: u64,
    /// The last line.
    pub last_sequence: u64,
    /// Records among the lines.
    pub records: u64,
    /// Signed heads among the lines.
    pub heads: u64,
    /// The last line that a head vouches for: later lines could have been written by anyone. 0 for
    /// none.
    pub signed_through: u64,
    /// Heads from elsewhere that the log agrees with.
    pub heads_met: u64,
    /// Heads from elsewhere of lines that retention removed.
    pub heads_before: u64,
    /// Bytes after the last line: of a group that is being written, or that a power cut tore.
    /// Opening the log cuts them.
    pub unfinished_bytes: u64,
}

/// The first wrong line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Its file.
    pub file: String,
    /// Its place there, from 1.
    pub line: u64,
    /// The sequence that it should have.
    pub sequence: u64,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It is not a line of a log.
    Unreadable(String),
    /// It has another sequence: lines are missing, or were put in.
    Sequence(u64),
    /// The line before it was changed, or this one: the hash differs.
    Chain,
    /// A file begins with another line than it should, or such a line is elsewhere.
    Begin,
    /// It belongs to another log.
    OtherLog(String),
    /// A head that none of the given keys signed.
    Signature,
    /// A head from elsewhere has another hash for this line.
    HeadDiffers,
    /// The log ends before a head from elsewhere, which is of this line.
    Truncated(u64),
}

/// Why a log did not verify.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// A line is wrong.
    #[error("{0}")]
    Broken(Broken),
    /// There is no log.
    #[error("there is no audit log here")]
    Missing,
    /// A head from elsewhere that none of the given keys signed.
    #[error("the head of line {0} that was given is not signed by a key that was given")]
    ForeignHead(u64),
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] AuditError),
}

impl fmt::Display for Broken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, sequence, fault } = self;
        write!(
            formatter,
            "the audit log is broken at line {line} of {file}, which should be sequence {sequence}: "
        )?;
        match fault {
            Fault::Unreadable(why) => write!(formatter, "it cannot be read: {why}"),
            Fault::Sequence(found) => {
                write!(formatter, "it is sequence {found}; lines were removed or put in")
            }
            Fault::Chain => {
                write!(formatter, "it does not follow from the line before it; one of them was changed")
            }
            Fault::Begin => write!(formatter, "a file begins with another line than this"),
            Fault::OtherLog(log) => write!(formatter, "it belongs to the log {log}"),
            Fault::Signature => write!(formatter, "its signature is of none of the keys given"),
            Fault::HeadDiffers => write!(formatter, "a head that was kept elsewhere has another hash for it"),
            Fault::Truncated(head) => {
                write!(
                    formatter,
                    "the log ends before it, and a head that was kept elsewhere is of line {head}"
                )
            }
        }
    }
}

/// Reads a whole log and checks it against its chain, its own heads, and the `kept` heads from
/// elsewhere. It changes nothing, and the log may be written meanwhile.
///
/// # Errors
/// [`VerifyError::Broken`] with the first line that is wrong; the others of [`VerifyError`].
pub fn verify(
    directory: &dyn Directory,
    keys: &[PublicKey],
    kept: &[SignedHead],
) -> Result<Report, VerifyError> {
    if let Some(head) = kept.iter().find(|head| !head.is_signed_by(keys)) {
        return Err(VerifyError::ForeignHead(head.sequence));
    }
    let read = |error: std::io::Error| VerifyError::Read(AuditError::reading(&error));
    let files = files(directory).map_err(read)?;
    let mut check = Check::new(*files.first().ok_or(VerifyError::Missing)?, keys, kept);
    for (index, first) in files.iter().enumerate() {
        let name = file_name(*first);
        let file = directory.open(&name, false).map_err(read)?;
        let bytes = whole(&*file).map_err(read)?;
        let is_last = index + 1 == files.len();
        check.file(&name, *first, &bytes, is_last).map_err(VerifyError::Broken)?;
    }
    check.end()
}

struct Check<'a> {
    keys: &'a [PublicKey],
    /// Heads from elsewhere, by the line that they are of.
    kept: BTreeMap<u64, Vec<&'a SignedHead>>,
    /// The previous hash that the next line must have; `None` at the first line present, where any
    /// will do.
    previous: Option<Hash>,
    next: u64,
    /// Where the last line is.
    place: (String, u64),
    report: Report,
}

impl<'a> Check<'a> {
    fn new(first: u64, keys: &'a [PublicKey], kept: &'a [SignedHead]) -> Self {
        let mut by_line: BTreeMap<u64, Vec<&SignedHead>> = BTreeMap::new();
        for head in kept {
            by_line.entry(head.sequence).or_default().push(head);
        }
        let report = Report {
            log: String::new(),
            files: 0,
            first_sequence: first,
            last_sequence: 0,
            records: 0,
            heads: 0,
            signed_through: 0,
            heads_met: 0,
            heads_before: kept.iter().filter(|head| head.sequence < first).count() as u64,
            unfinished_bytes: 0,
        };
        let previous = (first == 1).then_some(NO_HASH);
        Self { keys, kept: by_line, previous, next: first, place: (String::new(), 0), report }
    }

    fn file(&mut self, name: &str, first: u64, bytes: &[u8], is_last: bool) -> Result<(), Broken> {
        self.report.files += 1;
        self.place = (name.to_owned(), 1);
        if first != self.next {
            return Err(self.broken(Fault::Sequence(first)));
        }
        let mut end = 0;
        for (number, (offset, text)) in (1..).zip(lines(bytes)) {
            self.place.1 = number;
            self.line(text, number == 1)?;
            end = offset + text.len() + 1;
        }
        self.place.1 += u64::from(end > 0);
        if is_last {
            // A file that has just been created may have no line yet.
            self.report.unfinished_bytes = unfinished(bytes).len() as u64;
            Ok(())
        } else if end > 0 && end == bytes.len() {
            Ok(())
        } else {
            Err(self.broken(Fault::Unreadable("it has no end".into())))
        }
    }

    fn line(&mut self, text: &[u8], begins_file: bool) -> Result<(), Broken> {
        let unreadable = |why: String| Fault::Unreadable(why);
        if text.len() >= LINE_MAX_BYTES {
            return Err(self.broken(unreadable("it is longer than lines may be".into())));
        }
        let line = Line::parse(text).map_err(|error| self.broken(unreadable(error.to_string())))?;
        if line.sequence != self.next {
            return Err(self.broken(Fault::Sequence(line.sequence)));
        }
        let previous = line.previous().ok_or_else(|| self.broken(Fault::Chain))?;
        if self.previous.is_some_and(|expected| expected != previous) {
            return Err(self.broken(Fault::Chain));
        }
        if matches!(line.content, Content::Begin { .. }) != begins_file {
            return Err(self.broken(Fault::Begin));
        }
        self.content(&line, previous)?;
        let hash = hash(text);
        self.meet_heads(hash)?;
        self.previous = Some(hash);
        self.report.last_sequence = self.next;
        self.next += 1;
        Ok(())
    }

    fn content(&mut self, line: &Line, previous: Hash) -> Result<(), Broken> {
        match &line.content {
            Content::Begin { format, log, .. } => {
                if *format != FORMAT {
                    return Err(self.broken(Fault::Unreadable(format!("it has format {format}"))));
                }
                if self.report.log.is_empty() {
                    self.report.log.clone_from(log);
                } else if self.report.log != *log {
                    return Err(self.broken(Fault::OtherLog(log.clone())));
                }
            }
            Content::Head { key, signature } => {
                let head = SignedHead {
                    log: self.report.log.clone(),
                    sequence: line.sequence - 1,
                    hash: hex::encode(&previous),
                    time: line.time.clone(),
                    key: key.clone(),
                    signature: signature.clone(),
                };
                if !head.is_signed_by(self.keys) {
                    return Err(self.broken(Fault::Signature));
                }
                self.report.heads += 1;
                self.report.signed_through = head.sequence;
            }
            Content::Record(_) => self.report.records += 1,
            Content::Open { .. } => {}
        }
        Ok(())
    }

    /// Checks a line against the heads from elsewhere for it.
    fn meet_heads(&mut self, hash: Hash) -> Result<(), Broken> {
        let Some(heads) = self.kept.get(&self.next) else { return Ok(()) };
        let hash = hex::encode(&hash);
        if let Some(other) = heads.iter().find(|head| head.log != self.report.log) {
            return Err(self.broken(Fault::OtherLog(other.log.clone())));
        }
        if heads.iter().any(|head| head.hash != hash) {
            return Err(self.broken(Fault::HeadDiffers));
        }
        self.report.heads_met += heads.len() as u64;
        Ok(())
    }

    fn end(self) -> Result<Report, VerifyError> {
        match self.kept.range(self.next..).next() {
            Some((head, _)) => Err(VerifyError::Broken(self.broken(Fault::Truncated(*head)))),
            None => Ok(self.report),
        }
    }

    fn broken(&self, fault: Fault) -> Broken {
        Broken { file: self.place.0.clone(), line: self.place.1, sequence: self.next, fault }
    }
}
