//! Applies one transaction: its conditions are judged against all transactions before it, including
//! those of its own group.

use std::time::Duration;

use redb::ReadableTable;

use crate::entry::{LeaseId, Revision};
use crate::error::StoreError;
use crate::limits::HISTORY_MAX_REVISIONS;
use crate::store::Change;
use crate::transaction::{Condition, Conflict, Is, Operation, Outcome, Transaction};

use super::tables::{self, Changes, Header, META_LEASE, META_REVISION, Tables};

/// Why a transaction was not applied.
pub(super) enum Rejected {
    /// The transaction itself is at fault.
    Transaction(StoreError),
    /// The engine failed: nothing of the group may be committed.
    Engine(redb::Error),
}

impl<E: Into<redb::Error>> From<E> for Rejected {
    fn from(error: E) -> Self {
        Self::Engine(error.into())
    }
}

impl Tables<'_> {
    /// Judges a transaction and applies it. After a [`Rejected::Transaction`] nothing has changed.
    pub(super) fn judge(&mut self, transaction: &Transaction) -> Result<Outcome, Rejected> {
        for (index, condition) in transaction.conditions.iter().enumerate() {
            let found = self.header(&condition.key)?;
            if !holds(condition, found) {
                let found = found.map(|header| header.mod_revision);
                return Ok(Outcome::Conflict(Conflict { condition: index, found }));
            }
        }
        for operation in &transaction.operations {
            if let Operation::Put { lease: Some(lease), .. } = operation
                && self.leases.get(lease.0)?.is_none()
            {
                return Err(Rejected::Transaction(StoreError::UnknownLease { lease: *lease }));
            }
        }
        let revision = self.revision.next();
        let mut changes = Changes::default();
        for operation in &transaction.operations {
            match operation {
                Operation::Put { key, value, lease } => {
                    self.put(revision, key, value, *lease)?;
                    changes.push(Change::Put, key)?;
                }
                Operation::Delete { key } => {
                    if self.delete(key)? {
                        changes.push(Change::Delete, key)?;
                    }
                }
            }
        }
        self.record(revision, &changes)?;
        Ok(Outcome::Committed(self.revision))
    }

    /// Makes a lease.
    pub(super) fn grant(&mut self, ttl: Duration) -> Result<LeaseId, redb::Error> {
        let lease = LeaseId(tables::number(&self.meta, META_LEASE)? + 1);
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.leases.insert(lease.0, ttl_ms)?;
        self.meta.insert(META_LEASE, lease.0)?;
        Ok(lease)
    }

    /// Ends a lease and deletes its keys in one revision. Returns whether the lease existed.
    pub(super) fn end_lease(&mut self, lease: LeaseId) -> Result<bool, redb::Error> {
        if self.leases.remove(lease.0)?.is_none() {
            return Ok(false);
        }
        let mut keys = Vec::new();
        for row in self.leased.range::<(u64, &[u8])>((lease.0, [].as_slice())..)? {
            let (row, _) = row?;
            let (of, key) = row.value();
            if of != lease.0 {
                break;
            }
            keys.push(key.to_vec());
        }
        let revision = self.revision.next();
        let mut changes = Changes::default();
        for key in keys {
            if self.delete(&key)? {
                changes.push(Change::Delete, &key)?;
            }
        }
        self.record(revision, &changes)?;
        Ok(true)
    }

    /// Writes down the revision, before the group is committed.
    pub(super) fn seal(mut self) -> Result<(), redb::Error> {
        self.meta.insert(META_REVISION, self.revision.0)?;
        Ok(())
    }

    fn header(&self, key: &[u8]) -> Result<Option<Header>, redb::Error> {
        let row = self.entries.get(key)?;
        row.map(|row| Header::split(row.value()).map(|(header, _)| header)).transpose()
    }

    fn put(
        &mut self,
        revision: Revision,
        key: &[u8],
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<(), redb::Error> {
        let before = self.header(key)?;
        let header = Header {
            create_revision: before.map_or(revision, |before| before.create_revision),
            mod_revision: revision,
            version: before.map_or(0, |before| before.version) + 1,
            lease,
        };
        self.entries.insert(key, header.join(value).as_slice())?;
        let lease_before = before.and_then(|before| before.lease);
        if lease_before != lease {
            if let Some(lease) = lease_before {
                self.leased.remove((lease.0, key))?;
            }
            if let Some(lease) = lease {
                self.leased.insert((lease.0, key), ())?;
            }
        }
        Ok(())
    }

    /// Deletes a key. Returns whether it existed.
    fn delete(&mut self, key: &[u8]) -> Result<bool, redb::Error> {
        let Some(header) = self.header(key)? else { return Ok(false) };
        self.entries.remove(key)?;
        if let Some(lease) = header.lease {
            self.leased.remove((lease.0, key))?;
        }
        Ok(true)
    }

    /// Records the changes, if any, as a revision, and drops the oldest one.
    fn record(&mut self, revision: Revision, changes: &Changes) -> Result<(), redb::Error> {
        if changes.is_empty() {
            return Ok(());
        }
        self.history.insert(revision.0, changes.as_bytes())?;
        if let Some(forgotten) = revision.0.checked_sub(HISTORY_MAX_REVISIONS) {
            self.history.remove(forgotten)?;
        }
        self.revision = revision;
        Ok(())
    }
}

fn holds(condition: &Condition, found: Option<Header>) -> bool {
    match (condition.is, found) {
        (Is::Absent, found) => found.is_none(),
        (Is::Present, found) => found.is_some(),
        (Is::ModifiedAt(revision), found) => found.is_some_and(|header| header.mod_revision == revision),
        (Is::Version(version), found) => found.is_some_and(|header| header.version == version),
    }
}
