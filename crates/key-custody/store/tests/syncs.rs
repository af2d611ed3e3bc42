//! A real file whose syncs the kernel refuses. A call that succeeds all the same has not asked for
//! its sync, which only a power cut would show.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

#[path = "../../../base/files/tests/support/refused_calls.rs"]
mod refused_calls;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use libc::{SYS_fdatasync, SYS_fsync};
use refused_calls::without;
use strongroom_store::{Engine, Revision, Store, StoreError, Transaction};

fn place() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    (directory, path)
}

#[test]
fn no_transaction_is_acknowledged_without_its_sync() {
    let (_directory, path) = place();
    let engine = Engine::create(&path).unwrap();
    engine.commit(Transaction::new().put("k", "old")).unwrap();
    drop(engine);
    let outcome = without(SYS_fdatasync, || {
        let engine = Engine::open(&path)?;
        engine.commit(Transaction::new().put("k", "new"))
    });
    assert!(outcome.is_err(), "{outcome:?}");
    assert!(Engine::open(&path).unwrap().snapshot().unwrap().revision() >= Revision(1));
}

#[test]
fn no_store_is_made_or_opened_without_a_durable_name() {
    let (_directory, path) = place();
    let refused = without(SYS_fsync, || Engine::create(&path));
    assert!(matches!(refused, Err(StoreError::Open { doing: "made", .. })), "{refused:?}");
    assert!(!path.exists());
    drop(Engine::create(&path).unwrap());
    let refused = without(SYS_fsync, || Engine::open(&path));
    assert!(matches!(refused, Err(StoreError::Open { doing: "opened", .. })), "{refused:?}");
}

#[test]
fn a_store_is_for_its_owner_alone() {
    let (_directory, path) = place();
    drop(Engine::create(&path).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}
