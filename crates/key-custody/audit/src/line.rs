//! One line of the log, and the chain that it is a link of.
//!
//! ```text
//! {"sequence":N,"group":G,"previous":"HASH","time":"T","kind":"K",…}\n
//! ```
//! The hash of a line is the SHA-256 of its bytes without the line feed at its end. `group` is the
//! sequence of the first line that was written together with this one: everything before that was
//! durable when this line was written.

use std::io::Write;

use serde::{Deserialize, Serialize};
use strongroom_crypto::mac;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::record::Record;
use strongroom_types::hex;

/// The version of the format, in the first line of every file.
pub(crate) const FORMAT: u32 = 1;

/// Initial capacity of a record's text, enough for most; longer ones grow it.
const USUAL_BODY_BYTES: usize = 768;

/// SHA-256 of a line.
pub(crate) type Hash = [u8; 32];

/// The previous hash of a log's first line.
pub(crate) const NO_HASH: Hash = [0; 32];

/// The hash of a line without its line feed.
pub(crate) fn hash(line: &[u8]) -> Hash {
    mac::sha256(line)
}

/// A decoded line.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    pub(crate) sequence: u64,
    pub(crate) group: u64,
    previous: String,
    pub(crate) time: String,
    #[serde(flatten)]
    pub(crate) content: Content,
}

/// A line's content, by its `kind`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum Content {
    /// The first line of a file.
    Begin {
        format: u32,
        /// Names the log: 16 random bytes in hexadecimal.
        log: String,
        /// SHA-256 of the public key (SubjectPublicKeyInfo, DER) that its heads are signed by.
        key: String,
    },
    /// The log has been opened again.
    Open {
        /// Bytes of a group that was not durable, cut off at the end.
        cut_bytes: u64,
    },
    /// A signature of the line before.
    Head { key: String, signature: String },
    /// An actor's request and its outcome.
    Record(Record),
}

impl Line {
    /// Reads a line without its line feed.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The hash of the line before it; `None` if the text is not a hash.
    pub(crate) fn previous(&self) -> Option<Hash> {
        hex::decode_array(&self.previous)
    }
}

/// The end of a chain, to which lines are added.
#[derive(Clone, Debug)]
pub(crate) struct Chain {
    /// The sequence that the next line has.
    pub(crate) next: u64,
    /// The hash of the last line.
    pub(crate) last: Hash,
}

impl Chain {
    pub(crate) fn new() -> Self {
        Self { next: 1, last: NO_HASH }
    }

    /// Appends a line with `body` (made by [`body`]) to `to`.
    pub(crate) fn add(&mut self, group: u64, body: &[u8], to: &mut Vec<u8>) {
        let begun = to.len();
        let (sequence, previous) = (self.next, hex::encode(&self.last));
        let start = format_args!("{{\"sequence\":{sequence},\"group\":{group},\"previous\":\"{previous}\",");
        // A vector takes everything.
        let _ = to.write_fmt(start);
        to.extend_from_slice(body);
        self.last = hash(&to[begun..]);
        self.next += 1;
        to.push(b'\n');
    }
}

/// The rest of a line after `previous`, with its closing brace.
pub(crate) fn body(time: &str, content: &Content) -> Result<Vec<u8>, serde_json::Error> {
    #[derive(Serialize)]
    struct Body<'a> {
        time: &'a str,
        #[serde(flatten)]
        content: &'a Content,
    }
    let mut text = serde_json::to_vec(&Body { time, content })?;
    text.remove(0);
    Ok(text)
}

/// The same for a record, without copying it: most lines are records.
pub(crate) fn record_body(time: &str, record: &Record) -> Result<Vec<u8>, serde_json::Error> {
    let mut text = Vec::with_capacity(USUAL_BODY_BYTES);
    text.extend_from_slice(b"\"time\":\"");
    text.extend_from_slice(time.as_bytes());
    text.extend_from_slice(b"\",\"kind\":\"record\"");
    let begun = text.len();
    serde_json::to_writer(&mut text, record)?;
    // The opening brace of the record's own object becomes a comma.
    text[begun] = b',';
    Ok(text)
}

/// The present time as lines have it: UTC, RFC 3339, microseconds.
pub(crate) fn now() -> String {
    let now = OffsetDateTime::now_utc();
    let micros = now.nanosecond() / 1000 * 1000;
    let now = now.replace_nanosecond(micros).unwrap_or(now);
    // Only years beyond 9999 have no such text.
    now.format(&Rfc3339).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Actor, Outcome};

    #[test]
    fn a_record_has_the_same_text_by_either_way() {
        let actor = Actor { role: "host".into(), name: "a\n\"b\u{2028}".into(), ..Actor::default() };
        let record = Record::new(actor, "Get", Outcome::Done).object("1").reason("r").field("k", "v");
        let time = now();
        let written = record_body(&time, &record).unwrap();
        assert_eq!(written, body(&time, &Content::Record(record)).unwrap());
    }

    #[test]
    fn a_line_reads_as_it_was_written_and_has_the_hash_of_the_one_before() {
        let actor = Actor { role: "host".into(), name: "a\n\"b\u{2028}".into(), ..Actor::default() };
        let content = Content::Record(Record::new(actor, "Get", Outcome::Done).object("1").field("k", "v"));
        let mut chain = Chain::new();
        let mut bytes = Vec::new();
        chain.add(1, &body(&now(), &Content::Open { cut_bytes: 7 }).unwrap(), &mut bytes);
        let first = chain.last;
        chain.add(1, &body(&now(), &content).unwrap(), &mut bytes);
        let lines: Vec<&[u8]> = bytes.strip_suffix(b"\n").unwrap().split(|byte| *byte == b'\n').collect();
        assert_eq!(lines.len(), 2, "a line feed in a name is no end of a line");
        assert_eq!(hash(lines[0]), first);
        let read = Line::parse(lines[1]).unwrap();
        assert_eq!((read.sequence, read.group, read.previous()), (2, 1, Some(first)));
        assert_eq!(read.content, content);
    }
}
