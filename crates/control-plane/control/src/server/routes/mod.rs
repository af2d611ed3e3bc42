//! The operations. `strongroom_api::OPERATIONS` lists them with what each touches; a test compares.

mod access;
mod browser;
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
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

use super::problem::Refusal;
use super::{Api, ask, token};

/// An operation's answer.
type Answer<T> = Result<T, Refusal>;

/// Operations of one path. The schemas of each are built in a function of its own: in one for all
/// of them, the compiler's inliner takes minutes.
macro_rules! operations {
    ($($handler:tt)*) => {
        apart(|| routes!($($handler)*))
    };
}

fn apart(make: fn() -> UtoipaMethodRouter<Api>) -> UtoipaMethodRouter<Api> {
    std::hint::black_box(make)()
}

/// Every operation.
pub(super) fn router(api: &Api) -> OpenApiRouter<Api> {
    // The operations with a query, which refuse its unknown parts.
    let lists = OpenApiRouter::new()
        .routes(operations!(vms::vm_list, vms::vm_create))
        .routes(operations!(vms::vm_dump, vms::vm_dump_list))
        .routes(operations!(vms::vm_snapshot_list, vms::vm_snapshot_create))
        .routes(operations!(inventory::datastore_list, inventory::datastore_add))
        .routes(operations!(inventory::datastore_scan))
        .routes(operations!(inventory::host_list, inventory::host_token))
        .routes(operations!(volumes::volume_list))
        .routes(operations!(networks::network_list, networks::network_create))
        .routes(operations!(inventory::policy_list, inventory::policy_create))
        .routes(operations!(inventory::key_provider_list))
        .routes(operations!(events::task_list))
        .routes(operations!(events::task_show, events::task_cancel))
        .routes(operations!(events::event_list))
        .routes(operations!(events::event_stream))
        .routes(operations!(events::alarm_list))
        .routes(operations!(recipients::recipient_list, recipients::recipient_create))
        .routes(operations!(placement_groups::placement_group_list, placement_groups::placement_group_create))
        .routes(operations!(access::session_list))
        .routes(operations!(identity::identity_provider_list, identity::identity_provider_create))
        .routes(operations!(identity::emergency_list, identity::emergency_create))
        .routes(operations!(access::user_list, access::user_create))
        .routes(operations!(access::role_list, access::role_create))
        .routes(operations!(access::folder_list, access::folder_create))
        .routes(operations!(access::grant_list, access::grant_create))
        .routes(operations!(access::token_list, access::token_create))
        .routes(operations!(access::access_log));
    let others = OpenApiRouter::new()
        .routes(operations!(vms::vm_register))
        .routes(operations!(vms::vm_show, vms::vm_set, vms::vm_delete))
        .routes(operations!(vms::vm_unregister))
        .routes(operations!(vms::vm_clone))
        .routes(operations!(vms::vm_template))
        .routes(operations!(vms::vm_move_host))
        .routes(operations!(vms::vm_start))
        .routes(operations!(vms::vm_stop))
        .routes(operations!(vms::vm_restart))
        .routes(operations!(vms::vm_pause))
        .routes(operations!(vms::vm_suspend))
        .routes(operations!(vms::vm_rotate_key))
        .routes(operations!(vms::vm_cryptoperiod_set))
        .routes(operations!(vms::vm_dump_delete))
        .routes(operations!(vms::vm_snapshot_delete))
        .routes(operations!(vms::vm_snapshot_revert))
        .routes(operations!(vms::vm_snapshot_schedule_show, vms::vm_snapshot_schedule_set))
        .routes(operations!(vms::vm_resume))
        .routes(operations!(vms::vm_reset))
        .routes(operations!(vms::vm_ticket))
        .routes(operations!(disks::vm_add_disk))
        .routes(operations!(nics::vm_add_nic))
        .routes(operations!(nics::vm_set_nic))
        .routes(operations!(nics::vm_remove_nic))
        .routes(operations!(disks::vm_remove_disk, disks::vm_resize_disk))
        .routes(operations!(disks::vm_move_disk))
        .routes(operations!(disks::vm_limit_disk))
        .routes(operations!(disks::vm_limit))
        .routes(operations!(disks::vm_encrypt_disk))
        .routes(operations!(disks::vm_decrypt_disk))
        .routes(operations!(vms::vm_import_disk))
        .routes(operations!(vms::vm_key_status))
        .routes(operations!(vms::vm_stats))
        .routes(operations!(inventory::datastore_show, inventory::datastore_remove))
        .routes(operations!(inventory::datastore_capacity))
        .routes(operations!(inventory::datastore_rebuild))
        .routes(operations!(volumes::volume_limits))
        .routes(operations!(volumes::volume_read))
        .routes(operations!(volumes::volume_change))
        .routes(operations!(volumes::volume_show))
        .routes(operations!(inventory::datastore_add_host))
        .routes(operations!(inventory::datastore_remove_host))
        .routes(operations!(inventory::host_show, inventory::host_set, inventory::host_remove))
        .routes(operations!(inventory::host_evacuate))
        .routes(operations!(inventory::balance_show, inventory::hosts_balance))
        .routes(operations!(inventory::host_fence))
        .routes(operations!(inventory::host_admit))
        .routes(operations!(networks::network_show, networks::network_delete))
        .routes(operations!(networks::network_add_host))
        .routes(operations!(networks::network_remove_host))
        .routes(operations!(inventory::policy_show, inventory::policy_set, inventory::policy_delete))
        .routes(operations!(inventory::policy_apply))
        .routes(operations!(
            placement_groups::placement_group_show,
            placement_groups::placement_group_set,
            placement_groups::placement_group_delete
        ))
        .routes(operations!(recipients::recipient_show, recipients::recipient_delete))
        .routes(operations!(recipients::recipient_test))
        .routes(operations!(access::vm_move))
        .routes(operations!(access::session_end))
        .routes(operations!(browser::page_sign_out))
        .routes(operations!(browser::page_sign_out_everywhere))
        .routes(operations!(identity::identity_provider_set, identity::identity_provider_delete))
        .routes(operations!(identity::emergency_revoke))
        .routes(operations!(identity::emergency_rotate))
        .routes(operations!(identity::emergency_acknowledge))
        .routes(operations!(access::me_show))
        .routes(operations!(access::user_delete))
        .routes(operations!(access::user_password))
        .routes(operations!(access::user_second_factor))
        .routes(operations!(access::role_delete))
        .routes(operations!(access::folder_set, access::folder_delete))
        .routes(operations!(access::grant_delete))
        .routes(operations!(access::token_rotate))
        .routes(operations!(access::token_revoke))
        .routes(operations!(access::access_review))
        .routes(operations!(access::access_explain))
        .routes(operations!(access::access_log_head))
        .routes(operations!(access::access_log_retention, access::access_log_retention_set))
        .routes(operations!(access::access_log_verify))
        .routes(operations!(inventory::inventory_backup))
        .routes(operations!(server::metrics))
        .route_layer(middleware::from_fn(ask::without_query));
    let guarded =
        lists.merge(others).route_layer(middleware::from_fn_with_state(api.clone(), token::require));
    let open = OpenApiRouter::new()
        .routes(operations!(server::openapi))
        .routes(operations!(server::healthz))
        .routes(operations!(server::readyz))
        .routes(operations!(access::sign_in))
        .routes(operations!(identity::provider_sign_in_begin))
        .routes(operations!(identity::provider_sign_in))
        .routes(operations!(identity::emergency_sign_in))
        .routes(operations!(browser::sign_in_ways))
        .routes(operations!(browser::page_sign_in_begin))
        .routes(operations!(browser::page_sign_in))
        .route_layer(middleware::from_fn(ask::without_query));
    guarded.merge(open)
}

/// Runs work that blocks on the store's device, a host or a key provider.
pub(super) async fn blocking<T: Send + 'static>(
    api: Api,
    work: impl FnOnce(&crate::engine::Control) -> Result<T, Problem> + Send + 'static,
) -> Answer<T> {
    // What it logs is of the same request.
    let span = tracing::Span::current();
    let done = tokio::task::spawn_blocking(move || span.in_scope(|| work(&api.control))).await;
    let done = done.unwrap_or_else(|error| {
        tracing::error!(%error, "an operation of the API has panicked");
        Err(Problem::new(ErrorCode::Internal, "a defect of the server; its log has more"))
    });
    done.map_err(Refusal)
}
