//! Misbehaving monitors, from their supervisor's point of view.

use std::os::fd::AsFd;
use std::thread::spawn;

use super::request::Asked;
use super::said::{SAID_BYTES_MAX, Said};
use super::*;
use crate::packet;
use crate::qmp::EVENTS_MAX;

/// Timeout of steps that take no time.
const SOON: Duration = Duration::from_secs(60);
const HELLO: Said = Said::Hello(Version { major: 7, minor: 2 });

fn pair() -> (OwnedFd, OwnedFd) {
    packet::pair().unwrap()
}

fn say(socket: &OwnedFd, said: &Said) {
    packet::send(socket, &said.encode().unwrap(), &[]).unwrap();
}

fn greeted() -> (Monitor, OwnedFd) {
    let (ours, theirs) = pair();
    say(&theirs, &HELLO);
    (Monitor::greet(ours, SOON).unwrap(), theirs)
}

/// Waits for the next request. Returns its number.
fn asked(socket: &OwnedFd) -> Option<u64> {
    let mut bytes = vec![0; packet::PACKET_BYTES_MAX];
    let length = packet::receive(socket, &mut bytes).unwrap()?.bytes;
    Some(serde_json::from_slice::<Asked<Request>>(&bytes[..length]).unwrap().id)
}

fn over(monitor: &Monitor) -> String {
    loop {
        match monitor.next_event(SOON) {
            Ok(event) => assert!(event.is_some()),
            Err(QmpError::Over(reason)) => break reason,
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_monitor_that_says_what_none_says_is_lost() {
    let answer = Said::Answer { id: 1, outcome: Ok(Answer::Done) }.encode().unwrap();
    let long = [&answer[..], &[0; SAID_BYTES_MAX]].concat();
    let texts = [&[3, 10, 1][..], &512_u16.to_le_bytes(), b"short"].concat();
    for nonsense in [&[9][..], b"{\"event\":\"STOP\"}", &answer[..5], &long, &texts, &HELLO.encode().unwrap()]
    {
        let (monitor, theirs) = greeted();
        packet::send(&theirs, nonsense, &[]).unwrap();
        let why = over(&monitor);
        assert_eq!(monitor.lost(), Some(Loss::Monitor), "{nonsense:?}: {why}");
        assert!(matches!(monitor.status(), Err(QmpError::Over(_))));
        assert_eq!(asked(&theirs), None, "it is hung up on");
    }
}

#[test]
fn files_of_a_monitors_are_taken_for_nonsense() {
    let (monitor, theirs) = greeted();
    let (file, other_end) = pair();
    packet::send(&theirs, &HELLO.encode().unwrap(), &[file.as_fd()]).unwrap();
    drop(file);
    over(&monitor);
    assert_eq!(monitor.lost(), Some(Loss::Monitor));
    // The received file was closed, not kept.
    assert!(packet::receive(&other_end, &mut [0; 8]).unwrap().is_none());
}

#[test]
fn nothing_is_believed_before_the_hello() {
    for early in [
        Said::Answer { id: 1, outcome: Ok(Answer::Done) },
        Said::Event(PowerEvent::Resumed),
        Said::Over("QEMU has closed it".to_owned()),
    ] {
        let (ours, theirs) = pair();
        say(&theirs, &early);
        let not = Monitor::greet(ours, SOON).unwrap_err();
        let loss = if matches!(early, Said::Over(_)) { Loss::Qemu } else { Loss::Monitor };
        assert_eq!(not.loss, Some(loss), "{early:?}: {not}");
    }
    let (ours, _theirs) = pair();
    let not = Monitor::greet(ours, Duration::from_millis(1)).unwrap_err();
    assert!(not.loss.is_none() && matches!(not.error, QmpError::Silent { .. }), "QEMU is slow: {not}");
}

#[test]
fn an_answer_to_another_question_is_the_end_of_a_monitor() {
    let (monitor, theirs) = greeted();
    let peer = spawn(move || {
        let id = asked(&theirs).unwrap();
        say(&theirs, &Said::Answer { id: id + 7, outcome: Ok(Answer::YesOrNo(false)) });
        say(&theirs, &Said::Answer { id, outcome: Ok(Answer::YesOrNo(true)) });
        let id = asked(&theirs).unwrap();
        say(&theirs, &Said::Answer { id, outcome: Ok(Answer::Done) });
        asked(&theirs)
    });
    assert_eq!(monitor.runs_on_kvm(), Ok(true), "what nobody asked is not believed");
    assert!(matches!(monitor.status(), Err(QmpError::Over(_))));
    assert_eq!((monitor.lost(), peer.join().unwrap()), (Some(Loss::Monitor), None));
}

#[test]
fn events_without_end_take_a_bounded_place() {
    let (monitor, theirs) = greeted();
    let said = "x".repeat(1 << 16);
    for _ in 0..3 * EVENTS_MAX {
        say(&theirs, &Said::Event(PowerEvent::DeviceDeleted { device: said.clone() }));
    }
    say(&theirs, &Said::Over("QEMU has closed it".to_owned()));
    let mut events = Vec::new();
    while let Ok(event) = monitor.next_event(SOON) {
        // All events must arrive before one is taken, since taking one frees its place.
        while monitor.lost().is_none() {
            std::thread::yield_now();
        }
        events.extend(event);
    }
    assert!(events.len() <= EVENTS_MAX + 1, "{}", events.len());
    assert_eq!(events.last(), Some(&PowerEvent::Missed));
    assert_eq!(monitor.lost(), Some(Loss::Qemu));
}

#[test]
fn another_monitor_takes_a_lost_ones_place() {
    let (monitor, theirs) = greeted();
    drop(theirs);
    over(&monitor);
    let (ours, silent) = pair();
    drop(silent);
    assert!(monitor.replace(ours, SOON).is_err());
    assert_eq!(monitor.lost(), Some(Loss::Monitor), "the former stays");
    let (ours, theirs) = pair();
    say(&theirs, &HELLO);
    monitor.replace(ours, SOON).unwrap();
    let peer = spawn(move || {
        let id = asked(&theirs).unwrap();
        say(&theirs, &Said::Event(PowerEvent::Stopped));
        say(&theirs, &Said::Answer { id, outcome: Ok(Answer::Done) });
        asked(&theirs)
    });
    monitor.stop().unwrap();
    assert_eq!(monitor.next_event(SOON), Ok(Some(PowerEvent::Stopped)));
    assert!(monitor.lost().is_none());
    drop(monitor);
    assert_eq!(peer.join().unwrap(), None);
}
