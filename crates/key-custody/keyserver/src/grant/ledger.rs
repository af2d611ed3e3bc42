//! The ledger of used grants and of VMs' generations. The server updates it durably before it
//! releases anything under a grant.
//!
//! | key in the store | value |
//! |---|---|
//! | `grant/used/` expires (8 bytes) id (16 bytes) | empty |
//! | `grant/vm/` VM (16 bytes) | highest generation redeemed or fenced (8 bytes) |
//! | `grant/prepared/` VM (16 bytes) | the generation that is prepared last, and the one up to which such are void (8 bytes each) |
//! | `grant/key/` object, as grants name it | the VM that it was made for (16 bytes) |
//! | `grant/forgotten` | seconds since 1970 (8 bytes): used grants that expired before are forgotten |
//! | `grant/restored` | seconds since 1970 (8 bytes): of a restored server; grants valid then or before are refused |
//!
//! All numbers are big-endian, so used grants sort by expiry, and forgetting them deletes a range.
//! A used grant is remembered until it has expired for every clock within the skew. Forgotten
//! grants are refused forever by `grant/forgotten`, so that a server whose clock is set back
//! accepts no old grant again.
//!
//! A key that was made for a VM is granted only to that VM: an attacker who copies the VM's sealed
//! volumes into another VM's directory cannot open them with that VM's grants. A key that a person
//! chose belongs to no VM, and may seal several.
//!
//! While a VM moves to another host, its next generation is *prepared*: grants for it are redeemed
//! beside those of the generation that runs, which stays the highest one. It becomes the highest
//! when the move is committed ([`raise_generation`]), or void when it is given up
//! ([`void_prepared`]). Only the last one that was prepared is valid.
//!
//! A restored server does not know which grants were used since its backup. So it refuses all that
//! could have been, up to the time in `grant/restored`.

use strongroom_store::{Is, KeyRange, Operation, Outcome, Snapshot, Store, StoreError, Transaction};
use time::OffsetDateTime;

use super::refusal::Refusal;
use super::verify::{CLOCK_SKEW_SECONDS, VerifiedGrant};
use super::{GrantTime, VmGeneration, VmId, holding};
use prepared::Prepared;

pub(crate) mod prepared;

const USED: &[u8] = b"grant/used/";
pub(crate) const VM: &[u8] = b"grant/vm/";
pub(crate) const KEY: &[u8] = b"grant/key/";
const FORGOTTEN: &[u8] = b"grant/forgotten";
const RESTORED: &[u8] = b"grant/restored";
/// The prefix of all records of the ledger.
pub(crate) const PREFIX: &[u8] = b"grant/";

/// How often a redemption is retried after a conflict with another of the same VM. Each conflict
/// means that another grant was redeemed, and a VM has few at a time.
const REDEEM_ATTEMPTS: usize = 16;
/// Used grants deleted in one transaction; within the store's limit of operations.
const FORGET_PER_TRANSACTION: usize = 100;

/// Why a grant was not redeemed.
#[derive(Debug, thiserror::Error)]
pub enum RedeemError {
    /// It may not be used.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The store failed. If the store's outcome is uncertain, the grant may be used; the host asks
    /// for another.
    #[error("the use of the grant could not be written down, so nothing is released: {0}")]
    Store(#[from] StoreError),
    /// Every attempt conflicted with another redemption of the same VM.
    #[error("too many grants of one VM at a time; try again with the same grant")]
    Contended,
    /// A value in the ledger is not a number.
    #[error("the ledger of grants is damaged at {key}")]
    Damaged {
        /// The key, escaped.
        key: String,
    },
}

/// The transaction that redeems a grant, based on `snapshot`: its conditions hold while the grant
/// is unused and its VM has not moved on. After a conflict, call again. Afterwards the host may
/// keep reading metadata: [`holding`].
///
/// # Errors
/// [`Refusal::Replayed`], [`Refusal::Superseded`], [`Refusal::BeforeRestore`],
/// [`Refusal::OtherVm`], [`Refusal::Expired`] if it is so old that it may be forgotten;
/// [`RedeemError::Store`], [`RedeemError::Damaged`].
pub fn redemption(snapshot: &dyn Snapshot, verified: &VerifiedGrant) -> Result<Transaction, RedeemError> {
    let grant = verified.grant();
    let (expires, generation) = (grant.expires(), grant.generation());
    let (restored, _) = number(snapshot, RESTORED)?;
    if let Some(restored) = restored.filter(|restored| grant.not_before().0 <= *restored) {
        return Err(Refusal::BeforeRestore { restored: GrantTime(restored) }.into());
    }
    let used_key = [USED, &expires.0.to_be_bytes(), grant.id().as_bytes()].concat();
    if snapshot.get(&used_key)?.is_some() {
        return Err(Refusal::Replayed.into());
    }
    let (forgotten, forgotten_is) = number(snapshot, FORGOTTEN)?;
    if expires.0 < forgotten.unwrap_or(0) {
        return Err(Refusal::Expired { expires }.into());
    }
    let vm_key = vm_key(grant.vm());
    let (highest, vm_is) = number(snapshot, &vm_key)?;
    let highest = highest.map(VmGeneration);
    if let Some(highest) = highest.filter(|highest| *highest > generation) {
        return Err(Refusal::Superseded { granted: generation, highest }.into());
    }
    let (prepared, prepared_is) = Prepared::read(snapshot, grant.vm())?;
    // One that was committed meanwhile is valid as any other.
    let is_prepared = grant.is_for_prepared() && highest != Some(generation);
    if highest != Some(generation) {
        prepared.check(generation, is_prepared)?;
    }
    let mut transaction = Transaction::new()
        .when(used_key.clone(), Is::Absent)
        .when(FORGOTTEN, forgotten_is)
        .when(vm_key.clone(), vm_is)
        .when(Prepared::key(grant.vm()), prepared_is)
        .put(used_key, []);
    if is_prepared {
        transaction = prepared.and_prepared(generation).put_into(transaction, grant.vm());
    } else if highest != Some(generation) {
        transaction = transaction.put(vm_key, generation.0.to_be_bytes());
    }
    for object in grant.objects() {
        let key = key_key(object);
        let of = snapshot.get(&key)?;
        if of.as_ref().is_some_and(|of| of.value != grant.vm().as_bytes()) {
            return Err(Refusal::OtherVm.into());
        }
        transaction = transaction.when(key, of.map_or(Is::Absent, |of| Is::ModifiedAt(of.mod_revision)));
    }
    transaction.operations.extend(holding::begun_by(snapshot, verified)?);
    Ok(transaction)
}

/// Redeems `grant` in a transaction of its own: when the future completes, its use is durable.
///
/// # Errors
/// As [`redemption`], and [`RedeemError::Contended`].
pub async fn redeem(store: &dyn Store, grant: &VerifiedGrant) -> Result<(), RedeemError> {
    for _ in 0..REDEEM_ATTEMPTS {
        let redemption = redemption(store.snapshot()?.as_ref(), grant)?;
        if let Outcome::Committed(_) = store.submit(redemption).await? {
            return Ok(());
        }
    }
    Err(RedeemError::Contended)
}

/// Moves a VM to `generation` without a grant: all grants below it, used or not, are then void, and
/// so are hosts' [holdings](super::holding) of it. Returns the VM's generation, which may be
/// higher. Blocks for a write to the device.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`], [`RedeemError::Contended`].
pub fn raise_generation(
    store: &dyn Store,
    vm: VmId,
    generation: VmGeneration,
) -> Result<VmGeneration, RedeemError> {
    let key = vm_key(vm);
    for _ in 0..REDEEM_ATTEMPTS {
        let (highest, is) = number(store.snapshot()?.as_ref(), &key)?;
        if let Some(highest) = highest.map(VmGeneration).filter(|highest| *highest >= generation) {
            return Ok(highest);
        }
        let raised = Transaction::new().when(key.clone(), is).put(key.clone(), generation.0.to_be_bytes());
        if let Outcome::Committed(_) = store.commit(raised)? {
            return Ok(generation);
        }
    }
    Err(RedeemError::Contended)
}

/// Makes a prepared generation void, and all before it that were only prepared: their grants are
/// refused, and hosts' [holdings](super::holding) of them end. The generation that runs is as it
/// was. May be repeated. Returns the highest generation, which is `generation` or later if the move
/// was committed; nothing is void then. Blocks for a write to the device.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`], [`RedeemError::Contended`].
pub fn void_prepared(
    store: &dyn Store,
    vm: VmId,
    generation: VmGeneration,
) -> Result<Option<VmGeneration>, RedeemError> {
    let vm_key = vm_key(vm);
    for _ in 0..REDEEM_ATTEMPTS {
        let snapshot = store.snapshot()?;
        let (highest, vm_is) = number(snapshot.as_ref(), &vm_key)?;
        let highest = highest.map(VmGeneration);
        let (prepared, prepared_is) = Prepared::read(snapshot.as_ref(), vm)?;
        let voided = prepared.without(generation);
        if highest.is_some_and(|highest| highest >= generation) || voided == prepared {
            return Ok(highest);
        }
        let transaction = Transaction::new().when(vm_key.clone(), vm_is).when(Prepared::key(vm), prepared_is);
        if let Outcome::Committed(_) = store.commit(voided.put_into(transaction, vm))? {
            return Ok(highest);
        }
    }
    Err(RedeemError::Contended)
}

/// Binds an object to a VM: no grant releases it for another VM from then on. An object that is
/// bound to another VM is only bound anew if that VM is named in `from`. Blocks for a write to the
/// device.
///
/// # Errors
/// [`Refusal::OtherVm`] if it is bound to any other VM; [`RedeemError::Store`],
/// [`RedeemError::Contended`].
pub fn bind(store: &dyn Store, object: &str, vm: VmId, from: Option<VmId>) -> Result<(), RedeemError> {
    let key = key_key(object);
    for _ in 0..REDEEM_ATTEMPTS {
        let is = match store.snapshot()?.get(&key)? {
            Some(of) if of.value == vm.as_bytes() => return Ok(()),
            Some(of) if from.is_some_and(|from| of.value == from.as_bytes()) => {
                Is::ModifiedAt(of.mod_revision)
            }
            Some(_) => return Err(Refusal::OtherVm.into()),
            None => Is::Absent,
        };
        let bound = Transaction::new().when(key.clone(), is).put(key.clone(), *vm.as_bytes());
        if let Outcome::Committed(_) = store.commit(bound)? {
            return Ok(());
        }
    }
    Err(RedeemError::Contended)
}

/// The VM that a key was made for, if it was made for one.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`].
pub fn vm_of(store: &dyn Store, object: &str) -> Result<Option<VmId>, RedeemError> {
    let key = key_key(object);
    let Some(entry) = store.snapshot()?.get(&key)? else { return Ok(None) };
    match entry.value.as_array() {
        Some(vm) => Ok(Some(VmId::from_bytes(*vm))),
        None => Err(RedeemError::Damaged { key: key.escape_ascii().to_string() }),
    }
}

/// The keys that were made for a VM, also those that it has left.
///
/// # Errors
/// [`RedeemError::Store`].
pub fn keys_of(store: &dyn Store, vm: VmId) -> Result<Vec<String>, RedeemError> {
    let entries = store.snapshot()?.all(&KeyRange::prefix(KEY))?;
    let of_vm = entries.iter().filter(|entry| entry.value == vm.as_bytes());
    let keys = of_vm.filter_map(|entry| std::str::from_utf8(entry.key.strip_prefix(KEY)?).ok());
    Ok(keys.map(str::to_owned).collect())
}

/// The highest redeemed or fenced generation of a VM, if any.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`].
pub fn highest_generation(store: &dyn Store, vm: VmId) -> Result<Option<VmGeneration>, RedeemError> {
    Ok(number(store.snapshot()?.as_ref(), &vm_key(vm))?.0.map(VmGeneration))
}

/// Deletes the used grants that have expired at `now` for every clock within the skew, and returns
/// their number. Call it from a timer; once a minute is enough.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`].
pub fn forget_expired(store: &dyn Store, now: OffsetDateTime) -> Result<usize, RedeemError> {
    let before = GrantTime::of(now).0.saturating_sub(CLOCK_SKEW_SECONDS);
    let range = KeyRange::between(USED, [USED, &before.to_be_bytes()[..]].concat());
    let mut forgotten_count = 0;
    loop {
        let snapshot = store.snapshot()?;
        let page = snapshot.range(&range, FORGET_PER_TRANSACTION)?;
        if page.entries.is_empty() {
            return Ok(forgotten_count);
        }
        let (forgotten, forgotten_is) = number(snapshot.as_ref(), FORGOTTEN)?;
        let mut transaction = Transaction::new().when(FORGOTTEN, forgotten_is);
        // The mark is written before or with the deletions, never after them.
        if forgotten.is_none_or(|forgotten| forgotten < before) {
            transaction = transaction.put(FORGOTTEN, before.to_be_bytes());
        }
        let count = page.entries.len();
        transaction = page.entries.into_iter().fold(transaction, |all, entry| all.delete(entry.key));
        if let Outcome::Committed(_) = store.commit(transaction)? {
            forgotten_count += count;
        }
    }
}

/// The mark of a restored server in place of lost uses of grants: grants that were valid at `now`,
/// by any clock within the skew, or earlier are refused.
pub(crate) fn restored_at(now: OffsetDateTime) -> Operation {
    let restored = GrantTime::of(now).0.saturating_add(CLOCK_SKEW_SECONDS);
    Operation::Put { key: RESTORED.to_vec(), value: restored.to_be_bytes().to_vec(), lease: None }
}

/// The later of two values under one key of VMs or holdings: generations never go back.
///
/// # Errors
/// [`RedeemError::Damaged`].
pub(crate) fn later_generation<'a>(
    key: &[u8],
    one: &'a [u8],
    other: &'a [u8],
) -> Result<&'a [u8], RedeemError> {
    let damaged = || RedeemError::Damaged { key: key.escape_ascii().to_string() };
    let generation =
        |value: &[u8]| value.as_array().map(|bytes| u64::from_be_bytes(*bytes)).ok_or_else(damaged);
    Ok(if generation(one)? >= generation(other)? { one } else { other })
}

pub(super) fn vm_key(vm: VmId) -> Vec<u8> {
    [VM, vm.as_bytes()].concat()
}

fn key_key(object: &str) -> Vec<u8> {
    [KEY, object.as_bytes()].concat()
}

/// The number under `key`, and the condition that it is unchanged.
pub(super) fn number(snapshot: &dyn Snapshot, key: &[u8]) -> Result<(Option<u64>, Is), RedeemError> {
    let Some(entry) = snapshot.get(key)? else {
        return Ok((None, Is::Absent));
    };
    match entry.value.as_array() {
        Some(bytes) => Ok((Some(u64::from_be_bytes(*bytes)), Is::ModifiedAt(entry.mod_revision))),
        None => Err(RedeemError::Damaged { key: key.escape_ascii().to_string() }),
    }
}

#[cfg(test)]
pub(super) mod tests;
