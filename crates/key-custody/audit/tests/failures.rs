//! A log on a disk that fails.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_audit::storage::{Directory, LogFile, OsDirectory};
use strongroom_audit::{AuditError, AuditLog, HeadSigner, verify};
use support::{SMALL, document, key, open, record};

/// What fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Writes find no room.
    NoRoom,
    /// Writes fail otherwise.
    Write,
    /// Syncs of files fail.
    Sync,
    /// The writer's thread ends.
    Panic,
}

/// The present fault, shared with the test.
type Faults = Arc<Mutex<Option<Fault>>>;

struct Disk {
    directory: OsDirectory,
    faults: Faults,
}

struct DiskFile {
    file: Box<dyn LogFile>,
    faults: Faults,
}

impl Directory for Disk {
    fn names(&self) -> io::Result<Vec<String>> {
        self.directory.names()
    }

    fn open(&self, name: &str, write: bool) -> io::Result<Box<dyn LogFile>> {
        let file = self.directory.open(name, write)?;
        Ok(Box::new(DiskFile { file, faults: Arc::clone(&self.faults) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.directory.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.directory.remove(name)
    }

    fn sync(&self) -> io::Result<()> {
        self.directory.sync()
    }
}

impl LogFile for DiskFile {
    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> io::Result<()> {
        match *self.faults.lock() {
            Some(Fault::NoRoom) => Err(io::ErrorKind::StorageFull.into()),
            Some(Fault::Write) => Err(io::Error::other("the device failed")),
            Some(Fault::Panic) => panic!("on purpose"),
            Some(Fault::Sync) | None => self.file.write_at(offset, from),
        }
    }

    fn set_length(&self, length: u64) -> io::Result<()> {
        self.file.set_length(length)
    }

    fn sync(&self) -> io::Result<()> {
        match *self.faults.lock() {
            Some(Fault::Sync) => Err(io::Error::other("the device failed")),
            _ => self.file.sync(),
        }
    }
}

fn open_on_disk(path: &Path, document: &[u8]) -> (AuditLog, Faults) {
    let faults = Faults::default();
    let disk = Disk { directory: OsDirectory::lock(path).unwrap(), faults: Arc::clone(&faults) };
    (AuditLog::open(Arc::new(disk), Box::new(key(document)), SMALL).unwrap(), faults)
}

fn records(path: &Path, document: &[u8]) -> u64 {
    let keys = [key(document).public_key()];
    verify(&OsDirectory::to_read(path).unwrap(), &keys, &[]).unwrap().records
}

#[test]
fn after_a_failure_nothing_is_taken_until_it_is_opened_again() {
    for fault in [Fault::Write, Fault::Sync] {
        let (directory, document) = (tempfile::tempdir().unwrap(), document());
        let (log, faults) = open_on_disk(directory.path(), &document);
        let durable = log.append(&record(0)).wait().unwrap().sequence;
        *faults.lock() = Some(fault);
        let refused = log.append(&record(1)).wait();
        assert!(matches!(refused, Err(AuditError::Failed { .. })), "{fault:?}: {refused:?}");
        *faults.lock() = None;
        let refused = log.append(&record(2)).wait();
        assert!(matches!(refused, Err(AuditError::Failed { .. })), "{fault:?}: {refused:?}");
        let refused = log.head().wait();
        assert!(matches!(refused, Err(AuditError::Failed { .. })), "{fault:?}: {refused:?}");
        assert_eq!((log.durable(), log.counters().refused), (durable, 1));
        drop(log);

        let log = open(directory.path(), &document, SMALL);
        assert!(log.durable() >= durable);
        log.append(&record(3)).wait().unwrap();
        drop(log);
        assert!(records(directory.path(), &document) >= 2);
    }
}

#[test]
fn nobody_waits_for_a_writer_that_has_ended() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let (log, faults) = open_on_disk(directory.path(), &document);
    log.append(&record(0)).wait().unwrap();
    *faults.lock() = Some(Fault::Panic);
    for n in 1..3 {
        let refused = log.append(&record(n)).wait();
        assert!(matches!(refused, Err(AuditError::Failed { .. })), "{refused:?}");
    }
    let refused = log.head().wait();
    assert!(matches!(refused, Err(AuditError::Failed { .. })), "{refused:?}");
    drop(log);
    assert_eq!(records(directory.path(), &document), 1);
}

#[test]
fn without_room_a_record_is_refused_and_a_later_one_is_not() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let (log, faults) = open_on_disk(directory.path(), &document);
    // The first of these begins a file, and the second continues it.
    for n in 0..2 {
        *faults.lock() = Some(Fault::NoRoom);
        let refused = log.append(&record(n)).wait();
        assert!(matches!(refused, Err(AuditError::Full { .. })), "{refused:?}");
        *faults.lock() = None;
        log.append(&record(n)).wait().unwrap();
    }
    assert_eq!((log.counters().records, log.counters().refused), (2, 2));
    drop(log);
    assert_eq!(records(directory.path(), &document), 2);
}
