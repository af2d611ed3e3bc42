//! Users, roles, folders, grants, tokens, sessions, and the access log.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use strongroom_api::access::{
    AccessLogHead, AccessLogPage, AccessLogQuery, AccessLogReport, AccessLogRetention, ChangePassword,
    CreateFolder, CreateGrant, CreateRole, CreateToken, CreateUser, Done, Explain, Explanation, Folder,
    Grant, Me, MoveVm, NewSession, NewToken, NewUser, RenewSecondFactor, Review, Role, Session,
    SetAccessLogRetention, SetFolder, SignIn, Token, User, VerifyAccessLog,
};
use strongroom_api::task::Task;
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ErrorCode, ListQuery, Page};
use uuid::Uuid;

use super::super::Api;
use super::super::ask::{Asked, Named, Wish, read_open};
use super::super::token::{Asker, From};
use super::{Answer, blocking};
use crate::engine::SigningIn;
use crate::engine::views::page_of;

/// Something that was made.
type Made<T> = Answer<(StatusCode, Json<T>)>;

fn made<T>(thing: T) -> (StatusCode, Json<T>) {
    (StatusCode::CREATED, Json(thing))
}

/// Begins a session with a password and a code. Sign-ins that fail are slowed down; no account is
/// ever locked.
#[utoipa::path(post, path = "/v1/sessions", operation_id = "sign_in", tag = "access", request_body = SignIn,
    responses((status = 201, body = NewSession), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn sign_in(
    State(api): State<Api>,
    From(from): From,
    request: axum::extract::Request,
) -> Made<NewSession> {
    let wish: SignIn = read_open(request).await?;
    by_password(api, SigningIn::program(from, "sign_in"), wish).await.map(made)
}

/// Signs in by a password, in turn.
pub(super) async fn by_password(api: Api, signing_in: SigningIn, wish: SignIn) -> Answer<NewSession> {
    let (signs, from) = (api.clone(), signing_in.from);
    let turn = signs.sign_ins.turn(from, wish.user.as_str()).await?;
    let passwords = std::sync::Arc::clone(&api.passwords);
    let signed = blocking(api, move |control| control.sign_in(&signing_in, &wish, passwords.as_ref())).await;
    match &signed {
        Ok(_) => turn.succeeded(),
        Err(refusal) if refusal.0.code == ErrorCode::Unauthorized => turn.failed(),
        Err(_) => drop(turn),
    }
    signed
}

/// The caller's sessions; all sessions for a caller with the privilege `roles`.
#[utoipa::path(get, path = "/v1/sessions", operation_id = "session_list", tag = "access", params(ListQuery),
    responses((status = 200, body = Page<Session>), (status = "4XX", body = ErrorBody)))]
pub async fn session_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Session>>> {
    let all = api.control.list_sessions(&asker.admitted.caller);
    Ok(Json(page_of("sessions", all, &query, |item| item.id.to_string())?))
}

/// Ends a session.
#[utoipa::path(delete, path = "/v1/sessions/{session}", operation_id = "session_end", tag = "access",
    params(("session" = Uuid, Path, description = "Its id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn session_end(
    State(api): State<Api>,
    Named(session): Named<Uuid>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.end_session(&wish.caller, session)).await.map(|()| Json(Done {}))
}

/// The caller, and what it may do.
#[utoipa::path(get, path = "/v1/me", operation_id = "me_show", tag = "access",
    responses((status = 200, body = Me), (status = "4XX", body = ErrorBody)))]
pub async fn me_show(State(api): State<Api>, asker: Asker) -> Json<Me> {
    Json(api.control.me(&asker.admitted.caller))
}

/// Users, with their roles.
#[utoipa::path(get, path = "/v1/users", operation_id = "user_list", tag = "access", params(ListQuery),
    responses((status = 200, body = Page<User>), (status = "4XX", body = ErrorBody)))]
pub async fn user_list(State(api): State<Api>, Asked(query): Asked<ListQuery>) -> Answer<Json<Page<User>>> {
    Ok(Json(page_of("users", api.control.list_users(), &query, |item| item.name.to_string())?))
}

/// Makes a user, which has no role yet. The answer has the secret of its second factor, once.
#[utoipa::path(post, path = "/v1/users", operation_id = "user_create", tag = "access", request_body = CreateUser,
    responses((status = 201, body = NewUser), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn user_create(State(api): State<Api>, wish: Wish<CreateUser>) -> Made<NewUser> {
    let passwords = std::sync::Arc::clone(&api.passwords);
    let create = move |control: &crate::engine::Control| {
        control.create_user(&wish.caller, &wish.body, passwords.as_ref())
    };
    blocking(api, create).await.map(made)
}

/// Deletes a user with its roles, sessions and tokens.
#[utoipa::path(delete, path = "/v1/users/{user}", operation_id = "user_delete", tag = "access",
    params(("user" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn user_delete(
    State(api): State<Api>,
    Named(user): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.delete_user(&wish.caller, &user)).await.map(|()| Json(Done {}))
}

/// Sets a user's password, and ends its sessions. A user gives its present one with it.
#[utoipa::path(post, path = "/v1/users/{user}/password", operation_id = "user_password", tag = "access",
    params(("user" = String, Path, description = "Name or id.")), request_body = ChangePassword,
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn user_password(
    State(api): State<Api>,
    From(from): From,
    Named(user): Named<String>,
    wish: Wish<ChangePassword>,
) -> Answer<Json<Done>> {
    let passwords = std::sync::Arc::clone(&api.passwords);
    let named = user.clone();
    let change = move |control: &crate::engine::Control| {
        control.change_password(&wish.caller, &named, &wish.body, passwords.as_ref())
    };
    in_turn(api, from, &user, change).await.map(|()| Json(Done {}))
}

/// Gives a user another second factor, and ends its sessions. A user gives its present password
/// with it. The answer has the new secret, once.
#[utoipa::path(post, path = "/v1/users/{user}/second-factor", operation_id = "user_second_factor", tag = "access",
    params(("user" = String, Path, description = "Name or id.")), request_body = Option<RenewSecondFactor>,
    responses((status = 201, body = NewUser), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn user_second_factor(
    State(api): State<Api>,
    From(from): From,
    Named(user): Named<String>,
    wish: Wish<RenewSecondFactor>,
) -> Made<NewUser> {
    let passwords = std::sync::Arc::clone(&api.passwords);
    let named = user.clone();
    let renew = move |control: &crate::engine::Control| {
        control.renew_second_factor(&wish.caller, &named, &wish.body, passwords.as_ref())
    };
    in_turn(api, from, &user, renew).await.map(made)
}

/// Changes an account. A guess at its present password takes its turn as a sign-in does.
async fn in_turn<T: Send + 'static>(
    api: Api,
    from: std::net::IpAddr,
    user: &str,
    change: impl FnOnce(&crate::engine::Control) -> Result<T, strongroom_api::Problem> + Send + 'static,
) -> Answer<T> {
    let signs = api.clone();
    let turn = signs.sign_ins.turn(from, user).await?;
    let changed = blocking(api, change).await;
    match &changed {
        Err(refusal) if refusal.0.code == ErrorCode::Forbidden => turn.failed(),
        Ok(_) | Err(_) => drop(turn),
    }
    changed
}

/// Roles, with what each permits.
#[utoipa::path(get, path = "/v1/roles", operation_id = "role_list", tag = "access", params(ListQuery),
    responses((status = 200, body = Page<Role>), (status = "4XX", body = ErrorBody)))]
pub async fn role_list(State(api): State<Api>, Asked(query): Asked<ListQuery>) -> Answer<Json<Page<Role>>> {
    Ok(Json(page_of("roles", api.control.list_roles(), &query, |item| item.name.to_string())?))
}

/// Makes a role. It has no privilege that its maker does not have.
#[utoipa::path(post, path = "/v1/roles", operation_id = "role_create", tag = "access", request_body = CreateRole,
    responses((status = 201, body = Role), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn role_create(State(api): State<Api>, wish: Wish<CreateRole>) -> Made<Role> {
    blocking(api, move |control| control.create_role(&wish.caller, &wish.body)).await.map(made)
}

/// Deletes a role that nobody has.
#[utoipa::path(delete, path = "/v1/roles/{role}", operation_id = "role_delete", tag = "access",
    params(("role" = String, Path, description = "Its name.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn role_delete(
    State(api): State<Api>,
    Named(role): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.delete_role(&wish.caller, &role)).await.map(|()| Json(Done {}))
}

/// Folders.
#[utoipa::path(get, path = "/v1/folders", operation_id = "folder_list", tag = "access", params(ListQuery),
    responses((status = 200, body = Page<Folder>), (status = "4XX", body = ErrorBody)))]
pub async fn folder_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Folder>>> {
    let all = api.control.list_folders(&asker.rights(&api.control));
    Ok(Json(page_of("folders", all, &query, |item| item.name.to_string())?))
}

/// Makes a folder.
#[utoipa::path(post, path = "/v1/folders", operation_id = "folder_create", tag = "access", request_body = CreateFolder,
    responses((status = 201, body = Folder), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn folder_create(State(api): State<Api>, wish: Wish<CreateFolder>) -> Made<Folder> {
    blocking(api, move |control| control.create_folder(&wish.caller, &wish.body)).await.map(made)
}

/// Sets the quota of a folder. What is in it stays, even if it has more.
#[utoipa::path(patch, path = "/v1/folders/{folder}", operation_id = "folder_set", tag = "access",
    params(("folder" = String, Path, description = "Name or id.")), request_body = SetFolder,
    responses((status = 200, body = Folder), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn folder_set(
    State(api): State<Api>,
    Named(folder): Named<String>,
    wish: Wish<SetFolder>,
) -> Answer<Json<Folder>> {
    blocking(api, move |control| control.set_folder(&wish.caller, &folder, &wish.body)).await.map(Json)
}

/// Deletes a folder that nothing is in.
#[utoipa::path(delete, path = "/v1/folders/{folder}", operation_id = "folder_delete", tag = "access",
    params(("folder" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn folder_delete(
    State(api): State<Api>,
    Named(folder): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.delete_folder(&wish.caller, &folder)).await.map(|()| Json(Done {}))
}

/// Moves a VM, or a volume that no VM has, into a folder or out of all. The caller has every
/// privilege that the roles of the folder then have on it.
#[utoipa::path(post, path = "/v1/vms/{vm}/folder", operation_id = "vm_move", tag = "vm",
    params(("vm" = String, Path, description = "Name or id.")), request_body = Option<MoveVm>,
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn vm_move(
    State(api): State<Api>,
    Named(vm): Named<String>,
    wish: Wish<MoveVm>,
) -> Answer<(StatusCode, Json<Task>)> {
    let task = blocking(api, move |control| control.move_vm(&wish.caller, &vm, &wish.body)).await?;
    Ok((StatusCode::ACCEPTED, Json(task)))
}

/// The caller's roles, and those that it may revoke; all of them for a caller with the privilege
/// `audit`.
#[utoipa::path(get, path = "/v1/grants", operation_id = "grant_list", tag = "access", params(ListQuery),
    responses((status = 200, body = Page<Grant>), (status = "4XX", body = ErrorBody)))]
pub async fn grant_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Grant>>> {
    let all = api.control.list_grants(&asker.admitted.caller);
    Ok(Json(page_of("grants", all, &query, |item| item.id.to_string())?))
}

/// Gives a user a role. The caller has the privilege `roles` there, and every privilege of the
/// role.
#[utoipa::path(post, path = "/v1/grants", operation_id = "grant_create", tag = "access", request_body = CreateGrant,
    responses((status = 201, body = Grant), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn grant_create(State(api): State<Api>, wish: Wish<CreateGrant>) -> Made<Grant> {
    blocking(api, move |control| control.create_grant(&wish.caller, &wish.body)).await.map(made)
}

/// Takes a role from a user.
#[utoipa::path(delete, path = "/v1/grants/{grant}", operation_id = "grant_delete", tag = "access",
    params(("grant" = Uuid, Path, description = "Its id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn grant_delete(
    State(api): State<Api>,
    Named(grant): Named<Uuid>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.delete_grant(&wish.caller, grant)).await.map(|()| Json(Done {}))
}

/// The caller's tokens for programs; all of them for a caller with the privilege `roles`.
#[utoipa::path(get, path = "/v1/tokens", operation_id = "token_list", tag = "access", params(ListQuery),
    responses((status = 200, body = Page<Token>), (status = "4XX", body = ErrorBody)))]
pub async fn token_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Token>>> {
    let all = api.control.list_tokens(&asker.admitted.caller);
    Ok(Json(page_of("tokens", all, &query, |item| item.name.to_string())?))
}

/// Makes a token for programs. The answer has it, once.
#[utoipa::path(post, path = "/v1/tokens", operation_id = "token_create", tag = "access", request_body = CreateToken,
    responses((status = 201, body = NewToken), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn token_create(State(api): State<Api>, wish: Wish<CreateToken>) -> Made<NewToken> {
    blocking(api, move |control| control.create_token(&wish.caller, &wish.body)).await.map(made)
}

/// Replaces a token by another one with the same role and end. The old one ends at once.
#[utoipa::path(post, path = "/v1/tokens/{token}/rotate", operation_id = "token_rotate", tag = "access",
    params(("token" = String, Path, description = "Name or id.")), request_body = Option<PowerOptions>,
    responses((status = 201, body = NewToken), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn token_rotate(
    State(api): State<Api>,
    Named(token): Named<String>,
    wish: Wish<PowerOptions>,
) -> Made<NewToken> {
    blocking(api, move |control| control.rotate_token(&wish.caller, &token)).await.map(made)
}

/// Ends a token.
#[utoipa::path(delete, path = "/v1/tokens/{token}", operation_id = "token_revoke", tag = "access",
    params(("token" = String, Path, description = "Name or id.")),
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn token_revoke(
    State(api): State<Api>,
    Named(token): Named<String>,
    wish: Wish<PowerOptions>,
) -> Answer<Json<Done>> {
    blocking(api, move |control| control.revoke_token(&wish.caller, &token)).await.map(|()| Json(Done {}))
}

/// Who may do what. That it was read is in the access log.
#[utoipa::path(get, path = "/v1/access", operation_id = "access_review", tag = "access",
    responses((status = 200, body = Review), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_review(State(api): State<Api>, asker: Asker) -> Answer<Json<Review>> {
    blocking(api, move |control| control.access_review(&asker.admitted.caller)).await.map(Json)
}

/// Whether a user may call an operation, and why.
#[utoipa::path(post, path = "/v1/access/explanations", operation_id = "access_explain", tag = "access", request_body = Explain,
    responses((status = 200, body = Explanation), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_explain(State(api): State<Api>, wish: Wish<Explain>) -> Answer<Json<Explanation>> {
    blocking(api, move |control| control.explain_access(&wish.body)).await.map(Json)
}

/// The access log: sign-ins, refusals, tickets, changes of roles, oldest first: the newest entries,
/// or those after a number. That it was read is in it.
#[utoipa::path(get, path = "/v1/access/log", operation_id = "access_log", tag = "access", params(AccessLogQuery),
    responses((status = 200, body = AccessLogPage), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_log(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<AccessLogQuery>,
) -> Answer<Json<AccessLogPage>> {
    blocking(api, move |control| control.access_log(&asker.admitted.caller, &query)).await.map(Json)
}

/// The position of the access log, to keep elsewhere. That it was read is in the log.
#[utoipa::path(get, path = "/v1/access/log/head", operation_id = "access_log_head", tag = "access",
    responses((status = 200, body = AccessLogHead), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_log_head(State(api): State<Api>, asker: Asker) -> Answer<Json<AccessLogHead>> {
    blocking(api, move |control| control.access_log_head(&asker.admitted.caller)).await.map(Json)
}

/// Verifies the chain of the access log, and that it agrees with heads that were kept elsewhere.
/// It reads the whole log. That it was asked for is in the log.
#[utoipa::path(post, path = "/v1/access/log/verifications", operation_id = "access_log_verify", tag = "access",
    request_body = Option<VerifyAccessLog>,
    responses((status = 200, body = AccessLogReport), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_log_verify(
    State(api): State<Api>,
    wish: Wish<VerifyAccessLog>,
) -> Answer<Json<AccessLogReport>> {
    blocking(api, move |control| control.verify_access_log(&wish.caller, &wish.body)).await.map(Json)
}

/// How long the access log is kept, how large it may become, and how large it is.
#[utoipa::path(get, path = "/v1/access/log/retention", operation_id = "access_log_retention", tag = "access",
    responses((status = 200, body = AccessLogRetention), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_log_retention(State(api): State<Api>) -> Answer<Json<AccessLogRetention>> {
    blocking(api, |control| control.access_retention()).await.map(Json)
}

/// Sets how long the access log is kept, and how large it may become. It is done when the log is
/// full, too.
#[utoipa::path(patch, path = "/v1/access/log/retention", operation_id = "access_log_retention_set", tag = "access",
    request_body = Option<SetAccessLogRetention>,
    responses((status = 200, body = AccessLogRetention), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn access_log_retention_set(
    State(api): State<Api>,
    wish: Wish<SetAccessLogRetention>,
) -> Answer<Json<AccessLogRetention>> {
    blocking(api, move |control| control.set_access_retention(&wish.caller, &wish.body)).await.map(Json)
}
