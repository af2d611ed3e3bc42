//! 1,024 volumes: prints how long their list takes. There are no bounds.
//! `make measure-volumes`; `docs/PERFORMANCE.md` has the figures.

use std::sync::Arc;
use std::time::Instant;

use crate::support::server::Server;
use crate::support::site::Site;
use serde_json::json;

const VOLUMES: usize = 1_024;
const ROUNDS: usize = 100;

#[test]
fn a_list_of_1024_volumes() {
    let home = tempfile::tempdir().unwrap();
    let site = Site::new();
    site.host.lock().by_itself = true;
    site.fill(VOLUMES);
    let server = Server::with_site(home.path(), Arc::new(site));
    let mut client = server.client();
    let added = client.post("/v1/datastores", &json!({ "name": "ds1", "path": "/srv/ds1" }));
    client.done(&added);
    let rebuilt = client.ask("POST", "/v1/datastores/ds1/rebuild", &[], None);
    assert_eq!(rebuilt.status, 202, "{}", rebuilt.body);
    // One request to the host has 64 readings.
    (0..=VOLUMES / 64).for_each(|_| server.read_spaces());
    let first = client.get("/v1/volumes?limit=1000").json();
    assert_eq!(first["total"], VOLUMES);
    assert!(first["items"].as_array().unwrap().iter().all(|volume| volume["space"].is_object()));
    let mut times: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let started = Instant::now();
            let first = client.get("/v1/volumes?limit=1000");
            let next = first.json()["next"].as_str().unwrap().to_owned();
            let rest = client.get(&format!("/v1/volumes?limit=1000&cursor={next}"));
            assert_eq!((first.status, rest.status), (200, 200));
            started.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    times.sort_by(f64::total_cmp);
    println!(
        "{VOLUMES} volumes with their space, in two pages: median {:.1} ms, 99th of 100 {:.1} ms",
        times[ROUNDS / 2],
        times[ROUNDS - 2]
    );
}
