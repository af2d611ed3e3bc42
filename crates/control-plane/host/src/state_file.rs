//! `state.json` in a VM's run directory: the VM's processes, for a later hostd or supervisor.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;

use serde::{Deserialize, Serialize};
use strongroom_hypervisor::QemuIdentity;

use crate::layout::Layout;
use crate::nic_layout::NicLayout;
use crate::process::ProcessIdentity;
use crate::protocol::{Cpus, DiskName, MemorySize, OffReason, RunningMachine, VmGeneration, VmSpec};
use crate::run_directory::VmRunDirectory;

/// The format of the file.
const FORMAT: u32 = 1;
/// The longest file, in bytes.
const BYTES_MAX: u64 = 512 << 10;

/// The processes of a VM. Nothing here is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFile {
    format: u32,
    /// The number of the start.
    pub generation: VmGeneration,
    /// The configuration of the start.
    pub spec: VmSpec,
    /// Where its volumes are served; empty means as the start placed them.
    #[serde(default, skip_serializing_if = "Layout::is_empty")]
    pub layout: Layout,
    /// The network cards that QEMU has, or may have; absent means as the start placed them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<NicLayout>,
    /// What QEMU was started with; absent if it has that still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<StartSizes>,
    /// The supervisor.
    pub supervisor: ProcessIdentity,
    /// QEMU, once it runs.
    pub qemu: Option<QemuIdentity>,
    /// Its TPM's swtpm, once it runs.
    #[serde(default)]
    pub swtpm: Option<QemuIdentity>,
    /// The number of supervisors of this start that have died.
    #[serde(default)]
    pub supervisor_deaths: u64,
    /// Whether the VM was paused on request.
    pub paused_by_request: bool,
    /// The half-clear disk to which nothing of its old sort is written any more. A later supervisor
    /// serves it only so, whatever lies on its datastore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_over: Option<DiskName>,
    /// What the machine would have to find on another host, once it runs. Absent if a supervisor of
    /// an earlier program started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<RunningMachine>,
    /// Whether it is between two hosts: its disks are not started in QEMU, and only the workers of
    /// this supervisor can give it them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub volumes_released: bool,
    /// How it ended, once it has ended.
    pub off: Option<Off>,
}

/// The sizes of a machine at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartSizes {
    /// Its processors.
    pub cpus: Cpus,
    /// Its memory.
    pub memory_bytes: MemorySize,
}

/// The end of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Off {
    /// The reason.
    pub reason: OffReason,
    /// A sentence for people.
    pub message: String,
    /// When: seconds since 1970-01-01 00:00 UTC.
    pub at_unix_seconds: u64,
}

impl StateFile {
    /// The state of a VM whose QEMU does not run yet.
    pub fn new(generation: VmGeneration, spec: VmSpec, supervisor: ProcessIdentity) -> Self {
        Self {
            format: FORMAT,
            generation,
            spec,
            layout: Layout::default(),
            nics: None,
            started: None,
            supervisor,
            qemu: None,
            swtpm: None,
            supervisor_deaths: 0,
            paused_by_request: false,
            changed_over: None,
            machine: None,
            volumes_released: false,
            off: None,
        }
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// If it cannot be read or parsed.
    pub fn read(run: &VmRunDirectory) -> io::Result<Option<Self>> {
        let file = match OpenOptions::new().read(true).open(run.state()) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text)?;
        let state: Self = serde_json::from_slice(&text).map_err(io::Error::other)?;
        if state.format != FORMAT {
            return Err(io::Error::other(format!(
                "it is of format {}, this program reads {FORMAT}",
                state.format
            )));
        }
        Ok(Some(state))
    }

    /// Replaces the file atomically. It lasts as long as the processes that it names, so it need
    /// not survive a power cut.
    ///
    /// # Errors
    /// If the file system is full; the old file then stays.
    pub fn write(&self, run: &VmRunDirectory) -> io::Result<()> {
        let new = run.state().with_extension("json.new");
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
        file.write_all(&text)?;
        std::fs::rename(&new, run.state())
    }
}
