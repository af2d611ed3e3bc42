//! Entries, revisions and lease ids.

use std::fmt;

/// A place in the one order of all transactions. The empty store is at 0; each transaction that
/// changes something makes the next one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(pub u64);

impl Revision {
    /// The revision before the first transaction.
    pub const ZERO: Self = Self(0);

    /// The one after this.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A lease of a store; never 0, never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// A key with its value and metadata, at one revision.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// The transaction that created it.
    pub create_revision: Revision,
    /// The transaction that wrote it last.
    pub mod_revision: Revision,
    /// The number of writes since it was created, including that one: at least 1.
    pub version: u64,
    /// The lease that it vanishes with.
    pub lease: Option<LeaseId>,
}

impl fmt::Debug for Entry {
    /// Omits the value, which may be long and private.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Entry")
            .field("key", &self.key.escape_ascii().to_string())
            .field("value_bytes", &self.value.len())
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .field("lease", &self.lease)
            .finish()
    }
}
