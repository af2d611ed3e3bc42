//! The inventory as the program sees it that embeds the control plane: all of it.

use strongroom_api::datastore::Datastore;
use strongroom_api::task::{Task, TaskListQuery};
use strongroom_api::vm::{VmListQuery, VmSummary, VmView};
use strongroom_api::volume::{ReadVolumes, Volume, VolumeListQuery, VolumeReadings, VolumeView};
use strongroom_api::{Page, Problem};
use uuid::Uuid;

use super::Control;
use super::access::Rights;
use crate::records::Principal;

impl Control {
    fn all(&self) -> Rights {
        self.rights(Principal::Machine)
    }

    /// A page of VMs.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn list_vms(&self, query: &VmListQuery) -> Result<Page<VmSummary>, Problem> {
        self.list_vms_for(&self.all(), query)
    }

    /// A VM with all of its details.
    pub fn show_vm(&self, named: &str) -> Result<VmView, Problem> {
        self.show_vm_for(&self.all(), named)
    }

    /// All datastores.
    pub fn list_datastores(&self) -> Vec<Datastore> {
        self.list_datastores_for(&self.all())
    }

    /// A page of tasks, newest first.
    pub fn list_tasks(&self, query: &TaskListQuery) -> Result<Page<Task>, Problem> {
        self.list_tasks_for(Principal::Machine, query)
    }

    /// A task.
    pub fn show_task(&self, id: Uuid) -> Result<Task, Problem> {
        self.show_task_for(Principal::Machine, id)
    }

    /// A page of volumes.
    pub fn list_volumes(&self, query: &VolumeListQuery) -> Result<Page<Volume>, Problem> {
        self.list_volumes_for(&self.all(), query)
    }

    /// A volume with its snapshots.
    pub fn show_volume(&self, named: &str) -> Result<VolumeView, Problem> {
        self.show_volume_for(&self.all(), named)
    }

    /// Has hosts read volumes.
    pub fn read_volumes(&self, wanted: &ReadVolumes) -> Result<VolumeReadings, Problem> {
        self.read_volumes_for(&self.all(), wanted)
    }
}
