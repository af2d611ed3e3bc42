//! Evidence: what this server knows of keys, for an auditor, as one signed file.
//!
//! ```text
//! strongroom evidence 1           the form
//! {"made_unix_seconds": ...}      Evidence, as JSON without line feeds
//! {"key": ..., "signature": ...}  the signature over both lines before it, with their line feeds
//! ```
//!
//! It is signed with the key that signs the heads of the audit log, so an auditor pins one key for
//! both. The bytes are signed as they are: nobody has to agree on a canonical JSON. `docs/AUDIT.md`
//! has the format; `scripts/verify-evidence` verifies it without this program.
//!
//! Each statement says where it comes from: the server's own store, which is sealed under its root;
//! the audit log; or the descriptors in datastores, which only ever add an objection.

mod moves;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use strongroom_audit::{HeadSigner, Noted, Outcome, SignError, SignedHead};
use strongroom_types::{ProviderName, hex};

use crate::access::{ClientId, KnownClient, OperationClass, Role, Scope};
use crate::grant::VmId;
use crate::objects::destruction::{Person, Waiting};
use crate::objects::id::ObjectId;
use crate::objects::lifecycle::State;

pub(crate) use self::moves::{ACTION as MOVE, Moves};
pub use self::moves::{
    DataKeyFate, DataKeys, LEFT_KEYS_MAX, LeftDataKeys, MOVED_VOLUMES_MAX, Move, Rewritten,
};

/// The first line of the file.
pub const FORM: &str = "strongroom evidence 1";

/// Longest challenge, in bytes.
pub const CHALLENGE_BYTES_MAX: usize = 128;

/// Most keys in one file, so that it fits an answer.
pub const KEYS_MAX: usize = 4096;

/// Most keys whose dependents are searched for: each search reads all known datastores.
pub const SEARCHED_KEYS_MAX: usize = 32;

/// Longest document, in bytes: it is sent as a text in JSON, where it takes up to twice as much.
pub const DOCUMENT_BYTES_MAX: usize = 3 * 1024 * 1024;

/// What no evidence can say, in every file.
pub const NOT_KNOWN: [&str; 8] = [
    "Copies of volumes and descriptors that were made by other means than Strongroom: backups, storage snapshots, reflinks, \
     replicas. A copy of an old descriptor opens with the key that it names, as long as that key is not destroyed.",
    "Volumes in datastores that are not noted on the key server's machine, and those of other machines.",
    "What the medium keeps of freed blocks. The files of rewritten layers were removed, not overwritten: journals, thin pools, \
     worn flash and disks without discard may still have them, sealed under old data keys, or in clear if the volume was clear.",
    "The state of a TPM: the key that seals it stays in a VM's rewritten volume `vtpm`, so whoever read an old `vtpm` opens it.",
    "What a client did with a key that was released to it, and what root on a host read from the memory of a running VM.",
    "Which person used a certificate of the key server or a token of the control plane: the records have the certificate's name.",
    "Moves of volumes by `volume rekey --kek` and `key rotate`, which are not on record here: they keep the data keys.",
    "Whether a descriptor was forged or removed by somebody who can write the datastore: `needed_by` is what descriptors there \
     say, and a name in it is an objection, but its absence is no proof.",
];

/// What the server knows of keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// When it was made, by the server's clock.
    pub made_unix_seconds: i64,
    /// The text that the asker chose, against the repetition of an old file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub challenge: Option<String>,
    /// The asker.
    pub asked_by: Person,
    /// Their role.
    pub asked_as: Role,
    /// What it is about.
    pub about: Subject,
    /// The server.
    pub server: ServerFacts,
    /// The audit log up to this evidence.
    pub log: LogFacts,
    /// The keys.
    pub keys: Vec<KeyFacts>,
    /// What is on record of these keys and their VMs; without a subject of the clients, too.
    pub records: Records,
    /// All clients of the server.
    pub clients: Vec<KnownClient>,
    /// What each role may do: operations, and on which objects.
    pub permissions: BTreeMap<OperationClass, BTreeMap<Role, Scope>>,
    /// What this file cannot say.
    pub not_known: Vec<String>,
}

/// What an evidence is about: these keys, and those of a VM; everything if neither is named.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// The VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// The keys that were named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<ObjectId>,
}

impl Subject {
    /// Whether it is everything.
    pub fn is_all(&self) -> bool {
        self.vm.is_none() && self.keys.is_empty()
    }
}

/// The server, as far as it matters for its keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerFacts {
    /// The program's version.
    pub version: String,
    /// The module that has the ciphers.
    pub ciphers: String,
    /// SHA-256 of the authority's certificate.
    pub authority: String,
    /// What protects the root key.
    pub root_protection: String,
    /// When the last backup was made, if there is one.
    pub last_backup_unix_seconds: Option<u64>,
}

/// The audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFacts {
    /// The first line that is still there.
    pub first_sequence: u64,
    /// A head over all lines that this evidence is made of.
    pub head: SignedHead,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyFacts {
    /// The key.
    pub key: ObjectId,
    /// Its state.
    pub state: State,
    /// The client that owns it.
    pub owner: ClientId,
    /// The VM that it was made for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<VmId>,
    /// The external provider that keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upstream: Option<ProviderName>,
    /// When it was made.
    pub created_unix_seconds: i64,
    /// When it was found to be compromised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compromised_unix_seconds: Option<i64>,
    /// When it was destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destroyed_unix_seconds: Option<i64>,
    /// Its destruction, while it is pending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destruction: Option<Waiting>,
    /// What needs it, by the descriptors in the known datastores.
    pub needed_by: NeededBy,
    /// What became of the data keys that were under it, by the audit log.
    pub data_keys: LeftDataKeys,
    /// What follows from both.
    pub conclusion: Conclusion,
    /// Who got it, or was refused.
    pub readers: Vec<Reader>,
}

/// What needs a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NeededBy {
    /// These have an envelope under it.
    Found(Vec<String>),
    /// Nobody can say, for this reason.
    Unknown(String),
    /// Nobody looked: the evidence is about too many keys.
    NotSearched,
}

/// Whether anything that is known refers to a key, or to the data keys that were under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Conclusion {
    /// Something has an envelope under it.
    Needed,
    /// Nobody can say whether something has one.
    Unknown,
    /// Nothing has one, but data is still under data keys that were under it.
    DataKeysInUse,
    /// Nothing has one. What became of the data keys under it is not on record.
    UnneededWithoutRecord,
    /// Nothing has one, and the data of the volumes that left it is under new data keys.
    Unneeded,
}

impl Conclusion {
    /// What follows from both. Whatever cannot be excluded counts.
    pub fn of(needed_by: &NeededBy, data_keys: DataKeyFate) -> Self {
        match needed_by {
            NeededBy::Found(names) if !names.is_empty() => return Self::Needed,
            NeededBy::Unknown(_) | NeededBy::NotSearched => return Self::Unknown,
            NeededBy::Found(_) => {}
        }
        match data_keys {
            DataKeyFate::Kept | DataKeyFate::Shared => Self::DataKeysInUse,
            DataKeyFate::NotOnRecord => Self::UnneededWithoutRecord,
            DataKeyFate::Renewed => Self::Unneeded,
        }
    }
}

/// A client that got a key, or was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reader {
    /// Its id, or its certificate's fingerprint if the record has no id.
    pub client: String,
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: String,
    /// How often the key was released to it.
    pub released: u64,
    /// How often it was refused.
    pub refused: u64,
    /// The line of the first of these records.
    pub first_sequence: u64,
    /// The line of the last one.
    pub last_sequence: u64,
}

/// Records of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Records {
    /// Whether these are all.
    pub is_complete: bool,
    /// Oldest first.
    pub events: Vec<Noted>,
}

impl Records {
    /// Who got this key, or was refused, in the order of the first record.
    pub fn readers(&self, key: ObjectId) -> Vec<Reader> {
        let key = key.to_string();
        let mut readers: Vec<Reader> = Vec::new();
        for Noted { sequence, record, .. } in &self.events {
            let is_release = record.fields.contains_key("released");
            let is_refusal = record.outcome == Outcome::Denied;
            if !record.objects.contains(&key) || !(is_release || is_refusal) {
                continue;
            }
            let client = record.fields.get("client").or(record.actor.fingerprint.as_ref());
            let client = client.cloned().unwrap_or_default();
            let at = readers.iter().position(|reader| reader.client == client).unwrap_or_else(|| {
                readers.push(Reader {
                    client,
                    name: record.actor.name.clone(),
                    role: record.actor.role.clone(),
                    released: 0,
                    refused: 0,
                    first_sequence: *sequence,
                    last_sequence: *sequence,
                });
                readers.len() - 1
            });
            let reader = &mut readers[at];
            reader.last_sequence = *sequence;
            reader.released += u64::from(is_release);
            reader.refused += u64::from(is_refusal);
        }
        readers
    }
}

/// The last line of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    /// The id of the key: SHA-256 of its SubjectPublicKeyInfo.
    key: String,
    /// The signature in DER, in hexadecimal.
    signature: String,
}

/// Why an evidence was not made.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// It does not fit an answer.
    #[error(
        "it would have {bytes} bytes, and at most {DOCUMENT_BYTES_MAX} are sent; ask for one VM, or for fewer keys"
    )]
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// It cannot be written as JSON.
    #[error("it cannot be written: {0}")]
    Json(#[from] serde_json::Error),
    /// The key cannot be used.
    #[error(transparent)]
    Sign(#[from] SignError),
}

impl Evidence {
    /// The signed file.
    ///
    /// # Errors
    /// [`EvidenceError`].
    pub fn sign(&self, signer: &dyn HeadSigner) -> Result<String, EvidenceError> {
        let mut file = format!("{FORM}\n{}\n", serde_json::to_string(self)?);
        if file.len() > DOCUMENT_BYTES_MAX {
            return Err(EvidenceError::TooLarge { bytes: file.len() });
        }
        let signature = hex::encode(&signer.sign(file.as_bytes())?);
        let signature = Signature { key: signer.public_key().id().to_owned(), signature };
        file.push_str(&serde_json::to_string(&signature)?);
        file.push('\n');
        Ok(file)
    }

    /// Reads a file that the caller got from the server itself. Its signature is not verified.
    pub fn unverified(file: &str) -> Option<Self> {
        let mut lines = file.lines();
        (lines.next() == Some(FORM)).then_some(())?;
        serde_json::from_str(lines.next()?).ok()
    }
}
