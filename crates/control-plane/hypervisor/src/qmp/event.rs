//! Events that matter for a machine's life.

use serde::Deserialize;
use serde_json::Value;

use super::message::Event;

/// An event of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// Its processors run.
    Resumed,
    /// Its processors are paused; [`Monitor::status`](crate::Monitor::status) has the reason.
    Stopped,
    /// It is off, or about to be. QEMU exits after this.
    Shutdown {
        /// Whether the guest caused it.
        guest: bool,
        /// QEMU's reason, such as `guest-shutdown` or `host-qmp-quit`.
        reason: String,
    },
    /// It was reset.
    Reset {
        /// Whether the guest caused it.
        guest: bool,
    },
    /// The power button was pressed.
    PowerDownRequested,
    /// The guest's kernel has panicked. The machine is paused.
    Panicked,
    /// A disk that QEMU itself accesses (NBD) has failed a request.
    IoError {
        /// The disk.
        device: String,
        /// Whether the machine is paused because of it.
        stopped: bool,
    },
    /// The guest has released a device.
    DeviceDeleted {
        /// The device's id. Devices without an id are ignored.
        device: String,
    },
    /// The process behind a card's network `user` has ended.
    NetworkLost {
        /// The card's network.
        network: String,
    },
    /// A dump has ended.
    Dumped {
        /// Why it failed, if it did.
        error: Option<String>,
    },
    /// Events were dropped for lack of room. The caller should read
    /// [`Monitor::status`](crate::Monitor::status).
    Missed,
    /// Another event, perhaps of a newer QEMU.
    Other {
        /// Its name.
        name: String,
    },
}

#[derive(Deserialize)]
struct Cause {
    #[serde(default)]
    guest: bool,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
struct BlockError {
    #[serde(default)]
    device: String,
    #[serde(rename = "node-name", default)]
    node: String,
    #[serde(default)]
    action: String,
}

impl From<Event> for PowerEvent {
    fn from(event: Event) -> Self {
        let Event { name, data } = event;
        let known = match name.as_str() {
            "RESUME" => Some(Self::Resumed),
            "STOP" => Some(Self::Stopped),
            "POWERDOWN" => Some(Self::PowerDownRequested),
            "GUEST_PANICKED" => Some(Self::Panicked),
            "SHUTDOWN" => Cause::deserialize(&data)
                .ok()
                .map(|cause| Self::Shutdown { guest: cause.guest, reason: cause.reason }),
            "RESET" => Cause::deserialize(&data).ok().map(|cause| Self::Reset { guest: cause.guest }),
            "BLOCK_IO_ERROR" => BlockError::deserialize(&data).ok().map(|error| Self::IoError {
                device: if error.device.is_empty() { error.node } else { error.device },
                stopped: error.action == "stop",
            }),
            "DUMP_COMPLETED" => {
                let error = data.get("error").and_then(Value::as_str).map(str::to_owned);
                Some(Self::Dumped { error })
            }
            "NETDEV_STREAM_DISCONNECTED" => data
                .get("netdev-id")
                .and_then(Value::as_str)
                .map(|network| Self::NetworkLost { network: network.to_owned() }),
            "DEVICE_DELETED" => data
                .get("device")
                .and_then(Value::as_str)
                .map(|device| Self::DeviceDeleted { device: device.to_owned() }),
            _ => None,
        };
        known.unwrap_or(Self::Other { name })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn event(name: &str, data: Value) -> PowerEvent {
        Event { name: name.to_owned(), data }.into()
    }

    #[test]
    fn what_matters_is_understood_and_the_rest_named() {
        assert_eq!(event("RESUME", Value::Null), PowerEvent::Resumed);
        assert_eq!(
            event("SHUTDOWN", json!({ "guest": true, "reason": "guest-of-tomorrow", "new": 1 })),
            PowerEvent::Shutdown { guest: true, reason: "guest-of-tomorrow".to_owned() }
        );
        assert_eq!(
            event("BLOCK_IO_ERROR", json!({ "device": "", "node-name": "disk1", "action": "stop" })),
            PowerEvent::IoError { device: "disk1".to_owned(), stopped: true }
        );
        let failed = json!({ "result": { "status": "failed" }, "error": "no room" });
        assert_eq!(event("DUMP_COMPLETED", failed), PowerEvent::Dumped { error: Some("no room".to_owned()) });
        assert_eq!(
            event("NETDEV_STREAM_DISCONNECTED", json!({ "netdev-id": "net0" })),
            PowerEvent::NetworkLost { network: "net0".to_owned() }
        );
        // A known event with unexpected data is not an error.
        for (name, data) in [("SHUTDOWN", json!([1])), ("DEVICE_DELETED", json!({})), ("NEW", json!(1))] {
            assert_eq!(event(name, data), PowerEvent::Other { name: name.to_owned() });
        }
    }
}
