//! A short run of the soak that `make soak` runs for an hour: volumes of all kinds under verified
//! load, while their servers are killed, replaced, stopped, grown, re-keyed, disconnected and
//! starved of space.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use strongroom_lab::soak::kind::{Event, Kind};
use strongroom_lab::soak::{SoakConfig, run};
use strongroom_system_tests::{CommandLine, Scratch};

const SECONDS: u64 = if cfg!(feature = "full") { 120 } else { 15 };

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn volumes_outlive_whatever_happens_to_who_serves_them() {
    let scratch = Scratch::new();
    let config = SoakConfig {
        program: CommandLine::new(&scratch).program().to_owned(),
        directory: scratch.make_directory("soak"),
        kinds: Kind::ALL.to_vec(),
        duration: Duration::from_secs(SECONDS),
        seed: 1,
        // The machine that runs the tests is busy with other things.
        rate: 800.0,
        event_period: Duration::from_millis(150),
        sample_period: Duration::from_millis(250),
        samples: Some(scratch.path("samples.jsonl")),
        stop: Arc::default(),
    };
    let report = run(&config, &|text| println!("{text}")).unwrap_or_else(|error| panic!("{error}"));
    println!("{report}");
    assert!(report.is_clean(), "the report above says what is wrong");
    assert!(report.done.iter().all(|done| done.operations > 0) && report.done.len() == Kind::ALL.len());
    assert!(report.happened.events.values().sum::<u64>() >= Event::ALL.len() as u64);
    let samples = fs::read_to_string(scratch.path("samples.jsonl")).expect("the samples are there");
    assert!(samples.lines().count() > Kind::ALL.len());
}
