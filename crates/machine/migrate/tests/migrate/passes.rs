//! What passes between two QEMUs: here, two ends of sockets that the tests hold.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::thread;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_migrate::{MigrateError, Reason};

use crate::site::{Ends, Members, Pair};
use crate::wire::{Verdict, Wire};

/// Bytes that differ from place to place.
fn content(seed: u8, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed).collect()
}

/// Sends all of it, and ends the stream.
fn send_all(channel: &mut UnixStream, content: &[u8]) {
    channel.write_all(content).unwrap();
    channel.shutdown(Shutdown::Write).unwrap();
}

fn read_all(channel: &mut UnixStream) -> Vec<u8> {
    let mut content = Vec::new();
    channel.read_to_end(&mut content).unwrap();
    content
}

#[test]
fn all_channels_arrive_whole_in_both_directions_the_main_one_first() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let qemu = pair.listen();
    let Ends { source, target } = pair.start();
    assert!(source.is_established() && target.is_established());
    // The numbers of channels are those of QEMU's order, whichever of them speaks first.
    let mut sending: Vec<UnixStream> = (0..5).map(|_| pair.open()).collect();
    for (number, channel) in sending.iter_mut().enumerate().rev() {
        channel.write_all(&[number as u8]).unwrap();
    }
    let mut receiving: Vec<(u8, UnixStream)> = (0..5)
        .map(|_| {
            let (mut channel, _) = qemu.accept().unwrap();
            let mut number = [0];
            channel.read_exact(&mut number).unwrap();
            (number[0], channel)
        })
        .collect();
    assert_eq!(receiving[0].0, 0, "older QEMU takes the first connection for the main one");
    receiving.sort_by_key(|(number, _)| *number);
    // Lengths around records and batches.
    let lengths = [1_usize, 65_535, 65_536 * 7, 65_536 * 7 + 1, 9_000_000];
    thread::scope(|scope| {
        for ((channel, length), number) in sending.iter_mut().zip(lengths).zip(0_u8..) {
            scope.spawn(move || {
                let (mut reading, writing) = (channel.try_clone().unwrap(), channel);
                thread::scope(|both| {
                    both.spawn(|| send_all(writing, &content(number, length)));
                    assert_eq!(read_all(&mut reading), content(number ^ 0x80, length / 3));
                });
            });
        }
        for ((number, channel), length) in receiving.iter_mut().zip(lengths) {
            scope.spawn(move || {
                assert_eq!(read_all(channel), content(*number, length), "{number}");
                send_all(channel, &content(*number ^ 0x80, length / 3));
            });
        }
    });
    let (sent, received) = (source.wait().unwrap(), target.wait().unwrap());
    let bytes = lengths.iter().sum::<usize>() as u64 + 5;
    assert_eq!((sent.to_target_bytes, received.to_target_bytes), (bytes, bytes));
    let back: u64 = lengths.iter().map(|length| *length as u64 / 3).sum();
    assert_eq!((sent.to_source_bytes, received.to_source_bytes), (back, back));
    assert_eq!((sent.channels, received.channels), (5, 5));
}

#[test]
fn the_main_channel_reaches_qemu_first_though_another_one_comes_first() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let qemu = pair.listen();
    let waiting = qemu.try_clone().unwrap();
    let (passed_by, passed) = channel();
    let passed = Mutex::new(passed);
    let wire = Wire::with(pair.address(), move |hold, record| {
        // The network keeps the main channel back until the other one has passed, and has had the
        // time to reach QEMU.
        if (hold.channel, hold.number) == (0, 0) {
            passed.lock().recv().unwrap();
            let half_a_second = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };
            poll(&mut [PollFd::new(&waiting, PollFlags::IN)], Some(&half_a_second)).unwrap();
        }
        hold.forward(&record);
        if hold.channel == 1 {
            let _ = passed_by.send(());
        }
        Verdict::GoOn
    });
    let Ends { source, target } = pair.start_over(wire.address);
    assert!(source.is_established());
    let mut sending = [pair.open(), pair.open()];
    sending[1].write_all(b"1").unwrap();
    sending[0].write_all(b"0").unwrap();
    let receiving = ["0", "1"].map(|number| {
        let (mut channel, _) = qemu.accept().unwrap();
        let mut first = [0];
        channel.read_exact(&mut first).unwrap();
        assert_eq!(first, number.as_bytes());
        channel
    });
    drop((sending, receiving));
    source.wait().unwrap();
    target.wait().unwrap();
}

/// One channel, open at both ends.
fn opened(pair: &Pair<'_>) -> (Ends, UnixStream, UnixStream) {
    let qemu = pair.listen();
    let ends = pair.start();
    assert!(ends.source.is_established());
    let mut sending = pair.open();
    sending.write_all(b"QEVM").unwrap();
    let (mut receiving, _) = qemu.accept().unwrap();
    let mut first = [0; 4];
    receiving.read_exact(&mut first).unwrap();
    (ends, sending, receiving)
}

/// Sends until nothing more is taken, and returns what was.
fn send_until_stopped(sending: &mut UnixStream) -> Vec<u8> {
    sending.set_nonblocking(true).unwrap();
    let (piece, mut written) = (content(1, 1 << 20), Vec::new());
    let mut refused = 0;
    while refused < 50 {
        match sending.write(&piece) {
            Ok(count) => {
                written.extend_from_slice(&piece[..count]);
                refused = 0;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                refused += 1;
                thread::sleep(std::time::Duration::from_millis(10));
            }
            Err(error) => panic!("{error}"),
        }
        assert!(written.len() < 64 << 20, "somebody keeps everything in memory");
    }
    sending.set_nonblocking(false).unwrap();
    written
}

#[test]
fn a_receiver_that_does_not_read_stops_its_sender() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let (ends, mut sending, mut receiving) = opened(&pair);
    let written = send_until_stopped(&mut sending);
    sending.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut receiving) == written);
    drop(receiving);
    assert_eq!(read_all(&mut sending), b"");
    ends.source.wait().unwrap();
    ends.target.wait().unwrap();
}

#[test]
fn a_channel_that_stands_still_is_cancelled_at_once() {
    let members = Members::new();
    for by_source in [true, false] {
        let pair = Pair::new(&members);
        let (Ends { source, target }, mut sending, receiving) = opened(&pair);
        send_until_stopped(&mut sending);
        if by_source {
            source.cancel()
        } else {
            target.cancel()
        }
        assert!(source.wait().is_err() && target.wait().is_err());
        drop(receiving);
    }
}

#[test]
fn either_side_cancels_at_any_time_and_the_other_one_hears_of_it() {
    let members = Members::new();
    for by_source in [true, false] {
        let pair = Pair::new(&members);
        let (ends, mut sending, mut receiving) = opened(&pair);
        let (canceller, other) = match by_source {
            true => (ends.source, ends.target),
            false => (ends.target, ends.source),
        };
        canceller.cancel();
        assert!(matches!(canceller.wait(), Err(MigrateError::Cancelled)));
        assert!(matches!(other.wait(), Err(MigrateError::PeerEnded(Reason::Cancelled))));
        // QEMU's sockets are closed at both ends.
        assert_eq!(receiving.read(&mut [0; 8]).unwrap_or(0), 0);
        assert_eq!(sending.read(&mut [0; 8]).unwrap_or(0), 0);
    }
}

#[test]
fn a_cancelled_attempt_ends_before_anybody_has_come() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let target = pair.receive_as(&members.target, &pair.grant).unwrap();
    target.cancel();
    assert!(matches!(target.wait(), Err(MigrateError::Cancelled)));
    // To an address that answers nothing: its queue of connections is full.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let source = pair.send_as(&members.source, &members.grant(pair.vm), address).unwrap();
    source.cancel();
    assert!(!source.is_established());
    assert!(matches!(source.wait(), Err(MigrateError::Cancelled)));
    // A relay that is dropped ends as well.
    let pair = Pair::of(&members, pair.vm);
    let target = pair.receive_as(&members.target, &members.grant(pair.vm)).unwrap();
    drop(target);
}

#[test]
fn a_qemu_that_fails_at_one_end_ends_all_channels_of_the_other() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let qemu = pair.listen();
    let ends = pair.start();
    let mut sending = pair.open();
    sending.write_all(b"QEVM").unwrap();
    let (receiving, _) = qemu.accept().unwrap();
    let mut second = pair.open();
    // QEMU at the target is gone; what is sent to it cannot be delivered.
    drop(receiving);
    let piece = content(3, 1 << 20);
    while sending.write_all(&piece).is_ok() {}
    assert_eq!(second.read(&mut [0; 8]).unwrap_or(0), 0);
    let error = ends.target.wait().unwrap_err();
    assert!(matches!(error, MigrateError::Qemu { channel: 0, .. }), "{error}");
    let error = ends.source.wait().unwrap_err();
    assert!(matches!(error, MigrateError::PeerEnded(Reason::Qemu { channel: 0 })), "{error}");
}

#[test]
fn a_target_without_qemu_is_an_error_of_both() {
    let members = Members::new();
    let pair = Pair::new(&members);
    let Ends { source, target } = pair.start();
    let mut channel = pair.open();
    assert_eq!(channel.read(&mut [0; 8]).unwrap_or(0), 0);
    let error = target.wait().unwrap_err();
    assert!(matches!(error, MigrateError::Qemu { channel: 0, .. }), "{error}");
    let error = source.wait().unwrap_err();
    assert!(matches!(error, MigrateError::PeerEnded(Reason::Qemu { channel: 0 })), "{error}");
}

#[test]
fn more_channels_than_were_agreed_on_are_refused() {
    let members = Members::new();
    let mut pair = Pair::new(&members);
    pair.options.channels_max = 2;
    let qemu = pair.listen();
    let Ends { source, target } = pair.start();
    let _channels: Vec<UnixStream> = (0..3).map(|_| pair.open()).collect();
    let error = source.wait().unwrap_err();
    assert!(matches!(error, MigrateError::TooManyChannels { channels_max: 2 }), "{error}");
    assert!(error.to_string().contains("multifd-channels to 1"), "{error}");
    assert!(matches!(target.wait(), Err(MigrateError::PeerEnded(Reason::Qemu { channel: 2 }))));
    drop(qemu);
    let mut pair = Pair::new(&members);
    pair.options.channels_max = 0;
    let none = pair.receive_as(&members.target, &members.grant(pair.vm)).unwrap_err();
    assert!(matches!(none, MigrateError::Option { given: 0, .. }), "{none}");
}

#[test]
fn a_limit_holds_for_all_channels_and_is_changed_on_the_way() {
    let members = Members::new();
    let mut pair = Pair::new(&members);
    // Nothing passes at a byte a second; the first bytes are those of `opened`.
    pair.options.bytes_per_second = None;
    let (ends, mut sending, mut receiving) = opened(&pair);
    ends.source.set_limit(NonZeroU64::new(1 << 20));
    let began = std::time::Instant::now();
    let sent = content(5, 1 << 20);
    let reader = thread::spawn(move || read_all(&mut receiving));
    send_all(&mut sending, &sent);
    assert_eq!(reader.join().unwrap(), sent);
    // A mebibyte at a mebibyte a second; the limit is what makes this slow, and never shorter.
    assert!(began.elapsed() > std::time::Duration::from_millis(900), "{:?}", began.elapsed());
    drop(sending);
    ends.source.wait().unwrap();
    ends.target.wait().unwrap();
}

#[test]
fn another_user_at_qemus_socket_is_refused() {
    let members = Members::new();
    let mut pair = Pair::new(&members);
    pair.options.qemu_user = Some(0x7100_0001);
    let _qemu = pair.listen();
    let Ends { source, target } = pair.start();
    let mut channel = pair.open();
    assert_eq!(channel.read(&mut [0; 8]).unwrap_or(0), 0, "the connection is dropped");
    assert_eq!(source.progress().channels, 0);
    source.cancel();
    assert!(matches!(source.wait(), Err(MigrateError::Cancelled)));
    assert!(target.wait().is_err());
}
