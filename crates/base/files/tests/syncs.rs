//! The kernel refuses to sync. A call that succeeds all the same has not asked for it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

#[path = "support/refused_calls.rs"]
mod refused_calls;

use std::fs;

use libc::SYS_fsync;
use refused_calls::without;

#[test]
fn nothing_is_reported_as_durable_without_its_sync() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("note");
    strongroom_files::create(&path, b"old").unwrap();
    let other = directory.path().join("other");
    without(SYS_fsync, || {
        strongroom_files::replace(&path, b"new").unwrap_err();
        strongroom_files::create(&other, b"new").unwrap_err();
        strongroom_files::write(&directory.path().join("third"), b"new").unwrap_err();
        strongroom_files::sync_directory(directory.path()).unwrap_err();
    });
    assert_eq!(fs::read(&path).unwrap(), b"old");
    assert!(!other.exists());
    // The removal itself has only the directory to sync.
    without(SYS_fsync, || strongroom_files::remove(&path).unwrap_err());
}
