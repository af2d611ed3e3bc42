//! What answers the requests of the control socket and the port.
//!
//! [`Hostd`](super::Hostd) runs VMs. Simulated hosts, with which a large site is measured, answer
//! by the same server, with the same terms, queue and changes, from VMs that are states alone.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use strongroom_host::protocol::{
    Changes, Datastore, DatastoreRequest, FencingRequest, Host, JudgeRequest, Judgement, ObservedVm,
    ObservedVms, Operation, OperationId, OperationRequest, Problem, Readings, ReadingsRequest, Ticket,
    TicketId, TicketRequest, VmSpec, VmStatistics,
};
use strongroom_types::VmId;

use super::term::Terms;
use super::vms::no_such_vm;
use super::{Hostd, operations, statistics, volume_readings};

/// A host behind the server. The server checks formats and terms; every refusal is a [`Problem`].
pub trait HostService: Send + Sync + 'static {
    /// The terms that its control planes have begun.
    fn terms(&self) -> &Terms;

    /// Returns the changes after a number, as soon as there are some, and at the latest after
    /// `wait`.
    fn changes_after(self: Arc<Self>, after: u64, wait: Duration) -> impl Future<Output = Changes> + Send;

    /// Returns the state of the host.
    fn host(self: Arc<Self>) -> impl Future<Output = Result<Host, Problem>> + Send;

    /// Returns all VMs, with the number of a change that all of them include.
    fn observed(&self) -> ObservedVms;

    /// Returns a VM, if the host has it.
    fn vm(&self, vm: VmId) -> Option<ObservedVm>;

    /// Returns those of the VMs that the host has.
    fn vms_of(&self, vms: &[VmId]) -> Vec<ObservedVm>;

    /// Returns the disk counters of all running VMs.
    fn all_statistics(self: Arc<Self>) -> impl Future<Output = Vec<VmStatistics>> + Send;

    /// Returns the disk counters of a VM.
    fn statistics(self: Arc<Self>, vm: VmId) -> impl Future<Output = Result<VmStatistics, Problem>> + Send;

    /// Reads volumes; a reading that fails has a problem of its own.
    fn read_volumes(
        self: Arc<Self>,
        request: ReadingsRequest,
    ) -> impl Future<Output = Result<Readings, Problem>> + Send;

    /// Checks whether the host can run a VM with this configuration.
    fn check(self: Arc<Self>, vm: VmId, spec: VmSpec) -> impl Future<Output = Result<(), Problem>> + Send;

    /// Returns the objections to a configuration as the one that the VM's supervisor wrote.
    fn judge(
        self: Arc<Self>,
        vm: VmId,
        request: JudgeRequest,
    ) -> impl Future<Output = Result<Judgement, Problem>> + Send;

    /// Queues an operation, or finds the one with the same id.
    ///
    /// # Errors
    /// If the queue is full, or another operation has the same id.
    fn submit(&self, vm: VmId, request: OperationRequest) -> Result<Operation, Problem>;

    /// Returns the state of an operation, if this run of the host knows it.
    fn operation(&self, operation: OperationId) -> Option<Operation>;

    /// Returns the state of an operation once it has ended, or after `within`.
    fn ended(
        self: Arc<Self>,
        operation: OperationId,
        within: Duration,
    ) -> impl Future<Output = Option<Operation>> + Send;

    /// Cancels an operation, if this run of the host knows it.
    fn cancel(&self, operation: OperationId) -> Option<Operation>;

    /// Makes a ticket.
    ///
    /// # Errors
    /// If the VM has no such thing to reach, or there are too many tickets.
    fn ticket(&self, vm: VmId, request: TicketRequest) -> Result<Ticket, Problem>;

    /// Ends a ticket that nobody has presented, if there is such a one.
    fn void_ticket(&self, ticket: &TicketId);

    /// Makes the host use a directory as a datastore.
    fn add_datastore(
        self: Arc<Self>,
        request: DatastoreRequest,
    ) -> impl Future<Output = Result<Datastore, Problem>> + Send;

    /// Rescans a datastore for VMs that other programs added or removed.
    fn look_through(
        self: Arc<Self>,
        request: DatastoreRequest,
    ) -> impl Future<Output = Result<Datastore, Problem>> + Send;

    /// Fences, or admits, another host of a datastore.
    fn fence(self: Arc<Self>, request: FencingRequest) -> impl Future<Output = Result<(), Problem>> + Send;
}

impl HostService for Hostd {
    fn terms(&self) -> &Terms {
        &self.terms
    }

    async fn changes_after(self: Arc<Self>, after: u64, wait: Duration) -> Changes {
        self.queue.with_ended(self.changes.after(after, wait).await)
    }

    async fn host(self: Arc<Self>) -> Result<Host, Problem> {
        self.own_state().await
    }

    fn observed(&self) -> ObservedVms {
        // The number is read first, so that changes made meanwhile are reported again.
        let number = self.changes.number();
        ObservedVms { epoch: self.changes.epoch(), number, vms: self.vms.all() }
    }

    fn vm(&self, vm: VmId) -> Option<ObservedVm> {
        self.vms.get(vm)
    }

    fn vms_of(&self, vms: &[VmId]) -> Vec<ObservedVm> {
        vms.iter().filter_map(|vm| self.vms.get(*vm)).collect()
    }

    async fn all_statistics(self: Arc<Self>) -> Vec<VmStatistics> {
        statistics::of_all(&self).await
    }

    async fn statistics(self: Arc<Self>, vm: VmId) -> Result<VmStatistics, Problem> {
        statistics::of_vm(&self, vm).await
    }

    async fn read_volumes(self: Arc<Self>, request: ReadingsRequest) -> Result<Readings, Problem> {
        volume_readings::read(&self, request).await
    }

    async fn check(self: Arc<Self>, vm: VmId, spec: VmSpec) -> Result<(), Problem> {
        operations::check(&self, vm, spec).await
    }

    async fn judge(self: Arc<Self>, vm: VmId, request: JudgeRequest) -> Result<Judgement, Problem> {
        operations::judge(&self, vm, request).await
    }

    fn submit(&self, vm: VmId, request: OperationRequest) -> Result<Operation, Problem> {
        let operation = self.queue.submit(vm, request)?;
        self.work.notify_one();
        Ok(operation)
    }

    fn operation(&self, operation: OperationId) -> Option<Operation> {
        self.queue.get(operation)
    }

    async fn ended(self: Arc<Self>, operation: OperationId, within: Duration) -> Option<Operation> {
        self.queue.ended(operation, within).await
    }

    fn cancel(&self, operation: OperationId) -> Option<Operation> {
        self.queue.cancel(operation)
    }

    fn ticket(&self, vm: VmId, request: TicketRequest) -> Result<Ticket, Problem> {
        let now = self.vms.get(vm).ok_or_else(|| no_such_vm(vm))?;
        self.make_ticket(&now, request)
    }

    fn void_ticket(&self, ticket: &TicketId) {
        self.tickets.void(ticket);
    }

    async fn add_datastore(self: Arc<Self>, request: DatastoreRequest) -> Result<Datastore, Problem> {
        operations::blocking(move || self.add_datastore_now(request)).await?
    }

    async fn look_through(self: Arc<Self>, request: DatastoreRequest) -> Result<Datastore, Problem> {
        operations::blocking(move || self.look_through_now(&request.path)).await?
    }

    async fn fence(self: Arc<Self>, request: FencingRequest) -> Result<(), Problem> {
        operations::blocking(move || self.fence_now(request)).await?
    }
}
