//! The answers to questions, as JSON.

use serde::{Deserialize, Serialize};
use strongroom_audit::limits::OBJECTS_MAX;
use strongroom_audit::{Noted, SignedHead};
use strongroom_keys::ProviderKey;
use strongroom_types::hex;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::access::{ClientId, ClientName, PublicKeySha256, Role};
use crate::backup::{BackupStatus, LastBackup, LastCustodian};
use crate::evidence::DataKeyFate;
use crate::grant::{VmGeneration, VmId};
use crate::objects::destruction::Person;
use crate::objects::id::ObjectId;

/// Most records in a [`HistoryAnswer`]: even with the longest texts they fit an answer.
pub const HISTORY_MAX: u32 = 1000;

/// A pending or completed hand-over of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOverAnswer {
    /// Its id.
    pub id: Uuid,
    /// The present or former owner.
    pub from: Person,
    /// The new owner.
    pub to: Person,
    /// The keys.
    pub keys: Vec<ObjectId>,
    /// The reason given.
    pub reason: String,
    /// The requester.
    pub requested_by: Person,
}

impl HandOverAnswer {
    /// The ids for the record: its own first, then as many keys as fit; its confirmation names all.
    pub(super) fn about(&self) -> Vec<String> {
        let keys = self.keys.iter().map(ObjectId::to_string);
        [self.id.to_string()].into_iter().chain(keys).take(OBJECTS_MAX).collect()
    }
}

/// The custody of backups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustodyAnswer {
    /// The custody in force; `None` before the first backup, which may name anyone.
    pub present: Option<NamedCustody>,
    /// One administrator's proposal.
    pub proposed: Option<NamedCustody>,
}

/// Custodians and their threshold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCustody {
    /// The id: equal only for the same keys and threshold.
    pub id: String,
    /// How many are needed.
    pub threshold: u8,
    /// The custodians.
    pub custodians: Vec<LastCustodian>,
    /// The proposing administrator.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub proposed_by: Option<Person>,
}

/// The longest text about a use of guest data, in bytes.
pub const USE_TEXT_BYTES_MAX: usize = 256;

/// The state of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusAnswer {
    /// The root key's protection: `tpm`, `token`, `credential`, `passphrase`, `unprotected`.
    pub root_protection: String,
    /// The protection in detail.
    pub root_by: String,
    /// Warnings for people.
    pub warnings: Vec<String>,
    /// SHA-256 of the authority's certificate.
    pub authority: String,
    /// The number of clients so far.
    pub clients: usize,
    /// The state of its backup.
    pub backup: BackupStatus,
    /// The last line of the audit log.
    pub audit_sequence: u64,
    /// The first line that is still there.
    #[serde(default)]
    pub audit_first_sequence: u64,
    /// The size of the audit log.
    #[serde(default)]
    pub audit_bytes: u64,
    /// The collector of the audit log, if there is one.
    pub collector: Option<CollectorAnswer>,
    /// The server's clock.
    pub now_unix_seconds: i64,
}

/// The state of shipping the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorAnswer {
    /// The last line that the collector has confirmed; 0 for none.
    pub confirmed_sequence: u64,
    /// Attempts that failed since the server was started.
    pub failures: u64,
    /// The last failure, until the next success.
    pub trouble: Option<String>,
}

/// A new token. Its holder can become its client.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTokenAnswer {
    /// Names it; no secret.
    pub id: String,
    /// The token.
    pub token: Zeroizing<String>,
    /// The first moment at which it can no longer be used.
    pub expires_unix_seconds: i64,
}

impl std::fmt::Debug for NewTokenAnswer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "NewTokenAnswer({}, redacted)", self.id)
    }
}

/// A token in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAnswer {
    /// Names it; no secret.
    pub id: String,
    /// The client that its user becomes.
    pub client: ClientId,
    /// That client's name.
    pub name: ClientName,
    /// That client's role.
    pub role: Role,
    /// The first moment at which it can no longer be used.
    pub expires_unix_seconds: i64,
    /// `open`, `used` or `expired`.
    pub state: String,
}

/// A host that can receive grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAnswer {
    /// Its id.
    pub client: ClientId,
    /// Its name.
    pub name: ClientName,
    /// The key of its newest certificate.
    pub public_key: PublicKeySha256,
    /// When that certificate expires.
    pub not_after_unix_seconds: i64,
}

/// A key of an external provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokeredAnswer {
    /// Its object id here.
    pub id: String,
    /// Its provider and id there.
    #[serde(flatten)]
    pub key: ProviderKey,
    /// `active`, `deactivated`, `compromised`: as known here.
    pub state: String,
}

/// The generation of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceAnswer {
    /// The VM.
    pub vm: VmId,
    /// The lowest valid generation; higher than requested if the VM was already further.
    pub generation: VmGeneration,
}

/// A head of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditAnswer {
    /// The head.
    pub head: SignedHead,
}

/// A pending or former destruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestructionAnswer {
    /// The key.
    pub key: ObjectId,
    /// The requester.
    pub requested_by: Person,
    /// When it was requested.
    pub requested_unix_seconds: i64,
    /// The earliest time of the destruction.
    pub due_unix_seconds: i64,
    /// The reason given.
    pub reason: String,
    /// The second person, once there is one.
    pub confirmed_by: Option<Person>,
    /// When it is scheduled or confirmed: what became of the data keys under the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_keys: Option<DataKeyFate>,
}

/// A signed file, as [`evidence`](crate::evidence) describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvidenceAnswer {
    /// Its text.
    pub file: String,
}

/// The records of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryAnswer {
    /// Oldest first.
    pub events: Vec<Noted>,
    /// Whether these are all. If not, there were more than requested, or older files of the log
    /// were removed.
    pub is_complete: bool,
}

/// A custodian, as an administrator names one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustodianText {
    /// The custodian's name.
    pub name: String,
    /// Their public key, PEM.
    pub public_key: String,
}

/// A backup that waits to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupAnswer {
    /// The backup and its custodians.
    pub backup: LastBackup,
    /// The length of the file.
    pub length_bytes: u64,
    /// SHA-256 of the file.
    #[serde(with = "hex::array")]
    pub sha256: [u8; 32],
}

/// A piece of a backup's file. It is encrypted; only its custodians can open it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPart {
    /// The bytes from the requested offset on, up to a limit; empty at the end.
    #[serde(with = "hex")]
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for BackupPart {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BackupPart({} bytes)", self.bytes.len())
    }
}
