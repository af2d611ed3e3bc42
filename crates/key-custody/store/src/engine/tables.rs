//! The format in redb, byte by byte. All integers are little-endian.
//!
//! | table | key | value |
//! |---|---|---|
//! | `meta` | name | u64: `format`, `revision` (the latest), `lease` (the last id given) |
//! | `entries` | the key | u64 create revision, u64 mod revision, u64 version, u64 lease or 0, then the value |
//! | `history` | u64 revision | of each change: u8 kind (0 put, 1 delete), u16 length of the key, the key |
//! | `leases` | u64 id | u64 life in milliseconds |
//! | `leased` | u64 lease, key | nothing |

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use redb::{
    Builder, Database, DatabaseError, ReadableTable, StorageError, Table, TableDefinition, WriteTransaction,
};

use crate::entry::{Entry, LeaseId, Revision};
use crate::error::StoreError;
use crate::store::{Change, Event};

use super::CACHE_BYTES;
use super::medium::Medium;

/// The format that this program writes and knows.
const FORMAT: u64 = 1;

pub(super) const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");
pub(super) const ENTRIES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("entries");
pub(super) const HISTORY: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("history");
pub(super) const LEASES: TableDefinition<'_, u64, u64> = TableDefinition::new("leases");
pub(super) const LEASED: TableDefinition<'_, (u64, &[u8]), ()> = TableDefinition::new("leased");

pub(super) const META_REVISION: &str = "revision";
pub(super) const META_LEASE: &str = "lease";
const META_FORMAT: &str = "format";

const ENTRY_HEADER_BYTES: usize = 32;

/// A verified database, and the facts that the engine needs from it.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) revision: Revision,
    pub(super) leases: Vec<(LeaseId, Duration)>,
}

/// Opens the database on a medium, or creates it if the medium is empty.
pub(super) fn open(medium: &Medium, name: &Arc<str>) -> Result<Opened, StoreError> {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES).set_check_integrity_on_open(true);
    let database = builder.create_with_backend(medium.clone()).map_err(|error| refusal(error, name))?;
    let opened = begin(&database).map_err(|error| refusal_of_content(error, name))?;
    let (format, revision, leases) = opened;
    if format != FORMAT {
        return Err(StoreError::UnknownFormat { store: Arc::clone(name), found: format, known: FORMAT });
    }
    Ok(Opened { database, revision, leases })
}

type Begun = (u64, Revision, Vec<(LeaseId, Duration)>);

/// Reads the engine's facts; creates the tables first in an empty database.
fn begin(database: &Database) -> Result<Begun, redb::Error> {
    let transaction = durable(database)?;
    if transaction.list_tables()?.next().is_none() {
        {
            let mut tables = Tables::open(&transaction)?;
            tables.meta.insert(META_FORMAT, FORMAT)?;
            tables.meta.insert(META_REVISION, 0)?;
            tables.meta.insert(META_LEASE, 0)?;
        }
        transaction.commit()?;
        return Ok((FORMAT, Revision::ZERO, Vec::new()));
    }
    let begun = {
        let meta = transaction.open_table(META)?;
        let format = number(&meta, META_FORMAT)?;
        if format == FORMAT {
            let tables = Tables::open_rest(&transaction, meta)?;
            (format, tables.revision, tables.all_leases()?)
        } else {
            (format, Revision::ZERO, Vec::new())
        }
    };
    transaction.abort()?;
    Ok(begun)
}

/// A transaction whose commit is durable when it returns, in two phases. Why two: see [the
/// engine](super).
pub(super) fn durable(database: &Database) -> Result<WriteTransaction, redb::Error> {
    // Its durability is redb's `Immediate` from the outset.
    let mut transaction = database.begin_write()?;
    transaction.set_two_phase_commit(true);
    Ok(transaction)
}

/// All tables of a transaction, and the revision that it is at.
pub(super) struct Tables<'txn> {
    pub(super) meta: Table<'txn, &'static str, u64>,
    pub(super) entries: Table<'txn, &'static [u8], &'static [u8]>,
    pub(super) history: Table<'txn, u64, &'static [u8]>,
    pub(super) leases: Table<'txn, u64, u64>,
    pub(super) leased: Table<'txn, (u64, &'static [u8]), ()>,
    pub(super) revision: Revision,
}

impl<'txn> Tables<'txn> {
    pub(super) fn open(transaction: &'txn WriteTransaction) -> Result<Self, redb::Error> {
        let meta = transaction.open_table(META)?;
        Self::open_rest(transaction, meta)
    }

    fn open_rest(
        transaction: &'txn WriteTransaction,
        meta: Table<'txn, &'static str, u64>,
    ) -> Result<Self, redb::Error> {
        let revision = Revision(number(&meta, META_REVISION)?);
        Ok(Self {
            meta,
            entries: transaction.open_table(ENTRIES)?,
            history: transaction.open_table(HISTORY)?,
            leases: transaction.open_table(LEASES)?,
            leased: transaction.open_table(LEASED)?,
            revision,
        })
    }

    fn all_leases(&self) -> Result<Vec<(LeaseId, Duration)>, redb::Error> {
        let mut leases = Vec::new();
        for row in self.leases.iter()? {
            let (id, ttl) = row?;
            leases.push((LeaseId(id.value()), Duration::from_millis(ttl.value())));
        }
        Ok(leases)
    }
}

/// A number of `meta`; 0 if it is not there.
pub(super) fn number(meta: &impl ReadableTable<&'static str, u64>, name: &str) -> Result<u64, redb::Error> {
    Ok(meta.get(name)?.map_or(0, |number| number.value()))
}

/// An entry's row without its value, as conditions need it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) create_revision: Revision,
    pub(super) mod_revision: Revision,
    pub(super) version: u64,
    pub(super) lease: Option<LeaseId>,
}

impl Header {
    /// Splits a row. A row that is too short was not written by this program.
    pub(super) fn split(row: &[u8]) -> Result<(Self, &[u8]), redb::Error> {
        let Some((header, value)) = row.split_first_chunk::<ENTRY_HEADER_BYTES>() else {
            return Err(damaged("an entry is shorter than its header"));
        };
        let (words, _) = header.as_chunks::<8>();
        let [create, modified, version, lease] =
            [words[0], words[1], words[2], words[3]].map(u64::from_le_bytes);
        let header = Self {
            create_revision: Revision(create),
            mod_revision: Revision(modified),
            version,
            lease: (lease != 0).then_some(LeaseId(lease)),
        };
        Ok((header, value))
    }

    /// Its row with a value.
    pub(super) fn join(&self, value: &[u8]) -> Vec<u8> {
        let mut row = Vec::with_capacity(ENTRY_HEADER_BYTES + value.len());
        let lease = self.lease.map_or(0, |lease| lease.0);
        for word in [self.create_revision.0, self.mod_revision.0, self.version, lease] {
            row.extend_from_slice(&word.to_le_bytes());
        }
        row.extend_from_slice(value);
        row
    }
}

/// The entry of a key and its row.
pub(super) fn entry(key: &[u8], row: &[u8]) -> Result<Entry, redb::Error> {
    let (header, value) = Header::split(row)?;
    Ok(Entry {
        key: key.to_vec(),
        value: value.to_vec(),
        create_revision: header.create_revision,
        mod_revision: header.mod_revision,
        version: header.version,
        lease: header.lease,
    })
}

/// The changes of one revision as `history` has them.
#[derive(Debug, Default)]
pub(super) struct Changes(Vec<u8>);

impl Changes {
    pub(super) fn push(&mut self, change: Change, key: &[u8]) -> Result<(), redb::Error> {
        let length = u16::try_from(key.len()).map_err(|_| damaged("a key is longer than keys may be"))?;
        self.0.push(match change {
            Change::Put => 0,
            Change::Delete => 1,
        });
        self.0.extend_from_slice(&length.to_le_bytes());
        self.0.extend_from_slice(key);
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The events in a row of `history`.
    pub(super) fn events(revision: Revision, mut row: &[u8]) -> Result<Vec<Event>, redb::Error> {
        let mut events = Vec::new();
        while let Some(([kind, low, high], rest)) = row.split_first_chunk::<3>() {
            let length = usize::from(u16::from_le_bytes([*low, *high]));
            let change = match kind {
                0 => Change::Put,
                1 => Change::Delete,
                _ => return Err(damaged("a change of unknown kind")),
            };
            let (key, after) =
                rest.split_at_checked(length).ok_or_else(|| damaged("a change that breaks off"))?;
            events.push(Event { revision, key: key.to_vec(), change });
            row = after;
        }
        if row.is_empty() { Ok(events) } else { Err(damaged("a change that breaks off")) }
    }
}

fn damaged(what: &str) -> redb::Error {
    redb::Error::Corrupted(what.to_owned())
}

fn refusal(error: DatabaseError, name: &Arc<str>) -> StoreError {
    match error {
        DatabaseError::DatabaseAlreadyOpen | DatabaseError::LockProtocolMismatch => {
            StoreError::InUse { store: Arc::clone(name) }
        }
        DatabaseError::Storage(StorageError::Corrupted(reason)) => {
            StoreError::Damaged { store: Arc::clone(name), reason: reason.into() }
        }
        // Redb's words for another file's first bytes, and for a file that ends too soon.
        DatabaseError::Storage(StorageError::Io(error))
            if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) =>
        {
            StoreError::Damaged { store: Arc::clone(name), reason: error.to_string().into() }
        }
        other => cannot_open(name, &other.to_string()),
    }
}

/// The error for a database that verifies but does not hold this program's format.
fn refusal_of_content(error: redb::Error, name: &Arc<str>) -> StoreError {
    match error {
        redb::Error::Io(_) | redb::Error::PreviousIo => cannot_open(name, &error.to_string()),
        other => StoreError::Damaged { store: Arc::clone(name), reason: other.to_string().into() },
    }
}

fn cannot_open(name: &Arc<str>, reason: &str) -> StoreError {
    StoreError::Open { store: Arc::clone(name), doing: "opened", reason: reason.into() }
}
