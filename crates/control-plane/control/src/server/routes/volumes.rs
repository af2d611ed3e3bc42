//! Volumes.

use axum::Json;
use axum::extract::State;
use strongroom_api::volume::{ReadVolumes, Volume, VolumeLimits, VolumeListQuery, VolumeReadings};
use strongroom_api::{ErrorBody, Page};

use super::super::Api;
use super::super::ask::{Asked, Wish};
use super::{Answer, blocking};

/// Volumes of VMs, with the space that they take. That is from the last reading of their hosts,
/// which are not asked again.
#[utoipa::path(get, path = "/v1/volumes", operation_id = "volume_list", tag = "volume", params(VolumeListQuery),
    responses((status = 200, body = Page<Volume>), (status = "4XX", body = ErrorBody)))]
pub async fn volume_list(
    State(api): State<Api>,
    Asked(query): Asked<VolumeListQuery>,
) -> Answer<Json<Page<Volume>>> {
    Ok(Json(api.control.list_volumes(&query)?))
}

/// The limits of readings of volumes.
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
    blocking(api, move |control| control.read_volumes(&wish.body)).await.map(Json)
}
