//! Requests to a provider: HTTPS, without redirects, with a deadline, and with answers of limited
//! size.

use std::time::Duration;

use serde::de::DeserializeOwned;
use strongroom_control::identity::NotIdentified;
use strongroom_control::records::IdentityProviderRecord;
use strongroom_serving::{client_of, machine_roots, roots_of};
use ureq::http::Response;
use ureq::{Agent, Body};

/// The longest answer, in bytes: keys with chains of certificates. Expected answers have a few
/// thousand.
const ANSWER_BYTES_MAX: u64 = 512 * 1024;
/// How long a request may take.
const WITHIN: Duration = Duration::from_secs(10);

/// A provider's server.
pub struct Http(Agent);

/// An answer that is no success.
pub struct Refusal {
    /// Its status.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
}

impl Http {
    /// The client for a provider.
    pub fn of(provider: &IdentityProviderRecord) -> Result<Self, NotIdentified> {
        let unusable = |error: String| NotIdentified::Unavailable(format!("its authorities: {error}"));
        let roots = match &provider.authorities {
            Some(pem) => roots_of(pem.as_str().as_bytes()),
            None => machine_roots(),
        };
        let roots = roots.map_err(|error| unusable(error.to_string()))?;
        let agent = client_of(roots)
            .timeout_global(Some(WITHIN))
            .max_idle_connections(0)
            .max_idle_connections_per_host(0);
        Ok(Self(agent.build().new_agent()))
    }

    /// Reads a document.
    pub fn get<T: DeserializeOwned>(&self, url: &str, bearer: Option<&str>) -> Result<T, NotIdentified> {
        let mut request = self.0.get(url).header("accept", "application/json");
        if let Some(bearer) = bearer {
            request = request.header("authorization", format!("Bearer {bearer}"));
        }
        let body = taken(url, request.call())?;
        let body = body.map_err(|refusal| {
            NotIdentified::Unavailable(format!("{url} answers with status {}", refusal.status))
        })?;
        serde_json::from_slice(&body).map_err(|error| {
            NotIdentified::Unavailable(format!("{url} does not answer what it should: {error}"))
        })
    }

    /// Sends a form.
    pub fn post(
        &self,
        url: &str,
        form: &[(&str, &str)],
        authorization: Option<&str>,
    ) -> Result<Result<Vec<u8>, Refusal>, NotIdentified> {
        let mut request = self.0.post(url).header("accept", "application/json");
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let request = request.content_type("application/x-www-form-urlencoded");
        taken(url, request.send(form_text(form).as_bytes()))
    }
}

fn taken(
    url: &str,
    answer: Result<Response<Body>, ureq::Error>,
) -> Result<Result<Vec<u8>, Refusal>, NotIdentified> {
    let failed = |error: ureq::Error| NotIdentified::Unavailable(format!("{url}: {error}"));
    let mut answer = answer.map_err(failed)?;
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec().map_err(failed)?;
    Ok(if status == 200 { Ok(body) } else { Err(Refusal { status, body }) })
}

/// Pairs as `application/x-www-form-urlencoded`, and as a query.
pub fn form_text(pairs: &[(&str, &str)]) -> String {
    let pairs: Vec<String> =
        pairs.iter().map(|(name, value)| format!("{}={}", escaped(name), escaped(value))).collect();
    pairs.join("&")
}

/// A text whose characters outside of RFC 3986's unreserved ones are escaped.
pub fn escaped(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            all.push(char::from(byte));
        } else {
            all.push_str(&format!("%{byte:02X}"));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_are_escaped() {
        assert_eq!(form_text(&[("a b", "c&d=e"), ("ü", "~")]), "a%20b=c%26d%3De&%C3%BC=~");
    }
}
