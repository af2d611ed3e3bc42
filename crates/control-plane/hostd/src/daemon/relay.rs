//! The relays of VMs' memories: a process for one attempt, which has the host's identity, and
//! passes on what QEMU sends or is sent. It ends with hostd.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_host::orders::{RelayBirth, RelayReport};
use strongroom_host::protocol::Problem;
use strongroom_host::wire::{Wire, WireError, start_on_wire};
use strongroom_types::VmId;

/// How long a source's relay may take until the target admits it.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// How long a relay may take to end after the last byte: the other one has to agree.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The command that starts a relay.
#[derive(Clone, Debug)]
pub struct RelayProgram {
    /// The path of the program.
    pub path: PathBuf,
    /// The arguments that make it a relay.
    pub arguments: Vec<OsString>,
}

impl RelayProgram {
    /// Starts a relay, with the socket that it takes connections at, and waits until it takes part.
    ///
    /// # Errors
    /// If it cannot be started, or is not admitted. Nothing has passed then.
    pub fn start(&self, birth: &RelayBirth, socket: OwnedFd) -> Result<Relay, Problem> {
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new("relay", format!("the relay of the VM's memory cannot be started: {error}"))
        };
        let (wire, child) = start_on_wire(&self.path, &self.arguments).map_err(|error| failed(&error))?;
        let relay = Relay { wire, child };
        relay.wire.send(birth, &[socket.as_fd()]).map_err(|error| failed(&error))?;
        drop(socket);
        match relay.wire.receive_within::<RelayReport>(READY_WITHIN) {
            Ok((RelayReport::Ready, _)) => Ok(relay),
            Ok((RelayReport::Ended(problem), _)) => Err(problem.unwrap_or_else(|| failed(&"it has ended"))),
            Err(error) => Err(failed(&error)),
        }
    }
}

/// A relay. It is killed when it is dropped.
#[derive(Debug)]
pub struct Relay {
    wire: Wire,
    child: Child,
}

impl Relay {
    /// Waits for its end, after QEMU has sent everything.
    ///
    /// # Errors
    /// If something did not pass.
    pub fn end(self) -> Result<(), Problem> {
        match self.wire.receive_within::<RelayReport>(ENDS_WITHIN) {
            Ok((RelayReport::Ended(None), _)) => Ok(()),
            Ok((RelayReport::Ended(Some(problem)), _)) => Err(problem),
            Ok((RelayReport::Ready, _)) | Err(WireError::Silent(_)) => {
                Err(Problem::new("relay", "the relay of the VM's memory does not end"))
            }
            Err(error) => Err(Problem::new("relay", format!("the relay of the VM's memory: {error}"))),
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // Both fail only for one that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The relays of VMs that come to this host, one for each.
#[derive(Debug, Default)]
pub struct Relays(Mutex<BTreeMap<VmId, Relay>>);

impl Relays {
    /// Keeps a relay until the VM's next one, or until it is [ended](Self::end).
    pub fn keep(&self, vm: VmId, relay: Relay) {
        self.0.lock().insert(vm, relay);
    }

    /// Ends the relay of a VM, if there is one.
    pub fn end(&self, vm: VmId) {
        self.0.lock().remove(&vm);
    }
}
