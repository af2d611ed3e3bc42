//! Verified load on an exposed volume, with every combination of queues, depth and ring features
//! that drivers use; and on QEMU's own server, which shows that the load relies only on the
//! standards.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::protocol::feature;
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, Report, Until};
use strongroom_system_tests::{Process, Protection, Scratch, Volume};

/// Operations of each combination.
const OPERATIONS: u64 = if cfg!(feature = "full") { 20_000 } else { 250 };

/// The volume is larger than the used area, so that requests do not always collide.
const AREA_BYTES: u64 = 24 << 20;

/// Timeout of the start and of the end of QEMU's server.
const QEMU_DEADLINE: Duration = Duration::from_secs(60);

fn verify(socket: &Path, settings: Settings, seed: u64) -> Report {
    let load = || {
        let front_end = FrontEnd::connect(socket, settings)?;
        let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(seed) };
        let mut load = Load::new(front_end, config)?;
        load.run(Until::Operations(OPERATIONS))?;
        load.finish()
    };
    load().unwrap_or_else(|error| panic!("{settings:?}, seed {seed}: {error}"))
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn every_combination_of_queues_depth_and_features_is_verified() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "64M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let (event_index, indirect) = (feature::RING_EVENT_IDX, feature::RING_INDIRECT_DESC);
    let mut all = Report::default();
    let mut seed = 0;
    for queues in 1..=4 {
        for depth in [1, 8, 32, 128] {
            for without_features in [0, event_index, indirect, event_index | indirect] {
                seed += 1;
                // Rings that are too small for the depth, as QEMU has them, and large ones.
                let queue_size = [128, 16, 1024, 256][seed as usize % 4];
                let settings = Settings { queue_size, without_features, ..Settings::new(queues, depth) };
                let report = verify(exposure.socket(), settings, seed);
                all = all.and(&report);
            }
        }
    }
    println!("{seed} combinations: {all}");
    assert!(all.out_of_order > 0, "nothing was answered out of order: {all}");
    assert!(exposure.close().success());
}

#[test]
fn qemus_own_server_passes_too() {
    let scratch = Scratch::new();
    let (image, socket) = (scratch.path("image"), scratch.path("qemu.sock"));
    let file = File::create(&image).expect("an image can be made");
    file.set_len(64 << 20).expect("an image can be made");
    let mut command = Command::new("qemu-storage-daemon");
    command.arg("--blockdev").arg(format!("file,node-name=disk,discard=unmap,filename={}", image.display()));
    command.arg("--export").arg(format!(
        "vhost-user-blk,id=export,node-name=disk,writable=on,num-queues=4,addr.type=unix,addr.path={}",
        socket.display()
    ));
    // It greets after it has processed the options before.
    command.args(["--chardev", "stdio,id=greeting", "--monitor", "greeting"]);
    let mut qemu = Process::start(&scratch, "qemu-storage-daemon", &command);
    qemu.wait_for_line("its greeting", QEMU_DEADLINE, |line| line.contains("QMP"));
    let mut all = Report::default();
    for (seed, (queues, depth)) in [(1, 1), (1, 128), (2, 32), (4, 16)].into_iter().enumerate() {
        let settings = Settings { splits_regions: false, ..Settings::new(queues, depth) };
        all = all.and(&verify(&socket, settings, seed as u64));
    }
    println!("{all}");
    assert!(qemu.terminate(QEMU_DEADLINE).success());
}
