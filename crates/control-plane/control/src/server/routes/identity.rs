//! Identity providers, emergency credentials, and the sign-ins by both.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::access::{Done, NewSession};
use strongroom_api::emergency::{CreateEmergency, EmergencyCredential, EmergencySignIn, NewEmergency};
use strongroom_api::identity::{
    BeginSignIn, BegunSignIn, CreateIdentityProvider, FinishSignIn, IdentityProvider, SetIdentityProvider,
};
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ErrorCode, ListQuery, Page};

use super::super::Api;
use super::super::ask::{Asked, Named, Wish, read_open};
use super::super::token::From;
use super::{Answer, blocking};
use crate::engine::SigningIn;
use crate::engine::views::page_of;

/// Something that was made.
type Made<T> = Answer<(StatusCode, Json<T>)>;

/// The pause before a wrong emergency credential is answered. It is the sender's own: nobody waits
/// behind it, because what strangers do must not delay an emergency.
const WRONG_PAUSE: Duration = Duration::from_secs(1);

fn made<T>(thing: T) -> (StatusCode, Json<T>) {
    (StatusCode::CREATED, Json(thing))
}

/// Identity providers.
#[utoipa::path(get, path = "/v1/identity-providers", operation_id = "identity_provider_list", tag = "access",
    params(ListQuery),
    responses((status = 200, body = Page<IdentityProvider>), (status = "4XX", body = ErrorBody)))]
pub async fn identity_provider_list(
    State(api): State<Api>,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<IdentityProvider>>> {
    let all = api.control.list_identity_providers();
    Ok(Json(page_of("identity-providers", all, &query, |item| item.name.to_string())?))
}

/// Makes an identity provider, which has to answer now. Nobody can sign in by it before one of its
/// groups has a role.
#[utoipa::path(post, path = "/v1/identity-providers", operation_id = "identity_provider_create", tag = "access",
    request_body = CreateIdentityProvider,
    responses((status = 201, body = IdentityProvider), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn identity_provider_create(
    State(api): State<Api>,
    wish: Wish<CreateIdentityProvider>,
) -> Made<IdentityProvider> {
    let create =
        move |control: &crate::engine::Control| control.create_identity_provider(&wish.caller, &wish.body);
    blocking(api, create).await.map(made)
}

/// Replaces the secret of the client at an identity provider. Nothing else of a provider changes.
#[utoipa::path(patch, path = "/v1/identity-providers/{provider}", operation_id = "identity_provider_set", tag = "access",
    params(("provider" = String, Path, description = "Name or id.")), request_body = SetIdentityProvider,
    responses((status = 200, body = IdentityProvider), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn identity_provider_set(
    State(api): State<Api>,
    Named(provider): Named<String>,
    wish: Wish<SetIdentityProvider>,
) -> Answer<Json<IdentityProvider>> {
    let set = move |control: &crate::engine::Control| {
        control.set_identity_provider(&wish.caller, &provider, &wish.body)
    };
    blocking(api, set).await.map(Json)
}

/// Deletes an identity provider with the roles of its groups and the sessions that it gave.
#[utoipa::path(delete, path = "/v1/identity-providers/{provider}", operation_id = "identity_provider_delete", tag = "access",
    params(("provider" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn identity_provider_delete(
    State(api): State<Api>,
    Named(provider): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    let delete =
        move |control: &crate::engine::Control| control.delete_identity_provider(&wish.caller, &provider);
    blocking(api, delete).await.map(|()| Json(Done {}))
}

/// Begins a sign-in by an identity provider: a browser goes to the address of the answer, and comes
/// back to `redirect` with a state and a code.
#[utoipa::path(post, path = "/v1/identity-providers/{provider}/sign-ins", operation_id = "provider_sign_in_begin",
    tag = "access",
    params(("provider" = String, Path, description = "Name or id.")), request_body = BeginSignIn,
    responses((status = 201, body = BegunSignIn), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn provider_sign_in_begin(
    State(api): State<Api>,
    From(from): From,
    Named(provider): Named<String>,
    request: axum::extract::Request,
) -> Made<BegunSignIn> {
    let wish: BeginSignIn = read_open(request).await?;
    blocking(api, move |control| control.begin_sign_in(from, &provider, &wish)).await.map(made)
}

/// Begins a session with what a browser brought back from an identity provider, which says who it
/// is and in which groups.
#[utoipa::path(post, path = "/v1/provider-sessions", operation_id = "provider_sign_in", tag = "access",
    request_body = FinishSignIn,
    responses((status = 201, body = NewSession), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn provider_sign_in(
    State(api): State<Api>,
    From(from): From,
    request: axum::extract::Request,
) -> Made<NewSession> {
    let wish: FinishSignIn = read_open(request).await?;
    by_provider(api, SigningIn::program(from, "provider_sign_in"), wish).await.map(made)
}

/// Signs in by an identity provider, in turn.
pub(super) async fn by_provider(api: Api, signing_in: SigningIn, wish: FinishSignIn) -> Answer<NewSession> {
    let signs = api.clone();
    // Nothing is guessed here, so failures delay nobody; but few wait for other servers at a time.
    let turn = signs.provider_sign_ins.turn(signing_in.from, "").await?;
    let signed = blocking(api, move |control| control.finish_sign_in(&signing_in, &wish)).await;
    match &signed {
        Ok(_) => turn.succeeded(),
        Err(_) => drop(turn),
    }
    signed
}

/// Emergency credentials.
#[utoipa::path(get, path = "/v1/emergency-credentials", operation_id = "emergency_list", tag = "access",
    params(ListQuery),
    responses((status = 200, body = Page<EmergencyCredential>), (status = "4XX", body = ErrorBody)))]
pub async fn emergency_list(
    State(api): State<Api>,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<EmergencyCredential>>> {
    let all = api.control.list_emergencies();
    Ok(Json(page_of("emergency-credentials", all, &query, |item| item.name.to_string())?))
}

/// Makes an emergency credential. The answer has its secret, once.
#[utoipa::path(post, path = "/v1/emergency-credentials", operation_id = "emergency_create", tag = "access",
    request_body = CreateEmergency,
    responses((status = 201, body = NewEmergency), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn emergency_create(State(api): State<Api>, wish: Wish<CreateEmergency>) -> Made<NewEmergency> {
    blocking(api, move |control| control.create_emergency(&wish.caller, &wish.body)).await.map(made)
}

/// Gives an emergency credential another secret. The answer has it, once; the old one counts no
/// more.
#[utoipa::path(post, path = "/v1/emergency-credentials/{credential}/rotate", operation_id = "emergency_rotate", tag = "access",
    params(("credential" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 201, body = NewEmergency), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn emergency_rotate(
    State(api): State<Api>,
    Named(credential): Named<String>,
    wish: Wish<PowerOptions>,
) -> Made<NewEmergency> {
    blocking(api, move |control| control.rotate_emergency(&wish.caller, &credential)).await.map(made)
}

/// Acknowledges the use of an emergency credential, which ends the alarm.
#[utoipa::path(post, path = "/v1/emergency-credentials/{credential}/acknowledge", operation_id = "emergency_acknowledge",
    tag = "access",
    params(("credential" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 200, body = EmergencyCredential), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn emergency_acknowledge(
    State(api): State<Api>,
    Named(credential): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<EmergencyCredential>> {
    let acknowledge =
        move |control: &crate::engine::Control| control.acknowledge_emergency(&wish.caller, &credential);
    blocking(api, acknowledge).await.map(Json)
}

/// Deletes an emergency credential, and ends its session. One whose use nobody has acknowledged
/// stays.
#[utoipa::path(delete, path = "/v1/emergency-credentials/{credential}", operation_id = "emergency_revoke", tag = "access",
    params(("credential" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn emergency_revoke(
    State(api): State<Api>,
    Named(credential): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    let revoke = move |control: &crate::engine::Control| control.revoke_emergency(&wish.caller, &credential);
    blocking(api, revoke).await.map(|()| Json(Done {}))
}

/// Begins a session by an emergency credential, which can be used once. Everyone whom alarms reach
/// is told.
#[utoipa::path(post, path = "/v1/emergency-sessions", operation_id = "emergency_sign_in", tag = "access",
    request_body = EmergencySignIn,
    responses((status = 201, body = NewSession), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn emergency_sign_in(
    State(api): State<Api>,
    From(from): From,
    request: axum::extract::Request,
) -> Made<NewSession> {
    let wish: EmergencySignIn = read_open(request).await?;
    by_emergency(api, SigningIn::program(from, "emergency_sign_in"), wish).await.map(made)
}

/// Signs in by an emergency credential.
pub(super) async fn by_emergency(
    api: Api,
    signing_in: SigningIn,
    wish: EmergencySignIn,
) -> Answer<NewSession> {
    let signed = blocking(api, move |control| control.sign_in_emergency(&signing_in, &wish)).await;
    if let Err(refusal) = &signed
        && refusal.0.code == ErrorCode::Unauthorized
    {
        tokio::time::sleep(WRONG_PAUSE).await;
    }
    signed
}
