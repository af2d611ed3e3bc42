//! Identifies callers by bearer tokens (RFC 6750). Only the SHA-256 of a token is stored, and it is
//! compared in constant time.

use aws_lc_rs::digest;
use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use strongroom_api::{ErrorCode, Problem};
use strongroom_types::hex;
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::Api;
use super::listen::ConnectionPlace;
use super::problem::Refusal;
use crate::inventory::Index;

/// The stored form of a token: SHA-256 in lower-case hexadecimal. A token has 256 random bits, so a
/// slow hash is not needed.
pub fn token_sha256(token: &str) -> String {
    hex::encode(digest::digest(&digest::SHA256, token.as_bytes()).as_ref())
}

/// The caller, for the operations.
#[derive(Clone, Debug)]
pub(super) struct Asker(pub String);

/// Admits requests with a known token.
pub(super) async fn require(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let shown = request.headers().get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = shown
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    let name = token.and_then(|(_, token)| holder(&api.control.inventory.read(), token.trim()));
    match name {
        Some(name) => {
            let place = request.extensions().get::<ConnectionPlace>();
            if let Some(Err(full)) = place.map(|place| place.known_as(&name)) {
                let problem = Problem::new(ErrorCode::TooMany, format!("token {name}: {full}"));
                return Refusal(problem.next("close some of them, and try again")).into_response();
            }
            request.extensions_mut().insert(Asker(name));
            next.run(request).await
        }
        None => Refusal(
            Problem::new(ErrorCode::Unauthorized, "no token that is known here came with the request").next(
                "send `Authorization: Bearer TOKEN`; the first one is in the file control/token of the home",
            ),
        )
        .into_response(),
    }
}

/// Returns the holder of a token. Compares with every stored token, in constant time.
fn holder(index: &Index, token: &str) -> Option<String> {
    let shown = token_sha256(token);
    let mut found = 0u32;
    for (number, known) in index.tokens.iter().enumerate() {
        let equal: Choice = known.sha256.as_bytes().ct_eq(shown.as_bytes());
        let place = u32::try_from(number).unwrap_or(u32::MAX - 1) + 1;
        found.conditional_assign(&place, equal);
    }
    let place = usize::try_from(found).ok()?.checked_sub(1)?;
    index.tokens.iter().nth(place).map(|known| known.name.clone())
}
