//! Starting a machine: what it needs, in the order in which it is needed.

use std::io;
use std::os::unix::fs::{FileTypeExt, lchown};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::geteuid;

use super::{Qemu, QemuError, QemuIdentity, QemuProgram, RunDirectory, STARTS_WITHIN, expect_peer};
use crate::firmware::Ovmf;
use crate::kvm;
use crate::launch::{Become, Files, Isolation, Plan, Process, Visible, launch};
use crate::machine::{
    Accelerator, Boot, CdromImage, Connection, Firmware, HostFacts, MachineSpec, arguments,
};
use crate::network::{self, NetworkState};
use crate::qmp::Qmp;

/// How long to wait before the socket that QEMU is to make is looked for again.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// From QEMU's hanging up to its end.
const HANGS_UP_BEFORE: Duration = Duration::from_secs(1);

impl Qemu {
    /// Starts a machine. Its processors stand still until [`Qmp::cont`].
    ///
    /// The disks' servers must listen, and swtpm if there is to be a TPM. As root, the sockets of the disks are given to
    /// the VM's user.
    pub fn start(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        Self::start_with(program, spec, run, isolation, &[])
    }

    /// The same, for a machine that gets its memory and its devices' state by [`Qmp::load_memory`] before it can run.
    pub fn start_waiting(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
    ) -> Result<Self, QemuError> {
        Self::start_with(program, spec, run, isolation, &["-incoming", "defer"])
    }

    fn start_with(
        program: &QemuProgram,
        spec: &MachineSpec,
        run: &RunDirectory,
        isolation: &Isolation<'_>,
        more: &[&str],
    ) -> Result<Self, QemuError> {
        spec.validate()?;
        let kvm = runs_on_kvm(spec.accelerator, program)?;
        let ovmf = match spec.firmware {
            Firmware::Bios => None,
            Firmware::Uefi { .. } => Some(Ovmf::find()?),
        };
        remove_old_sockets(run)?;
        give_sockets(spec, isolation)?;
        let mut files = Files::default();
        let (mut networks, mut connections, mut companions) = (Vec::new(), Vec::new(), Companions::default());
        for nic in &spec.nics {
            let ready = network::prepare(&nic.backend, isolation)?;
            companions.0.extend(ready.processes);
            let file = ready.file.map(|file| files.add(file).to_string());
            connections.push(connection(&ready.state, file));
            networks.push(ready.state);
        }
        let cdrom = spec.cdrom.as_ref().map(CdromImage::duplicate).transpose();
        let cdrom = cdrom.map_err(|error| QemuError::System {
            action: "hand over the image in its CD-ROM drive",
            error,
        })?;
        let host = HostFacts {
            version: program.version(),
            kvm,
            connections,
            ovmf_code: ovmf.map(|ovmf| ovmf.code),
            cdrom: cdrom.map(|image| files.add(image)),
        };
        let mut arguments = arguments(spec, run, &host);
        arguments.extend(more.iter().map(ToString::to_string));
        let plan = Plan {
            becomes: Become::Program(program.path().to_owned()),
            arguments,
            groups: if kvm { kvm::group().into_iter().collect() } else { Vec::new() },
            visible: visible(spec, run, kvm),
            ..Plan::of(isolation)
        };
        let mut process = launch(isolation, &plan, &files)?;
        // QEMU has them now, and alone: that it is gone is seen at their other ends.
        drop(files);
        match greet(&process, run, isolation) {
            Ok((qmp, identity)) => {
                Ok(Self { process, identity, qmp, networks, companions: companions.keep() })
            }
            Err(error) => {
                process.kill();
                Err(error)
            }
        }
    }
}

/// Processes beside QEMU, which are killed if it does not come to be.
#[derive(Default)]
struct Companions(Vec<Process>);

impl Companions {
    fn keep(mut self) -> Vec<Process> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Companions {
    fn drop(&mut self) {
        for process in &mut self.0 {
            process.kill();
        }
    }
}

fn runs_on_kvm(accelerator: Accelerator, program: &QemuProgram) -> Result<bool, QemuError> {
    match (accelerator, accelerator != Accelerator::Tcg && program.kvm().is_ok()) {
        (Accelerator::Kvm, false) => {
            Err(QemuError::NoKvm(program.kvm().err().unwrap_or_default().to_owned()))
        }
        (_, works) => Ok(works),
    }
}

/// How QEMU is told of a connection that it has under a number or name.
pub(super) fn connection(state: &NetworkState, file: Option<String>) -> Connection {
    match (state, file) {
        (NetworkState::Passt, Some(file)) => Connection::Stream(file),
        (NetworkState::Tap(_), Some(file)) => Connection::Tap(file),
        _ => Connection::RestrictedUser,
    }
}

/// Sockets that a killed QEMU has left would be connected to in the place of the new ones.
fn remove_old_sockets(run: &RunDirectory) -> Result<(), QemuError> {
    for path in [run.qmp(), run.console(), run.vnc(), run.guest_agent()] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(QemuError::Prepare { path, error });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lets the VM's user, and nobody else but root, connect to the disks.
fn give_sockets(spec: &MachineSpec, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    spec.sockets().try_for_each(|path| give_socket(path, isolation))
}

/// The same for one, which has to be there: QEMU would wait for it without an end, and its guest with it.
pub(super) fn give_socket(path: &Path, isolation: &Isolation<'_>) -> Result<(), QemuError> {
    let failed = |error| QemuError::Prepare { path: path.to_owned(), error };
    if !std::fs::symlink_metadata(path).map_err(failed)?.file_type().is_socket() {
        return Err(failed(io::Error::other("it is no socket")));
    }
    match isolation.user.filter(|_| geteuid().is_root()) {
        Some((uid, gid)) => lchown(path, Some(uid), Some(gid)).map_err(failed),
        None => Ok(()),
    }
}

/// What of the host's files the machine is made of. Sockets are seen by their directories, so that a server may make a
/// new one; whose they are is a wall of its own.
fn visible(spec: &MachineSpec, run: &RunDirectory, kvm: bool) -> Vec<Visible> {
    let mut visible = vec![Visible::write(run.path())];
    let disks = run.disks();
    if disks.is_dir() {
        visible.push(Visible::read(disks));
    }
    let tpm = spec.tpm.as_ref().map(|tpm| tpm.0.as_path());
    visible.extend(spec.sockets().chain(tpm).filter_map(|socket| socket.parent()).map(Visible::read));
    if kvm {
        visible.push(Visible::device(kvm::DEVICE));
    }
    if let Boot::DirectKernel { kernel, initrd, .. } = &spec.boot {
        visible.push(Visible::read(kernel));
        visible.extend(initrd.as_ref().map(Visible::read));
    }
    visible
}

/// Waits for QMP's socket, and makes sure of who listens.
fn greet(
    process: &Process,
    run: &RunDirectory,
    isolation: &Isolation<'_>,
) -> Result<(Qmp, QemuIdentity), QemuError> {
    let until = Instant::now() + STARTS_WITHIN;
    let qmp = loop {
        match UnixStream::connect(run.qmp()) {
            Ok(socket) => match Qmp::greet(socket, until.saturating_duration_since(Instant::now())) {
                Ok(qmp) => break qmp,
                // It listens before it has looked at all that it was told.
                Err(_) if process.wait(HANGS_UP_BEFORE) => {
                    return Err(QemuError::Failed { said: process.said() });
                }
                Err(error) => return Err(error.into()),
            },
            Err(_) if process.wait(LOOK_AGAIN) => return Err(QemuError::Failed { said: process.said() }),
            Err(_) if Instant::now() > until => {
                return Err(QemuError::Silent { within: STARTS_WITHIN, said: process.said() });
            }
            Err(_) => {}
        }
    };
    let identity = process
        .identity(isolation)
        .map_err(|error| QemuError::System { action: "read when QEMU began", error })?;
    expect_peer(&qmp, identity, run)?;
    Ok((qmp, identity))
}
