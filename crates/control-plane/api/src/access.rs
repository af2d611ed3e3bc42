//! Users, roles, folders, tokens, sessions, and what they may do.

use std::fmt;

use serde::{Deserialize, Serialize};
use strongroom_types::display_bytes;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::checked_text::checked_text;
use crate::emergency::EmergencyCredential;
use crate::identity::{ActorName, IdentityProvider, ProviderGroup, ProviderText};
use crate::limits::CLIENT_CERTIFICATE_BYTES_MAX;
use crate::name::Name;
use crate::object::{ObjectRef, Reference};
use crate::privilege::{Privilege, PrivilegeSet};

/// A password. It is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String, min_length = 12, max_length = 1024, format = Password)]
pub struct Password(String);

impl Password {
    /// The password in plain text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Password {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Password(..)")
    }
}

/// A secret that an answer has once: a token, or the secret of a second factor. It is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(value_type = String)]
pub struct ShownOnce(String);

impl ShownOnce {
    /// The secret in plain text.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for ShownOnce {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for ShownOnce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ShownOnce(..)")
    }
}

/// Where a role counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Scope {
    /// Everywhere.
    Site {},
    /// In a folder: for it and the VMs and volumes in it.
    Folder {
        /// Its name or id.
        folder: Reference,
    },
    /// For a VM, or a volume that no VM has.
    Vm {
        /// Its name or id.
        vm: Reference,
    },
    /// For a datastore, without the VMs in it.
    Datastore {
        /// Its name or id.
        datastore: Reference,
    },
    /// For a network, without the VMs that are connected to it.
    Network {
        /// Its name or id.
        network: Reference,
    },
}

/// A request for a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateUser {
    /// Its name. A user and a token do not have the same name.
    pub name: Name,
    /// Its password.
    pub password: Password,
}

/// A user with a new second factor. Only this answer has its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewUser {
    /// The user.
    pub user: User,
    /// The secret of the time-based codes (RFC 6238), in base32, for an authenticator.
    pub totp_secret: ShownOnce,
}

/// A user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct User {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// When it was made, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it last signed in, in seconds since 1970; absent if it never did, or not since the
    /// control plane records it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sign_in_unix_seconds: Option<u64>,
    /// Its roles.
    pub grants: Vec<Grant>,
}

/// A request for another password.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangePassword {
    /// The new password. All sessions of the user end.
    pub password: Password,
    /// The present password, which a user gives to change its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Password>,
}

/// A request for another second factor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenewSecondFactor {
    /// The present password, which a user gives for its own second factor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<Password>,
}

/// A request for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SignIn {
    /// The user's name.
    pub user: Name,
    /// Its password.
    pub password: Password,
    /// The code that its authenticator shows. Each code is accepted once.
    #[schema(min_length = 6, max_length = 6, pattern = "^[0-9]{6}$")]
    pub code: String,
}

/// A new session. Only this answer has its token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewSession {
    /// The session.
    pub session: Session,
    /// Its bearer token.
    pub token: ShownOnce,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id.
    pub id: Uuid,
    /// The user's name; `PROVIDER:NAME` for a user of an identity provider, `emergency:NAME` for an
    /// emergency credential, and the token's name for a browser that has signed in with a token.
    /// Users and tokens of this site have no names with a colon.
    pub user: String,
    /// When it began, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// The groups that the identity provider has named. They count as long as the session does.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<ProviderText>,
}

/// A request for a role of the site's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRole {
    /// Its name.
    pub name: Name,
    /// Its privileges.
    pub privileges: PrivilegeSet,
}

/// A role. It does not change: another set of privileges is another role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Role {
    /// Its name.
    pub name: Name,
    /// Its privileges.
    pub privileges: PrivilegeSet,
    /// Whether every site has it.
    pub built_in: bool,
}

/// A request for a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateFolder {
    /// Its name.
    pub name: Name,
}

/// A folder, which VMs and volumes can be in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Folder {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// What the VMs and volumes in it have.
    pub used: FolderUse,
    /// The most that they may have.
    #[serde(default, skip_serializing_if = "Quota::is_unlimited")]
    pub quota: Quota,
}

/// What VMs and volumes have, with what their tasks are adding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FolderUse {
    /// The number of VMs, and of volumes that no VM has.
    pub vms: u64,
    /// The processors of VMs that are no templates.
    pub cpus: u64,
    /// Their memory, in bytes.
    pub memory_bytes: u64,
    /// The sizes of all disks, in bytes, whether written or not. Snapshots add nothing.
    pub disk_bytes: u64,
}

/// The most that VMs and volumes in a folder may have together. What is absent is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// The number of VMs, and of volumes that no VM has.
    #[schema(maximum = 1000000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms: Option<u64>,
    /// The processors of VMs that are no templates.
    #[schema(maximum = 1000000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u64>,
    /// Their memory, in bytes.
    #[schema(maximum = 1152921504606846976_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The sizes of all disks, in bytes.
    #[schema(maximum = 1152921504606846976_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
}

impl Quota {
    /// Whether it limits nothing.
    pub fn is_unlimited(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vms, cpus, memory_bytes, disk_bytes } = self;
        let count = |most: &Option<u64>, noun: &str| most.map(|most| format!("{most} {noun}"));
        let bytes =
            |most: &Option<u64>, noun: &str| most.map(|most| format!("{} of {noun}", display_bytes(most)));
        let parts = [
            count(vms, "VMs and volumes"),
            count(cpus, "processors"),
            bytes(memory_bytes, "memory"),
            bytes(disk_bytes, "disk space"),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() {
            formatter.write_str("no limit")
        } else {
            formatter.write_str(&parts.join(", "))
        }
    }
}

/// A request for other settings of a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetFolder {
    /// Its quota, in place of the one that it has.
    #[serde(deserialize_with = "crate::object_only::object_only")]
    pub quota: Quota,
}

/// A request to move a VM, or a volume that no VM has, into a folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveVm {
    /// The folder, by name or id; out of all folders without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<Reference>,
}

/// A request to give a user, or a group of an identity provider, a role. It names one of the two.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateGrant {
    /// The user, by name or id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Reference>,
    /// The group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<ProviderGroup>,
    /// The role.
    pub role: Name,
    /// Where it counts.
    pub scope: Scope,
}

/// A role that a user has, or a group of an identity provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Grant {
    /// Its id.
    pub id: Uuid,
    /// The user's name; absent if a group has the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Name>,
    /// The group; absent if a user has the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<ProviderGroup>,
    /// The role.
    pub role: Name,
    /// Where it counts, with the names of today.
    pub scope: Scope,
    /// Who gave it.
    pub by: String,
    /// When, in seconds since 1970.
    pub created_unix_seconds: u64,
}

/// A request for a token for programs. It has at most the rights that its maker has at any time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// Its name. A user and a token do not have the same name.
    pub name: Name,
    /// Its role.
    pub role: Name,
    /// Where it counts.
    pub scope: Scope,
    /// When it ends, in seconds since 1970: at most 366 days from now.
    pub expires_unix_seconds: u64,
    /// The certificate of a key that takes the place of the bearer token, as PEM: a client that
    /// proves in TLS to have the key has the token. Another certificate of the same key serves too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate: Option<ClientCertificate>,
}

checked_text!(
    /// A certificate of a client's key, as PEM.
    ClientCertificate,
    check_certificate,
    schema(value_type = String, min_length = 1, max_length = 16384)
);

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ClientCertificate({} bytes)", self.0.len())
    }
}

fn check_certificate(text: &str) -> Result<(), String> {
    if text.is_empty() || text.len() > CLIENT_CERTIFICATE_BYTES_MAX {
        return Err(format!("a client's certificate has 1 to {CLIENT_CERTIFICATE_BYTES_MAX} bytes"));
    }
    Ok(())
}

/// A new token. Only this answer has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NewToken {
    /// What is known of it.
    pub info: Token,
    /// The bearer token; absent if a key takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<ShownOnce>,
}

/// A token for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Token {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// The user that it acts for; absent if the first token made it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Name>,
    /// Its role.
    pub role: Name,
    /// Where it counts.
    pub scope: Scope,
    /// When it was made or last rotated, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// When it ends, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// SHA-256 of the public key (SubjectPublicKeyInfo) that takes the place of the bearer token,
    /// in hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_sha256: Option<String>,
}

/// The caller.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Me {
    /// The name under which its requests are recorded.
    pub name: String,
    /// What it may do everywhere.
    pub site: PrivilegeSet,
    /// What it may do at places, in addition. For a VM that is in a folder, what counts at both
    /// counts.
    #[serde(default)]
    pub places: Vec<RightsAt>,
    /// Its roles. A token has none of them: what it may do, with its user's rights, is above.
    pub grants: Vec<Grant>,
}

/// What a caller may do at a place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RightsAt {
    /// The place, with the names of today.
    pub scope: Scope,
    /// What it may do there.
    pub privileges: PrivilegeSet,
}

/// Who may do what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Review {
    /// Users, with their roles.
    pub users: Vec<User>,
    /// Tokens.
    pub tokens: Vec<Token>,
    /// The roles that the site has.
    pub roles: Vec<Role>,
    /// How many tokens there are that permit everything: the first one of the control plane's
    /// machine.
    pub unlimited_tokens: u64,
    /// Identity providers.
    #[serde(default)]
    pub identity_providers: Vec<IdentityProvider>,
    /// The roles of their groups.
    #[serde(default)]
    pub group_grants: Vec<Grant>,
    /// Emergency credentials, which give the role `administrator`.
    #[serde(default)]
    pub emergency_credentials: Vec<EmergencyCredential>,
    /// Sessions that have not ended.
    #[serde(default)]
    pub sessions: Vec<Session>,
}

/// A question about what a user may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Explain {
    /// The user, by name or id.
    pub user: Reference,
    /// The operation's name, as in the OpenAPI document.
    pub operation: Name,
    /// The VM, by name or id; the site without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<Reference>,
}

/// Whether a user may call an operation, and why. Parts of the request can take more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// Whether it may.
    pub allowed: bool,
    /// What the operation takes there.
    pub needs: PrivilegeSet,
    /// What the user lacks.
    pub lacks: PrivilegeSet,
    /// The roles of the user that count there.
    pub grants: Vec<Grant>,
}

/// What an entry of the access log is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum AccessKind {
    /// A session began.
    SignedIn,
    /// A sign-in was refused.
    SignInRefused,
    /// An operation was refused.
    Refused,
    /// A ticket to a guest's data was issued.
    Ticket,
    /// A change was made, or asked for: then `task` carries it out.
    Changed,
    /// The access log or the list of rights was read.
    Read,
    /// The oldest entries of the access log were removed.
    Removed,
    /// A kind that this version of the program does not know.
    #[serde(other)]
    Unknown,
}

/// An entry of the access log. It is durable before what it reports is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessEntry {
    /// Its number: one more than that of the entry before it.
    pub id: u64,
    /// SHA-256 of the entry before it as the control plane keeps it, in hexadecimal. Absent in
    /// entries of releases whose log had no chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<String>,
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// What it is about.
    pub kind: AccessKind,
    /// Who asked.
    pub by: String,
    /// The address that the request came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The operation, as in the OpenAPI document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The object of the task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectRef>,
    /// The task that carries the change out, or has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Uuid>,
    /// One sentence for people.
    pub message: String,
    /// How many of the same kind came within the minute of this one, if more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
}

/// A page of the access log. Reading verifies the chain of the entries that are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessLogPage {
    /// The entries, oldest first.
    pub items: Vec<AccessEntry>,
    /// The number of entries that match the query, over all pages.
    pub total: u64,
    /// The number to read on after; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// Where the chain is broken among the entries that were read for this page.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<ChainBreak>,
}

/// A place at which the chain of the access log is broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChainBreak {
    /// The number of the entry that does not continue the chain, or that is missing.
    pub id: u64,
    /// What is wrong there, in one sentence for people.
    pub reason: String,
}

/// The position of the access log. One that is kept elsewhere detects later that the log was
/// cut or rewritten.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLogHead {
    /// The number of the last entry.
    #[schema(maximum = 9223372036854775807_i64)]
    pub id: u64,
    /// SHA-256 of that entry as the control plane keeps it, in hexadecimal.
    #[schema(min_length = 64, max_length = 64, pattern = "^[0-9a-f]{64}$")]
    pub hash: String,
}

/// A request to verify the access log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VerifyAccessLog {
    /// Heads that were kept elsewhere, which the log has to agree with.
    #[schema(max_items = 64)]
    #[serde(default)]
    pub heads: Vec<AccessLogHead>,
}

/// The outcome of a verification of the access log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessLogReport {
    /// Whether the chain is intact and every kept head agrees.
    pub whole: bool,
    /// The number of the first entry that is still there.
    pub first_id: u64,
    /// The position that the log states of itself.
    pub head: AccessLogHead,
    /// The number of entries.
    pub entries: u64,
    /// How many of them have no place in the chain: entries of releases whose log had none.
    pub unchained: u64,
    /// How many of the given heads are of entries that are still there, and agree.
    pub kept_heads_met: u64,
    /// How many of the given heads are of entries that were removed.
    pub kept_heads_before: u64,
    /// The first places at which the chain is broken, at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breaks: Vec<ChainBreak>,
    /// The last position that is on the key server's audit log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anchored: Option<AccessLogHead>,
}

/// How long the access log is kept, and how large it may become. When it is full of entries that
/// have to be kept, changes are refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessLogRetention {
    /// How long entries are kept, in seconds.
    pub keep_s: u64,
    /// The greatest size, in bytes of keys and values.
    pub room_bytes: u64,
    /// The present size, in bytes.
    pub bytes: u64,
    /// The number of entries.
    pub entries: u64,
    /// When the oldest entry was written, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest_unix_ms: Option<u64>,
}

/// A request for another retention of the access log. What is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAccessLogRetention {
    /// How long entries are kept, in seconds: 30 days to ten years.
    #[schema(minimum = 2592000, maximum = 316224000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_s: Option<u64>,
    /// The greatest size, in bytes: 1 MiB to 64 GiB.
    #[schema(minimum = 1048576, maximum = 68719476736_u64)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_bytes: Option<u64>,
}

/// Selects entries of the access log, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AccessLogQuery {
    /// Only entries after the one with this number. Without it, the newest `limit` entries.
    #[param(minimum = 0, maximum = 9223372036854775807_i64)]
    #[serde(
        default,
        deserialize_with = "crate::event::event_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub after: Option<u64>,
    /// The most entries to return.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// Only entries from this time on, in seconds since 1970.
    #[param(minimum = 0, maximum = 9223372036854775807_i64)]
    #[serde(
        default,
        deserialize_with = "crate::event::event_number",
        skip_serializing_if = "Option::is_none"
    )]
    pub since_unix_seconds: Option<u64>,
    /// Only entries of this caller: the name of a user or token, or `PROVIDER:NAME`.
    #[param(value_type = Option<String>, min_length = 1, max_length = 320)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<ActorName>,
}

/// The privileges of a sentence.
impl fmt::Display for PrivilegeSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.iter().map(Privilege::as_str).collect();
        formatter.pad(&names.join(", "))
    }
}

/// The answer of an operation that has nothing to say: an empty object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Done {}
