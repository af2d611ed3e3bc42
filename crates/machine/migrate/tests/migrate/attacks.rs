//! Somebody on the wire between the hosts.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_keyserver::grant::Secrecy;
use strongroom_migrate::record::RecordError;
use strongroom_migrate::{MigrateError, Reason};

use crate::site::{Ends, Members, Pair};
use crate::wire::{Hold, Verdict, Wire};

/// What QEMU sends: pieces that are a record each.
const PIECE_BYTES: usize = 20_000;
const PIECES: u8 = 12;
/// The record of channel 1 that is attacked. Record 0 opens the channel, so it is piece 3.
const ATTACKED: usize = 4;

/// What came of a migration of two channels, of which somebody attacked one.
struct Outcome {
    source: Result<(), MigrateError>,
    target: Result<(), MigrateError>,
    /// What QEMU at the target got of channel 1.
    arrived: Vec<u8>,
}

/// Sends pieces on channel 0, and then on channel 1, while this is done to the records on the way
/// to the target.
fn attacked(deed: impl Fn(&mut Hold, Vec<u8>) -> Verdict + Send + Sync + 'static) -> Outcome {
    attacked_in(Secrecy::Encrypted, deed)
}

/// As [`attacked`], of memory that passes like this.
fn attacked_in(
    secrecy: Secrecy,
    deed: impl Fn(&mut Hold, Vec<u8>) -> Verdict + Send + Sync + 'static,
) -> Outcome {
    let members = Members::new();
    let pair = Pair::with(&members, secrecy);
    let qemu = pair.listen();
    let (seen_by, seen) = channel();
    let wire = Wire::with(pair.address(), move |hold, record| {
        let (channel, number) = (hold.channel, hold.number);
        let verdict = deed(hold, record);
        let _ = seen_by.send((channel, number));
        verdict
    });
    let Ends { source, target } = pair.start_over(wire.address);
    assert!(source.is_established());
    let sending = thread::spawn({
        let channels = [pair.open(), pair.open()];
        move || {
            for (channel, number) in channels.iter().zip(0_u16..) {
                for piece in 0..PIECES {
                    let _ = (&*channel).write_all(&[piece; PIECE_BYTES]);
                    // Each piece has left before the next one comes, so it is a record.
                    if !await_seen(&seen, channel, (number, usize::from(piece) + 1)) {
                        return channels;
                    }
                }
                let _ = channel.shutdown(Shutdown::Write);
            }
            channels
        }
    });
    let (mut main, _) = qemu.accept().unwrap();
    let main = thread::spawn(move || arrive(&mut main));
    let (mut there, _) = qemu.accept().unwrap();
    let arrived = arrive(&mut there);
    drop(there);
    main.join().unwrap();
    let outcome = Outcome { source: source.wait().map(drop), target: target.wait().map(drop), arrived };
    // All channels of the migration have ended, also at the QEMU that sent.
    for mut channel in sending.join().unwrap() {
        assert_eq!(channel.read(&mut [0; 8]).unwrap_or(0), 0);
    }
    outcome
}

/// Waits until the wire has had this record, or the channel is closed.
fn await_seen(
    seen: &std::sync::mpsc::Receiver<(u16, usize)>,
    channel: &UnixStream,
    record: (u16, usize),
) -> bool {
    loop {
        match seen.recv_timeout(Duration::from_millis(20)) {
            Ok(found) if found == record => return true,
            Ok(_) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => {
                let mut polled = [PollFd::new(channel, PollFlags::empty())];
                poll(&mut polled, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
                if polled[0].revents().intersects(PollFlags::HUP) {
                    return false;
                }
            }
        }
    }
}

/// Everything that comes, however it ends.
fn arrive(from: &mut UnixStream) -> Vec<u8> {
    let mut arrived = Vec::new();
    let _ = from.read_to_end(&mut arrived);
    arrived
}

fn pieces(count: u8) -> Vec<u8> {
    (0..count).flat_map(|piece| [piece; PIECE_BYTES]).collect()
}

/// Does this to the attacked record, and forwards all others.
fn attack(
    deed: impl Fn(&mut Hold, Vec<u8>) -> Verdict + Send + Sync + 'static,
) -> impl Fn(&mut Hold, Vec<u8>) -> Verdict + Send + Sync + 'static {
    move |hold, record| {
        if hold.channel == 1 && hold.number == ATTACKED {
            return deed(hold, record);
        }
        hold.forward(&record);
        Verdict::GoOn
    }
}

/// The target has noticed it; both sides have ended, and know why; QEMU at the target got what was
/// sent before, and nothing of the attacked record or what follows it.
#[track_caller]
fn assert_noticed(outcome: &Outcome, delivered: u8, errors: fn(&RecordError) -> bool) {
    assert!(outcome.arrived == pieces(delivered), "{} bytes", outcome.arrived.len());
    match &outcome.target {
        Err(MigrateError::Record { channel: 1, error }) if errors(error) => {}
        other => panic!("{other:?}"),
    }
    match &outcome.source {
        Err(MigrateError::PeerEnded(Reason::Record { channel: 1 })) => {}
        other => panic!("{other:?}"),
    }
}

const EITHER: [Secrecy; 2] = [Secrecy::Encrypted, Secrecy::Plain];
const NOT_THE_NEXT: fn(&RecordError) -> bool = |error| matches!(error, RecordError::NotTheNext);

#[test]
fn without_an_attack_everything_arrives() {
    for secrecy in EITHER {
        let outcome = attacked_in(
            secrecy,
            attack(|hold, record| {
                hold.forward(&record);
                Verdict::GoOn
            }),
        );
        outcome.source.unwrap();
        outcome.target.unwrap();
        assert!(outcome.arrived == pieces(PIECES));
    }
}

#[test]
fn a_changed_record_ends_the_migration() {
    // In its kind, at both ends of its text, and in its tag.
    for at in [0, 4, PIECE_BYTES + 3, PIECE_BYTES + 19] {
        let outcome = attacked(attack(move |hold, mut record| {
            record[at] ^= 1;
            hold.forward(&record);
            Verdict::GoOn
        }));
        assert_noticed(&outcome, 3, NOT_THE_NEXT);
    }
    // In its length: what follows is taken for a part of it, or is no record.
    let outcome = attacked(attack(|hold, mut record| {
        record[2] ^= 1;
        hold.forward(&record);
        Verdict::GoOn
    }));
    assert_noticed(&outcome, 3, |error| matches!(error, RecordError::NotTheNext | RecordError::Head));
}

/// Who can read it can still not change it.
#[test]
fn a_plain_record_that_is_changed_moved_or_left_out_ends_the_migration() {
    for at in [0, 4, 1000, PIECE_BYTES + 3, PIECE_BYTES + 4, PIECE_BYTES + 19] {
        let outcome = attacked_in(
            Secrecy::Plain,
            attack(move |hold, mut record| {
                record[at] ^= 1;
                hold.forward(&record);
                Verdict::GoOn
            }),
        );
        assert_noticed(&outcome, 3, NOT_THE_NEXT);
    }
    assert_noticed(&attacked_in(Secrecy::Plain, attack(|_, _| Verdict::GoOn)), 3, NOT_THE_NEXT);
    let outcome = attacked_in(
        Secrecy::Plain,
        attack(|hold, record| {
            hold.forward(&record);
            hold.forward(&record);
            Verdict::GoOn
        }),
    );
    assert_noticed(&outcome, 4, NOT_THE_NEXT);
    // Another text of the same length, with the tag of this one.
    let outcome = attacked_in(
        Secrecy::Plain,
        attack(|hold, mut record| {
            record[4..4 + PIECE_BYTES].fill(0x5a);
            hold.forward(&record);
            Verdict::GoOn
        }),
    );
    assert_noticed(&outcome, 3, NOT_THE_NEXT);
}

#[test]
fn a_dropped_record_ends_the_migration() {
    assert_noticed(&attacked(attack(|_, _| Verdict::GoOn)), 3, NOT_THE_NEXT);
}

#[test]
fn a_repeated_record_ends_the_migration() {
    let outcome = attacked(attack(|hold, record| {
        hold.forward(&record);
        hold.forward(&record);
        Verdict::GoOn
    }));
    assert_noticed(&outcome, 4, NOT_THE_NEXT);
}

#[test]
fn records_in_another_order_end_the_migration() {
    let outcome = attacked(|hold, record| {
        let number = hold.number;
        match (hold.channel, number) {
            (1, ATTACKED) => hold.held.push(record),
            _ => hold.forward(&record),
        }
        if number == ATTACKED + 1 && hold.channel == 1 {
            let held = hold.held.remove(0);
            hold.forward(&held);
        }
        Verdict::GoOn
    });
    assert_noticed(&outcome, 3, NOT_THE_NEXT);
}

#[test]
fn a_record_that_is_cut_off_ends_the_migration() {
    // Before the record, in its head, in its text, before the last byte of its tag.
    for kept in [0, 3, 1000, PIECE_BYTES + 19] {
        let outcome = attacked(attack(move |hold, record| {
            hold.forward(&record[..kept]);
            Verdict::Close
        }));
        assert_noticed(&outcome, 3, |error| matches!(error, RecordError::CutOff));
    }
}

#[test]
fn a_stream_without_its_end_is_not_whole() {
    let outcome = attacked(|hold, record| {
        if hold.channel == 1 && hold.number == usize::from(PIECES) + 1 {
            return Verdict::Close;
        }
        hold.forward(&record);
        Verdict::GoOn
    });
    assert_noticed(&outcome, PIECES, |error| matches!(error, RecordError::CutOff));
}

#[test]
fn nothing_follows_the_end_of_a_stream() {
    let outcome = attacked(|hold, record| {
        match (hold.channel, hold.number) {
            (1, number) if number == usize::from(PIECES) + 1 => {
                // Something that was sent before, in the same packet as the end.
                let held = hold.held.remove(0);
                hold.forward(&[record, held].concat());
            }
            _ => hold.forward(&record),
        }
        if hold.channel == 1 && hold.number == ATTACKED {
            hold.held.push(vec![2, 0, 0, 1, 0]);
        }
        Verdict::GoOn
    });
    assert_noticed(&outcome, PIECES, |error| matches!(error, RecordError::AfterTheEnd));
}

#[test]
fn a_record_of_another_channel_ends_the_migration() {
    let of_main: Arc<Mutex<HashMap<usize, Vec<u8>>>> = Arc::default();
    let outcome = attacked(move |hold, record| {
        let mut of_main = of_main.lock();
        match (hold.channel, hold.number) {
            // The same number, and the same text.
            (1, ATTACKED) => hold.forward(&of_main[&ATTACKED]),
            (0, number) => {
                of_main.insert(number, record.clone());
                hold.forward(&record);
            }
            _ => hold.forward(&record),
        }
        Verdict::GoOn
    });
    assert_noticed(&outcome, 3, NOT_THE_NEXT);
}

#[test]
fn a_record_that_is_sent_back_ends_the_migration() {
    // The first one, so that it has the number that the other direction begins with.
    let outcome = attacked(|hold, record| {
        hold.forward(&record);
        if hold.channel == 1 && hold.number == 0 {
            hold.reflect(&record);
        }
        Verdict::GoOn
    });
    let source = outcome.source.unwrap_err();
    assert!(
        matches!(source, MigrateError::Record { channel: 1, error: RecordError::NotTheNext }),
        "{source}"
    );
    assert!(matches!(outcome.target, Err(MigrateError::PeerEnded(Reason::Record { channel: 1 }))));
}

#[test]
fn a_network_that_is_gone_ends_both_sides() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let _qemu = pair.listen();
    let wire = Wire::recording(pair.address());
    let Ends { source, target } = pair.start_over(wire.address);
    assert!(source.is_established());
    let mut channel = pair.open();
    channel.write_all(b"main").unwrap();
    wire.cut();
    for end in [source, target] {
        let error = end.wait().unwrap_err();
        let is_cut = matches!(
            error,
            MigrateError::PeerGone(_)
                | MigrateError::Line(RecordError::CutOff)
                | MigrateError::Wire { .. }
                | MigrateError::Record { error: RecordError::CutOff, .. }
                | MigrateError::PeerEnded(_)
        );
        assert!(is_cut, "{error:?}");
    }
    assert_eq!(channel.read(&mut [0; 8]).unwrap_or(0), 0, "QEMU at the source knows");
}

const MARKER: &[u8] = b"a secret in the guest's memory, 0123456789";

fn contains(all: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(all, part).is_some()
}

/// The other side closes the connection.
#[track_caller]
fn assert_closed(stream: &mut TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_recorder_finds_nothing_of_what_passed_and_replays_nothing() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let qemu = pair.listen();
    let wire = Wire::recording(pair.address());
    let Ends { source, target } = pair.start_over(wire.address);
    assert!(source.is_established());
    let mut channel = pair.open();
    let sent = MARKER.repeat(2000);
    channel.write_all(&sent).unwrap();
    let (mut there, _) = qemu.accept().unwrap();
    let mut arrived = vec![0; sent.len()];
    there.read_exact(&mut arrived).unwrap();
    assert!(arrived == sent);

    // Somebody repeats the beginning of the channel, while it is open: nothing happens.
    let beginning = wire.beginnings.recv().unwrap();
    let mut replayed = TcpStream::connect(pair.address()).unwrap();
    replayed.write_all(&beginning).unwrap();
    assert_closed(&mut replayed);
    assert_eq!(target.progress().channels, 1);
    there.write_all(MARKER).unwrap();
    let mut back = [0; MARKER.len()];
    channel.read_exact(&mut back).unwrap();
    drop((channel, there));
    source.wait().unwrap();
    target.wait().unwrap();

    let recorded = wire.recorded();
    assert!(recorded.len() > sent.len(), "{} bytes", recorded.len());
    assert!(contains(&recorded, b"SRM1"), "the search finds what is there");
    assert!(!contains(&recorded, MARKER) && !contains(&recorded, &MARKER[..12]));
    // Nor the secrets of the hosts, nor the grant, which names the VM.
    assert!(!contains(&recorded, &pair.grant[..60]) && !contains(&recorded, pair.vm.as_bytes()));

    // All of it, replayed to the next attempt of the same VM and hosts.
    let pair = Pair::of(&members, pair.vm);
    let target = pair.receive_as(&members.target, &pair.grant).unwrap();
    for replayed in [&recorded[..], &beginning] {
        let mut stream = TcpStream::connect(pair.address()).unwrap();
        let _ = stream.write_all(replayed);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(!target.progress().is_established);
    let source = pair.send_as(&members.source, &pair.grant, pair.address()).unwrap();
    assert!(source.is_established(), "the next attempt is not harmed");
    let mut stream = TcpStream::connect(pair.address()).unwrap();
    stream.write_all(&beginning).unwrap();
    assert_closed(&mut stream);
    assert_eq!(target.progress().channels, 0);
}

/// With a grant for plain text: QEMU's bytes are there for whoever is to see them, and nothing that
/// gives anybody a part in it.
#[test]
fn in_plain_text_the_wire_has_the_memory_and_nothing_of_the_grant() {
    let members = Members::new();
    let pair = Pair::with(&members, Secrecy::Plain);
    let qemu = pair.listen();
    let wire = Wire::recording(pair.address());
    let Ends { source, target } = pair.start_over(wire.address);
    assert!(source.is_established());
    let mut channel = pair.open();
    let sent = MARKER.repeat(2000);
    channel.write_all(&sent).unwrap();
    let (mut there, _) = qemu.accept().unwrap();
    let mut arrived = vec![0; sent.len()];
    there.read_exact(&mut arrived).unwrap();
    assert!(arrived == sent);
    let beginning = wire.beginnings.recv().unwrap();
    drop((channel, there));
    source.wait().unwrap();
    target.wait().unwrap();
    let recorded = wire.recorded();
    assert!(contains(&recorded, MARKER), "it passes as it is");
    assert!(!contains(&recorded, &pair.grant[..60]) && !contains(&recorded, pair.vm.as_bytes()));

    // The next attempt has other keys, and takes nothing of this one.
    let mut pair = Pair::of(&members, pair.vm);
    pair.grant = members.grant_with(pair.vm, Secrecy::Plain);
    let Ends { source, target } = pair.start();
    assert!(source.is_established());
    let mut stream = TcpStream::connect(pair.address()).unwrap();
    stream.write_all(&beginning).unwrap();
    assert_closed(&mut stream);
    assert_eq!(target.progress().channels, 0);
}

#[test]
fn two_attempts_have_nothing_on_the_wire_in_common() {
    let members = Members::new();
    let beginnings = [(); 2].map(|()| {
        let pair = Pair::new(&members);
        let qemu = pair.listen();
        let wire = Wire::recording(pair.address());
        let ends = pair.start_over(wire.address);
        assert!(ends.source.is_established());
        let mut channel = pair.open();
        channel.write_all(MARKER).unwrap();
        let (mut there, _) = qemu.accept().unwrap();
        there.read_exact(&mut [0; MARKER.len()]).unwrap();
        wire.beginnings.recv().unwrap()
    });
    let [one, other] = beginnings;
    // The magic, 16 bytes of session, a number; an empty record, 16 bytes of which are its tag.
    assert_eq!(one[..4], other[..4]);
    assert_ne!(one[4..20], other[4..20]);
    assert_ne!(one[26..], other[26..]);
}
