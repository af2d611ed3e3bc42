//! A VM's TPM: swtpm, and the record of its states.
//!
//! ```text
//! vtpm.state/   what swtpm keeps, sealed by swtpm with the TPM's key
//! vtpm/         a sealed volume: that key, and which states there were (record)
//! ```
//!
//! The key goes from the volume into swtpm's pipe. Before swtpm starts, its state is compared with
//! the record; while it runs, each new state is recorded (keeper), and the guest gets the answer to
//! the command that has changed it after that
//! ([`StateGate`](strongroom_hypervisor::swtpm::StateGate)). A swtpm that dies is not replaced: the
//! measurements since the guest's start are lost, and a TPM without them would vouch for a state
//! that it has not seen. The guest sees a failed TPM until its next start.
//!
//! On a cluster, `vtpm.state` has the state that was recorded last, or the one about to be. swtpm,
//! which opens files by path, has a directory of the host: it gets the cluster's state at a start,
//! and each new state is stored on the cluster before it is recorded. So that directory is worth
//! nothing once swtpm has ended, and any host can start the VM.
//!
//! A guest that comes from another host while it runs brings its TPM along (arrival). Its swtpm has
//! such a directory, too, wherever the VM is.
//!
//! QEMU saves the whole state of the TPM with the guest's memory, and gives it to swtpm when the
//! guest goes on. So the record names the memory with which that may happen: the one with which the
//! VM was suspended, or one that a revert has put back.

mod arrival;
mod keeper;
mod record;

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use strongroom_crypto::mac::sha256;
use strongroom_datastore::file::storage::{BY_PATH, read_file, replace_file};
use strongroom_host::orders::RunTask;
use strongroom_host::protocol::{OwnVolume, Problem, VmName, VmSpec};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_hypervisor::swtpm::{STATE_FILE, StateGate};
use strongroom_hypervisor::{RunDirectory, Swtpm};
use strongroom_keys::MissingKey;
use strongroom_memory::secret::SecretError;
use strongroom_types::VolumeId;
use thiserror::Error;

pub use self::arrival::ArrivingTpm;
pub use self::keeper::{Keeper, KeeperOrders};
use self::record::{OtherMemory, RecordError, Refusal, TpmRecord, Verdict};
pub use self::record::{new_content, volume_size};
use super::keys::VmKeys;
use super::own_volume::{OpenOwnVolume, OwnVolumeError, hold_key};
use super::starter::{Starter, keeps_tpm_apart};

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
    /// The TPM has not come with its guest.
    #[error("the TPM of VM {0} has not come with its guest: swtpm has ended, or has no state")]
    NotThere(VmName),
    /// There is no secure memory for its key.
    #[error("no memory for the TPM's key: {0}")]
    Secret(#[from] SecretError),
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
    pub fn missing_key(&self) -> Option<MissingKey<'_>> {
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
            Self::NotThere(_) => Problem::new("tpm_lost", self.to_string()),
            Self::System { .. } | Self::Secret(_) => Problem::new("system", self.to_string()),
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
    /// Whether swtpm's directory is another one than the VM's, which gets each state.
    is_apart: bool,
}

impl TpmPlace {
    /// The files of this VM's TPM.
    pub fn of(task: &RunTask, run: &VmRunDirectory, keys: &Arc<VmKeys>, starter: &Starter) -> Self {
        let (spec, is_apart) = (task.spec.as_ref().clone(), keeps_tpm_apart(task, run));
        Self { spec, keys: Arc::clone(keys), starter: starter.clone(), is_apart }
    }

    /// Starts a swtpm with the present state, if that is the right one. `resumes` says that the
    /// guest goes on with its memory, which brings a state along.
    ///
    /// # Errors
    /// Also if the VM's key is unavailable ([`TpmError::missing_key`]).
    pub fn start(&self, run: &RunDirectory, resumes: bool) -> Result<Swtpm, TpmError> {
        let state = self.state_directory();
        let mut volume = self.open()?;
        let mut record = TpmRecord::read(&mut volume)?;
        let found = match self.is_apart {
            true => self.stored()?,
            false => self.state()?.map(|state| state.content),
        };
        let digest = found.as_deref().map(sha256);
        if record.settle_successor(&mut volume, digest.as_ref())? {
            tracing::info!("VM {}: its TPM has the state that came with its guest", self.spec.name);
        }
        record
            .judge(digest.as_ref())
            .map_err(|refusal| TpmError::State { path: state.join(STATE_FILE), refusal })?;
        match self.is_apart {
            true => self.place(found.as_deref()).map_err(self.failed("place the state of"))?,
            false => match DirBuilder::new().mode(0o700).create(&state) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(self.failed("create")(error));
                }
                _ => {}
            },
        }
        if !resumes {
            record.go_on_with(&mut volume, None)?;
        }
        record.set_in_use(&mut volume, true)?;
        let key = pipe_of(record.key().expose()).map_err(self.failed("hand over the key of"))?;
        volume.close()?;
        self.starter.start_tpm(run, &key).map_err(TpmError::Swtpm)
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(io::Error) -> TpmError {
        let path = self.state_directory();
        move |error| TpmError::System { action, path, error }
    }

    /// Where the state is in the VM's directory.
    fn state_directory(&self) -> PathBuf {
        self.spec.tpm_state_path()
    }

    fn open(&self) -> Result<OpenOwnVolume, OwnVolumeError> {
        open_record(&self.spec, &self.keys)
    }

    /// Records the present state, if it is new. Leaves the record open, which is opened if it is
    /// not. After an error it is closed.
    fn record(&self, open: &mut Option<OpenRecord>) -> Result<(), TpmError> {
        let Some(state) = self.state()? else { return Ok(()) };
        let mut opened = self.record_of(open)?;
        let digest = sha256(&state.content);
        match opened.record.judge(Some(&digest)) {
            Err(refusal) => {
                tracing::error!("VM {}: its TPM's state, while it runs: {refusal}", self.spec.name)
            }
            Ok(Verdict::Recorded) => {}
            Ok(Verdict::New | Verdict::Unrecorded) => {
                // A recorded state must survive a power cut, and the loss of the host if the VM's
                // directory does; otherwise its predecessor would look as if it had been put back.
                self.make_durable(&state)?;
                opened.record.record(&mut opened.volume, &digest)?;
                let generation = opened.record.generation();
                tracing::debug!("VM {}: its TPM's state is generation {generation}", self.spec.name);
            }
        }
        *open = Some(opened);
        Ok(())
    }

    fn record_of(&self, open: &mut Option<OpenRecord>) -> Result<OpenRecord, TpmError> {
        if let Some(opened) = open.take() {
            return Ok(opened);
        }
        let mut volume = self.open()?;
        let record = TpmRecord::read(&mut volume)?;
        Ok(OpenRecord { volume, record })
    }

    fn make_durable(&self, state: &State) -> Result<(), TpmError> {
        if self.is_apart {
            return self.store(&state.content).map_err(|errno| self.failed("store")(errno.into()));
        }
        let synced = state.file.sync_all().and_then(|()| state.directory.sync_all());
        synced.map_err(self.failed("sync"))
    }

    /// Records that the TPM has ended in order, with its present state.
    fn ended(&self, mut open: Option<OpenRecord>) -> Result<(), TpmError> {
        self.record(&mut open)?;
        let mut opened = self.record_of(&mut open)?;
        opened.record.set_in_use(&mut opened.volume, false)?;
        opened.close()
    }

    /// Connects to the gate that tells of new states; without one, watches swtpm's directory.
    fn changes(&self) -> io::Result<Changes> {
        match self.starter.tpm_gate()? {
            Some(gate) => Ok(Changes::Told(gate)),
            None => self.starter.watch_tpm().map(Changes::Watched),
        }
    }

    /// Returns swtpm's present permanent state, if there is one.
    fn state(&self) -> Result<Option<State>, TpmError> {
        let path = self.state_directory().join(STATE_FILE);
        let system = |error| TpmError::System { action: "read", path: path.clone(), error };
        let Some(opened) = self.starter.tpm_state().map_err(system)? else { return Ok(None) };
        let [file, directory] = opened.map(File::from);
        // The directory belongs to another user, who may put anything there.
        if !file.metadata().map_err(system)?.is_file() {
            return Err(system(io::Error::other("it is no file")));
        }
        let mut content = Vec::new();
        (&file).take(STATE_BYTES_MAX).read_to_end(&mut content).map_err(system)?;
        Ok(Some(State { content, file, directory }))
    }

    /// Returns the state in the VM's directory of a TPM that is kept apart, if there is one.
    fn stored(&self) -> Result<Option<Vec<u8>>, TpmError> {
        let read = match BY_PATH.open_volume(&self.state_directory()) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened.and_then(|opened| read_file(&*opened, STATE_FILE, STATE_BYTES_MAX as usize)),
        };
        read.map_err(|errno| self.failed("read")(errno.into()))
    }

    /// Stores a state in the VM's directory, in the place of its predecessor.
    fn store(&self, content: &[u8]) -> Result<(), Errno> {
        let directory = self.state_directory();
        let opened = match BY_PATH.open_volume(&directory) {
            Err(Errno::NOENT) => {
                BY_PATH.make_directory(&directory)?;
                BY_PATH.open_volume(&directory)?
            }
            opened => opened?,
        };
        replace_file(&*opened, STATE_FILE, content)
    }

    /// Gives swtpm the state of the VM's directory, or none, in its own.
    fn place(&self, content: Option<&[u8]>) -> io::Result<()> {
        let file = self.starter.place_tpm_state(content.is_none())?;
        match file.zip(content) {
            Some((file, content)) => File::from(file).write_all(content),
            None => Ok(()),
        }
    }
}

/// A record that is open. Until it is closed, the volume cannot be moved to another key.
struct OpenRecord {
    volume: OpenOwnVolume,
    record: TpmRecord,
}

impl OpenRecord {
    fn close(self) -> Result<(), TpmError> {
        Ok(self.volume.close()?)
    }
}

/// A state in swtpm's directory.
struct State {
    content: Vec<u8>,
    file: File,
    directory: File,
}

/// What becomes readable when there may be a new state.
#[derive(Debug)]
enum Changes {
    /// The gate, which answers the guest once the state is recorded.
    Told(StateGate),
    /// A watch of the directory (inotify(7)): an earlier program has started swtpm, without a gate.
    Watched(OwnedFd),
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
