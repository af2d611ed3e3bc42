//! Placement groups: VMs that are kept on different hosts, or near each other.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::name::Name;
use crate::object::Reference;

/// A request for a placement group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePlacementGroup {
    /// Its name.
    pub name: Name,
    /// Where its VMs are placed.
    pub keep: Keep,
}

/// A request to change the VMs of a placement group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetPlacementGroup {
    /// VMs that join it, by name or id.
    #[schema(max_items = 64)]
    #[serde(default)]
    pub add: Vec<Reference>,
    /// VMs that leave it, by name or id.
    #[schema(max_items = 64)]
    #[serde(default)]
    pub remove: Vec<Reference>,
}

/// Where the VMs of a placement group are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Never two on one host.
    Apart,
    /// On one host, as far as that has room.
    Together,
}

/// A placement group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlacementGroup {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Where its VMs are placed.
    pub keep: Keep,
    /// Its VMs that the caller may view, with their hosts.
    pub vms: Vec<GroupedVm>,
}

/// A VM of a placement group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GroupedVm {
    /// Its name.
    pub name: Name,
    /// Its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}
