//! The records of the inventory, with their keys in the store.
//!
//! Each record is one entry of the store, in JSON, so that a later version can add fields and an
//! earlier one ignores them.
//!
//! | key | value | who writes it |
//! |---|---|---|
//! | `meta` | [`Meta`]: the format | the first start |
//! | `term` | the term of the last run of a control plane | the start |
//! | `vm/<id>` | [`VmRecord`]: what is wanted of a VM, and the task that works on it | wishes, tasks |
//! | `vm-name/<name>` | the VM's id: two VMs cannot have one name | with `vm/` |
//! | `schedule/<vm>` | [`ScheduleRecord`]: when snapshots of a VM are made and its data keys renewed, and what came of it | wishes, the schedule |
//! | `observed/<vm>` | [`ObservedRecord`]: what its host said last | the observer |
//! | `group/<snapshot>` | [`GroupRecord`]: a snapshot of several VMs, and whether it is made | wishes, tasks |
//! | `volume/<id>` | [`VolumeRecord`]: whose it is: no volume is known twice | with `vm/` |
//! | `datastore/<id>`, `datastore-name/<name>` | [`DatastoreRecord`], its id | wishes |
//! | `capacity-hours/<datastore>`, `capacity-days/<datastore>` | [`CapacityHoursRecord`], [`CapacityDaysRecord`]: what a datastore had | once an hour, once a day |
//! | `host/<id>`, `host-name/<name>` | [`HostRecord`], its id | the start; requests that let machines join |
//! | `placement-group/<id>`, `placement-group-name/<name>` | [`PlacementGroupRecord`], its id | wishes |
//! | `network/<id>`, `network-name/<name>` | [`NetworkRecord`], its id | wishes |
//! | `policy/<id>`, `policy-name/<name>` | [`PolicyRecord`], its id | wishes |
//! | `task/<id>` | [`TaskRecord`]; ids are UUIDs of version 7, so the order of keys is the order of time | wishes, tasks |
//! | `event/<number, 20 digits>` | an [`Event`], in the transaction that made it true | everyone |
//! | `recipient/<id>`, `recipient-name/<name>` | [`RecipientRecord`], its id | requests |
//! | `delivery/<recipient>` | [`DeliveryRecord`]: what a recipient has taken | the delivery of messages |
//! | `alarm/<kind>/<object>` | an [`Alarm`] that is raised now | the review |
//! | `request/<SHA-256>` | [`RequestRecord`]: an `Idempotency-Key` and what came of it | wishes |
//! | `token/<SHA-256>` | [`TokenRecord`]: a token that permits everything | the start |
//! | `user/<id>`, `user-name/<name>` | [`UserRecord`], its id | the access room |
//! | `role/<id>`, `role-name/<name>` | [`RoleRecord`], its id | the access room |
//! | `folder/<id>`, `folder-name/<name>` | [`FolderRecord`], its id | the access room |
//! | `grant/<id>` | [`GrantRecord`]: a role that a user has | the access room |
//! | `credential/<SHA-256>` | [`CredentialRecord`]: a session, or a token with a role | the access room |
//! | `identity-provider/<id>`, `identity-provider-name/<name>` | [`IdentityProviderRecord`], its id | the access room |
//! | `group-grant/<id>` | [`GroupGrantRecord`]: a role that a group of a provider has | the access room |
//! | `outside-session/<SHA-256>` | [`OutsideSessionRecord`]: a session of somebody who is no user | the access room |
//! | `token-session/<SHA-256>` | [`TokenSessionRecord`]: a session of a browser that hangs on a token | the access room |
//! | `emergency/<id>`, `emergency-name/<name>` | [`EmergencyRecord`], its id | the access room |
//! | `access/<number, 20 digits>` | [`AccessRecord`]: an entry of the access log | the access room |
//! | `access-head` | [`AccessHeadRecord`]: the last entry, and what of the log is there | with `access/` |
//! | `access-retention/site` | [`AccessRetentionRecord`]: how long the access log is kept; absent by default | wishes |
//! | `access-anchor/last` | [`AccessAnchorRecord`]: the last head on the key server's audit log | the access room |

mod access;
mod capacity;
mod emergency;
mod group;
mod hardware;
mod identity;
mod network;
mod paths;
mod recipient;
mod schedule;
mod task;
mod vm;

pub use access::{
    ACCESS_HEAD_KEY, AccessAnchorRecord, AccessHeadRecord, AccessRecord, AccessRetentionRecord, AskedBy,
    CredentialRecord, CredentialUse, Entrance, FolderRecord, GrantRecord, GroupGrantRecord, NeedAt,
    OutsideSessionRecord, Place, Principal, RoleAt, RoleRecord, TokenSessionRecord, UserRecord, address_text,
};
pub use capacity::{CapacityDaysRecord, CapacityHoursRecord};
pub use emergency::EmergencyRecord;
pub use group::{GroupMember, GroupRecord, GroupState};
pub use hardware::{DiskRecord, DiskSealing, Hardware, NicSet, Sizes};
pub use identity::IdentityProviderRecord;
pub use network::{NetworkRecord, OnBridge};
pub use paths::DatastorePaths;
pub use schedule::{
    CryptoperiodRecord, Deletion, MadeSnapshot, RenewalStage, RuleRecord, RuleStage, ScheduleRecord,
};
use std::collections::BTreeSet;
use std::net::SocketAddr;

pub use recipient::{DeliveryRecord, RecipientRecord};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_api::alarm::Alarm;
use strongroom_api::event::Event;
use strongroom_api::placement::Keep;
use strongroom_api::policy::PolicyRules;
use strongroom_api::{Name, ObjectKind, ObjectRef};
use strongroom_host::protocol::DiskName;
use strongroom_types::{CephClient, CephPools, ClientId, DatastoreId, Redundancy, VmId, VolumeId};
pub use task::{
    AUTOMATIC, Application, Balancing, BalancingMove, BegunVm, Carried, CarriedStage, CloneOf, Evacuation,
    Holding, LeftVm, LiveEnd, LiveMove, LiveStage, LiveVolumes, SCHEDULER, Sweep, TaskEnd, TaskRecord,
    TemporarySnapshot, Whole, Work,
};
use uuid::Uuid;
pub use vm::{KeyWish, Lineage, ObservedRecord, VmRecord};

/// The format of all records.
pub const FORMAT: u32 = 1;

/// The key of [`Meta`].
pub const META_KEY: &str = "meta";

/// A record with a key of its own.
pub trait Record: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// The prefix of the keys of its kind, including the slash.
    const PREFIX: &'static str;

    /// The rest of its key.
    fn id(&self) -> String;

    /// Its key.
    fn key(&self) -> String {
        format!("{}{}", Self::PREFIX, self.id())
    }

    /// This record, in the place of an earlier one, if that has something that no change takes
    /// away.
    fn keep_past(&self, _past: &Self) -> Option<Self> {
        None
    }
}

/// A record with a name. The key of its name holds its id.
pub trait Named: Record {
    /// The prefix of the keys of names, including the slash.
    const NAME_PREFIX: &'static str;

    /// Its name.
    fn name(&self) -> &str;

    /// The key of its name.
    fn name_key(&self) -> String {
        format!("{}{}", Self::NAME_PREFIX, self.name())
    }
}

/// The store's own record.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Meta {
    /// [`FORMAT`].
    pub format: u32,
}

/// The owner of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The volume.
    pub volume: VolumeId,
    /// Its VM.
    pub vm: VmId,
    /// The disk's name.
    pub disk: DiskName,
}

/// A datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatastoreRecord {
    /// The id in its mark.
    pub id: DatastoreId,
    /// Its name.
    pub name: Name,
    /// The pools, if it is on a Ceph cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ceph: Option<CephPools>,
    /// How many losses its data outlives: the least that its hosts have reported together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redundancy: Option<Redundancy>,
    /// Where the first host has it. An earlier version knows no others.
    #[serde(flatten)]
    pub first: Mount,
    /// Where the other hosts have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Mount>,
}

/// A datastore on one of its hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Its directory on the host.
    pub path: String,
    /// The host.
    pub host: Uuid,
    /// How the host reaches the cluster, if the datastore is on one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<CephClient>,
}

impl DatastoreRecord {
    /// Where each of its hosts has it, the first one first.
    pub fn mounts(&self) -> impl Iterator<Item = &Mount> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Where a host has it, if it reaches it.
    pub fn on(&self, host: Uuid) -> Option<&Mount> {
        self.mounts().find(|mount| mount.host == host)
    }

    /// Whether several hosts reach it.
    pub fn is_shared(&self) -> bool {
        !self.others.is_empty()
    }

    /// The same without a host; `None` if no other host reaches it.
    pub fn without(&self, host: Uuid) -> Option<Self> {
        let mut left = self.mounts().filter(|mount| mount.host != host).cloned();
        let first = left.next()?;
        Some(Self { first, others: left.collect(), ..self.clone() })
    }
}

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Where it is reached; absent for the control plane's own machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joined: Option<JoinedHost>,
    /// Whether it is in maintenance: no VM is placed or started there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maintenance: bool,
    /// Whether it was declared lost, and is shut out from clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<FencedHost>,
}

/// A host that was declared lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FencedHost {
    /// The last start of the machine that was known; absent if none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// When it was declared lost, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Whether it is shut out from all its datastores on clusters. Otherwise it may still write.
    pub complete: bool,
}

impl HostRecord {
    /// Whether it is being removed.
    pub fn is_leaving(&self) -> bool {
        self.joined.as_ref().is_some_and(|joined| joined.removing)
    }
}

/// A machine that has joined as a host, or may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinedHost {
    /// Its address.
    pub address: SocketAddr,
    /// The client of the key server that it is.
    pub client: ClientId,
    /// The id of the token that it joins with.
    pub token_id: String,
    /// Whether it is being removed: it gets no datastore any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removing: bool,
}

/// A policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Its purpose.
    pub description: String,
    /// Its rules.
    pub rules: PolicyRules,
}

/// A placement group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementGroupRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Where its VMs are placed.
    pub keep: Keep,
    /// Its VMs. Some may not be in the inventory any more: one that is registered again is of the
    /// group again.
    #[serde(default)]
    pub vms: BTreeSet<VmId>,
}

impl PlacementGroupRecord {
    /// Its reference in answers.
    pub fn object(&self) -> ObjectRef {
        ObjectRef { kind: ObjectKind::PlacementGroup, id: Some(self.id), name: self.name.to_string() }
    }
}

/// A request with an `Idempotency-Key`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// SHA-256 of the caller's name and the key, in hexadecimal.
    pub key: String,
    /// SHA-256 of method, path and body, in hexadecimal.
    pub fingerprint: String,
    /// The task that answered it.
    pub task: Uuid,
    /// When it was made, in milliseconds since 1970.
    pub at_unix_ms: u64,
}

/// A caller's token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenRecord {
    /// SHA-256 of the token, in hexadecimal. The token itself is not stored.
    pub sha256: String,
    /// The name of its holder.
    pub name: String,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// The rest of an event's key, with as many digits as the greatest number has, so that keys sort by
/// number.
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

impl Record for VmRecord {
    const PREFIX: &'static str = "vm/";

    fn id(&self) -> String {
        self.id.to_string()
    }

    /// With its last key, it does not lose what it was.
    fn keep_past(&self, past: &Self) -> Option<Self> {
        let has_lost_its_keys = past.hardware.encrypted() && !self.hardware.encrypted();
        let stays = past.was_encrypted || has_lost_its_keys;
        (stays && !self.was_encrypted).then(|| Self { was_encrypted: true, ..self.clone() })
    }
}

record!(ScheduleRecord, "schedule/", |schedule| schedule.vm.to_string());
record!(ObservedRecord, "observed/", |seen| seen.vm.to_string());
record!(GroupRecord, "group/", |group| group.snapshot.to_string());
record!(VolumeRecord, "volume/", |volume| volume.volume.to_string());
record!(DatastoreRecord, "datastore/", |datastore| datastore.id.to_string());
record!(CapacityHoursRecord, "capacity-hours/", |hours| hours.datastore.to_string());
record!(CapacityDaysRecord, "capacity-days/", |days| days.datastore.to_string());
record!(HostRecord, "host/", |host| host.id.to_string());
record!(NetworkRecord, "network/", |network| network.id.to_string());
record!(PolicyRecord, "policy/", |policy| policy.id.to_string());
record!(PlacementGroupRecord, "placement-group/", |group| group.id.to_string());
record!(TaskRecord, "task/", |task| task.task.id.to_string());
record!(Event, "event/", |event| event_id(event.id));
record!(Alarm, "alarm/", |alarm| alarm_id(alarm));
record!(RecipientRecord, "recipient/", |recipient| recipient.id.to_string());
record!(DeliveryRecord, "delivery/", |delivery| delivery.recipient.to_string());
record!(RequestRecord, "request/", |request| request.key.clone());
record!(TokenRecord, "token/", |token| token.sha256.clone());
record!(UserRecord, "user/", |user| user.id.to_string());
record!(RoleRecord, "role/", |role| role.id.to_string());
record!(FolderRecord, "folder/", |folder| folder.id.to_string());
record!(GrantRecord, "grant/", |grant| grant.id.to_string());
record!(CredentialRecord, "credential/", |credential| credential.sha256.clone());
record!(IdentityProviderRecord, "identity-provider/", |provider| provider.id.to_string());
record!(GroupGrantRecord, "group-grant/", |grant| grant.id.to_string());
record!(OutsideSessionRecord, "outside-session/", |session| session.sha256.clone());
record!(TokenSessionRecord, "token-session/", |session| session.sha256.clone());
record!(EmergencyRecord, "emergency/", |credential| credential.id.to_string());
record!(AccessRecord, "access/", |entry| event_id(entry.0.id));
record!(AccessRetentionRecord, "access-retention/", |_retention| "site".to_owned());
record!(AccessAnchorRecord, "access-anchor/", |_anchor| "last".to_owned());
named!(IdentityProviderRecord, "identity-provider-name/");
named!(EmergencyRecord, "emergency-name/");
named!(UserRecord, "user-name/");
named!(RoleRecord, "role-name/");
named!(FolderRecord, "folder-name/");
named!(VmRecord, "vm-name/");
named!(DatastoreRecord, "datastore-name/");
named!(HostRecord, "host-name/");
named!(NetworkRecord, "network-name/");
named!(PolicyRecord, "policy-name/");
named!(PlacementGroupRecord, "placement-group-name/");
named!(RecipientRecord, "recipient-name/");

/// The rest of an alarm's key: one for each kind and object.
pub fn alarm_id(alarm: &Alarm) -> String {
    let object = alarm.object.id.map_or_else(|| alarm.object.name.clone(), |id| id.to_string());
    format!("{}/{}/{object}", alarm.kind.as_str(), alarm.object.kind)
}
