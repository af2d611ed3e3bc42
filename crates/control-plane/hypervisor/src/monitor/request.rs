//! The requests to a monitor, which it carries out with QMP commands.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::said::{Answer, Outcome};
use crate::machine::{DiskAttachment, Link, Nic};
use crate::network::NetworkState;
use crate::qmp::{MigrationSettings, Qmp, QmpError};

/// The requests to a process that speaks for the supervisor.
pub(crate) trait Question: Serialize + DeserializeOwned {
    /// Its command, or the main one of several.
    fn command(&self) -> &'static str;
}

/// A request, with the number that its answer repeats.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Asked<Q> {
    pub id: u64,
    pub request: Q,
}

/// The requests, as documented for the methods of [`Qmp`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Status,
    Continue,
    Stop,
    PressPowerButton,
    Reset,
    Quit,
    /// The target file comes with the packet.
    SaveMemory,
    EndSaving,
    /// The source file comes with the packet.
    LoadMemory,
    Transfer,
    ReceiveMemory {
        socket: PathBuf,
        settings: MigrationSettings,
    },
    SendMemory {
        socket: PathBuf,
        settings: MigrationSettings,
    },
    SwitchOver,
    Migration,
    /// The target file comes with the packet.
    BeginDump,
    Dumped,
    GenerationId,
    RunsOnKvm,
    PlugDisk {
        name: String,
        disk: DiskAttachment,
    },
    /// The file of its network comes with the packet, if it has one.
    PlugNic {
        name: String,
        nic: Nic,
        network: NetworkState,
    },
    CpuCount,
    PlugCpu,
    UnplugCpu,
    MemoryBytes,
    PlugMemory {
        bytes: u64,
    },
    SetLink {
        name: String,
        link: Link,
    },
    Unplug {
        name: String,
    },
    Unplugged {
        name: String,
    },
    IsPlugged {
        name: String,
    },
}

impl Question for Request {
    fn command(&self) -> &'static str {
        match self {
            Self::Status => "query-status",
            Self::Continue => "cont",
            Self::Stop => "stop",
            Self::PressPowerButton => "system_powerdown",
            Self::Reset => "system_reset",
            Self::Quit => "quit",
            Self::SaveMemory => "migrate",
            Self::EndSaving => "migrate_cancel",
            Self::LoadMemory => "migrate-incoming",
            Self::Transfer | Self::Migration => "query-migrate",
            Self::ReceiveMemory { .. } => "migrate-incoming",
            Self::SendMemory { .. } => "migrate",
            Self::SwitchOver => "migrate-continue",
            Self::BeginDump => "dump-guest-memory",
            Self::Dumped => "query-dump",
            Self::GenerationId => "query-vm-generation-id",
            Self::RunsOnKvm => "query-kvm",
            Self::PlugDisk { .. } | Self::PlugNic { .. } => "device_add",
            Self::CpuCount => "query-hotpluggable-cpus",
            Self::PlugCpu | Self::PlugMemory { .. } => "device_add",
            Self::UnplugCpu => "device_del",
            Self::MemoryBytes => "query-memory-size-summary",
            Self::SetLink { .. } => "set_link",
            Self::Unplug { .. } | Self::Unplugged { .. } => "device_del",
            Self::IsPlugged { .. } => "qom-list",
        }
    }
}

impl Request {
    /// Carries it out.
    pub fn run(self, qmp: &Qmp, files: Vec<OwnedFd>) -> Outcome {
        let file = files.first().map(AsFd::as_fd);
        let needed = || {
            let (command, reason) = (self.command().to_owned(), "it was asked without a file".to_owned());
            file.ok_or(QmpError::Answer { command, reason })
        };
        let done = |()| Answer::Done;
        match &self {
            Self::Status => qmp.status().map(Answer::Status),
            Self::Continue => qmp.cont().map(done),
            Self::Stop => qmp.stop().map(done),
            Self::PressPowerButton => qmp.press_power_button().map(done),
            Self::Reset => qmp.reset().map(done),
            Self::Quit => qmp.quit().map(done),
            Self::SaveMemory => qmp.save_memory(needed()?).map(done),
            Self::EndSaving => qmp.end_saving().map(done),
            Self::LoadMemory => qmp.load_memory(needed()?).map(done),
            Self::Transfer => qmp.transfer().map(Answer::Transfer),
            Self::ReceiveMemory { socket, settings } => qmp.receive_memory(socket, *settings).map(done),
            Self::SendMemory { socket, settings } => qmp.send_memory(socket, *settings).map(done),
            Self::SwitchOver => qmp.switch_over().map(done),
            Self::Migration => qmp.migration().map(Answer::Migration),
            Self::BeginDump => qmp.begin_dump(needed()?).map(done),
            Self::Dumped => qmp.dumped().map(Answer::Transfer),
            Self::GenerationId => qmp.generation_id().map(Answer::GenerationId),
            Self::RunsOnKvm => qmp.runs_on_kvm().map(Answer::YesOrNo),
            Self::PlugDisk { name, disk } => qmp.plug_disk(name, disk).map(done),
            Self::PlugNic { name, nic, network } => qmp.plug_nic(name, nic, network, file).map(done),
            Self::CpuCount => qmp.cpu_count().map(Answer::Count),
            Self::PlugCpu => qmp.plug_cpu().map(done),
            Self::UnplugCpu => qmp.unplug_cpu().map(done),
            Self::MemoryBytes => qmp.memory_bytes().map(Answer::Count),
            Self::PlugMemory { bytes } => qmp.plug_memory(*bytes).map(done),
            Self::SetLink { name, link } => qmp.set_link(name, *link).map(done),
            Self::Unplug { name } => qmp.unplug(name).map(done),
            Self::Unplugged { name } => {
                qmp.unplugged(name);
                Ok(Answer::Done)
            }
            Self::IsPlugged { name } => qmp.is_plugged(name).map(Answer::YesOrNo),
        }
    }
}
