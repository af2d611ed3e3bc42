//! The monitor, which speaks QMP with QEMU for the process that holds a VM's keys.
//!
//! QMP is JSON, and a captured QEMU can send anything. So a process of its own, the *monitor*,
//! parses it. It has no key, file, privilege or network, a user of its own, and two sockets: QEMU's
//! QMP, and one of the VM's supervisor.
//!
//! ```text
//! supervisor                        monitor                     QEMU
//!   a request, its files   -->        commands of QMP    -->
//!                                     JSON               <--
//!   packets of fixed form  <--
//! ```
//!
//! - [`said`]: those packets. The decoder bounds everything that a captured QEMU or monitor can
//!   send to the supervisor. It does not recurse, and an unknown packet ends the monitor.
//! - [`request`]: the requests. They are JSON: a monitor may trust the supervisor, which could do
//!   worse.
//! - [`connection`]: the supervisor's end of the packets.
//! - [`process`]: the monitor. [`start`]: starts it, so that it dies with the process that started
//!   it.
//! - [`Monitor`]: the supervisor's side.
//!
//! A monitor whose QEMU closes the connection or sends invalid data reports that and exits. A
//! monitor that dies, sends invalid data itself or does not answer is lost, and can be replaced
//! while the machine runs ([`Monitor::replace`]).

pub(crate) mod connection;
pub(crate) mod process;
pub(crate) mod request;
pub(crate) mod said;
mod start;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use uuid::Uuid;

use self::connection::Connection;
pub use self::connection::{Loss, NotGreeted};
use self::request::Request;
use self::said::Answer;
pub use self::start::MonitorProcess;
use crate::machine::{DiskAttachment, Link, Nic};
use crate::network::NetworkState;
use crate::qmp::{
    ANSWERS_WITHIN, MigrationProgress, MigrationSettings, PowerEvent, QmpError, RunStatus, Transfer,
};
use crate::version::Version;

/// Timeout of a monitor, which itself waits for QEMU for [`ANSWERS_WITHIN`]. It is longer, so that
/// the monitor can report a silent QEMU.
const WAITS_FOR: Duration = Duration::from_secs(ANSWERS_WITHIN.as_secs() + 5);

/// The supervisor's connection to a machine's monitor. Threads may share it; a monitor answers
/// requests one after the other.
#[derive(Debug)]
pub struct Monitor(Mutex<Arc<Connection>>);

impl Monitor {
    /// Waits until QEMU has greeted the monitor at the other end.
    ///
    /// # Errors
    /// If the greeting does not come within that time.
    pub fn greet(socket: OwnedFd, within: Duration) -> Result<Self, NotGreeted> {
        Ok(Self(Mutex::new(Arc::new(Connection::greet(socket, within)?))))
    }

    /// Switches to another monitor of the same machine. Unanswered requests to the former one get
    /// an error, and events may have been missed.
    ///
    /// # Errors
    /// As [`Self::greet`]. The former monitor then stays.
    pub fn replace(&self, socket: OwnedFd, within: Duration) -> Result<(), NotGreeted> {
        let other = Arc::new(Connection::greet(socket, within)?);
        *self.0.lock() = other;
        Ok(())
    }

    /// Returns why the monitor was lost, if it was.
    pub fn lost(&self) -> Option<Loss> {
        self.connection().lost()
    }

    /// QEMU's version.
    pub fn version(&self) -> Version {
        self.connection().version()
    }

    /// Waits for the next event; `Ok(None)` after the timeout.
    ///
    /// # Errors
    /// [`QmpError::Over`] once the connection has ended and all earlier events were returned.
    pub fn next_event(&self, within: Duration) -> Result<Option<PowerEvent>, QmpError> {
        self.connection().next_event(Instant::now() + within)
    }

    /// Returns whether the machine runs.
    pub fn status(&self) -> Result<RunStatus, QmpError> {
        self.ask(Request::Status, &[], |answer| match answer {
            Answer::Status(status) => Some(status),
            _ => None,
        })
    }

    /// Resumes the processors.
    pub fn cont(&self) -> Result<(), QmpError> {
        self.done(Request::Continue, &[])
    }

    /// Pauses the processors, after all disk requests in flight are completed.
    pub fn stop(&self) -> Result<(), QmpError> {
        self.done(Request::Stop, &[])
    }

    /// Presses the power button (ACPI). The guest decides what to do.
    pub fn press_power_button(&self) -> Result<(), QmpError> {
        self.done(Request::PressPowerButton, &[])
    }

    /// Presses the reset button.
    pub fn reset(&self) -> Result<(), QmpError> {
        self.done(Request::Reset, &[])
    }

    /// Cuts the machine's power. QEMU exits in an orderly way.
    pub fn quit(&self) -> Result<(), QmpError> {
        match self.done(Request::Quit, &[]) {
            // QEMU may exit before it answers.
            Err(QmpError::Over(_)) if self.lost() == Some(Loss::Qemu) => Ok(()),
            answered => answered,
        }
    }

    /// Begins to save the memory, as [`Qmp::save_memory`](crate::Qmp::save_memory).
    ///
    /// # Errors
    /// QEMU's error, also if a device's state cannot be saved.
    pub fn save_memory(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.done(Request::SaveMemory, &[into])
    }

    /// Cancels saving. A machine that is paused stays so.
    ///
    /// # Errors
    /// QEMU's error. Succeeds if nothing is being saved.
    pub fn end_saving(&self) -> Result<(), QmpError> {
        self.done(Request::EndSaving, &[])
    }

    /// Loads the memory, as [`Qmp::load_memory`](crate::Qmp::load_memory).
    ///
    /// # Errors
    /// QEMU's error.
    pub fn load_memory(&self, from: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.done(Request::LoadMemory, &[from])
    }

    /// Returns the progress of saving or loading.
    ///
    /// # Errors
    /// QEMU's error; [`QmpError::Over`] if QEMU rejected the memory that it was to load.
    pub fn transfer(&self) -> Result<Transfer, QmpError> {
        self.ask(Request::Transfer, &[], transfer)
    }

    /// Has the machine listen for its memory, as
    /// [`Qmp::receive_memory`](crate::Qmp::receive_memory).
    ///
    /// # Errors
    /// QEMU's error.
    pub fn receive_memory(&self, socket: &Path, settings: MigrationSettings) -> Result<(), QmpError> {
        self.done(Request::ReceiveMemory { socket: socket.to_owned(), settings }, &[])
    }

    /// Begins to send the memory, as [`Qmp::send_memory`](crate::Qmp::send_memory).
    /// [`end_saving`](Self::end_saving) cancels it.
    ///
    /// # Errors
    /// QEMU's error, also if a device cannot move.
    pub fn send_memory(&self, socket: &Path, settings: MigrationSettings) -> Result<(), QmpError> {
        self.done(Request::SendMemory { socket: socket.to_owned(), settings }, &[])
    }

    /// Sends the rest, as [`Qmp::switch_over`](crate::Qmp::switch_over).
    ///
    /// # Errors
    /// QEMU's error.
    pub fn switch_over(&self) -> Result<(), QmpError> {
        self.done(Request::SwitchOver, &[])
    }

    /// Returns the progress of sending or receiving.
    ///
    /// # Errors
    /// QEMU's error; [`QmpError::Over`] if QEMU rejected the memory that it was to load.
    pub fn migration(&self) -> Result<MigrationProgress, QmpError> {
        self.ask(Request::Migration, &[], |answer| match answer {
            Answer::Migration(progress) => Some(progress),
            _ => None,
        })
    }

    /// Begins to dump the memory, as [`Qmp::begin_dump`](crate::Qmp::begin_dump).
    ///
    /// # Errors
    /// QEMU's error, also while another dump is in progress.
    pub fn begin_dump(&self, into: BorrowedFd<'_>) -> Result<(), QmpError> {
        self.done(Request::BeginDump, &[into])
    }

    /// Returns the progress of the last dump; completed if there was none. Only the event has the
    /// reason of a failure.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn dumped(&self) -> Result<Transfer, QmpError> {
        self.ask(Request::Dumped, &[], transfer)
    }

    /// Returns the machine's generation id (vmgenid), if it has one.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn generation_id(&self) -> Result<Option<Uuid>, QmpError> {
        self.ask(Request::GenerationId, &[], |answer| match answer {
            Answer::GenerationId(id) => Some(id),
            _ => None,
        })
    }

    /// Returns whether KVM runs its processors.
    ///
    /// # Errors
    /// QEMU's error.
    pub fn runs_on_kvm(&self) -> Result<bool, QmpError> {
        self.ask(Request::RunsOnKvm, &[], yes_or_no)
    }

    /// Returns the number of processors.
    ///
    /// # Errors
    /// QEMU's error, as for the next four.
    pub fn cpu_count(&self) -> Result<u64, QmpError> {
        self.ask(Request::CpuCount, &[], count)
    }

    /// Plugs a processor in; [`QmpError::NoPort`] if the machine has no place for it.
    pub fn plug_cpu(&self) -> Result<(), QmpError> {
        self.done(Request::PlugCpu, &[])
    }

    /// Asks the guest to release the last processor that was plugged in.
    /// [`PowerEvent::DeviceDeleted`](crate::PowerEvent::DeviceDeleted) reports the release.
    pub fn unplug_cpu(&self) -> Result<(), QmpError> {
        self.done(Request::UnplugCpu, &[])
    }

    /// Returns the size of the guest's memory, in bytes.
    pub fn memory_bytes(&self) -> Result<u64, QmpError> {
        self.ask(Request::MemoryBytes, &[], count)
    }

    /// Plugs a module of memory of this size in.
    pub fn plug_memory(&self, bytes: u64) -> Result<(), QmpError> {
        self.done(Request::PlugMemory { bytes }, &[])
    }

    pub(crate) fn plug_disk(&self, name: String, disk: DiskAttachment) -> Result<(), QmpError> {
        self.done(Request::PlugDisk { name, disk }, &[])
    }

    pub(crate) fn plug_nic(
        &self,
        name: String,
        nic: Nic,
        network: NetworkState,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(), QmpError> {
        self.done(Request::PlugNic { name, nic, network }, file.as_slice())
    }

    pub(crate) fn set_link(&self, name: String, link: Link) -> Result<(), QmpError> {
        self.done(Request::SetLink { name, link }, &[])
    }

    pub(crate) fn unplug(&self, name: String) -> Result<(), QmpError> {
        self.done(Request::Unplug { name }, &[])
    }

    pub(crate) fn unplugged(&self, name: String) -> Result<(), QmpError> {
        self.done(Request::Unplugged { name }, &[])
    }

    pub(crate) fn is_plugged(&self, name: String) -> Result<bool, QmpError> {
        self.ask(Request::IsPlugged { name }, &[], yes_or_no)
    }

    fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.0.lock())
    }

    fn done(&self, request: Request, files: &[BorrowedFd<'_>]) -> Result<(), QmpError> {
        self.ask(request, files, |answer| (answer == Answer::Done).then_some(()))
    }

    /// Sends a request, and extracts an answer of the matching kind.
    fn ask<T>(
        &self,
        request: Request,
        files: &[BorrowedFd<'_>],
        expected: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T, QmpError> {
        let connection = self.connection();
        let answer = connection.ask(request, files, WAITS_FOR)?;
        expected(answer).ok_or_else(|| connection.give_up("the monitor answers another question"))
    }
}

fn transfer(answer: Answer) -> Option<Transfer> {
    match answer {
        Answer::Transfer(transfer) => Some(transfer),
        _ => None,
    }
}

fn count(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Count(count) => Some(count),
        _ => None,
    }
}

fn yes_or_no(answer: Answer) -> Option<bool> {
    match answer {
        Answer::YesOrNo(answer) => Some(answer),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
