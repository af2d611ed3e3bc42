//! Every operation, what it touches, and who may call it. The server, its OpenAPI document and its
//! roles all use this one table.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::AccessKind;
use crate::guard::{Guard, Needs};
use crate::privilege::Privilege;

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
    /// Who may call it.
    pub guard: Guard,
    /// The kind of entry that the access log has of it once it is done; `None` for one that changes
    /// nothing.
    pub on_record: Option<AccessKind>,
    /// Whether it is done when the access log is full.
    pub when_full: WhenFull,
}

/// What becomes of an operation that is on record when the access log is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// It is refused.
    Refused,
    /// It is done as long as there is room in the reserve: what stops guests, takes access away, or
    /// looks into the log.
    Reserve,
    /// It is done in any case: what makes room.
    Done,
}

impl Operation {
    /// The same, with another kind of entry than its method has.
    const fn with_record(self, on_record: Option<AccessKind>) -> Self {
        Self { on_record, ..self }
    }

    /// The same, for when the access log is full.
    const fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }
}

/// An operation. One with a method that changes something is on record as a change.
const fn op(
    id: &'static str,
    method: Method,
    path: &'static str,
    touches: Touches,
    guard: Guard,
) -> Operation {
    let on_record = match method {
        Method::Get => None,
        Method::Post | Method::Patch | Method::Delete => Some(AccessKind::Changed),
    };
    Operation { id, method, path, touches, guard, on_record, when_full: WhenFull::Refused }
}

/// Callers with these privileges, whether the object is encrypted or not.
const fn plain(always: &'static [Privilege]) -> Guard {
    Guard::Needs(Needs::plain(always))
}

/// Callers with these privileges, and more of them if the object is encrypted.
const fn needs(always: &'static [Privilege], if_encrypted: &'static [Privilege]) -> Guard {
    Guard::Needs(Needs { always, if_encrypted })
}

/// Every operation.
pub const OPERATIONS: &[Operation] = {
    use Method::{Delete, Get, Patch, Post};
    use Privilege as P;
    use Touches::{Ciphertext, GuestControl, GuestData, None};
    const VIEW: Guard = plain(&[P::View]);
    const POWER: Guard = plain(&[P::Power]);
    const ROLES: Guard = plain(&[P::Roles]);
    const AUDIT: Guard = plain(&[P::Audit]);
    const NETWORKS: Guard = plain(&[P::Networks]);
    const RECIPIENTS: Guard = plain(&[P::Recipients]);
    const READ: Option<AccessKind> = Some(AccessKind::Read);
    const RESERVE: WhenFull = WhenFull::Reserve;
    const UNRECORDED: Option<AccessKind> = Option::None;
    &[
        op("vm_list", Get, "/v1/vms", None, Guard::Callers),
        op("vm_create", Post, "/v1/vms", Ciphertext, Guard::Request),
        op("vm_clone", Post, "/v1/vms/{vm}/clone", Ciphertext, needs(&[P::Create], &[P::Clone])),
        op("vm_template", Post, "/v1/vms/{vm}/template", Ciphertext, plain(&[P::Configure])),
        op("vm_register", Post, "/v1/vms/register", Ciphertext, plain(&[P::RegisterVm])),
        op("vm_show", Get, "/v1/vms/{vm}", None, VIEW),
        op("vm_set", Patch, "/v1/vms/{vm}", GuestControl, plain(&[P::Configure])),
        op("vm_delete", Delete, "/v1/vms/{vm}", Ciphertext, plain(&[P::Delete])),
        op("vm_unregister", Post, "/v1/vms/{vm}/unregister", Ciphertext, plain(&[P::Delete])),
        op("vm_move_host", Post, "/v1/vms/{vm}/host", Ciphertext, plain(&[P::Migrate])),
        op("vm_start", Post, "/v1/vms/{vm}/start", GuestControl, POWER),
        op("vm_stop", Post, "/v1/vms/{vm}/stop", GuestControl, POWER).when_full(RESERVE),
        op("vm_restart", Post, "/v1/vms/{vm}/restart", GuestControl, POWER),
        op("vm_pause", Post, "/v1/vms/{vm}/pause", GuestControl, POWER).when_full(RESERVE),
        op("vm_suspend", Post, "/v1/vms/{vm}/suspend", GuestControl, POWER).when_full(RESERVE),
        op("vm_resume", Post, "/v1/vms/{vm}/resume", GuestControl, POWER),
        op("vm_reset", Post, "/v1/vms/{vm}/reset", GuestControl, POWER),
        op("vm_dump", Post, "/v1/vms/{vm}/dumps", GuestData, needs(&[P::Export], &[P::Access])),
        op("vm_dump_list", Get, "/v1/vms/{vm}/dumps", None, VIEW),
        op("vm_dump_delete", Delete, "/v1/vms/{vm}/dumps/{dump}", Ciphertext, plain(&[P::Delete])),
        op("vm_snapshot_list", Get, "/v1/vms/{vm}/snapshots", None, VIEW),
        op("vm_snapshot_create", Post, "/v1/vms/{vm}/snapshots", Ciphertext, plain(&[P::Snapshot])),
        op(
            "vm_snapshot_delete",
            Delete,
            "/v1/vms/{vm}/snapshots/{snapshot}",
            Ciphertext,
            plain(&[P::Snapshot]),
        ),
        op(
            "vm_snapshot_revert",
            Post,
            "/v1/vms/{vm}/snapshots/{snapshot}/revert",
            Ciphertext,
            needs(&[P::Snapshot, P::GuestControl], &[P::Access]),
        ),
        op("vm_snapshot_schedule_show", Get, "/v1/vms/{vm}/snapshot-schedule", None, VIEW),
        op(
            "vm_snapshot_schedule_set",
            Patch,
            "/v1/vms/{vm}/snapshot-schedule",
            Ciphertext,
            plain(&[P::Snapshot]),
        ),
        op("vm_ticket", Post, "/v1/vms/{vm}/tickets", GuestData, VIEW).with_record(Some(AccessKind::Ticket)),
        op("vm_add_nic", Post, "/v1/vms/{vm}/nics", GuestControl, plain(&[P::Configure])),
        op(
            "vm_set_nic",
            Patch,
            "/v1/vms/{vm}/nics/{nic}",
            GuestControl,
            needs(&[P::Configure, P::GuestControl], &[P::Access]),
        ),
        op(
            "vm_remove_nic",
            Delete,
            "/v1/vms/{vm}/nics/{nic}",
            GuestControl,
            needs(&[P::Configure, P::GuestControl], &[P::Access]),
        ),
        op("vm_add_disk", Post, "/v1/vms/{vm}/disks", Ciphertext, needs(&[P::Configure], &[P::AddDisk])),
        op(
            "vm_remove_disk",
            Delete,
            "/v1/vms/{vm}/disks/{disk}",
            Ciphertext,
            plain(&[P::Configure, P::Delete]),
        ),
        op("vm_resize_disk", Patch, "/v1/vms/{vm}/disks/{disk}", Ciphertext, plain(&[P::Configure])),
        op("vm_move_disk", Post, "/v1/vms/{vm}/disks/{disk}/move", Ciphertext, plain(&[P::Configure])),
        op("vm_limit_disk", Patch, "/v1/vms/{vm}/disks/{disk}/limits", None, plain(&[P::Configure])),
        op("vm_limit", Patch, "/v1/vms/{vm}/limits", None, plain(&[P::Configure])),
        op(
            "vm_encrypt_disk",
            Post,
            "/v1/vms/{vm}/disks/{disk}/encrypt",
            Ciphertext,
            plain(&[P::Configure, P::Encrypt]),
        ),
        op(
            "vm_decrypt_disk",
            Post,
            "/v1/vms/{vm}/disks/{disk}/decrypt",
            Ciphertext,
            plain(&[P::Configure, P::Decrypt, P::Access]),
        ),
        op(
            "vm_import_disk",
            Post,
            "/v1/vms/{vm}/disks/{disk}/import",
            GuestData,
            needs(&[P::GuestControl], &[P::Access]),
        ),
        op("vm_rotate_key", Post, "/v1/vms/{vm}/key/rotate", Ciphertext, plain(&[P::Recrypt])),
        op("vm_cryptoperiod_set", Patch, "/v1/vms/{vm}/cryptoperiod", Ciphertext, plain(&[P::Recrypt])),
        op("vm_key_status", Get, "/v1/vms/{vm}/key-status", None, VIEW),
        op("vm_stats", Get, "/v1/vms/{vm}/stats", None, VIEW),
        op("volume_list", Get, "/v1/volumes", None, Guard::Callers),
        op("volume_limits", Get, "/v1/volumes/limits", None, Guard::Callers),
        op("volume_read", Post, "/v1/volumes/readings", Ciphertext, Guard::Entries).with_record(UNRECORDED),
        op("volume_change", Post, "/v1/volumes/changes", Ciphertext, Guard::Entries),
        op("volume_show", Get, "/v1/volumes/{volume}", None, VIEW),
        op("datastore_list", Get, "/v1/datastores", None, Guard::Callers),
        op("datastore_add", Post, "/v1/datastores", None, plain(&[P::Datastores])),
        op("datastore_show", Get, "/v1/datastores/{datastore}", None, VIEW),
        op("datastore_remove", Delete, "/v1/datastores/{datastore}", None, plain(&[P::Datastores])),
        op("datastore_add_host", Post, "/v1/datastores/{datastore}/hosts", None, plain(&[P::Datastores])),
        op(
            "datastore_remove_host",
            Delete,
            "/v1/datastores/{datastore}/hosts/{host}",
            None,
            plain(&[P::Datastores]),
        ),
        op("datastore_capacity", Get, "/v1/datastores/{datastore}/capacity", None, VIEW),
        op("datastore_scan", Get, "/v1/datastores/{datastore}/contents", None, plain(&[P::Datastores])),
        op(
            "datastore_rebuild",
            Post,
            "/v1/datastores/{datastore}/rebuild",
            Ciphertext,
            plain(&[P::Datastores, P::RegisterVm]),
        ),
        op("host_list", Get, "/v1/hosts", None, VIEW),
        op("host_token", Post, "/v1/hosts", None, plain(&[P::RegisterHost])),
        op("host_show", Get, "/v1/hosts/{host}", None, VIEW),
        op("host_set", Patch, "/v1/hosts/{host}", None, plain(&[P::Configure])).when_full(RESERVE),
        op(
            "host_evacuate",
            Post,
            "/v1/hosts/{host}/evacuate",
            GuestControl,
            plain(&[P::Configure, P::Migrate, P::Power]),
        ),
        op("balance_show", Get, "/v1/balance", None, VIEW),
        op("hosts_balance", Post, "/v1/balance", None, plain(&[P::Configure, P::Migrate])),
        op("host_fence", Post, "/v1/hosts/{host}/fence", None, plain(&[P::RegisterHost])).when_full(RESERVE),
        op("host_admit", Post, "/v1/hosts/{host}/admit", None, plain(&[P::RegisterHost])).when_full(RESERVE),
        op("host_remove", Delete, "/v1/hosts/{host}", None, plain(&[P::RegisterHost])).when_full(RESERVE),
        op("policy_list", Get, "/v1/policies", None, Guard::Callers),
        op("policy_create", Post, "/v1/policies", None, plain(&[P::ManagePolicies])),
        op("policy_show", Get, "/v1/policies/{policy}", None, Guard::Callers),
        op("policy_set", Patch, "/v1/policies/{policy}", None, plain(&[P::ManagePolicies])),
        op(
            "policy_apply",
            Post,
            "/v1/policies/{policy}/applications",
            Ciphertext,
            plain(&[P::ManagePolicies, P::Configure, P::Encrypt, P::Recrypt, P::Snapshot]),
        ),
        op("policy_delete", Delete, "/v1/policies/{policy}", None, plain(&[P::ManagePolicies])),
        op("placement_group_list", Get, "/v1/placement-groups", None, Guard::Callers),
        op("placement_group_create", Post, "/v1/placement-groups", None, plain(&[P::Configure])),
        op("placement_group_show", Get, "/v1/placement-groups/{group}", None, Guard::Callers),
        op("placement_group_set", Patch, "/v1/placement-groups/{group}", None, plain(&[P::Configure])),
        op("placement_group_delete", Delete, "/v1/placement-groups/{group}", None, plain(&[P::Configure])),
        op("network_list", Get, "/v1/networks", None, Guard::Callers),
        op("network_create", Post, "/v1/networks", None, NETWORKS),
        op("network_show", Get, "/v1/networks/{network}", None, VIEW),
        op("network_delete", Delete, "/v1/networks/{network}", None, NETWORKS),
        op("network_add_host", Post, "/v1/networks/{network}/hosts", None, NETWORKS),
        op("network_remove_host", Delete, "/v1/networks/{network}/hosts/{host}", None, NETWORKS),
        op("inventory_backup", Post, "/v1/inventory/backups", None, plain(&[P::Backup])),
        op("key_provider_list", Get, "/v1/key-providers", None, Guard::Callers),
        op("task_list", Get, "/v1/tasks", None, Guard::Callers),
        op("task_show", Get, "/v1/tasks/{task}", None, Guard::Callers),
        op("task_cancel", Delete, "/v1/tasks/{task}", None, Guard::Callers).when_full(RESERVE),
        op("event_list", Get, "/v1/events", None, Guard::Callers),
        op("event_stream", Get, "/v1/events/stream", None, Guard::Callers),
        op("alarm_list", Get, "/v1/alarms", None, Guard::Callers),
        op("recipient_list", Get, "/v1/recipients", None, RECIPIENTS),
        op("recipient_create", Post, "/v1/recipients", None, RECIPIENTS),
        op("recipient_show", Get, "/v1/recipients/{recipient}", None, RECIPIENTS),
        op("recipient_test", Post, "/v1/recipients/{recipient}/tests", None, RECIPIENTS),
        op("recipient_delete", Delete, "/v1/recipients/{recipient}", None, RECIPIENTS).when_full(RESERVE),
        op("vm_move", Post, "/v1/vms/{vm}/folder", None, ROLES),
        op("sign_in", Post, "/v1/sessions", None, Guard::Everyone)
            .with_record(Some(AccessKind::SignedIn))
            .when_full(RESERVE),
        op(
            "provider_sign_in_begin",
            Post,
            "/v1/identity-providers/{provider}/sign-ins",
            None,
            Guard::Everyone,
        )
        .with_record(UNRECORDED),
        op("provider_sign_in", Post, "/v1/provider-sessions", None, Guard::Everyone)
            .with_record(Some(AccessKind::SignedIn))
            .when_full(RESERVE),
        op("emergency_sign_in", Post, "/v1/emergency-sessions", None, Guard::Everyone)
            .with_record(Some(AccessKind::SignedIn))
            .when_full(RESERVE),
        op("sign_in_ways", Get, "/v1/sign-in-ways", None, Guard::Everyone),
        op("page_sign_in_begin", Post, "/v1/page-sign-ins", None, Guard::Everyone).with_record(UNRECORDED),
        op("page_sign_in", Post, "/v1/page-sessions", None, Guard::Everyone)
            .with_record(Some(AccessKind::SignedIn))
            .when_full(RESERVE),
        op("page_sign_out", Delete, "/v1/page-sessions/current", None, Guard::Callers).when_full(RESERVE),
        op("page_sign_out_everywhere", Delete, "/v1/page-sessions", None, Guard::Callers).when_full(RESERVE),
        op("session_list", Get, "/v1/sessions", None, Guard::Callers),
        op("session_end", Delete, "/v1/sessions/{session}", None, Guard::Callers).when_full(RESERVE),
        op("me_show", Get, "/v1/me", None, Guard::Callers),
        op("user_list", Get, "/v1/users", None, AUDIT),
        op("user_create", Post, "/v1/users", None, ROLES),
        op("user_delete", Delete, "/v1/users/{user}", None, ROLES).when_full(RESERVE),
        op("user_password", Post, "/v1/users/{user}/password", None, Guard::Callers).when_full(RESERVE),
        op("user_second_factor", Post, "/v1/users/{user}/second-factor", None, Guard::Callers),
        op("role_list", Get, "/v1/roles", None, Guard::Callers),
        op("role_create", Post, "/v1/roles", None, ROLES),
        op("role_delete", Delete, "/v1/roles/{role}", None, ROLES),
        op("folder_list", Get, "/v1/folders", None, Guard::Callers),
        op("folder_create", Post, "/v1/folders", None, ROLES),
        op("folder_set", Patch, "/v1/folders/{folder}", None, ROLES),
        op("folder_delete", Delete, "/v1/folders/{folder}", None, ROLES),
        op("grant_list", Get, "/v1/grants", None, Guard::Callers),
        op("grant_create", Post, "/v1/grants", None, Guard::Callers),
        op("grant_delete", Delete, "/v1/grants/{grant}", None, Guard::Callers).when_full(RESERVE),
        op("token_list", Get, "/v1/tokens", None, Guard::Callers),
        op("token_create", Post, "/v1/tokens", None, Guard::Callers),
        op("token_rotate", Post, "/v1/tokens/{token}/rotate", None, Guard::Callers),
        op("token_revoke", Delete, "/v1/tokens/{token}", None, Guard::Callers).when_full(RESERVE),
        op("identity_provider_list", Get, "/v1/identity-providers", None, AUDIT),
        op("identity_provider_create", Post, "/v1/identity-providers", None, ROLES),
        op("identity_provider_set", Patch, "/v1/identity-providers/{provider}", None, ROLES),
        op("identity_provider_delete", Delete, "/v1/identity-providers/{provider}", None, ROLES)
            .when_full(RESERVE),
        op("emergency_list", Get, "/v1/emergency-credentials", None, AUDIT),
        op("emergency_create", Post, "/v1/emergency-credentials", None, ROLES),
        op("emergency_rotate", Post, "/v1/emergency-credentials/{credential}/rotate", None, ROLES),
        op("emergency_acknowledge", Post, "/v1/emergency-credentials/{credential}/acknowledge", None, AUDIT),
        op("emergency_revoke", Delete, "/v1/emergency-credentials/{credential}", None, ROLES)
            .when_full(RESERVE),
        op("access_review", Get, "/v1/access", None, AUDIT).with_record(READ).when_full(RESERVE),
        op("access_explain", Post, "/v1/access/explanations", None, AUDIT).with_record(UNRECORDED),
        op("access_log", Get, "/v1/access/log", None, AUDIT).with_record(READ).when_full(RESERVE),
        op("access_log_retention", Get, "/v1/access/log/retention", None, AUDIT),
        op("access_log_retention_set", Patch, "/v1/access/log/retention", None, plain(&[P::Audit, P::Roles]))
            .when_full(WhenFull::Done),
        op("access_log_head", Get, "/v1/access/log/head", None, AUDIT).with_record(READ).when_full(RESERVE),
        op("access_log_verify", Post, "/v1/access/log/verifications", None, AUDIT)
            .with_record(READ)
            .when_full(RESERVE),
        op("openapi", Get, "/openapi.json", None, Guard::Everyone),
        op("healthz", Get, "/healthz", None, Guard::Everyone),
        op("readyz", Get, "/readyz", None, Guard::Everyone),
        op("metrics", Get, "/metrics", None, VIEW),
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

    /// A browser sends its cookie with whatever reads, without the header of the page.
    #[test]
    fn what_reads_changes_nothing() {
        let reads = OPERATIONS.iter().filter(|operation| operation.method == Method::Get);
        let changes = |operation: &&Operation| {
            operation.on_record.is_some_and(|kind| kind != AccessKind::Read)
                || operation.touches == Touches::GuestControl
        };
        let changing: Vec<_> = reads.filter(changes).map(|operation| operation.id).collect();
        assert_eq!(changing, [""; 0]);
    }

    #[test]
    fn whatever_gives_a_connection_to_a_guest_says_so() {
        assert_eq!(operation("vm_ticket").map(|found| found.touches), Some(Touches::GuestData));
        assert_eq!(operation("vm_list").map(|found| found.touches), Some(Touches::None));
    }
}
