//! The agent's protocol: a command is a line of JSON, and so is its answer.
//!
//! The channel may hold answers to an earlier conversation, and a hostile guest may send anything.
//! So each command follows a `guest-sync-delimited` with a random number, and what comes before its
//! delimiter and that number is skipped. Both are sent at once: a guest that is busy gets the
//! command, even if its answer is no longer waited for.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use uuid::Uuid;

use crate::qmp::{QmpError, Refusal};

/// Returns the agent's commands. It changes nothing.
pub(super) const INFO: &str = "guest-info";
/// Freezes all file systems.
pub(super) const FREEZE: &str = "guest-fsfreeze-freeze";
/// Thaws all file systems.
pub(super) const THAW: &str = "guest-fsfreeze-thaw";
/// Answers with the number that it is given, after [`DELIMITER`].
const SYNC: &str = "guest-sync-delimited";
/// No part of JSON, nor of UTF-8. As input it resets the agent's parser.
const DELIMITER: u8 = 0xFF;

/// The longest line: ten times the longest answer (`guest-info`, 6 KiB).
pub(super) const LINE_BYTES_MAX: usize = 64 << 10;
/// The most bytes until a command is answered: some earlier answers, and its own.
pub(super) const BYTES_MAX: usize = 1 << 20;
/// The most file systems that a guest can have frozen; more is not an answer.
const FILE_SYSTEMS_MAX: u64 = 1 << 16;
/// The size of a read from the socket.
const READ_BYTES: usize = 16 << 10;
/// The interval between looks at the clock and the supervisor.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The numbers that all JSON parsers read exactly.
const NUMBER_BITS: u32 = 53;

/// The channel to a guest's agent.
#[derive(Debug)]
pub(super) struct Channel {
    socket: UnixStream,
    /// What was received and is not read yet.
    heard: Vec<u8>,
}

/// The limits of one command.
pub(super) struct Turn<'a> {
    within: Duration,
    until: Instant,
    bytes_left: usize,
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> Turn<'a> {
    /// Limits a command to this time, and to the life of its requester.
    pub fn new(within: Duration, is_wanted: &'a dyn Fn() -> bool) -> Self {
        Self { within, until: Instant::now() + within, bytes_left: BYTES_MAX, is_wanted }
    }
}

#[derive(Deserialize)]
struct Reply<T> {
    #[serde(rename = "return")]
    answer: Option<T>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Info {
    supported_commands: Vec<Supported>,
}

#[derive(Deserialize)]
struct Supported {
    name: String,
    enabled: bool,
}

impl Channel {
    /// Prepares an unused connection to the channel.
    pub fn new(socket: UnixStream) -> Result<Self, QmpError> {
        let over = |error: std::io::Error| QmpError::Over(error.to_string());
        socket.set_read_timeout(Some(LOOK_AGAIN)).map_err(over)?;
        socket.set_write_timeout(Some(LOOK_AGAIN)).map_err(over)?;
        Ok(Self { socket, heard: Vec::new() })
    }

    /// Checks that there is an agent, and that it freezes file systems.
    pub fn find(&mut self, turn: Turn<'_>) -> Result<(), QmpError> {
        let info: Info = self.execute(INFO, turn)?;
        for command in [FREEZE, THAW] {
            let found = info.supported_commands.iter().find(|supported| supported.name == command);
            let desc = match found {
                Some(Supported { enabled: true, .. }) => continue,
                Some(_) => "the command is switched off in the guest",
                None => "the agent of this guest has no such command",
            };
            let refusal = Refusal { class: String::new(), desc: desc.to_owned() };
            return Err(QmpError::Refused { command: command.to_owned(), refusal });
        }
        Ok(())
    }

    /// Freezes all file systems. Returns their number.
    pub fn freeze(&mut self, turn: Turn<'_>) -> Result<u64, QmpError> {
        self.count(FREEZE, turn)
    }

    /// Thaws all file systems. Returns how many were frozen.
    pub fn thaw(&mut self, turn: Turn<'_>) -> Result<u64, QmpError> {
        self.count(THAW, turn)
    }

    fn count(&mut self, command: &'static str, turn: Turn<'_>) -> Result<u64, QmpError> {
        let count: u64 = self.execute(command, turn)?;
        let unusable = || QmpError::Answer {
            command: command.to_owned(),
            reason: format!("no guest has {count} file systems"),
        };
        (count <= FILE_SYSTEMS_MAX).then_some(count).ok_or_else(unusable)
    }

    /// Executes a command, and returns its answer.
    fn execute<T: DeserializeOwned>(
        &mut self,
        command: &'static str,
        mut turn: Turn<'_>,
    ) -> Result<T, QmpError> {
        let number = Uuid::new_v4().as_u64_pair().0 >> (u64::BITS - NUMBER_BITS);
        let sync = json!({ "execute": SYNC, "arguments": { "id": number } });
        let mut sent = vec![DELIMITER];
        sent.extend(format!("{sync}\n{}\n", json!({ "execute": command })).into_bytes());
        self.heard.clear();
        self.send(&sent, command, &turn)?;
        loop {
            self.skip_delimiter(command, &mut turn)?;
            let line = self.line(command, &mut turn)?;
            // Another delimiter begins another answer.
            let answer = line.rsplit(|byte| *byte == DELIMITER).next().unwrap_or_default();
            if serde_json::from_slice(answer)
                .is_ok_and(|reply: Reply<u64>| reply.answer == Some(number) && reply.error.is_none())
            {
                break;
            }
        }
        let line = self.line(command, &mut turn)?;
        let unusable = |reason: String| QmpError::Answer { command: command.to_owned(), reason };
        match serde_json::from_slice(&line).map_err(|error| unusable(error.to_string()))? {
            Reply { answer: Some(answer), error: None } => Ok(answer),
            Reply { answer: None, error: Some(refusal) } => {
                Err(QmpError::Refused { command: command.to_owned(), refusal })
            }
            _ => Err(unusable("it is neither an answer nor an error".to_owned())),
        }
    }

    fn send(&mut self, mut bytes: &[u8], command: &'static str, turn: &Turn<'_>) -> Result<(), QmpError> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) => turn.may_wait(&error, command)?,
            }
        }
        Ok(())
    }

    /// Skips everything up to the next delimiter.
    fn skip_delimiter(&mut self, command: &'static str, turn: &mut Turn<'_>) -> Result<(), QmpError> {
        loop {
            if let Some(at) = self.heard.iter().position(|byte| *byte == DELIMITER) {
                self.heard.drain(..=at);
                return Ok(());
            }
            self.heard.clear();
            self.hear(command, turn)?;
        }
    }

    /// Returns the next line.
    fn line(&mut self, command: &'static str, turn: &mut Turn<'_>) -> Result<Vec<u8>, QmpError> {
        loop {
            let end = self.heard.iter().position(|byte| *byte == b'\n');
            if end.unwrap_or(self.heard.len()) > LINE_BYTES_MAX {
                let reason = format!("it is a line of more than {LINE_BYTES_MAX} bytes");
                return Err(QmpError::Answer { command: command.to_owned(), reason });
            }
            if let Some(end) = end {
                return Ok(self.heard.drain(..=end).collect());
            }
            self.hear(command, turn)?;
        }
    }

    /// Waits for more bytes.
    fn hear(&mut self, command: &'static str, turn: &mut Turn<'_>) -> Result<(), QmpError> {
        let mut bytes = [0; READ_BYTES];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Err(QmpError::Over("QEMU has closed it".to_owned())),
                Ok(count) if count > turn.bytes_left => {
                    let reason = format!("the guest says more than {BYTES_MAX} bytes");
                    return Err(QmpError::Answer { command: command.to_owned(), reason });
                }
                Ok(count) => {
                    turn.bytes_left -= count;
                    self.heard.extend_from_slice(&bytes[..count]);
                    return turn.is_open(command);
                }
                Err(error) => turn.may_wait(&error, command)?,
            }
        }
    }
}

impl Turn<'_> {
    /// Checks that an error of the socket is only that of the interval.
    fn may_wait(&self, error: &std::io::Error, command: &str) -> Result<(), QmpError> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => self.is_open(command),
            _ => Err(QmpError::Over(error.to_string())),
        }
    }

    /// Checks that there is time left, and that the supervisor still waits.
    fn is_open(&self, command: &str) -> Result<(), QmpError> {
        if Instant::now() >= self.until {
            return Err(QmpError::Silent { command: command.to_owned(), within: self.within });
        }
        match (self.is_wanted)() {
            true => Ok(()),
            false => Err(QmpError::Over("nobody waits for it any more".to_owned())),
        }
    }
}
