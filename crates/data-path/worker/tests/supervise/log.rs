//! A worker that tries to change the content of the log.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::process::Command;

use crate::stage::{Supervised, install};

/// The newest program's behaviour: it uses every right that its open standard error gives.
pub const FORGES: &str = "forges";
/// Set for the process that owns the log.
const WITH_LOG: &str = "STRONGROOM_TEST_WITH_LOG";
const BEFORE: &str = "what was logged before\n";

/// The worker's part.
pub fn forge() {
    let log = io::stderr();
    let mut log = File::from(log.as_fd().try_clone_to_owned().unwrap());
    let _ = rustix::fs::fcntl_setfl(&log, rustix::fs::OFlags::empty());
    let _ = log.set_len(0);
    let _ = log.seek(SeekFrom::Start(0));
    log.write_all(b"forged\n").unwrap();
}

/// A supervisor with a log of its own.
#[test]
fn a_supervisor_with_a_log() {
    if std::env::var_os(WITH_LOG).is_none() {
        return;
    }
    let supervised = Supervised::start();
    install(supervised.directory.path(), FORGES);
    supervised.ask(strongroom_worker::control::Request::Upgrade);
    supervised.end();
}

#[test]
fn a_worker_adds_to_the_log_and_changes_nothing_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = File::create(&path).unwrap();
    log.write_all(BEFORE.as_bytes()).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "log::a_supervisor_with_a_log", "--nocapture"])
        .env(WITH_LOG, "1")
        .stdout(std::process::Stdio::null())
        .stderr(log)
        .status()
        .unwrap();
    assert!(status.success());
    let said = fs::read_to_string(&path).unwrap();
    assert!(said.starts_with(BEFORE) && said.contains("forged\n"), "{said:?}");
}
