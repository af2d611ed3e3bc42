//! Devices move to another key while they are used.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::machine::{link, machine, name};

#[test]
fn all_devices_of_a_cluster_are_rekeyed_while_they_are_used_by_a_job_that_is_killed() {
    let Some(mut machine) = machine() else { return };
    let devices: Vec<String> = (0..3).map(|_| name("key")).collect();
    let apart = name("apart");
    for device in &devices {
        machine.create(device, "16M", &["--cluster", "ceph"]);
    }
    machine.create(&apart, "16M", &[]);
    machine.start_service();
    let attach: Vec<&str> =
        ["device", "attach"].into_iter().chain(devices.iter().map(String::as_str)).collect();
    machine.runs(&attach);
    let key = |machine: &crate::machine::Machine, device: &str| {
        machine.listed(device)["kek_id"].as_str().unwrap().to_owned()
    };
    let (before, other) = (key(&machine, &devices[0]), key(&machine, &apart));
    assert_ne!(before, other);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writers = devices.iter().map(|device| {
            let is_over = &is_over;
            scope.spawn(move || {
                let file = File::options().read(true).write(true).open(link(device)).unwrap();
                let mut round = 0_u64;
                while !is_over.load(Ordering::Relaxed) {
                    round += 1;
                    file.write_all_at(&round.to_le_bytes().repeat(512), 0).unwrap();
                    file.sync_data().unwrap();
                }
                round
            })
        });
        let writers: Vec<_> = writers.collect();
        let mut kills = 0;
        // Each attempt lives somewhat longer, so that kills fall on every step.
        for milliseconds in (0_u64..).step_by(7) {
            let mut job = machine.start(&["device", "rekey", "--cluster", "ceph"]);
            std::thread::sleep(Duration::from_millis(milliseconds));
            if let Some(status) = job.try_wait().unwrap() {
                assert!(status.success());
                break;
            }
            kills += 1;
            job.kill().unwrap();
            job.wait().unwrap();
        }
        println!("the job was killed {kills} times");
        is_over.store(true, Ordering::Relaxed);
        for writer in writers {
            assert!(writer.join().unwrap() > 0);
        }
    });
    let after: Vec<String> = devices.iter().map(|device| key(&machine, device)).collect();
    assert!(after.iter().all(|key| *key == after[0] && *key != before), "{after:?}, before {before}");
    assert_eq!(key(&machine, &apart), other, "a device of no cluster keeps its key");
    // Another one joins under the key that the cluster has now, and all open with it alone.
    machine.create(&format!("{}-more", devices[0]), "16M", &["--cluster", "ceph"]);
    assert_eq!(key(&machine, &format!("{}-more", devices[0])), after[0]);
    let detach: Vec<&str> =
        ["device", "detach"].into_iter().chain(devices.iter().map(String::as_str)).collect();
    machine.runs(&detach);
    machine.runs(&attach);
}
