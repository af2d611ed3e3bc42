//! VMs.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::key::KeyStatus;
use strongroom_api::task::Task;
use strongroom_api::vm::{
    CloneVm, CreateSnapshot, CreateVm, DeleteVm, Dump, DumpVm, ImportDisk, MoveToHost, PatchVm, PowerOptions,
    RegisterVm, RevertVm, RotateKey, SetCryptoperiod, SetSnapshotSchedule, Snapshot, SnapshotSchedule,
    StartVm, StopVm, TemplateVm, Ticket, TicketUse, VmListQuery, VmStats, VmSummary, VmView,
};
use strongroom_api::{ErrorBody, ListQuery, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish, version};
use super::super::token::Asker;
use super::{Answer, blocking};
use crate::engine::Control;
use crate::engine::views::page_of;

/// A task that was accepted.
type Accepted = Answer<(StatusCode, Json<Task>)>;

/// A page of VMs.
#[utoipa::path(get, path = "/v1/vms", operation_id = "vm_list", tag = "vm", params(VmListQuery),
    responses((status = 200, body = Page<VmSummary>), (status = "4XX", body = ErrorBody)))]
pub async fn vm_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<VmListQuery>,
) -> Answer<Json<Page<VmSummary>>> {
    Ok(Json(api.control.list_vms_for(&asker.rights(&api.control), &query)?))
}

/// A VM with all of its details.
#[utoipa::path(get, path = "/v1/vms/{vm}", operation_id = "vm_show", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")),
    responses((status = 200, body = VmView), (status = "4XX", body = ErrorBody)))]
pub async fn vm_show(State(api): State<Api>, asker: Asker, Named(vm): Named<String>) -> Answer<Json<VmView>> {
    Ok(Json(api.control.show_vm_for(&asker.rights(&api.control), &vm)?))
}

/// The states of a VM's keys, queried from its providers.
#[utoipa::path(get, path = "/v1/vms/{vm}/key-status", operation_id = "vm_key_status", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")),
    responses((status = 200, body = KeyStatus), (status = "4XX", body = ErrorBody)))]
pub async fn vm_key_status(State(api): State<Api>, Named(vm): Named<String>) -> Answer<Json<KeyStatus>> {
    blocking(api, move |control| control.key_status(&vm)).await.map(Json)
}

/// A VM's disk counters, queried from its host: requests, bytes, errors, latencies.
#[utoipa::path(get, path = "/v1/vms/{vm}/stats", operation_id = "vm_stats", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")),
    responses((status = 200, body = VmStats), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_stats(State(api): State<Api>, Named(vm): Named<String>) -> Answer<Json<VmStats>> {
    blocking(api, move |control| control.vm_stats(&vm)).await.map(Json)
}

/// Moves all volumes of a VM, running or off, to a new key. No data is copied, and the guest
/// notices nothing; with `data` they are rewritten under new data keys while the VM is off. The old
/// key is deactivated.
#[utoipa::path(post, path = "/v1/vms/{vm}/key/rotate", operation_id = "vm_rotate_key", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<RotateKey>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_rotate_key(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<RotateKey>,
) -> Accepted {
    let task = blocking(api, move |control| control.rotate_key(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// A ticket for one connection to the guest, or for an image for a disk. The client presents it to
/// the host: guest data does not pass through this server.
#[utoipa::path(post, path = "/v1/vms/{vm}/tickets", operation_id = "vm_ticket", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = TicketUse,
    responses((status = 201, body = Ticket), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_ticket(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<TicketUse>,
) -> Answer<(StatusCode, Json<Ticket>)> {
    let ticket = blocking(api, move |control| control.ticket(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::CREATED, Json(ticket)))
}

/// Makes a VM and its volumes.
#[utoipa::path(post, path = "/v1/vms", operation_id = "vm_create", tag = "vm", request_body = CreateVm,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_create(State(api): State<Api>, wish: Wish<CreateVm>) -> Accepted {
    let task = blocking(api, move |control| control.create_vm(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Registers an existing VM of a datastore.
#[utoipa::path(post, path = "/v1/vms/register", operation_id = "vm_register", tag = "vm", request_body = RegisterVm,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_register(State(api): State<Api>, wish: Wish<RegisterVm>) -> Accepted {
    let task = blocking(api, move |control| control.register_vm(&wish.caller, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Changes a VM: its name, notes and tags in any state, everything else while it is off. `If-Match`
/// with its version refuses the change if the VM was changed meanwhile.
#[utoipa::path(patch, path = "/v1/vms/{vm}", operation_id = "vm_set", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<PatchVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_set(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<PatchVm>) -> Accepted {
    let version = version(&wish.headers)?;
    let task = blocking(api, move |control| control.set_vm(&wish.caller, &vm, &wish.body, version)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Fills a disk of a VM that is off with an image that was sent to its host with a ticket.
#[utoipa::path(post, path = "/v1/vms/{vm}/disks/{disk}/import", operation_id = "vm_import_disk", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("disk" = String, Path, description = "`disk0` and so on.")),
    request_body = ImportDisk,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_import_disk(
    State(api): State<Api>,
    Named((vm, disk)): Named<(String, String)>,
    wish: Wish<ImportDisk>,
) -> Accepted {
    let task =
        blocking(api, move |control| control.import_disk(&wish.caller, &vm, &disk, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Deletes a VM that is off, and its volumes. A VM with linked clones is deleted only if what they
/// share with it may stay with them.
#[utoipa::path(delete, path = "/v1/vms/{vm}", operation_id = "vm_delete", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<DeleteVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_delete(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<DeleteVm>) -> Accepted {
    let task = blocking(api, move |control| control.delete_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Removes a VM from the inventory; its files stay.
#[utoipa::path(post, path = "/v1/vms/{vm}/unregister", operation_id = "vm_unregister", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_unregister(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.unregister_vm(&wish.caller, &vm)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Starts a VM. The task is done when the VM runs. A suspended VM resumes its memory.
#[utoipa::path(post, path = "/v1/vms/{vm}/start", operation_id = "vm_start", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<StartVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_start(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<StartVm>) -> Accepted {
    let task = blocking(api, move |control| control.start_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Stops a VM.
#[utoipa::path(post, path = "/v1/vms/{vm}/stop", operation_id = "vm_stop", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<StopVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_stop(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<StopVm>) -> Accepted {
    let task = blocking(api, move |control| control.stop_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Stops a VM and starts it.
#[utoipa::path(post, path = "/v1/vms/{vm}/restart", operation_id = "vm_restart", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<StopVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_restart(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<StopVm>) -> Accepted {
    let task = blocking(api, move |control| control.restart_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Pauses a VM's CPUs.
#[utoipa::path(post, path = "/v1/vms/{vm}/pause", operation_id = "vm_pause", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_pause(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.pause_vm(&wish.caller, &vm)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Seals a VM's memory in a volume of its own, and stops the VM. Its next start resumes it. If this
/// fails, the guest continues.
#[utoipa::path(post, path = "/v1/vms/{vm}/suspend", operation_id = "vm_suspend", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_suspend(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.suspend_vm(&wish.caller, &vm)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Dumps a guest's memory into a sealed volume of the VM's own, as a core file (ELF). The guest is
/// paused meanwhile, and resumed in any case.
#[utoipa::path(post, path = "/v1/vms/{vm}/dumps", operation_id = "vm_dump", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<DumpVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_dump(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<DumpVm>) -> Accepted {
    let task = blocking(api, move |control| control.dump_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// The complete dumps of a VM. Their content is read with a ticket.
#[utoipa::path(get, path = "/v1/vms/{vm}/dumps", operation_id = "vm_dump_list", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ListQuery),
    responses((status = 200, body = Page<Dump>), (status = "4XX", body = ErrorBody)))]
pub async fn vm_dump_list(
    State(api): State<Api>,
    Named(vm): Named<String>,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Dump>>> {
    let all = api.control.list_dumps(&vm)?;
    // Padded to the width of the greatest number, so that keys sort by number.
    Ok(Json(page_of("dumps", all, &query, |dump| format!("{:010}", dump.number))?))
}

/// Deletes a dump of a VM, running or off.
#[utoipa::path(delete, path = "/v1/vms/{vm}/dumps/{dump}", operation_id = "vm_dump_delete", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ("dump" = u32, Path, description = "Its number.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_dump_delete(
    State(api): State<Api>,
    Named((vm, dump)): Named<(String, u32)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.delete_dump(&wish.caller, &vm, dump)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// The snapshots of a VM.
#[utoipa::path(get, path = "/v1/vms/{vm}/snapshots", operation_id = "vm_snapshot_list", tag = "vm",
    params(("vm" = String, Path, description = "Name or id."), ListQuery),
    responses((status = 200, body = Page<Snapshot>), (status = "4XX", body = ErrorBody)))]
pub async fn vm_snapshot_list(
    State(api): State<Api>,
    Named(vm): Named<String>,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Snapshot>>> {
    let all = api.control.list_snapshots(&vm)?;
    Ok(Json(page_of("snapshots", all, &query, |made| format!("{:020} {}", made.at_unix_seconds, made.name))?))
}

/// Makes a snapshot of all disks of a VM at one instant. A running guest continues after some
/// milliseconds. Nothing is copied.
#[utoipa::path(post, path = "/v1/vms/{vm}/snapshots", operation_id = "vm_snapshot_create", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = CreateSnapshot,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_snapshot_create(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<CreateSnapshot>,
) -> Accepted {
    let task = blocking(api, move |control| control.create_snapshot(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Reverts the disks of a VM that is off to a snapshot. Their present content is kept as another
/// snapshot, unless `discard` is set.
#[utoipa::path(post, path = "/v1/vms/{vm}/snapshots/{snapshot}/revert", operation_id = "vm_snapshot_revert",
    tag = "vm",
    params(
        ("vm" = String, Path, description = "Name or id."),
        ("snapshot" = String, Path, description = "Name or id."),
    ),
    request_body = Option<RevertVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_snapshot_revert(
    State(api): State<Api>,
    Named((vm, snapshot)): Named<(String, String)>,
    wish: Wish<RevertVm>,
) -> Accepted {
    let task =
        blocking(api, move |control| control.revert_vm(&wish.caller, &vm, &snapshot, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Deletes a snapshot of a VM, running or off. The VM's content and its other snapshots stay.
#[utoipa::path(delete, path = "/v1/vms/{vm}/snapshots/{snapshot}", operation_id = "vm_snapshot_delete", tag = "vm",
    params(
        ("vm" = String, Path, description = "Name or id."),
        ("snapshot" = String, Path, description = "Name or id."),
    ),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_snapshot_delete(
    State(api): State<Api>,
    Named((vm, snapshot)): Named<(String, String)>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.delete_snapshot(&wish.caller, &vm, &snapshot)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Sets how long a VM's data keys are used. When the time is over, the control plane renews them
/// with an ordinary rotation, if the VM allows it then. `GET /v1/vms/{vm}` shows it.
#[utoipa::path(patch, path = "/v1/vms/{vm}/cryptoperiod", operation_id = "vm_cryptoperiod_set", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = SetCryptoperiod,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_cryptoperiod_set(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<SetCryptoperiod>,
) -> Accepted {
    let set = move |control: &Control| control.set_cryptoperiod(&wish.caller, &vm, &wish.body);
    Ok((StatusCode::ACCEPTED, Json(blocking(api, set).await?)))
}

/// The schedule of a VM's snapshots: its rules, when the next one of each is due, and what came of
/// the last.
#[utoipa::path(get, path = "/v1/vms/{vm}/snapshot-schedule", operation_id = "vm_snapshot_schedule_show", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")),
    responses((status = 200, body = SnapshotSchedule), (status = "4XX", body = ErrorBody)))]
pub async fn vm_snapshot_schedule_show(
    State(api): State<Api>,
    Named(vm): Named<String>,
) -> Answer<Json<SnapshotSchedule>> {
    Ok(Json(api.control.snapshot_schedule(&vm)?))
}

/// Sets all rules of the schedule of a VM's snapshots. `If-Match` with its version refuses the
/// change if it was changed meanwhile. The snapshots of a rule that is removed stay.
#[utoipa::path(patch, path = "/v1/vms/{vm}/snapshot-schedule", operation_id = "vm_snapshot_schedule_set", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = SetSnapshotSchedule,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_snapshot_schedule_set(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<SetSnapshotSchedule>,
) -> Accepted {
    let version = version(&wish.headers)?;
    let set = move |control: &Control| control.set_snapshot_schedule(&wish.caller, &vm, &wish.body, version);
    Ok((StatusCode::ACCEPTED, Json(blocking(api, set).await?)))
}

/// Makes a new VM with the hardware and the disks' content of a VM that is off, or of a snapshot.
/// Everything is copied, encrypted under the new VM's own key. A linked clone shares the layers of
/// a snapshot instead; nothing is copied, and the VM may run.
#[utoipa::path(post, path = "/v1/vms/{vm}/clone", operation_id = "vm_clone", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = CloneVm,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_clone(State(api): State<Api>, Named(vm): Named<String>, wish: Wish<CloneVm>) -> Accepted {
    let task = blocking(api, move |control| control.clone_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Makes a VM that is off a template, or a template a VM again. A template has a snapshot of its
/// content, on which its linked clones hang; it is neither started nor changed.
#[utoipa::path(post, path = "/v1/vms/{vm}/template", operation_id = "vm_template", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<TemplateVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_template(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<TemplateVm>,
) -> Accepted {
    let task = blocking(api, move |control| control.template_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Moves a VM that is off, or a volume that no VM has, to another host that reaches its datastore.
/// The former host confirms that it has given it up before the next one has it.
#[utoipa::path(post, path = "/v1/vms/{vm}/host", operation_id = "vm_move_host", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<MoveToHost>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_move_host(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<MoveToHost>,
) -> Accepted {
    let task = blocking(api, move |control| control.move_to_host(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Resumes a VM's CPUs.
#[utoipa::path(post, path = "/v1/vms/{vm}/resume", operation_id = "vm_resume", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_resume(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.resume_vm(&wish.caller, &vm)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// Resets a VM, as a reset button would.
#[utoipa::path(post, path = "/v1/vms/{vm}/reset", operation_id = "vm_reset", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_reset(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<PowerOptions>,
) -> Accepted {
    let task = blocking(api, move |control| control.reset_vm(&wish.caller, &vm)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}
