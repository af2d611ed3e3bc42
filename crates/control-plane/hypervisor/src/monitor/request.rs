//! What a monitor is asked, and does by commands of QMP.

use std::os::fd::{AsFd, OwnedFd};

use serde::{Deserialize, Serialize};

use super::said::{Answer, Outcome};
use crate::machine::{DiskAttachment, Nic};
use crate::network::NetworkState;
use crate::qmp::{Qmp, QmpError};

/// A request, and the number by which its answer is known.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Asked {
    pub id: u64,
    pub request: Request,
}

/// All that can be asked. What [`Qmp`]'s methods say of it holds here.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Request {
    Status,
    Continue,
    Stop,
    PressPowerButton,
    Reset,
    Quit,
    /// Where to comes beside.
    SaveMemory,
    EndSaving,
    /// Where from comes beside.
    LoadMemory,
    Transfer,
    /// Where to comes beside.
    BeginDump,
    Dumped,
    GenerationId,
    RunsOnKvm,
    PlugDisk {
        name: String,
        disk: DiskAttachment,
    },
    /// What reaches its network comes beside, where that is a file.
    PlugNic {
        name: String,
        nic: Nic,
        network: NetworkState,
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

impl Request {
    /// QMP's word for it, or for what matters of it.
    pub fn command(&self) -> &'static str {
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
            Self::Transfer => "query-migrate",
            Self::BeginDump => "dump-guest-memory",
            Self::Dumped => "query-dump",
            Self::GenerationId => "query-vm-generation-id",
            Self::RunsOnKvm => "query-kvm",
            Self::PlugDisk { .. } | Self::PlugNic { .. } => "device_add",
            Self::Unplug { .. } | Self::Unplugged { .. } => "device_del",
            Self::IsPlugged { .. } => "qom-list",
        }
    }

    /// Does it.
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
            Self::BeginDump => qmp.begin_dump(needed()?).map(done),
            Self::Dumped => qmp.dumped().map(Answer::Transfer),
            Self::GenerationId => qmp.generation_id().map(Answer::GenerationId),
            Self::RunsOnKvm => qmp.runs_on_kvm().map(Answer::YesOrNo),
            Self::PlugDisk { name, disk } => qmp.plug_disk(name, disk).map(done),
            Self::PlugNic { name, nic, network } => qmp.plug_nic(name, nic, network, file).map(done),
            Self::Unplug { name } => qmp.unplug(name).map(done),
            Self::Unplugged { name } => {
                qmp.unplugged(name);
                Ok(Answer::Done)
            }
            Self::IsPlugged { name } => qmp.is_plugged(name).map(Answer::YesOrNo),
        }
    }
}
