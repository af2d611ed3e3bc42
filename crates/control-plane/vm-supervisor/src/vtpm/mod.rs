//! A VM's TPM: swtpm, and the record of its states.
//!
//! ```text
//! vtpm.state/   what swtpm keeps, sealed by swtpm with the TPM's key
//! vtpm/         a sealed volume: that key, and which states there were (record)
//! ```
//!
//! The key goes from the volume into swtpm's pipe. Before swtpm starts, its state is compared with
//! the record; while it runs, each new state is recorded (keeper). A swtpm that dies is not
//! replaced: the measurements since the guest's start are lost, and a TPM without them would vouch
//! for a state that it has not seen. The guest sees a failed TPM until its next start.
//!
//! QEMU saves the whole state of the TPM with the guest's memory, and gives it to swtpm when the
//! guest goes on. So the record names the memory with which that may happen: the one with which the
//! VM was suspended, or one that a revert has put back.

mod keeper;
mod record;

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use strongroom_crypto::mac::sha256;
use strongroom_host::protocol::{OwnVolume, Problem, VmSpec};
use strongroom_hypervisor::swtpm::STATE_FILE;
use strongroom_hypervisor::{RunDirectory, Swtpm};
use strongroom_keys::ProviderKey;
use strongroom_types::VolumeId;
use thiserror::Error;

pub use self::keeper::Keeper;
use self::record::{OtherMemory, RecordError, Refusal, StateDigest, TpmRecord};
pub use self::record::{new_content, volume_size};
use super::keys::VmKeys;
use super::own_volume::{OpenOwnVolume, OwnVolumeError, hold_key};
use super::starter::Starter;

/// The longest state file, in bytes: many times the size that libtpms uses.
const STATE_BYTES_MAX: u64 = 4 << 20;

/// Why a VM has no TPM.
#[derive(Debug, Error)]
pub enum TpmError {
    /// The volume of its record cannot be used.
    #[error(transparent)]
    Volume(#[from] OwnVolumeError),
    /// Its record is invalid.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Its state is not the recorded one.
    #[error("{path}: {refusal}")]
    State {
        /// The state's file.
        path: PathBuf,
        /// The reason.
        refusal: Refusal,
    },
    /// A memory would put an old state back.
    #[error(transparent)]
    Memory(#[from] OtherMemory),
    /// swtpm failed.
    #[error("{0}")]
    Swtpm(Problem),
    /// A system call failed.
    #[error("cannot {action} {path}: {error}")]
    System {
        /// The action.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl TpmError {
    /// Returns the missing key with the reason, if it may become available.
    pub fn missing_key(&self) -> Option<(&ProviderKey, &str)> {
        match self {
            Self::Volume(error) | Self::Record(RecordError::Volume(error)) => error.missing_key(),
            _ => None,
        }
    }

    /// The problem for hostd.
    pub fn problem(&self) -> Problem {
        match self {
            Self::Volume(error) | Self::Record(RecordError::Volume(error)) => error.problem(),
            Self::State { .. } => {
                let next = "restore volume vtpm and directory vtpm.state of the VM from the same backup";
                Problem::new("tpm_state", format!("{self}; {next}"))
            }
            Self::Record(_) | Self::Memory(_) => Problem::new("tpm_state", self.to_string()),
            Self::Swtpm(problem) => problem.clone(),
            Self::System { .. } => Problem::new("system", self.to_string()),
        }
    }
}

/// The files of a VM's TPM.
#[derive(Clone, Debug)]
pub struct TpmPlace {
    /// The VM.
    spec: VmSpec,
    keys: Arc<VmKeys>,
    starter: Starter,
}

impl TpmPlace {
    /// The files of this VM's TPM.
    pub fn of(spec: &VmSpec, keys: &Arc<VmKeys>, starter: &Starter) -> Self {
        Self { spec: spec.clone(), keys: Arc::clone(keys), starter: starter.clone() }
    }

    /// Starts a swtpm with the present state, if that is the right one. `resumes` says that the
    /// guest goes on with its memory, which brings a state along.
    ///
    /// # Errors
    /// Also if the VM's key is unavailable ([`TpmError::missing_key`]).
    pub fn start(&self, run: &RunDirectory, resumes: bool) -> Result<Swtpm, TpmError> {
        let state = self.state_directory();
        let system = |action| {
            let path = state.clone();
            move |error| TpmError::System { action, path, error }
        };
        let mut volume = self.open()?;
        let mut record = TpmRecord::read(&mut volume)?;
        let found = self.state()?.map(|(digest, _)| digest);
        record
            .judge(found.as_ref())
            .map_err(|refusal| TpmError::State { path: state.join(STATE_FILE), refusal })?;
        match DirBuilder::new().mode(0o700).create(&state) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(system("create")(error));
            }
            _ => {}
        }
        if !resumes {
            record.go_on_with(&mut volume, None)?;
        }
        record.set_in_use(&mut volume, true)?;
        let key = pipe_of(record.key().expose()).map_err(system("hand over the key of"))?;
        volume.close()?;
        self.starter.start_tpm(run, &key).map_err(TpmError::Swtpm)
    }

    fn state_directory(&self) -> PathBuf {
        self.spec.tpm_state_path()
    }

    fn open(&self) -> Result<OpenOwnVolume, OwnVolumeError> {
        open_record(&self.spec, &self.keys)
    }

    /// Records the present state, if it is new.
    fn record(&self) -> Result<(), TpmError> {
        let Some((digest, [file, directory])) = self.state()? else { return Ok(()) };
        let path = self.state_directory();
        let system = |error| TpmError::System { action: "sync", path: path.clone(), error };
        // A recorded state must survive a power cut; otherwise its predecessor would look as if it
        // had been put back.
        file.sync_all().map_err(system)?;
        directory.sync_all().map_err(system)?;
        let mut volume = self.open()?;
        let mut record = TpmRecord::read(&mut volume)?;
        match record.judge(Some(&digest)) {
            Err(refusal) => {
                tracing::error!("VM {}: its TPM's state, while it runs: {refusal}", self.spec.name)
            }
            Ok(_) if record.record(&mut volume, &digest)? => {
                tracing::debug!(
                    "VM {}: its TPM's state is generation {}",
                    self.spec.name,
                    record.generation()
                );
            }
            Ok(_) => {}
        }
        Ok(volume.close()?)
    }

    /// Records that the TPM has ended in order, with its present state.
    fn ended(&self) -> Result<(), TpmError> {
        self.record()?;
        let mut volume = self.open()?;
        TpmRecord::read(&mut volume)?.set_in_use(&mut volume, false)?;
        Ok(volume.close()?)
    }

    /// Returns a descriptor that is readable when there may be a new state.
    fn changes(&self) -> io::Result<OwnedFd> {
        self.starter.watch_tpm()
    }

    /// Returns the present permanent state: its digest, its file, and its directory.
    fn state(&self) -> Result<Option<(StateDigest, [File; 2])>, TpmError> {
        let path = self.state_directory().join(STATE_FILE);
        let system = |error| TpmError::System { action: "read", path: path.clone(), error };
        let Some(opened) = self.starter.tpm_state().map_err(system)? else { return Ok(None) };
        let opened = opened.map(File::from);
        // The directory belongs to another user, who may put anything there.
        if !opened[0].metadata().map_err(system)?.is_file() {
            return Err(system(io::Error::other("it is no file")));
        }
        let mut content = Vec::new();
        (&opened[0]).take(STATE_BYTES_MAX).read_to_end(&mut content).map_err(system)?;
        Ok(Some((sha256(&content), opened)))
    }
}

/// Checks that a VM's guest may go on with the memory in this volume, which brings a state of its
/// TPM along.
///
/// # Errors
/// If the TPM's record names another memory, or none.
pub fn check_memory(spec: &VmSpec, keys: &VmKeys, memory: VolumeId) -> Result<(), TpmError> {
    let mut volume = open_record(spec, keys)?;
    let record = TpmRecord::read(&mut volume)?;
    volume.close()?;
    Ok(record.judge_memory(memory)?)
}

/// Records with which memory a VM's TPM goes on: that in this volume, or none.
///
/// # Errors
/// If it cannot be made durable.
pub fn go_on_with(spec: &VmSpec, keys: &VmKeys, memory: Option<VolumeId>) -> Result<(), TpmError> {
    let mut volume = open_record(spec, keys)?;
    TpmRecord::read(&mut volume)?.go_on_with(&mut volume, memory)?;
    Ok(volume.close()?)
}

fn open_record(spec: &VmSpec, keys: &VmKeys) -> Result<OpenOwnVolume, OwnVolumeError> {
    let kek = hold_key(keys, spec, OwnVolume::Vtpm)?;
    OpenOwnVolume::open_known(spec, OwnVolume::Vtpm, kek.as_deref())
}

/// Returns a pipe with these bytes, and then its end.
fn pipe_of(bytes: &[u8]) -> io::Result<OwnedFd> {
    let (reader, mut writer) = io::pipe()?;
    writer.write_all(bytes)?;
    Ok(reader.into())
}
