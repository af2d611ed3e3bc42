//! VMs are settled when something changes, and nothing that happened while a host or the control
//! plane was away is missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use strongroom_api::vm::{PowerState, StartVm};
use strongroom_control::inventory::{Draft, Failure, Inventory};
use strongroom_control::records::TokenRecord;
use strongroom_host::protocol::{OffReason, PowerState as HostPower};
use strongroom_store::{
    Counters, Engine, KeyRange, LeaseId, PendingCommit, Revision, Snapshot, Store, StoreError, Transaction,
    Watch,
};

use crate::support::{Site, caller, settle_down, with_vms};

fn crash(site: &Site) {
    site.host.guest("web1", |vm| (vm.power, vm.reason) = (HostPower::Crashed, Some(OffReason::QemuDied)));
}

#[test]
fn a_vm_that_was_restarted_too_often_is_restarted_when_its_time_has_come() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    for _ in 0..4 {
        crash(&site);
        assert!(settle_down(&site, &control));
    }
    let power = || control.show_vm("web1").unwrap().summary.power;
    assert_eq!(power(), PowerState::Crashed);
    // Nothing changes but the time.
    site.pass(Duration::from_secs(11 * 60));
    assert!(settle_down(&site, &control));
    assert_eq!(power(), PowerState::Running);
}

#[test]
fn a_host_that_comes_back_as_it_was_has_its_vms_settled() {
    let (site, control) = with_vms(&["web1"]);
    control.start_vm(&caller(1), "web1", &StartVm::default()).unwrap();
    assert!(settle_down(&site, &control));
    // The crash is in the inventory, and the control plane dies before it acts.
    crash(&site);
    let host = control.hosts()[0];
    assert!(control.observe(host, Duration::ZERO).unwrap());
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Crashed);
    drop(control);
    // Its successor looks at all VMs while the host is away, and hears nothing new from it later.
    site.host.lock().down = true;
    let control = site.control().unwrap();
    assert!(!control.observe(host, Duration::ZERO).unwrap());
    control.settle().unwrap();
    site.host.lock().down = false;
    assert!(settle_down(&site, &control));
    assert_eq!(control.show_vm("web1").unwrap().summary.power, PowerState::Running);
}

/// A store whose next snapshot fails if it is told so.
struct Failing {
    store: Engine,
    fails: Arc<AtomicBool>,
}

impl Store for Failing {
    fn snapshot(&self) -> Result<Box<dyn Snapshot>, StoreError> {
        match self.fails.swap(false, Ordering::SeqCst) {
            true => Err(StoreError::Closed),
            false => self.store.snapshot(),
        }
    }

    fn submit(&self, transaction: Transaction) -> PendingCommit {
        self.store.submit(transaction)
    }

    fn watch(&self, range: KeyRange, from: Revision) -> Result<Box<dyn Watch>, StoreError> {
        self.store.watch(range, from)
    }

    fn lease(&self, ttl: Duration) -> Result<LeaseId, StoreError> {
        self.store.lease(ttl)
    }

    fn keep_alive(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.keep_alive(lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), StoreError> {
        self.store.revoke(lease)
    }

    fn counters(&self) -> Counters {
        self.store.counters()
    }
}

#[test]
fn a_change_that_could_not_be_read_is_in_the_index_after_the_next_look() {
    let fails = Arc::new(AtomicBool::new(false));
    let store = Engine::with_backend(redb::backends::InMemoryBackend::new(), "inventory").unwrap();
    let inventory = Inventory::open(Arc::new(Failing { store, fails: Arc::clone(&fails) })).unwrap();
    let token =
        |name: &str| TokenRecord { sha256: name.to_owned(), name: name.to_owned(), created_unix_seconds: 1 };
    fails.store(true, Ordering::SeqCst);
    let failed = inventory.commit(Draft::new(1).create(&token("first")));
    assert_eq!(failed, Err(Failure::Store(StoreError::Closed)), "it is durable, and was not read");
    assert_eq!(inventory.read().tokens.len(), 0);
    inventory.commit(Draft::new(2).create(&token("second"))).unwrap();
    assert_eq!(inventory.read().tokens.len(), 2);
}
