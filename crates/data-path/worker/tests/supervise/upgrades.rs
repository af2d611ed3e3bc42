//! Programs that are installed while a volume is served.

use std::fs;
use std::sync::Arc;

use strongroom_datastore::file::{DatastoreError, delete};
use strongroom_types::VolumeSize;
use strongroom_worker::condition::Condition;
use strongroom_worker::control::{Answer, Request};
use strongroom_worker::supervise::SuperviseError;

use crate::providers::{OneKey, key_file_kek};
use crate::stage::{LOCK_WAIT, Supervised, install, kill, supervisor, wait_until, waiting};

#[test]
fn a_volume_moves_to_the_program_that_is_installed_now() {
    let supervised = Supervised::start();
    let before = supervised.worker();
    assert_eq!(supervised.status().program.as_deref(), Some("serves"));
    install(supervised.directory.path(), "serves better");
    let Answer::Upgraded { old_worker_pid, worker_pid, program, .. } = supervised.ask(Request::Upgrade)
    else {
        panic!("it was not upgraded");
    };
    assert_eq!((old_worker_pid, program.as_str()), (before, "serves better"));
    assert_eq!(supervised.worker(), worker_pid);
    assert_eq!(supervised.status().restarts, 0);
    supervised.end();
}

#[test]
fn a_worker_that_keeps_its_sessions_goes_on() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "keeps");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let keeper = supervised.worker();
    let refused = supervised.refused(Request::Upgrade);
    assert_eq!(refused, "the old worker does not hand over: a flush failed");
    assert_eq!(supervised.worker(), keeper);
    supervised.end();
}

#[test]
fn sessions_that_a_new_worker_refuses_are_taken_back_by_the_old_program() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "refuses");
    let refused = supervised.refused(Request::Upgrade);
    assert_eq!(refused, "the new worker refused the sessions, and the old program goes on: not these");
    let status = supervised.status();
    assert!(status.worker_pid.is_some() && status.program.as_deref() == Some("serves"), "{status:?}");
    assert_eq!(status.restarts, 0, "the sessions went on");
    supervised.end();
}

#[test]
fn a_new_worker_that_dies_with_the_sessions_is_like_any_dead_worker() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "dies");
    let refused = supervised.refused(Request::Upgrade);
    assert!(
        refused.starts_with("the new worker failed, and the old program is started again: "),
        "{refused}"
    );
    assert!(refused.ends_with("ended with status 9"), "{refused}");
    supervised.worker();
    assert_eq!(supervised.status().restarts, 1);
    supervised.end();
}

#[test]
fn what_a_worker_says_unasked_is_told_to_whoever_asks() {
    let supervised = Supervised::start();
    assert_eq!(supervised.status().condition, Condition::default());
    install(supervised.directory.path(), "waits");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    wait_until("what it said last is told", || supervised.status().condition == waiting(2));
    // The answer after it is found.
    let size_bytes = VolumeSize::new(2 << 20).unwrap();
    let grown = supervised.ask(Request::Resize { size_bytes, least_generation: 1 });
    assert!(matches!(grown, Answer::Resized { .. }), "{grown:?}");
    assert_eq!(supervised.status().condition, Condition::default());
    supervised.end();
}

#[test]
fn the_first_worker_must_serve() {
    let directory = tempfile::tempdir().unwrap();
    install(directory.path(), "refuses");
    let refused = supervisor(directory.path(), key_file_kek(7), Arc::default(), Arc::new(OneKey(8)));
    let refused = refused.unwrap_err();
    assert_eq!(refused.to_string(), "the volume cannot be served: not these");
    delete(&directory.path().join("vm1"), LOCK_WAIT).unwrap();
}

/// A descriptor that replaced the volume's is not served: the supervisor reports that and ends.
#[test]
fn a_volume_that_was_replaced_is_not_served_any_more() {
    let supervised = Supervised::start();
    let volume = supervised.volume();
    let first = fs::read(volume.join("descriptor")).unwrap();
    let size_bytes = VolumeSize::new(2 << 20).unwrap();
    let grown = supervised.ask(Request::Resize { size_bytes, least_generation: 1 });
    assert!(matches!(grown, Answer::Resized { generation: 4, .. }), "{grown:?}");
    fs::write(volume.join("descriptor"), first).unwrap();
    kill(supervised.worker());
    let lost = supervised.thread.join().unwrap().unwrap_err();
    assert!(
        matches!(lost, SuperviseError::Lost(DatastoreError::RolledBack { found: 3, least: 4, .. })),
        "{lost}"
    );
}
