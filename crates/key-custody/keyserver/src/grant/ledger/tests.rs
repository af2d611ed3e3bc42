use std::sync::Barrier;

use proptest::prelude::*;
use strongroom_store::Engine;

use super::super::GrantPeriod;
use super::super::encoding::{Grant, GrantedOperation, GrantedOperations};
use super::super::verify::GrantVerifier;
use super::super::verify::tests::{Control, NOON, at, host};
use super::*;

struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> (Self, Engine) {
        let directory = tempfile::tempdir().unwrap();
        let engine = Engine::create(&directory.path().join("store.redb")).unwrap();
        (Self { directory }, engine)
    }

    fn open(&self) -> Engine {
        Engine::open(&self.directory.path().join("store.redb")).unwrap()
    }
}

/// A grant for VM `vm` at `generation`, valid for five minutes from `start` seconds after noon.
fn granted(vm: u8, generation: u64, start: i64) -> VerifiedGrant {
    let control = Control::new();
    let seconds = |offset| GrantTime::of(at(NOON + start + offset));
    let grant = Grant::new(
        VmId::from_bytes([vm; 16]),
        VmGeneration(generation),
        host().public_key,
        GrantedOperations::of(GrantedOperation::Get, &[]),
        vec!["kek-1".to_owned()],
        GrantPeriod { not_before: seconds(0), expires: seconds(300) },
    );
    let bytes = control.sign(&grant.unwrap());
    GrantVerifier::new(&control).verify(&bytes, &host(), at(NOON + start)).unwrap()
}

/// The same for a generation that is prepared.
fn prepared(vm: u8, generation: u64) -> VerifiedGrant {
    let control = Control::new();
    let seconds = |offset| GrantTime::of(at(NOON + offset));
    let grant = Grant::new(
        VmId::from_bytes([vm; 16]),
        VmGeneration(generation),
        host().public_key,
        GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata]),
        vec!["kek-1".to_owned()],
        GrantPeriod { not_before: seconds(0), expires: seconds(300) },
    );
    let bytes = control.sign(&grant.unwrap().for_prepared());
    let verified = GrantVerifier::new(&control).verify(&bytes, &host(), at(NOON)).unwrap();
    assert!(verified.grant().is_for_prepared());
    verified
}

/// Redeems a grant like the server, on a thread that may block.
pub(in crate::grant) fn redeem(store: &Engine, grant: &VerifiedGrant) -> Result<(), RedeemError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(super::redeem(store, grant))
}

fn refused(outcome: Result<(), RedeemError>) -> Refusal {
    match outcome {
        Err(RedeemError::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_restored_server_takes_no_grant_that_was_good_before() {
    let (_place, store) = Place::new();
    let operation = restored_at(at(NOON));
    store.commit(Transaction { conditions: Vec::new(), operations: vec![operation] }).unwrap();
    let skew = i64::try_from(CLOCK_SKEW_SECONDS).unwrap();
    for before in [-60, 0, skew] {
        let refusal = refused(redeem(&store, &granted(1, 1, before)));
        assert_eq!(refusal.code(), "grant-before-restore");
    }
    redeem(&store, &granted(1, 1, skew + 1)).unwrap();
}

#[test]
fn a_grant_is_redeemed_once_also_after_the_server_was_restarted() {
    let (place, store) = Place::new();
    let grant = granted(1, 1, 0);
    redeem(&store, &grant).unwrap();
    assert_eq!(refused(redeem(&store, &grant)), Refusal::Replayed);
    drop(store);
    assert_eq!(refused(redeem(&place.open(), &grant)), Refusal::Replayed);
}

#[test]
fn a_key_that_was_made_for_a_vm_is_granted_to_no_other() {
    let (place, store) = Place::new();
    let vm = |number| VmId::from_bytes([number; 16]);
    // An unbound object is for every VM whose grant names it.
    redeem(&store, &granted(1, 1, 0)).unwrap();
    redeem(&store, &granted(2, 1, 0)).unwrap();
    bind(&store, "kek-1", vm(1), None).unwrap();
    bind(&store, "kek-1", vm(1), None).unwrap();
    for from in [None, Some(vm(3))] {
        let refused = bind(&store, "kek-1", vm(2), from);
        assert!(matches!(refused, Err(RedeemError::Refused(Refusal::OtherVm))), "{from:?}");
    }
    let foreign = granted(2, 5, 0);
    assert_eq!(refused(redeem(&store, &foreign)), Refusal::OtherVm);
    // A refused grant is not used: its VM's generation is unchanged.
    assert_eq!(highest_generation(&store, vm(2)).unwrap(), Some(VmGeneration(1)));
    redeem(&store, &granted(1, 2, 0)).unwrap();
    drop(store);
    let store = place.open();
    assert_eq!(refused(redeem(&store, &foreign)), Refusal::OtherVm);
    redeem(&store, &granted(1, 3, 0)).unwrap();
    // Its volume is handed over, and the key with it.
    bind(&store, "kek-1", vm(2), Some(vm(1))).unwrap();
    bind(&store, "kek-1", vm(2), Some(vm(1))).unwrap();
    assert_eq!(refused(redeem(&store, &granted(1, 4, 0))), Refusal::OtherVm);
    redeem(&store, &granted(2, 6, 0)).unwrap();
}

/// Two concurrent redemptions at the VM's current generation: only the grant's use makes them
/// conflict.
#[test]
fn of_two_redemptions_that_were_prepared_at_a_time_one_is_committed() {
    let (_place, store) = Place::new();
    redeem(&store, &granted(1, 1, 0)).unwrap();
    let grant = granted(1, 1, 0);
    let snapshot = store.snapshot().unwrap();
    let both = [(); 2].map(|()| redemption(snapshot.as_ref(), &grant).unwrap());
    let committed = both.map(|prepared| matches!(store.commit(prepared).unwrap(), Outcome::Committed(_)));
    assert_eq!(committed, [true, false]);
}

#[test]
fn a_redemption_that_was_prepared_before_a_key_was_bound_is_not_committed() {
    let (_place, store) = Place::new();
    let prepared = redemption(store.snapshot().unwrap().as_ref(), &granted(2, 1, 0)).unwrap();
    bind(&store, "kek-1", VmId::from_bytes([1; 16]), None).unwrap();
    assert!(!matches!(store.commit(prepared).unwrap(), Outcome::Committed(_)));
}

#[test]
fn of_many_who_redeem_a_grant_at_a_time_one_does() {
    let (_place, store) = Place::new();
    let grant = granted(1, 1, 0);
    let barrier = Barrier::new(8);
    let redeemed: usize = std::thread::scope(|scope| {
        let one = || {
            barrier.wait();
            redeem(&store, &grant)
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
        let outcomes = threads.into_iter().map(|thread| thread.join().unwrap());
        outcomes
            .map(|outcome| match outcome {
                Ok(()) => 1,
                Err(RedeemError::Refused(Refusal::Replayed)) => 0,
                Err(other) => panic!("{other:?}"),
            })
            .sum()
    });
    assert_eq!(redeemed, 1);
}

#[test]
fn a_vm_that_has_gone_on_is_not_gone_back_to() {
    let (_place, store) = Place::new();
    let vm = VmId::from_bytes([1; 16]);
    assert_eq!(highest_generation(&store, vm).unwrap(), None);
    redeem(&store, &granted(1, 5, 0)).unwrap();
    redeem(&store, &granted(1, 5, 0)).unwrap();
    redeem(&store, &granted(1, 9, 0)).unwrap();
    let superseded = Refusal::Superseded { granted: VmGeneration(8), highest: VmGeneration(9) };
    assert_eq!(refused(redeem(&store, &granted(1, 8, 0))), superseded);
    redeem(&store, &granted(2, 1, 0)).unwrap();
    assert_eq!(highest_generation(&store, vm).unwrap(), Some(VmGeneration(9)));
}

#[test]
fn a_redemption_that_was_overtaken_conflicts() {
    let (_place, store) = Place::new();
    let grants = [granted(1, 1, 0), granted(1, 2, 0)];
    let early = redemption(store.snapshot().unwrap().as_ref(), &grants[0]).unwrap();
    redeem(&store, &grants[1]).unwrap();
    assert!(matches!(store.commit(early).unwrap(), Outcome::Conflict(_)));
}

#[test]
fn what_is_forgotten_is_refused_though_the_clock_goes_back() {
    let (_place, store) = Place::new();
    let (old, new) = (granted(1, 1, 0), granted(2, 1, 400));
    redeem(&store, &old).unwrap();
    redeem(&store, &new).unwrap();
    let expired = NOON + 300 + CLOCK_SKEW_SECONDS as i64;
    assert_eq!(forget_expired(&store, at(expired)).unwrap(), 0);
    assert_eq!(refused(redeem(&store, &old)), Refusal::Replayed);
    assert_eq!(forget_expired(&store, at(expired + 1)).unwrap(), 1);
    let expires = old.grant().expires();
    assert_eq!(refused(redeem(&store, &old)), Refusal::Expired { expires });
    // Another, unused grant of the same time is refused as well, because the ledger cannot tell.
    assert_eq!(refused(redeem(&store, &granted(3, 1, 0))), Refusal::Expired { expires });
    assert_eq!(refused(redeem(&store, &new)), Refusal::Replayed);
    assert_eq!(forget_expired(&store, at(0)).unwrap(), 0);
    assert_eq!(refused(redeem(&store, &old)), Refusal::Expired { expires });
}

#[test]
fn any_number_of_grants_is_forgotten() {
    let (_place, store) = Place::new();
    let count = FORGET_PER_TRANSACTION * 2 + 1;
    let keys = (0..count).map(|n| [USED, &1_u64.to_be_bytes()[..], &(n as u128).to_be_bytes()[..]].concat());
    for key in keys {
        store.commit(Transaction::new().put(key, [])).unwrap();
    }
    assert_eq!(forget_expired(&store, at(NOON)).unwrap(), count);
    assert!(store.range(&KeyRange::prefix(USED), 1).unwrap().entries.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Compares with the simplest possible ledger.
    #[test]
    fn redeems_what_a_list_of_everything_would(
        steps in prop::collection::vec((0_u8..2, 0_u64..4, any::<bool>()), 1..24),
    ) {
        let (_place, store) = Place::new();
        let (mut used, mut highest) = (Vec::<VerifiedGrant>::new(), [None::<u64>; 2]);
        for (vm, generation, again) in steps {
            let fresh = || granted(vm, generation, 0);
            let grant = if again { used.last().cloned().unwrap_or_else(fresh) } else { fresh() };
            let seen = &mut highest[usize::from(grant.grant().vm().as_bytes()[0])];
            let generation = grant.grant().generation().0;
            match redeem(&store, &grant) {
                Ok(()) => {
                    prop_assert!(!used.contains(&grant) && seen.is_none_or(|seen| seen <= generation));
                    *seen = Some(generation);
                    used.push(grant);
                }
                Err(RedeemError::Refused(Refusal::Replayed)) => prop_assert!(used.contains(&grant)),
                Err(RedeemError::Refused(Refusal::Superseded { .. })) => {
                    prop_assert!(!used.contains(&grant) && seen.is_some_and(|seen| seen > generation));
                }
                Err(other) => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_prepared_generation_is_valid_beside_the_one_that_runs_until_it_is_void() {
    let (place, store) = Place::new();
    let vm = VmId::from_bytes([1; 16]);
    let is_held = |store: &Engine| {
        holding::is_held(store.snapshot().unwrap().as_ref(), host().client, "kek-1").unwrap()
    };
    redeem(&store, &granted(1, 3, 0)).unwrap();
    redeem(&store, &prepared(1, 4)).unwrap();
    assert!(is_held(&store));
    // The source's supervisor fetches its key again, and the target's, too.
    redeem(&store, &granted(1, 3, 0)).unwrap();
    redeem(&store, &prepared(1, 4)).unwrap();
    assert_eq!(highest_generation(&store, vm).unwrap(), Some(VmGeneration(3)));
    // The move is given up.
    assert_eq!(void_prepared(&store, vm, VmGeneration(4)).unwrap(), Some(VmGeneration(3)));
    void_prepared(&store, vm, VmGeneration(4)).unwrap();
    drop(store);
    let store = place.open();
    assert!(!is_held(&store));
    let void = Refusal::NotPrepared { granted: VmGeneration(4) };
    assert_eq!(refused(redeem(&store, &prepared(1, 4))), void);
    assert_eq!(refused(redeem(&store, &granted(1, 4, 0))), void, "it is nobody's any more");
    redeem(&store, &granted(1, 3, 0)).unwrap();
    // The next attempt, and one after that, which takes its place.
    redeem(&store, &prepared(1, 5)).unwrap();
    redeem(&store, &prepared(1, 6)).unwrap();
    let replaced = Refusal::NotPrepared { granted: VmGeneration(5) };
    assert_eq!(refused(redeem(&store, &prepared(1, 5))), replaced);
    // It is committed.
    raise_generation(&store, vm, VmGeneration(6)).unwrap();
    assert!(is_held(&store));
    let highest = VmGeneration(6);
    assert_eq!(
        refused(redeem(&store, &granted(1, 3, 0))),
        Refusal::Superseded { granted: VmGeneration(3), highest }
    );
    redeem(&store, &prepared(1, 6)).unwrap();
    redeem(&store, &granted(1, 6, 0)).unwrap();
    // Giving it up comes too late.
    assert_eq!(void_prepared(&store, vm, VmGeneration(6)).unwrap(), Some(highest));
    assert!(is_held(&store));
    redeem(&store, &granted(1, 6, 0)).unwrap();
    redeem(&store, &granted(1, 7, 0)).unwrap();
}

#[test]
fn a_prepared_generation_that_is_void_stays_so_also_beside_a_restored_backup() {
    let bytes = |last: u64, void: u64| [last.to_be_bytes(), void.to_be_bytes()].concat();
    let later = |one: &[u8], other: &[u8]| prepared::later_prepared(b"key", one, other);
    assert_eq!(later(&bytes(4, 3), &bytes(2, 4)).unwrap(), bytes(4, 4));
    assert!(matches!(later(&bytes(4, 3), b"short"), Err(RedeemError::Damaged { .. })));
}

#[test]
fn a_generation_is_not_committed_by_a_redemption_that_was_prepared_before_it_was_void() {
    let (_place, store) = Place::new();
    let vm = VmId::from_bytes([1; 16]);
    redeem(&store, &granted(1, 1, 0)).unwrap();
    let redemption = redemption(store.snapshot().unwrap().as_ref(), &prepared(1, 2)).unwrap();
    void_prepared(&store, vm, VmGeneration(2)).unwrap();
    assert!(!matches!(store.commit(redemption).unwrap(), Outcome::Committed(_)));
}
