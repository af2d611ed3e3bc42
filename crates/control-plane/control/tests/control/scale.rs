//! 8,000 registered VMs: prints the time of a start, the memory, and the times of a list and a
//! search. An access log of a million entries: prints what it takes, and the times of readings.
//! There are no bounds.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::json;
use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_control::inventory::{Inventory, Wanted};
use strongroom_control::records::AccessHeadRecord;
use strongroom_store::{Engine, Store, Transaction};
use strongroom_types::hex;
use uuid::Uuid;

use crate::support::server::Server;
use crate::support::site::Site;

const VMS: usize = 8_000;

#[test]
fn a_large_inventory_starts_and_answers() {
    let home = tempfile::tempdir().unwrap();
    let site = Site::new();
    site.host.lock().by_itself = true;
    site.fill(VMS);
    let site = Arc::new(site);
    let server = Server::with_site(home.path(), Arc::clone(&site));
    let mut client = server.client();
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
    let started = Instant::now();
    let rebuilt = client.ask("POST", "/v1/datastores/ds1/rebuild", &[], None);
    assert_eq!(rebuilt.status, 202, "{}", rebuilt.body);
    println!("inventory of {VMS} VMs rebuilt from the datastore: {:.1} s", started.elapsed().as_secs_f64());
    assert_eq!(client.get("/v1/vms?limit=1").json()["total"], VMS);
    let bytes = std::fs::metadata(home.path().join("store.redb")).unwrap().len();
    println!("store: {:.1} MiB", bytes as f64 / f64::from(1 << 20));
    server.stop();

    let before = resident_mib();
    let started = Instant::now();
    let server = Server::with_site(home.path(), site);
    let mut client = server.client();
    assert_eq!(client.get("/readyz").status, 200);
    println!("start to the first ready answer: {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    println!("memory: {:.0} MiB resident, {before:.0} before with the host's stand-in", resident_mib());
    for (what, path) in [
        ("first page of 100", "/v1/vms".to_owned()),
        ("page of 1000", "/v1/vms?limit=1000".to_owned()),
        ("page from the middle", "/v1/vms?cursor=vm4000".to_owned()),
        ("search by a part of the name", "/v1/vms?name=777".to_owned()),
        ("search without a find", "/v1/vms?name=nothing-like-it".to_owned()),
        ("filter by power", "/v1/vms?power=stopped&limit=100".to_owned()),
        ("show by name", "/v1/vms/vm7999".to_owned()),
    ] {
        let mut times: Vec<f64> = (0..100)
            .map(|_| {
                let started = Instant::now();
                assert_eq!(client.get(&path).status, 200);
                started.elapsed().as_secs_f64() * 1e3
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{what}: median {:.2} ms, 99th of 100 {:.2} ms", times[50], times[98]);
    }
}

/// Entries of the access log: some seven weeks of 10,000 VMs with two requests a day.
const ENTRIES: u64 = 1_000_000;
/// Entries in a transaction here.
const AT_A_TIME: u64 = 100;

#[test]
fn a_long_access_log_is_read_and_not_loaded() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("store.redb");
    let mut head = AccessHeadRecord {
        id: 0,
        hash: "0".repeat(64),
        chained_from: 1,
        first: 1,
        entries: 0,
        bytes: 0,
        removed: None,
    };
    let started = Instant::now();
    {
        let store = Engine::create(&path).unwrap();
        let meta = json!({ "format": 1 }).to_string();
        drop(store.commit(Transaction::new().put("meta", meta)).unwrap());
        let mut pending = VecDeque::new();
        while head.id < ENTRIES {
            let mut transaction = Transaction::new();
            for _ in 0..AT_A_TIME {
                head.id += 1;
                let record = json!({ "kind": "vm", "id": Uuid::from_u128(head.id.into()), "name": "web1" });
                let entry = AccessEntry {
                    id: head.id,
                    previous: Some(head.hash),
                    at_unix_ms: 1_700_000_000_000 + head.id * 4320,
                    kind: AccessKind::Changed,
                    by: if head.id % 1000 == 0 { "ada" } else { "backup" }.to_owned(),
                    from: Some("10.20.30.40".to_owned()),
                    operation: Some("vm_snapshot_create".to_owned()),
                    object: Some(serde_json::from_value(record).unwrap()),
                    task: Some(Uuid::now_v7()),
                    message: "asked for: Make snapshot backup of VM web1".to_owned(),
                    repeated: None,
                };
                let (key, value) = (format!("access/{:020}", head.id), serde_json::to_vec(&entry).unwrap());
                head.bytes += (key.len() + value.len()) as u64;
                head.hash = hex::encode(digest(&SHA256, &value).as_ref());
                transaction = transaction.put(key, value);
            }
            head.entries = head.id;
            let transaction = transaction.put("access-head", serde_json::to_vec(&head).unwrap());
            pending.push_back(store.submit(transaction));
            if pending.len() >= 64 {
                drop(pending.pop_front().unwrap().wait().unwrap());
            }
        }
        pending.into_iter().for_each(|one| drop(one.wait().unwrap()));
    }
    println!("{ENTRIES} entries written in {:.0} s", started.elapsed().as_secs_f64());
    let file = std::fs::metadata(&path).unwrap().len();
    println!("{} bytes an entry, {} of the file", head.bytes / ENTRIES, file / ENTRIES);
    let before = resident_mib();
    let started = Instant::now();
    let store = Arc::new(Engine::open(&path).unwrap());
    println!("store opened, each page verified: {:.2} s", started.elapsed().as_secs_f64());
    let started = Instant::now();
    let inventory = Inventory::open(store).unwrap();
    println!("inventory read: {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let log = || inventory.access_log().unwrap();
    let started = Instant::now();
    assert!(log().verify(&[]).unwrap().whole);
    println!("whole chain verified: {:.2} s", started.elapsed().as_secs_f64());
    let newest = Wanted { after: None, since_unix_ms: None, by: None, limit: 50 };
    let day_ms = 86_400_000;
    let last_day = Some(1_700_000_000_000 + ENTRIES * 4320 - day_ms);
    for (what, wanted) in [
        ("newest 50", newest),
        ("1,000 after the middle", Wanted { after: Some(ENTRIES / 2), limit: 1000, ..newest }),
        ("last day", Wanted { since_unix_ms: last_day, limit: 1000, ..newest }),
        ("of one caller", Wanted { by: Some("ada"), limit: 1000, ..newest }),
    ] {
        let started = Instant::now();
        let page = log().page(&wanted).unwrap();
        let (shown, took_ms) = (page.items.len(), started.elapsed().as_secs_f64() * 1e3);
        println!("{what}: {shown} of {} in {took_ms:.1} ms", page.total);
    }
    println!("memory: {:.0} MiB more", resident_mib() - before);
}

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
