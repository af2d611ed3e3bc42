//! The access log in the store: entries, each with the SHA-256 of the one before it, and a head.
//! `docs/ACCESS_LOG.md` has the format byte by byte, and what the chain detects.
//!
//! Entries are read from the store and not kept in memory: a log of a year is larger than all the
//! rest of the inventory.
//!
//! # Order
//! An entry, the head that names it and the change that it reports are one transaction. It is
//! conditional on the number of writes of the head, which can be predicted: a transaction is built
//! on those that are still on their way, so that the store can commit all of them together. If one
//! of those fails, the ones after it lose their condition and are built again
//! ([`Inventory::commit`](super::Inventory::commit)).

use std::collections::{BTreeMap, VecDeque};

use aws_lc_rs::digest::{SHA256, digest};
use strongroom_api::WhenFull;
use strongroom_api::access::{AccessEntry, AccessLogHead, AccessLogPage, AccessLogReport, ChainBreak};
use strongroom_store::{Entries, Entry, Is, KeyRange, Snapshot, Store, Transaction};
use strongroom_types::hex;

use super::Failure;
use crate::records::{
    ACCESS_HEAD_KEY, AccessHeadRecord, AccessRecord, AccessRetentionRecord, Record, event_id,
};

/// The hash before the first entry.
const NO_HASH: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// The fraction of the log's room that is kept for what is done when it is full: a sixteenth.
const RESERVE_PART: u64 = 16;
/// How full the log is when an alarm is raised, in hundredths.
const ALMOST_FULL_PERCENT: u64 = 80;
/// The entries of a block: one page of the store.
const BLOCK: u64 = strongroom_store::limits::PAGE_MAX_ENTRIES as u64;
/// The most breaks that are listed. A log with more of them was not damaged by accident.
const BREAKS_MAX: usize = 100;

/// SHA-256 in lower-case hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest(&SHA256, bytes).as_ref())
}

fn key_of(id: u64) -> String {
    format!("{}{}", AccessRecord::PREFIX, event_id(id))
}

/// The entries from a number on.
fn from_on(id: u64) -> KeyRange {
    KeyRange { start: key_of(id).into_bytes(), ..KeyRange::prefix(AccessRecord::PREFIX) }
}

/// The bytes of an entry's key and value.
fn bytes_of(entry: &Entry) -> u64 {
    (entry.key.len() + entry.value.len()) as u64
}

/// The number in an entry's key.
fn number_of(key: &[u8]) -> Option<u64> {
    std::str::from_utf8(key).ok()?.strip_prefix(AccessRecord::PREFIX)?.parse().ok()
}

fn damaged(key: &str, error: &serde_json::Error) -> Failure {
    Failure::Damaged { key: key.to_owned(), reason: error.to_string() }
}

/// How large the log may become with the entry of a transaction, in bytes.
pub fn most_bytes(retention: AccessRetentionRecord, when_full: WhenFull) -> Option<u64> {
    let room = retention.room_bytes;
    match when_full {
        WhenFull::Refused => Some(room - room / RESERVE_PART),
        WhenFull::Reserve => Some(room),
        WhenFull::Done => None,
    }
}

/// Oldest entries that a transaction removes.
#[derive(Clone, Debug)]
pub(super) struct Removal {
    /// The first of them, which must still be the first of the log.
    first: u64,
    keys: Vec<Vec<u8>>,
    bytes: u64,
    last: AccessLogHead,
}

impl Removal {
    /// The sentence of the entry that reports it.
    pub fn message(&self) -> String {
        let Self { first, last: AccessLogHead { id, hash }, .. } = self;
        format!("entries {first} to {id} were removed; the SHA-256 of entry {id} is {hash}")
    }
}

/// Entries behind the head that it does not know: a release without a chain wrote them, or
/// somebody else.
#[derive(Clone, Debug)]
struct Strays {
    last: AccessLogHead,
    entries: u64,
    bytes: u64,
}

/// The end of the log, as the next transaction finds it if all of those before it are committed.
#[derive(Clone, Debug)]
struct Tail {
    head: AccessHeadRecord,
    /// How often the head was written since it exists; 0 if it does not.
    writes: u64,
}

/// Where a transaction was built, to discard what was built on it if it fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Era(u64);

/// Continues the chain.
#[derive(Debug)]
pub(super) struct Chain {
    /// `None` after a transaction has failed: the store has to be asked.
    tail: Option<Tail>,
    era: Era,
    strays: Option<Strays>,
}

impl Chain {
    /// Finds the end of the log.
    pub fn open(store: &dyn Store) -> Result<Self, Failure> {
        let log = AccessLog::open(store)?;
        let strays = match log.is_begun {
            true => log.strays()?,
            false => None,
        };
        Ok(Self { tail: None, era: Era(0), strays })
    }

    /// The end of the log, for a transaction that is about to be handed to the store.
    fn tail(&mut self, store: &dyn Store) -> Result<&mut Tail, Failure> {
        let found = match self.tail.take() {
            Some(tail) => tail,
            None => {
                let log = AccessLog::open(store)?;
                let mut tail = Tail { head: log.head, writes: log.writes };
                // The next entry must not overwrite them, and says that they were there.
                if let Some(strays) = self.strays.as_ref().filter(|strays| strays.last.id > tail.head.id) {
                    let AccessLogHead { id, hash } = strays.last.clone();
                    (tail.head.id, tail.head.hash) = (id, hash);
                    tail.head.entries += strays.entries;
                    tail.head.bytes += strays.bytes;
                }
                tail
            }
        };
        Ok(self.tail.insert(found))
    }

    /// Adds entries and the head that names them to a transaction. Its last condition is that it
    /// continues the chain.
    pub fn extend(
        &mut self,
        store: &dyn Store,
        entries: Vec<AccessEntry>,
        removal: Option<&Removal>,
        most_bytes: Option<u64>,
        mut transaction: Transaction,
    ) -> Result<(Transaction, Era), Failure> {
        let era = self.era;
        let tail = self.tail(store)?;
        let mut head = tail.head.clone();
        if let Some(removal) = removal {
            if removal.first != head.first {
                return Err(Failure::Raced);
            }
            head.first = removal.last.id + 1;
            head.removed = Some(removal.last.clone());
            head.entries = head.entries.saturating_sub(removal.keys.len() as u64);
            head.bytes = head.bytes.saturating_sub(removal.bytes);
            for key in &removal.keys {
                transaction = transaction.delete(key.clone());
            }
        }
        for entry in entries {
            let id = head.id + 1;
            let record = AccessRecord(AccessEntry { id, previous: Some(head.hash), ..entry });
            let value = serde_json::to_vec(&record).map_err(|error| damaged(&record.key(), &error))?;
            (head.id, head.hash) = (id, sha256(&value));
            head.entries += 1;
            head.bytes += (record.key().len() + value.len()) as u64;
            transaction = transaction.put(record.key(), value);
        }
        if let Some(most) = most_bytes.filter(|most| head.bytes > *most) {
            return Err(Failure::AccessLogFull { bytes: tail.head.bytes, most });
        }
        let value = serde_json::to_vec(&head).map_err(|error| damaged(ACCESS_HEAD_KEY, &error))?;
        let is = match tail.writes {
            0 => Is::Absent,
            writes => Is::Version(writes),
        };
        *tail = Tail { head, writes: tail.writes + 1 };
        Ok((transaction.put(ACCESS_HEAD_KEY, value).when(ACCESS_HEAD_KEY, is), era))
    }

    /// A transaction of this era has failed: what was built on it will fail, too.
    pub fn forget(&mut self, era: Era) {
        if self.era == era {
            (self.tail, self.era) = (None, Era(era.0 + 1));
        }
    }
}

/// The log at one revision.
pub struct AccessLog {
    snapshot: Box<dyn Snapshot>,
    head: AccessHeadRecord,
    /// How often the head was written since it exists.
    writes: u64,
    /// Whether the log has a chain: not before the first entry of a release with one.
    is_begun: bool,
}

impl AccessLog {
    /// The log as it is now.
    pub(super) fn open(store: &dyn Store) -> Result<Self, Failure> {
        let snapshot = store.snapshot()?;
        let stored = snapshot.get(ACCESS_HEAD_KEY.as_bytes())?;
        let Some(stored) = stored else {
            let head = before_chain(&*snapshot)?;
            return Ok(Self { snapshot, head, writes: 0, is_begun: false });
        };
        let head = serde_json::from_slice(&stored.value).map_err(|error| damaged(ACCESS_HEAD_KEY, &error))?;
        Ok(Self { snapshot, head, writes: stored.version, is_begun: true })
    }

    /// The position that the log states of itself.
    pub fn head(&self) -> AccessLogHead {
        AccessLogHead { id: self.head.id, hash: self.head.hash.clone() }
    }

    /// The number of entries.
    pub fn entries(&self) -> u64 {
        self.head.entries
    }

    /// The bytes of their keys and values.
    pub fn bytes(&self) -> u64 {
        self.head.bytes
    }

    /// Whether changes will soon be refused, or are.
    pub fn is_almost_full(&self, retention: AccessRetentionRecord) -> bool {
        let most = most_bytes(retention, WhenFull::Refused);
        most.is_some_and(|most| self.head.bytes >= most / 100 * ALMOST_FULL_PERCENT)
    }

    /// When the first entry was written that is still there.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn oldest_unix_ms(&self) -> Result<Option<u64>, Failure> {
        let first = self.snapshot.range(&KeyRange::prefix(AccessRecord::PREFIX), 1)?.entries;
        let read = first.first().and_then(|entry| serde_json::from_slice::<AccessEntry>(&entry.value).ok());
        Ok(read.map(|entry| entry.at_unix_ms))
    }

    /// Entries behind the head.
    fn strays(&self) -> Result<Option<Strays>, Failure> {
        let mut found: Option<Strays> = None;
        for entry in self.entries_in(from_on(self.head.id + 1)) {
            let entry = entry?;
            let Some(id) = number_of(&entry.key) else { continue };
            let (before, bytes) = found.take().map_or((0, 0), |strays| (strays.entries, strays.bytes));
            let last = AccessLogHead { id, hash: sha256(&entry.value) };
            found = Some(Strays { last, entries: before + 1, bytes: bytes + bytes_of(&entry) });
        }
        Ok(found)
    }

    fn entries_in(&self, range: KeyRange) -> Entries<&dyn Snapshot> {
        Entries::new(&*self.snapshot, range)
    }

    /// The first entries that were written before this time, at most so many of them. What cannot
    /// be read goes with an entry behind it.
    pub(super) fn outdated(&self, before_unix_ms: u64, most: usize) -> Result<Option<Removal>, Failure> {
        let mut found = self.snapshot.range(&KeyRange::prefix(AccessRecord::PREFIX), most)?.entries;
        let mut count = 0;
        for (number, entry) in (1..).zip(&found) {
            match serde_json::from_slice::<AccessEntry>(&entry.value) {
                Ok(read) if read.at_unix_ms < before_unix_ms => count = number,
                Ok(_) => break,
                Err(_) => {}
            }
        }
        found.truncate(count);
        let Some(last) = found.last() else { return Ok(None) };
        let Some(id) = number_of(&last.key) else { return Ok(None) };
        Ok(Some(Removal {
            first: self.head.first,
            last: AccessLogHead { id, hash: sha256(&last.value) },
            bytes: found.iter().map(bytes_of).sum(),
            keys: found.into_iter().map(|entry| entry.key).collect(),
        }))
    }

    /// A page of the wanted entries. Without `after`, the newest ones; a block that is older than
    /// `since` as a whole ends the search.
    pub fn page(&self, wanted: &Wanted<'_>) -> Result<AccessLogPage, Failure> {
        match wanted.after {
            Some(after) => self.page_after(after, wanted),
            None => self.newest(wanted),
        }
    }

    fn page_after(&self, after: u64, wanted: &Wanted<'_>) -> Result<AccessLogPage, Failure> {
        let from = after.saturating_add(1);
        let mut links = self.links_from(from)?;
        let mut items = Vec::new();
        if !wanted.is_filtered() {
            // The numbers say how many there are, so the rest is not read.
            let found = self.snapshot.range(&from_on(from), wanted.limit)?.entries;
            for entry in &found {
                items.extend(links.take(entry));
            }
            let total = self.head.id.saturating_sub(after).min(self.head.entries);
            let last = found.last().and_then(|entry| number_of(&entry.key));
            let next = last.filter(|last| *last < self.head.id).map(|last| last.to_string());
            if next.is_none() && after < self.head.id {
                links.end();
            }
            return Ok(AccessLogPage { items, total, next, breaks: links.breaks });
        }
        let mut total = 0;
        for entry in self.entries_in(from_on(from)) {
            let Some(read) = links.take(&entry?).filter(|read| wanted.is_meant(read)) else { continue };
            total += 1;
            if items.len() < wanted.limit {
                items.push(read);
            }
        }
        if after < self.head.id {
            links.end();
        }
        let more = total > items.len() as u64;
        let next = items.last().filter(|_| more).map(|entry| entry.id.to_string());
        Ok(AccessLogPage { items, total, next, breaks: links.breaks })
    }

    fn newest(&self, wanted: &Wanted<'_>) -> Result<AccessLogPage, Failure> {
        let mut items = VecDeque::new();
        let (mut breaks, mut total) = (Vec::new(), 0);
        // Strays stand behind the head.
        let mut end = None;
        let mut from = (self.head.id + 1).saturating_sub(BLOCK).max(self.head.first);
        loop {
            let range = match end {
                None => from_on(from),
                Some(end) => KeyRange::between(key_of(from), key_of(end)),
            };
            let mut links = self.links_from(from)?;
            let (mut block, mut has_old, mut has_recent) = (Vec::new(), false, false);
            for entry in self.entries_in(range) {
                let Some(read) = links.take(&entry?) else { continue };
                match wanted.is_recent(&read) {
                    true => has_recent = true,
                    false => has_old = true,
                }
                if wanted.is_meant(&read) {
                    block.push(read);
                }
            }
            if end.is_none() {
                links.end();
            }
            total += block.len() as u64;
            for read in block.into_iter().rev() {
                if items.len() < wanted.limit {
                    items.push_front(read);
                }
            }
            links.breaks.append(&mut breaks);
            breaks = links.breaks;
            let is_enough = !wanted.is_filtered() && items.len() >= wanted.limit;
            let is_older = has_old && !has_recent;
            if from <= self.head.first || is_enough || is_older {
                break;
            }
            (end, from) = (Some(from), from.saturating_sub(BLOCK).max(self.head.first));
        }
        if !wanted.is_filtered() {
            total = self.head.entries.max(items.len() as u64);
        }
        breaks.truncate(BREAKS_MAX);
        Ok(AccessLogPage { items: items.into(), total, next: None, breaks })
    }

    /// Verifies the whole chain, and that it has the entries of heads that were kept elsewhere.
    pub fn verify(&self, kept: &[AccessLogHead]) -> Result<AccessLogReport, Failure> {
        let mut by_id: BTreeMap<u64, Vec<&AccessLogHead>> = BTreeMap::new();
        for head in kept {
            by_id.entry(head.id).or_default().push(head);
        }
        let first = self.head.first;
        let before = kept.iter().filter(|head| head.id < first).count() as u64;
        let (mut met, mut rewritten) = (0, Vec::new());
        let mut links = Links::begin(&self.head, self.before_first());
        for entry in self.entries_in(from_on(0)) {
            links.take(&entry?);
            let Some(last) = &links.last else { continue };
            for head in by_id.remove(&last.id).unwrap_or_default() {
                match head.hash == last.hash {
                    true => met += 1,
                    false => rewritten.push(last.id),
                }
            }
        }
        for id in rewritten {
            links.broken(id, format!("entry {id} is not the one of the head that was kept"));
        }
        links.end();
        for id in by_id.into_keys().filter(|id| *id >= first) {
            links.broken(id, format!("the log has no entry {id}, of which a head was kept: it was cut"));
        }
        Ok(AccessLogReport {
            whole: links.breaks.is_empty(),
            first_id: first,
            head: self.head(),
            entries: links.entries,
            unchained: links.unchained,
            kept_heads_met: met,
            kept_heads_before: before,
            breaks: links.breaks,
            anchored: None,
        })
    }

    /// What the first entry has to continue, if that is known.
    fn before_first(&self) -> Option<AccessLogHead> {
        let none =
            || (self.head.chained_from == 1).then(|| AccessLogHead { id: 0, hash: NO_HASH.to_owned() });
        self.head.removed.clone().or_else(none)
    }

    /// Follows the chain from an entry on.
    fn links_from(&self, from: u64) -> Result<Links<'_>, Failure> {
        if from <= self.head.first {
            return Ok(Links::begin(&self.head, self.before_first()));
        }
        let before = self.snapshot.get(key_of(from - 1).as_bytes())?;
        let before = before.map(|entry| AccessLogHead { id: from - 1, hash: sha256(&entry.value) });
        let is_missing = before.is_none() && from > self.head.chained_from && from <= self.head.id + 1;
        let mut links = Links::begin(&self.head, before);
        if is_missing {
            links.broken(from - 1, format!("entry {} is missing", from - 1));
        }
        Ok(links)
    }
}

/// The head of a log of a release without a chain, to begin one behind it.
fn before_chain(snapshot: &dyn Snapshot) -> Result<AccessHeadRecord, Failure> {
    let mut head = AccessHeadRecord {
        id: 0,
        hash: NO_HASH.to_owned(),
        chained_from: 1,
        first: 1,
        entries: 0,
        bytes: 0,
        removed: None,
    };
    let mut last = None;
    for entry in Entries::new(snapshot, KeyRange::prefix(AccessRecord::PREFIX)) {
        let entry = entry?;
        if let Some(id) = number_of(&entry.key) {
            if head.entries == 0 {
                head.first = id;
            }
            head.id = id;
            head.entries += 1;
            head.bytes += bytes_of(&entry);
        }
        last = Some(entry);
    }
    if let Some(last) = last {
        head.hash = sha256(&last.value);
    }
    head.chained_from = head.id + 1;
    Ok(head)
}

/// Which entries are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'query> {
    /// Only entries after this number, the oldest first.
    pub after: Option<u64>,
    /// Only entries from this time on, in milliseconds since 1970.
    pub since_unix_ms: Option<u64>,
    /// Only entries of this caller.
    pub by: Option<&'query str>,
    /// The most entries.
    pub limit: usize,
}

impl Wanted<'_> {
    fn is_filtered(&self) -> bool {
        self.since_unix_ms.is_some() || self.by.is_some()
    }

    fn is_recent(&self, entry: &AccessEntry) -> bool {
        self.since_unix_ms.is_none_or(|since| entry.at_unix_ms >= since)
    }

    fn is_meant(&self, entry: &AccessEntry) -> bool {
        self.is_recent(entry) && self.by.is_none_or(|by| entry.by == by)
    }
}

/// Follows the chain over entries in their order.
struct Links<'log> {
    head: &'log AccessHeadRecord,
    /// The entry before the next one, as it is stored.
    last: Option<AccessLogHead>,
    entries: u64,
    unchained: u64,
    breaks: Vec<ChainBreak>,
}

impl<'log> Links<'log> {
    fn begin(head: &'log AccessHeadRecord, last: Option<AccessLogHead>) -> Self {
        Self { head, last, entries: 0, unchained: 0, breaks: Vec::new() }
    }

    fn broken(&mut self, id: u64, reason: String) {
        if self.breaks.len() < BREAKS_MAX {
            self.breaks.push(ChainBreak { id, reason });
        }
    }

    /// Compares an entry with the one before it. Returns it if it can be read.
    fn take(&mut self, stored: &Entry) -> Option<AccessEntry> {
        let Some(id) = number_of(&stored.key) else {
            self.broken(0, format!("the key {} is not one of an entry", stored.key.escape_ascii()));
            return None;
        };
        self.entries += 1;
        let before = self.last.replace(AccessLogHead { id, hash: sha256(&stored.value) });
        let read: AccessEntry = match serde_json::from_slice(&stored.value) {
            Ok(read) => read,
            Err(error) => {
                self.broken(id, format!("entry {id} cannot be read: {error}"));
                return None;
            }
        };
        if read.id != id {
            self.broken(id, format!("entry {id} has the number {} in it", read.id));
        } else if id < self.head.chained_from {
            self.unchained += 1;
        } else {
            match (&read.previous, before) {
                (None, _) => self.broken(
                    id,
                    format!("entry {id} is not in the chain: an earlier release, or somebody else, wrote it"),
                ),
                (Some(_), Some(before)) if before.id + 1 != id => {
                    let (from, to) = (before.id + 1, id - 1);
                    self.broken(from, format!("entries {from} to {to} are missing"));
                }
                (Some(previous), Some(before)) if *previous != before.hash => self.broken(
                    id,
                    format!(
                        "entry {id} does not continue entry {} as it is: one of them was changed",
                        before.id
                    ),
                ),
                (Some(_), _) => {}
            }
        }
        Some(read)
    }

    /// Compares the last entry with the head.
    fn end(&mut self) {
        let head = AccessLogHead { id: self.head.id, hash: self.head.hash.clone() };
        let last = self.last.as_ref().map_or(0, |last| last.id);
        if last < head.id {
            let from = (last + 1).max(self.head.first);
            self.broken(from, format!("entries {from} to {} are missing at the end", head.id));
        } else if last > head.id {
            self.broken(head.id + 1, format!("the head does not know the entries after {}", head.id));
        } else if self.last.as_ref().is_some_and(|last| *last != head) {
            self.broken(last, format!("entry {last} is not the one that the head names"));
        }
    }
}
