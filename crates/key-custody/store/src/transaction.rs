//! Transactions and their outcomes.

use std::collections::HashSet;
use std::fmt;

use crate::entry::{LeaseId, Revision};
use crate::error::StoreError;
use crate::limits::{KEY_MAX_BYTES, TRANSACTION_MAX_BYTES, TRANSACTION_MAX_ITEMS, VALUE_MAX_BYTES};

/// Conditions, all of which must hold, and the operations that are then applied in one revision.
///
/// Without operations it only checks its conditions, and makes no revision. Each key may be put or
/// deleted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// The conditions.
    pub conditions: Vec<Condition>,
    /// The changes if the conditions hold.
    pub operations: Vec<Operation>,
}

/// A condition on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The key.
    pub key: Vec<u8>,
    /// The key's required state.
    pub is: Is,
}

/// A state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// The key does not exist.
    Absent,
    /// The key exists, with any value.
    Present,
    /// Last written by this revision.
    ModifiedAt(Revision),
    /// Written this often since it was made.
    Version(u64),
}

/// One change of a transaction.
#[derive(Clone, PartialEq, Eq)]
pub enum Operation {
    /// Gives a key a value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// Its value from now on.
        value: Vec<u8>,
        /// The lease that it vanishes with. It replaces the lease of an earlier put.
        lease: Option<LeaseId>,
    },
    /// Removes a key, if it is there.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
}

/// The outcome of a judged transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its conditions held, and it is durable. The revision is its own; the store's latest if it
    /// changed nothing.
    Committed(Revision),
    /// A condition did not hold. Nothing was changed.
    Conflict(Conflict),
}

/// The first condition that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// Its place among the transaction's conditions, from 0.
    pub condition: usize,
    /// Which revision had written its key last; `None` if it was absent.
    pub found: Option<Revision>,
}

impl Transaction {
    /// An empty transaction.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    #[must_use]
    pub fn when(mut self, key: impl Into<Vec<u8>>, is: Is) -> Self {
        self.conditions.push(Condition { key: key.into(), is });
        self
    }

    /// Adds a put.
    #[must_use]
    pub fn put(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        self.operations.push(Operation::Put { key: key.into(), value: value.into(), lease: None });
        self
    }

    /// Adds a put that vanishes with a lease.
    #[must_use]
    pub fn put_leased(mut self, key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>, lease: LeaseId) -> Self {
        self.operations.push(Operation::Put { key: key.into(), value: value.into(), lease: Some(lease) });
        self
    }

    /// Adds a deletion.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Vec<u8>>) -> Self {
        self.operations.push(Operation::Delete { key: key.into() });
        self
    }

    /// Bytes of all its keys and values.
    pub fn size_bytes(&self) -> usize {
        let conditions = self.conditions.iter().map(|condition| condition.key.len());
        let operations = self.operations.iter().map(Operation::size_bytes);
        conditions.chain(operations).sum()
    }

    /// Whether a store may take it.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`] beyond one of the [limits](crate::limits),
    /// [`StoreError::RepeatedKey`] if a key is put or deleted twice.
    pub fn check(&self) -> Result<(), StoreError> {
        within("conditions in a transaction", self.conditions.len(), TRANSACTION_MAX_ITEMS)?;
        within("operations in a transaction", self.operations.len(), TRANSACTION_MAX_ITEMS)?;
        within("bytes of keys and values in a transaction", self.size_bytes(), TRANSACTION_MAX_BYTES)?;
        for condition in &self.conditions {
            within("bytes in a key", condition.key.len(), KEY_MAX_BYTES)?;
        }
        let mut keys = HashSet::with_capacity(self.operations.len());
        for operation in &self.operations {
            within("bytes in a key", operation.key().len(), KEY_MAX_BYTES)?;
            if let Operation::Put { value, .. } = operation {
                within("bytes in a value", value.len(), VALUE_MAX_BYTES)?;
            }
            if !keys.insert(operation.key()) {
                return Err(StoreError::RepeatedKey { key: operation.key().escape_ascii().to_string() });
            }
        }
        Ok(())
    }
}

impl Operation {
    /// The key that it changes.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Put { key, .. } | Self::Delete { key } => key,
        }
    }

    fn size_bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete { key } => key.len(),
        }
    }
}

impl fmt::Debug for Operation {
    /// Without the value.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Put { key, value, lease } => formatter
                .debug_struct("Put")
                .field("key", &key.escape_ascii().to_string())
                .field("value_bytes", &value.len())
                .field("lease", lease)
                .finish(),
            Self::Delete { key } => {
                formatter.debug_struct("Delete").field("key", &key.escape_ascii().to_string()).finish()
            }
        }
    }
}

impl Outcome {
    /// The revision, for callers that treat a conflict as an error.
    ///
    /// # Errors
    /// The condition that did not hold.
    pub fn committed(self) -> Result<Revision, Conflict> {
        match self {
            Self::Committed(revision) => Ok(revision),
            Self::Conflict(conflict) => Err(conflict),
        }
    }
}

fn within(what: &'static str, asked: usize, most: usize) -> Result<(), StoreError> {
    if asked > most { Err(StoreError::TooLarge { what, asked, most }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_at_the_limits_passes_and_one_beyond_does_not() {
        let key = vec![b'k'; KEY_MAX_BYTES];
        let value = vec![0; VALUE_MAX_BYTES];
        assert!(Transaction::new().put(key.clone(), value.clone()).check().is_ok());
        let too_long = Transaction::new().delete([key.as_slice(), b"k"].concat());
        assert!(matches!(too_long.check(), Err(StoreError::TooLarge { asked: 1025, .. })));
        let too_much = Transaction::new().put("a", [value.as_slice(), b"v"].concat());
        assert!(matches!(too_much.check(), Err(StoreError::TooLarge { what: "bytes in a value", .. })));
        let in_all = Transaction::new().put("a", value.clone()).put("b", value.clone());
        assert!(matches!(in_all.check(), Err(StoreError::TooLarge { most: TRANSACTION_MAX_BYTES, .. })));
        let many =
            (0..=TRANSACTION_MAX_ITEMS).fold(Transaction::new(), |all, n| all.put(format!("{n}"), "v"));
        assert!(matches!(many.check(), Err(StoreError::TooLarge { asked: 129, .. })));
    }

    #[test]
    fn a_key_is_changed_once() {
        let twice = Transaction::new().put("k", "v").delete("k");
        assert_eq!(twice.check(), Err(StoreError::RepeatedKey { key: "k".into() }));
        assert!(Transaction::new().when("k", Is::Absent).put("k", "v").check().is_ok());
    }

    #[test]
    fn no_value_is_printed() {
        let printed = format!("{:?}", Transaction::new().put("name", "v-a-l-u-e"));
        assert!(printed.contains("name") && !printed.contains("v-a-l-u-e"), "{printed}");
    }
}
