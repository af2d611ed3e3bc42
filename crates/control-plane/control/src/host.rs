//! Hosts, as the control plane asks them: a trait, and the one of a hostd.
//!
//! Calls block, with a deadline of the implementation's own.

use std::path::Path;
use std::time::Duration;

use strongroom_host::client::{Client, ClientError};
use strongroom_host::protocol::{
    Changes, Datastore, DatastoreRequest, DiskName, Host as HostState, JudgeRequest, Judgement, ObservedVm,
    ObservedVms, Operation, OperationId, OperationRequest, Problem, Ticket, TicketRequest, VmSpec,
    VmStatistics,
};
use strongroom_types::{VmId, VolumeId};

/// Why a host did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It did not answer, so it may have done it, or it has no room for more now. Ask again.
    #[error("{0}")]
    Unreachable(String),
    /// It refused, and did nothing.
    #[error("{0}")]
    Refused(Problem),
}

/// A host.
pub trait Host: Send + Sync {
    /// How it is.
    ///
    /// # Errors
    /// As all of these: [`HostError`].
    fn state(&self) -> Result<HostState, HostError>;

    /// All its VMs.
    fn vms(&self) -> Result<ObservedVms, HostError>;

    /// One of them, if it has it.
    fn vm(&self, vm: VmId) -> Result<Option<ObservedVm>, HostError>;

    /// What a VM's guest asked of its disks, if it has the VM.
    fn statistics(&self, vm: VmId) -> Result<Option<VmStatistics>, HostError>;

    /// The same, of all VMs that run.
    fn all_statistics(&self) -> Result<Vec<VmStatistics>, HostError>;

    /// Whether a VM can be made as it is wanted; nothing is changed.
    fn check(&self, spec: &VmSpec) -> Result<(), HostError>;

    /// What speaks against a configuration being what the VM's supervisor wrote.
    fn judge(&self, request: &JudgeRequest) -> Result<Judgement, HostError>;

    /// Asks for an operation.
    fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, HostError>;

    /// How far an operation is; nothing if this run of the host does not know it.
    fn operation(&self, operation: OperationId) -> Result<Option<Operation>, HostError>;

    /// Asks to end an operation early.
    fn cancel(&self, operation: OperationId) -> Result<(), HostError>;

    /// Asks for a ticket.
    fn ticket(&self, vm: VmId, request: &TicketRequest) -> Result<Ticket, HostError>;

    /// What has changed after number `after`; waits for it.
    fn changes(&self, after: u64, wait: Duration) -> Result<Changes, HostError>;

    /// Has it use a directory as a datastore.
    fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, HostError>;

    /// Has it look through a datastore once more, for VMs that came or went without it.
    fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, HostError>;

    /// The id of the volume of a disk in a VM's directory, as its descriptor says it, unverified.
    fn volume(&self, directory: &Path, disk: &DiskName) -> Result<VolumeId, HostError>;
}

/// The hostd of this machine, by its socket.
///
/// Its calls are made on the runtime of [`new`](Self::new) and waited for, so they must come from
/// threads that may block.
pub struct LocalHostd {
    client: Client,
    runtime: tokio::runtime::Handle,
}

impl LocalHostd {
    /// The one that `client` asks.
    pub fn new(client: Client, runtime: tokio::runtime::Handle) -> Self {
        Self { client, runtime }
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T, ClientError>>) -> Result<T, HostError> {
        self.runtime.block_on(call).map_err(|error| match error {
            // Its queue is full: nothing was done, and it is to be asked again.
            ClientError::Refused { status: 429, problem } => HostError::Unreachable(problem.to_string()),
            ClientError::Refused { problem, .. } => HostError::Refused(problem),
            other => HostError::Unreachable(other.to_string()),
        })
    }

    /// As [`wait`](Self::wait); nothing if there is no such thing.
    fn find<T>(&self, call: impl Future<Output = Result<T, ClientError>>) -> Result<Option<T>, HostError> {
        let found = async {
            match call.await {
                Err(ClientError::Refused { status: 404, .. }) => Ok(None),
                answered => answered.map(Some),
            }
        };
        self.wait(found)
    }
}

impl Host for LocalHostd {
    fn state(&self) -> Result<HostState, HostError> {
        self.wait(self.client.host())
    }

    fn vms(&self) -> Result<ObservedVms, HostError> {
        self.wait(self.client.vms())
    }

    fn vm(&self, vm: VmId) -> Result<Option<ObservedVm>, HostError> {
        self.find(self.client.vm(vm))
    }

    fn statistics(&self, vm: VmId) -> Result<Option<VmStatistics>, HostError> {
        self.find(self.client.statistics(vm))
    }

    fn all_statistics(&self) -> Result<Vec<VmStatistics>, HostError> {
        self.wait(self.client.all_statistics())
    }

    fn check(&self, spec: &VmSpec) -> Result<(), HostError> {
        self.wait(self.client.check(spec))
    }

    fn judge(&self, request: &JudgeRequest) -> Result<Judgement, HostError> {
        self.wait(self.client.judge(request))
    }

    fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, HostError> {
        self.wait(self.client.operate(vm, request))
    }

    fn operation(&self, operation: OperationId) -> Result<Option<Operation>, HostError> {
        self.find(self.client.operation(operation))
    }

    fn cancel(&self, operation: OperationId) -> Result<(), HostError> {
        self.find(self.client.cancel(operation)).map(drop)
    }

    fn ticket(&self, vm: VmId, request: &TicketRequest) -> Result<Ticket, HostError> {
        self.wait(self.client.ticket(vm, request))
    }

    fn changes(&self, after: u64, wait: Duration) -> Result<Changes, HostError> {
        self.wait(self.client.changes(after, wait))
    }

    fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        self.wait(self.client.add_datastore(request))
    }

    fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        self.wait(self.client.look_through(request))
    }

    fn volume(&self, directory: &Path, disk: &DiskName) -> Result<VolumeId, HostError> {
        strongroom_datastore::file::describe(&directory.join(disk.as_str()))
            .map(|described| described.descriptor.volume)
            .map_err(|error| HostError::Refused(Problem::new("volume_unreadable", error.to_string())))
    }
}
