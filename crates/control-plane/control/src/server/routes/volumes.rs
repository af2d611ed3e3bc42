//! Volumes.

use axum::Json;
use axum::extract::State;
use strongroom_api::volume::{
    ChangeVolumes, ReadVolumes, Volume, VolumeChanges, VolumeLimits, VolumeListQuery, VolumeReadings,
    VolumeView,
};
use strongroom_api::{ErrorBody, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish};
use super::super::token::Asker;
use super::{Answer, blocking};
use crate::engine::Control;

/// Volumes, of VMs and on their own, with the space that they take. That is from the last reading
/// of their hosts, which are not asked again.
#[utoipa::path(get, path = "/v1/volumes", operation_id = "volume_list", tag = "volume", params(VolumeListQuery),
    responses((status = 200, body = Page<Volume>), (status = "4XX", body = ErrorBody)))]
pub async fn volume_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<VolumeListQuery>,
) -> Answer<Json<Page<Volume>>> {
    Ok(Json(api.control.list_volumes_for(&asker.rights(&api.control), &query)?))
}

/// The limits of readings and changes of volumes.
#[utoipa::path(get, path = "/v1/volumes/limits", operation_id = "volume_limits", tag = "volume",
    responses((status = 200, body = VolumeLimits), (status = "4XX", body = ErrorBody)))]
pub async fn volume_limits(State(api): State<Api>) -> Json<VolumeLimits> {
    Json(api.control.volume_limits())
}

/// Reads volumes: maps of their content, of its changes between snapshots, and the space that they
/// take. Each reading has its own answer. It changes nothing, and needs no key.
#[utoipa::path(post, path = "/v1/volumes/readings", operation_id = "volume_read", tag = "volume", request_body = ReadVolumes,
    responses((status = 200, body = VolumeReadings), (status = "4XX", body = ErrorBody)))]
pub async fn volume_read(State(api): State<Api>, wish: Wish<ReadVolumes>) -> Answer<Json<VolumeReadings>> {
    let read =
        move |control: &Control| control.read_volumes_for(&control.rights(wish.caller.principal), &wish.body);
    blocking(api, read).await.map(Json)
}

/// A volume with its snapshots.
#[utoipa::path(get, path = "/v1/volumes/{volume}", operation_id = "volume_show", tag = "volume",
    params(("volume" = String, Path, description = "Id, or its name if no VM has it.")),
    responses((status = 200, body = VolumeView), (status = "4XX", body = ErrorBody)))]
pub async fn volume_show(
    State(api): State<Api>,
    asker: Asker,
    Named(volume): Named<String>,
) -> Answer<Json<VolumeView>> {
    Ok(Json(api.control.show_volume_for(&asker.rights(&api.control), &volume)?))
}

/// Changes volumes: makes, clones, grows and deletes those that no VM has, makes, reverts to and
/// deletes their snapshots, gives them to VMs and takes them back. Each change has its own answer:
/// its task, or why there is none. A change does not wait for another one of the batch.
#[utoipa::path(post, path = "/v1/volumes/changes", operation_id = "volume_change", tag = "volume", request_body = ChangeVolumes,
    responses((status = 200, body = VolumeChanges), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn volume_change(State(api): State<Api>, wish: Wish<ChangeVolumes>) -> Answer<Json<VolumeChanges>> {
    blocking(api, move |control| control.change_volumes(&wish.caller, &wish.body)).await.map(Json)
}
