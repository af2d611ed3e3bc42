//! The page: `index.html` at the address of every screen, and its assets.
//!
//! Whatever is no operation and lies outside the [paths of programs](RESERVED) is a screen of the
//! page, for browsers alone: they say that they take HTML. Nobody is asked who they are: the page
//! has nothing of the site.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, VARY,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::response::{IntoResponse, Response};
use strongroom_api::{ErrorCode, Problem};
use strongroom_page::{Asset, EVERY_PAGE, Nonce, asset, index, page_policy};

use super::problem::Refusal;

/// The first parts of paths that are no screens. The page's own build must not use them.
const RESERVED: [&str; 7] = ["v1", "openapi.json", "healthz", "readyz", "metrics", "relay", ASSETS];
/// The first part of the assets' paths.
const ASSETS: &str = "assets";
/// Each time anew, because each answer has another nonce. Without `ETag`: an answer of 304 would
/// have the new nonce in its policy, for a text with the old one.
const OF_INDEX: &str = "no-cache";
/// Another content has another name.
const OF_ASSETS: &str = "public, max-age=31536000, immutable";

/// The answer to a request for a path at which no operation is.
pub(super) async fn answer(request: Request) -> Response {
    let (path, headers) = (request.uri().path(), request.headers());
    let reads = [Method::GET, Method::HEAD].contains(request.method());
    // The path as it was sent: nothing in it is decoded or resolved.
    let mut parts = path.trim_start_matches('/').splitn(2, '/');
    let (first, rest) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    if reads && first == ASSETS {
        if let Some(asset) = asset(rest).filter(|_| path.starts_with("/assets/")) {
            return asset_answer(asset, headers);
        }
    } else if reads && (path == "/" || (takes(headers, &ACCEPT, "text/html") && !RESERVED.contains(&first))) {
        return index_answer().unwrap_or_else(IntoResponse::into_response);
    }
    let problem = Problem::new(ErrorCode::NoSuchPath, "there is nothing at this path");
    Refusal(problem.next("/openapi.json lists the paths")).into_response()
}

fn index_answer() -> Result<Response, Refusal> {
    let mut random = [0; Nonce::BYTES];
    getrandom::fill(&mut random).map_err(crate::engine::no_random)?;
    let nonce = Nonce::of(random);
    let mut response = Response::new(Body::from(index(&nonce)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(OF_INDEX));
    headers.insert(VARY, HeaderValue::from_static("accept"));
    let policy = HeaderValue::try_from(page_policy(Some(&nonce)));
    let policy = policy.map_err(|error| Problem::new(ErrorCode::Internal, error.to_string()))?;
    headers.insert(CONTENT_SECURITY_POLICY, policy);
    Ok(with_page_headers(response))
}

fn asset_answer(asset: &'static Asset, asked: &HeaderMap) -> Response {
    let gzip = asset.gzip.filter(|_| takes(asked, &ACCEPT_ENCODING, "gzip"));
    let mut response = Response::new(Body::from(gzip.unwrap_or(asset.plain)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(OF_ASSETS));
    if asset.gzip.is_some() {
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    }
    if gzip.is_some() {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    if let Ok(policy) = HeaderValue::try_from(page_policy(None)) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    with_page_headers(response)
}

fn with_page_headers(mut response: Response) -> Response {
    for (name, value) in EVERY_PAGE {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// Whether a list of what a client takes (RFC 9110, 12.4.2) names this, and does not refuse it.
/// Patterns such as `*/*` do not count: programs send these.
fn takes(headers: &HeaderMap, list: &HeaderName, wanted: &str) -> bool {
    let lines = headers.get_all(list).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let named = parts.next().is_some_and(|named| named.eq_ignore_ascii_case(wanted));
        let is_refused = |part: &str| {
            part.strip_prefix("q=").is_some_and(|weight| weight.parse::<f32>().is_ok_and(|q| q <= 0.0))
        };
        named && !parts.any(is_refused)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_takes_what_it_names_and_does_not_refuse() {
        let of = |line: &str| HeaderMap::from_iter([(ACCEPT, HeaderValue::from_str(line).unwrap())]);
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        assert!(takes(&of(browser), &ACCEPT, "text/html"));
        assert!(takes(&of("application/json, TEXT/HTML;q=0.1"), &ACCEPT, "text/html"));
        for line in ["*/*", "text/*", "text/html;q=0", "text/html; q=0.000", "text/htmlx", ""] {
            assert!(!takes(&of(line), &ACCEPT, "text/html"), "{line}");
        }
        assert!(!takes(&HeaderMap::new(), &ACCEPT, "text/html"));
    }
}
