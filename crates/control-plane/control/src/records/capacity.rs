//! Samples of datastores' capacity.

use serde::{Deserialize, Serialize};
use strongroom_api::datastore::CapacitySample;
use strongroom_types::DatastoreId;

/// A datastore's capacity in each of the last hours, oldest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityHoursRecord {
    /// The datastore.
    pub datastore: DatastoreId,
    /// One sample of each hour, at most
    /// [`CAPACITY_HOURS_KEPT`](strongroom_api::limits::CAPACITY_HOURS_KEPT).
    pub samples: Vec<CapacitySample>,
}

/// A datastore's capacity in each of the last days that are over, oldest first. It is a record of
/// its own because it is written once a day.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapacityDaysRecord {
    /// The datastore.
    pub datastore: DatastoreId,
    /// The last sample of each day, at most
    /// [`CAPACITY_DAYS_KEPT`](strongroom_api::limits::CAPACITY_DAYS_KEPT).
    pub samples: Vec<CapacitySample>,
}
