//! The ring of a lane: entries of the client and completions of the server, in words that both
//! processes write.
//!
//! Each side counts its own entries in private, and believes nothing of the other's counter but
//! that it is at most [`ENTRIES`] ahead. A word is loaded once, and its value checked by its user.
//!
//! A side that is about to sleep says so, and looks again. The other side wakes it only if it said
//! so, and takes the note away: one write per sleep.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use strongroom_io::IoError;
use strongroom_memory::{SealedFileError, WordsWriter, make_shared_words};

/// The number of this layout.
pub(crate) const LAYOUT: u32 = 1;

/// Operations under way at once on a lane.
pub(crate) const ENTRIES: usize = 256;

/// Chunks of a lane's pool: 8 MiB.
pub(crate) const CHUNKS: usize = 4;

/// Words between those that different processes write: a cache line.
const STRIDE: usize = 8;
const SUBMITTED: usize = 0;
const TAKEN: usize = STRIDE;
const COMPLETED: usize = 2 * STRIDE;
const REAPED: usize = 3 * STRIDE;
const SERVER_SLEEPS: usize = 4 * STRIDE;
const CLIENT_SLEEPS: usize = 5 * STRIDE;
const ENTRY_WORDS: usize = 8;
const ENTRIES_START: usize = 6 * STRIDE;
const END_WORDS: usize = 2;
const ENDS_START: usize = ENTRIES_START + ENTRIES * ENTRY_WORDS;
const WORDS: usize = ENDS_START + ENTRIES * END_WORDS;

/// An operation, as it is in the ring. The server checks every field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) tag: u64,
    pub(crate) operation: u64,
    pub(crate) file: u64,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    pub(crate) place: u64,
}

/// The numbers of operations.
pub(crate) mod operation {
    pub(crate) const READ: u64 = 0;
    pub(crate) const WRITE: u64 = 1;
    pub(crate) const WRITE_DURABLY: u64 = 2;
    pub(crate) const SYNC: u64 = 3;
    pub(crate) const SYNC_WHOLE: u64 = 7;
    pub(crate) const PUNCH: u64 = 4;
    pub(crate) const ALLOCATE: u64 = 5;
    pub(crate) const ZERO: u64 = 6;
}

/// The end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) tag: u64,
    pub(crate) code: u64,
}

/// The bit of a code that stands for a transfer that ended early; the others are its bytes.
const SHORT: u64 = 1 << 32;

/// The code of a result.
pub(crate) fn code_of(result: Result<(), IoError>) -> u64 {
    let number = |errno: Errno| u64::from(errno.raw_os_error().unsigned_abs());
    match result {
        Ok(()) => 0,
        Err(IoError::Short { done_bytes, .. }) => SHORT | done_bytes.min(SHORT - 1),
        Err(IoError::NoSpace) => number(Errno::NOSPC),
        Err(IoError::ReadOnly) => number(Errno::ROFS),
        Err(IoError::Device(errno)) => u64::from(errno.0.unsigned_abs()),
        Err(_) => number(Errno::IO),
    }
}

/// The result that a code stands for; an unknown code is an error.
pub(crate) fn result_of(code: u64, wanted_bytes: u64) -> Result<(), IoError> {
    match code {
        0 => Ok(()),
        1..4096 => Err(Errno::from_raw_os_error(code as i32).into()),
        short if short & SHORT != 0 && short >> 33 == 0 => {
            let done_bytes = (short & (SHORT - 1)).min(wanted_bytes.saturating_sub(1));
            Err(IoError::Short { done_bytes, wanted_bytes })
        }
        _ => Err(Errno::IO.into()),
    }
}

/// The other side does not keep the ring's rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Broken;

/// Makes a ring's words.
pub(crate) fn make() -> Result<OwnedFd, SealedFileError> {
    make_shared_words(WORDS)
}

struct Words(WordsWriter);

impl Words {
    fn at(&self, index: usize) -> &AtomicU64 {
        // All indices come from the constants above.
        &self.0.words()[index]
    }

    fn take(&self, start: usize) -> u64 {
        self.at(start).load(Ordering::Relaxed)
    }

    fn put(&self, start: usize, value: u64) {
        self.at(start).store(value, Ordering::Relaxed);
    }

    /// How far the other side's counter is ahead.
    fn ahead(&self, counter: usize, own: u64) -> Result<usize, Broken> {
        let ahead = self.at(counter).load(Ordering::SeqCst).wrapping_sub(own);
        match usize::try_from(ahead) {
            Ok(ahead) if ahead <= ENTRIES => Ok(ahead),
            _ => Err(Broken),
        }
    }

    /// Takes the note that the other side sleeps. Returns whether there was one.
    fn must_wake(&self, sleeps: usize) -> bool {
        self.at(sleeps).load(Ordering::SeqCst) != 0 && self.at(sleeps).swap(0, Ordering::SeqCst) != 0
    }
}

fn entry_at(counter: u64) -> usize {
    ENTRIES_START + (counter % ENTRIES as u64) as usize * ENTRY_WORDS
}

fn end_at(counter: u64) -> usize {
    ENDS_START + (counter % ENTRIES as u64) as usize * END_WORDS
}

/// The client's end.
pub(crate) struct ClientRing {
    words: Words,
    submitted: u64,
    reaped: u64,
}

impl ClientRing {
    pub(crate) fn map(file: impl AsFd) -> Result<Self, SealedFileError> {
        let ring = Self { words: Words(WordsWriter::map(file, WORDS)?), submitted: 0, reaped: 0 };
        // Nobody has looked yet.
        ring.words.at(CLIENT_SLEEPS).store(1, Ordering::SeqCst);
        Ok(ring)
    }

    /// Operations that were submitted and not reaped.
    pub(crate) fn under_way(&self) -> usize {
        self.submitted.wrapping_sub(self.reaped) as usize
    }

    pub(crate) fn has_room(&self) -> bool {
        self.under_way() < ENTRIES
    }

    /// Puts an entry where there is room. The server sees it after [`Self::publish`].
    pub(crate) fn push(&mut self, entry: Entry) {
        let at = entry_at(self.submitted);
        let Entry { tag, operation, file, offset, length, place } = entry;
        for (word, value) in [tag, operation, file, offset, length, place].into_iter().enumerate() {
            self.words.put(at + word, value);
        }
        self.submitted = self.submitted.wrapping_add(1);
    }

    /// Shows the server the entries. Returns whether it must be woken.
    pub(crate) fn publish(&self) -> bool {
        self.words.at(SUBMITTED).store(self.submitted, Ordering::SeqCst);
        self.words.must_wake(SERVER_SLEEPS)
    }

    /// Takes the next end.
    pub(crate) fn reap(&mut self) -> Result<Option<Ended>, Broken> {
        let ahead = self.words.ahead(COMPLETED, self.reaped)?;
        if ahead == 0 {
            return Ok(None);
        }
        if ahead > self.under_way() {
            return Err(Broken);
        }
        let at = end_at(self.reaped);
        let ended = Ended { tag: self.words.take(at), code: self.words.take(at + 1) };
        self.reaped = self.reaped.wrapping_add(1);
        self.words.at(REAPED).store(self.reaped, Ordering::SeqCst);
        Ok(Some(ended))
    }

    /// Asks to be woken by the next end. The caller looks again after this.
    pub(crate) fn will_sleep(&self) {
        self.words.at(CLIENT_SLEEPS).store(1, Ordering::SeqCst);
    }
}

/// The server's end.
pub(crate) struct ServerRing {
    words: Words,
    taken: u64,
    completed: u64,
}

impl ServerRing {
    pub(crate) fn map(file: impl AsFd) -> Result<Self, SealedFileError> {
        Ok(Self { words: Words(WordsWriter::map(file, WORDS)?), taken: 0, completed: 0 })
    }

    /// Takes the next entry.
    pub(crate) fn take(&mut self) -> Result<Option<Entry>, Broken> {
        if self.words.ahead(SUBMITTED, self.taken)? == 0 {
            return Ok(None);
        }
        // More than it may have under way.
        if self.taken.wrapping_sub(self.completed) >= ENTRIES as u64 {
            return Err(Broken);
        }
        let at = entry_at(self.taken);
        let word = |index| self.words.take(at + index);
        let entry = Entry {
            tag: word(0),
            operation: word(1),
            file: word(2),
            offset: word(3),
            length: word(4),
            place: word(5),
        };
        self.taken = self.taken.wrapping_add(1);
        self.words.at(TAKEN).store(self.taken, Ordering::SeqCst);
        Ok(Some(entry))
    }

    /// Tells the client of an end. Returns whether it must be woken.
    ///
    /// # Errors
    /// If the client has not reaped as many as it must before it submits more.
    pub(crate) fn complete(&mut self, ended: Ended) -> Result<bool, Broken> {
        let reaped = self.words.at(REAPED).load(Ordering::SeqCst);
        if self.completed.wrapping_sub(reaped) >= ENTRIES as u64 {
            return Err(Broken);
        }
        let at = end_at(self.completed);
        self.words.put(at, ended.tag);
        self.words.put(at + 1, ended.code);
        self.completed = self.completed.wrapping_add(1);
        self.words.at(COMPLETED).store(self.completed, Ordering::SeqCst);
        Ok(self.words.must_wake(CLIENT_SLEEPS))
    }

    /// Says that it will sleep. Returns whether it may: no entry has come meanwhile.
    pub(crate) fn may_sleep(&self) -> Result<bool, Broken> {
        self.words.at(SERVER_SLEEPS).store(1, Ordering::SeqCst);
        Ok(self.words.ahead(SUBMITTED, self.taken)? == 0)
    }

    pub(crate) fn woke(&self) {
        self.words.at(SERVER_SLEEPS).store(0, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (ClientRing, ServerRing, WordsWriter) {
        let file = make().unwrap();
        let attacker = WordsWriter::map(&file, WORDS).unwrap();
        (ClientRing::map(&file).unwrap(), ServerRing::map(&file).unwrap(), attacker)
    }

    fn entry(tag: u64) -> Entry {
        Entry { tag, operation: operation::READ, file: 1, offset: 2, length: 3, place: 4 }
    }

    #[test]
    fn entries_and_ends_go_round_and_round() {
        let (mut client, mut server, _) = pair();
        for round in 0..10 * ENTRIES as u64 {
            while client.has_room() {
                client.push(entry(round));
            }
            client.publish();
            assert_eq!(server.take(), Ok(Some(entry(round))));
            assert!(server.complete(Ended { tag: round, code: 0 }).is_ok());
            assert_eq!(client.reap(), Ok(Some(Ended { tag: round, code: 0 })));
            while let Some(entry) = server.take().unwrap() {
                server.complete(Ended { tag: entry.tag, code: 5 }).unwrap();
            }
            while client.reap().unwrap().is_some() {}
            assert_eq!(client.under_way(), 0);
        }
    }

    #[test]
    fn a_sleeper_is_woken_once_and_one_that_is_awake_never() {
        let (mut client, mut server, _) = pair();
        client.push(entry(1));
        assert!(!client.publish(), "the server has not slept");
        assert!(!server.may_sleep().unwrap());
        server.woke();
        server.take().unwrap();
        assert!(server.may_sleep().unwrap());
        client.push(entry(2));
        assert!(client.publish());
        client.push(entry(3));
        assert!(!client.publish());
        server.woke();
        while server.take().unwrap().is_some() {}
        assert!(server.complete(Ended { tag: 1, code: 0 }).unwrap(), "a client that has not looked yet");
        assert!(!server.complete(Ended { tag: 2, code: 0 }).unwrap());
        client.will_sleep();
        assert!(server.complete(Ended { tag: 3, code: 0 }).unwrap());
    }

    #[test]
    fn a_counter_that_runs_away_breaks_the_ring() {
        for value in [ENTRIES as u64 + 1, u64::MAX, 1 << 40] {
            let (mut client, mut server, attacker) = pair();
            attacker.words()[SUBMITTED].store(value, Ordering::SeqCst);
            assert_eq!((server.take(), server.may_sleep()), (Err(Broken), Err(Broken)));
            attacker.words()[COMPLETED].store(value, Ordering::SeqCst);
            assert_eq!(client.reap(), Err(Broken));
        }
        // An end of nothing.
        let (mut client, _, attacker) = pair();
        attacker.words()[COMPLETED].store(1, Ordering::SeqCst);
        assert_eq!(client.reap(), Err(Broken));
    }

    #[test]
    fn a_client_that_submits_without_reaping_breaks_the_ring() {
        let (_, mut server, attacker) = pair();
        attacker.words()[SUBMITTED].store(ENTRIES as u64, Ordering::SeqCst);
        while server.take().unwrap().is_some() {}
        attacker.words()[SUBMITTED].store(ENTRIES as u64 + 1, Ordering::SeqCst);
        assert_eq!(server.take(), Err(Broken), "more than it may have under way");
        for tag in 0..ENTRIES as u64 {
            server.complete(Ended { tag, code: 0 }).unwrap();
        }
        assert!(server.take().unwrap().is_some());
        assert_eq!(server.complete(Ended { tag: 0, code: 0 }), Err(Broken), "there is no room for it");
    }

    #[test]
    fn results_survive_and_invented_ones_are_errors() {
        let short = IoError::Short { done_bytes: 512, wanted_bytes: 4096 };
        for result in
            [Ok(()), Err(IoError::NoSpace), Err(short), Err(Errno::ROFS.into()), Err(Errno::IO.into())]
        {
            assert_eq!(result_of(code_of(result), 4096), result);
        }
        for code in [4096, u64::MAX, 1 << 33, SHORT | 1 << 40, 1 << 31, SHORT | 4096, SHORT | 0xFFFF_FFFF] {
            assert!(result_of(code, 4096).is_err(), "{code:x}");
        }
    }
}
