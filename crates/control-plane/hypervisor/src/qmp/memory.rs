//! A machine's memory and its devices' state, saved into a file descriptor and loaded from one:
//! QEMU's migration, with nobody at the other end but us. And its memory alone, dumped into one for
//! debuggers.

use std::os::fd::BorrowedFd;

use serde_json::json;
use uuid::Uuid;

use super::{Qmp, QmpError};

/// What QEMU knows our descriptor by.
const FILE: &str = "memory";
/// The same, of a dump.
const DUMP: &str = "dump";
/// Bytes a second that saving may take. There is no guest to be slowed down: more than any disk
/// takes.
const BANDWIDTH_MAX: u64 = 1 << 40;

/// How far saving or loading is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transfer {
    /// It has not begun, or is under way.
    UnderWay,
    /// All of it is through.
    Completed,
    /// It came to nothing, and why, if QEMU says.
    Failed(String),
}

impl Qmp {
    /// Begins to save the memory and the devices' state of a machine that stands still. QEMU closes
    /// its end of `into` when it has written all of it, or has failed: [`transfer`](Self::transfer)
    /// says which.
    ///
    /// # Errors
    /// Also if a device's state cannot be saved.
    pub fn save_memory(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.execute_value("migrate-set-parameters", &json!({ "max-bandwidth": BANDWIDTH_MAX }))?;
        self.give_file(FILE, into)?;
        self.execute_value("migrate", &json!({ "uri": format!("fd:{FILE}") })).map(drop)
    }

    /// Ends saving. The machine stands still as before.
    ///
    /// # Errors
    /// QEMU's; not if nothing is under way.
    pub fn end_saving(&self) -> Result<(), QmpError> {
        self.execute_value("migrate_cancel", &json!({})).map(drop)
    }

    /// Has a machine that was started to [wait for its memory](crate::Qemu::start_waiting) load it
    /// from `from`. A QEMU that does not like what comes ends.
    ///
    /// # Errors
    /// QEMU's.
    pub fn load_memory(&self, from: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.give_file(FILE, from)?;
        self.execute_value("migrate-incoming", &json!({ "uri": format!("fd:{FILE}") })).map(drop)
    }

    /// How far saving or loading is.
    ///
    /// # Errors
    /// QEMU's; [`QmpError::Over`] from one that did not like what it was to load.
    pub fn transfer(&self) -> Result<Transfer, QmpError> {
        let answer = self.execute_value("query-migrate", &json!({}))?;
        let why = || answer["error-desc"].as_str().unwrap_or("QEMU does not say why").to_owned();
        Ok(match answer["status"].as_str() {
            Some("completed") => Transfer::Completed,
            Some("failed" | "cancelled") => Transfer::Failed(why()),
            _ => Transfer::UnderWay,
        })
    }

    /// Begins to dump the memory of a machine that stands still, as a core file (ELF): physical
    /// memory, without paging, and each processor's registers. QEMU closes its end of `into`, which
    /// may be a pipe, when it has written all of it, or has failed: [`dumped`](Self::dumped) says
    /// which. Until then the machine can neither go on nor be stopped.
    ///
    /// # Errors
    /// QEMU's, also while another dump is under way.
    pub fn begin_dump(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.give_file(DUMP, into)?;
        let arguments = json!({ "paging": false, "protocol": format!("fd:{DUMP}"), "detach": true });
        self.execute_value("dump-guest-memory", &arguments).map(drop)
    }

    /// How far the last dump is; completed if there was none. Why it failed says the event alone.
    ///
    /// # Errors
    /// QEMU's.
    pub fn dumped(&self) -> Result<Transfer, QmpError> {
        let answer = self.execute_value("query-dump", &json!({}))?;
        Ok(match answer["status"].as_str() {
            Some("completed" | "none") => Transfer::Completed,
            Some("failed") => Transfer::Failed("QEMU has not written all of it".to_owned()),
            _ => Transfer::UnderWay,
        })
    }

    /// The id of this generation of the machine (vmgenid), if it has one.
    ///
    /// # Errors
    /// QEMU's.
    pub fn generation_id(&self) -> Result<Option<Uuid>, QmpError> {
        let answer = self.execute_value("query-vm-generation-id", &json!({}))?;
        Ok(answer["guid"].as_str().and_then(|guid| guid.parse().ok()))
    }

    /// Whether KVM runs its processors.
    ///
    /// # Errors
    /// QEMU's.
    pub fn runs_on_kvm(&self) -> Result<bool, QmpError> {
        let answer = self.execute_value("query-kvm", &json!({}))?;
        Ok(answer["enabled"].as_bool().unwrap_or_default())
    }
}

impl Transfer {
    /// Whether nothing more becomes of it.
    pub fn is_over(&self) -> bool {
        *self != Self::UnderWay
    }
}
