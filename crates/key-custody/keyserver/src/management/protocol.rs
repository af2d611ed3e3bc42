//! What questions are answered with, as JSON.

use serde::{Deserialize, Serialize};
use strongroom_audit::limits::OBJECTS_MAX;
use strongroom_audit::{Record, SignedHead};
use strongroom_keys::ProviderKey;
use strongroom_types::hex;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::access::{ClientId, ClientName, PublicKeySha256, Role};
use crate::backup::{BackupStatus, LastBackup, LastCustodian};
use crate::grant::{VmGeneration, VmId};
use crate::objects::destruction::Person;
use crate::objects::id::ObjectId;

/// Most records in a [`HistoryAnswer`]: with the longest texts within an answer.
pub const HISTORY_MAX: u32 = 1000;

/// Keys that are to be, or have become, another client's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOverAnswer {
    /// Names it.
    pub id: Uuid,
    /// Whose the keys are, or were.
    pub from: Person,
    /// Whose they are to be, or are.
    pub to: Person,
    /// Which.
    pub keys: Vec<ObjectId>,
    /// What was given as the reason.
    pub reason: String,
    /// Who asked for it.
    pub requested_by: Person,
}

impl HandOverAnswer {
    /// The ids for the record: its own first, and as many keys as there is room for; its
    /// confirmation names all.
    pub(super) fn about(&self) -> Vec<String> {
        let keys = self.keys.iter().map(ObjectId::to_string);
        [self.id.to_string()].into_iter().chain(keys).take(OBJECTS_MAX).collect()
    }
}

/// Who opens backups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CustodyAnswer {
    /// Those who do; nobody before the first backup, which may name any.
    pub present: Option<NamedCustody>,
    /// Those whom one administrator asked for.
    pub proposed: Option<NamedCustody>,
}

/// Custodians, and how many of them it takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedCustody {
    /// The same for the same keys and the same number alone.
    pub id: String,
    /// How many of them it takes.
    pub threshold: u8,
    /// Who they are.
    pub custodians: Vec<LastCustodian>,
    /// Who asked for them.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub proposed_by: Option<Person>,
}

/// The longest text about a use of guest data, in bytes.
pub const USE_TEXT_BYTES_MAX: usize = 256;

/// What a server is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusAnswer {
    /// What protects the root key: `tpm`, `token`, `credential`, `passphrase`, `unprotected`.
    pub root_protection: String,
    /// By what exactly.
    pub root_by: String,
    /// What a person should know.
    pub warnings: Vec<String>,
    /// SHA-256 of the authority's certificate.
    pub authority: String,
    /// How many clients there ever were.
    pub clients: usize,
    /// Whether it is backed up.
    pub backup: BackupStatus,
    /// The last line of the audit log.
    pub audit_sequence: u64,
    /// The first line that is still there.
    #[serde(default)]
    pub audit_first_sequence: u64,
    /// How large it is.
    #[serde(default)]
    pub audit_bytes: u64,
    /// Where the audit log is shipped to, if it is.
    pub collector: Option<CollectorAnswer>,
    /// The server's clock.
    pub now_unix_seconds: i64,
}

/// How shipping the audit log fares.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectorAnswer {
    /// The last line that the collector has confirmed; 0 for none.
    pub confirmed_sequence: u64,
    /// Attempts that failed since the server was started.
    pub failures: u64,
    /// What went wrong last, until something goes right.
    pub trouble: Option<String>,
}

/// A token that was made. Whoever has it can become its client.
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

/// A client in a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientAnswer {
    /// Its id.
    pub id: ClientId,
    /// Its name.
    pub name: ClientName,
    /// Its role.
    pub role: Role,
    /// When it became one.
    pub created_unix_seconds: i64,
    /// Whether it is one no longer.
    pub is_revoked: bool,
}

/// A host that can be granted something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAnswer {
    /// Its id.
    pub client: ClientId,
    /// Its name.
    pub name: ClientName,
    /// The key of its newest certificate.
    pub public_key: PublicKeySha256,
    /// When that ends.
    pub not_after_unix_seconds: i64,
}

/// A key of an external provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokeredAnswer {
    /// What it is called here.
    pub id: String,
    /// Where it is.
    #[serde(flatten)]
    pub key: ProviderKey,
    /// `active`, `deactivated`, `compromised`: as far as is known here.
    pub state: String,
}

/// How far a VM has gone on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceAnswer {
    /// The VM.
    pub vm: VmId,
    /// The lowest generation that is good. Higher than was asked for if the VM had gone on further.
    pub generation: VmGeneration,
}

/// A head of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditAnswer {
    /// The head.
    pub head: SignedHead,
}

/// A destruction that waits, or waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DestructionAnswer {
    /// The key.
    pub key: ObjectId,
    /// Who asked for it.
    pub requested_by: Person,
    /// When.
    pub requested_unix_seconds: i64,
    /// Before this it is not done.
    pub due_unix_seconds: i64,
    /// What was given as the reason.
    pub reason: String,
    /// The second person, once there is one.
    pub confirmed_by: Option<Person>,
}

/// What is on record of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryAnswer {
    /// Oldest first.
    pub events: Vec<EventAnswer>,
    /// Whether there is no more. Otherwise there were more than were asked for, or older files of
    /// the log are gone.
    pub is_complete: bool,
}

/// A line of the record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventAnswer {
    /// The line.
    pub sequence: u64,
    /// When, as in RFC 3339.
    pub time: String,
    /// What it says.
    pub record: Record,
}

/// A custodian, as an administrator names one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CustodianText {
    /// What they are called.
    pub name: String,
    /// Their public key, PEM.
    pub public_key: String,
}

/// A backup that waits to be fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupAnswer {
    /// Which one, and for whom.
    pub backup: LastBackup,
    /// How long the file is.
    pub length_bytes: u64,
    /// SHA-256 of the file.
    #[serde(with = "hex::array")]
    pub sha256: [u8; 32],
}

/// A piece of a backup's file. It is encrypted; nobody but its custodians can open it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupPart {
    /// The bytes from the asked one on; fewer than there are left if they are many, none at the
    /// end.
    #[serde(with = "hex")]
    pub bytes: Vec<u8>,
}

impl std::fmt::Debug for BackupPart {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BackupPart({} bytes)", self.bytes.len())
    }
}
