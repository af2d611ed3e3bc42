//! QEMU's messages (QEMU `docs/interop/qmp-spec.rst`): a greeting, answers, and events.
//!
//! Only fields of every version are required. Unknown fields of a newer version are skipped, and
//! its unknown events are kept as they are.

use serde::Deserialize;
use serde_json::Value;

/// A message, which is one line.
#[derive(Debug)]
pub(super) enum Message {
    Greeting(Greeting),
    Answer {
        id: u64,
        outcome: Result<Value, Refusal>,
    },
    /// An answer without an id: QEMU could not parse the command.
    Unreadable(Refusal),
    Event(Event),
}

/// QEMU's first message.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Greeting {
    pub version: GreetingVersion,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct GreetingVersion {
    pub qemu: crate::version::Version,
}

/// A refusal of a command, with the reason. Error classes are historical (all but a few errors are
/// `GenericError`).
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Refusal {
    /// A word for programs, such as `DeviceNotFound`.
    #[serde(default)]
    pub class: String,
    /// A sentence for people.
    #[serde(default)]
    pub desc: String,
}

/// An event in QEMU's own words.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Event {
    /// Its name, such as `SHUTDOWN`.
    #[serde(rename = "event")]
    pub name: String,
    /// Its data.
    #[serde(default)]
    pub data: Value,
}

#[derive(Deserialize)]
struct Envelope {
    #[serde(rename = "QMP")]
    greeting: Option<Greeting>,
    #[serde(default)]
    id: Value,
    #[serde(rename = "return", default, deserialize_with = "present")]
    answer: Option<Value>,
    error: Option<Refusal>,
    event: Option<String>,
    #[serde(default)]
    data: Value,
}

/// Deserialises a present value, even if it is null.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

impl Message {
    /// Parses a line; `None` for a message that only a newer QEMU could send.
    pub fn parse(line: &[u8]) -> Result<Option<Self>, serde_json::Error> {
        let envelope: Envelope = serde_json::from_slice(line)?;
        Ok(match envelope {
            Envelope { event: Some(name), data, .. } => Some(Self::Event(Event { name, data })),
            Envelope { answer: Some(answer), id, .. } => {
                id.as_u64().map(|id| Self::Answer { id, outcome: Ok(answer) })
            }
            Envelope { error: Some(error), id, .. } => Some(match id.as_u64() {
                Some(id) => Self::Answer { id, outcome: Err(error) },
                None => Self::Unreadable(error),
            }),
            Envelope { greeting: Some(greeting), .. } => Some(Self::Greeting(greeting)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: Value) -> Option<Message> {
        Message::parse(value.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_newer_qemus_fields_and_events_are_no_errors() {
        let event = parse(json!({
            "event": "HYPERSPACE", "data": { "warp": [9, null] }, "timestamp": { "seconds": -1, "new": {} }, "more": 1,
        }));
        let Some(Message::Event(event)) = event else { panic!("{event:?}") };
        assert_eq!((event.name.as_str(), &event.data["warp"][0]), ("HYPERSPACE", &json!(9)));
        let greeting = parse(json!({
            "QMP": { "version": { "qemu": { "major": 12, "minor": 1, "micro": 0, "nano": 3 }, "package": "" },
                "capabilities": ["oob", { "telepathy": true }], "motd": "hello" },
        }));
        assert!(matches!(greeting, Some(Message::Greeting(greeting)) if greeting.version.qemu.major == 12));
        assert!(parse(json!({ "neither": 1 })).is_none());
    }

    #[test]
    fn answers_are_told_apart() {
        assert!(matches!(
            parse(json!({ "return": null, "id": 7 })),
            Some(Message::Answer { id: 7, outcome: Ok(_) })
        ));
        let refused = parse(json!({ "error": { "class": "NewClass", "desc": "no" }, "id": 8 }));
        assert!(
            matches!(refused, Some(Message::Answer { id: 8, outcome: Err(refusal) }) if refusal.class == "NewClass")
        );
        let unreadable = parse(json!({ "error": { "class": "GenericError", "desc": "JSON parse error" } }));
        assert!(matches!(unreadable, Some(Message::Unreadable(_))));
        for wrong in ["", "[]", "{", "{\"event\": 7}", "\u{0}"] {
            assert!(Message::parse(wrong.as_bytes()).is_err(), "{wrong:?}");
        }
    }
}
