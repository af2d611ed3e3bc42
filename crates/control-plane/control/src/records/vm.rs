//! A VM: what is wanted of it, and what its host says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_api::vm::{DesiredPower, Lifecycle, PowerState, RestartPolicy};
use strongroom_api::{Name, ObjectKind, ObjectRef};
use strongroom_host::protocol::{
    Dump, ObservedVm, SuspendedMemory, VmGeneration, VmReason, VmSpec, WaitingFor,
};
use strongroom_types::{DatastoreId, KeyRequestId, ProviderName, VmId};
use uuid::Uuid;

use super::hardware::Hardware;

/// What is wanted of a VM. It is here before anything is done for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// Its id.
    pub id: VmId,
    /// Its name.
    pub name: Name,
    /// Where it lies.
    pub datastore: DatastoreId,
    /// The host that has it.
    pub host: Uuid,
    /// Its policy.
    #[serde(default)]
    pub policy: Option<Uuid>,
    /// What it is made of.
    pub hardware: Hardware,
    /// A key that is to be made for it.
    #[serde(default)]
    pub key_wish: Option<KeyWish>,
    /// Where it is between being wished for and being gone.
    pub lifecycle: Lifecycle,
    /// What somebody wants of it.
    pub desired: DesiredPower,
    /// Whether it is started again by itself.
    pub restart: RestartPolicy,
    /// Its last start. It only grows, and a start is in here before a host or a key server hears of
    /// it.
    pub generation: u64,
    /// The task that works on it: one at a time.
    #[serde(default)]
    pub task: Option<Uuid>,
    /// When it was made or registered.
    pub created_unix_seconds: u64,
    /// When it was last started by itself, in milliseconds since 1970; those that still count.
    #[serde(default)]
    pub restarts_unix_ms: Vec<u64>,
}

/// A key that is to be made. The request is written down before it is asked, and asked again after
/// a crash: it never makes two keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyWish {
    /// By whom.
    pub provider: ProviderName,
    /// Which request.
    pub request: KeyRequestId,
}

impl VmRecord {
    /// How answers name it.
    pub fn object(&self) -> ObjectRef {
        let id = Uuid::from_bytes(*self.id.as_bytes());
        ObjectRef { kind: ObjectKind::Vm, id: Some(id), name: self.name.to_string() }
    }

    /// Its last start, as the protocol has it.
    pub fn generation(&self) -> VmGeneration {
        VmGeneration(self.generation)
    }

    /// What its host is told of it; nothing while a key is awaited.
    pub fn told(&self, datastore: &Path) -> Option<VmSpec> {
        // A name of the API is one of the protocol: the same characters, the same length.
        let name = self.name.as_str().parse().ok()?;
        let spec = self.hardware.told(self.id, name, PathBuf::from(datastore))?;
        Some(VmSpec { policy: self.policy, ..spec })
    }
}

/// What its host said last of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObservedRecord {
    /// Which.
    pub vm: VmId,
    /// Whether it runs.
    pub power: PowerState,
    /// Which start the host speaks of.
    pub generation: u64,
    /// Since when, in seconds since 1970.
    pub since_unix_seconds: u64,
    /// Why.
    #[serde(default)]
    pub reason: Option<VmReason>,
    /// Keys that it waits for.
    #[serde(default)]
    pub waiting_for: Vec<WaitingFor>,
    /// The memory with which it goes on.
    #[serde(default)]
    pub suspended: Option<SuspendedMemory>,
    /// The dumps of its guest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<Dump>,
    /// How many supervisors of this start of the VM have died.
    #[serde(default, skip_serializing_if = "is_none_yet")]
    pub supervisor_deaths: u64,
    /// Whether its TPM has ended while it runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tpm_lost: bool,
    /// Whether its guest reaches nothing since its network has ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub network_lost: bool,
    /// How often the worker of a disk died in this start of the VM, where one has.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub worker_restarts: BTreeMap<String, u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_none_yet(count: &u64) -> bool {
    *count == 0
}

impl ObservedRecord {
    /// What the host says, without what changes all the time.
    pub fn of(seen: &ObservedVm) -> Self {
        use strongroom_host::protocol::PowerState as Told;
        let power = match seen.power {
            Told::Stopped => PowerState::Stopped,
            Told::Starting => PowerState::Starting,
            Told::Running => PowerState::Running,
            Told::Paused => PowerState::Paused,
            Told::Stopping => PowerState::Stopping,
            Told::Crashed => PowerState::Crashed,
            Told::Suspended => PowerState::Suspended,
            Told::KeyUnavailable => PowerState::KeyUnavailable,
        };
        let restarts = seen.volumes.iter().filter(|volume| volume.restarts > 0);
        Self {
            vm: seen.vm,
            power,
            generation: seen.generation.0,
            since_unix_seconds: seen.since_unix_seconds,
            reason: seen.reason.clone(),
            waiting_for: seen.waiting_for.clone(),
            suspended: seen.suspended.clone(),
            dumps: seen.dumps.clone().unwrap_or_default(),
            supervisor_deaths: seen.supervisor_deaths,
            // A supervisor of a former version says it with the reason alone.
            tpm_lost: seen.tpm_lost || seen.reason.as_ref().is_some_and(|reason| reason.code == "tpm_lost"),
            network_lost: seen.network_lost,
            worker_restarts: restarts.map(|volume| (volume.disk.to_string(), volume.restarts)).collect(),
        }
    }

    /// The reason's code; empty if there is none.
    pub fn reason_code(&self) -> &str {
        self.reason.as_ref().map_or("", |reason| reason.code.as_str())
    }
}
