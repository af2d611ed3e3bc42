//! Which VMs are listed.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::state::PowerState;

/// Which VMs, in which order, and which page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VmListQuery {
    /// Most entries wanted.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next` of the page before.
    #[param(max_length = 256)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only those whose name has this in it, in letters of either case.
    #[param(max_length = 63)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only those in this state.
    #[param(inline)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerState>,
    /// Only those of this datastore, by name or id.
    #[param(max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// Only those on this host, by name or id.
    #[param(max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only those with this policy, by name or id.
    #[param(max_length = 64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Only those that are sealed, or that are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Their order.
    #[param(inline)]
    #[serde(default)]
    pub sort: VmSort,
}

/// The order of a list of VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmSort {
    /// By name.
    #[default]
    Name,
    /// By name, backwards.
    NameDescending,
}
