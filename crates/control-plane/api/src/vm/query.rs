//! Filters for the list of VMs.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strongroom_types::VmId;
use utoipa::{IntoParams, ToSchema};

use super::state::PowerState;
use crate::limits::{TAGS_WANTED_CHARACTERS_MAX, VM_IDS_CHARACTERS_MAX};

/// Selects VMs, their order, and a page of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct VmListQuery {
    /// The most entries to return.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// The `next` of the previous page.
    #[param(min_length = 1, max_length = 512)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Only VMs whose name contains this text, ignoring case.
    #[param(max_length = 63)]
    #[serde(default, deserialize_with = "no_longer_than::<63, _>", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only VMs in this state.
    #[param(inline)]
    #[serde(default, deserialize_with = "known_state", skip_serializing_if = "Option::is_none")]
    pub power: Option<PowerState>,
    /// Only VMs of this datastore, by name or id.
    #[param(max_length = 64)]
    #[serde(default, deserialize_with = "no_longer_than::<64, _>", skip_serializing_if = "Option::is_none")]
    pub datastore: Option<String>,
    /// Only VMs on this host, by name or id.
    #[param(max_length = 64)]
    #[serde(default, deserialize_with = "no_longer_than::<64, _>", skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Only VMs with this policy, by name or id.
    #[param(max_length = 64)]
    #[serde(default, deserialize_with = "no_longer_than::<64, _>", skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Only VMs with all of these tags, separated by commas; a key alone finds each of its values.
    #[param(max_length = 1024)]
    #[serde(
        default,
        deserialize_with = "no_longer_than::<TAGS_WANTED_CHARACTERS_MAX, _>",
        skip_serializing_if = "Option::is_none"
    )]
    pub tag: Option<String>,
    /// Only VMs with these ids, separated by commas. Ids of which there is no VM find nothing.
    #[param(value_type = Option<String>, max_length = 3700)]
    #[serde(
        default,
        serialize_with = "ids_text",
        deserialize_with = "ids_of_text",
        skip_serializing_if = "Option::is_none"
    )]
    pub ids: Option<Vec<VmId>>,
    /// Only encrypted VMs, or only unencrypted ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted: Option<bool>,
    /// Their order.
    #[param(inline)]
    #[serde(default)]
    pub sort: VmSort,
}

/// Deserialises a text of at most `MAX` characters, as the OpenAPI document says.
pub(crate) fn no_longer_than<'de, const MAX: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(deserializer)?;
    if text.chars().count() > MAX {
        return Err(D::Error::custom(format!("it has at most {MAX} characters")));
    }
    Ok(Some(text))
}

fn ids_text<S: Serializer>(ids: &Option<Vec<VmId>>, serializer: S) -> Result<S::Ok, S::Error> {
    let ids = ids.as_deref().unwrap_or_default();
    serializer.serialize_str(&ids.iter().map(VmId::to_string).collect::<Vec<_>>().join(","))
}

fn ids_of_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<VmId>>, D::Error> {
    let text = no_longer_than::<VM_IDS_CHARACTERS_MAX, _>(deserializer)?.unwrap_or_default();
    let ids = text.split(',').map(str::parse).collect::<Result<Vec<VmId>, _>>();
    ids.map(Some).map_err(D::Error::custom)
}

/// Deserialises a state of a query. Refuses an unknown one, which an answer would read as
/// [`PowerState::Unknown`].
fn known_state<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PowerState>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let state = PowerState::ALL.into_iter().find(|state| state.as_str() == text);
    state.map(Some).ok_or_else(|| {
        let known = PowerState::ALL.map(PowerState::as_str).join(", ");
        D::Error::custom(format!("there is no state `{text}`; there are: {known}"))
    })
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
