//! Agents and hostile guests, from their supervisor's point of view. The process is the real one,
//! without its walls.

use std::io::{BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread::{JoinHandle, spawn};

use proptest::prelude::*;

use super::channel::{BYTES_MAX, Channel, LINE_BYTES_MAX};
use super::process::converse;
use super::*;
use crate::packet;

/// Timeout of what takes no time.
const SOON: Duration = Duration::from_secs(60);
/// Timeout of what never comes.
const BRIEF: Duration = Duration::from_millis(300);
const FREEZES: &str = r#"{"return": {"version": "7.2", "supported_commands": [
    {"name": "guest-fsfreeze-freeze", "enabled": true, "success-response": true, "new": {}},
    {"name": "guest-fsfreeze-thaw", "enabled": true}, {"name": "guest-ping", "enabled": false}], "more": []}}"#;

/// A guest with a program at its end of the channel.
struct Guest {
    reads: BufReader<UnixStream>,
    writes: UnixStream,
    /// The number of the command that was read last.
    number: u64,
}

impl Guest {
    fn new(socket: UnixStream) -> Self {
        Self { reads: BufReader::new(socket.try_clone().unwrap()), writes: socket, number: 0 }
    }

    fn line(&mut self) -> serde_json::Value {
        let mut line = Vec::new();
        self.reads.read_until(b'\n', &mut line).unwrap();
        let json = line.rsplit(|byte| *byte == 0xFF).next().unwrap();
        serde_json::from_slice(json).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    /// Waits for a command. Returns its name.
    fn asked(&mut self) -> String {
        let sync = self.line();
        assert_eq!(sync["execute"], "guest-sync-delimited");
        self.number = sync["arguments"]["id"].as_u64().unwrap();
        self.line()["execute"].as_str().unwrap().to_owned()
    }

    fn say(&mut self, bytes: impl AsRef<[u8]>) {
        // The peer may have heard enough.
        let _ = self.writes.write_all(bytes.as_ref());
    }

    fn synced(&self, number: u64) -> Vec<u8> {
        [&[0xFF], format!("{{\"return\": {number}}}\n").as_bytes()].concat()
    }

    fn answer(&mut self, answer: &str) {
        let one_line = answer.replace('\n', "");
        self.say([&self.synced(self.number)[..], one_line.as_bytes(), b"\n"].concat());
    }
}

/// A conversation with this guest, and its process.
fn with_guest(guest: impl FnOnce(Guest) + Send + 'static) -> (Conversation, JoinHandle<()>, JoinHandle<()>) {
    let (ours, theirs) = packet::pair().unwrap();
    let (channel, socket) = UnixStream::pair().unwrap();
    let process = spawn(move || drop(converse(&theirs, Channel::new(channel).unwrap())));
    let guest = spawn(move || guest(Guest::new(socket)));
    (Conversation::begin(ours).unwrap(), process, guest)
}

#[test]
fn an_agent_freezes_and_thaws_whatever_is_left_in_its_channel() {
    let (conversation, process, guest) = with_guest(|mut guest| {
        // Answers to an earlier conversation, one of them cut off.
        guest.say(b"{\"return\": {}}\n\xff{\"return\": 4711}\n{\"return\": 9}\n\xff{\"ret");
        assert_eq!(guest.asked(), "guest-info");
        guest.say(b"{\"error\": {\"class\": \"GenericError\", \"desc\": \"JSON parse error\"}}\n");
        guest.answer(FREEZES);
        assert_eq!(guest.asked(), "guest-fsfreeze-freeze");
        let answer = [guest.synced(guest.number), b"{\"return\": 2}\n".to_vec()].concat();
        for byte in answer {
            guest.say([byte]);
        }
        assert_eq!(guest.asked(), "guest-fsfreeze-thaw");
        guest.answer(r#"{"return": 2}"#);
    });
    conversation.find(SOON).unwrap();
    assert_eq!(conversation.freeze(SOON), Ok(2));
    assert_eq!(conversation.thaw(SOON), Ok(2));
    guest.join().unwrap();
    drop(conversation);
    process.join().unwrap();
}

#[test]
fn an_agent_that_cannot_freeze_is_not_asked_to() {
    let without_thaw = FREEZES.replace("guest-fsfreeze-thaw", "guest-fsfreeze-list");
    let switched_off = FREEZES.replacen("true", "false", 1);
    for (info, part) in [
        (without_thaw.as_str(), "refuses guest-fsfreeze-thaw: the agent of this guest has no"),
        (switched_off.as_str(), "refuses guest-fsfreeze-freeze: the command is switched off"),
        (
            r#"{"error": {"class": "CommandNotFound", "desc": "no \u001b[2J"}}"#,
            "refuses guest-info: no \\u{1b}",
        ),
    ] {
        let info = info.to_owned();
        let (conversation, _, guest) = with_guest(move |mut guest| {
            guest.asked();
            guest.answer(&info);
        });
        let error = conversation.find(SOON).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
        guest.join().unwrap();
    }
}

/// What a guest answers to the command to freeze, and what becomes of it.
#[test]
fn no_answer_of_a_guest_is_believed_that_is_not_one() {
    let nested = format!("{{\"return\": {}1{}}}", "[".repeat(30_000), "]".repeat(30_000));
    let long = format!("{{\"return\": \"{}\"}}", "x".repeat(LINE_BYTES_MAX));
    for (answer, part) in [
        ("{\"return\": 18446744073709551616}", "cannot be used"),
        ("{\"return\": 18446744073709551615}", "no guest has"),
        ("{\"return\": -1}", "cannot be used"),
        ("{\"return\": null}", "neither an answer nor an error"),
        ("{\"return\": \"2\"}", "cannot be used"),
        ("{\"return\": 2, \"error\": {}}", "neither an answer nor an error"),
        ("{}", "neither an answer nor an error"),
        ("[2]", "cannot be used"),
        ("\0\0\0", "cannot be used"),
        (&nested, "cannot be used"),
        (&long, "a line of more than"),
    ] {
        let (answer, shown) = (answer.to_owned(), answer.get(..40.min(answer.len())).unwrap().to_owned());
        let (conversation, _, guest) = with_guest(move |mut guest| {
            guest.asked();
            guest.answer(&answer);
            assert_eq!(guest.asked(), "guest-fsfreeze-thaw");
            guest.answer(r#"{"return": 0}"#);
        });
        let error = conversation.freeze(SOON).unwrap_err().to_string();
        assert!(error.contains(part), "{shown}: {error}");
        assert_eq!(conversation.thaw(SOON), Ok(0), "{shown}: the conversation goes on");
        guest.join().unwrap();
    }
}

/// A field that nobody reads may be as deep as a line is long.
#[test]
fn a_deep_answer_takes_no_stack() {
    let deep = format!("{{\"new\": {}1{}, \"return\": 1}}", "[".repeat(30_000), "]".repeat(30_000));
    let (conversation, _, guest) = with_guest(move |mut guest| {
        guest.asked();
        guest.answer(&deep);
    });
    assert_eq!(conversation.freeze(SOON), Ok(1));
    guest.join().unwrap();
}

#[test]
fn a_guest_that_never_ends_or_never_begins_is_given_up() {
    // The number of another conversation, again and again.
    let wrong = |guest: &Guest| guest.synced(guest.number ^ 1);
    let endless: [fn(&Guest) -> Vec<u8>; 4] =
        [|_| vec![b'x'; 4096], |_| vec![0xFF; 4096], |_| b"\n\xff\n".repeat(1024), wrong];
    for bytes in endless {
        let (conversation, process, guest) = with_guest(move |mut guest| {
            guest.asked();
            let bytes = bytes(&guest);
            while guest.writes.write_all(&bytes).is_ok() {}
        });
        let error = conversation.find(SOON).unwrap_err();
        assert!(matches!(error, AgentError::Unusable { .. }), "{error}");
        assert!(
            error.to_string().contains(&BYTES_MAX.to_string()) || error.to_string().contains("a line of")
        );
        drop(conversation);
        process.join().unwrap();
        guest.join().unwrap();
    }
    let (conversation, _, guest) = with_guest(|mut guest| {
        assert_eq!(guest.asked(), "guest-info");
        // It reads on, and says nothing.
        let _ = guest.reads.read_until(0, &mut Vec::new());
    });
    assert_eq!(conversation.find(BRIEF), Err(AgentError::Silent));
    drop(conversation);
    guest.join().unwrap();
    let (conversation, _, guest) = with_guest(|guest| guest.writes.shutdown(Shutdown::Both).unwrap());
    guest.join().unwrap();
    assert!(matches!(conversation.find(SOON), Err(AgentError::Over(_))), "QEMU has ended");
}

#[test]
fn a_freeze_that_nobody_waits_for_any_more_is_thawed_behind_it() {
    let (conversation, _, guest) = with_guest(|mut guest| {
        assert_eq!(guest.asked(), "guest-fsfreeze-freeze");
        let of_freeze = guest.number;
        assert_eq!(guest.asked(), "guest-fsfreeze-thaw", "it is sent, although nothing was answered");
        let late = [guest.synced(of_freeze), b"{\"return\": 3}\n".to_vec()].concat();
        guest.say(late);
        guest.answer(r#"{"return": 3}"#);
    });
    assert_eq!(conversation.freeze(BRIEF), Err(AgentError::Silent));
    assert_eq!(conversation.thaw(SOON), Ok(3));
    guest.join().unwrap();
}

#[test]
fn a_process_ends_with_its_conversation_whatever_its_guest_does() {
    let (conversation, process, _) = with_guest(|mut guest| {
        guest.asked();
        let _ = guest.reads.read_until(0, &mut Vec::new());
    });
    let waits = std::sync::Arc::new(conversation);
    let asks = std::sync::Arc::clone(&waits);
    let asking = spawn(move || asks.0.ask(AgentRequest::Find { within: SOON }, &[], BRIEF));
    assert!(matches!(asking.join().unwrap(), Err(QmpError::Over(_))), "it is lost: it says nothing");
    drop(waits);
    process.join().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_bytes_of_a_guest_are_an_answer_by_chance(
        pieces in prop::collection::vec(
            prop_oneof![
                Just(b"\xff".to_vec()), Just(b"{\"return\": 1}\n".to_vec()), Just(b"{\"error\": {}}\n".to_vec()),
                prop::collection::vec(any::<u8>(), 0..64),
            ],
            0..16,
        ),
    ) {
        let (conversation, _, guest) = with_guest(move |mut guest| {
            guest.asked();
            guest.say(pieces.concat());
            guest.writes.shutdown(Shutdown::Write).unwrap();
        });
        prop_assert!(conversation.freeze(SOON).is_err());
        guest.join().unwrap();
    }
}
