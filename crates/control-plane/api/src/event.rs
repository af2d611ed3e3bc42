//! Events: what happened, in order.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::limits::EVENT_NUMBER_MAX;
use crate::object::ObjectRef;

/// Something that happened. It is in the history if and only if it did: both are one transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number. Later events have greater ones; some numbers are left out.
    pub id: u64,
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What: `vm.power`, `task.done`, `alarm.raised` and so on.
    pub kind: String,
    /// To what.
    pub object: ObjectRef,
    /// One sentence.
    pub message: String,
    /// The task that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Uuid>,
}

/// Which events, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventListQuery {
    /// Only those after the event of this number; without it, the newest `limit`.
    #[param(minimum = 0, maximum = 9223372036854775807_i64)]
    #[serde(default, deserialize_with = "event_number", skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Most entries wanted.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only those of this object's id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Uuid>,
}

/// From where a stream of events begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventStreamQuery {
    /// After the event of this number; without it, and without `Last-Event-ID`, with the next that
    /// happens.
    #[param(minimum = 0, maximum = 9223372036854775807_i64)]
    #[serde(default, deserialize_with = "event_number", skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

fn event_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = u64::deserialize(deserializer)?;
    if number > EVENT_NUMBER_MAX {
        return Err(D::Error::custom(format!(
            "the number of an event is at most {EVENT_NUMBER_MAX}, not {number}"
        )));
    }
    Ok(Some(number))
}
