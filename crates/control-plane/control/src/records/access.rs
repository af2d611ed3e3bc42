//! Who may do what: users, roles, folders, grants, credentials, and the log of access.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use strongroom_api::access::{AccessEntry, AccessLogHead, Quota};
use strongroom_api::identity::ProviderText;
use strongroom_api::limits::{ACCESS_LOG_KEEP_DEFAULT_S, ACCESS_LOG_ROOM_DEFAULT_BYTES};
use strongroom_api::{Name, Privilege, PrivilegeSet};
use strongroom_types::{DatastoreId, VmId};
use uuid::Uuid;

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// The hash of its password, with its salt and cost.
    pub password: String,
    /// The secret of its second factor, in hexadecimal. It must be known to check a code, so the
    /// store has it as it is.
    pub totp_secret: String,
    /// The step of the last code that was accepted: no code is accepted twice.
    pub totp_step: u64,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it last signed in, in seconds since 1970. Earlier versions did not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sign_in_unix_seconds: Option<u64>,
}

/// A role of the site's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StoredRole", into = "StoredRole")]
pub struct RoleRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Its privileges.
    pub privileges: PrivilegeSet,
}

/// A role as it is stored. Its privileges mean what they meant in the version that made it: a role
/// does not change.
#[derive(Serialize, Deserialize)]
struct StoredRole {
    id: Uuid,
    name: Name,
    privileges: PrivilegeSet,
    #[serde(default)]
    moves: Moves,
}

/// The privilege that moves of VMs to other hosts took when a role was made.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Moves {
    /// `configure`: versions before the privilege `migrate` did not store this field.
    #[default]
    Configure,
    /// `migrate`.
    Migrate,
}

impl From<StoredRole> for RoleRecord {
    fn from(stored: StoredRole) -> Self {
        let StoredRole { id, name, mut privileges, moves } = stored;
        match moves {
            Moves::Configure if privileges.has(Privilege::Configure) => {
                privileges.add(&PrivilegeSet::from_iter([Privilege::Migrate]));
            }
            Moves::Configure | Moves::Migrate => {}
        }
        Self { id, name, privileges }
    }
}

impl From<RoleRecord> for StoredRole {
    fn from(role: RoleRecord) -> Self {
        let RoleRecord { id, name, privileges } = role;
        Self { id, name, privileges, moves: Moves::Migrate }
    }
}

/// A folder of VMs and volumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FolderRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// What is in it may have no more than this.
    #[serde(default, skip_serializing_if = "Quota::is_unlimited")]
    pub quota: Quota,
}

/// Where a role counts, by ids, which do not change their meaning with names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", content = "id", rename_all = "snake_case")]
pub enum Place {
    /// Everywhere.
    Site,
    /// A folder, and what is in it.
    Folder(Uuid),
    /// A VM, or the holder of a volume.
    Vm(VmId),
    /// A datastore, without the VMs in it.
    Datastore(DatastoreId),
    /// A network, without the VMs that are connected to it.
    Network(Uuid),
}

/// A role at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoleAt {
    /// The role's name.
    pub role: Name,
    /// Where it counts.
    pub place: Place,
}

/// A role that a user has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantRecord {
    /// Its id.
    pub id: Uuid,
    /// The user.
    pub user: Uuid,
    /// The role, and where it counts.
    #[serde(flatten)]
    pub role: RoleAt,
    /// Who gave it.
    pub by: String,
    /// When, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// The use of a credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "use", rename_all = "snake_case")]
pub enum CredentialUse {
    /// A session: the rights of its user.
    Session,
    /// A token for programs: its role, and no more than its user has.
    Token {
        /// Its name.
        name: Name,
        /// Its role.
        #[serde(flatten)]
        role: RoleAt,
        /// SHA-256 of the public key that takes the place of the bearer token.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_sha256: Option<String>,
    },
}

/// A session or a token for programs. The first token is a
/// [`TokenRecord`](super::TokenRecord): a control plane of an earlier version, which knows no
/// roles, does not know these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CredentialRecord {
    /// SHA-256 of the bearer token, in hexadecimal; or of a key ([`crate::client_key`]) or a
    /// browser's cookie ([`crate::bearer`]), each with another byte before it.
    pub sha256: String,
    /// Its id.
    pub id: Uuid,
    /// The user that it acts for; absent for a token that the first token made.
    pub user: Option<Uuid>,
    /// Its use.
    #[serde(flatten)]
    pub use_: CredentialUse,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
}

/// A role that a group of an identity provider has. An earlier version, which knows no groups, does
/// not take it for the role of a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupGrantRecord {
    /// Its id.
    pub id: Uuid,
    /// The provider.
    pub provider: Uuid,
    /// The group's name there.
    pub group: ProviderText,
    /// The role, and where it counts.
    #[serde(flatten)]
    pub role: RoleAt,
    /// Who gave it.
    pub by: String,
    /// When, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// A session of somebody who is no user of this site. Its rights are its own, and end with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutsideSessionRecord {
    /// SHA-256 of the bearer token or of the cookie's secret, as in [`CredentialRecord`].
    pub sha256: String,
    /// Its id.
    pub id: Uuid,
    /// The name under which it acts, with a colon.
    pub name: String,
    /// How it came in.
    pub entrance: Entrance,
    /// When it began, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
}

/// A session of a browser that hangs on a token: it has the rights that the token has at each
/// moment, and ends with it. A token that is rotated is another one. An earlier version does not
/// know these, and lets nobody in by them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenSessionRecord {
    /// SHA-256 of the cookie's secret, in hexadecimal.
    pub sha256: String,
    /// Its id.
    pub id: Uuid,
    /// SHA-256 of the token, in hexadecimal.
    pub token_sha256: String,
    /// When it began, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it ends at the latest, in seconds since 1970.
    pub expires_unix_seconds: u64,
}

/// How somebody who is no user came in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum Entrance {
    /// By an identity provider.
    Provider {
        /// The provider.
        provider: Uuid,
        /// Who it is there, for good.
        subject: String,
        /// The groups that the provider has named.
        groups: Vec<ProviderText>,
    },
    /// By an emergency credential.
    Emergency {
        /// The credential.
        credential: Uuid,
    },
}

/// Who asks, as long as it may: what a task is checked with when it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", content = "id", rename_all = "snake_case")]
pub enum Principal {
    /// The control plane, or the first token of its machine.
    Machine,
    /// A user.
    User(Uuid),
    /// A token for programs, or the session of somebody who is no user, by its id. An earlier
    /// version does not find that session among its tokens, so it has no rights there.
    Token(Uuid),
}

/// Privileges that are needed on an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeedAt {
    /// The object.
    pub place: Place,
    /// The privileges.
    pub privileges: Vec<Privilege>,
}

/// Who asked for a task, from where, and what that took.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedBy {
    /// Who.
    pub principal: Principal,
    /// What it took.
    pub needs: Vec<NeedAt>,
}

/// An entry of the access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AccessRecord(pub AccessEntry);

/// The key of [`AccessHeadRecord`].
pub const ACCESS_HEAD_KEY: &str = "access-head";

/// The head of the access log, in the transaction of each entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessHeadRecord {
    /// The number of the last entry; 0 if there was none.
    pub id: u64,
    /// SHA-256 of that entry's value in the store, in hexadecimal.
    pub hash: String,
    /// The first entry of the chain. Those before it are of releases without one.
    pub chained_from: u64,
    /// The first entry that is still there.
    pub first: u64,
    /// The number of entries.
    pub entries: u64,
    /// The bytes of their keys and values.
    pub bytes: u64,
    /// The last entry that was removed, which the first one continues.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<AccessLogHead>,
}

/// How long the access log is kept, and how large it may become.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessRetentionRecord {
    /// How long entries are kept, in seconds.
    pub keep_s: u64,
    /// The greatest size, in bytes of keys and values.
    pub room_bytes: u64,
}

impl Default for AccessRetentionRecord {
    fn default() -> Self {
        Self { keep_s: ACCESS_LOG_KEEP_DEFAULT_S, room_bytes: ACCESS_LOG_ROOM_DEFAULT_BYTES }
    }
}

/// The last head that the key server has on its audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessAnchorRecord(pub AccessLogHead);

/// The text of an address in records.
pub fn address_text(from: IpAddr) -> String {
    from.to_canonical().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a stored role, and reads it once more as this version stores it.
    fn read(privileges: &str, moves: &str) -> PrivilegeSet {
        let text = format!(
            r#"{{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"movers","privileges":{privileges}{moves}}}"#
        );
        let read: RoleRecord = serde_json::from_str(&text).unwrap();
        let again: RoleRecord = serde_json::from_value(serde_json::to_value(&read).unwrap()).unwrap();
        assert_eq!(again, read);
        read.privileges
    }

    #[test]
    fn a_role_of_the_former_release_that_could_move_vms_still_can() {
        assert!(read(r#"["view","configure"]"#, "").has(Privilege::Migrate));
        assert!(!read(r#"["view","power"]"#, "").has(Privilege::Migrate));
        // One that was made with both privileges known says what it means.
        let apart = r#","moves":"migrate""#;
        assert!(!read(r#"["view","configure"]"#, apart).has(Privilege::Migrate));
        assert!(read(r#"["view","migrate"]"#, apart).has(Privilege::Migrate));
    }
}
