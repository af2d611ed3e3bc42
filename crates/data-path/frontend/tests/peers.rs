//! Real clients against the server, over a unix socket: libnbd, QEMU and fio.

#![allow(clippy::unwrap_used)]

mod support;

use std::fs;

use strongroom_io::RequestKind;
use support::memory_disk::MemoryDisk;
use support::{Local, encrypted_disk, noise, run, run_well};

#[test]
fn nbdinfo_is_told_what_the_export_can_do() {
    let local = Local::start(&MemoryDisk::new(10 << 20));
    let info = run_well("nbdinfo", &[local.server.uri()]);
    for line in [
        "protocol: newstyle-fixed without TLS",
        "export-size: 10485760",
        "description: a disk in memory",
        "can_cache: true",
        "can_df: true",
        "can_fast_zero: false",
        "can_flush: true",
        "can_fua: true",
        "can_multi_conn: true",
        "can_trim: true",
        "can_zero: true",
        "is_read_only: false",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "block_size_maximum: 33554432",
        "base:allocation",
    ] {
        assert!(info.contains(line), "no '{line}' in\n{info}");
    }
    let list = run_well("nbdinfo", &["--list", local.server.uri()]);
    assert!(list.contains("export=\"disk\""), "{list}");
    let unknown = format!("nbd+unix:///other?socket={}", local.socket.display());
    assert!(!run("nbdinfo", &[&unknown]).status.success());
    local.server.stop().unwrap();
}

#[test]
fn the_map_shows_what_was_written() {
    let disk = MemoryDisk::new(10 << 20);
    let local = Local::start(&disk);
    let uri = local.server.uri();
    run_well("qemu-io", &["-f", "raw", "-c", "write -P 7 1M 64k", "-c", "write -P 8 3M 4k", uri]);
    let map = run_well("nbdinfo", &["--map", uri]);
    let runs: Vec<(u64, u64, u64)> = map
        .lines()
        .map(|line| {
            let mut numbers = line.split_whitespace().map_while(|word| word.parse().ok());
            (numbers.next().unwrap(), numbers.next().unwrap(), numbers.next().unwrap())
        })
        .collect();
    let (m, k) = (1 << 20, 1 << 10);
    let expected = [
        (0, m, 3),
        (m, 64 * k, 0),
        (m + 64 * k, 2 * m - 64 * k, 3),
        (3 * m, 4 * k, 0),
        (3 * m + 4 * k, 7 * m - 4 * k, 3),
    ];
    assert_eq!(runs, expected);
    let map = run_well("qemu-img", &["map", "--output=json", "-f", "raw", uri]);
    assert!(
        map.contains(
            "\"start\": 1048576, \"length\": 65536, \"depth\": 0, \"present\": true, \"zero\": false"
        ),
        "{map}"
    );
    let info = run_well("qemu-img", &["info", uri]);
    assert!(info.contains("virtual size: 10 MiB"), "{info}");
    local.server.stop().unwrap();
}

#[test]
fn nbdcopy_and_qemu_img_copy_there_and_back_over_many_connections() {
    let disk = MemoryDisk::new(50 << 20);
    let local = Local::start(&disk);
    let image = noise(1, 50 << 20);
    let file = local.directory.path().join("image");
    let back = local.directory.path().join("back");
    fs::write(&file, &image).unwrap();
    let (file, back) = (file.to_str().unwrap(), back.to_str().unwrap());
    let uri = local.server.uri();
    run_well("nbdcopy", &["--connections=4", "--flush", file, uri]);
    assert!(disk.content() == image);
    assert!(disk.log().iter().any(|(kind, _)| *kind == RequestKind::Flush));
    // The largest requests that the protocol requires servers to support.
    run_well("nbdcopy", &["--connections=4", "--request-size=33554432", uri, back]);
    assert!(fs::read(back).unwrap() == image);
    run_well("qemu-img", &["compare", "-f", "raw", "-F", "raw", file, uri]);
    run_well("nbdcopy", &["--synchronous", uri, back]);
    assert!(fs::read(back).unwrap() == image);
    run_well("qemu-img", &["convert", "-n", "-f", "raw", "-O", "raw", "-W", "-m", "16", back, uri]);
    assert!(disk.content() == image);
    local.server.stop().unwrap();
}

#[test]
fn qemu_zeroes_trims_and_forces_unit_access() {
    let disk = MemoryDisk::new(4 << 20);
    disk.fill(0, &[0x55; 4 << 20]);
    let local = Local::start(&disk);
    let commands = [
        "write -f -P 1 512 1024",
        "write -z -u 64k 64k",
        "write -z 1000000 11",
        "discard 1M 1M",
        "flush",
        "read -P 1 512 1024",
        "read -P 0 64k 64k",
        "read -P 0 1000000 11",
        "read -P 0x55 2M 1M",
        "read -v 4194303 1",
    ];
    let mut arguments = vec!["-f", "raw"];
    commands.iter().for_each(|command| arguments.extend(["-c", command]));
    arguments.push(local.server.uri());
    let output = run_well("qemu-io", &arguments);
    assert!(!output.contains("failed"), "{output}");
    let content = disk.content();
    assert!(content[1 << 20..2 << 20].iter().all(|byte| *byte == 0));
    let kinds: Vec<RequestKind> = disk.log().iter().map(|(kind, _)| *kind).collect();
    assert!(kinds.contains(&RequestKind::Discard) && kinds.contains(&RequestKind::WriteZeroes));
    local.server.stop().unwrap();
}

#[test]
fn fio_verifies_what_several_connections_write() {
    verify_with_fio(Local::start(&MemoryDisk::new(64 << 20)));
}

/// Each of these writes is a part of a block, which is read, decrypted, changed and encrypted.
#[test]
fn fio_verifies_what_several_connections_write_to_an_encrypted_volume() {
    verify_with_fio(Local::serve(encrypted_disk(64 << 20), |_| {}));
}

fn verify_with_fio(local: Local) {
    let uri = format!("--uri={}", local.server.uri());
    let verified = [
        "--ioengine=nbd",
        "--thread",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--iodepth=32",
        &uri,
    ];
    // Every block size and alignment of 512 bytes; each job checks its own writes, in its own
    // region.
    let mixed = [
        "--name=mixed",
        "--rw=randrw",
        "--bsrange=512-1M",
        "--blockalign=512",
        "--numjobs=4",
        "--size=16M",
        "--offset_increment=16M",
        "--io_size=48M",
        "--serialize_overlap=1",
        "--do_verify=1",
    ];
    let output = run_well("fio", &[&verified[..], &mixed].concat());
    assert!(output.contains("err= 0"), "{output}");
    // Jobs that write neighbouring parts of the same blocks at the same time, and lose none of
    // them.
    let neighbours: Vec<String> = (0..4)
        .flat_map(|job| {
            [
                format!("--name=part{job}"),
                "--rw=randwrite".to_owned(),
                "--bs=512".to_owned(),
                "--zonemode=strided".to_owned(),
                "--zonesize=512".to_owned(),
                "--zonerange=2048".to_owned(),
                "--zoneskip=1536".to_owned(),
                format!("--offset={}", job * 512),
                "--size=4M".to_owned(),
                "--io_size=1M".to_owned(),
                "--do_verify=1".to_owned(),
            ]
        })
        .collect();
    let neighbours: Vec<&str> = neighbours.iter().map(String::as_str).collect();
    let output = run_well("fio", &[&verified[..], &neighbours].concat());
    assert!(output.contains("err= 0"), "{output}");
    local.server.stop().unwrap();
}
