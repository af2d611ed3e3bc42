//! The load passes on an honest disk, and detects and names every kind of lie.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::sync::Arc;

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::protocol::{feature, protocol_feature};
use strongroom_lab::vhost_user::verify::{Finding, Load, LoadConfig, LoadError, Report, Until, Wrong};

use support::{DISK_BYTES, Lie, Local, LyingDisk, Served};

const OPERATIONS: u64 = 4000;

fn verify(lie: Lie, settings: Settings, seed: u64) -> Result<Report, LoadError> {
    let local = Local::start(Arc::new(Served(LyingDisk::new(lie))));
    let front_end = FrontEnd::connect(&local.socket, settings).unwrap();
    let config = LoadConfig { area_bytes: DISK_BYTES, ..LoadConfig::new(seed) };
    let mut load = Load::new(front_end, config)?;
    load.run(Until::Operations(OPERATIONS))?;
    load.finish()
}

/// The first finding of the load.
fn caught(lie: Lie, seed: u64) -> Finding {
    match verify(lie, Settings::new(2, 16), seed) {
        Err(error @ LoadError::Wrong(_)) => {
            println!("{lie:?}: {error}");
            let LoadError::Wrong(findings) = error else { unreachable!() };
            findings[0]
        }
        other => panic!("{lie:?}: {other:?}"),
    }
}

/// The same for permanent errors. Requests in flight may overwrite the sector before it is reread;
/// then the attempt is inconclusive and repeated.
fn caught_for_good(lie: Lie, seed: u64) -> Finding {
    let findings = (0..5).map(|attempt| caught(lie, seed + 100 * attempt));
    findings.into_iter().find(|finding| finding.stays).expect("it stays wrong")
}

/// The same for transient errors, which are correct on rereading. The second read may hit the
/// disk's next lie; then the attempt is repeated.
fn caught_in_passing(lie: Lie, seed: u64) -> Finding {
    let findings = (0..5).map(|attempt| caught(lie, seed + 100 * attempt));
    findings.into_iter().find(|finding| !finding.stays).expect("it is right when it is looked at again")
}

#[test]
fn an_honest_disk_passes_however_it_is_spoken_to() {
    let plain = feature::RING_EVENT_IDX | feature::RING_INDIRECT_DESC;
    for (queues, depth, queue_size, without_features) in
        [(1, 1, 128, 0), (1, 128, 256, plain), (4, 32, 16, feature::RING_EVENT_IDX), (3, 20, 1024, 0)]
    {
        let settings = Settings { queue_size, without_features, ..Settings::new(queues, depth) };
        let report = verify(Lie::None, settings, u64::from(queue_size)).unwrap();
        println!("{settings:?}: {report}");
        assert!(report.operations() >= OPERATIONS);
        assert!(depth == 1 || report.out_of_order > 0);
    }
}

#[test]
fn a_server_without_any_extras_is_spoken_to_as_well() {
    let mut settings = Settings::new(1, 16);
    settings.without_features = feature::WRITE_ZEROES | feature::DISCARD | feature::FLUSH;
    settings.without_protocol_features = !(protocol_feature::CONFIG | protocol_feature::REPLY_ACK);
    let report = verify(Lie::None, settings, 9).unwrap();
    assert_eq!((report.flushes, report.discards, report.zeroings), (0, 0, 0));
}

#[test]
fn lost_writes_are_caught() {
    let finding = caught_for_good(Lie::LostWrite, 1);
    assert!(matches!(finding.wrong, Wrong::Old { .. } | Wrong::Zeroes { .. }), "{finding}");
    assert!(finding.to_string().contains("lost write"));
}

#[test]
fn stale_reads_are_caught() {
    let finding = caught_in_passing(Lie::StaleRead, 2);
    assert!(matches!(finding.wrong, Wrong::Old { .. } | Wrong::Zeroes { .. }), "{finding}");
    assert!(finding.to_string().contains("stale read"));
}

#[test]
fn torn_sectors_are_caught() {
    let finding = caught_for_good(Lie::TornSector, 3);
    assert!(matches!(finding.wrong, Wrong::Torn { from: 408 | 416, .. }), "{finding}");
}

#[test]
fn misdirected_writes_are_caught() {
    // In its intended place the write is lost.
    let finding = caught_for_good(Lie::MisdirectedWrite, 4);
    let misplaced = matches!(finding.wrong, Wrong::Misplaced(stamp) if stamp.sector + 8 == finding.sector);
    assert!(misplaced || matches!(finding.wrong, Wrong::Old { .. } | Wrong::Zeroes { .. }), "{finding}");
}

#[test]
fn reads_that_touch_nothing_are_caught() {
    let finding = caught_in_passing(Lie::EmptyRead, 5);
    assert_eq!(finding.wrong, Wrong::Untouched);
}

#[test]
fn discards_that_reach_too_far_are_caught() {
    let finding = caught_for_good(Lie::WideDiscard, 6);
    assert!(matches!(finding.wrong, Wrong::Zeroes { .. }), "{finding}");
}

#[test]
fn lost_zeroes_are_caught() {
    let finding = caught_for_good(Lie::LostZeroes, 7);
    assert!(matches!(finding.wrong, Wrong::Old { .. }), "{finding}");
}

#[test]
fn flipped_bits_are_caught() {
    let finding = caught_for_good(Lie::Noise, 8);
    assert!(matches!(finding.wrong, Wrong::Foreign | Wrong::Torn { .. }), "{finding}");
}
