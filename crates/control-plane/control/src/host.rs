//! The control plane's interface to hosts: a trait, and its implementation for a hostd.
//!
//! Calls block, with a timeout of the implementation's own.

use std::time::Duration;

use strongroom_host::client::{Client, ClientError};
use strongroom_host::protocol::{
    Changes, Datastore, DatastoreRequest, DiskName, FencingRequest, Host as HostState, JudgeRequest,
    Judgement, ObservedVm, ObservedVms, Operation, OperationId, OperationRequest, Problem, Readings,
    ReadingsRequest, Term, Ticket, TicketId, TicketRequest, VmSpec, VmStatistics,
};
use strongroom_types::{VmId, VolumeId};
use tokio::sync::watch;

/// Why a host did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// The host did not answer and may have done it, or it is overloaded. The request should be
    /// repeated.
    #[error("{0}")]
    Unreachable(String),
    /// The host refused, and did nothing.
    #[error("{0}")]
    Refused(Problem),
}

/// A host.
pub trait Host: Send + Sync {
    /// Sets the term of later requests.
    fn set_term(&self, term: Term);

    /// Sees to it that a request within the next two seconds needs no handshake. Does not wait.
    fn prepare(&self) {}

    /// Returns the state of the host.
    ///
    /// # Errors
    /// [`HostError`], as for all methods here.
    fn state(&self) -> Result<HostState, HostError>;

    /// Returns all its VMs.
    fn vms(&self) -> Result<ObservedVms, HostError>;

    /// Returns one VM, if the host has it.
    fn vm(&self, vm: VmId) -> Result<Option<ObservedVm>, HostError>;

    /// Returns those of the VMs that the host has.
    fn vms_of(&self, vms: &[VmId]) -> Result<Vec<ObservedVm>, HostError>;

    /// Returns a VM's disk counters, if the host has the VM.
    fn statistics(&self, vm: VmId) -> Result<Option<VmStatistics>, HostError>;

    /// Returns the disk counters of all running VMs.
    fn all_statistics(&self) -> Result<Vec<VmStatistics>, HostError>;

    /// Reads volumes of its VMs; each reading has its own answer, in the same order.
    fn read_volumes(&self, request: &ReadingsRequest) -> Result<Readings, HostError>;

    /// Checks whether the host can run a VM with this configuration. Changes nothing.
    fn check(&self, spec: &VmSpec) -> Result<(), HostError>;

    /// Returns the objections to a configuration as the one that the VM's supervisor wrote.
    fn judge(&self, request: &JudgeRequest) -> Result<Judgement, HostError>;

    /// Requests an operation.
    fn operate(&self, vm: VmId, request: &OperationRequest) -> Result<Operation, HostError>;

    /// Returns the state of an operation; `None` if this run of the host does not know it.
    fn operation(&self, operation: OperationId) -> Result<Option<Operation>, HostError>;

    /// Requests the cancellation of an operation.
    fn cancel(&self, operation: OperationId) -> Result<(), HostError>;

    /// Requests a ticket.
    fn ticket(&self, vm: VmId, request: &TicketRequest) -> Result<Ticket, HostError>;

    /// Ends a ticket that nobody has presented.
    fn void_ticket(&self, ticket: &TicketId) -> Result<(), HostError>;

    /// Waits for the changes after number `after`; `None` after [`end_changes`](Self::end_changes).
    fn changes(&self, after: u64, wait: Duration) -> Result<Option<Changes>, HostError>;

    /// Ends the calls of [`changes`](Self::changes) that wait now, and later ones, at once, and the
    /// connections that are open between requests.
    fn end_changes(&self);

    /// Makes the host use a directory as a datastore.
    fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, HostError>;

    /// Makes the host rescan a datastore for VMs that other programs added or removed.
    fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, HostError>;

    /// Has the host fence, or admit, another host of a datastore on a cluster.
    fn fence(&self, request: &FencingRequest) -> Result<(), HostError>;

    /// Ends the direction of the host, durably: it refuses all orders until it joins again.
    fn release(&self) -> Result<(), HostError>;

    /// Returns the volume id of a VM's disk, from its descriptor, unverified.
    fn volume(&self, vm: VmId, disk: &DiskName) -> Result<VolumeId, HostError>;
}

/// A hostd, of this machine or of another one.
///
/// Calls run on the runtime of [`new`](Self::new) and block the calling thread, which must be one
/// that may block.
pub struct Hostd {
    client: Client,
    runtime: tokio::runtime::Handle,
    /// Whether changes are no longer wanted.
    ended: watch::Sender<bool>,
}

impl Hostd {
    /// The hostd that `client` connects to.
    pub fn new(client: Client, runtime: tokio::runtime::Handle) -> Self {
        Self { client, runtime, ended: watch::Sender::new(false) }
    }

    fn wait<T>(&self, call: impl Future<Output = Result<T, ClientError>>) -> Result<T, HostError> {
        self.runtime.block_on(call).map_err(|error| match error {
            // Its queue is full. It did nothing, and the request should be repeated.
            ClientError::Refused { status: 429, problem } => HostError::Unreachable(problem.to_string()),
            ClientError::Refused { problem, .. } => HostError::Refused(problem),
            other => HostError::Unreachable(other.to_string()),
        })
    }

    /// As [`wait`](Self::wait); `None` if the object does not exist.
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

impl Host for Hostd {
    fn set_term(&self, term: Term) {
        self.client.set_term(term);
    }

    fn prepare(&self) {
        let client = self.client.clone();
        // A host that does not answer is noticed elsewhere.
        self.runtime.spawn(async move { drop(client.prepare().await) });
    }

    fn state(&self) -> Result<HostState, HostError> {
        self.wait(self.client.host())
    }

    fn vms(&self) -> Result<ObservedVms, HostError> {
        self.wait(self.client.vms())
    }

    fn vm(&self, vm: VmId) -> Result<Option<ObservedVm>, HostError> {
        self.find(self.client.vm(vm))
    }

    fn vms_of(&self, vms: &[VmId]) -> Result<Vec<ObservedVm>, HostError> {
        self.wait(self.client.vms_of(vms))
    }

    fn statistics(&self, vm: VmId) -> Result<Option<VmStatistics>, HostError> {
        self.find(self.client.statistics(vm))
    }

    fn all_statistics(&self) -> Result<Vec<VmStatistics>, HostError> {
        self.wait(self.client.all_statistics())
    }

    fn read_volumes(&self, request: &ReadingsRequest) -> Result<Readings, HostError> {
        self.wait(self.client.read_volumes(request))
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

    fn void_ticket(&self, ticket: &TicketId) -> Result<(), HostError> {
        self.wait(self.client.void_ticket(ticket))
    }

    fn changes(&self, after: u64, wait: Duration) -> Result<Option<Changes>, HostError> {
        let mut ended = self.ended.subscribe();
        self.wait(async {
            tokio::select! {
                changes = self.client.changes(after, wait) => changes.map(Some),
                _ = ended.wait_for(|ended| *ended) => Ok(None),
            }
        })
    }

    fn end_changes(&self) {
        self.ended.send_replace(true);
        self.client.end_connections();
    }

    fn add_datastore(&self, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        self.wait(self.client.add_datastore(request))
    }

    fn fence(&self, request: &FencingRequest) -> Result<(), HostError> {
        self.wait(self.client.fence(request))
    }

    fn look_through(&self, request: &DatastoreRequest) -> Result<Datastore, HostError> {
        self.wait(self.client.look_through(request))
    }

    fn release(&self) -> Result<(), HostError> {
        self.wait(self.client.release())
    }

    fn volume(&self, vm: VmId, disk: &DiskName) -> Result<VolumeId, HostError> {
        self.wait(self.client.volume(vm, disk))
    }
}
