//! Holdings: a record of the keys that a host was granted, by which it may keep reading their
//! state.
//!
//! A grant is good for one request, but a host with a key must learn of its revocation within
//! seconds. So a redeemed grant that covers [`ReadMetadata`](super::GrantedOperation::ReadMetadata)
//! leaves a *holding*: the host may read the metadata of the grant's objects, never a key, until
//! - the VM moves to a higher generation, because any host redeemed another grant for it or the
//!   control plane raised it (`ledger::raise_generation`);
//! - the generation was only prepared for a move, which is given up (`ledger::void_prepared`); or
//! - the host or its certificate is revoked, because it can then make no requests.
//!
//! A holding belongs to the client, not to a certificate: it outlives a renewal.
//!
//! | key in the store | value |
//! |---|---|
//! | `grant/held/` client (16 bytes) SHA-256 of the object's identifier (32) VM (16) | generation (8 bytes, big-endian) |

use strongroom_crypto::mac::{DIGEST_BYTES, sha256};
use strongroom_store::{Is, KeyRange, Operation, Outcome, Snapshot, Store, Transaction};

use super::VmId;
use super::encoding::GrantedOperation;
use super::ledger::prepared::Prepared;
use super::ledger::{RedeemError, number, vm_key};
use super::verify::VerifiedGrant;
use crate::access::ClientId;

pub(crate) const HELD: &[u8] = b"grant/held/";
const ID_BYTES: usize = 16;
const KEY_BYTES: usize = HELD.len() + ID_BYTES + DIGEST_BYTES + ID_BYTES;

/// Holdings forgotten in one transaction, a condition and a deletion each; within the store's limit
/// of items.
const FORGET_PER_TRANSACTION: usize = 50;

/// The holdings that the redemption of `grant` adds, without those that exist already.
pub(super) fn begun_by(
    snapshot: &dyn Snapshot,
    grant: &VerifiedGrant,
) -> Result<Vec<Operation>, RedeemError> {
    let (host, grant) = (grant.host(), grant.grant());
    if !grant.operations().contain(GrantedOperation::ReadMetadata) {
        return Ok(Vec::new());
    }
    let value = grant.generation().0.to_be_bytes();
    let mut begun = Vec::new();
    for object in grant.objects() {
        let key = [&of_object(host, object), &grant.vm().as_bytes()[..]].concat();
        if snapshot.get(&key)?.is_none_or(|entry| entry.value != value) {
            begun.extend(Transaction::new().put(key, value).operations);
        }
    }
    Ok(begun)
}

/// Whether `host` may still read the metadata of `object`, for a VM that has not moved on since.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`].
pub fn is_held(snapshot: &dyn Snapshot, host: ClientId, object: &str) -> Result<bool, RedeemError> {
    for entry in snapshot.all(&KeyRange::prefix(of_object(host, object)))? {
        if is_current(snapshot, &entry.key, &entry.value)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes the holdings of VMs that have moved on, and returns their number. Call it from a timer;
/// once a minute is enough, because they are void before they are deleted.
///
/// # Errors
/// [`RedeemError::Store`], [`RedeemError::Damaged`].
pub fn forget_superseded(store: &dyn Store) -> Result<usize, RedeemError> {
    let snapshot = store.snapshot()?;
    let mut superseded = Vec::new();
    let mut rest = Some(KeyRange::prefix(HELD));
    while let Some(range) = rest {
        let page = snapshot.range(&range, usize::MAX)?;
        for entry in page.entries {
            if !is_current(snapshot.as_ref(), &entry.key, &entry.value)? {
                superseded.push(entry);
            }
        }
        rest = page.rest;
    }
    let mut forgotten_count = 0;
    for some in superseded.chunks(FORGET_PER_TRANSACTION) {
        // A holding that was renewed meanwhile stays.
        let transaction = some.iter().fold(Transaction::new(), |all, entry| {
            all.when(entry.key.clone(), Is::ModifiedAt(entry.mod_revision)).delete(entry.key.clone())
        });
        if let Outcome::Committed(_) = store.commit(transaction)? {
            forgotten_count += some.len();
        }
    }
    Ok(forgotten_count)
}

fn of_object(host: ClientId, object: &str) -> Vec<u8> {
    [HELD, host.as_bytes(), &sha256(object.as_bytes())].concat()
}

/// Whether the VM of a holding is still in its generation.
fn is_current(snapshot: &dyn Snapshot, key: &[u8], value: &[u8]) -> Result<bool, RedeemError> {
    let damaged = || RedeemError::Damaged { key: key.escape_ascii().to_string() };
    let vm = key.last_chunk::<ID_BYTES>().filter(|_| key.len() == KEY_BYTES).ok_or_else(damaged)?;
    let generation = u64::from_be_bytes(*value.as_array().ok_or_else(damaged)?);
    let vm = VmId::from_bytes(*vm);
    let (highest, _) = number(snapshot, &vm_key(vm))?;
    Ok(match highest {
        Some(highest) if generation < highest => false,
        Some(highest) if generation == highest => true,
        // It is prepared for a move.
        Some(_) | None => Prepared::read(snapshot, vm)?.0.is_valid(generation),
    })
}

#[cfg(test)]
mod tests {
    use strongroom_store::Engine;

    use super::super::encoding::{Grant, GrantedOperations};
    use super::super::ledger::raise_generation;
    use super::super::ledger::tests::redeem;
    use super::super::verify::GrantVerifier;
    use super::super::verify::tests::{Control, NOON, at, host};
    use super::super::{GrantPeriod, GrantTime, VmGeneration};
    use super::*;

    fn engine() -> Engine {
        Engine::with_backend(redb::backends::InMemoryBackend::new(), "test").unwrap()
    }

    fn redeemed(store: &Engine, vm: u8, generation: u64, operations: GrantedOperations, objects: &[&str]) {
        let control = Control::new();
        let seconds = |offset| GrantTime::of(at(NOON + offset));
        let objects = objects.iter().map(|object| (*object).to_owned()).collect();
        let (vm, generation) = (VmId::from_bytes([vm; 16]), VmGeneration(generation));
        let time = GrantPeriod { not_before: seconds(0), expires: seconds(300) };
        let grant = Grant::new(vm, generation, host().public_key, operations, objects, time).unwrap();
        let grant = GrantVerifier::new(&control).verify(&control.sign(&grant), &host(), at(NOON)).unwrap();
        redeem(store, &grant).unwrap();
    }

    fn reading() -> GrantedOperations {
        GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata])
    }

    fn held(store: &Engine, object: &str) -> bool {
        is_held(store.snapshot().unwrap().as_ref(), host().client, object).unwrap()
    }

    #[test]
    fn a_host_holds_what_it_was_granted_to_read_until_the_vm_goes_on() {
        let store = engine();
        assert!(!held(&store, "kek"));
        redeemed(&store, 1, 3, GrantedOperations::of(GrantedOperation::Get, &[]), &["kek"]);
        assert!(!held(&store, "kek"), "its grant says nothing of reading");
        redeemed(&store, 1, 3, reading(), &["kek", "other"]);
        assert!(held(&store, "kek") && held(&store, "other") && !held(&store, "ke"));
        let another = is_held(store.snapshot().unwrap().as_ref(), ClientId::from_bytes([9; 16]), "kek");
        assert!(!another.unwrap());
        // Another VM's generation, or the same generation again, ends no holding.
        redeemed(&store, 2, 9, reading(), &["third"]);
        redeemed(&store, 1, 3, reading(), &["fourth"]);
        assert!(held(&store, "kek") && held(&store, "fourth"));
        redeemed(&store, 1, 4, reading(), &["other"]);
        assert!(!held(&store, "kek") && held(&store, "other") && !held(&store, "fourth"));
    }

    #[test]
    fn a_fence_ends_what_is_held_and_nothing_of_other_vms() {
        let store = engine();
        redeemed(&store, 1, 3, reading(), &["kek", "shared"]);
        redeemed(&store, 2, 1, reading(), &["shared"]);
        assert_eq!(
            raise_generation(&store, VmId::from_bytes([1; 16]), VmGeneration(3)).unwrap(),
            VmGeneration(3),
            "the generation that it has: nothing is void"
        );
        assert!(held(&store, "kek"));
        assert_eq!(
            raise_generation(&store, VmId::from_bytes([1; 16]), VmGeneration(4)).unwrap(),
            VmGeneration(4)
        );
        assert!(!held(&store, "kek"));
        assert!(held(&store, "shared"), "the other VM needs it, too");
        assert_eq!(
            raise_generation(&store, VmId::from_bytes([1; 16]), VmGeneration(2)).unwrap(),
            VmGeneration(4)
        );
        assert_eq!(forget_superseded(&store).unwrap(), 2);
        assert_eq!(forget_superseded(&store).unwrap(), 0);
        assert!(held(&store, "shared"));
    }

    #[test]
    fn any_number_of_holdings_is_forgotten() {
        let store = engine();
        let objects: Vec<String> = (0..60).map(|number| format!("kek-{number}")).collect();
        let objects: Vec<&str> = objects.iter().map(String::as_str).collect();
        for vm in 0..4 {
            redeemed(&store, vm, 1, reading(), &objects);
            raise_generation(&store, VmId::from_bytes([vm; 16]), VmGeneration(2)).unwrap();
        }
        assert_eq!(forget_superseded(&store).unwrap(), 240);
    }
}
