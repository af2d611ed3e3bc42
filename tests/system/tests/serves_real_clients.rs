//! A user connects other programs to an encrypted volume: fio, libnbd's tools, qemu-img. Each
//! checks the data that it reads.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use strongroom_system_tests::{CommandLine, Scratch, datastore};

const KEY: [u8; 32] = [0x29; 32];
const KEY_ARGUMENTS: [&str; 2] = ["--key-file", "vm1.key"];
const DEADLINE: Duration = Duration::from_secs(120);

/// A fio job that writes, reads back and compares checksums. The engine comes before the engine's
/// options.
const VERIFIED: [&str; 7] = [
    "--ioengine=nbd",
    "--direct=1",
    "--verify=crc32c",
    "--verify_fatal=1",
    "--do_verify=1",
    "--group_reporting",
    "--output=fio.log",
];

#[test]
fn fio_verifies_mixed_sizes_on_many_connections() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "256M"], &KEY_ARGUMENTS[..]].concat());
    let (server, uri) = strongroom.expose("ds/vm1", &KEY_ARGUMENTS);
    let uri = format!("--uri={uri}");

    // All sizes, every alignment to a sector, and a part of the volume for each of four
    // connections.
    let mixed = [
        "--name=mixed",
        "--rw=randrw",
        "--bsrange=512-1M",
        "--bs_unaligned=0",
        "--iodepth=16",
        "--numjobs=4",
        "--size=48M",
        "--offset_increment=64M",
        uri.as_str(),
    ];
    strongroom.peer("fio", &[&VERIFIED[..], &mixed].concat());

    // Four connections whose sectors share blocks: a job writes every fourth sector, so that each
    // block has parts of all four. A lost read-modify-write of one causes a wrong checksum of
    // another.
    let offsets = ["--offset=0", "--offset=512", "--offset=1024", "--offset=1536"];
    let names = ["--name=first", "--name=second", "--name=third", "--name=fourth"];
    let shared = ["--rw=write:1536", "--bs=512", "--iodepth=32", "--io_size=2M", "--size=32M", uri.as_str()];
    let jobs: Vec<&str> = names
        .iter()
        .zip(&offsets)
        .flat_map(|(name, offset)| [&[*name], &VERIFIED[..5], &[*offset], &shared].concat())
        .collect();
    strongroom.peer("fio", &jobs);
    assert!(server.terminate(DEADLINE).success());
}

#[test]
fn copies_maps_and_comparisons_agree() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    // Data in two places, and holes elsewhere.
    let disk = File::create(strongroom.path("disk.raw")).unwrap();
    disk.set_len(64 << 20).unwrap();
    let text: Vec<u8> = b"strongroom-client-marker ".iter().copied().cycle().take(1 << 20).collect();
    disk.write_all_at(&text, 8 << 20).unwrap();
    disk.write_all_at(&text, (40 << 20) + 8192).unwrap();

    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "64M"], &KEY_ARGUMENTS[..]].concat());
    let (server, uri) = strongroom.expose("ds/vm1", &KEY_ARGUMENTS);
    strongroom.peer("nbdcopy", &["--connections=4", "--flush", "disk.raw", &uri]);
    strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", &uri]);

    let map: serde_json::Value =
        serde_json::from_str(&strongroom.peer("nbdinfo", &["--map", "--json", &uri])).unwrap();
    let data: Vec<(u64, u64)> = map
        .as_array()
        .unwrap()
        .iter()
        .filter(|run| run["type"] == 0)
        .map(|run| (run["offset"].as_u64().unwrap(), run["length"].as_u64().unwrap()))
        .collect();
    assert_eq!(data, [(8 << 20, 1 << 20), ((40 << 20) + 8192, 1 << 20)], "{map}");

    // A trim of one of the two, and zeroes over half of the other.
    let commands = format!("discard {} 1M", 8 << 20);
    let zeroes = format!("write -z -u {} 512k", (40 << 20) + 8192);
    strongroom
        .peer("qemu-io", &["-f", "raw", "-d", "unmap", "-c", &commands, "-c", &zeroes, "-c", "flush", &uri]);
    disk.write_all_at(&vec![0; 1 << 20], 8 << 20).unwrap();
    disk.write_all_at(&vec![0; 512 << 10], (40 << 20) + 8192).unwrap();
    strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", &uri]);
    strongroom.peer("nbdcopy", &["--connections=4", &uri, "copy.raw"]);
    strongroom.peer("cmp", &["disk.raw", "copy.raw"]);
    assert!(server.terminate(DEADLINE).success());

    // Besides the data there may be a preallocated region of 128 KiB, and the descriptor with its
    // spares.
    let log_bytes = strongroom.json(&["volume", "info", "ds/vm1"])["log"]["size_bytes"].as_u64().unwrap();
    let allocated = datastore::allocated_bytes(&strongroom.path("ds")) - log_bytes;
    assert!(
        (512 << 10..=(512 << 10) + (256 << 10)).contains(&allocated),
        "{allocated} bytes for 512 KiB of data"
    );
    assert_eq!(datastore::occurrences(&strongroom.path("ds"), b"strongroom-client-marker"), 0);
}
