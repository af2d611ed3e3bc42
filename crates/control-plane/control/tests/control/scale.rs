//! 8,000 registered VMs: prints the time of a start, the memory, and the times of a list and a
//! search. There are no bounds.

use std::sync::Arc;
use std::time::Instant;

use crate::support::server::Server;
use crate::support::site::Site;
use serde_json::json;

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

fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
