//! A hostile QMP peer: its messages are bounded before they take memory, and an answer without a
//! request is ignored.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use strongroom_hypervisor::qmp::{EVENTS_MAX, LINE_BYTES_MAX, MigrationSettings};
use strongroom_hypervisor::{PowerEvent, Qmp, QmpError};

/// Timeout of steps that take no time.
const SOON: Duration = Duration::from_secs(60);
const GREETING: &str =
    r#"{"QMP":{"version":{"qemu":{"micro":1,"minor":2,"major":7},"package":""},"capabilities":[]}}"#;

/// Connects to a peer that may do anything.
fn connect(peer: impl FnOnce(UnixStream) + Send + 'static) -> (Result<Qmp, QmpError>, JoinHandle<()>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let peer = std::thread::spawn(move || peer(theirs));
    (Qmp::greet(ours, SOON), peer)
}

/// A peer that sends a valid greeting, and answers the first command.
fn greet(socket: &UnixStream) {
    let mut socket = socket;
    writeln!(socket, "{GREETING}").unwrap();
    let request = request(socket);
    assert_eq!(request["execute"], "qmp_capabilities");
    answer(socket, &request, "return", json!({}));
}

fn request(socket: &UnixStream) -> Value {
    let mut line = String::new();
    BufReader::with_capacity(1, socket).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or(Value::Null)
}

fn answer(mut socket: &UnixStream, request: &Value, kind: &str, content: Value) {
    writeln!(socket, "{}", json!({ kind: content, "id": request["id"] })).unwrap();
}

/// Sends the bytes again and again as long as someone reads.
fn shout(mut socket: UnixStream, bytes: &[u8]) {
    while socket.write_all(bytes).is_ok() {}
}

fn over(result: Result<Qmp, QmpError>) -> String {
    match result {
        Err(QmpError::Over(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_no_qmp_ends_the_connection() {
    for nonsense in ["GET / HTTP/1.1\n", "[]\n", "\u{0}\n", "{\"QMP\":7}\n", "{\"event\":\n", "\n"] {
        let (qmp, peer) = connect(move |mut socket| {
            let _ = socket.write_all(nonsense.as_bytes());
            let _ = request(&socket);
        });
        assert!(over(qmp).contains("no QMP"), "{nonsense:?}");
        peer.join().unwrap();
    }
}

#[test]
fn deep_nesting_is_no_way_to_the_end_of_the_stack() {
    let (qmp, peer) = connect(|mut socket| {
        let _ = writeln!(socket, "{{\"event\":\"A\",\"data\":{}", "[".repeat(LINE_BYTES_MAX / 2));
        let _ = request(&socket);
    });
    assert!(over(qmp).contains("no QMP"));
    peer.join().unwrap();
}

#[test]
fn a_line_without_end_ends_the_connection() {
    let (qmp, peer) = connect(|socket| shout(socket, &[b' '; 1 << 16]));
    assert!(over(qmp).contains("bytes at once"));
    peer.join().unwrap();
}

#[test]
fn events_without_end_are_bounded_and_what_is_missed_is_said() {
    let (qmp, peer) = connect(|socket| {
        greet(&socket);
        let mut writer = &socket;
        for _ in 0..EVENTS_MAX * 3 {
            writer
                .write_all(b"{\"event\":\"STOP\"}\n{\"event\":\"NEW_IN_12\",\"data\":{\"a\":[1]}}\n")
                .unwrap();
        }
        let asked = request(&socket);
        answer(&socket, &asked, "return", json!({ "running": true, "status": "new-word", "new": 1 }));
        let _ = request(&socket);
    });
    let qmp = qmp.unwrap();
    // The answer comes after all of the events, so they have all arrived.
    let status = qmp.status().unwrap();
    assert_eq!((status.running, status.word.as_str()), (true, "new-word"));
    let mut events = Vec::new();
    while let Some(event) = qmp.next_event(Duration::ZERO).unwrap() {
        events.push(event);
    }
    assert_eq!(events.len(), EVENTS_MAX);
    assert_eq!(events.last(), Some(&PowerEvent::Missed));
    assert!(events.contains(&PowerEvent::Other { name: "NEW_IN_12".to_owned() }));
    drop(qmp);
    peer.join().unwrap();
}

#[test]
fn answers_to_nobody_are_not_believed() {
    let (qmp, peer) = connect(|socket| {
        greet(&socket);
        let asked = request(&socket);
        for id in [json!(999), json!("1"), json!(-1), Value::Null, json!([asked["id"]])] {
            answer(&socket, &json!({ "id": id }), "return", json!({ "running": false, "status": "lie" }));
            answer(&socket, &json!({ "id": id }), "error", json!({ "class": "GenericError", "desc": "lie" }));
        }
        answer(&socket, &asked, "return", json!({ "running": true, "status": "running" }));
        let asked = request(&socket);
        answer(&socket, &asked, "error", json!({ "class": "ClassOfTomorrow", "desc": "no", "new": [] }));
        let asked = request(&socket);
        answer(&socket, &asked, "return", json!([1]));
        let _ = request(&socket);
        // Then it closes the connection without an answer.
    });
    let qmp = qmp.unwrap();
    assert!(qmp.status().unwrap().running);
    match qmp.cont() {
        Err(QmpError::Refused { refusal, .. }) => assert_eq!(refusal.class, "ClassOfTomorrow"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(qmp.status(), Err(QmpError::Answer { .. })));
    assert!(matches!(qmp.stop(), Err(QmpError::Over(_))));
    assert!(matches!(qmp.reset(), Err(QmpError::Over(_))));
    peer.join().unwrap();
}

#[test]
fn who_says_nothing_is_not_waited_for_without_end() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    assert!(matches!(Qmp::greet(ours, Duration::from_millis(10)), Err(QmpError::Silent { .. })));
}

/// QEMU 7.2 that is asked to send its memory while it still ends an attempt that has failed never
/// takes another one.
#[test]
fn a_migration_begins_when_the_former_one_has_let_its_sockets_go() {
    for lets_go in [true, false] {
        let (qmp, peer) = connect(move |socket| {
            greet(&socket);
            let (mut is_cut_off, mut asked) = (false, Vec::new());
            loop {
                let question = request(&socket);
                let Some(command) = question["execute"].as_str().map(str::to_owned) else { break };
                asked.push(command.clone());
                is_cut_off |= command == "yank";
                let held = json!([{ "type": "block-node", "node-name": "a" }, { "type": "migration" }]);
                let content = match command.as_str() {
                    "query-yank" if is_cut_off && lets_go => {
                        json!([{ "type": "block-node", "node-name": "a" }])
                    }
                    "query-yank" => held,
                    _ => json!({}),
                };
                answer(&socket, &question, "return", content);
            }
            assert!(is_cut_off, "{asked:?}");
            assert_eq!(asked.contains(&"migrate".to_owned()), lets_go, "{asked:?}");
        });
        let qmp = qmp.unwrap();
        let settings = MigrationSettings { more_channels: 0, pause_ms: 300, bytes_per_second: 1 << 30 };
        let sent = qmp.send_memory(Path::new("/run/relay.sock"), settings);
        assert_eq!(sent.is_ok(), lets_go, "{sent:?}");
        drop(qmp);
        peer.join().unwrap();
    }
}
