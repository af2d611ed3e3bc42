//! Lines as syslog messages.
//!
//! ```text
//! LENGTH SP <PRI>1 SP TIME SP HOSTNAME SP strongroom SP PROCID SP MSGID SP [meta sequenceId="N"] SP LINE
//! ```
//! The facility is 13, log audit; the severity follows from the outcome. MSGID is the action,
//! `head`, `open` or `begin`. The message is the line as it stands in the log, without its line
//! feed: JSON in UTF-8, so that its hash can be computed.

use crate::line::{Content, Line};
use crate::record::Outcome;

/// RFC 5424, table 1: log audit.
const FACILITY: u8 = 13;
const APP_NAME: &str = "strongroom";
/// RFC 5424, 6: the fields' maximum lengths.
const HOSTNAME_MAX_BYTES: usize = 255;
const MSGID_MAX_BYTES: usize = 32;
/// RFC 5424, 7.3.1: after this `sequenceId` comes 1.
const SEQUENCE_ID_MAX: u64 = 2_147_483_647;

/// Severities of RFC 5424, table 2.
#[derive(Clone, Copy)]
enum Severity {
    Warning = 4,
    Notice = 5,
    Informational = 6,
}

/// Adds a line as a message in the framing of RFC 5425, 4.3.
pub(super) fn frame(sequence: u64, line: &[u8], origin: &str, to: &mut Vec<u8>) {
    let message = message(sequence, line, origin);
    to.extend_from_slice(format!("{} ", message.len()).as_bytes());
    to.extend_from_slice(&message);
}

fn message(sequence: u64, line: &[u8], origin: &str) -> Vec<u8> {
    // A line that cannot be read is shipped all the same: it is evidence.
    let parsed = Line::parse(line).ok();
    let (severity, name) = parsed.as_ref().map_or((Severity::Warning, "-"), |line| about(&line.content));
    let time = parsed.as_ref().map_or("-", |line| line.time.as_str());
    let header = format!(
        "<{priority}>1 {time} {host} {APP_NAME} {process} {id} [meta sequenceId=\"{number}\"] ",
        priority = FACILITY * 8 + severity as u8,
        host = field(origin, HOSTNAME_MAX_BYTES),
        process = std::process::id(),
        id = field(name, MSGID_MAX_BYTES),
        number = sequence.saturating_sub(1) % SEQUENCE_ID_MAX + 1,
    );
    let mut message = header.into_bytes();
    message.extend_from_slice(line);
    message
}

fn about(content: &Content) -> (Severity, &str) {
    match content {
        Content::Begin { .. } => (Severity::Informational, "begin"),
        Content::Open { .. } => (Severity::Informational, "open"),
        Content::Head { .. } => (Severity::Informational, "head"),
        Content::Record(record) => {
            let severity = match record.outcome {
                Outcome::Done => Severity::Informational,
                Outcome::Failed => Severity::Notice,
                Outcome::Denied => Severity::Warning,
            };
            (severity, &record.action)
        }
    }
}

/// A header field: printable US-ASCII without spaces, and `-` for nothing.
fn field(text: &str, most: usize) -> String {
    let printable = text.chars().map(|char| if char.is_ascii_graphic() { char } else { '_' });
    let field: String = printable.take(most).collect();
    if field.is_empty() { "-".into() } else { field }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::{Chain, body};
    use crate::record::{Actor, Record};

    #[test]
    fn a_line_is_a_message_of_rfc_5424_in_a_frame_of_rfc_5425() {
        let record = Record::new(Actor::default(), "Get attributes", Outcome::Denied);
        let mut line = Vec::new();
        let text = body("2026-11-22T10:00:00.25Z", &Content::Record(record)).unwrap();
        Chain::new().add(1, &text, &mut line);
        let line = line.strip_suffix(b"\n").unwrap();
        let mut framed = Vec::new();
        frame(SEQUENCE_ID_MAX + 2, line, "host 1", &mut framed);
        let framed = String::from_utf8(framed).unwrap();
        let (length, message) = framed.split_once(' ').unwrap();
        assert_eq!(length.parse::<usize>().unwrap(), message.len());
        let expected = format!(
            "<108>1 2026-11-22T10:00:00.25Z host_1 strongroom {} Get_attributes [meta sequenceId=\"2\"] {}",
            std::process::id(),
            String::from_utf8_lossy(line),
        );
        assert_eq!(message, expected);
    }

    #[test]
    fn what_cannot_be_read_is_shipped_too() {
        let message = String::from_utf8(message(1, b"{broken", "")).unwrap();
        assert!(message.starts_with("<108>1 - - strongroom ") && message.ends_with(" {broken"), "{message}");
    }
}
