//! A small run of the comparison of this program with other disk servers: each serves, takes load,
//! and yields figures. Also the disk in memory, which exists for this comparison.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use strongroom_lab::datapath::comparison::{
    ComparisonConfig, Form, missing, programs, report_settings, rows, study,
};
use strongroom_lab::datapath::disks::{Disks, Sizes};
use strongroom_lab::study::{Machine, Metric, Pace, Report, Store, StudyError, Workload};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::guest::Pages;
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, Until};
use strongroom_system_tests::{CommandLine, Process, Scratch, family};

/// A row of each kind, without those for which QEMU derives keys for seconds.
const ROWS: [&str; 6] = [
    "disk: 4 KiB random 70/30 read and write, depth 32",
    "memory: 4 KiB random write, depth 32",
    "memory: 4 KiB random read, depth 32, 2 disks",
    "NBD, memory or tmpfs: 4 KiB random write, depth 32",
    "NBD, disk: 4 KiB random read, depth 32",
    "map of 100,000 extents, over NBD",
];
const PACE: Pace =
    Pace { rounds: 1, warm_up: Duration::from_millis(10), duration: Duration::from_millis(50) };
const MIB: u64 = 1 << 20;
/// Timeout of a server's start or end.
const DEADLINE: Duration = Duration::from_secs(60);

fn config(program: &Path) -> ComparisonConfig {
    ComparisonConfig {
        form: Form::Full,
        groups: Vec::new(),
        program: program.to_owned(),
        baseline_program: None,
        sizes: Sizes { disk: 32 * MIB, one_of_several: 16 * MIB, memory: 16 * MIB, map_runs: 200 },
        pages: Pages::Huge,
        spin: Duration::ZERO,
    }
}

/// Measures the rows of these names, until `stop`.
fn measure(
    scratch: &Scratch,
    program: &Path,
    names: &[&str],
    stop: &Arc<AtomicBool>,
) -> Result<Report, StudyError> {
    let config = config(program);
    let directory = scratch.path("lab");
    let disks = Disks::new(&directory.join("disks"), config.sizes, Arc::clone(stop)).expect("disks");
    let mut rows = rows(config.form, &config.groups);
    rows.retain(|row| names.contains(&row.name()));
    let mut study = study(&config, rows, PACE, &disks, &|_| {}).expect("a study");
    let machine = Machine::describe(&directory, programs(&config).expect("programs")).expect("a machine");
    let mut store = Store::open(&directory.join("store"), &study.plan(), &machine).expect("a store");
    study.run(&mut store, &|_| {}, stop)?;
    Ok(Report::of(&store, &report_settings(&config)))
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn every_server_gives_figures_at_all_that_it_can_do() {
    let scratch = Scratch::new();
    let program = CommandLine::new(&scratch).program();
    let absent = missing();
    assert!(absent.is_empty(), "scripts/install-packages test installs them: {absent:?}");
    let report = measure(&scratch, program, &ROWS, &Arc::default()).unwrap_or_else(|error| panic!("{error}"));
    let text = report.to_string();
    let count = |name: &str| report.workload(name).map_or(0, |row| row.rows.len());
    let counts: BTreeMap<&str, usize> = ROWS.iter().map(|name| (*name, count(name))).collect();
    let expected =
        BTreeMap::from([(ROWS[0], 6), (ROWS[1], 3), (ROWS[2], 3), (ROWS[3], 9), (ROWS[4], 8), (ROWS[5], 4)]);
    assert_eq!(counts, expected, "{text}");
    for workload in &report.workloads {
        for row in &workload.rows {
            let median = |metric| row.median(metric).unwrap_or(0.0);
            let about = format!("{}, {}: {row:?}", workload.name, row.subject);
            assert!(median(workload.headline) > 0.0, "{about}");
            if workload.headline != Metric::ElapsedMs {
                assert!(median(Metric::LatencyP50Us) > 0.0, "{about}");
                assert!(median(Metric::LatencyP50Us) <= median(Metric::LatencyMaxUs), "{about}");
                // The kernel counts in hundredths of a second, and on a busy machine a server does
                // less in the time of a test.
                let is_countable = median(Metric::OperationsPerSecond) > 1000.0;
                let cpu = row.median(Metric::ServerCpuUsPerOperation);
                assert!(cpu.is_some_and(|cpu| cpu > 0.0 || !is_countable), "{about}");
            }
            assert!(text.contains(&row.subject), "{text}");
        }
    }
    // The raw file is there for rows on the disk, and the best other server for all.
    let disk = report.workload(ROWS[0]).expect("a row");
    let ours = disk.row("strongroom, encrypted").expect("ours");
    assert!(
        ours.comparison(0, disk.headline).is_some() && ours.comparison(2, disk.headline).is_some(),
        "{text}"
    );
    // No process is left, and the disks stay for the next run.
    assert!(fs::read_dir(scratch.path("lab/disks")).expect("disks").count() > 4);
}

#[test]
fn a_signal_ends_it_with_all_that_it_started() {
    let scratch = Scratch::new();
    let program = CommandLine::new(&scratch).program();
    let stopped = measure(&scratch, program, &[ROWS[1]], &Arc::new(AtomicBool::new(true)));
    assert!(matches!(stopped, Err(StudyError::Stopped { done: 0, .. })), "{stopped:?}");
}

/// Starts a disk in memory, and waits until it accepts connections.
fn expose_memory(command_line: &CommandLine<'_>, protection: &[&str]) -> Process {
    let address = ["volume", "expose-memory", "--size", "32M", "--vhost-user", "unix:memory.sock"];
    let mut server = command_line.start("memory", &[&address[..], protection].concat());
    let place = command_line.path("memory.sock").display().to_string();
    server.wait_for_line("its socket", DEADLINE, |line| line == place);
    server
}

#[test]
fn a_disk_in_memory_is_a_disk_encrypted_or_not() {
    let scratch = Scratch::new();
    let command_line = CommandLine::new(&scratch);
    for protection in [&[][..], &["--unencrypted"][..]] {
        let server = expose_memory(&command_line, protection);
        let front_end = FrontEnd::connect(&command_line.path("memory.sock"), Settings::new(2, 16));
        let config = LoadConfig { area_bytes: 32 * MIB, ..LoadConfig::new(3) };
        let mut load = Load::new(front_end.expect("a server"), config).expect("a load");
        load.run(Until::Operations(2000)).expect("verified");
        load.finish().expect("verified");
        assert!(server.terminate(DEADLINE).success());
    }
}

#[test]
fn a_disk_in_memory_ends_with_its_worker() {
    let scratch = Scratch::new();
    let command_line = CommandLine::new(&scratch);
    let mut server = expose_memory(&command_line, &[]);
    family::kill(family::only_child_of(server.id()));
    server.wait_for_line("why it ended", DEADLINE, |line| line.contains("what was written is gone with it"));
    assert!(!server.wait(DEADLINE).success());
}
