//! Verified load on an exposed volume, with every combination of queues, depth and ring features that drivers use.

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::protocol::feature;
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, Report, Until};
use strongroom_system_tests::{Exposure, Protection, Scratch, Volume};

/// Of each combination.
const OPERATIONS: u64 = if cfg!(feature = "full") { 20_000 } else { 250 };

/// The volume is larger than what is used, so that requests do not only meet.
const AREA_BYTES: u64 = 24 << 20;

fn verify(exposure: &Exposure, settings: Settings, seed: u64) -> Report {
    let load = || {
        let front_end = FrontEnd::connect(exposure.socket(), settings)?;
        let config = LoadConfig { area_bytes: AREA_BYTES, ..LoadConfig::new(seed) };
        let mut load = Load::new(front_end, config)?;
        load.run(Until::Operations(OPERATIONS))?;
        load.finish()
    };
    load().unwrap_or_else(|error| panic!("{settings:?}, seed {seed}: {error}"))
}

#[test]
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
                // Rings that are too small for the depth, as QEMU has them, and large.
                let queue_size = [128, 16, 1024, 256][seed as usize % 4];
                let settings = Settings { queue_size, without_features, ..Settings::new(queues, depth) };
                let report = verify(&exposure, settings, seed);
                assert!(depth == 1 || report.out_of_order > 0, "{settings:?}: {report}");
                all = all.and(&report);
            }
        }
    }
    println!("{seed} combinations: {all}");
    assert!(exposure.close().success());
}
