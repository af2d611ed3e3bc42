//! The study of first writes, on QEMU's storage daemon, and failures of
//! `strongroom-lab first-writes`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use strongroom_lab::first_writes::error::StudyError;
use strongroom_lab::first_writes::product::{ImageFormat, StorageDaemon};
use strongroom_lab::first_writes::report::Tables;
use strongroom_lab::first_writes::result::{FileSystemResult, Phase};
use strongroom_lab::first_writes::session::Place;
use strongroom_lab::first_writes::steps::STEPS;
use strongroom_lab::first_writes::study::{Study, StudyConfig, Subject};
use strongroom_lab::vhost_user::front_end::Settings;

fn config() -> StudyConfig {
    StudyConfig {
        volume_bytes: 16 << 20,
        log_bytes: Some(1 << 20),
        sequential_bytes: 2 << 20,
        steps: STEPS.to_vec(),
        rounds: 2,
        sequential_depth: 8,
        seed: 5,
    }
}

fn study(directory: &Path, config: &StudyConfig, stop: bool) -> Result<FileSystemResult, StudyError> {
    let image = |name: &str, only_overwriting| {
        let (name, passphrase_file) = (name.to_owned(), directory.join("unused"));
        let product = Box::new(StorageDaemon { name, format: ImageFormat::Raw, passphrase_file });
        Subject { product, only_overwriting }
    };
    let settings = Settings { splits_regions: false, ..Settings::new(2, 16) };
    let stop = Arc::new(AtomicBool::new(stop));
    let socket = directory.join("s");
    let place = Place { directory: directory.to_owned(), socket, settings, stop };
    let subjects = [image("raw", false), image("raw, overwritten", true)];
    Study { place, config, subjects: &subjects, progress: &|text| println!("{text}") }.run()
}

#[test]
fn every_phase_is_measured_in_every_round_and_no_disk_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let result = study(directory.path(), &config(), false).unwrap();
    println!("{}", Tables(&result));
    let [raw, overwritten] = result.subjects.as_slice() else { panic!("{result:?}") };
    let blocks = |phase| -> Vec<u64> { raw.rounds(phase).iter().map(|figures| figures.operations).collect() };
    assert_eq!(blocks(Phase::FirstUntilFull), [256; 2]);
    assert_eq!(blocks(Phase::FirstBeyond), [9 * 256; 2]);
    assert_eq!((blocks(Phase::FirstAll), blocks(Phase::Over)), (vec![2560; 2], vec![2560; 2]));
    assert_eq!((blocks(Phase::First64K), blocks(Phase::Over512K)), (vec![32; 2], vec![4; 2]));
    assert_eq!((overwritten.rounds(Phase::Over).len(), overwritten.rounds(Phase::First64K).len()), (2, 0));
    let figures = raw.rounds(Phase::Over)[0];
    assert!(figures.iops > 0.0 && figures.processor_us > 0.0 && figures.median_us <= figures.p99_us);
    assert_eq!((raw.reopen_full_ms.len(), raw.close_ms.len(), raw.memory_full.len()), (2, 2, 2));
    let left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "server.log" || name == "s"), "{left:?}");
}

#[test]
fn sizes_that_do_not_fit_are_refused_before_anything_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let small = StudyConfig { volume_bytes: 8 << 20, ..config() };
    let text = study(directory.path(), &small, false).unwrap_err().to_string();
    assert_eq!(text, "a volume of 8388608 bytes is too small; it needs 10485760 bytes at least");
    let huge = StudyConfig { volume_bytes: 1 << 60, ..config() };
    let text = study(directory.path(), &huge, false).unwrap_err().to_string();
    assert!(text.ends_with("are needed; choose smaller volumes"), "{text}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_signal_ends_it() {
    let directory = tempfile::tempdir().unwrap();
    assert!(matches!(study(directory.path(), &config(), true), Err(StudyError::Signal)));
}

#[test]
fn a_program_that_is_not_there_is_named_and_nothing_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strongroom-lab"));
    command.arg("first-writes").arg(directory.path()).args(["--program", "/no/such/strongroom"]);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("cannot run /no/such/strongroom volume create "), "{text}");
    assert!(text.ends_with("install it, or say where it is\n"), "{text}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}
