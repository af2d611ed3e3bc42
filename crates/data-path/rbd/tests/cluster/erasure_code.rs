//! Four data and two parity chunks: two devices may be lost.

use std::time::{Duration, Instant};

use strongroom_rbd::RbdStorage;
use strongroom_test_peers::CephCluster;

use crate::conformance::passes_slice;
use crate::support::{Pools, datastore_on};
use crate::trouble::{BLOCKS, Guest};

fn set(cluster: &mut CephCluster, pool: &str, var: &str, value: u32) {
    cluster.tell(&format!(r#"{{"prefix":"osd pool set","pool":"{pool}","var":"{var}","val":"{value}"}}"#));
}

/// Waits until the monitors know that devices are gone.
fn wait_until_up(cluster: &mut CephCluster, osds: usize) {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        let said = cluster.tell(r#"{"prefix":"status","format":"json"}"#);
        if said.contains(&format!(r#"\"num_up_osds\":{osds}"#)) {
            return;
        }
        assert!(Instant::now() < until, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// With the pool's own `min_size` of five, what is written while two of six devices are gone waits,
/// and nothing is lost; with four, the pool goes on without them. Its names have four copies.
#[test]
#[ignore = "long: make test-ceph"]
fn a_pool_of_four_and_two_chunks_is_a_disk_and_loses_nothing_with_two_devices() {
    let mut cluster = CephCluster::start(6);
    set(&mut cluster, "rep3", "size", 4);
    set(&mut cluster, "rep3", "min_size", 2);
    cluster.wait_until_clean();
    let mut options = datastore_on(cluster.conf.clone(), Pools::Replicated);
    (options.pool, options.data_pool) = ("rep3".to_owned(), Some("ec42".to_owned()));
    let storage = RbdStorage::connect(&options).unwrap();
    passes_slice(storage.clone(), 50);

    let mut guest = Guest::new(&storage);
    guest.write(100);
    cluster.kill("osd.1");
    guest.write(100);
    cluster.kill("osd.4");
    wait_until_up(&mut cluster, 4);
    guest.wait_for_nothing();
    set(&mut cluster, "ec42", "min_size", 4);
    guest.write(100);
    let other = RbdStorage::connect(&options).unwrap();
    assert_eq!(guest.look(&other), BLOCKS as usize);

    for osd in ["osd.1", "osd.4"] {
        cluster.start_again(osd);
    }
    guest.write(100);
    cluster.wait_until_clean();
    set(&mut cluster, "ec42", "min_size", 5);
    guest.write(100);
    assert_eq!(guest.look(&other), BLOCKS as usize);
}
