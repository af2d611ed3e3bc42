//! Where a volume has content and where it changed, beside the clients that write to it.

use crate::worker_support::{NbdClient, VerifiedIo, Worker};
use serde_json::{Value, json};
use strongroom_system_tests::{CommandLine, Protection, Scratch, Volume};

const MIB: u64 = 1 << 20;
/// Operations between two maps, so that each meets other I/O.
const OPERATIONS: u64 = 200;

/// Runs `volume COMMAND PATH OPTIONS`, without a key.
fn runs(volume: &Volume<'_>, command: &[&str], options: &[&str]) -> String {
    let path = volume.path();
    let words = [&["volume"], command, &[path.to_str().unwrap()], options].concat();
    CommandLine::new(volume.scratch()).run(&words).success()
}

/// The extents of a map, as pairs of a first byte and a length.
fn extents(volume: &Volume<'_>, options: &[&str]) -> Value {
    let said = runs(volume, &["extents"], &[options, &["--json"]].concat());
    let map: Value = serde_json::from_str(&said).unwrap();
    let pairs = map["extents"].as_array().unwrap().iter();
    pairs.map(|extent| json!([extent["start_bytes"], extent["length_bytes"]])).collect()
}

/// First writes are in the log, and the volume in use, when its map is asked for.
#[test]
fn a_map_of_an_exposed_volume_has_what_was_written() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "1G", Protection::Encrypted);
    let exposed = volume.expose();
    let mut client = NbdClient::connect(exposed.socket()).unwrap();
    client.write(5 * MIB, &[7; 4096]).unwrap();
    client.write(900 * MIB, &[7; 65536]).unwrap();
    let chunk = 65536;
    assert_eq!(extents(&volume, &[]), json!([[5 * MIB, chunk], [900 * MIB, chunk]]));
    drop(client);
    runs(&volume, &["snapshot", "create"], &["one"]);
    let mut client = NbdClient::connect(exposed.socket()).unwrap();
    client.write(6 * MIB, &[8; 4096]).unwrap();
    client.write(5 * MIB, &[8; 512]).unwrap();
    assert_eq!(extents(&volume, &["--since", "one"]), json!([[5 * MIB, chunk], [6 * MIB, chunk]]));
    assert_eq!(extents(&volume, &["--unshared"]), json!([[5 * MIB, chunk], [6 * MIB, chunk]]));
    assert_eq!(extents(&volume, &["--snapshot", "one"]), json!([[5 * MIB, chunk], [900 * MIB, chunk]]));
    assert_eq!(extents(&volume, &["--start", "6M", "--length", "1M"]), json!([[6 * MIB, chunk]]));
    drop(client);
    assert!(exposed.close().success());
    assert_eq!(
        extents(&volume, &["--chunk", "4K"]),
        json!([[5 * MIB, 4096], [6 * MIB, 4096], [900 * MIB, 65536]])
    );
    let info: Value = serde_json::from_str(&runs(&volume, &["info"], &["--json"])).unwrap();
    let contents = info["contents"].as_array().unwrap();
    assert_eq!((&contents[0]["snapshot"], &contents[1]["snapshot"]), (&Value::Null, &json!("one")));
    assert!(contents[0]["unshared_bytes"].as_u64().unwrap() >= 2 * 4096, "{info}");
}

/// Maps are read while a client writes and verifies, while snapshots come and go, and while workers
/// are killed. Nobody notices.
#[test]
fn maps_disturb_nobody() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposed = volume.expose();
    let io = VerifiedIo::start(exposed.socket());
    for name in ["one", "two", "three"] {
        io.wait_for_more(OPERATIONS);
        runs(&volume, &["snapshot", "create"], &[name]);
        for _ in 0..5 {
            extents(&volume, &["--since", name]);
            extents(&volume, &["--snapshot", "one", "--chunk", "4K"]);
        }
        Worker::of(&volume).kill();
        extents(&volume, &["--chunk", "4K"]);
    }
    runs(&volume, &["snapshot", "delete"], &["two"]);
    for _ in 0..10 {
        extents(&volume, &["--since", "one"]);
    }
    io.wait_for_more(OPERATIONS);
    io.stop();
    assert!(exposed.close().success());
    volume.command("check", &["--data"]).success();
}
