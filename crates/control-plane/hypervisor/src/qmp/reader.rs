//! The thread that reads QEMU's messages.

use std::io::Read;
use std::os::unix::net::UnixStream;

use serde_json::Value;

use super::event::PowerEvent;
use super::message::{Message, Refusal};
use super::shared::Shared;

/// The longest line: several times QEMU's longest answer (`query-qmp-schema`, 200 KiB).
pub const LINE_BYTES_MAX: usize = 2 << 20;
/// A longer event is of no kind that is kept. The limit bounds the memory of
/// [`EVENTS_MAX`](super::EVENTS_MAX) queued events.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// The size of a read from the socket.
const READ_BYTES: usize = 16 << 10;

/// QEMU's answer to a command.
pub(super) type Answer = Result<Value, Refusal>;

fn take_in(message: Message, line_bytes: usize, shared: &Shared<Answer>) {
    match message {
        Message::Greeting(greeting) => shared.greeted(greeting.version.qemu),
        Message::Answer { id, outcome } => shared.answered(id, outcome),
        Message::Unreadable(refusal) => {
            tracing::warn!("QEMU could not read what it was asked: {}", refusal.desc);
        }
        Message::Event(event) => match PowerEvent::from(event) {
            PowerEvent::Other { .. } if line_bytes > EVENT_BYTES_MAX => {}
            _ if line_bytes > EVENT_BYTES_MAX => shared.happened(PowerEvent::Missed),
            event => shared.happened(event),
        },
    }
}

/// Reads until the connection ends.
pub(super) fn read(socket: &UnixStream, shared: &Shared<Answer>) {
    let reason = read_lines(socket, shared);
    // A peer that sent an invalid message is disconnected, so that it notices.
    let _ = socket.shutdown(std::net::Shutdown::Both);
    shared.end(reason);
}

fn read_lines(mut socket: &UnixStream, shared: &Shared<Answer>) -> String {
    let mut line = Vec::new();
    let mut bytes = vec![0; READ_BYTES];
    loop {
        let count = match socket.read(&mut bytes) {
            Ok(0) => return "QEMU has closed it".to_owned(),
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return error.to_string(),
        };
        for piece in bytes[..count].split_inclusive(|byte| *byte == b'\n') {
            if line.len() + piece.len() > LINE_BYTES_MAX {
                return format!("QEMU says more than {LINE_BYTES_MAX} bytes at once");
            }
            line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                match Message::parse(&line) {
                    Ok(Some(message)) => take_in(message, line.len(), shared),
                    Ok(None) => {}
                    Err(error) => return format!("QEMU says what is no QMP: {error}"),
                }
                line.clear();
                // The memory of a long answer is released.
                line.shrink_to(READ_BYTES);
            }
        }
    }
}
