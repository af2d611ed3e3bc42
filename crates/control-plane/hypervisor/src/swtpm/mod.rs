//! swtpm, which emulates one TPM 2.0 for each machine.
//!
//! swtpm encrypts its state itself (AES-256-CBC and a MAC) with a key that it reads from a pipe, so
//! the key is in no file, argument or environment. It exits when QEMU closes its connection.
//!
//! - [`gate`]: a process between QEMU and swtpm, which holds answers back until the states that
//!   they rest on are recorded. It is started with swtpm, and ends with it.
//! - [`states`]: what the gate and the process that records states tell each other.

pub(crate) mod gate;
mod states;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Uid, chownat, fstat, open, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::path::Arg;
use rustix::process::{getegid, geteuid};
use thiserror::Error;

pub use self::states::{Notice, StateGate};
use crate::launch::{
    Become, Files, GateFiles, Isolation, Kills, LaunchError, Plan, Process, ProcessFiles, ProcessIdentity,
    Root, Shortfall, Visible, launch,
};
use crate::machine::{RunDirectory, SpecError, TpmSocket, validate_path};

/// The path of swtpm; no search path is used.
const SWTPM: &str = "/usr/bin/swtpm";
/// swtpm's file name of the permanent state, in its state directory.
pub const STATE_FILE: &str = "tpm2-00.permall";
/// swtpm reports a bad option within this time.
const FAILS_WITHIN: Duration = Duration::from_millis(100);
/// The most files in a state directory: the state, a temporary file, and a lock. swtpm makes no
/// more.
const STATE_FILES_MAX: usize = 16;

/// The path of swtpm; `None` if it is not installed.
pub fn find() -> Option<&'static Path> {
    Some(Path::new(SWTPM)).filter(|path| path.exists())
}

/// Why a machine has no TPM.
#[derive(Debug, Error)]
pub enum SwtpmError {
    /// swtpm is not installed.
    #[error("swtpm is not installed (Debian: swtpm)")]
    NotInstalled,
    /// Its directory or socket cannot be prepared.
    #[error("cannot prepare {path} for a TPM: {error}")]
    Prepare {
        /// The path.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// Its state directory contains files that swtpm does not make.
    #[error("{0} holds something else than a TPM's state")]
    NotState(PathBuf),
    /// A path cannot be passed to it.
    #[error(transparent)]
    Path(#[from] SpecError),
    /// The process could not be launched.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// swtpm exited with an error, for example because of a wrong key.
    #[error("swtpm does not start: {said}")]
    Failed {
        /// Its output.
        said: String,
    },
}

/// A running swtpm. Dropping this value does not affect it.
#[derive(Debug)]
pub struct Swtpm {
    process: Process,
    /// Its gate, if this process has started it.
    gate: Option<Process>,
    identity: ProcessIdentity,
    socket: TpmSocket,
}

impl Swtpm {
    /// Starts a swtpm, and a gate before it that listens in `run`. `state` is a directory with
    /// nothing else in it, which is given to swtpm's user. `key` is a pipe with the 32 bytes of the
    /// key that encrypts the state, and then the end. Without a key, for an unencrypted VM, the
    /// state is clear.
    ///
    /// Each new state has to be recorded by who connects to the gate ([`StateGate`]): the guest's
    /// command that has changed it is answered then.
    pub fn start(
        run: &RunDirectory,
        isolation: &Isolation<'_>,
        state: &Path,
        key: Option<OwnedFd>,
    ) -> Result<Self, SwtpmError> {
        validate_path(state)?;
        if find().is_none() {
            return Err(SwtpmError::NotInstalled);
        }
        let failed = |error: io::Error| SwtpmError::Prepare { path: state.to_owned(), error };
        // QEMU connects to the first socket, and who records states to the second.
        let (qemus, supervisors) = (listen(&run.tpm())?, listen(&run.tpm_states())?);
        give(CWD, run.tpm(), AtFlags::SYMLINK_NOFOLLOW, isolation.user)
            .map_err(|errno| SwtpmError::Prepare { path: run.tpm(), error: errno.into() })?;
        let of_qemu = isolation;
        let user = of_qemu.user_beside()?;
        let isolation = &user.isolation(of_qemu);
        give_state(state, isolation.user)?;
        let changes = gate::watch(state).map_err(|errno| failed(errno.into()))?;
        let (of_gate, control) = UnixStream::pair().map_err(failed)?;
        let directory = without_comma(state)?;
        let mut files = Files::default();
        let control = files.add(control.into());
        let mut arguments = vec!["socket".to_owned(), "--tpm2".to_owned(), "--terminate".to_owned()];
        let mut option = |name: &str, value: String| arguments.extend([name.to_owned(), value]);
        option("--ctrl", format!("type=unixio,clientfd={control}"));
        option("--tpmstate", format!("dir={directory},mode=0600"));
        option("--seccomp", "action=kill".to_owned());
        if let Some(key) = key {
            option("--key", format!("fd={},format=binary,mode=aes-256-cbc", files.add(key)));
        }
        let plan = Plan {
            becomes: Become::Program(SWTPM.into()),
            arguments,
            root: Root::Own,
            visible: vec![Visible::write(state)],
            ..Plan::of(isolation)
        };
        let process = launch(isolation, &plan, &files)?;
        if process.wait(FAILS_WITHIN) {
            return Err(SwtpmError::Failed { said: process.said() });
        }
        let identity = process.identity(isolation).map_err(failed)?;
        // From here on it is killed if the gate does not start.
        let mut swtpm = Self { process, gate: None, identity, socket: TpmSocket(run.tpm()) };
        let gate = GateFiles { qemu: qemus, swtpm: of_gate, changes, supervisors };
        match start_gate(of_qemu, gate) {
            Ok(gate) => swtpm.gate = Some(gate),
            Err(error) => {
                swtpm.kill();
                return Err(error.into());
            }
        }
        Ok(swtpm)
    }

    /// Adopts a running swtpm; `None` if it has ended.
    pub fn adopt(run: &RunDirectory, identity: ProcessIdentity) -> io::Result<Option<Self>> {
        let socket = TpmSocket(run.tpm());
        Ok(Process::adopt(identity)?.map(|process| Self { process, gate: None, identity, socket }))
    }

    /// Wraps a swtpm that another Strongroom process started or found on behalf of this one.
    pub fn elsewhere(
        run: &RunDirectory,
        identity: ProcessIdentity,
        files: ProcessFiles,
        killer: Arc<dyn Kills>,
    ) -> io::Result<Self> {
        let process = Process::elsewhere(identity, files, Vec::new(), killer)?;
        Ok(Self { process, gate: None, identity, socket: TpmSocket(run.tpm()) })
    }

    /// Duplicates the descriptors that another process needs.
    pub fn files(&self) -> io::Result<ProcessFiles> {
        self.process.files()
    }

    /// Its socket, for [`crate::MachineSpec::tpm`].
    pub fn socket(&self) -> TpmSocket {
        self.socket.clone()
    }

    /// The identity to record, so that another supervisor can adopt it.
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    /// Its pidfd, which is readable when it has ended.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.process.pidfd()
    }

    /// The walls that it lacks.
    pub fn shortfalls(&self) -> &[Shortfall] {
        self.process.shortfalls()
    }

    /// Waits for its end. Returns whether it has ended.
    pub fn wait(&self, within: Duration) -> bool {
        self.process.wait(within)
    }

    /// Its exit status, if it has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        self.process.status()
    }

    /// Kills it. Returns whether it is gone. Its gate ends with it.
    pub fn kill(&mut self) -> bool {
        let is_gone = self.process.kill();
        if let Some(gate) = &mut self.gate {
            gate.kill();
        }
        is_gone
    }

    /// The beginning of its output.
    pub fn said(&self) -> String {
        self.process.said()
    }
}

/// Starts a gate, with a user of its own.
fn start_gate(of_qemu: &Isolation<'_>, gate: GateFiles) -> Result<Process, LaunchError> {
    let user = of_qemu.user_beside()?;
    let isolation = &user.isolation(of_qemu);
    launch(isolation, &Plan { becomes: Become::TpmGate, ..Plan::of(isolation) }, &gate.into())
}

fn listen(path: &Path) -> Result<UnixListener, SwtpmError> {
    let failed = |error: io::Error| SwtpmError::Prepare { path: path.to_owned(), error };
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    UnixListener::bind(path).map_err(failed)
}

/// Takes a state from swtpm's user: nobody but this process's user writes there afterwards, and
/// nothing but the state is left there. It may be the state of a swtpm on another host, which
/// writes no more. `Ok` if there is none.
///
/// # Errors
/// If there is something else than a TPM's state.
pub fn take_state(state: &Path) -> Result<(), SwtpmError> {
    let failed = |errno: Errno| SwtpmError::Prepare { path: state.to_owned(), error: errno.into() };
    if matches!(state.symlink_metadata(), Err(error) if error.kind() == io::ErrorKind::NotFound) {
        return Ok(());
    }
    let directory = give_state(state, Some((geteuid().as_raw(), getegid().as_raw())))?;
    // Its former owner can add no more names.
    for entry in Dir::read_from(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if ![c".", c".."].contains(&entry.file_name())
            && entry.file_name().to_bytes() != STATE_FILE.as_bytes()
        {
            unlinkat(&directory, entry.file_name(), AtFlags::empty()).map_err(failed)?;
        }
    }
    Ok(())
}

/// Gives the state to swtpm's user, which is another one at each start, or to another user.
fn give_state(state: &Path, user: Option<(u32, u32)>) -> Result<OwnedFd, SwtpmError> {
    let failed = |errno: Errno| SwtpmError::Prepare { path: state.to_owned(), error: errno.into() };
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match open(state, flags | OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()) {
        Err(Errno::LOOP | Errno::NOTDIR) => return Err(SwtpmError::NotState(state.to_owned())),
        directory => directory.map_err(failed)?,
    };
    let mut files = 0;
    for entry in Dir::read_from(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if [c".", c".."].contains(&entry.file_name()) {
            continue;
        }
        let file =
            openat(&directory, entry.file_name(), flags | OFlags::PATH, Mode::empty()).map_err(failed)?;
        let stat = fstat(&file).map_err(failed)?;
        files += 1;
        // A file with a second hard link does not belong to this TPM alone.
        if files > STATE_FILES_MAX || !FileType::from_raw_mode(stat.st_mode).is_file() || stat.st_nlink != 1 {
            return Err(SwtpmError::NotState(state.to_owned()));
        }
        // By descriptor: the directory's former owner may swap names.
        give(&file, "", AtFlags::EMPTY_PATH, user).map_err(failed)?;
    }
    give(&directory, "", AtFlags::EMPTY_PATH, user).map_err(failed)?;
    Ok(directory)
}

/// Changes a file's owner.
fn give(directory: impl AsFd, path: impl Arg, flags: AtFlags, user: Option<(u32, u32)>) -> Result<(), Errno> {
    match user.filter(|_| geteuid().is_root()) {
        Some((uid, gid)) => {
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            chownat(directory, path, Some(uid), Some(gid), flags)
        }
        None => Ok(()),
    }
}

/// Checks a path for swtpm's options, in which a comma ends a value and cannot be escaped.
fn without_comma(path: &Path) -> Result<&str, SwtpmError> {
    let path_error = || SwtpmError::Path(SpecError::Path { path: path.to_owned() });
    path.to_str().filter(|path| !path.contains(',')).ok_or_else(path_error)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn of_a_state_that_is_taken_nothing_else_is_left() {
        let scratch = tempfile::tempdir().unwrap();
        let state = scratch.path().join("vtpm.state");
        take_state(&state).unwrap();
        assert!(!state.exists());
        std::fs::create_dir(&state).unwrap();
        for name in [STATE_FILE, ".lock", "tpm2-00.volatilestate"] {
            std::fs::write(state.join(name), name).unwrap();
        }
        take_state(&state).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, [STATE_FILE]);
        assert_eq!(std::fs::read(state.join(STATE_FILE)).unwrap(), STATE_FILE.as_bytes());
    }

    #[test]
    fn what_is_no_state_is_not_taken() {
        let scratch = tempfile::tempdir().unwrap();
        let path = |name: &str| scratch.path().join(name);
        std::fs::create_dir(path("other")).unwrap();
        std::fs::write(path("other/file"), "theirs").unwrap();
        symlink(path("other"), path("linked")).unwrap();
        std::fs::create_dir(path("state")).unwrap();
        std::fs::hard_link(path("other/file"), path("state").join(STATE_FILE)).unwrap();
        for place in ["linked", "state", "other/file"] {
            let refused = take_state(&path(place)).unwrap_err();
            assert!(matches!(refused, SwtpmError::NotState(_)), "{place}: {refused}");
        }
        assert!(path("other/file").exists());
    }
}
