//! What administrators ask: one row of the table for each question, and what it says as a type of
//! its own.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use uuid::Uuid;

use super::protocol::{
    AuditAnswer, BackupAnswer, BackupPart, BrokeredAnswer, ClientAnswer, CustodianText, CustodyAnswer,
    DestructionAnswer, FenceAnswer, HandOverAnswer, HistoryAnswer, HostAnswer, NamedCustody, NewTokenAnswer,
    StatusAnswer, TokenAnswer,
};
use crate::access::{ClientId, ClientName, OperationClass, PublicKeySha256, Role};
use crate::backup::BackupId;
use crate::grant::{VmGeneration, VmId};
use crate::objects::id::ObjectId;

/// A question whose answer has a type.
pub trait Ask: Clone + Into<Question> {
    /// What it is answered with.
    type Answer: Serialize + DeserializeOwned + Send;
}

/// What a question does to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing: it is on record only if it is refused.
    Reads,
    /// It changes something, or lets something out, and goes on record.
    Changes,
}

macro_rules! questions {
    ($($question:ident => $answer:ty: $name:literal, $class:ident, $effect:ident;)*) => {
        /// What an administrator asks.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "question", rename_all = "kebab-case")]
        pub enum Question {
            $(#[doc = concat!("On record as `", $name, "`.")] $question($question),)*
        }

        impl Question {
            /// What it is called on record.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$question(_) => $name,)*
                }
            }

            /// What a role must be allowed to ask it.
            pub fn class(&self) -> OperationClass {
                match self {
                    $(Self::$question(_) => OperationClass::$class,)*
                }
            }

            /// Whether it changes something.
            pub fn effect(&self) -> Effect {
                match self {
                    $(Self::$question(_) => Effect::$effect,)*
                }
            }
        }

        $(
            impl From<$question> for Question {
                fn from(question: $question) -> Self {
                    Self::$question(question)
                }
            }

            impl Ask for $question {
                type Answer = $answer;
            }
        )*
    };
}

// Question, its answer, its name on record, what its asker must be allowed, and what it does.
questions! {
    Status => StatusAnswer: "status", ReadAudit, Reads;
    CreateToken => NewTokenAnswer: "create token", ManageClients, Changes;
    Tokens => Vec<TokenAnswer>: "list tokens", ReadAudit, Reads;
    CancelToken => (): "cancel token", ManageClients, Changes;
    Clients => Vec<ClientAnswer>: "list clients", ReadAudit, Reads;
    RevokeClient => (): "revoke client", ManageClients, Changes;
    ProposeHandOver => HandOverAnswer: "propose hand-over", ManageClients, Changes;
    ConfirmHandOver => HandOverAnswer: "confirm hand-over", ManageClients, Changes;
    CancelHandOver => HandOverAnswer: "cancel hand-over", ManageClients, Changes;
    HandOvers => Vec<HandOverAnswer>: "list hand-overs", ManageClients, Reads;
    Hosts => Vec<HostAnswer>: "find hosts", IssueGrants, Reads;
    FenceVm => FenceAnswer: "fence vm", IssueGrants, Changes;
    BindKey => (): "bind key to vm", IssueGrants, Changes;
    BrokerAdd => BrokeredAnswer: "take in external key", BrokerKey, Changes;
    BrokerCreate => BrokeredAnswer: "create external key", BrokerKey, Changes;
    BrokeredKeys => Vec<BrokeredAnswer>: "list external keys", ReadMetadata, Reads;
    ScheduleDestruction => DestructionAnswer: "schedule destruction", DestroyKey, Changes;
    CancelDestruction => DestructionAnswer: "cancel destruction", DestroyKey, Changes;
    ConfirmDestruction => DestructionAnswer: "confirm destruction", ConfirmDestroy, Changes;
    Destructions => Vec<DestructionAnswer>: "list destructions", ReadMetadata, Reads;
    KeyHistory => HistoryAnswer: "show history", ReadAudit, Reads;
    AuditHead => AuditAnswer: "sign audit head", ReadAudit, Changes;
    RecordUse => (): "use of guest data", IssueGrants, Changes;
    MakeBackup => BackupAnswer: "make backup", ManageBackup, Changes;
    ProposeCustodians => NamedCustody: "propose custodians", ManageBackup, Changes;
    ConfirmCustodians => NamedCustody: "confirm custodians", ManageBackup, Changes;
    Custodians => CustodyAnswer: "list custodians", ManageBackup, Reads;
    ReadBackup => BackupPart: "read backup", ManageBackup, Reads;
    KeepBackup => (): "keep backup", ManageBackup, Changes;
}

impl Question {
    /// The key that it is about, for the record also of a refusal.
    pub fn key(&self) -> Option<ObjectId> {
        match self {
            Self::ScheduleDestruction(ScheduleDestruction { key, .. })
            | Self::CancelDestruction(CancelDestruction { key })
            | Self::ConfirmDestruction(ConfirmDestruction { key })
            | Self::KeyHistory(KeyHistory { key, .. }) => Some(*key),
            _ => None,
        }
    }
}

/// What the server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {}

/// A token for a new client, or for one that lost its certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// The client, if it is there, of that name and role. What it has of certificates ends when the
    /// token is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientId>,
    /// The client's name.
    pub name: ClientName,
    /// Its role.
    pub role: Role,
    /// For how long it can be used; the default if nothing is said.
    pub valid_seconds: Option<u32>,
    /// The only key that it may be used for.
    pub public_key: Option<PublicKeySha256>,
    /// The life of the certificate, in days; the default if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_days: Option<u32>,
}

/// All tokens that are known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {}

/// A token is not to be used any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelToken {
    /// Its id.
    pub id: String,
}

/// All clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clients {}

/// A client is one no longer, with all its certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeClient {
    /// The client.
    pub client: ClientId,
    /// Why.
    pub reason: String,
}

/// Keys of one client are to be another's, if another administrator agrees.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposeHandOver {
    /// Whose they are; it may be revoked.
    pub from: ClientId,
    /// Whose they are to be: of the same role.
    pub to: ClientId,
    /// Which; all that the client has now if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ObjectId>,
    /// Why.
    pub reason: String,
}

/// The second administrator's word, upon which it is done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmHandOver {
    /// Which.
    pub id: Uuid,
}

/// The keys stay whose they are; what waited is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelHandOver {
    /// Which.
    pub id: Uuid,
}

/// The hand-overs that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOvers {}

/// The hosts of that name or id that can be granted something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// A host's name, or its id.
    pub host: String,
}

/// A VM has gone on: what was granted for it before is void.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceVm {
    /// The VM.
    pub vm: VmId,
    /// The lowest generation that is good from now on.
    pub generation: VmGeneration,
}

/// A key of the asker's was made for a VM: no grant releases it for another one from now on. Asked
/// again, it stays so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindKey {
    /// The key.
    pub key: ObjectId,
    /// The VM.
    pub vm: VmId,
}

/// A key that an external provider has is to be had here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerAdd {
    /// The key.
    pub key: ProviderKey,
}

/// The same for a key that is made there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerCreate {
    /// The provider.
    pub provider: ProviderName,
    /// Names the wish, so that it can be repeated.
    pub request: KeyRequestId,
}

/// All keys of external providers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokeredKeys {}

/// A key is to be destroyed after a delay, if another administrator confirms it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleDestruction {
    /// The key.
    pub key: ObjectId,
    /// How long it waits at least, in seconds.
    pub delay_seconds: i64,
    /// Why.
    pub reason: String,
}

/// It is not to be destroyed after all; what waited is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelDestruction {
    /// The key.
    pub key: ObjectId,
}

/// The second person's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmDestruction {
    /// The key.
    pub key: ObjectId,
}

/// The destructions that wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destructions {}

/// What is on record of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyHistory {
    /// The key.
    pub key: ObjectId,
    /// How many of the last records; at most [`HISTORY_MAX`](super::protocol::HISTORY_MAX).
    pub most: u32,
}

/// A signed head of the audit log, to be kept elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditHead {}

/// Puts on record that somebody gets at what a guest keeps, by way of a control plane, which
/// says who. Answered when it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordUse {
    /// Of which VM.
    pub vm: VmId,
    /// What is done, in words; at most [`USE_TEXT_BYTES_MAX`](super::protocol::USE_TEXT_BYTES_MAX).
    pub what: String,
    /// By whom, as the control plane calls them; as long at most.
    pub by: String,
}

/// A backup is made, and waits on the server to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeBackup {
    /// How many custodians it takes to open it.
    pub threshold: u8,
    /// Who they are: those of the last backup, or such as two administrators agreed upon.
    pub custodians: Vec<CustodianText>,
}

/// Others are to be custodians from now on, or fewer are to be needed, if another administrator
/// agrees:
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposeCustodians {
    /// How many custodians it takes to open a backup.
    pub threshold: u8,
    /// Who they are.
    pub custodians: Vec<CustodianText>,
}

/// The second administrator's word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmCustodians {
    /// Names what was asked for, its custodians' keys and their number.
    pub id: String,
}

/// Who opens backups, and who was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Custodians {}

/// A piece of the backup that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadBackup {
    /// Which one it should be.
    pub id: BackupId,
    /// From which byte on.
    pub offset: u64,
}

/// The backup that waits is safe elsewhere: the server remembers it as the last one, and removes
/// its own copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepBackup {
    /// Which one.
    pub id: BackupId,
}
