//! A Ceph cluster whose daemons store everything on devices.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_datastore::file::{
    Access, CreateOptions, OpenOptions, Protection, Provisioning, create_on, open_on,
};
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, IdleReactor, Plain};
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_rbd::{ClusterConf, ClusterOptions, RbdOptions, RbdStorage};
use strongroom_test_peers::CephCluster;
use strongroom_types::{Extent, VolumeSize};

use crate::machine::{Machine, link, machine, name, wait_until};

const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 16 * MIB;
/// RAID-1, and RAID-6: two of four chunks may be lost.
const POOLS: [Option<&str>; 2] = [None, Some("ec22")];

/// Writes an encrypted volume of ours on the cluster full of `text`, opens it anew, and compares.
fn fill_encrypted_volume(conf: &Path, data_pool: Option<&str>, text: &str) {
    let storage = RbdStorage::connect(&RbdOptions {
        cluster: ClusterOptions { conf: ClusterConf::File(conf.to_owned()), user: "client.admin".to_owned() },
        pool: "rep2".to_owned(),
        data_pool: data_pool.map(str::to_owned),
        namespace: format!("vms-{}", data_pool.unwrap_or("rep2")),
    })
    .unwrap();
    let kek: Kek =
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap()).unwrap();
    let (path, protection) = (Path::new("vm1"), Protection::Encrypted(&kek));
    let (size, provisioning) = (VolumeSize::new(IMAGE_BYTES).unwrap(), Provisioning::Thin);
    let options = CreateOptions { size, provisioning, protection, log_bytes: None, integrity: None };
    create_on(&storage, path, &options).unwrap();
    let part = text.repeat(1 << 16).into_bytes()[..256 << 10].to_vec();
    for writes in [true, false] {
        let (access, lock_wait) = (Access::ReadWrite, Duration::from_secs(10));
        let to_open = OpenOptions { protection, access, lock_wait, least_generation: 0 };
        let opened = open_on(&storage, path, &to_open).unwrap();
        let (epoch, dek) = opened.deks.last().unwrap();
        let keys = EpochKeys::new(*epoch, Arc::new(Xts::new(dek, UnitSize::Bytes4096).unwrap())).unwrap();
        let disk = CryptDisk::new(Arc::clone(&opened.disk) as _, Arc::new(keys));
        let setup = Setup::on(|| IdleReactor::new().map(Rc::new)).epoch(*epoch);
        let disk: &dyn Disk<Plain> = &disk;
        let mut driver = Driver::<Plain>::open(disk, &setup, 4, 32 << 20, 0).unwrap();
        for offset in (0..IMAGE_BYTES).step_by(part.len()) {
            if writes {
                driver.write(offset, &part).unwrap();
            } else {
                let found = driver.read(Extent::between(offset, offset + part.len() as u64)).unwrap();
                assert!(found == part, "at {offset}");
            }
        }
    }
}

fn image(verb: &str, name: &str, data_pool: Option<&str>, text: &str) -> String {
    let data_pool = data_pool.map_or("null".to_owned(), |pool| format!("\"{pool}\""));
    format!(
        r#"{{"prefix": "{verb} image", "pool": "rep2", "data_pool": {data_pool}, "name": "{name}", "size": {IMAGE_BYTES}, "text": "{text}"}}"#
    )
}

/// Looks for a text in all files of a directory, and skips their holes.
const LOOK_FOR: &str = r#"
import os, sys
text, found = sys.argv[2].encode(), False
for directory, _, names in os.walk(sys.argv[1]):
    for path in (os.path.join(directory, name) for name in names):
        if not os.path.isfile(path):
            continue
        with open(path, "rb", buffering=0) as file:
            at, size = 0, os.fstat(file.fileno()).st_size
            while at < size and not found:
                try:
                    at = max(at, os.lseek(file.fileno(), at, os.SEEK_DATA))
                except OSError:
                    break
                part = os.pread(file.fileno(), 1 << 20, at)
                found = text in part
                at += max(1, len(part) - len(text)) if len(part) > len(text) else max(1, len(part))
sys.exit(0 if found else 1)
"#;

/// Whether a file below `place` has this text anywhere.
fn lies_on(place: &Path, text: &str) -> bool {
    let place = place.to_string_lossy();
    let looked = Command::new("python3").args(["-I", "-c", LOOK_FOR, &place, text]).status().unwrap();
    assert!(matches!(looked.code(), Some(0 | 1)), "{looked}");
    looked.success()
}

/// Waits for HEALTH_OK.
fn await_healthy(cluster: &mut CephCluster) {
    wait_until("the cluster is healthy", || {
        let said: String =
            serde_json::from_str(&cluster.tell(r#"{"prefix": "health", "format": "json"}"#)).unwrap();
        let health: serde_json::Value = serde_json::from_str(&said).unwrap();
        health["status"] == "HEALTH_OK"
    });
}

/// What a pool's images take on the devices, and what of it was compressed away.
fn stored(cluster: &mut CephCluster, pool: &str) -> (u64, u64) {
    let said = cluster.tell(r#"{"prefix": "df", "detail": "detail", "format": "json"}"#);
    let said: String = serde_json::from_str(&said).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let pools = said["pools"].as_array().unwrap();
    let stats = &pools.iter().find(|one| one["name"] == pool).unwrap()["stats"];
    let saved =
        stats["compress_under_bytes"].as_u64().unwrap() - stats["compress_bytes_used"].as_u64().unwrap();
    (stats["bytes_used"].as_u64().unwrap(), saved)
}

/// The six configurations. Without datastore encryption the daemons' devices are sparse files.
#[test]
#[ignore = "long: make test-sealed-osds"]
fn replicated_and_erasure_coded_pools_with_no_vm_and_datastore_encryption() {
    let Some(mut machine) = machine() else { return };
    // None, and VM encryption.
    let mut plain = CephCluster::start(4);
    for pool in POOLS {
        let (clear, sealed) = ("clear-marker-of-an-image", "sealed-marker-of-a-volume");
        plain.tell(&image("fill", &name("image"), pool, clear));
        fill_encrypted_volume(&plain.conf, pool, sealed);
        let directory = plain.conf.parent().unwrap();
        assert!(lies_on(directory, clear), "without encryption Ceph's devices have what is stored");
        assert!(!lies_on(directory, sealed), "with VM encryption they do not");
    }
    drop(plain);

    // Datastore encryption.
    let devices: Vec<String> = (0..4).map(|_| name("osd")).collect();
    for device in &devices {
        machine.create(device, "3G", &["--cluster", "ceph"]);
    }
    machine.start_service();
    machine.runs(&["device", "attach", "--all"]);
    let paths: Vec<PathBuf> = devices.iter().map(|device| link(device)).collect();
    let mut cluster = CephCluster::start_on(&paths);
    await_healthy(&mut cluster);
    for (pool, marker) in POOLS.into_iter().zip(["marker-of-raid-1", "marker-of-raid-6"]) {
        let image_name = name("image");
        cluster.tell(&image("fill", &image_name, pool, marker));
        // A worker and a supervisor of a daemon's device end meanwhile.
        machine.kills(|| machine.worker(&devices[0]));
        machine.kills(|| machine.supervisor(&devices[1]));
        cluster.tell(&image("verify", &image_name, pool, marker));
        assert!(!lies_on(&machine.path("ds"), marker), "{marker} lies on a disk");
        let both = format!("{marker}-under-two-keys");
        fill_encrypted_volume(&cluster.conf, pool, &both);
    }
    compresses(&mut cluster);
    goes_on_after_its_keys_were_away(&mut machine, cluster, &devices);
}

/// Clear images on a pool that compresses take less, beneath encryption.
fn compresses(cluster: &mut CephCluster) {
    for (var, val) in [("compression_algorithm", "snappy"), ("compression_mode", "force")] {
        let set = format!(r#"{{"prefix": "osd pool set", "pool": "rep3", "var": "{var}", "val": "{val}"}}"#);
        cluster.tell(&set);
    }
    let fill = image("fill", "compressed", None, "as-often-as-it-goes").replace("\"rep2\"", "\"rep3\"");
    cluster.tell(&fill);
    wait_until("the statistics have arrived", || stored(cluster, "rep3").1 > 0);
    wait_until("an image takes less than two thirds of its copies", || {
        let (used, saved) = stored(cluster, "rep3");
        used < IMAGE_BYTES * 2 && saved > IMAGE_BYTES
    });
    let (used, saved) = stored(cluster, "rep3");
    println!("three copies of {IMAGE_BYTES} bytes take {used}, {saved} saved");
    cluster.tell(&fill.replace("fill image", "verify image"));
}

/// The keys move while daemons write, and are away when the machine starts.
fn goes_on_after_its_keys_were_away(machine: &mut Machine, mut cluster: CephCluster, devices: &[String]) {
    machine.runs(&["device", "rekey", "--cluster", "ceph"]);
    cluster.tell(&image("fill", "later", None, "marker-of-later"));
    for number in 0..devices.len() {
        cluster.kill(&format!("osd.{number}"));
    }
    machine.stop_service();
    machine.kill_keyserver();
    machine.start_service();
    for device in devices {
        machine.awaits(device, "waiting_for_key");
    }
    machine.start_keyserver();
    for device in devices {
        machine.awaits(device, "attached");
    }
    for number in 0..devices.len() {
        cluster.start_again(&format!("osd.{number}"));
    }
    await_healthy(&mut cluster);
    cluster.tell(&image("verify", "later", None, "marker-of-later"));
}
