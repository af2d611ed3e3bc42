//! What the inventory keeps, record by record, and under which key.
//!
//! One record is one entry of the store: JSON, so that a later version may add fields and an
//! earlier one ignores them.
//!
//! | key | value | who writes it |
//! |---|---|---|
//! | `meta` | [`Meta`]: the format | the first start |
//! | `vm/<id>` | [`VmRecord`]: what is wanted of a VM, and the task that works on it | wishes, tasks |
//! | `vm-name/<name>` | the VM's id: two VMs cannot have one name | with `vm/` |
//! | `observed/<vm>` | [`ObservedRecord`]: what its host said last | the observer |
//! | `volume/<id>` | [`VolumeRecord`]: whose it is: no volume is known twice | with `vm/` |
//! | `datastore/<id>`, `datastore-name/<name>` | [`DatastoreRecord`], its id | wishes |
//! | `host/<id>`, `host-name/<name>` | [`HostRecord`], its id | the start |
//! | `policy/<id>`, `policy-name/<name>` | [`PolicyRecord`], its id | wishes |
//! | `task/<id>` | [`TaskRecord`]; ids are UUIDs of version 7, so the order of keys is the order of time | wishes, tasks |
//! | `event/<number, 20 digits>` | an [`Event`], in the transaction that made it true | everyone |
//! | `alarm/<kind>/<object>` | an [`Alarm`] that is raised now | the review |
//! | `request/<SHA-256>` | [`RequestRecord`]: an `Idempotency-Key` and what came of it | wishes |
//! | `token/<SHA-256>` | [`TokenRecord`]: who may ask | the start |

mod hardware;
mod task;
mod vm;

pub use hardware::{DiskRecord, DiskSealing, Hardware};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_api::Name;
use strongroom_api::alarm::Alarm;
use strongroom_api::event::Event;
use strongroom_api::policy::PolicyRules;
use strongroom_host::protocol::DiskName;
use strongroom_types::{DatastoreId, VmId, VolumeId};
pub use task::{AUTOMATIC, TaskRecord, Whole, Work};
use uuid::Uuid;
pub use vm::{KeyWish, ObservedRecord, VmRecord};

/// The format of everything here.
pub const FORMAT: u32 = 1;

/// The key of [`Meta`].
pub const META_KEY: &str = "meta";

/// What is kept under a key of its own.
pub trait Record: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// What the keys of its kind begin with, with the slash.
    const PREFIX: &'static str;

    /// The rest of its key.
    fn id(&self) -> String;

    /// Its key.
    fn key(&self) -> String {
        format!("{}{}", Self::PREFIX, self.id())
    }
}

/// A record that people name. Its name's key holds its id.
pub trait Named: Record {
    /// What the keys of names begin with, with the slash.
    const NAME_PREFIX: &'static str;

    /// Its name.
    fn name(&self) -> &str;

    /// The key of its name.
    fn name_key(&self) -> String {
        format!("{}{}", Self::NAME_PREFIX, self.name())
    }
}

/// What the store is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// [`FORMAT`].
    pub format: u32,
}

/// Whose a volume is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The volume.
    pub volume: VolumeId,
    /// Its VM.
    pub vm: VmId,
    /// What it is there.
    pub disk: DiskName,
}

/// A datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreRecord {
    /// The id that it bears.
    pub id: DatastoreId,
    /// Its name.
    pub name: Name,
    /// Its directory on the host.
    pub path: String,
    /// The host that has it.
    pub host: Uuid,
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// What it is for.
    pub description: String,
    /// What it says.
    pub rules: PolicyRules,
}

/// A request that bore an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// SHA-256 of the caller's name and the key, in hexadecimal.
    pub key: String,
    /// SHA-256 of method, path and body, in hexadecimal.
    pub fingerprint: String,
    /// The task that it was answered with.
    pub task: Uuid,
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// Who may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// SHA-256 of the token, in hexadecimal. The token itself is kept nowhere here.
    pub sha256: String,
    /// Whose it is.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// The rest of an event's key: as many digits as the greatest number has, so that keys are in the
/// order of numbers.
pub fn event_id(number: u64) -> String {
    format!("{number:020}")
}

macro_rules! record {
    ($type:ty, $prefix:literal, |$record:ident| $id:expr) => {
        impl Record for $type {
            const PREFIX: &'static str = $prefix;

            fn id(&self) -> String {
                let $record = self;
                $id
            }
        }
    };
}

macro_rules! named {
    ($type:ty, $prefix:literal) => {
        impl Named for $type {
            const NAME_PREFIX: &'static str = $prefix;

            fn name(&self) -> &str {
                self.name.as_str()
            }
        }
    };
}

record!(VmRecord, "vm/", |vm| vm.id.to_string());
record!(ObservedRecord, "observed/", |seen| seen.vm.to_string());
record!(VolumeRecord, "volume/", |volume| volume.volume.to_string());
record!(DatastoreRecord, "datastore/", |datastore| datastore.id.to_string());
record!(HostRecord, "host/", |host| host.id.to_string());
record!(PolicyRecord, "policy/", |policy| policy.id.to_string());
record!(TaskRecord, "task/", |task| task.task.id.to_string());
record!(Event, "event/", |event| event_id(event.id));
record!(Alarm, "alarm/", |alarm| alarm_id(alarm));
record!(RequestRecord, "request/", |request| request.key.clone());
record!(TokenRecord, "token/", |token| token.sha256.clone());
named!(VmRecord, "vm-name/");
named!(DatastoreRecord, "datastore-name/");
named!(HostRecord, "host-name/");
named!(PolicyRecord, "policy-name/");

/// The rest of an alarm's key: one of a kind for each object.
pub fn alarm_id(alarm: &Alarm) -> String {
    let object = alarm.object.id.map_or_else(|| alarm.object.name.clone(), |id| id.to_string());
    format!("{}/{}/{object}", alarm.kind.as_str(), alarm.object.kind)
}
