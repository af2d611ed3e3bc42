//! Moves a running machine's memory to a QEMU of another host, through sockets of a relay beside
//! each.
//!
//! The guest stands still from [`MigrationPhase::AboutToSwitch`] on. If the rest fails then, QEMU
//! continues it by itself: so nobody may rely on the end of the guest here before
//! [`MigrationPhase::Completed`].

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Qmp, QmpError, Refusal};

/// The capabilities that a migration sets, and that saving into a file must not have.
const CAPABILITIES: [&str; 4] =
    ["pause-before-switchover", "auto-converge", "multifd", "late-block-activate"];
/// How long a migration that has failed may hold its sockets, before they are closed by force, and
/// after that.
const FORMER_ENDS_WITHIN: Duration = Duration::from_secs(3);
/// The interval of looks whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Bytes of a page of the guest, in which QEMU counts what changes.
const PAGE_BYTES: u64 = 4096;

/// The settings of a migration, equal at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationSettings {
    /// The channels beside the first one.
    pub more_channels: u8,
    /// The guest is stopped when the rest of its memory takes this long, in milliseconds.
    pub pause_ms: u64,
    /// The most bytes per second.
    pub bytes_per_second: u64,
}

impl MigrationSettings {
    /// The settings of memory and volumes that pass at the same time: each has half of the limit.
    #[must_use]
    pub fn beside_volumes(self) -> Self {
        Self { bytes_per_second: self.bytes_per_second.div_ceil(2), ..self }
    }
}

/// How far a migration is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationPhase {
    /// It has not begun, or is in progress.
    UnderWay,
    /// The guest is stopped, its requests are answered, and QEMU waits for
    /// [`Qmp::switch_over`].
    AboutToSwitch,
    /// It is complete. The guest is stopped.
    Completed,
    /// It has failed or was cancelled, with QEMU's reason if there is one.
    Failed(String),
}

/// What QEMU says of a migration. Numbers are 0 as long as they are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MigrationProgress {
    /// How far it is.
    pub phase: MigrationPhase,
    /// Bytes that were sent.
    pub sent_bytes: u64,
    /// Bytes of memory that are to be sent, as far as is known.
    pub remaining_bytes: u64,
    /// Bytes of memory that the guest has.
    pub total_bytes: u64,
    /// Bytes per second that are sent.
    pub bytes_per_second: u64,
    /// Bytes of memory per second that the guest changes.
    pub dirty_bytes_per_second: u64,
    /// How often all of the memory was gone through.
    pub rounds: u64,
    /// How much the guest's processors are slowed down, in percent, because it changes its memory
    /// faster than it is sent.
    pub slowed_percent: u64,
}

impl Qmp {
    /// Makes a machine that [waits for its memory](crate::Qemu::start_waiting) listen for it at
    /// this socket, which it creates. The machine is paused when it has loaded it. QEMU exits if it
    /// rejects it.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn receive_memory(&self, socket: &Path, settings: MigrationSettings) -> Result<(), QmpError> {
        let multifd = settings.more_channels > 0;
        self.set_capabilities(|name| name == "late-block-activate" || (name == "multifd" && multifd))?;
        if multifd {
            let channels = json!({ "multifd-channels": settings.more_channels });
            self.execute_value("migrate-set-parameters", &channels)?;
        }
        self.execute_value("migrate-incoming", &uri(socket)).map(drop)
    }

    /// Begins to send the memory to this socket, while the guest runs. A guest that changes it
    /// faster than it is sent is slowed down. Then QEMU stops the guest and waits.
    ///
    /// # Errors
    /// QEMU's error, also if a device cannot move.
    pub fn send_memory(&self, socket: &Path, settings: MigrationSettings) -> Result<(), QmpError> {
        self.end_former_migration()?;
        let multifd = settings.more_channels > 0;
        self.set_capabilities(|name| {
            matches!(name, "pause-before-switchover" | "auto-converge") || (name == "multifd" && multifd)
        })?;
        let mut parameters = json!({
            "max-bandwidth": settings.bytes_per_second, "downtime-limit": settings.pause_ms,
        });
        if multifd {
            parameters["multifd-channels"] = settings.more_channels.into();
        }
        self.execute_value("migrate-set-parameters", &parameters)?;
        self.execute_value("migrate", &uri(socket)).map(drop)
    }

    /// Sends the rest: the guest is stopped, and does not continue here if it succeeds.
    ///
    /// # Errors
    /// QEMU's error, also if it is not [about to](MigrationPhase::AboutToSwitch).
    pub fn switch_over(&self) -> Result<(), QmpError> {
        self.execute_value("migrate-continue", &json!({ "state": "pre-switchover" })).map(drop)
    }

    /// Returns the progress of sending or receiving.
    ///
    /// # Errors
    /// QEMU's error; [`QmpError::Over`] if QEMU rejected the memory that it was to load.
    pub fn migration(&self) -> Result<MigrationProgress, QmpError> {
        Ok(progress(&self.execute_value("query-migrate", &json!({}))?))
    }

    /// Waits until QEMU has ended a migration that has failed: for some time it says that it has,
    /// and still holds its sockets. One that begins then is refused, and QEMU 7.2 takes no other
    /// one for as long as it runs.
    ///
    /// # Errors
    /// QEMU's error; a refusal in its name if it does not end.
    pub(super) fn end_former_migration(&self) -> Result<(), QmpError> {
        let is_held = || {
            let held = self.execute_value("query-yank", &json!({}))?;
            let mut held = held.as_array().into_iter().flatten();
            Ok(held.any(|instance| instance["type"] == "migration"))
        };
        for is_cut_off in [false, true] {
            if is_cut_off {
                let all = json!({ "instances": [{ "type": "migration" }] });
                // One that has ended just now is refused, and that is well.
                let _ = self.execute_value("yank", &all);
            }
            let deadline = Instant::now() + FORMER_ENDS_WITHIN;
            while is_held()? {
                if Instant::now() >= deadline {
                    break;
                }
                thread::sleep(LOOK_EVERY);
            }
            if !is_held()? {
                return Ok(());
            }
        }
        let refusal =
            Refusal { class: "Busy".to_owned(), desc: "a former migration does not end".to_owned() };
        Err(QmpError::Refused { command: "migrate".to_owned(), refusal })
    }

    pub(super) fn set_capabilities(&self, wanted: impl Fn(&str) -> bool) -> Result<(), QmpError> {
        let capability = |name: &&str| json!({ "capability": name, "state": wanted(name) });
        let all: Vec<Value> = CAPABILITIES.iter().map(capability).collect();
        self.execute_value("migrate-set-capabilities", &json!({ "capabilities": all })).map(drop)
    }
}

fn uri(socket: &Path) -> Value {
    json!({ "uri": format!("unix:{}", socket.display()) })
}

fn progress(answer: &Value) -> MigrationProgress {
    let why = || answer["error-desc"].as_str().unwrap_or("QEMU does not say why").to_owned();
    let ram = |name: &str| answer["ram"][name].as_u64().unwrap_or_default();
    let megabits = answer["ram"]["mbps"].as_f64().unwrap_or_default();
    MigrationProgress {
        phase: match answer["status"].as_str() {
            Some("pre-switchover") => MigrationPhase::AboutToSwitch,
            Some("completed") => MigrationPhase::Completed,
            Some("failed" | "cancelled") => MigrationPhase::Failed(why()),
            _ => MigrationPhase::UnderWay,
        },
        sent_bytes: ram("transferred"),
        remaining_bytes: ram("remaining"),
        total_bytes: ram("total"),
        // What QEMU says may be any number; a cast keeps it within the type.
        bytes_per_second: (megabits * 125_000.0) as u64,
        dirty_bytes_per_second: ram("dirty-pages-rate").saturating_mul(PAGE_BYTES),
        rounds: ram("dirty-sync-count"),
        slowed_percent: answer["cpu-throttle-percentage"].as_u64().unwrap_or_default(),
    }
}

impl MigrationProgress {
    /// How long the rest takes at the present rates, in seconds; `None` if the guest changes its
    /// memory as fast as it is sent, or the rates are not known.
    pub fn seconds_left(&self) -> Option<u64> {
        let gains = self.bytes_per_second.checked_sub(self.dirty_bytes_per_second)?;
        self.remaining_bytes.checked_div(gains)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_qemu_says_of_a_migration_is_read() {
        let answer = json!({
            "status": "active", "expected-downtime": 300, "cpu-throttle-percentage": 20,
            "ram": {
                "transferred": 1000, "remaining": 900_000, "total": 2_000_000, "mbps": 8.0,
                "dirty-pages-rate": 100, "dirty-sync-count": 3,
            },
        });
        let mut said = progress(&answer);
        let expected = MigrationProgress {
            phase: MigrationPhase::UnderWay,
            sent_bytes: 1000,
            remaining_bytes: 900_000,
            total_bytes: 2_000_000,
            bytes_per_second: 1_000_000,
            dirty_bytes_per_second: 409_600,
            rounds: 3,
            slowed_percent: 20,
        };
        assert_eq!(said, expected);
        assert_eq!(said.seconds_left(), Some(1));
        said.dirty_bytes_per_second = 1_000_000;
        assert_eq!(said.seconds_left(), None);
        said.dirty_bytes_per_second = 2_000_000;
        assert_eq!(said.seconds_left(), None);
        for (word, phase) in [
            ("pre-switchover", MigrationPhase::AboutToSwitch),
            ("device", MigrationPhase::UnderWay),
            ("completed", MigrationPhase::Completed),
            ("cancelled", MigrationPhase::Failed("QEMU does not say why".to_owned())),
        ] {
            assert_eq!(progress(&json!({ "status": word })).phase, phase);
        }
        let failed = progress(&json!({ "status": "failed", "error-desc": "a reason" }));
        assert_eq!(failed.phase, MigrationPhase::Failed("a reason".to_owned()));
        // A QEMU that lies.
        let lies = json!({ "ram": { "mbps": -1e300, "dirty-pages-rate": u64::MAX, "total": "many" } });
        assert_eq!((progress(&lies).bytes_per_second, progress(&lies).total_bytes), (0, 0));
        assert_eq!(progress(&lies).seconds_left(), None);
    }
}
