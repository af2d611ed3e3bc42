//! The embedded key server: KMIP objects, its certificate authority, grants, backup, audit.
//!
//! It promises the following, each held by the tests that `docs/KEYS.md` names:
//!
//! - **A key leaves under a certificate** that this server's authority issued and has not revoked,
//!   and to a host only under a grant that the key's owner signed for one VM.
//! - **Nothing is released before it is on record.** The audit record is durable first.
//! - **A destroyed key stays destroyed**, in backups too, as far as a tombstone is known.
//! - **No file holds a plaintext key.** Objects are sealed under the root key, which a TPM, a
//!   token, a passphrase or custodians open.
//! - **Load by strangers at the ports does not affect known clients**: each listener's limits are
//!   `serving`'s.
//!
//! | folder | holds |
//! |---|---|
//! | [`root`] | the root key and what protects it |
//! | [`authority`] | the certificate authority, enrolment, certificates of clients |
//! | [`access`] | roles, identities, permissions |
//! | [`objects`] | keys and their life cycle: kept, moved, destroyed |
//! | [`grant`] | the grants by which hosts fetch VMs' keys |
//! | `operations`, `batch` | the KMIP operations |
//! | [`management`] | the questions of administrators |
//! | [`evidence`] | what the server knows of keys, signed, for an auditor |
//! | [`broker`] | external providers behind this server |
//! | [`backup`], [`recovery`] | backups for custodians, and recovery of a server that nobody can access |
//! | [`state`] | the state directory: root, store, authority and audit log, opened in the order in which they need each other |
//! | [`process`] | all of it put together, as a process |
//!
//! Commands and processes of the program build a server through [`process`]; [`Foundations`] and
//! [`KeyServer`] are for tests and for servers without ports.
#![forbid(unsafe_code)]

pub mod access;
mod actor;
pub mod authority;
pub mod backup;
mod batch;
pub mod broker;
mod caller;
pub mod evidence;
mod failure;
pub mod grant;
mod granting;
#[cfg(test)]
mod killed;
pub mod management;
pub mod objects;
mod observer;
mod operations;
mod presented;
pub mod process;
pub mod recovery;
pub mod root;
mod server;
mod service;
mod settings;
pub mod state;

pub use self::caller::Caller;
pub use self::granting::LedgeredGrants;
pub use self::observer::{Event, EventOutcome, Observer, RecordError, Recording, ShownGrant};
pub use self::server::{Foundations, GrantFailure, Grants, KeyServer, Redeeming};
pub use self::settings::Settings;
