//! The operations. `strongroom_api::OPERATIONS` lists them with what each touches; a test compares.

mod access;
mod disks;
mod events;
mod identity;
mod inventory;
mod networks;
mod nics;
mod placement_groups;
mod recipients;
mod server;
mod vms;
mod volumes;

use axum::middleware;
use strongroom_api::{ErrorCode, Problem};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::Refusal;
use super::{Api, ask, token};

/// An operation's answer.
type Answer<T> = Result<T, Refusal>;

/// Every operation.
pub(super) fn router(api: &Api) -> OpenApiRouter<Api> {
    // The operations with a query, which refuse its unknown parts.
    let lists = OpenApiRouter::new()
        .routes(routes!(vms::vm_list, vms::vm_create))
        .routes(routes!(vms::vm_dump, vms::vm_dump_list))
        .routes(routes!(vms::vm_snapshot_list, vms::vm_snapshot_create))
        .routes(routes!(inventory::datastore_list, inventory::datastore_add))
        .routes(routes!(inventory::datastore_scan))
        .routes(routes!(inventory::host_list, inventory::host_token))
        .routes(routes!(volumes::volume_list))
        .routes(routes!(networks::network_list, networks::network_create))
        .routes(routes!(inventory::policy_list, inventory::policy_create))
        .routes(routes!(inventory::key_provider_list))
        .routes(routes!(events::task_list))
        .routes(routes!(events::task_show, events::task_cancel))
        .routes(routes!(events::event_list))
        .routes(routes!(events::event_stream))
        .routes(routes!(events::alarm_list))
        .routes(routes!(recipients::recipient_list, recipients::recipient_create))
        .routes(routes!(placement_groups::placement_group_list, placement_groups::placement_group_create))
        .routes(routes!(access::session_list))
        .routes(routes!(identity::identity_provider_list, identity::identity_provider_create))
        .routes(routes!(identity::emergency_list, identity::emergency_create))
        .routes(routes!(access::user_list, access::user_create))
        .routes(routes!(access::role_list, access::role_create))
        .routes(routes!(access::folder_list, access::folder_create))
        .routes(routes!(access::grant_list, access::grant_create))
        .routes(routes!(access::token_list, access::token_create))
        .routes(routes!(access::access_log));
    let others = OpenApiRouter::new()
        .routes(routes!(vms::vm_register))
        .routes(routes!(vms::vm_show, vms::vm_set, vms::vm_delete))
        .routes(routes!(vms::vm_unregister))
        .routes(routes!(vms::vm_clone))
        .routes(routes!(vms::vm_template))
        .routes(routes!(vms::vm_move_host))
        .routes(routes!(vms::vm_start))
        .routes(routes!(vms::vm_stop))
        .routes(routes!(vms::vm_restart))
        .routes(routes!(vms::vm_pause))
        .routes(routes!(vms::vm_suspend))
        .routes(routes!(vms::vm_rotate_key))
        .routes(routes!(vms::vm_cryptoperiod_set))
        .routes(routes!(vms::vm_dump_delete))
        .routes(routes!(vms::vm_snapshot_delete))
        .routes(routes!(vms::vm_snapshot_revert))
        .routes(routes!(vms::vm_snapshot_schedule_show, vms::vm_snapshot_schedule_set))
        .routes(routes!(vms::vm_resume))
        .routes(routes!(vms::vm_reset))
        .routes(routes!(vms::vm_ticket))
        .routes(routes!(disks::vm_add_disk))
        .routes(routes!(nics::vm_add_nic))
        .routes(routes!(nics::vm_set_nic))
        .routes(routes!(nics::vm_remove_nic))
        .routes(routes!(disks::vm_remove_disk, disks::vm_resize_disk))
        .routes(routes!(disks::vm_limit_disk))
        .routes(routes!(disks::vm_limit))
        .routes(routes!(disks::vm_encrypt_disk))
        .routes(routes!(disks::vm_decrypt_disk))
        .routes(routes!(vms::vm_import_disk))
        .routes(routes!(vms::vm_key_status))
        .routes(routes!(vms::vm_stats))
        .routes(routes!(inventory::datastore_show, inventory::datastore_remove))
        .routes(routes!(inventory::datastore_rebuild))
        .routes(routes!(volumes::volume_limits))
        .routes(routes!(volumes::volume_read))
        .routes(routes!(volumes::volume_change))
        .routes(routes!(volumes::volume_show))
        .routes(routes!(inventory::datastore_add_host))
        .routes(routes!(inventory::datastore_remove_host))
        .routes(routes!(inventory::host_show, inventory::host_set, inventory::host_remove))
        .routes(routes!(inventory::host_evacuate))
        .routes(routes!(inventory::host_fence))
        .routes(routes!(inventory::host_admit))
        .routes(routes!(networks::network_show, networks::network_delete))
        .routes(routes!(networks::network_add_host))
        .routes(routes!(networks::network_remove_host))
        .routes(routes!(inventory::policy_show, inventory::policy_set, inventory::policy_delete))
        .routes(routes!(inventory::policy_apply))
        .routes(routes!(
            placement_groups::placement_group_show,
            placement_groups::placement_group_set,
            placement_groups::placement_group_delete
        ))
        .routes(routes!(recipients::recipient_show, recipients::recipient_delete))
        .routes(routes!(recipients::recipient_test))
        .routes(routes!(access::vm_move))
        .routes(routes!(access::session_end))
        .routes(routes!(identity::identity_provider_set, identity::identity_provider_delete))
        .routes(routes!(identity::emergency_revoke))
        .routes(routes!(identity::emergency_rotate))
        .routes(routes!(identity::emergency_acknowledge))
        .routes(routes!(access::me_show))
        .routes(routes!(access::user_delete))
        .routes(routes!(access::user_password))
        .routes(routes!(access::user_second_factor))
        .routes(routes!(access::role_delete))
        .routes(routes!(access::folder_set, access::folder_delete))
        .routes(routes!(access::grant_delete))
        .routes(routes!(access::token_rotate))
        .routes(routes!(access::token_revoke))
        .routes(routes!(access::access_review))
        .routes(routes!(access::access_explain))
        .routes(routes!(access::access_log_head))
        .routes(routes!(access::access_log_retention, access::access_log_retention_set))
        .routes(routes!(access::access_log_verify))
        .routes(routes!(inventory::inventory_backup))
        .routes(routes!(server::metrics))
        .route_layer(middleware::from_fn(ask::without_query));
    let guarded =
        lists.merge(others).route_layer(middleware::from_fn_with_state(api.clone(), token::require));
    let open = OpenApiRouter::new()
        .routes(routes!(server::openapi))
        .routes(routes!(server::healthz))
        .routes(routes!(server::readyz))
        .routes(routes!(access::sign_in))
        .routes(routes!(identity::provider_sign_in_begin))
        .routes(routes!(identity::provider_sign_in))
        .routes(routes!(identity::emergency_sign_in))
        .route_layer(middleware::from_fn(ask::without_query));
    guarded.merge(open)
}

/// Runs work that blocks on the store's device, a host or a key provider.
pub(super) async fn blocking<T: Send + 'static>(
    api: Api,
    work: impl FnOnce(&crate::engine::Control) -> Result<T, Problem> + Send + 'static,
) -> Answer<T> {
    let done = tokio::task::spawn_blocking(move || work(&api.control)).await;
    let done = done.unwrap_or_else(|error| {
        tracing::error!(%error, "an operation of the API has panicked");
        Err(Problem::new(ErrorCode::Internal, "a defect of the server; its log has more"))
    });
    done.map_err(Refusal)
}
