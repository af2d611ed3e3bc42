//! Why a job is not done.

use std::io;
use std::path::PathBuf;

use serde::Serialize;
use strongroom_datastore::file::DatastoreError;
use strongroom_files::FileError;
use strongroom_keys::{KeyError, ProviderKey};
use strongroom_keyserver::state::StateError;
use strongroom_providers::{FailedProvider, KeyState, RegistryError};
use strongroom_types::{KekId, utc, without_numbers};
use strongroom_worker::MergeError;
use strongroom_worker::control::ControlError;
use thiserror::Error;

use crate::datastores::KeyNeeded;
use crate::inventory::state_name;
use crate::present_keys::KeyRefusal;

/// Why not.
#[derive(Debug, Error)]
pub enum JobError {
    /// The datastore refuses.
    #[error(transparent)]
    Datastore(#[from] DatastoreError),
    /// A key cannot be had.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The caller does not give a key.
    #[error(transparent)]
    KeyRefusal(#[from] KeyRefusal),
    /// The providers of this machine cannot be read.
    #[error(transparent)]
    Registry(#[from] RegistryError),
    /// A provider does not do what is asked.
    #[error(transparent)]
    Provider(#[from] FailedProvider),
    /// A directory of the home is not made.
    #[error(transparent)]
    Directory(#[from] StateError),
    /// A file of the home, or a volume's directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// There is no such key.
    #[error(
        "no key {key} is known here, neither to a key provider nor to a volume; `strongroom key list` shows all"
    )]
    NoSuchKey {
        /// As it was given.
        key: String,
    },
    /// Several keys are called so.
    #[error("'{key}' may be {}; say which with --provider NAME, or by its KEK id", .found.join(" or "))]
    AmbiguousKey {
        /// As it was given.
        key: String,
        /// What it may be.
        found: Vec<String>,
    },
    /// The volume is under no provider's key.
    #[error(
        "{path} has no key of a key provider; move it to one with `strongroom volume rekey --kek --to-key-provider NAME`"
    )]
    NoProvidersKey {
        /// The volume.
        path: PathBuf,
    },
    /// Nothing is known that needs the key that is to be rotated.
    #[error("no volume is known that needs {key}; say where there are any with --datastore DIR")]
    NothingToMove {
        /// The key.
        key: Box<ProviderKey>,
    },
    /// The key is a VM's, whose inventory has to know of its rotation.
    #[error("{key} is the key of VM {vm}: rotate it with `strongroom vm key rotate {vm}`")]
    KeyOfVm {
        /// The key.
        key: Box<ProviderKey>,
        /// The VM.
        vm: String,
    },
    /// The new key of a rotation was taken out of use before the rotation was done.
    #[error(
        "the new key that this rotation began with ({key}) is {}; activate it at its provider and call again, or move the volumes with \
         `strongroom volume rekey --kek`",
        state_name(*.state)
    )]
    NewKeyOutOfUse {
        /// The new key.
        key: Box<ProviderKey>,
        /// What it is.
        state: KeyState,
    },
    /// The key's destruction waits for its time.
    #[error(
        "the key's destruction is scheduled, and due {}; cancel it with --cancel, or come back then",
        utc(*.due_unix_seconds)
    )]
    DestructionWaits {
        /// When it is due.
        due_unix_seconds: u64,
    },
    /// The key is not to be destroyed.
    #[error("no destruction of this key is scheduled")]
    NoDestruction,
    /// A key is not destroyed, because something needs it or may need it.
    #[error(transparent)]
    KeyNeeded(#[from] KeyNeeded),
    /// What is given as the new key is not what the job has begun with.
    #[error(
        "the new key (from a {source_name}) is KEK {given}, and the job was begun with KEK {wanted}; give the same one again"
    )]
    OtherNewKey {
        /// What was given.
        given: KekId,
        /// What the job has begun with.
        wanted: KekId,
        /// Where it comes from.
        source_name: String,
    },
    /// The same job runs already.
    #[error("another process works on this job ({path}); wait for it")]
    JobRuns {
        /// Its file.
        path: PathBuf,
    },
    /// A key cannot be given to another process.
    #[error("cannot hand the new key over: {0}")]
    Handover(io::Error),
    /// The process that exposes the volume cannot be asked, or says no.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A volume is already what it is to become.
    #[error("{path} is {state} already: there is nothing to do")]
    NothingToDo {
        /// The volume.
        path: PathBuf,
        /// What it is.
        state: &'static str,
    },
    /// A volume cannot be rewritten.
    #[error("cannot rewrite {path}: {error}; nothing is lost, and the same command goes on")]
    NotRewritten {
        /// The volume.
        path: PathBuf,
        /// Why not.
        error: Box<MergeError>,
    },
    /// A person stopped the job before it was done.
    #[error("interrupted")]
    Interrupted,
}

impl JobError {
    /// A stable name for programs.
    pub fn code(&self) -> &str {
        match self {
            Self::Datastore(error) => error.code(),
            Self::Key(error) => error.code(),
            Self::KeyRefusal(refusal) => &refusal.code,
            Self::Registry(error) => error.code(),
            Self::Provider(FailedProvider { error, .. }) => error.code(),
            Self::Directory(_) => "keyserver_state",
            Self::File(_) => "file",
            Self::NoSuchKey { .. } => "no_such_key",
            Self::AmbiguousKey { .. } => "ambiguous_key",
            Self::NoProvidersKey { .. } | Self::NothingToMove { .. } | Self::KeyOfVm { .. } => "usage",
            Self::NewKeyOutOfUse { .. } => "new_key_out_of_use",
            Self::DestructionWaits { .. } => "destruction_waits",
            Self::NoDestruction => "no_destruction",
            Self::KeyNeeded(KeyNeeded::Volumes { .. }) => "key_needed",
            Self::KeyNeeded(KeyNeeded::Unknown(_)) => "key_needs_unknown",
            Self::OtherNewKey { .. } => "other_new_key",
            Self::JobRuns { .. } => "job_runs",
            Self::Handover(_) => "key_not_handed_over",
            Self::Control(error) => error.code(),
            Self::NothingToDo { .. } => "nothing_to_do",
            Self::NotRewritten { .. } => "not_rewritten",
            Self::Interrupted => "interrupted",
        }
    }
}

/// A volume that a job has not moved.
#[derive(Debug, Serialize)]
pub struct FailedVolume {
    /// The volume.
    pub path: PathBuf,
    /// Why, for programs.
    pub code: String,
    /// Why.
    pub message: String,
}

impl FailedVolume {
    pub(crate) fn new(path: PathBuf, error: &JobError) -> Self {
        Self { path, code: error.code().to_owned(), message: without_numbers(&error.to_string()) }
    }
}
