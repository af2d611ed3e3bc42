//! Every operation, and what it touches. The server, its OpenAPI document and future roles all use
//! this one table.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The data that an operation reaches. None includes another: permission for one is no permission
/// for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Touches {
    /// Names, states, settings.
    None,
    /// Encrypted volumes as they are stored: the operation makes, moves or removes them, and sees
    /// none of their plaintext.
    Ciphertext,
    /// The guest's own data: its console, its screen, its disks' content.
    GuestData,
    /// Whether and how the guest runs.
    GuestControl,
}

impl Touches {
    /// Its name in the document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ciphertext => "ciphertext",
            Self::GuestData => "guest-data",
            Self::GuestControl => "guest-control",
        }
    }
}

/// The HTTP methods in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// Reads.
    Get,
    /// Makes an object or runs an operation.
    Post,
    /// Changes an object.
    Patch,
    /// Removes an object, or ends a task.
    Delete,
}

impl Method {
    /// The method's name in an HTTP request.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Its name, the `operationId` in the document.
    pub id: &'static str,
    /// Its method.
    pub method: Method,
    /// Its path, with parameters in braces.
    pub path: &'static str,
    /// What it touches.
    pub touches: Touches,
}

const fn op(id: &'static str, method: Method, path: &'static str, touches: Touches) -> Operation {
    Operation { id, method, path, touches }
}

/// Every operation.
pub const OPERATIONS: &[Operation] = {
    use Method::{Delete, Get, Patch, Post};
    use Touches::{Ciphertext, GuestControl, GuestData, None};
    &[
        op("vm_list", Get, "/v1/vms", None),
        op("vm_create", Post, "/v1/vms", Ciphertext),
        op("vm_clone", Post, "/v1/vms/{vm}/clone", Ciphertext),
        op("vm_template", Post, "/v1/vms/{vm}/template", Ciphertext),
        op("vm_register", Post, "/v1/vms/register", Ciphertext),
        op("vm_show", Get, "/v1/vms/{vm}", None),
        op("vm_set", Patch, "/v1/vms/{vm}", GuestControl),
        op("vm_delete", Delete, "/v1/vms/{vm}", Ciphertext),
        op("vm_unregister", Post, "/v1/vms/{vm}/unregister", Ciphertext),
        op("vm_start", Post, "/v1/vms/{vm}/start", GuestControl),
        op("vm_stop", Post, "/v1/vms/{vm}/stop", GuestControl),
        op("vm_restart", Post, "/v1/vms/{vm}/restart", GuestControl),
        op("vm_pause", Post, "/v1/vms/{vm}/pause", GuestControl),
        op("vm_suspend", Post, "/v1/vms/{vm}/suspend", GuestControl),
        op("vm_resume", Post, "/v1/vms/{vm}/resume", GuestControl),
        op("vm_reset", Post, "/v1/vms/{vm}/reset", GuestControl),
        op("vm_dump", Post, "/v1/vms/{vm}/dumps", GuestData),
        op("vm_dump_list", Get, "/v1/vms/{vm}/dumps", None),
        op("vm_dump_delete", Delete, "/v1/vms/{vm}/dumps/{dump}", Ciphertext),
        op("vm_snapshot_list", Get, "/v1/vms/{vm}/snapshots", None),
        op("vm_snapshot_create", Post, "/v1/vms/{vm}/snapshots", Ciphertext),
        op("vm_snapshot_delete", Delete, "/v1/vms/{vm}/snapshots/{snapshot}", Ciphertext),
        op("vm_snapshot_revert", Post, "/v1/vms/{vm}/snapshots/{snapshot}/revert", Ciphertext),
        op("vm_snapshot_schedule_show", Get, "/v1/vms/{vm}/snapshot-schedule", None),
        op("vm_snapshot_schedule_set", Patch, "/v1/vms/{vm}/snapshot-schedule", Ciphertext),
        op("vm_ticket", Post, "/v1/vms/{vm}/tickets", GuestData),
        op("vm_add_disk", Post, "/v1/vms/{vm}/disks", Ciphertext),
        op("vm_remove_disk", Delete, "/v1/vms/{vm}/disks/{disk}", Ciphertext),
        op("vm_resize_disk", Patch, "/v1/vms/{vm}/disks/{disk}", Ciphertext),
        op("vm_import_disk", Post, "/v1/vms/{vm}/disks/{disk}/import", GuestData),
        op("vm_rotate_key", Post, "/v1/vms/{vm}/key/rotate", Ciphertext),
        op("vm_cryptoperiod_set", Patch, "/v1/vms/{vm}/cryptoperiod", Ciphertext),
        op("vm_key_status", Get, "/v1/vms/{vm}/key-status", None),
        op("vm_stats", Get, "/v1/vms/{vm}/stats", None),
        op("volume_list", Get, "/v1/volumes", None),
        op("volume_limits", Get, "/v1/volumes/limits", None),
        op("volume_read", Post, "/v1/volumes/readings", Ciphertext),
        op("volume_change", Post, "/v1/volumes/changes", Ciphertext),
        op("volume_show", Get, "/v1/volumes/{volume}", None),
        op("datastore_list", Get, "/v1/datastores", None),
        op("datastore_add", Post, "/v1/datastores", None),
        op("datastore_show", Get, "/v1/datastores/{datastore}", None),
        op("datastore_remove", Delete, "/v1/datastores/{datastore}", None),
        op("datastore_scan", Get, "/v1/datastores/{datastore}/contents", None),
        op("datastore_rebuild", Post, "/v1/datastores/{datastore}/rebuild", Ciphertext),
        op("host_list", Get, "/v1/hosts", None),
        op("host_show", Get, "/v1/hosts/{host}", None),
        op("policy_list", Get, "/v1/policies", None),
        op("policy_create", Post, "/v1/policies", None),
        op("policy_show", Get, "/v1/policies/{policy}", None),
        op("policy_delete", Delete, "/v1/policies/{policy}", None),
        op("key_provider_list", Get, "/v1/key-providers", None),
        op("task_list", Get, "/v1/tasks", None),
        op("task_show", Get, "/v1/tasks/{task}", None),
        op("task_cancel", Delete, "/v1/tasks/{task}", None),
        op("event_list", Get, "/v1/events", None),
        op("event_stream", Get, "/v1/events/stream", None),
        op("alarm_list", Get, "/v1/alarms", None),
        op("openapi", Get, "/openapi.json", None),
        op("healthz", Get, "/healthz", None),
        op("readyz", Get, "/readyz", None),
        op("metrics", Get, "/metrics", None),
    ]
};

/// Returns the operation with this name.
pub fn operation(id: &str) -> Option<&'static Operation> {
    OPERATIONS.iter().find(|operation| operation.id == id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_operation_is_there_once() {
        let ids: HashSet<_> = OPERATIONS.iter().map(|operation| operation.id).collect();
        let calls: HashSet<_> =
            OPERATIONS.iter().map(|operation| (operation.method, operation.path)).collect();
        assert_eq!((ids.len(), calls.len()), (OPERATIONS.len(), OPERATIONS.len()));
    }

    #[test]
    fn whatever_gives_a_connection_to_a_guest_says_so() {
        assert_eq!(operation("vm_ticket").map(|found| found.touches), Some(Touches::GuestData));
        assert_eq!(operation("vm_list").map(|found| found.touches), Some(Touches::None));
    }
}
