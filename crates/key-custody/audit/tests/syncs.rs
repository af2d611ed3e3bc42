//! A real directory whose syncs the kernel refuses. A call that succeeds all the same has not asked
//! for its sync, which only a power cut would show.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

#[path = "../../../base/files/tests/support/refused_calls.rs"]
mod refused_calls;
mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use libc::{SYS_fdatasync, SYS_fsync};
use refused_calls::without;
use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{AuditError, AuditLog, Receipt};
use support::{SMALL, document, key, record};

/// Opens the log, and appends a record.
fn append(path: &Path, document: &[u8]) -> Result<Receipt, AuditError> {
    let directory = Arc::new(OsDirectory::lock(path)?);
    AuditLog::open(directory, Box::new(key(document)), SMALL)?.append(&record(1)).wait()
}

#[test]
fn no_record_is_answered_without_the_sync_of_its_line_and_of_its_files_name() {
    for call in [SYS_fdatasync, SYS_fsync] {
        let (directory, document) = (tempfile::tempdir().unwrap(), document());
        let refused = without(call, || append(directory.path(), &document));
        assert!(matches!(refused, Err(AuditError::Failed { .. })), "{refused:?}");
    }
}

#[test]
fn no_log_is_opened_without_the_syncs_of_what_it_goes_on_from() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    append(directory.path(), &document).unwrap();
    for call in [SYS_fdatasync, SYS_fsync] {
        let refused = without(call, || append(directory.path(), &document));
        assert!(matches!(refused, Err(AuditError::Io { .. })), "{refused:?}");
    }
}

#[test]
fn a_log_is_for_its_owner_alone() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    append(directory.path(), &document).unwrap();
    let file = directory.path().join("audit-00000000000000000001.jsonl");
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
}
