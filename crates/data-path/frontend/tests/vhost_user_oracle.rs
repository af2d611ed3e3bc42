//! Verified load through the server, on every stage of an encrypted volume, in memory: all kinds of
//! requests, at depth 1 to 128 on 1 to 4 queues, in chains of any shape, against an oracle that
//! knows the possible content of every sector.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

mod vhost_user_support;

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::protocol::{feature, protocol_feature};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, Until};

use vhost_user_support::{DISK_BYTES, Local, disk};

const OPERATIONS: u64 = 1500;
const EVENT_INDEX: u64 = feature::RING_EVENT_IDX;
const INDIRECT: u64 = feature::RING_INDIRECT_DESC;

fn exercise(settings: Settings, seed: u64) {
    let local = Local::start(disk());
    let front_end = FrontEnd::connect(&local.socket, settings).unwrap();
    let config = LoadConfig { area_bytes: DISK_BYTES, ..LoadConfig::new(seed) };
    let mut load = Load::new(front_end, config).unwrap();
    load.run(Until::Operations(OPERATIONS)).unwrap();
    let report = load.finish().unwrap_or_else(|error| panic!("{settings:?}, seed {seed}: {error}"));
    println!("{settings:?}: {report}");
    assert!(report.kicks > 0 && report.kicks <= 2 * report.operations());
    assert!(settings.depth == 1 || report.out_of_order > 0);
    local.server.stop().unwrap();
}

#[test]
fn one_queue_without_any_extras() {
    let plain = Settings { without_features: EVENT_INDEX | INDIRECT, ..Settings::new(1, 1) };
    exercise(plain, 1);
    exercise(Settings { depth: 16, ..plain }, 2);
}

#[test]
fn one_queue_with_event_index_and_indirect_tables() {
    exercise(Settings::new(1, 1), 3);
    exercise(Settings::new(1, 64), 4);
}

#[test]
fn two_queues_at_depth_32() {
    exercise(Settings { without_features: INDIRECT, ..Settings::new(2, 32) }, 5);
    exercise(Settings { without_features: EVENT_INDEX, queue_size: 1024, ..Settings::new(2, 32) }, 6);
}

#[test]
fn four_queues_at_depth_128_and_rings_that_are_too_small_for_it() {
    exercise(Settings { queue_size: 1024, ..Settings::new(4, 128) }, 7);
    exercise(Settings { queue_size: 16, ..Settings::new(4, 128) }, 8);
}

#[test]
fn a_driver_that_cannot_flush_and_a_front_end_that_knows_little() {
    let without_features = feature::FLUSH | feature::DISCARD | feature::WRITE_ZEROES;
    let kept = protocol_feature::CONFIG | protocol_feature::MQ;
    exercise(Settings { without_features, without_protocol_features: !kept, ..Settings::new(2, 16) }, 9);
}
