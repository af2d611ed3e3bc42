//! What a browser sends by itself: cookies, and where a request came from.
//!
//! A browser adds its cookies, and the key of its certificate, to requests that any page causes. So
//! both count only for requests that come from this server's own page, which these say:
//!
//! | header | who sets it | must be |
//! |---|---|---|
//! | `Sec-Fetch-Site` | the browser; no page can | `same-origin`, if it is there |
//! | `Origin` | the browser; no page can | the origin that the request was sent to, if it is there |
//! | `Strongroom-Page` | the page, for a cookie and a method that may change something | `1` |
//!
//! Another origin cannot add the third without asking first (CORS), and no answer of this server
//! permits it. A neighbour at another port of the same host is another origin, though browsers send
//! it the host's cookies: `SameSite` says nothing of it.

use axum::http::header::{COOKIE, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use strongroom_api::browser::{PAGE_HEADER, PAGE_HEADER_VALUE};
use strongroom_api::{ErrorCode, Problem};

/// Where the request came from, as the browser says.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// What browsers are told of each cookie of ours: it is this host's alone, travels over TLS alone,
/// no script reads it, and no other site's page makes the browser send it.
const ATTRIBUTES: &str = "Path=/; Secure; HttpOnly; SameSite=Strict";

/// The cookies of one name that came with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cookie<'request> {
    /// There is none.
    Absent,
    /// There is one.
    Value(&'request str),
    /// There are several, of which somebody else may have set one. None counts.
    Ambiguous,
}

impl<'request> Cookie<'request> {
    /// The cookies of exactly this name.
    pub fn of(headers: &'request HeaderMap, name: &str) -> Self {
        let lines = headers.get_all(COOKIE).iter().map(|line| line.to_str().unwrap_or_default());
        let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let mut values = pairs.filter(|(of, _)| *of == name).map(|(_, value)| value);
        match (values.next(), values.next()) {
            (None, _) => Self::Absent,
            (Some(value), None) => Self::Value(value),
            (Some(_), Some(_)) => Self::Ambiguous,
        }
    }

    /// The only value.
    pub fn value(self) -> Option<&'request str> {
        match self {
            Self::Value(value) => Some(value),
            Self::Absent | Self::Ambiguous => None,
        }
    }
}

/// The header that has a browser keep a secret until it is closed.
///
/// # Errors
/// [`Problem`] if the secret cannot be in a header.
pub(super) fn keep(name: &str, secret: &str) -> Result<HeaderValue, Problem> {
    let header = HeaderValue::try_from(format!("{name}={secret}; {ATTRIBUTES}"));
    header.map_err(|error| Problem::new(ErrorCode::Internal, error.to_string()))
}

/// The header that has a browser forget a cookie.
///
/// # Errors
/// As [`keep`].
pub(super) fn forget(name: &str) -> Result<HeaderValue, Problem> {
    let header = HeaderValue::try_from(format!("{name}=; {ATTRIBUTES}; Max-Age=0"));
    header.map_err(|error| Problem::new(ErrorCode::Internal, error.to_string()))
}

/// The origin that a request was sent to.
pub(super) fn own_origin(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let mut named = headers.get_all(HOST).iter();
    let host = match (uri.authority(), named.next(), named.next()) {
        (Some(authority), _, _) => authority.as_str(),
        (None, Some(host), None) => host.to_str().ok()?,
        (None, _, _) => return None,
    };
    let host = host.to_ascii_lowercase();
    Some(format!("https://{}", host.strip_suffix(":443").unwrap_or(&host)))
}

/// Why a request is none of this server's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Foreign {
    /// The browser says that another site's page, or a person, made it.
    Site,
    /// The browser says that a page of another origin made it.
    Origin,
    /// It lacks the header of the page.
    Header,
}

impl Foreign {
    fn reason(self) -> &'static str {
        match self {
            Self::Site => "the request was not made by this server's own page (Sec-Fetch-Site)",
            Self::Origin => "the request was made by a page of another origin than this server's (Origin)",
            Self::Header => "the request lacks the header of this server's own page (Strongroom-Page: 1)",
        }
    }

    /// The refusal of a request that would have come with a cookie or sets one.
    pub fn problem(self, code: ErrorCode) -> Problem {
        let next = "open the page at this server's own address; a program sends a bearer token; \
                    a proxy passes Host on as the browser sent it";
        Problem::new(code, self.reason()).next(next)
    }
}

/// Checks that no browser made a request for another page than this server's.
///
/// # Errors
/// [`Foreign`].
pub(super) fn not_for_others(uri: &Uri, headers: &HeaderMap) -> Result<(), Foreign> {
    if headers.get_all(FETCH_SITE).iter().any(|site| site != "same-origin") {
        return Err(Foreign::Site);
    }
    let own = own_origin(uri, headers);
    let is_own = |origin: &HeaderValue| {
        let origin = origin.to_str().map(str::to_ascii_lowercase).ok();
        origin.is_some() && origin == own
    };
    match headers.get_all(ORIGIN).iter().all(is_own) {
        true => Ok(()),
        false => Err(Foreign::Origin),
    }
}

/// Checks that the page of this server made a request, as far as the method demands it.
///
/// # Errors
/// [`Foreign`].
pub(super) fn of_own_page(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Foreign> {
    not_for_others(uri, headers)?;
    // What is read with these changes nothing: a test of `api` holds the operations to it.
    if [Method::GET, Method::HEAD].contains(method) {
        return Ok(());
    }
    let mut sent = headers.get_all(PAGE_HEADER).iter();
    match (sent.next(), sent.next()) {
        (Some(value), None) if value == PAGE_HEADER_VALUE => Ok(()),
        (_, _) => Err(Foreign::Header),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())
        };
        lines.iter().map(line).collect()
    }

    fn cookie<'headers>(headers: &'headers HeaderMap) -> Cookie<'headers> {
        Cookie::of(headers, "__Host-strongroom")
    }

    #[test]
    fn a_cookie_counts_by_its_exact_name_and_alone() {
        for (line, value) in [
            ("__Host-strongroom=s1", "s1"),
            ("theme=dark; __Host-strongroom=s1", "s1"),
            ("__Host-strongroom=s1=; __Host-strongroom-flow=f", "s1="),
            ("__host-strongroom=evil; __Host-strongroom=s1", "s1"),
        ] {
            assert_eq!(cookie(&headers(&[("cookie", line)])), Cookie::Value(value), "{line}");
        }
        for line in [
            "",
            "__host-strongroom=s1",
            "__HOST-STRONGROOM=s1",
            "__Host-strongroom-flow=s1",
            "x__Host-strongroom=s1",
            "__Host-strongroom",
            "=__Host-strongroom=s1",
            "a=b,__Host-strongroom=s1",
            "$Version=1, __Host-strongroom=s1",
        ] {
            assert_eq!(cookie(&headers(&[("cookie", line)])), Cookie::Absent, "{line}");
        }
        let twice = headers(&[("cookie", "__Host-strongroom=s1; __Host-strongroom=s1")]);
        assert_eq!(cookie(&twice), Cookie::Ambiguous);
        let mut lines = headers(&[("cookie", "__Host-strongroom=s1")]);
        lines.append(COOKIE, HeaderValue::from_static("__Host-strongroom=s2"));
        assert_eq!(cookie(&lines), Cookie::Ambiguous);
    }

    #[test]
    fn the_origin_is_that_of_the_host_that_was_asked() {
        let here = Uri::from_static("/v1/vms");
        for (host, origin) in [
            ("10.0.0.5:5690", "https://10.0.0.5:5690"),
            ("Vms.Example.COM", "https://vms.example.com"),
            ("vms.example.com:443", "https://vms.example.com"),
            ("[fd00::5]:5690", "https://[fd00::5]:5690"),
        ] {
            let asked = headers(&[("host", host)]);
            assert_eq!(own_origin(&here, &asked).as_deref(), Some(origin));
            let of_page = headers(&[("host", host), ("origin", origin), ("sec-fetch-site", "same-origin")]);
            assert_eq!(not_for_others(&here, &of_page), Ok(()));
            for other in ["null", "", "https://10.0.0.5:5691", "http://10.0.0.5:5690", "https://evil.example"]
            {
                let foreign = headers(&[("host", host), ("origin", other)]);
                assert_eq!(not_for_others(&here, &foreign), Err(Foreign::Origin), "{other}");
            }
        }
        assert_eq!(not_for_others(&here, &headers(&[("origin", "https://a")])), Err(Foreign::Origin));
    }
}
