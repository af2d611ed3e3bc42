//! Waits until a guest has released a device.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use strongroom_host::protocol::Problem;
use strongroom_hypervisor::QmpError;
use strongroom_hypervisor::qemu::{DeviceId, HotPlugError};

use crate::machine::Machine;

/// How long a guest may take to release a device.
pub(super) const LETS_GO_WITHIN: Duration = Duration::from_secs(60);
/// After this time it is asked again: it may have been booting.
const ASKS_AGAIN_AFTER: Duration = Duration::from_secs(6);

/// A release of devices.
pub(super) struct Release<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// Wakes when QEMU has released a device, or may have.
    pub wakes: &'a Receiver<()>,
}

impl Release<'_> {
    /// Asks the guest to release a device, waits until it has, and removes the device's backend.
    ///
    /// # Errors
    /// `keeps` if the guest does not release it in time.
    pub(super) fn await_of(&self, device: &DeviceId, keeps: impl FnOnce() -> Problem) -> Result<(), Problem> {
        let (qemu, until) = (self.machine.qemu(), Instant::now() + LETS_GO_WITHIN);
        while qemu.is_plugged(device).map_err(|error| plug_problem(&error))? {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(keeps());
            }
            // At a second request, QEMU may answer that the first is in progress.
            if let Err(error) = qemu.unplug(device) {
                tracing::debug!("{}: {error}", device.in_machine());
            }
            await_news(self.wakes, left)?;
        }
        qemu.unplugged(device);
        Ok(())
    }
}

/// Waits until QEMU has released something, or may have, or it is time to ask again; at most
/// `left`.
///
/// # Errors
/// If the VM ends.
pub(super) fn await_news(wakes: &Receiver<()>, left: Duration) -> Result<(), Problem> {
    match wakes.recv_timeout(left.min(ASKS_AGAIN_AFTER)) {
        Ok(()) | Err(RecvTimeoutError::Timeout) => Ok(()),
        Err(RecvTimeoutError::Disconnected) => Err(ending()),
    }
}

pub(super) fn ending() -> Problem {
    Problem::new("stopping", "the VM is stopping")
}

pub(super) fn plug_problem(error: &HotPlugError) -> Problem {
    let code = match error {
        HotPlugError::Qmp(QmpError::NoPort) => "no_port",
        _ => "qemu",
    };
    Problem::new(code, error.to_string())
}
