//! Administrators' questions: one row of the table, and one type, for each.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use uuid::Uuid;

use super::protocol::{
    AuditAnswer, BackupAnswer, BackupPart, BrokeredAnswer, CustodianText, CustodyAnswer, DestructionAnswer,
    EvidenceAnswer, FenceAnswer, HandOverAnswer, HistoryAnswer, HostAnswer, NamedCustody, NewTokenAnswer,
    StatusAnswer, TokenAnswer,
};
use crate::access::{ClientId, ClientName, KnownClient, OperationClass, PublicKeySha256, Role};
use crate::backup::BackupId;
use crate::evidence::{Move, Subject};
use crate::grant::{VmGeneration, VmId};
use crate::objects::id::ObjectId;

/// A question whose answer has a type.
pub trait Ask: Clone + Into<Question> {
    /// The type of its answer.
    type Answer: Serialize + DeserializeOwned + Send;
}

/// The effect of a question on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// None: it is on record only if it is refused.
    Reads,
    /// It changes or releases something, and goes on record.
    Changes,
}

macro_rules! questions {
    ($($question:ident => $answer:ty: $name:literal, $class:ident, $effect:ident;)*) => {
        /// A question of an administrator.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(tag = "question", rename_all = "kebab-case")]
        pub enum Question {
            $(#[doc = concat!("On record as `", $name, "`.")] $question($question),)*
        }

        impl Question {
            /// Its name in records.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$question(_) => $name,)*
                }
            }

            /// The class of operations that it needs permission for.
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

// Question, answer, name in records, required class, and effect.
questions! {
    Status => StatusAnswer: "status", ReadAudit, Reads;
    CreateToken => NewTokenAnswer: "create token", ManageClients, Changes;
    Tokens => Vec<TokenAnswer>: "list tokens", ReadAudit, Reads;
    CancelToken => (): "cancel token", ManageClients, Changes;
    Clients => Vec<KnownClient>: "list clients", ReadAudit, Reads;
    RevokeClient => (): "revoke client", ManageClients, Changes;
    ProposeHandOver => HandOverAnswer: "propose hand-over", ManageClients, Changes;
    ConfirmHandOver => HandOverAnswer: "confirm hand-over", ManageClients, Changes;
    CancelHandOver => HandOverAnswer: "cancel hand-over", ManageClients, Changes;
    HandOvers => Vec<HandOverAnswer>: "list hand-overs", ManageClients, Reads;
    Hosts => Vec<HostAnswer>: "find hosts", IssueGrants, Reads;
    FenceVm => FenceAnswer: "fence vm", IssueGrants, Changes;
    VoidPrepared => (): "void prepared generation", IssueGrants, Changes;
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
    RecordMove => (): "move volumes", RecordMove, Changes;
    RecordAccessHead => (): "access log head", IssueGrants, Changes;
    MakeEvidence => EvidenceAnswer: "make evidence", ReadAudit, Changes;
    MakeBackup => BackupAnswer: "make backup", ManageBackup, Changes;
    ProposeCustodians => NamedCustody: "propose custodians", ManageBackup, Changes;
    ConfirmCustodians => NamedCustody: "confirm custodians", ManageBackup, Changes;
    Custodians => CustodyAnswer: "list custodians", ManageBackup, Reads;
    ReadBackup => BackupPart: "read backup", ManageBackup, Reads;
    KeepBackup => (): "keep backup", ManageBackup, Changes;
}

impl Question {
    /// The key it concerns, for the record, including that of a refusal.
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

/// The state of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {}

/// A token for a new client, or for one that lost its certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateToken {
    /// An existing client of that name and role, whose certificates end when the token is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientId>,
    /// The client's name.
    pub name: ClientName,
    /// Its role.
    pub role: Role,
    /// How long it can be used, in seconds; `None` for the default.
    pub valid_seconds: Option<u32>,
    /// The only key that it may be used for.
    pub public_key: Option<PublicKeySha256>,
    /// The validity of the certificate in days; `None` for the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certificate_days: Option<u32>,
}

/// All known tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokens {}

/// Cancels a token.
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

/// Revokes a client, with all its certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RevokeClient {
    /// The client.
    pub client: ClientId,
    /// The reason.
    pub reason: String,
}

/// Proposes that one client's keys become another's; another administrator must confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposeHandOver {
    /// The present owner, which may be revoked.
    pub from: ClientId,
    /// The new owner, of the same role.
    pub to: ClientId,
    /// The keys; all that the client has now if none is named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ObjectId>,
    /// The reason.
    pub reason: String,
}

/// Confirms and carries out a hand-over, by a second administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmHandOver {
    /// The hand-over's id.
    pub id: Uuid,
}

/// Cancels a hand-over, which is returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelHandOver {
    /// The hand-over's id.
    pub id: Uuid,
}

/// The pending hand-overs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HandOvers {}

/// The hosts of that name or id that can receive grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// A host's name, or its id.
    pub host: String,
}

/// Raises a VM's generation: earlier grants for it are void.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FenceVm {
    /// The VM.
    pub vm: VmId,
    /// The lowest valid generation from now on.
    pub generation: VmGeneration,
}

/// Makes a generation void that was prepared for a VM's move to another host, which is given up.
/// Refused if the VM is in that generation. May be repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoidPrepared {
    /// The VM.
    pub vm: VmId,
    /// The generation.
    pub generation: VmGeneration,
}

/// Binds one of the caller's keys to a VM: no grant releases it for another VM from now on. May be
/// repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BindKey {
    /// The key.
    pub key: ObjectId,
    /// The VM.
    pub vm: VmId,
    /// The VM that it leaves, if it is bound to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<VmId>,
}

/// Adopts a key of an external provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerAdd {
    /// The key.
    pub key: ProviderKey,
}

/// Has a key made there, and adopts it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerCreate {
    /// The provider.
    pub provider: ProviderName,
    /// The request's id, so that it can be repeated.
    pub request: KeyRequestId,
}

/// All keys of external providers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokeredKeys {}

/// Schedules a key's destruction after a delay; another administrator must confirm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleDestruction {
    /// The key.
    pub key: ObjectId,
    /// The minimum delay in seconds.
    pub delay_seconds: i64,
    /// The reason.
    pub reason: String,
    /// Destroys it although linked clones have content that was under it, under their own keys.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leave_to_clones: bool,
}

/// Cancels a destruction, which is returned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CancelDestruction {
    /// The key.
    pub key: ObjectId,
}

/// Confirms a destruction, by a second person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmDestruction {
    /// The key.
    pub key: ObjectId,
}

/// The pending destructions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Destructions {}

/// The records of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyHistory {
    /// The key.
    pub key: ObjectId,
    /// How many of the latest records; at most [`HISTORY_MAX`](super::protocol::HISTORY_MAX).
    pub most: u32,
}

/// Requests a signed head of the audit log, to keep elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditHead {}

/// Records that a person accesses a guest's data through a control plane, which names the person.
/// Answered once it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordUse {
    /// The VM.
    pub vm: VmId,
    /// The access, in words; at most [`USE_TEXT_BYTES_MAX`](super::protocol::USE_TEXT_BYTES_MAX).
    pub what: String,
    /// The person, as the control plane names them; of the same maximum length.
    pub by: String,
}

/// Records that volumes were moved to another key, and what became of their data keys. Answered
/// once it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordMove {
    /// The move.
    pub moved: Move,
}

/// Records the head of a control plane's access log. Answered once it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordAccessHead {
    /// The number of the last entry.
    pub id: u64,
    /// SHA-256 of that entry.
    #[serde(with = "strongroom_types::hex::array")]
    pub hash: [u8; 32],
}

/// Requests a signed file with what the server knows of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeEvidence {
    /// What it is about.
    pub about: Subject,
    /// A text of the asker for the file, of at most
    /// [`CHALLENGE_BYTES_MAX`](crate::evidence::CHALLENGE_BYTES_MAX).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<String>,
}

/// Makes a backup, which waits on the server to be downloaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MakeBackup {
    /// How many custodians are needed to open it.
    pub threshold: u8,
    /// The custodians: those of the last backup, or ones that two administrators agreed on.
    pub custodians: Vec<CustodianText>,
}

/// Proposes other custodians, or a lower threshold; another administrator must confirm:
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposeCustodians {
    /// How many custodians are needed to open a backup.
    pub threshold: u8,
    /// The custodians.
    pub custodians: Vec<CustodianText>,
}

/// Confirms a proposal of custodians, by a second administrator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfirmCustodians {
    /// The proposal's id, derived from its custodians' keys and threshold.
    pub id: String,
}

/// The present custody, and the proposed one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Custodians {}

/// Reads a piece of the waiting backup.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadBackup {
    /// The expected backup.
    pub id: BackupId,
    /// The offset of the first byte.
    pub offset: u64,
}

/// Confirms that the waiting backup is safe elsewhere: the server records it as the last one, and
/// removes its own copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeepBackup {
    /// Which one.
    pub id: BackupId,
}
