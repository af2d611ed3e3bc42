//! Where volumes live.

use serde::{Deserialize, Serialize};
use strongroom_types::{DatastoreId, VmId};
use utoipa::ToSchema;

use crate::name::Name;

/// A datastore that is there and is to be known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDatastore {
    /// Its name.
    pub name: Name,
    /// The directory, absolute.
    #[schema(min_length = 1, max_length = 4095, pattern = "^/")]
    pub path: String,
    /// The host that has it, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// A datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Datastore {
    /// The id that it bears, wherever it is mounted.
    #[schema(value_type = String, format = Uuid)]
    pub id: DatastoreId,
    /// Its name.
    pub name: Name,
    /// The directory.
    pub path: String,
    /// The host's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How it is.
    pub state: DatastoreState,
    /// Its file system's size, in bytes.
    pub total_bytes: u64,
    /// What of it is free, in bytes.
    pub free_bytes: u64,
    /// What its VMs' volumes would take if all of them were full, in bytes.
    pub provisioned_bytes: u64,
    /// How many VMs it has.
    pub vms: u64,
}

/// How a datastore is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DatastoreState {
    /// It can be read and written.
    Available,
    /// It has no room.
    Full,
    /// It cannot be read or written, or is not mounted.
    Unavailable,
    /// Its host has not said yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What lies in a datastore and how it stands to the inventory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Found {
    /// The directory's name.
    pub directory: String,
    /// The VM's id, if that could be read.
    #[schema(value_type = Option<String>, format = Uuid)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// How it stands.
    pub standing: Standing,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// How a directory of a datastore stands to the inventory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// A VM of the inventory.
    Registered,
    /// A VM that can be registered.
    Orphan,
    /// Its id, or the id of a volume in it, is known already as another's: a copy.
    Duplicate,
    /// It cannot be read.
    Broken,
    /// The inventory has it, and it is not there.
    Missing,
}

/// How a datastore's VMs are registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RebuildDatastore {
    /// As [`RegisterVm::accept_configuration`](crate::vm::RegisterVm::accept_configuration), for
    /// each of them.
    pub accept_configuration: bool,
}
