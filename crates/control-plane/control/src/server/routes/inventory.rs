//! Datastores, hosts, policies, key providers.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::access::Done;
use strongroom_api::backup::{InventoryBackup, MakeInventoryBackup};
use strongroom_api::datastore::{
    AddDatastore, AddDatastoreHost, Datastore, DatastoreCapacity, Found, RebuildDatastore,
};
use strongroom_api::host::{
    AdmitHost, Balance, BalanceHosts, CreateHostToken, EvacuateHost, FenceHost, Host, HostToken, SetHost,
};
use strongroom_api::key::KeyProvider;
use strongroom_api::policy::{ApplyPolicy, CreatePolicy, Policy, SetPolicy};
use strongroom_api::task::Task;
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ListQuery, ObjectKind, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish};
use super::super::token::Asker;
use super::{Answer, blocking};
use crate::engine::Control;
use crate::engine::views::page_of;
use crate::problems;

/// A task that was accepted, or is already done.
type Accepted = Answer<(StatusCode, Json<Task>)>;

/// Datastores.
#[utoipa::path(get, path = "/v1/datastores", operation_id = "datastore_list", tag = "datastore", params(ListQuery),
    responses((status = 200, body = Page<Datastore>), (status = "4XX", body = ErrorBody)))]
pub async fn datastore_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Datastore>>> {
    let all = api.control.list_datastores_for(&asker.rights(&api.control));
    Ok(Json(page_of("datastores", all, &query, |item| item.name.to_string())?))
}

/// Hosts.
#[utoipa::path(get, path = "/v1/hosts", operation_id = "host_list", tag = "host", params(ListQuery),
    responses((status = 200, body = Page<Host>), (status = "4XX", body = ErrorBody)))]
pub async fn host_list(State(api): State<Api>, Asked(query): Asked<ListQuery>) -> Answer<Json<Page<Host>>> {
    Ok(Json(page_of("hosts", api.control.list_hosts(), &query, |item| item.name.to_string())?))
}

/// Policies.
#[utoipa::path(get, path = "/v1/policies", operation_id = "policy_list", tag = "policy", params(ListQuery),
    responses((status = 200, body = Page<Policy>), (status = "4XX", body = ErrorBody)))]
pub async fn policy_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Policy>>> {
    let is_seen = asker.rights(&api.control).sees_something();
    let all = if is_seen { api.control.list_policies() } else { Vec::new() };
    Ok(Json(page_of("policies", all, &query, |item| item.name.to_string())?))
}

/// Key providers, with their last known state.
#[utoipa::path(get, path = "/v1/key-providers", operation_id = "key_provider_list", tag = "key-provider", params(ListQuery),
    responses((status = 200, body = Page<KeyProvider>), (status = "4XX", body = ErrorBody)))]
pub async fn key_provider_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<KeyProvider>>> {
    let is_seen = asker.rights(&api.control).sees_something();
    let all = if is_seen { api.control.providers() } else { Vec::new() };
    Ok(Json(page_of("key providers", all, &query, |item| item.name.to_string())?))
}

/// A datastore.
#[utoipa::path(get, path = "/v1/datastores/{datastore}", operation_id = "datastore_show", tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Datastore), (status = "4XX", body = ErrorBody)))]
pub async fn datastore_show(
    State(api): State<Api>,
    Named(datastore): Named<String>,
) -> Answer<Json<Datastore>> {
    Ok(Json(api.control.show_datastore(&datastore)?))
}

/// What a datastore had in the last hours and days, and the trend.
#[utoipa::path(get, path = "/v1/datastores/{datastore}/capacity", operation_id = "datastore_capacity", tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id.")),
    responses((status = 200, body = DatastoreCapacity), (status = "4XX", body = ErrorBody)))]
pub async fn datastore_capacity(
    State(api): State<Api>,
    Named(datastore): Named<String>,
) -> Answer<Json<DatastoreCapacity>> {
    Ok(Json(api.control.datastore_capacity(&datastore)?))
}

/// A host.
#[utoipa::path(get, path = "/v1/hosts/{host}", operation_id = "host_show", tag = "host",
    params(("host" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Host), (status = "4XX", body = ErrorBody)))]
pub async fn host_show(State(api): State<Api>, Named(host): Named<String>) -> Answer<Json<Host>> {
    Ok(Json(api.control.show_host(&host)?))
}

/// A policy.
#[utoipa::path(get, path = "/v1/policies/{policy}", operation_id = "policy_show", tag = "policy",
    params(("policy" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Policy), (status = "4XX", body = ErrorBody)))]
pub async fn policy_show(
    State(api): State<Api>,
    asker: Asker,
    Named(policy): Named<String>,
) -> Answer<Json<Policy>> {
    if !asker.rights(&api.control).sees_something() {
        return Err(problems::not_found(ObjectKind::Policy, &policy).into());
    }
    Ok(Json(api.control.show_policy(&policy)?))
}

/// The content of a datastore, compared with the inventory: registered VMs, orphans, copies.
#[utoipa::path(get, path = "/v1/datastores/{datastore}/contents", operation_id = "datastore_scan", tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id."), ListQuery),
    responses((status = 200, body = Page<Found>), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn datastore_scan(
    State(api): State<Api>,
    Named(datastore): Named<String>,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Found>>> {
    let found = blocking(api, move |control| control.datastore_contents(&datastore)).await?;
    Ok(Json(page_of("contents", found, &query, |item| item.directory.clone())?))
}

/// Adds a directory as a datastore. Its host marks it with an id.
#[utoipa::path(post, path = "/v1/datastores", operation_id = "datastore_add", tag = "datastore", request_body = AddDatastore,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn datastore_add(State(api): State<Api>, wish: Wish<AddDatastore>) -> Accepted {
    let task = blocking(api, move |control| control.add_datastore(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Has another host use a datastore. The host compares the mark of the directory there.
#[utoipa::path(post, path = "/v1/datastores/{datastore}/hosts", operation_id = "datastore_add_host", tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id.")), request_body = AddDatastoreHost,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn datastore_add_host(
    State(api): State<Api>,
    Named(datastore): Named<String>,
    wish: Wish<AddDatastoreHost>,
) -> Accepted {
    let add = move |control: &Control| control.add_datastore_host(&wish.caller, &datastore, &wish.body);
    Ok((StatusCode::ACCEPTED, Json(blocking(api, add).await?)))
}

/// Ends the use of a datastore by a host that has none of its VMs.
#[utoipa::path(delete, path = "/v1/datastores/{datastore}/hosts/{host}", operation_id = "datastore_remove_host",
    tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id."), ("host" = String, Path, description = "Name or id.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn datastore_remove_host(
    State(api): State<Api>,
    Named((datastore, host)): Named<(String, String)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let remove = move |control: &Control| control.remove_datastore_host(&wish.caller, &datastore, &host);
    Ok((StatusCode::ACCEPTED, Json(blocking(api, remove).await?)))
}

/// Changes a host: in maintenance, no VM is placed or started there.
#[utoipa::path(patch, path = "/v1/hosts/{host}", operation_id = "host_set", tag = "host",
    params(("host" = String, Path, description = "Name or id.")), request_body = Option<SetHost>,
    responses((status = 200, body = Host), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn host_set(
    State(api): State<Api>,
    Named(host): Named<String>,
    wish: Wish<SetHost>,
) -> Answer<Json<Host>> {
    blocking(api, move |control| control.set_host(&wish.caller, &host, &wish.body)).await.map(Json)
}

/// Moves all VMs away from a host, which is in maintenance from then on. What cannot be moved
/// stays, and the task names it with the reasons.
#[utoipa::path(post, path = "/v1/hosts/{host}/evacuate", operation_id = "host_evacuate", tag = "host",
    params(("host" = String, Path, description = "Name or id.")), request_body = Option<EvacuateHost>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn host_evacuate(
    State(api): State<Api>,
    Named(host): Named<String>,
    wish: Wish<EvacuateHost>,
) -> Accepted {
    let task = blocking(api, move |control| control.evacuate_host(&wish.caller, &host, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Shows how full the hosts are, and the moves of VMs that would balance them. Nothing moves.
#[utoipa::path(get, path = "/v1/balance", operation_id = "balance_show", tag = "host",
    responses((status = 200, body = Balance), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn balance_show(State(api): State<Api>) -> Answer<Json<Balance>> {
    blocking(api, |control| control.plan_balance()).await.map(Json)
}

/// Moves VMs that run as a plan has it, four at a time. If other moves are planned by now, nothing
/// is done. What cannot be moved stays, and the task names it with the reasons.
#[utoipa::path(post, path = "/v1/balance", operation_id = "hosts_balance", tag = "host", request_body = BalanceHosts,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn hosts_balance(State(api): State<Api>, wish: Wish<BalanceHosts>) -> Accepted {
    let task = blocking(api, move |control| control.balance_hosts(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Makes a token with which a machine joins as a host. The token can be used once.
#[utoipa::path(post, path = "/v1/hosts", operation_id = "host_token", tag = "host", request_body = CreateHostToken,
    responses((status = 201, body = HostToken), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn host_token(
    State(api): State<Api>,
    wish: Wish<CreateHostToken>,
) -> Answer<(StatusCode, Json<HostToken>)> {
    let token = blocking(api, move |control| control.host_token(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::CREATED, Json(token)))
}

/// Removes a host without VMs and datastores. Its certificate is revoked, and it takes no orders
/// any more.
#[utoipa::path(delete, path = "/v1/hosts/{host}", operation_id = "host_remove", tag = "host",
    params(("host" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn host_remove(
    State(api): State<Api>,
    Named(host): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.remove_host(&wish.caller, &host)).await.map(|()| Json(Done {}))
}

/// Declares a host lost: it is shut out from its datastores on clusters, and its VMs there are
/// placed on other hosts.
#[utoipa::path(post, path = "/v1/hosts/{host}/fence", operation_id = "host_fence", tag = "host",
    params(("host" = String, Path, description = "Name or id.")), request_body = FenceHost,
    responses((status = 200, body = Host), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn host_fence(
    State(api): State<Api>,
    Named(host): Named<String>,
    wish: Wish<FenceHost>,
) -> Answer<Json<Host>> {
    blocking(api, move |control| control.fence_host(&wish.caller, &host, &wish.body)).await.map(Json)
}

/// Lets a host that was declared lost use its clusters again, once its machine has started again.
#[utoipa::path(post, path = "/v1/hosts/{host}/admit", operation_id = "host_admit", tag = "host",
    params(("host" = String, Path, description = "Name or id.")), request_body = Option<AdmitHost>,
    responses((status = 200, body = Host), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn host_admit(
    State(api): State<Api>,
    Named(host): Named<String>,
    wish: Wish<AdmitHost>,
) -> Answer<Json<Host>> {
    blocking(api, move |control| control.admit_host(&wish.caller, &host, &wish.body)).await.map(Json)
}

/// Makes a policy.
#[utoipa::path(post, path = "/v1/policies", operation_id = "policy_create", tag = "policy", request_body = CreatePolicy,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn policy_create(State(api): State<Api>, wish: Wish<CreatePolicy>) -> Accepted {
    let task = blocking(api, move |control| control.create_policy(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Gives a policy other rules. VMs that do not keep them stay as they are, and deviate.
#[utoipa::path(patch, path = "/v1/policies/{policy}", operation_id = "policy_set", tag = "policy",
    params(("policy" = String, Path, description = "Name or id.")), request_body = SetPolicy,
    responses((status = 200, body = Policy), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn policy_set(
    State(api): State<Api>,
    Named(policy): Named<String>,
    wish: Wish<SetPolicy>,
) -> Answer<Json<Policy>> {
    blocking(api, move |control| control.set_policy(&wish.caller, &policy, &wish.body)).await.map(Json)
}

/// Has the VMs that deviate from a policy keep its rules, as far as requests can bring that about.
#[utoipa::path(post, path = "/v1/policies/{policy}/applications", operation_id = "policy_apply", tag = "policy",
    params(("policy" = String, Path, description = "Name or id.")), request_body = Option<ApplyPolicy>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn policy_apply(
    State(api): State<Api>,
    Named(policy): Named<String>,
    wish: Wish<ApplyPolicy>,
) -> Accepted {
    let task = blocking(api, move |control| control.apply_policy(&wish.caller, &policy)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Removes a datastore without VMs from the inventory; its files stay.
#[utoipa::path(delete, path = "/v1/datastores/{datastore}", operation_id = "datastore_remove", tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn datastore_remove(
    State(api): State<Api>,
    Named(datastore): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.remove_datastore(&wish.caller, &datastore)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Registers every VM of a datastore that can be registered, to recover a lost inventory.
#[utoipa::path(post, path = "/v1/datastores/{datastore}/rebuild", operation_id = "datastore_rebuild", tag = "datastore",
    params(("datastore" = String, Path, description = "Name or id.")), request_body = Option<RebuildDatastore>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn datastore_rebuild(
    State(api): State<Api>,
    Named(datastore): Named<String>,
    wish: Wish<RebuildDatastore>,
) -> Accepted {
    let rebuild = move |control: &Control| control.rebuild_datastore(&wish.caller, &datastore, &wish.body);
    let task = blocking(api, rebuild).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Makes a backup of the inventory, in the directory for them on the control plane's machine.
/// Answers when it is whole and was read back.
#[utoipa::path(post, path = "/v1/inventory/backups", operation_id = "inventory_backup", tag = "server",
    request_body = Option<MakeInventoryBackup>,
    responses((status = 201, body = InventoryBackup), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn inventory_backup(
    State(api): State<Api>,
    wish: Wish<MakeInventoryBackup>,
) -> Answer<(StatusCode, Json<InventoryBackup>)> {
    let made = blocking(api, move |control| control.back_up(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Deletes a policy that no VM is under.
#[utoipa::path(delete, path = "/v1/policies/{policy}", operation_id = "policy_delete", tag = "policy",
    params(("policy" = String, Path, description = "Name or id.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn policy_delete(
    State(api): State<Api>,
    Named(policy): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.delete_policy(&wish.caller, &policy)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
