//! The guest's serial line: its clients, and the log of its output.

use std::sync::Arc;

use strongroom_host::protocol::{Problem, VmSpec};

use crate::console::Console;
use crate::console_log::{ConsoleLog, LogSender};
use crate::keys::VmKeys;
use crate::starter::{QemuSocket, Starter};

/// The serial line of a VM that runs. A VM goes on without what could not be started of it.
#[derive(Debug, Default)]
pub struct Serial {
    console: Option<Console>,
    log: Option<ConsoleLog>,
}

impl Serial {
    /// Begins to read the line.
    pub fn start(spec: &VmSpec, keys: &Arc<VmKeys>, starter: &Starter) -> Self {
        let log = ConsoleLog::start(Box::new(spec.clone()), Arc::clone(keys))
            .inspect_err(|error| tracing::warn!("VM {}: no log of its console: {error}", spec.name))
            .ok();
        let sender = log.as_ref().map(ConsoleLog::sender);
        let console = starter
            .connect(QemuSocket::Console)
            .and_then(|guest| Console::start(guest, sender))
            .inspect_err(|error| tracing::warn!("VM {}: no console: {error}", spec.name))
            .ok();
        Self { console, log }
    }

    /// Ends both, when the log has all output.
    pub fn finish(self) {
        // The console's end drops its sender.
        if let Some(console) = self.console {
            console.finish();
        }
        if let Some(log) = self.log {
            log.finish();
        }
    }

    /// The console.
    ///
    /// # Errors
    /// If there is none.
    pub fn console(&self) -> Result<&Console, Problem> {
        self.console.as_ref().ok_or_else(none)
    }

    /// The log.
    ///
    /// # Errors
    /// If there is none.
    pub fn log(&self) -> Result<&ConsoleLog, Problem> {
        self.log.as_ref().ok_or_else(none)
    }

    /// Sends to the log, if there is one.
    pub fn log_sender(&self) -> Option<LogSender> {
        self.log.as_ref().map(ConsoleLog::sender)
    }
}

fn none() -> Problem {
    Problem::new("not_running", "the VM has no console now")
}
