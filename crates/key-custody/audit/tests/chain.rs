//! The contents of a log, and the detection of a log that was tampered with.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use strongroom_audit::limits::{FILE_MAX_BYTES, QUEUE_MAX_BYTES, QUEUE_MAX_RECORDS};
use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{
    AuditError, AuditLog, Fault, HeadKey, HeadSigner, Options, Outcome, PendingHead, PublicKey, Record,
    Report, SignError, SignedHead, VerifyError, verify,
};
use support::{SMALL, document, key, open, record};

struct Logged {
    directory: tempfile::TempDir,
    document: Vec<u8>,
    keys: Vec<PublicKey>,
}

/// A closed log of this many records in several files.
fn logged(records: u64) -> Logged {
    let directory = tempfile::tempdir().unwrap();
    let document = document();
    let log = open(directory.path(), &document, SMALL);
    for n in 0..records {
        log.append(&record(n)).wait().unwrap();
    }
    drop(log);
    let keys = vec![key(&document).public_key()];
    Logged { directory, document, keys }
}

impl Logged {
    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn verify(&self, kept: &[SignedHead]) -> Result<Report, VerifyError> {
        verify(&OsDirectory::to_read(self.path()).unwrap(), &self.keys, kept)
    }

    fn fault(&self, kept: &[SignedHead]) -> (u64, Fault) {
        match self.verify(kept) {
            Err(VerifyError::Broken(broken)) => (broken.sequence, broken.fault),
            other => panic!("{other:?}"),
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> =
            fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// All lines of a file.
    fn lines(&self, file: usize) -> Vec<String> {
        fs::read_to_string(&self.files()[file]).unwrap().lines().map(str::to_owned).collect()
    }

    fn set_lines(&self, file: usize, lines: &[String]) {
        fs::write(&self.files()[file], lines.iter().map(|line| format!("{line}\n")).collect::<String>())
            .unwrap();
    }

    fn reopen(&self) -> Result<AuditLog, AuditError> {
        let directory = Arc::new(OsDirectory::lock(self.path()).unwrap());
        AuditLog::open(directory, Box::new(key(&self.document)), SMALL)
    }

    fn python(&self) -> (bool, String) {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/verify-audit-chain");
        let output = Command::new("python3").arg(script).arg(self.path()).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }
}

#[test]
fn a_log_verifies_over_several_files_and_goes_on_when_it_is_opened_again() {
    let logged = logged(100);
    let report = logged.verify(&[]).unwrap();
    assert!(report.files > 3 && report.heads >= 10, "{report:?}");
    assert_eq!((report.records, report.unfinished_bytes, report.first_sequence), (100, 0, 1));
    assert_eq!(report.signed_through + 1, report.last_sequence, "closing signs a head");
    let log = logged.reopen().unwrap();
    assert_eq!((log.id(), log.durable()), (report.log.as_str(), report.last_sequence));
    assert_eq!(
        log.append(&record(100)).wait().unwrap().sequence,
        report.last_sequence + 2,
        "after a line that says so"
    );
    let head = log.head().wait().unwrap();
    assert_eq!(head.sequence, report.last_sequence + 2);
    drop(log);
    let report = logged.verify(&[head]).unwrap();
    assert_eq!((report.records, report.heads_met), (101, 1));
}

#[test]
fn standard_tools_agree() {
    let logged = logged(50);
    let log = logged.reopen().unwrap();
    let head = log.head().wait().unwrap();
    let (good, said) = logged.python();
    assert!(good, "{said}");
    drop(log);
    // The message names the line of the head that followed the signed line.
    let report = logged.verify(&[]).unwrap();
    assert!(said.starts_with(&format!("{} ", report.last_sequence)), "{said} {report:?}");
    let text = logged.path().join("message");
    fs::write(&text, head.message()).unwrap();
    let signature: Vec<u8> = (0..head.signature.len() / 2)
        .map(|at| u8::from_str_radix(&head.signature[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    fs::write(logged.path().join("signature"), signature).unwrap();
    fs::write(logged.path().join("key"), logged.keys[0].as_der()).unwrap();
    let verified = Command::new("openssl")
        .args(["dgst", "-sha256", "-keyform", "DER", "-verify", "key", "-signature", "signature", "message"])
        .current_dir(logged.path())
        .output()
        .unwrap();
    assert!(verified.status.success(), "{verified:?}");
    let mut lines = logged.lines(1);
    lines[2] = lines[2].replace("vm-1234", "vm-1235");
    logged.set_lines(1, &lines);
    let (good, said) = logged.python();
    assert!(!good && said.contains("does not follow"), "{said}");
}

#[test]
fn the_first_line_that_was_touched_is_named() {
    let logged = logged(60);
    let whole: Vec<_> = (0..logged.files().len()).map(|file| logged.lines(file)).collect();
    let first_of = |file: usize| whole[..file].iter().map(Vec::len).sum::<usize>() as u64 + 1;
    let changed = |file: usize, change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = whole[file].clone();
        change(&mut lines);
        logged.set_lines(file, &lines);
        let fault = logged.fault(&[]);
        logged.set_lines(file, &whole[file]);
        fault
    };
    let first = first_of(1);
    // Changed: the next line's hash differs. A change of white space counts too.
    assert_eq!(changed(1, &|lines| lines[3] = lines[3].replace("Get", "Put")), (first + 4, Fault::Chain));
    assert_eq!(changed(1, &|lines| lines[3].insert(1, ' ')), (first + 4, Fault::Chain));
    // Removed, doubled, put elsewhere.
    assert_eq!(changed(1, &|lines| drop(lines.remove(3))), (first + 3, Fault::Sequence(first + 4)));
    assert_eq!(
        changed(1, &|lines| lines.insert(3, lines[2].clone())),
        (first + 3, Fault::Sequence(first + 2))
    );
    assert_eq!(changed(1, &|lines| lines.swap(3, 4)), (first + 3, Fault::Sequence(first + 4)));
    assert_eq!(changed(1, &|lines| drop(lines.remove(0))), (first, Fault::Sequence(first + 1)));
    assert!(
        matches!(changed(1, &|lines| lines[3] = "{}".into()), (at, Fault::Unreadable(_)) if at == first + 3)
    );
    assert!(matches!(
        changed(1, &|lines| lines[3].push_str(&" ".repeat(300_000))),
        (_, Fault::Unreadable(_))
    ));
    assert_eq!(logged.verify(&[]).unwrap().records, 60, "whole again");
    let file = logged.files()[2].clone();
    let bytes = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert_eq!(logged.fault(&[]), (first_of(2), Fault::Sequence(first_of(3))));
    fs::write(&file, bytes).unwrap();
    fs::remove_file(&logged.files()[0]).unwrap();
    assert_eq!(logged.verify(&[]).unwrap().first_sequence, first, "the oldest files may be taken away");
}

#[test]
fn a_log_that_was_cut_short_or_written_anew_is_told_by_a_head_that_was_kept() {
    let logged = logged(30);
    let log = logged.reopen().unwrap();
    let kept = log.head().wait().unwrap();
    drop(log);
    let last = logged.files().len() - 1;
    let lines = logged.lines(last);
    logged.set_lines(last, &lines[..lines.len() - 2]);
    assert!(logged.verify(&[]).is_ok(), "a chain alone cannot tell");
    let (sequence, fault) = logged.fault(std::slice::from_ref(&kept));
    assert!(
        matches!(fault, Fault::Truncated(head) if head == kept.sequence && sequence <= head),
        "{fault:?}"
    );

    let other = support::document();
    let foreign = SignedHead { key: key(&other).public_key().id().to_owned(), ..kept.clone() };
    assert_eq!(logged.verify(&[foreign]), Err(VerifyError::ForeignHead(kept.sequence)));

    // The same key writes another log of the same length.
    let anew = tempfile::tempdir().unwrap();
    let log = open(anew.path(), &logged.document, SMALL);
    for n in 0..40 {
        log.append(&record(n)).wait().unwrap();
    }
    drop(log);
    let found = verify(&OsDirectory::to_read(anew.path()).unwrap(), &logged.keys, &[kept]);
    assert!(matches!(found, Err(VerifyError::Broken(broken)) if matches!(broken.fault, Fault::OtherLog(_))));
    // And another key signs it.
    let keys = [key(&other).public_key()];
    let found = verify(&OsDirectory::to_read(anew.path()).unwrap(), &keys, &[]);
    assert!(matches!(found, Err(VerifyError::Broken(broken)) if broken.fault == Fault::Signature));
}

#[test]
fn a_torn_tail_is_cut_and_said_and_damage_before_it_is_refused() {
    let logged = logged(30);
    let last = logged.files().len() - 1;
    let file = logged.files()[last].clone();
    let bytes = fs::read(&file).unwrap();
    let before = logged.verify(&[]).unwrap();
    fs::write(&file, [bytes.as_slice(), b"{\"sequence\":999,\"gro\0\0\0\n\0\0"].concat()).unwrap();
    assert!(logged.verify(&[]).unwrap_err().to_string().contains("cannot be read"));
    let log = logged.reopen().unwrap();
    assert_eq!(log.durable(), before.last_sequence);
    log.append(&record(30)).wait().unwrap();
    drop(log);
    assert_eq!(logged.verify(&[]).unwrap().records, 31);
    assert!(logged.lines(last).iter().any(|line| line.contains("\"kind\":\"open\",\"cut_bytes\":24")));

    let mut bytes = fs::read(&file).unwrap();
    bytes[200] = 0;
    fs::write(&file, &bytes).unwrap();
    let refused = logged.reopen().unwrap_err();
    assert!(matches!(&refused, AuditError::Damaged { line: 1, .. }), "{refused}");
    assert_eq!(fs::read(&file).unwrap(), bytes, "left as it was");
}

#[test]
fn a_line_that_does_not_follow_keeps_the_log_closed() {
    let logged = logged(36);
    let file = logged.files().len() - 1;
    let lines = logged.lines(file);
    let (middle, last) = (lines.len() / 2, lines.len() - 1);
    assert!(middle > 2, "{lines:?}");
    // Changes the last file, and returns the line that is reported, from 0.
    let reported = |change: &dyn Fn(&mut Vec<String>)| {
        let mut changed = lines.clone();
        change(&mut changed);
        logged.set_lines(file, &changed);
        let bytes = fs::read(&logged.files()[file]).unwrap();
        let refused = logged.reopen().unwrap_err();
        assert_eq!(fs::read(&logged.files()[file]).unwrap(), bytes, "left as it was");
        match refused {
            AuditError::Damaged { line, .. } => line as usize - 1,
            other => panic!("{other}"),
        }
    };
    let field = |line: usize, name: &str| -> u64 {
        serde_json::from_str::<serde_json::Value>(&lines[line]).unwrap()[name].as_u64().unwrap()
    };
    let set = |line: &mut String, name: &str, from: u64, to: u64| {
        *line = line.replace(&format!("\"{name}\":{from},"), &format!("\"{name}\":{to},"));
    };
    let changed = |lines: &mut Vec<String>| lines[middle] = lines[middle].replace("time\":\"2", "time\":\"3");
    assert_eq!(reported(&changed), middle + 1);
    assert_eq!(reported(&|lines| lines[middle] = "{}".into()), middle);
    assert_eq!(reported(&|lines| drop(lines.remove(middle))), middle);
    // Nothing follows the last line, so only its own fields can show it.
    let sequence = field(last, "sequence");
    assert_eq!(reported(&|lines| set(&mut lines[last], "sequence", sequence, sequence + 1)), last);
    let group = field(last, "group");
    assert_eq!(reported(&|lines| set(&mut lines[last], "group", group, sequence + 1)), last);
    logged.set_lines(file, &lines);
    drop(logged.reopen().unwrap());

    let named = &logged.files()[file];
    fs::rename(named, logged.path().join(format!("audit-{:020}.jsonl", field(0, "sequence") + 1))).unwrap();
    let refused = logged.reopen().unwrap_err();
    assert!(matches!(refused, AuditError::Damaged { line: 1, .. }), "{refused}");
}

#[test]
fn records_that_a_killed_writer_left_without_a_head_get_one() {
    let logged = logged(5);
    let file = logged.files().len() - 1;
    let lines = logged.lines(file);
    // A writer that is killed does not sign as one that closes.
    assert!(lines.last().unwrap().contains("\"kind\":\"head\""), "{lines:?}");
    logged.set_lines(file, &lines[..lines.len() - 1]);
    let options = Options { head_interval: Duration::from_millis(20), ..Options::default() };
    let log = open(logged.path(), &logged.document, options);
    let found = log.durable();
    let deadline = Instant::now() + Duration::from_secs(60);
    while log.counters().heads == 0 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    drop(log);
    assert!(logged.verify(&[]).unwrap().signed_through >= found);
}

#[test]
fn a_log_does_not_open_behind_a_file_that_was_changed() {
    let logged = logged(30);
    let before = logged.files().len() - 2;
    let lines = logged.lines(before);
    let (last, others) = lines.split_last().unwrap();
    let changed = [others, &[last.replace("host", "hots").replace("kind", "kidn")]].concat();
    for touched in [changed.as_slice(), others] {
        logged.set_lines(before, touched);
        let refused = logged.reopen().unwrap_err();
        assert!(matches!(&refused, AuditError::Damaged { line: 1, .. }), "{refused}");
    }
    logged.set_lines(before, &lines);
    assert!(logged.reopen().is_ok());
}

#[test]
fn a_file_that_was_torn_at_its_beginning_goes_if_the_one_before_it_is_whole() {
    const LEFT_BYTES: usize = 20;
    let logged = logged(30);
    let files = logged.files();
    let [.., before, torn] = files.as_slice() else { panic!("{files:?}") };
    let whole: usize = (0..files.len() - 1).map(|file| logged.lines(file).len()).sum();
    fs::write(torn, &fs::read(torn).unwrap()[..LEFT_BYTES]).unwrap();
    let bytes = fs::read(before).unwrap();
    let lines = logged.lines(files.len() - 2);
    for less in [&lines[..lines.len() - 1], &[]] {
        logged.set_lines(files.len() - 2, less);
        let refused = logged.reopen().unwrap_err();
        assert!(matches!(refused, AuditError::Damaged { .. }), "{refused}");
        assert!(torn.exists(), "evidence");
    }
    fs::write(before, bytes).unwrap();
    let log = logged.reopen().unwrap();
    assert_eq!((log.durable(), torn.exists()), (whole as u64, false));
    log.append(&record(30)).wait().unwrap();
    drop(log);
    logged.verify(&[]).unwrap();
    let said = format!("\"kind\":\"open\",\"cut_bytes\":{LEFT_BYTES}");
    assert!(logged.lines(files.len() - 2).iter().any(|line| line.contains(&said)));
}

#[test]
fn what_follows_the_last_line_is_unfinished_in_the_last_file_and_damage_in_another() {
    let logged = logged(30);
    let torn = b"{\"sequence\":9";
    for (index, file) in logged.files().iter().enumerate() {
        let bytes = fs::read(file).unwrap();
        fs::write(file, [bytes.as_slice(), torn].concat()).unwrap();
        if index + 1 == logged.files().len() {
            assert_eq!(logged.verify(&[]).unwrap().unfinished_bytes, torn.len() as u64);
        } else {
            let Err(VerifyError::Broken(broken)) = logged.verify(&[]) else { panic!("it verifies") };
            let place = (Path::new(&broken.file), broken.line as usize);
            let expected = (Path::new(file.file_name().unwrap()), logged.lines(index).len());
            assert_eq!((place, broken.fault), (expected, Fault::Unreadable("it has no end".into())));
        }
        fs::write(file, bytes).unwrap();
    }
}

#[test]
fn a_file_that_is_longer_than_files_may_be_is_not_read() {
    let logged = logged(1);
    fs::File::options()
        .write(true)
        .open(&logged.files()[0])
        .unwrap()
        .set_len(2 * FILE_MAX_BYTES + 1)
        .unwrap();
    assert!(matches!(logged.verify(&[]), Err(VerifyError::Read(_))));
    assert!(matches!(logged.reopen(), Err(AuditError::Io { .. })));
}

#[test]
fn one_writes_and_others_verify_meanwhile() {
    let logged = logged(5);
    let log = logged.reopen().unwrap();
    assert!(matches!(OsDirectory::lock(logged.path()), Err(AuditError::InUse { .. })));
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| (0..200).all(|n| log.append(&record(n)).wait().is_ok()));
        while !writing.is_finished() {
            // The last file may have no line yet, or an unfinished one.
            logged.verify(&[]).unwrap();
        }
        assert!(writing.join().unwrap());
    });
}

/// A key that blocks its signer until the gate is opened, and reports each request to sign.
struct Gated {
    key: HeadKey,
    asked: Sender<()>,
    gate: Receiver<()>,
}

impl HeadSigner for Gated {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, SignError> {
        let _ = self.asked.send(());
        let _ = self.gate.recv();
        self.key.sign(message)
    }

    fn public_key(&self) -> PublicKey {
        self.key.public_key()
    }
}

/// A log whose writer signs a head for as long as the sender lives, and writes nothing meanwhile.
fn held(path: &Path) -> (AuditLog, PendingHead, Sender<()>) {
    let lock = Arc::new(OsDirectory::lock(path).unwrap());
    let ((asked, is_asked), (open, gate)) = (channel(), channel());
    let signer = Gated { key: key(&document()), asked, gate };
    let log = AuditLog::open(lock, Box::new(signer), Options::default()).unwrap();
    let head = log.head();
    is_asked.recv().unwrap();
    (log, head, open)
}

#[test]
fn many_at_once_share_syncs_and_each_gets_its_own_line() {
    let directory = tempfile::tempdir().unwrap();
    let (log, head, open) = held(directory.path());
    let pending: Vec<_> = (0..2000).map(|n| log.append(&record(n))).collect();
    drop(open);
    head.wait().unwrap();
    let sequences: Vec<_> = pending.into_iter().map(|pending| pending.wait().unwrap().sequence).collect();
    assert!(sequences.windows(2).all(|pair| pair[1] == pair[0] + 1), "each its own, in order");
    let counters = log.counters();
    assert_eq!((counters.records, counters.refused), (2000, 0));
    assert!((2..20).contains(&counters.groups) && counters.group_max == 1024, "{counters:?}");
    assert!(counters.bytes > 2000 * 400 && counters.sync_time >= counters.sync_time_max, "{counters:?}");
    assert!(!counters.sync_time_max.is_zero(), "{counters:?}");
    let closing: Vec<_> = (0..500).map(|n| log.append(&record(n))).collect();
    drop(log);
    assert!(
        closing.into_iter().all(|pending| pending.wait().is_ok()),
        "what waits is written before it closes"
    );
}

/// How many of these a log takes while it cannot write, the rest being refused. All that it took
/// are written, and after them it takes more.
fn taken(records: impl Iterator<Item = Record>) -> usize {
    let directory = tempfile::tempdir().unwrap();
    let (log, head, open) = held(directory.path());
    let pending: Vec<_> = records.map(|record| log.append(&record)).collect();
    drop(open);
    head.wait().unwrap();
    let outcomes: Vec<_> = pending.into_iter().map(|pending| pending.wait()).collect();
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(_) | Err(AuditError::Overloaded))));
    log.append(&record(1)).wait().unwrap();
    outcomes.iter().filter(|outcome| outcome.is_ok()).count()
}

#[test]
fn more_than_the_queue_takes_is_refused_and_what_it_took_is_written() {
    let many = (0..QUEUE_MAX_RECORDS as u64 + 10).map(record);
    assert_eq!(taken(many), QUEUE_MAX_RECORDS);
    // Of the largest lines that there may be, fewer fit.
    let large = (0..200).fold(record(1), |record, n| record.object(format!("{n:01000}")));
    let fit = QUEUE_MAX_BYTES / 210_000..=QUEUE_MAX_BYTES / 200_000;
    let taken_large = taken(std::iter::repeat_n(large, fit.end() + 10));
    assert!(fit.contains(&taken_large), "{taken_large} of {fit:?}");

    let directory = tempfile::tempdir().unwrap();
    let (log, _head, open) = held(directory.path());
    let heads: Vec<_> = (0..=QUEUE_MAX_RECORDS).map(|_| log.head()).collect();
    drop(open);
    let outcomes: Vec<_> = heads.into_iter().map(|head| head.wait()).collect();
    let (last, others) = outcomes.split_last().unwrap();
    assert!(others.iter().all(Result::is_ok) && *last == Err(AuditError::Overloaded));
}

/// A key that cannot be used.
struct Locked(PublicKey);

impl HeadSigner for Locked {
    fn sign(&self, _: &[u8]) -> Result<Vec<u8>, SignError> {
        Err(SignError("the token is locked".into()))
    }

    fn public_key(&self) -> PublicKey {
        self.0.clone()
    }
}

#[test]
fn without_its_key_the_log_goes_on_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let public = key(&document()).public_key();
    let lock = Arc::new(OsDirectory::lock(directory.path()).unwrap());
    let log = AuditLog::open(lock, Box::new(Locked(public.clone())), SMALL).unwrap();
    for n in 0..30 {
        log.append(&record(n)).wait().unwrap();
    }
    assert!(matches!(log.head().wait(), Err(AuditError::Unsigned { reason }) if reason.contains("locked")));
    assert!(log.counters().heads_failed > 0);
    drop(log);
    let report = verify(&OsDirectory::to_read(directory.path()).unwrap(), &[public], &[]).unwrap();
    assert_eq!((report.records, report.heads, report.signed_through), (30, 0, 0));
}

#[test]
fn a_head_is_signed_after_some_time_without_any_further_record() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { head_interval: Duration::from_millis(20), ..Options::default() };
    let log = open(directory.path(), &document(), options);
    let sequence = log.append(&record(1)).wait().unwrap().sequence;
    let deadline = Instant::now() + Duration::from_secs(30);
    while log.durable() == sequence {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!((log.counters().heads, log.durable()), (1, sequence + 1));
}

#[test]
fn a_head_is_signed_in_time_though_records_keep_coming() {
    let directory = tempfile::tempdir().unwrap();
    let head_interval = Duration::from_secs(1);
    let options = Options { head_interval, head_records: u64::MAX, ..Options::default() };
    let log = open(directory.path(), &document(), options);
    let deadline = Instant::now() + Duration::from_secs(60);
    for n in 0.. {
        assert!(Instant::now() < deadline);
        log.append(&record(n)).wait().unwrap();
        if log.counters().heads > 0 {
            break;
        }
    }
}

#[test]
fn a_record_that_is_too_large_is_refused_and_the_others_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(directory.path(), &document(), Options::default());
    let long = log.append(&record(1).reason("x".repeat(2000)));
    let many = (0..1024).fold(record(2), |record, n| record.object(format!("{n:01000}")));
    assert!(matches!(long.wait(), Err(AuditError::TooLarge { .. })));
    assert!(matches!(log.append(&many).wait(), Err(AuditError::TooLarge { .. })));
    assert!(log.append(&record(3)).wait().is_ok());
}

#[test]
fn what_is_on_record_of_an_object_is_found_through_all_files_latest_first() {
    let (directory, document) = (tempfile::tempdir().unwrap(), document());
    let log = open(directory.path(), &document, SMALL);
    for n in 0..200 {
        let other = Record::new(record(n).actor, "Get", Outcome::Done).object(format!("other-{n}"));
        log.append(&other).wait().unwrap();
        if n % 50 == 0 {
            // A record that names the object in a text is not about the object.
            let mention = other.reason("wanted-key");
            log.append(&mention).wait().unwrap();
            log.append(&record(n).object("wanted-key").request(n.to_string())).wait().unwrap();
        }
    }
    assert!(fs::read_dir(directory.path()).unwrap().count() > 4);
    let wanted = BTreeSet::from(["wanted-key".to_owned()]);
    let requests = |most| {
        let history = log.history(&wanted, None, most).unwrap();
        let requests: Vec<_> =
            history.records.into_iter().map(|noted| noted.record.request.unwrap()).collect();
        (requests, history.is_complete)
    };
    let all: Vec<_> = ["0", "50", "100", "150"].map(str::to_owned).to_vec();
    assert_eq!(requests(4), (all.clone(), true));
    assert_eq!(requests(2), (all[2..].to_vec(), false));
    assert_eq!(log.history(&BTreeSet::from(["wanted".to_owned()]), None, 10).unwrap().records, []);
    // Of many objects, in the order of the log.
    let several: BTreeSet<_> = (0..20).map(|n| format!("other-{n}")).collect();
    let found = log.history(&several, None, 100).unwrap();
    assert_eq!((found.records.len(), found.is_complete), (21, true));
    assert!(found.records.is_sorted_by_key(|noted| noted.sequence));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!(found.since_unix_seconds <= now);
    assert_eq!(log.history(&several, Some("Put"), 100).unwrap().records, []);
    let latest = log.history(&several, Some("Get"), 5).unwrap();
    assert!(!latest.is_complete && latest.since_unix_seconds > found.since_unix_seconds);
    let mut files: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    fs::remove_file(&files[0]).unwrap();
    assert_eq!(requests(4), (all[1..].to_vec(), false), "an older file is gone");
    assert!(log.history(&wanted, None, 4).unwrap().since_unix_seconds > found.since_unix_seconds);
}
