//! Saves a machine's memory and device state into a file descriptor, and loads them from one:
//! QEMU's migration with this program as its other end. Also dumps the memory for debuggers.

use std::os::fd::BorrowedFd;

use serde_json::json;
use uuid::Uuid;

use super::{Qmp, QmpError};

/// The name of our descriptor in QEMU.
const FILE: &str = "memory";
/// The name of our descriptor for a dump.
const DUMP: &str = "dump";
/// The bandwidth limit of saving, in bytes per second: more than any disk's, since the receiver
/// sets the pace.
const BANDWIDTH_MAX: u64 = 1 << 40;
/// A guest that runs is paused when the rest of its memory takes about this long, in milliseconds.
const PAUSE_MS: u64 = 50;

/// The progress of saving, loading or dumping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It has not begun, or is in progress.
    UnderWay,
    /// It is complete.
    Completed,
    /// It has failed, with QEMU's reason if there is one.
    Failed(String),
}

impl Qmp {
    /// Begins to save the memory and device state. A machine that runs is paused for the last part,
    /// and stays paused. QEMU closes its end of `into` when it is complete or has failed;
    /// [`transfer`](Self::transfer) tells which.
    ///
    /// # Errors
    /// Also if a device's state cannot be saved.
    pub fn save_memory(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.end_former_migration()?;
        // Those of a migration that failed before.
        self.set_capabilities(|_| false)?;
        let limits = json!({ "max-bandwidth": BANDWIDTH_MAX, "downtime-limit": PAUSE_MS });
        self.execute_value("migrate-set-parameters", &limits)?;
        self.give_file(FILE, into)?;
        self.execute_value("migrate", &json!({ "uri": format!("fd:{FILE}") })).map(drop)
    }

    /// Cancels saving. A machine that is paused stays so.
    ///
    /// # Errors
    /// QEMU's error. Succeeds if nothing is being saved.
    pub fn end_saving(&self) -> Result<(), QmpError> {
        self.execute_value("migrate_cancel", &json!({})).map(drop)
    }

    /// Makes a machine that was started to [wait for its memory](crate::Qemu::start_waiting) load
    /// it from `from`. QEMU exits if it rejects the data.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn load_memory(&self, from: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.give_file(FILE, from)?;
        self.execute_value("migrate-incoming", &json!({ "uri": format!("fd:{FILE}") })).map(drop)
    }

    /// Returns the progress of saving or loading.
    ///
    /// # Errors
    /// QEMU's error; [`QmpError::Over`] if QEMU rejected the memory that it was to load.
    pub fn transfer(&self) -> Result<Transfer, QmpError> {
        let answer = self.execute_value("query-migrate", &json!({}))?;
        let why = || answer["error-desc"].as_str().unwrap_or("QEMU does not say why").to_owned();
        Ok(match answer["status"].as_str() {
            Some("completed") => Transfer::Completed,
            Some("failed" | "cancelled") => Transfer::Failed(why()),
            _ => Transfer::UnderWay,
        })
    }

    /// Begins to dump the memory of a paused machine as a core file (ELF): physical memory without
    /// paging, and each processor's registers. QEMU closes its end of `into`, which may be a pipe,
    /// when it is complete or has failed; [`dumped`](Self::dumped) tells which. Until then the
    /// machine can be neither resumed nor stopped.
    ///
    /// # Errors
    /// QEMU's error, also while another dump is in progress.
    pub fn begin_dump(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.give_file(DUMP, into)?;
        let arguments = json!({ "paging": false, "protocol": format!("fd:{DUMP}"), "detach": true });
        self.execute_value("dump-guest-memory", &arguments).map(drop)
    }

    /// Returns the progress of the last dump; completed if there was none. Only the event has the
    /// reason of a failure.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn dumped(&self) -> Result<Transfer, QmpError> {
        let answer = self.execute_value("query-dump", &json!({}))?;
        Ok(match answer["status"].as_str() {
            Some("completed" | "none") => Transfer::Completed,
            Some("failed") => Transfer::Failed("QEMU has not written all of it".to_owned()),
            _ => Transfer::UnderWay,
        })
    }

    /// Returns the machine's generation id (vmgenid), if it has one.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn generation_id(&self) -> Result<Option<Uuid>, QmpError> {
        let answer = self.execute_value("query-vm-generation-id", &json!({}))?;
        Ok(answer["guid"].as_str().and_then(|guid| guid.parse().ok()))
    }

    /// Returns whether KVM runs its processors.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn runs_on_kvm(&self) -> Result<bool, QmpError> {
        let answer = self.execute_value("query-kvm", &json!({}))?;
        Ok(answer["enabled"].as_bool().unwrap_or_default())
    }
}

impl Transfer {
    /// Whether it is complete or has failed.
    pub fn is_over(&self) -> bool {
        *self != Self::UnderWay
    }
}
