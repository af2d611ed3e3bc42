//! A device is used while what serves it is killed, and after everything was.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::process::{Signal, kill_process};

use crate::machine::{link, machine, name, wait_until};

const BLOCK: usize = 4096;

/// What the `number`th write has in its block.
fn content(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

/// Writes and syncs blocks one after the other until it ends; returns how many were acknowledged.
fn write_on(device: &File, blocks: u64, is_over: &AtomicBool, written: &AtomicU64) {
    while !is_over.load(Ordering::Relaxed) {
        let number = written.load(Ordering::Relaxed);
        device.write_all_at(&content(number), number % blocks * BLOCK as u64).unwrap();
        device.sync_data().unwrap();
        written.store(number + 1, Ordering::Relaxed);
    }
}

#[track_caller]
fn verify(device: &File, blocks: u64, written: u64) {
    for number in written.saturating_sub(blocks)..written {
        let mut found = vec![0; BLOCK];
        device.read_exact_at(&mut found, number % blocks * BLOCK as u64).unwrap();
        assert!(found == content(number), "write {number} of {written} is lost");
    }
}

fn open(name: &str) -> File {
    File::options().read(true).write(true).open(link(name)).unwrap()
}

#[test]
fn a_device_stops_and_goes_on_when_what_serves_it_is_killed() {
    let Some(mut machine) = machine() else { return };
    let device = name("kill");
    machine.create(&device, "64M", &[]);
    machine.start_service();
    machine.runs(&["device", "attach", &device]);
    let (is_over, written) = (AtomicBool::new(false), AtomicU64::new(0));
    let file = open(&device);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_on(&file, 2000, &is_over, &written));
        let more = |machine: &crate::machine::Machine| {
            let until = written.load(Ordering::Relaxed) + 20;
            wait_until("writes go on", || written.load(Ordering::Relaxed) >= until || writer.is_finished());
            assert_eq!(machine.state(&device), "attached");
        };
        for _ in 0..3 {
            more(&machine);
            machine.kills(|| machine.worker(&device));
        }
        for _ in 0..2 {
            more(&machine);
            machine.kills(|| machine.supervisor(&device));
        }
        more(&machine);
        let process = machine.device_process(&device);
        machine.kill_service();
        machine.start_service();
        more(&machine);
        assert_eq!(machine.device_process(&device), process, "the next service takes it over");
        is_over.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    machine.is_refused(&["device", "detach", &device], "is in use by");
    drop(file);
    machine.runs(&["device", "detach", &device]);
    assert!(link(&device).symlink_metadata().is_err());
    machine.runs(&["device", "attach", &device]);
    verify(&open(&device), 2000, written.load(Ordering::Relaxed));
    machine.runs(&["device", "detach", &device]);
    machine.runs(&["device", "remove", &device, "--yes"]);
    assert!(!machine.path("ds").join(&device).exists());
}

#[test]
fn a_killed_device_process_fails_its_requests_and_the_next_one_has_what_was_synced() {
    let Some(mut machine) = machine() else { return };
    let device = name("fail");
    machine.create(&device, "16M", &[]);
    machine.start_service();
    machine.runs(&["device", "attach", &device]);
    let file = open(&device);
    file.write_all_at(&content(7), 0).unwrap();
    file.sync_data().unwrap();
    let process = machine.device_process(&device);
    kill_process(process, Signal::KILL).unwrap();
    // It is an error, and no silence.
    file.write_all_at(&content(8), 0).and_then(|()| file.sync_data()).unwrap_err();
    wait_until("there is another process", || {
        machine.state(&device) == "attached" && machine.device_process(&device) != process
    });
    let mut found = vec![0; BLOCK];
    open(&device).read_exact_at(&mut found, 0).unwrap();
    assert!(found == content(7));
}

#[test]
fn after_a_start_of_the_machine_a_device_waits_for_its_key() {
    let Some(mut machine) = machine() else { return };
    let device = name("boot");
    machine.create(&device, "16M", &["--cluster", "ceph"]);
    machine.start_service();
    machine.runs(&["device", "attach", &device]);
    let file = open(&device);
    file.write_all_at(&content(1), 0).unwrap();
    file.sync_data().unwrap();
    drop(file);
    // Everything is killed, as by a power cut, and the key server is away.
    let process = machine.device_process(&device);
    machine.kill_service();
    kill_process(process, Signal::KILL).unwrap();
    machine.kill_keyserver();
    machine.start_service();
    machine.awaits(&device, "waiting_for_key");
    assert!(link(&device).metadata().is_err(), "there is no device without the key");
    assert!(machine.runs(&["device", "list"]).contains("waiting for the key: "));
    machine.start_keyserver();
    machine.awaits(&device, "attached");
    verify(&open(&device), 1, 2);
}

#[test]
fn a_flush_reaches_the_volume_and_a_discard_frees_zeros() {
    let Some(mut machine) = machine() else { return };
    let device = name("flush");
    machine.create(&device, "64M", &[]);
    machine.start_service();
    machine.runs(&["device", "attach", &device]);
    let file = open(&device);
    for round in 1..=10 {
        let (flushes, writes) = (machine.requests(&device, "flush"), machine.requests(&device, "write"));
        file.write_all_at(&content(round), round * BLOCK as u64).unwrap();
        file.sync_data().unwrap();
        assert!(machine.requests(&device, "write") > writes, "round {round}: a sync writes");
        assert!(machine.requests(&device, "flush") > flushes, "round {round}: a sync flushes");
    }
    file.write_all_at(&vec![0xA5; 32 << 20], 0).unwrap();
    file.sync_data().unwrap();
    let allocated = || machine.listed(&device)["allocated_bytes"].as_u64().unwrap();
    let before = allocated();
    let range = ["--offset", "4096", "--length", "16777216"];
    assert!(Command::new("blkdiscard").args(range).arg(link(&device)).status().unwrap().success());
    assert!(allocated() + (15 << 20) < before, "{} of {before} are left", allocated());
    let mut found = vec![1; 16 << 20];
    file.read_exact_at(&mut found, 4096).unwrap();
    assert!(found.iter().all(|byte| *byte == 0), "a discarded block reads as zeros");
    file.read_exact_at(&mut found[..BLOCK], 0).unwrap();
    assert!(found[..BLOCK].iter().all(|byte| *byte == 0xA5), "its neighbour is as it was");
}

#[test]
fn a_file_system_is_mounted_on_a_device_and_nothing_of_it_lies_on_the_disk() {
    let Some(mut machine) = machine() else { return };
    let device = name("mount");
    let marker = format!("marker of {device}").repeat(1000);
    machine.create(&device, "64M", &["--integrity"]);
    machine.start_service();
    machine.runs(&["device", "attach", &device]);
    let at = machine.path("mnt");
    std::fs::create_dir(&at).unwrap();
    let run = |program: &str, words: &[&str]| {
        assert!(Command::new(program).args(words).status().unwrap().success(), "{program} {words:?}");
    };
    run("mkfs.ext4", &["-q", &link(&device).to_string_lossy()]);
    run("mount", &[&link(&device).to_string_lossy(), &at.to_string_lossy()]);
    std::fs::write(at.join("file"), &marker).unwrap();
    File::open(at.join("file")).unwrap().sync_all().unwrap();
    machine.is_refused(&["device", "detach", "--all"], "a mount at");
    machine.kills(|| machine.worker(&device));
    run("umount", &[&at.to_string_lossy()]);
    run("mount", &[&link(&device).to_string_lossy(), &at.to_string_lossy()]);
    assert_eq!(std::fs::read_to_string(at.join("file")).unwrap(), marker);
    run("umount", &[&at.to_string_lossy()]);
    machine.runs(&["device", "detach", &device]);
    for place in ["ds", "home", "run"] {
        let found =
            Command::new("grep").args(["-rqa", &marker[..40]]).arg(machine.path(place)).status().unwrap();
        assert_eq!(found.code(), Some(1), "the marker is in {place}");
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_changes() {
    let Some(mut machine) = machine() else { return };
    let device = name("odd");
    let create = |on: &str, size: &str, more: &[&str]| {
        let words = ["device", "create", &device, "--on", on, "--size", size, "--key-provider"];
        [&words[..], more].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = |machine: &crate::machine::Machine, words: Vec<String>, with: &str| {
        machine.is_refused(&words.iter().map(String::as_str).collect::<Vec<_>>(), with);
    };
    refused(&machine, create("/dev/loop0", "16M", &["embedded"]), "mkfs.xfs");
    refused(&machine, create("nowhere", "16M", &["embedded"]), "No such file");
    refused(&machine, create("ds", "16896", &["embedded"]), "multiple of 4096");
    refused(&machine, create("ds", "16M", &["corp"]), "corp");
    assert_eq!(std::fs::read_dir(machine.path("ds")).unwrap().count(), 0);
    machine.is_refused(&["device", "attach", &device], "there is no device");
    machine.create(&device, "16M", &[]);
    refused(&machine, create("ds", "16M", &["embedded"]), "there is a device");
    machine.is_refused(&["device", "attach", &device], "no service attaches devices");
    assert_eq!(machine.listed(&device)["wanted"], false);
    machine.start_service();
    machine.is_refused(&["device", "serve"], "attaches the devices of");
    machine.runs(&["device", "attach", &device]);
    machine.is_refused(&["device", "remove", &device, "--yes"], "detach");
    machine.stop_service();
    assert!(link(&device).symlink_metadata().is_err(), "a service that ends detaches");
    assert_eq!(machine.listed(&device)["wanted"], true, "the next one attaches it again");
}
