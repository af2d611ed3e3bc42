//! The files of a log and their lines.

use std::io;
use std::sync::Arc;

use crate::limits::{FILE_MAX_BYTES, LINE_MAX_BYTES};
use crate::storage::{Directory, LogFile};

const NAME_BEGIN: &str = "audit-";
const NAME_END: &str = ".jsonl";
/// As many digits as a sequence may have, so that names sort by sequence.
const NAME_DIGITS: usize = 20;
const CHUNK_BYTES: usize = 64 * 1024;

/// The name of the file whose first line has this sequence.
pub(crate) fn file_name(first: u64) -> String {
    format!("{NAME_BEGIN}{first:0NAME_DIGITS$}{NAME_END}")
}

fn first_sequence(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(NAME_BEGIN)?.strip_suffix(NAME_END)?;
    let all_digits = digits.len() == NAME_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok()).flatten()
}

/// The first sequences of all files, in order.
pub(crate) fn files(directory: &dyn Directory) -> io::Result<Vec<u64>> {
    let mut files: Vec<u64> = directory.names()?.iter().filter_map(|name| first_sequence(name)).collect();
    files.sort_unstable();
    Ok(files)
}

/// All bytes of a file.
pub(crate) fn whole(file: &dyn LogFile) -> io::Result<Vec<u8>> {
    let length = file.length()?;
    // A file may exceed its configured size by one group.
    if length > 2 * FILE_MAX_BYTES {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("{length} bytes are no file of a log"),
        ));
    }
    let mut bytes = vec![0; length as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(done as u64, &mut bytes[done..])? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// The complete lines of some bytes, without their line feeds, each with its offset.
pub(crate) fn lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut offset = 0;
    bytes.split_inclusive(|byte| *byte == b'\n').filter_map(move |piece| {
        let begun = offset;
        offset += piece.len();
        piece.strip_suffix(b"\n").map(|line| (begun, line))
    })
}

/// The bytes after the last whole line, without the zeroes written ahead.
pub(crate) fn unfinished(bytes: &[u8]) -> &[u8] {
    let begun = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
    &bytes[begun..end.max(begun)]
}

/// Reads lines in order from a sequence on, through all files, while a writer appends.
pub(crate) struct Reader {
    directory: Arc<dyn Directory>,
    next: u64,
    open: Option<OpenFile>,
}

struct OpenFile {
    file: Box<dyn LogFile>,
    /// The sequence of the next line in it, and where that begins.
    next: u64,
    offset: u64,
    /// The bytes read from there on.
    buffer: Vec<u8>,
    /// Bytes of the buffer already consumed; `offset` is behind them.
    used: usize,
    /// The last line that was durable when the buffer was read. Later lines in it may have changed
    /// since.
    durable: u64,
}

impl Reader {
    pub(crate) fn new(directory: Arc<dyn Directory>, from: u64) -> Self {
        Self { directory, next: from.max(1), open: None }
    }

    /// The sequence of the next line.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The next line. The caller guarantees that all lines up to `durable` are there.
    pub(crate) fn line(&mut self, durable: u64) -> io::Result<Vec<u8>> {
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => self.open.insert(OpenFile::holding(&*self.directory, self.next)?),
            };
            match open.line(durable)? {
                Some((sequence, line)) if sequence == self.next => {
                    self.next += 1;
                    return Ok(line);
                }
                // Not reached yet: the file is read from its beginning.
                Some(_) => {}
                None if open.next == self.next => {
                    let name = file_name(self.next);
                    self.open = Some(OpenFile::begin(self.directory.open(&name, false)?, self.next));
                }
                None => return Err(missing(self.next)),
            }
        }
    }
}

impl OpenFile {
    fn begin(file: Box<dyn LogFile>, first: u64) -> Self {
        Self { file, next: first, offset: 0, buffer: Vec::new(), used: 0, durable: 0 }
    }

    /// Opens the file that holds a line, at its beginning.
    fn holding(directory: &dyn Directory, sequence: u64) -> io::Result<Self> {
        let first = files(directory)?.into_iter().rfind(|first| *first <= sequence);
        let first = first.ok_or_else(|| missing(sequence))?;
        Ok(Self::begin(directory.open(&file_name(first), false)?, first))
    }

    /// The next whole line with its sequence, if there is one.
    fn line(&mut self, durable: u64) -> io::Result<Option<(u64, Vec<u8>)>> {
        if self.next > self.durable {
            self.buffer.clear();
            self.used = 0;
            self.durable = durable;
        }
        let mut looked = 0;
        loop {
            let unused = &self.buffer[self.used..];
            if let Some(length) = unused[looked..].iter().position(|byte| *byte == b'\n') {
                let line = unused[..looked + length].to_vec();
                self.used += line.len() + 1;
                self.offset += line.len() as u64 + 1;
                self.next += 1;
                return Ok(Some((self.next - 1, line)));
            }
            looked = unused.len();
            if looked > LINE_MAX_BYTES {
                // Zeroes written ahead are no line either.
                return Ok(None);
            }
            self.buffer.drain(..self.used);
            self.used = 0;
            self.buffer.resize(looked + CHUNK_BYTES, 0);
            let count = self.file.read_at(self.offset + looked as u64, &mut self.buffer[looked..])?;
            self.buffer.truncate(looked + count);
            if count == 0 {
                return Ok(None);
            }
        }
    }
}

fn missing(sequence: u64) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("line {sequence} is not there any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_the_order_of_sequences() {
        assert_eq!(file_name(7), "audit-00000000000000000007.jsonl");
        assert_eq!(first_sequence(&file_name(u64::MAX)), Some(u64::MAX));
        for other in
            ["audit-7.jsonl", "audit-0000000000000000007x.jsonl", "x", "audit-99999999999999999999.jsonl"]
        {
            assert_eq!(first_sequence(other), None, "{other}");
        }
    }

    #[test]
    fn what_has_no_end_is_no_line() {
        let found: Vec<_> = lines(b"ab\n\ncd").collect();
        assert_eq!(found, [(0, b"ab".as_slice()), (3, b"".as_slice())]);
        assert_eq!(unfinished(b"ab\n\ncd"), b"cd");
        assert_eq!(unfinished(b"ab\nc\0d\0\0"), b"c\0d");
        assert_eq!(unfinished(b"ab\n\0\0"), b"");
        assert_eq!(unfinished(b"\0\0"), b"");
    }
}
