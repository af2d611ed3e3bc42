//! The directories that hold volumes.

use serde::{Deserialize, Serialize};
use strongroom_types::{DatastoreId, VmId};
use utoipa::ToSchema;

use crate::name::Name;

/// A request to add an existing directory as a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDatastore {
    /// Its name.
    pub name: Name,
    /// The absolute path of the directory.
    #[schema(min_length = 1, max_length = 4095, pattern = "^/")]
    pub path: String,
    /// The host that has it, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A request to have another host use a datastore. Its storage is mounted there already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDatastoreHost {
    /// The host, by name or id.
    #[schema(min_length = 1, max_length = 63)]
    pub host: String,
    /// The absolute path of its directory there; by default the same as on its first host.
    #[schema(min_length = 1, max_length = 4095, pattern = "^/")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

/// A datastore on one of its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreHost {
    /// The host's name.
    pub host: String,
    /// Its directory there.
    pub path: String,
    /// Its state there.
    pub state: DatastoreState,
}

/// A datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Datastore {
    /// Its id, which is stored in it and is the same wherever it is mounted.
    #[schema(value_type = String, format = Uuid)]
    pub id: DatastoreId,
    /// Its name.
    pub name: Name,
    /// The directory, on its first host.
    pub path: String,
    /// The name of its first host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Every host that reaches it.
    #[serde(default)]
    pub hosts: Vec<DatastoreHost>,
    /// Its state: the best that it has on any host.
    pub state: DatastoreState,
    /// Its file system's size, in bytes.
    pub total_bytes: u64,
    /// Free bytes of that file system.
    pub free_bytes: u64,
    /// The bytes that its VMs' volumes would take if all of them were full.
    pub provisioned_bytes: u64,
    /// The number of its VMs.
    pub vms: u64,
}

/// The state of a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DatastoreState {
    /// It can be read and written.
    Available,
    /// Its file system is full.
    Full,
    /// It cannot be read or written, or is not mounted.
    Unavailable,
    /// Its host has not reported yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// An entry of a datastore, compared with the inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// The directory's name.
    pub directory: String,
    /// The VM's id, if it could be read.
    #[schema(value_type = Option<String>, format = Uuid)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// Its relation to the inventory.
    pub standing: Standing,
    /// The problem with it, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The relation of a datastore's directory to the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// A VM of the inventory.
    Registered,
    /// A VM that can be registered.
    Orphan,
    /// A copy: its id, or the id of a volume in it, belongs to another VM.
    Duplicate,
    /// It cannot be read.
    Broken,
    /// A VM of the inventory whose directory is missing.
    Missing,
}

/// Options for registering every VM of a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RebuildDatastore {
    /// As [`RegisterVm::accept_configuration`](crate::vm::RegisterVm::accept_configuration), for
    /// each VM.
    pub accept_configuration: bool,
}
