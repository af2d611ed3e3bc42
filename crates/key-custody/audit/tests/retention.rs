//! The policy removes older files, and the rest is a valid log.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{AuditError, AuditLog, HeadSigner, Options, Record, Report, Retention, Size, verify};
use support::{SMALL, document, key, open, record};

/// The policy of most tests: keeps about three files.
const KEPT: Retention = Retention { keep_bytes: Some(24 * 1024), keep_age: None, collector: None };

fn write(log: &AuditLog, records: u64) {
    for n in 0..records {
        log.append(&record(n)).wait().unwrap();
    }
}

fn verified(path: &Path, document: &[u8]) -> Report {
    let keys = [key(document).public_key()];
    verify(&OsDirectory::to_read(path).unwrap(), &keys, &[]).unwrap()
}

/// The log's records of removals.
fn removals(path: &Path) -> Vec<Record> {
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let lines = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let removals = lines.filter(|line| line["action"] == "remove audit file").map(|mut line| {
        let object = line.as_object_mut().unwrap();
        for member in ["sequence", "group", "previous", "time", "kind"] {
            object.remove(member);
        }
        serde_json::from_value(line).unwrap()
    });
    removals.collect()
}

#[test]
fn the_oldest_files_go_while_there_is_too_much_and_each_is_on_record() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let log = open(directory.path(), &document, SMALL);
    write(&log, 200);
    let before = log.size().unwrap();
    let all = Retention { keep_bytes: Some(before.bytes), ..KEPT };
    assert_eq!(log.retain(&all).unwrap(), 0, "it has as much as may be kept");
    let removed = log.retain(&KEPT).unwrap();
    let Size { files, bytes, first_sequence } = log.size().unwrap();
    // The zeroes ahead of the last line count too, and the last file to go was the one too many.
    assert!(removed > 3 && (12 * 1024..=24 * 1024 + 4096).contains(&bytes), "{removed} {bytes}");
    assert_eq!(log.retain(&KEPT).unwrap(), 0, "nothing more is to go");
    write(&log, 10);
    let head = log.head().wait().unwrap();
    drop(log);

    let report = verified(directory.path(), &document);
    assert_eq!((report.first_sequence, before.first_sequence), (first_sequence, 1));
    assert!(report.files >= files && report.last_sequence > head.sequence);
    let gone = removals(directory.path());
    let last = gone.last().unwrap();
    assert_eq!(last.fields["last_sequence"], (first_sequence - 1).to_string());
    // The line after it follows from what the record says.
    let first =
        fs::read_to_string(directory.path().join(format!("audit-{first_sequence:020}.jsonl"))).unwrap();
    assert!(first.contains(&format!("\"previous\":\"{}\"", last.fields["last_hash"])), "{last:?}");

    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/verify-audit-chain");
    let said = Command::new("python3").arg(script).arg(directory.path()).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    assert!(String::from_utf8_lossy(&said.stdout).starts_with(&format!("{} ", report.last_sequence)));

    // The log continues.
    let log = open(directory.path(), &document, SMALL);
    assert_eq!(log.durable(), report.last_sequence);
}

#[test]
fn nothing_goes_without_a_limit_and_never_the_last_file() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let log = open(directory.path(), &document, SMALL);
    write(&log, 100);
    assert_eq!(log.retain(&Retention::default()).unwrap(), 0);
    let nothing = Retention { keep_bytes: Some(0), ..Retention::default() };
    log.retain(&nothing).unwrap();
    assert_eq!(log.size().unwrap().files, 1);
    assert_eq!(log.retain(&nothing).unwrap(), 0);
    // Nor does it go for a file that has no durable line yet.
    let begun = directory.path().join(format!("audit-{:020}.jsonl", log.durable() + 1));
    fs::write(&begun, "").unwrap();
    assert_eq!(log.retain(&nothing).unwrap(), 0);
    fs::remove_file(begun).unwrap();
    drop(log);
    let log = open(directory.path(), &document, SMALL);
    assert_eq!(log.durable(), verified(directory.path(), &document).last_sequence);
}

#[test]
fn a_file_is_followed_by_the_next_by_age_and_goes_by_age() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    // Every record finds its file too old.
    let old = Options { file_age: Some(Duration::ZERO), ..SMALL };
    let log = open(directory.path(), &document, old);
    write(&log, 4);
    assert_eq!(log.size().unwrap().files, 2, "the first group of a file is one, the next one ends it");
    let young = Retention { keep_age: Some(Duration::from_secs(3600)), ..Retention::default() };
    assert_eq!(log.retain(&young).unwrap(), 0);
    let none = Retention { keep_age: Some(Duration::ZERO), ..Retention::default() };
    assert!(log.retain(&none).unwrap() > 0);
    drop(log);
    let report = verified(directory.path(), &document);
    assert!(report.first_sequence > 1 && report.heads > 0, "{report:?}");
}

#[test]
fn a_file_is_as_old_as_its_first_line_says() {
    for (is_old, files) in [(false, 1), (true, 2)] {
        let (directory, document) = (tempfile::tempdir().unwrap(), document());
        write(&open(directory.path(), &document, SMALL), 1);
        let file = directory.path().join("audit-00000000000000000001.jsonl");
        let text = fs::read_to_string(&file).unwrap();
        let mut first = text.lines().next().unwrap().to_owned();
        if is_old {
            first = first.replace("\"time\":\"20", "\"time\":\"19");
        }
        fs::write(&file, format!("{first}\n")).unwrap();
        let options = Options { file_age: Some(Duration::from_secs(3600)), ..SMALL };
        let log = open(directory.path(), &document, options);
        write(&log, 2);
        assert_eq!(log.size().unwrap().files, files, "{first}");
    }
}

#[test]
fn what_a_collector_has_not_confirmed_stays() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let log = open(directory.path(), &document, SMALL);
    write(&log, 200);
    let shipped = Retention { collector: Some("logs".into()), ..KEPT };
    assert_eq!(log.retain(&shipped).unwrap(), 0, "it has confirmed nothing");
    // It has confirmed all but the last line of the second file.
    let mut files: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    files.sort();
    let firsts: Vec<u64> = files.iter().map(|name| name.to_str().unwrap()[6..26].parse().unwrap()).collect();
    fs::write(directory.path().join("syslog-logs.cursor"), format!("{} {}\n", log.id(), firsts[2] - 1))
        .unwrap();
    assert_eq!(log.retain(&shipped).unwrap(), 1);
    assert_eq!(log.size().unwrap().first_sequence, firsts[1]);
    fs::write(directory.path().join("syslog-logs.cursor"), format!("{} {}\n", log.id(), firsts[2])).unwrap();
    assert_eq!(log.retain(&shipped).unwrap(), 1);
    let ends = log.durable();
    for cursor in [
        format!("{} 0\n", log.id()),
        format!("{} {}\n", log.id(), ends + 2),
        format!("{} {}", log.id(), firsts[2]),
        format!("{} {}\n", "0".repeat(32), firsts[2]),
    ] {
        fs::write(directory.path().join("syslog-logs.cursor"), &cursor).unwrap();
        let refused = log.retain(&shipped).unwrap_err();
        assert!(matches!(refused, AuditError::Damaged { .. }), "{cursor}: {refused}");
    }
    fs::write(directory.path().join("syslog-logs.cursor"), format!("{} {}\n", log.id(), ends + 1)).unwrap();
    assert!(log.retain(&shipped).unwrap() > 0, "all is confirmed");
    fs::remove_file(directory.path().join("syslog-logs.cursor")).unwrap();
    drop(log);
    assert!(removals(directory.path()).iter().all(|record| record.fields["confirmed_by"] == "logs"));
}

#[test]
fn evidence_of_damage_does_not_go() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let log = open(directory.path(), &document, SMALL);
    write(&log, 100);
    let first = directory.path().join("audit-00000000000000000001.jsonl");
    let text = fs::read_to_string(&first).unwrap();
    let touched = text.trim_end().rsplit_once('\n').unwrap().0;
    fs::write(&first, format!("{touched}\n")).unwrap();
    let refused = log.retain(&KEPT).unwrap_err();
    assert!(matches!(refused, AuditError::Damaged { .. }), "{refused}");
    assert!(first.exists());
}
