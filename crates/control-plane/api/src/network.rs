//! Networks: what network cards are connected to, wherever their VMs run.

use serde::{Deserialize, Serialize};
use strongroom_vm::{InterfaceName, VlanId};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::name::Name;

/// A request for a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateNetwork {
    /// Its name.
    pub name: Name,
    /// Its VLAN on the bridges; guests see no tags. Without it, ports are untagged.
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 4094)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
}

/// A request that says on which bridge a host has a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddNetworkHost {
    /// The host, by name or id.
    #[schema(min_length = 1, max_length = 63)]
    pub host: String,
    /// The bridge.
    #[schema(value_type = String, min_length = 1, max_length = 15)]
    pub bridge: InterfaceName,
}

/// A network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Network {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Its VLAN on the bridges.
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 4094)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// The hosts that have it.
    pub hosts: Vec<NetworkHost>,
    /// The number of VMs with cards that are connected to it.
    pub vms: u64,
}

/// A network on one of its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkHost {
    /// The host's name.
    pub host: String,
    /// The bridge.
    #[schema(value_type = String, min_length = 1, max_length = 15)]
    pub bridge: InterfaceName,
}
