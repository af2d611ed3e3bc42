//! The history of datastores' capacity.

use std::time::Duration;

use crate::support::{Site, caller, settle_down};
use strongroom_api::datastore::{CapacitySample, DatastoreCapacity, TrendDirection};
use strongroom_api::limits::{CAPACITY_DAYS_KEPT, CAPACITY_HOURS_KEPT};
use strongroom_control::engine::Control;
use strongroom_control::records::{CapacityDaysRecord, CapacityHoursRecord, Record};
use strongroom_types::DatastoreId;

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);
const GIB: u64 = 1 << 30;
/// The size of the datastore of a host in memory.
const TOTAL: u64 = 1 << 40;

fn with_datastore(site: &Site) -> Control {
    let control = site.control().unwrap();
    let datastore = serde_json::from_str(r#"{"name":"ds1","path":"/srv/ds1"}"#).unwrap();
    control.add_datastore(&caller(1), &datastore).unwrap();
    assert!(settle_down(site, &control));
    control
}

/// Lets time pass, at whose end the datastore has this much free.
fn pass(site: &Site, control: &Control, time: Duration, free_bytes: u64) -> DatastoreCapacity {
    site.host.lock().free_bytes = free_bytes;
    site.pass(time);
    for host in control.hosts() {
        let _ = control.observe(host, Duration::ZERO).unwrap();
    }
    control.note_capacity().unwrap();
    control.datastore_capacity("ds1").unwrap()
}

#[test]
fn a_week_of_hours_and_three_years_of_days_are_kept() {
    let site = Site::new();
    let control = with_datastore(&site);
    let mut free = 900 * GIB;
    for hour in 0..200u64 {
        free -= GIB;
        let now = pass(&site, &control, HOUR, free);
        assert_eq!(now.hours.len() as u64, (hour + 1).min(168));
        assert_eq!(now.hours.last().unwrap().used_bytes, TOTAL - free);
    }
    // Twice in an hour is once.
    let before = control.datastore_capacity("ds1").unwrap();
    assert_eq!(pass(&site, &control, Duration::ZERO, free - GIB), before);
    let growth = before.trend;
    assert_eq!((growth.direction, growth.bytes_per_day), (TrendDirection::Growing, Some(24 * GIB as i64)));
    assert_eq!(growth.full_in_days, Some((free / GIB / 24) as u32));
    assert_eq!(control.show_datastore("ds1").unwrap().trend, growth);
    // Each day that is over has its last sample.
    let day_of = |sample: &CapacitySample| sample.at_unix_seconds / 86_400;
    assert!(before.days.windows(2).all(|two| day_of(&two[0]) + 1 == day_of(&two[1])), "{:?}", before.days);
    assert!(before.days.iter().all(|day| day.at_unix_seconds % 86_400 >= 23 * 3600), "{:?}", before.days);
    for _ in 0..1200 {
        pass(&site, &control, DAY, free);
    }
    drop(control);
    // The store has them, not the process.
    let kept = site.control().unwrap().datastore_capacity("ds1").unwrap();
    assert_eq!((kept.hours.len(), kept.days.len()), (168, 1098));
}

#[test]
fn what_cannot_be_true_and_what_nobody_says_is_no_sample() {
    let site = Site::new();
    let control = with_datastore(&site);
    let first = pass(&site, &control, HOUR, 900 * GIB);
    assert_eq!(first.hours.len(), 1);
    assert_eq!(pass(&site, &control, HOUR, TOTAL + 1), first, "more is free than there is");
    site.host.lock().missing.insert("/srv/ds1".into(), "not mounted".to_owned());
    assert_eq!(pass(&site, &control, HOUR, 900 * GIB), first, "it is not mounted");
    site.host.lock().missing.clear();
    site.host.lock().down = true;
    assert_eq!(pass(&site, &control, HOUR, 800 * GIB), first, "its host does not answer");
    site.host.lock().down = false;
    let second = pass(&site, &control, HOUR, 800 * GIB);
    assert_eq!(second.hours.len(), 2);
    // Samples of a clock that was a year ahead do not end the history.
    let ahead = pass(&site, &control, DAY * 365, 700 * GIB);
    assert_eq!((ahead.hours.len(), ahead.days.len()), (3, 2));
    site.go_back(DAY * 365);
    let back = pass(&site, &control, HOUR, 800 * GIB);
    assert_eq!((back.hours.len(), back.hours.first()), (3, first.hours.first()));
    assert_eq!(back.hours.last().unwrap().used_bytes, TOTAL - 800 * GIB);
}

#[test]
fn a_datastore_that_is_removed_takes_its_history_along() {
    let site = Site::new();
    let control = with_datastore(&site);
    pass(&site, &control, HOUR, 900 * GIB);
    assert_eq!(pass(&site, &control, DAY, 900 * GIB).days.len(), 1);
    control.remove_datastore(&caller(2), "ds1").unwrap();
    let index = control.inventory.read();
    assert!(index.capacity_hours.is_empty() && index.capacity_days.is_empty());
    drop(index);
    assert!(control.datastore_capacity("ds1").is_err());
}

#[test]
fn a_full_history_is_a_value_of_the_store() {
    let sample = CapacitySample {
        at_unix_seconds: u64::MAX,
        total_bytes: u64::MAX,
        used_bytes: u64::MAX,
        provisioned_bytes: u64::MAX,
    };
    let datastore = DatastoreId::random();
    let days = CapacityDaysRecord { datastore, samples: vec![sample; CAPACITY_DAYS_KEPT] };
    let hours = CapacityHoursRecord { datastore, samples: vec![sample; CAPACITY_HOURS_KEPT] };
    assert_ne!(days.key(), hours.key());
    let bytes = serde_json::to_vec(&days).unwrap().len() + serde_json::to_vec(&hours).unwrap().len();
    assert!(bytes < strongroom_store::limits::VALUE_MAX_BYTES / 2, "{bytes}");
}
