//! The server that a restore replaces: its facts that are newer than the backup, and those specific
//! to this machine.

use std::sync::Arc;

use strongroom_memory::secret::SecretBytes;
use strongroom_store::{KeyRange, Operation, Snapshot, Store};
use time::OffsetDateTime;

use super::AUDIT_PREFIX;
use crate::authority::transfer as authority;
use crate::backup::Failure;
use crate::grant::{holding, ledger as grants};
use crate::management::custody;
use crate::objects::clock::SystemClock;
use crate::objects::destruction::{self, Waiting};
use crate::objects::id::ObjectId;
use crate::objects::keeping::{KeepingError, Objects};
use crate::objects::sealing::{RecordKind, SealingError};
use crate::objects::transfer::PlainRecord;

/// A store and the objects in it.
pub(super) struct Place {
    pub store: Arc<dyn Store>,
    pub objects: Objects,
}

impl Place {
    pub fn new(store: Arc<dyn Store>, objects_key: &SecretBytes) -> Result<Self, SealingError> {
        let objects = Objects::new(Arc::clone(&store), objects_key, Arc::new(SystemClock))?;
        Ok(Self { store, objects })
    }

    /// The record of `id`, if it exists and can be read: a damaged one may be the reason for the
    /// restore.
    pub fn readable(&self, id: ObjectId) -> Result<Option<PlainRecord>, KeepingError> {
        match self.objects.plain(id) {
            Err(error @ (KeepingError::Store(_) | KeepingError::Secret(_))) => Err(error),
            Err(damaged) => {
                tracing::warn!(%id, %damaged, "the present server's record is not regarded");
                Ok(None)
            }
            found => found,
        }
    }

    fn is_alive(&self, id: ObjectId) -> Result<bool, KeepingError> {
        Ok(self.readable(id)?.is_some_and(|record| record.kind == RecordKind::Object))
    }

    /// The operations on this store, in which a backup is staged, that keep the necessary facts of
    /// `present`.
    pub fn keep_of(&self, present: &Self, now: OffsetDateTime) -> Result<Vec<Operation>, Failure> {
        let (staged, before) = (self.store.snapshot()?, present.store.snapshot()?);
        let mut operations = vec![grants::restored_at(now)];
        for entry in before.all(&KeyRange::prefix(AUDIT_PREFIX))? {
            operations.push(Operation::Put { key: entry.key, value: entry.value, lease: None });
        }
        operations.extend(later_generations(staged.as_ref(), before.as_ref())?);
        operations.extend(authority::newer(staged.as_ref(), before.as_ref())?);
        operations.extend(self.destructions(present, staged.as_ref(), before.as_ref())?);
        Ok(operations)
    }

    /// Pending destructions: the present server's for every object that it has, the backup's for
    /// the others.
    fn destructions(
        &self,
        present: &Self,
        staged: &dyn Snapshot,
        before: &dyn Snapshot,
    ) -> Result<Vec<Operation>, Failure> {
        let range = KeyRange::prefix(destruction::PREFIX);
        let mut operations = Vec::new();
        for entry in staged.all(&range)? {
            let id = destruction_of(&entry.key)?;
            let is_waiting_now = before.get(&entry.key)?.is_some();
            if !self.is_alive(id)? || (present.is_alive(id)? && !is_waiting_now) {
                operations.push(Operation::Delete { key: entry.key });
            }
        }
        for entry in before.all(&range)? {
            if self.is_alive(destruction_of(&entry.key)?)? {
                operations.push(Operation::Put { key: entry.key, value: entry.value, lease: None });
            }
        }
        Ok(operations)
    }
}

/// A destruction from a backup, without its confirmation: it may have been cancelled since, so a
/// second person must confirm it again.
pub(super) fn unconfirmed(value: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
    let waiting: Waiting = serde_json::from_slice(value)?;
    serde_json::to_vec(&Waiting { confirmed_by: None, ..waiting })
}

fn destruction_of(key: &[u8]) -> Result<ObjectId, Failure> {
    let id = key.strip_prefix(destruction::PREFIX).and_then(|id| id.try_into().ok());
    let id = id.ok_or_else(|| format!("{} is no destruction of an object", key.escape_ascii()))?;
    Ok(ObjectId::from_bytes(id))
}

/// The higher generation of each VM and holding that both have, and those that only the present
/// server has. Also the present server's bindings of keys to VMs, and the custodians that two
/// administrators agreed on.
fn later_generations(staged: &dyn Snapshot, before: &dyn Snapshot) -> Result<Vec<Operation>, Failure> {
    let mut operations = Vec::new();
    let both = [grants::VM, holding::HELD].map(|prefix| before.all(&KeyRange::prefix(prefix)));
    for entry in both.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        let value = match staged.get(&entry.key)? {
            Some(restored) => grants::later_generation(&entry.key, &entry.value, &restored.value)?.to_vec(),
            None => entry.value,
        };
        operations.push(Operation::Put { key: entry.key, value, lease: None });
    }
    for entry in before.all(&KeyRange::prefix(grants::prepared::PREPARED))? {
        let value = match staged.get(&entry.key)? {
            Some(restored) => grants::prepared::later_prepared(&entry.key, &entry.value, &restored.value)?,
            None => entry.value,
        };
        operations.push(Operation::Put { key: entry.key, value, lease: None });
    }
    let kept = [grants::KEY, custody::APPROVED].map(|prefix| before.all(&KeyRange::prefix(prefix)));
    for entry in kept.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
        operations.push(Operation::Put { key: entry.key, value: entry.value, lease: None });
    }
    Ok(operations)
}
