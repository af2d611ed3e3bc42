//! Sessions of browsers. Their secrets are in cookies, and in no answer's body.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::SET_COOKIE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::AppendHeaders;
use strongroom_api::access::{Done, NewSession, SignIn};
use strongroom_api::browser::{
    BeginPageSignIn, BegunPageSignIn, BrowserSession, FLOW_COOKIE, PageSignIn, SESSION_COOKIE, SignInWays,
    SignedOut,
};
use strongroom_api::emergency::EmergencySignIn;
use strongroom_api::identity::{BeginSignIn, BegunSignIn, FinishSignIn, ProviderAnswer};
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ErrorCode, Problem};

use super::super::Api;
use super::super::ask::{Wish, read_open};
use super::super::browser::{Cookie, forget, keep, of_own_page, own_origin};
use super::super::problem::Refusal;
use super::super::token::{Asker, From, is_signed_in};
use super::{Answer, access, blocking, identity};
use crate::engine::SigningIn;
use crate::engine::holders::Shown;

/// Cookies for the browser.
type Cookies = AppendHeaders<Vec<(axum::http::HeaderName, HeaderValue)>>;

fn cookies(all: impl IntoIterator<Item = HeaderValue>) -> Cookies {
    AppendHeaders(all.into_iter().map(|cookie| (SET_COOKIE, cookie)).collect())
}

/// Refuses to set a cookie for anybody but this server's page: somebody else's would sign a browser
/// in as them.
fn expect_own_page(request: &Request) -> Answer<()> {
    of_own_page(request.method(), request.uri(), request.headers())
        .map_err(|foreign| Refusal(foreign.problem(ErrorCode::Forbidden)))
}

/// Whether the caller is signed in, and the ways to sign in besides a token. It is answered whether
/// anybody is or not.
#[utoipa::path(get, path = "/v1/sign-in-ways", operation_id = "sign_in_ways", tag = "access",
    responses((status = 200, body = SignInWays)))]
pub async fn sign_in_ways(State(api): State<Api>, request: Request) -> Json<SignInWays> {
    let origin = own_origin(request.uri(), request.headers());
    let signed_in = is_signed_in(&api.control, &request);
    Json(api.control.sign_in_ways(origin.as_deref(), signed_in))
}

/// Begins a sign-in by an identity provider in a browser, which goes to the address of the answer
/// and comes back to `redirect` with a state and a code. The secret of the sign-in is in a cookie.
#[utoipa::path(post, path = "/v1/page-sign-ins", operation_id = "page_sign_in_begin", tag = "access",
    request_body = BeginPageSignIn,
    responses((status = 201, body = BegunPageSignIn), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn page_sign_in_begin(
    State(api): State<Api>,
    From(from): From,
    request: Request,
) -> Answer<(StatusCode, Cookies, Json<BegunPageSignIn>)> {
    expect_own_page(&request)?;
    let BeginPageSignIn { provider, redirect } = read_open(request).await?;
    let wish = BeginSignIn { redirect };
    let begin = move |control: &crate::engine::Control| control.begin_sign_in(from, provider.as_str(), &wish);
    let BegunSignIn { authorization_url, state, flow, expires_unix_seconds } = blocking(api, begin).await?;
    let cookie = keep(FLOW_COOKIE, flow.expose())?;
    let begun = BegunPageSignIn { authorization_url, state, expires_unix_seconds };
    Ok((StatusCode::CREATED, cookies([cookie]), Json(begun)))
}

/// Begins a session of a browser, whose secret is in a cookie that no script reads. It takes the
/// place of a session that the browser had.
#[utoipa::path(post, path = "/v1/page-sessions", operation_id = "page_sign_in", tag = "access",
    request_body = PageSignIn,
    responses((status = 201, body = BrowserSession), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn page_sign_in(
    State(api): State<Api>,
    From(from): From,
    request: Request,
) -> Answer<(StatusCode, Cookies, Json<BrowserSession>)> {
    expect_own_page(&request)?;
    let former = sent(&request, SESSION_COOKIE);
    let flow = sent(&request, FLOW_COOKIE);
    let (signing_in, at) = (SigningIn::browser(from), api.clone());
    let mut set = Vec::new();
    let NewSession { session, token } = match read_open(request).await? {
        PageSignIn::Password { user, password, code } => {
            access::by_password(at, signing_in, SignIn { user, password, code }).await?
        }
        PageSignIn::Token { token } => {
            blocking(at, move |control| control.sign_in_by_token(&signing_in, &token)).await?
        }
        PageSignIn::Provider { state, code, iss } => {
            let flow = flow.and_then(|flow| ProviderAnswer::try_from(flow).ok()).ok_or_else(not_begun)?;
            set.push(forget(FLOW_COOKIE)?);
            let wish = FinishSignIn { flow, state, code, iss };
            identity::by_provider(at, signing_in, wish).await?
        }
        PageSignIn::Emergency { secret, reason } => {
            identity::by_emergency(at, signing_in, EmergencySignIn { secret, reason }).await?
        }
    };
    if let Some(former) = former {
        let ended = move |control: &crate::engine::Control| {
            control.end_replaced(&signing_in, &Shown::cookie(&former))
        };
        blocking(api, ended).await?;
    }
    set.push(keep(SESSION_COOKIE, token.expose())?);
    let begun = BrowserSession {
        session: session.id,
        name: session.user,
        expires_unix_seconds: session.expires_unix_seconds,
    };
    Ok((StatusCode::CREATED, cookies(set), Json(begun)))
}

fn sent(request: &Request, cookie: &str) -> Option<String> {
    Cookie::of(request.headers(), cookie).value().map(str::to_owned)
}

fn not_begun() -> Problem {
    let message = "this browser has begun no sign-in by an identity provider";
    Problem::new(ErrorCode::Unauthorized, message).next("begin again in the same browser")
}

/// Ends the session of the browser that asks.
#[utoipa::path(delete, path = "/v1/page-sessions/current", operation_id = "page_sign_out", tag = "access",
    responses((status = 200, body = Done), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn page_sign_out(
    State(api): State<Api>,
    asker: Asker,
    wish: Wish<PowerOptions>,
) -> Answer<(Cookies, Json<Done>)> {
    blocking(api, move |control| control.sign_out(&wish.caller, &asker.shown)).await?;
    Ok((cookies([forget(SESSION_COOKIE)?]), Json(Done {})))
}

/// Ends all sessions of the caller: of browsers and of commands. A token for programs goes on, and
/// the browsers that have signed in with it do not.
#[utoipa::path(delete, path = "/v1/page-sessions", operation_id = "page_sign_out_everywhere", tag = "access",
    responses((status = 200, body = SignedOut), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn page_sign_out_everywhere(
    State(api): State<Api>,
    asker: Asker,
    wish: Wish<PowerOptions>,
) -> Answer<(Cookies, Json<SignedOut>)> {
    let ended = blocking(api, move |control| control.sign_out_everywhere(&wish.caller, &asker.shown)).await?;
    Ok((cookies([forget(SESSION_COOKIE)?]), Json(ended)))
}
