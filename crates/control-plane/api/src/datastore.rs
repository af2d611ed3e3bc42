//! Where volumes are: directories of hosts, and pools of Ceph clusters.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use strongroom_types::{
    CEPH_CONF, CEPH_NAMESPACE, CephClient, CephName, CephPools, CephUser, DatastoreId, Redundancy, VmId,
};
use utoipa::ToSchema;

use crate::name::Name;

/// A request to add a datastore: an existing directory (`path`), or pools of a Ceph cluster
/// (`ceph`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddDatastore {
    /// Its name.
    pub name: Name,
    /// The absolute path of the directory.
    #[schema(min_length = 1, max_length = 4095, pattern = "^/")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The pools, and how the host reaches them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<AddCeph>,
    /// The host that reaches it, by name or id; not needed if there is only one.
    #[schema(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

/// Pools of a Ceph cluster, as a datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddCeph {
    /// The replicated pool of its names, locks and small files.
    pub pool: CephName,
    /// The pool of the blocks, if another, such as an erasure-coded one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_pool: Option<CephName>,
    /// The namespace in the pools; `strongroom` if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<CephName>,
    /// How the host reaches the cluster.
    pub client: CephAccess,
}

impl AddCeph {
    /// The pools, with the default namespace if none is named.
    pub fn pools(&self) -> CephPools {
        let usual = || CEPH_NAMESPACE.parse().expect("the usual namespace is a name");
        let (pool, data_pool) = (self.pool.clone(), self.data_pool.clone());
        CephPools { pool, data_pool, namespace: self.namespace.clone().unwrap_or_else(usual) }
    }
}

/// How a host reaches a Ceph cluster. The files are on the host; nothing of them is sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CephAccess {
    /// The host's own cephx user: a host that is lost is fenced by its user.
    pub user: CephUser,
    /// The file that says how the cluster is reached; `/etc/ceph/ceph.conf` if none is named.
    #[schema(min_length = 1, max_length = 4095, pattern = "^/")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conf: Option<String>,
    /// The file with the user's key; `/etc/ceph/ceph.USER.keyring` if none is named.
    #[schema(min_length = 1, max_length = 4095, pattern = "^/")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keyring: Option<String>,
}

impl CephAccess {
    /// The same with the files where Ceph's programs look for them, where none are named.
    pub fn client(&self) -> CephClient {
        let conf = self.conf.as_deref().unwrap_or(CEPH_CONF).into();
        let usual = || CephClient::usual_keyring(&self.user);
        CephClient {
            user: self.user.clone(),
            conf,
            keyring: self.keyring.as_ref().map_or_else(usual, PathBuf::from),
        }
    }
}

/// A request to have another host use a datastore. A directory is mounted there already.
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
    /// For a datastore on a Ceph cluster: how the host reaches it. No other host of the datastore
    /// has the same user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<CephAccess>,
}

/// A datastore on one of its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreHost {
    /// The host's name.
    pub host: String,
    /// Its directory there.
    pub path: String,
    /// How the host reaches it, if it is on a Ceph cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<CephClient>,
    /// Its state there.
    pub state: DatastoreState,
    /// The host's reason, if the datastore cannot be used there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Datastore {
    /// Its id, which is stored in it and is the same wherever it is mounted.
    #[schema(value_type = String, format = Uuid)]
    pub id: DatastoreId,
    /// Its name.
    pub name: Name,
    /// The directory, on its first host. A datastore on a cluster has the same on each, which
    /// leads to nothing on the host's file systems.
    pub path: String,
    /// The pools, if it is on a Ceph cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<CephPools>,
    /// How many losses its data outlives, as its hosts report it of a Ceph cluster. Of a directory
    /// nothing is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<Redundancy>,
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
    /// The trend of what is used of it.
    #[serde(default)]
    pub trend: CapacityTrend,
}

/// What a datastore had at one time, as one of its hosts reported it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapacitySample {
    /// When, in seconds since 1970.
    pub at_unix_seconds: u64,
    /// The size of its file system, in bytes.
    pub total_bytes: u64,
    /// What was used of it, by VMs and everything else, in bytes.
    pub used_bytes: u64,
    /// The bytes that its VMs' volumes would have taken if all of them had been full.
    pub provisioned_bytes: u64,
}

/// The history of a datastore's capacity. Hours and days in which no host said anything that can be
/// true are missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DatastoreCapacity {
    /// The datastore's id.
    #[schema(value_type = String, format = Uuid)]
    pub datastore: DatastoreId,
    /// One sample of each of the last hours, of up to a week, oldest first.
    #[schema(max_items = 168)]
    pub hours: Vec<CapacitySample>,
    /// The last sample of each day (UTC) that is over, of up to three years, oldest first.
    #[schema(max_items = 1098)]
    pub days: Vec<CapacitySample>,
    /// What follows from them.
    pub trend: CapacityTrend,
}

/// The trend of what is used of a datastore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CapacityTrend {
    /// Its direction.
    pub direction: TrendDirection,
    /// The days of history that it is from, at most 30.
    #[serde(default)]
    pub days: u32,
    /// By how many bytes what is used changes in a day, if it grows or shrinks: the median of all
    /// changes in that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_day: Option<i64>,
    /// In how many days the datastore is full if it goes on growing so; absent if that is further
    /// away than 10 years.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_in_days: Option<u32>,
}

/// The direction of a trend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum TrendDirection {
    /// There are no seven days of history, or it ends more than a day ago.
    #[default]
    Unknown,
    /// What is used neither grows nor shrinks for most of the time.
    Unclear,
    /// What is used grows.
    Growing,
    /// What is used shrinks.
    Shrinking,
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
