//! Events: what happened, in order.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::alarm::Alarm;
use crate::limits::EVENT_NUMBER_MAX;
use crate::object::ObjectRef;

/// Something that happened. The event and the change that it reports are one transaction: the
/// history has both or neither.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Its number. Numbers increase, with gaps.
    pub id: u64,
    /// When it happened, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// The kind of event: `vm.power`, `task.done`, `alarm.raised` and so on.
    pub kind: String,
    /// The object that the event is about.
    pub object: ObjectRef,
    /// One sentence for people.
    pub message: String,
    /// The task that caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Uuid>,
    /// The alarm that was raised (`alarm.raised`) or is over (`alarm.cleared`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alarm: Option<Alarm>,
    /// The ids of what the same change removed: the object itself, or volumes. A client need not
    /// ask for it any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<Uuid>,
    /// The folder that the object was in, by id, if the object is a VM that is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<Uuid>,
}

impl Event {
    /// Whether the same change removed the object that the event is about.
    pub fn ends_its_object(&self) -> bool {
        self.object.id.is_some_and(|id| self.gone.contains(&id))
    }
}

/// Selects events. The answer lists them oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventListQuery {
    /// Only events after the one with this number. Without it, the newest `limit` events.
    #[param(minimum = 0, maximum = 9223372036854775807_i64)]
    #[serde(default, deserialize_with = "event_number", skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// The most entries to return.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only events about the object with this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Uuid>,
}

/// The start of an event stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EventStreamQuery {
    /// Starts after the event with this number. Without it and without `Last-Event-ID`, the stream
    /// starts with the next event.
    #[param(minimum = 0, maximum = 9223372036854775807_i64)]
    #[serde(default, deserialize_with = "event_number", skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
}

pub(crate) fn event_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let number = u64::deserialize(deserializer)?;
    if number > EVENT_NUMBER_MAX {
        return Err(D::Error::custom(format!(
            "the number of an event is at most {EVENT_NUMBER_MAX}, not {number}"
        )));
    }
    Ok(Some(number))
}
